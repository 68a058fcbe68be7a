"""The settings of gradloom fit, and their defaults from the data."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base.fit_options import FitOptions, FitOutput, ImageOptions, NetworkOptions, TableOptions
from ..base.training_options import DeviceOptions
from .run_settings import check_device, check_memory
from .setting import command_settings

if TYPE_CHECKING:
    from ..data import Table
    from ..parallel.communicator import Communicator
    from ..tables.recipe import Recipe

# What a fit does. None: the data decide (see settle)
FitSettings: Any = command_settings(
    "fit", TableOptions, ImageOptions, NetworkOptions, FitOptions, DeviceOptions, FitOutput
)

# Settings that a resumed run may change, or that it compares by more than their text
MAY_CHANGE = (
    "out", "val", "test", "epochs", "micro_batch_size", "precision", "device", "checkpoint_every", "keep", "log",
    "groups", "memory", "watch", "watch_every", "watch_what",
)  # fmt: skip


def prepared(asked: Any) -> Any:
    """With the settings that are decided before reading; SettingError for settings that exclude each other."""
    from ..base.errors import SettingError
    from ..base.settings import as_precision
    from ..data.reading.text_bytes import encoding_of
    from ..tables.recipe import Recipe

    if asked.folds:
        val = (asked.val or {}).get("val")
        for name, value in (("val_split", asked.val_split), ("time", asked.time), ("val", val)):
            if value:
                text = f"{{folds}} and {{{name}}} are mutually exclusive"
                raise SettingError(text, {"folds": asked.folds, name: value})
    asked = replace(asked, precision=as_precision(asked.precision))
    if asked.encoding is not None:
        asked = replace(asked, encoding=encoding_of(asked.encoding))
    check_memory("fit", asked.memory, asked.device)
    check_device(asked.device)
    if asked.val_split is None and os.path.isdir(asked.data):
        asked = replace(asked, val_split=0.0 if "val" in (asked.val or {}) else 0.05)
    elif asked.val_split is None and asked.val:
        asked = replace(asked, val_split=0.0)
    elif asked.time is not None:
        asked = replace(asked, folds=asked.folds or 0)
    recipe = Recipe.of(asked).with_validation()
    return replace(asked, val_split=recipe.val_split, folds=recipe.folds)


def settle_data(asked: Any, holds_images: bool) -> Any:
    """With the settings of images where the data are a folder of them; SettingError for settings of other data."""
    from ..base.errors import SettingError
    from ..base.options import options_of

    named = options_of(TableOptions if holds_images else ImageOptions)
    others = [name for name in named if name not in ("data", "test", "task", "target") and getattr(asked, name)]
    if holds_images:
        others += [
            name
            for name, own in (("task", "classification"), ("target", "class"))
            if getattr(asked, name) not in (None, own)
        ]
    for name in others:
        need = "a table: this is a folder of images" if holds_images else "a folder of images, as FOLDER/CLASS/1.jpg"
        raise SettingError(f"{{{name}}} requires {need}", {name: getattr(asked, name)})
    if not holds_images:
        return asked
    augment = ["crop"] if asked.augment is None else asked.augment
    return replace(asked, augment=augment, corrupt=asked.corrupt or "skip")


def settle(asked: Any, table: Table, ranks: Communicator | None) -> tuple[Any, Recipe]:
    """(all settings, those of the training): defaults follow from the kind and the number of the training rows."""
    from ..base.errors import SettingError
    from ..parallel.agree import share_of
    from ..tables.recipe import Recipe, batch_size_for

    rows, has_val = table.train.n, bool(asked.val or table.val is not None)
    recipe = replace(Recipe.of(asked), val_split=table.val_split if table.val is None else 0.0)
    recipe = recipe.decided(table.preprocess, rows, has_val)
    for name in ("eval_every", "eval_rows"):
        value = getattr(asked, name)
        if value is not None and not (has_val or recipe.val_split or recipe.folds):
            text = f"{{{name}}} requires validation rows: {{val}}, or {{folds}} or {{val_split}} above 0"
            raise SettingError(text, {name: value, "val": ..., "folds": ..., "val_split": ...})
    wanted = asked.batch_size or batch_size_for(recipe.trained(rows), table.preprocess)
    micro = asked.micro_batch_size or share_of(recipe.batch_size, ranks)
    if micro > wanted:
        raise SettingError(setting="micro_batch_size", seen=micro, need=f"at most {wanted}, the batch size")
    chosen = vars(recipe) | {"val_split": table.val_split, "micro_batch_size": min(micro, recipe.batch_size)}
    if asked.memory is not None and asked.micro_batch_size is None:
        chosen["micro_batch_size"] = None  # the memory decides
    use = replace(asked, checkpoint_every=asked.checkpoint_every or "5min", keep=asked.keep or 3, **chosen)
    return use, recipe


def rows_of(use: Any, table: Table) -> tuple[int, int]:
    """(training rows, validation rows); those of folds are both."""
    if use.folds:
        return table.train.n, table.train.n
    if table.val is not None:
        return table.train.n, table.val.n
    val = len(table.train.split(use.val_split, use.seed)[1]) if use.val_split else 0
    return table.train.n - val, val
