"""A step of a saved run, computed again: for `gradloom rebuild` and `gradloom capsule`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import need_whole, shows_reports, warn
from .config import Asked
from .fit_settings import FitSettings
from .progress import ProgressLine
from .rerun import need_settings, read_saved, warn_of_differences
from .saved_settings import SETTINGS, Inputs, need_same_inputs

if TYPE_CHECKING:
    from ..train.rebuild import Rebuilder, Recorder


def rebuilt(
    run: str, step: int, recorders: Sequence[Recorder], threads: int | None = None, out: str | None = None
) -> Rebuilder:
    """Compute the step of a run again, with these recorders; nothing in its folder changes. A step of several ranks is
    computed by one process: the micro-batches decide its bits, and settings.toml has their size. out: the file that the
    caller will write.

    Raises FileError for a folder without the settings of a fit or a finetune, for inputs that have changed, and where
    `out` is a file of the run or one of its inputs; SettingError for a step that the run does not have, TrainError for
    one that cannot be continued or repeated.
    """
    from ..base.errors import NonFiniteError, TrainError
    from ..files import refuse_input
    from ..runs.files import refuse_files_of
    from ..runs.saver import replaced_by
    from ..train.rebuild import Rebuilder
    from .model import MODEL, RESULT

    need_whole("step", step)
    need_whole("threads", threads)
    file = Path(run) / SETTINGS
    need_settings(file)
    kind, _, about, values = read_saved(file)
    is_fit = kind is FitSettings
    Asked(kind, values).settings()  # none is missing
    if out is not None:
        refuse_files_of(run, out, MODEL, RESULT)
        read = [values.get(name) for name in about.get("digests", {})]
        refuse_input(out, *(path for path in read if isinstance(path, str)))
    if about.get("exchange") == "fast":
        raise TrainError(
            f"{run}: was trained with --exchange fast, where MPI decides the order in which gradients are summed; no "
            "process can repeat these bits. Use a run with --exchange ordered (the default)"
        )
    progress = _Progress(step)
    made = Rebuilder(run, step, "fit" if is_fit else "finetune", recorders, progress.show)
    need_same_inputs(file, about, values, () if made.saved is None else ("lora",))
    warn_of_differences({"flush": False} | about, values, file.parent)
    given = {"out": str(about.get("out", run))} | ({} if threads is None else {"threads": threads})
    asked = Asked(kind, given).beside(values, str(file))
    with asked.naming_places(), replaced_by(made), progress:
        try:
            (_fit if is_fit else _finetune)(asked)
        except NonFiniteError as error:
            if not made.has_begun:
                raise
            warn(f"step {step}: {error}")
            return made
    if not made.is_done:
        raise TrainError(f"{run}: ends before step {step}")
    return made


def _fit(asked: Asked[Any]) -> None:
    from .fit import inputs_of, job_of, optimizer_of, train
    from .fit_settings import prepared

    use = prepared(asked.settings())
    inputs = inputs_of(use)
    job = job_of(use, None, inputs)
    job.announces = False
    inputs.digests()
    train(job, optimizer_of(job), progress=False)


def _finetune(asked: Asked[Any]) -> None:
    from ..llm.finetune import Run
    from ..llm.model import load
    from .finetune_settings import reading, settle, trained, training
    from .fit_watch import RunInputs

    use = settle(asked)
    paths = {name: getattr(use, name) for name in ("model", "data", "val", "lora", "chat_template", "teacher")}
    if paths["lora"] is not None and not os.path.exists(paths["lora"]):
        del paths["lora"]
    inputs = Inputs(**paths)
    loaded = load(use.model)
    given = trained(use, loaded, alpha=use.alpha, rslora=use.rslora)
    recorded = RunInputs(inputs, bytes, {})
    run = Run(loaded, use.data, given, data_options=reading(use), callbacks=[recorded], **training(use, None))
    run.prepare()
    run.train(progress=False)


class _Progress:
    """A line on stderr: the steps that are done, of those up to the step."""

    def __init__(self, step: int) -> None:
        self._step, self._line = step, ProgressLine()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._line.show("", ended=True)

    def show(self, done: int) -> None:
        if shows_reports():
            self._line.show(f"step {done:,} of {self._step:,}")
