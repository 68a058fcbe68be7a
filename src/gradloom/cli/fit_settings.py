"""The settings of gradloom fit, and what the data decide of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base.defaults import MEMBERS, PATIENCE, batch_for, dropout_for, epochs_for, folds_for, hidden_for, rate_for
from ..base.fit_options import FitOptions, FitOutput, NetworkOptions, TableOptions
from ..base.training_options import DeviceOptions
from .run_settings import check_device
from .setting import command_settings

if TYPE_CHECKING:
    from ..data import Table
    from ..parallel.communicator import Communicator

# What a fit does. None: the data decide (see settle)
FitSettings: Any = command_settings("fit", TableOptions, NetworkOptions, FitOptions, DeviceOptions, FitOutput)

# Settings that may be others when a run goes on, or of which it knows more than their text
MAY_CHANGE = (
    "out", "val", "test", "epochs", "micro_batch_size", "precision", "device", "checkpoint_every", "keep", "log",
    "groups",
)  # fmt: skip


def prepared(asked: Any) -> Any:
    """With what is decided before the data are read; SettingError for settings that exclude one another."""
    from ..base.errors import SettingError
    from ..base.settings import as_precision
    from ..data.text_bytes import encoding_of

    if asked.metric is not None and asked.monitor is not None:
        raise SettingError(f"--metric {asked.metric} beside --monitor {asked.monitor}: need one of them")
    if asked.metric is not None and asked.patience == 0:
        raise SettingError(f"--metric {asked.metric}: is what --patience waits for, and that is 0; need more")
    if asked.monitor is not None and asked.patience == 0:
        raise SettingError(f"--monitor {asked.monitor}: is what --patience waits for, and that is 0; need more")
    if asked.folds:
        for name, value in (("val-split", asked.val_split), ("time", asked.time), ("val", "val" in (asked.val or {}))):
            if value:
                said = "" if value is True else f" {value}"
                raise SettingError(f"--folds {asked.folds} beside --{name}{said}: need one of them")
    asked = replace(asked, precision=as_precision(asked.precision))
    if asked.encoding is not None:
        asked = replace(asked, encoding=encoding_of(asked.encoding))
    check_device(asked.device)
    if asked.val_split is None and os.path.isdir(asked.data):
        return replace(asked, val_split=0.05 if "val" not in (asked.val or {}) else 0.0)
    if asked.val_split is None and asked.val:
        asked = replace(asked, val_split=0.0)
    if asked.val_split is not None or asked.time is not None:
        return replace(asked, folds=asked.folds or 0)
    has_members = asked.hidden != [] and asked.ensemble != 1
    return replace(asked, val_split=0.0) if asked.folds or (asked.folds is None and has_members) else asked


def _check_validated(use: Any, table: Table) -> bool:
    """Whether there are rows to validate on; SettingError for a setting that needs them, where there are none."""
    from ..base.errors import SettingError
    from ..train.scores import SCORES

    validates = bool(use.val or table.val is not None or use.val_split or use.folds)
    for name in ("eval_every", "eval_rows", "metric"):
        value = getattr(use, name)
        if value is not None and not validates:
            flag = name.replace("_", "-")
            raise SettingError(
                f"--{flag} {value}: there are no rows to validate on; need --val, --folds or --val-split"
            )
    if use.metric is not None and use.metric not in SCORES[table.task]:
        need = ", ".join(SCORES[table.task])
        raise SettingError(f"--metric {use.metric}: the task is a {table.task}; need one of {need}")
    if use.monitor is not None and use.patience is None and not validates:
        raise SettingError(f"--monitor {use.monitor}: is what --patience waits for; need both")
    return validates


def settle(asked: Any, table: Table, ranks: Communicator | None) -> Any:
    """With defaults for what was not said, by the kind and the number of the training rows."""
    from ..base.errors import SettingError
    from ..parallel.agree import share_of

    asked = replace(asked, val_split=table.val_split)
    if asked.dropout and asked.hidden == []:
        raise SettingError(f"--dropout {asked.dropout:g}: is of hidden layers, and --hidden has none; need one")
    images = table.preprocess.kind == "array"
    one = images or asked.hidden == []
    if one and (asked.ensemble or 1) > 1:
        what = "--hidden has no layer" if asked.hidden == [] else "images are learned by one network"
        raise SettingError(f"--ensemble {asked.ensemble}: {what}; need 1")
    members = 1 if one else asked.ensemble or MEMBERS
    asked = replace(asked, folds=_folds(asked.folds, members, table))
    validates = _check_validated(asked, table)
    hidden = asked.hidden if asked.hidden is not None else hidden_for(images)
    rows = rows_of(asked, table)[0]
    wanted = asked.batch_size or batch_for(rows, images)
    batch = min(wanted, rows)
    if asked.micro_batch_size is None:
        micro = share_of(batch, ranks)
    elif asked.micro_batch_size > wanted:
        raise SettingError(f"--micro-batch-size {asked.micro_batch_size}: need at most {wanted}, the batch size")
    else:
        micro = min(asked.micro_batch_size, batch)
    loss = asked.loss or ("cross_entropy" if table.task == "classification" else "mse")
    if loss == "cross_entropy" and table.task == "regression":
        raise SettingError("--loss cross_entropy: the task is a regression; need mse, or --task classification")
    stops = validates and (not images or asked.metric is not None)
    return replace(
        asked,
        hidden=hidden,
        dropout=asked.dropout if asked.dropout is not None else dropout_for(images) if hidden else 0.0,
        ensemble=members,
        epochs=asked.epochs or epochs_for(rows, images),
        batch_size=batch,
        micro_batch_size=micro,
        patience=asked.patience if asked.patience is not None else PATIENCE if stops else 0,
        checkpoint_every=asked.checkpoint_every or "5min",
        keep=asked.keep or 3,
        lr=asked.lr or rate_for(asked.optimizer, images),
        loss=loss,
    )


def _folds(asked: int | None, members: int, table: Table) -> int:
    """In how many folds the training rows are; SettingError for a number that the networks cannot leave out."""
    from ..base.errors import SettingError

    if asked is None:
        return folds_for(table.train.n, members)
    most = min(members, table.train.n)
    if asked and not 2 <= asked <= most:
        seen = f"{members} networks and {table.train.n} training rows"
        raise SettingError(
            f"--folds {asked}: there are {seen}; need 0, or from 2 to {most}"
            if most > 1
            else f"--folds {asked}: there is one network, or one row; need 0"
        )
    return asked


def rows_of(use: Any, table: Table) -> tuple[int, int]:
    """(training rows, validation rows); those of folds are both."""
    if use.folds:
        return table.train.n, table.train.n
    if table.val is not None:
        return table.train.n, table.val.n
    val = len(table.train.split(use.val_split, use.seed)[1]) if use.val_split else 0
    return table.train.n - val, val
