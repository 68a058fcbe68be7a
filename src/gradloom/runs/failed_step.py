"""The capsule of a step that is not finite, in the folder of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..base.errors import GradloomError
from ..base.memory import show_bytes
from ..base.messages import log
from ..files.atomic import atomic_inside
from ..files.capsule_file import write_archive
from ..files.inside import opened
from ..run.capsule_format import described
from ..run.capsule_rows import gathers_alone
from .capsules import Builder
from .checkpoint import reason
from .folder import RunFolder

FILE = "failed.capsule"
LIMIT = 64 << 20  # bytes of arrays and arena; of a larger step none is written
DATA = (
    "data",
    "labels",
    "weights",
    "folds",
    "order",
)  # arrays of a data set (train/source.py), of which rows are saved
SETTINGS = "settings.toml"


def save_failed_step(folder: RunFolder, run: Any, settings: Mapping[str, Any], rows: int, step: int) -> None:
    """Save a call that has just failed, with the arrays that it has read; a line on stderr names the file. Of a step of
    more than LIMIT bytes the line names the command that saves it. What goes wrong is reported, and raises nothing.

    run: the program; settings: of the call; rows: of its micro-batch; step: of the run, from 1.
    """
    if run.source is None or step == 1:  # several devices; nothing of a run is written before its first step
        return
    first, cut = int(settings.get("position", 0)), gathers_alone(run.source)
    size = sum(one.bytes for one in run.reads if not cut or one.name not in DATA) + run.plan.peak_bytes
    if size > LIMIT:
        if SETTINGS in folder.files:
            command = f"gradloom capsule {folder.shown} --step {step}"
            log.warning(f"{folder.shown}: step {step} has {show_bytes(size)} of arrays; {command} saves it as a file")
        return
    try:
        builder = Builder(run.device_name, run.switches, getattr(run, "isa", ""), step=step)
        builder.rows = first, first + rows
        builder.add(run.source, run.fed(), settings)
        head, arrays = described(builder.finished())
        path = folder.path(FILE)
        with opened(path.parent) as place, atomic_inside(place, FILE) as file:
            write_archive(file, json.dumps(head, allow_nan=False, separators=(",", ":")).encode(), arrays)
    except (GradloomError, OSError, MemoryError) as error:
        log.warning(f"{folder.shown}: {FILE}, with the step that failed, cannot be written: {reason(error)}")
        return
    log.warning(f"{folder.shown}: {FILE} holds the step that failed: gradloom replay {folder.shown}/{FILE}")
