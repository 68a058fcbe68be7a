"""Predictions of the model that a fine-tuning has saved, on its validation rows: for reports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import FileError
from ..base.finetune_options import ObjectiveOptions
from ..base.memory import show_bytes
from ..base.options import values_of
from ..base.reasons import unreadable
from .config import Asked
from .finetune_settings import FinetuneSettings, reading
from .saved_settings import need_same_inputs
from .settings_file import read

if TYPE_CHECKING:
    from ..llm.validation import Predicted

_LARGEST = 64 << 20  # bytes of data, which are read whole to find the validation rows


def predicted_by_run(file: str | os.PathLike[str], about: Mapping[str, Any]) -> Predicted | None:
    """Predictions on the validation rows of a fine-tuning, by the settings.toml and the run.json of its run, computed
    on the CPU; None for objectives that have none (llm/validation.py).

    FileError where model, data or the saved adapter are missing or have changed since, where the run has saved none,
    and for data of more than 64 MiB. SettingError for settings that cannot be used, and a run without validation rows.
    """
    from ..files.toml_file import parse_toml
    from ..llm.arguments import data_arguments
    from ..llm.lora import LoRA
    from ..llm.model import load
    from ..llm.objective import Forward
    from ..llm.objectives import objective_of
    from ..llm.predict import with_head_of
    from ..llm.rows import read_rows
    from ..llm.scored import HeadObjective
    from ..llm.validation import has_predictions, predicted

    recorded = parse_toml(file).get("run")
    out = _need_output(about)
    values = read(FinetuneSettings, file)
    use = Asked(FinetuneSettings, values).settings()
    objective = objective_of(ObjectiveOptions(**values_of(use, ObjectiveOptions)))
    if not has_predictions(objective):
        return None
    source, is_validation = _validation_rows(use)
    share = 0.0 if is_validation else use.val_split
    need_same_inputs(Path(file), recorded if isinstance(recorded, dict) else {}, values, ("lora",))
    base = model = load(use.model)
    adapter = None
    if use.method == "full":
        model = load(out)
    else:
        adapter = LoRA.load(out, base)
    if isinstance(objective, HeadObjective):
        adapter = with_head_of(model, adapter)
    rows = read_rows(
        model,
        source,
        use.context,
        share,
        use.seed,
        adapter=adapter,
        form=objective.form,
        **data_arguments(reading(use)),
    )
    if is_validation:
        rows = replace(rows, val=rows.train)
    context = rows.tokens.shape[1] // objective.form.parts
    options = {name: value for name, value in (("precision", use.precision), ("threads", use.threads)) if value}
    forward = Forward(model, adapter, None, context, 1)
    return predicted(forward, objective, rows, replace(forward, model=base, adapter=None), **options)


def _need_output(about: Mapping[str, Any]) -> str:
    """The place of the saved adapter or model. FileError where it is not that of the run."""
    from ..llm.input_digest import digest

    recorded = about.get("output")
    if not isinstance(recorded, dict):
        raise FileError("run.json does not record a saved adapter or model")
    path, then = str(recorded.get("path")), recorded.get("digest")
    try:
        now = digest(path)
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    if now != then:
        raise FileError(f"{path}: has changed since the run saved it ({now:.19}, then {then!s:.19})")
    return path


def _validation_rows(use: Any) -> tuple[str, bool]:
    """(the data to read, whether all of its rows are those of the validation): a file of validation rows, if there is
    one. FileError for large files."""
    from ..llm.data_files import data_files, shards

    files = data_files(use.data)
    valid = files.valid if use.val is None else use.val
    source = files.train if valid is None else valid
    size = sum(os.path.getsize(path) for path in shards(source) if os.path.isfile(path))
    if size > _LARGEST:
        raise FileError(f"{use.data if valid is None else valid}: has {show_bytes(size)}; at most 64 MiB are read")
    return source, valid is not None
