"""gradloom fit: train a model on a table, arrays or images, and save it."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..base.exit_codes import Exit
from ..base.fit_options import FitOptions, Group
from ..base.json_tables import FIT
from ..base.options import values_of
from ..base.training_options import DeviceOptions
from .common import (
    exit_code,
    json_text,
    json_when_stopped,
    raise_lost_signal,
    resume_line,
    shows_reports,
    uninterrupted,
    warn,
    with_more,
)
from .config import Asked, command
from .fit_report import FitJob, summarise, validation_sets, write_result
from .fit_scores import check_losses, measure, measure_test
from .fit_settings import FitSettings, prepared, settle, settle_data
from .saved_settings import SETTINGS, Inputs, beside_run
from .setting import settings_of

if TYPE_CHECKING:
    from ..data import Table
    from ..parallel.communicator import Communicator
    from ..train.result import EpochResult


HELP = """Train a model on a table, arrays or images, and save it.

Text targets and whole-number targets with at most 20 values are classes, other numbers a regression. Where the data
bring no test rows, a fifth of them is held out and measured at the end.
"""


def run(asked: Asked[Any]) -> int:
    """Run the command; returns its exit code."""
    asked = beside_run(asked, asked.values.get("out", settings_of(FitSettings)["out"].default))
    with asked.naming_places():
        return _fit(prepared(asked.settings()), asked.ranks)


fit = command(FitSettings, run, "fit")


def _fit(use: Any, ranks: Communicator | None) -> int:
    from ..files import claim, refuse_input
    from ..parallel.agree import agreed, is_root
    from .model import MODEL, RESULT

    inputs = inputs_of(use)
    path, report = (os.path.join(use.out, name) for name in (MODEL, RESULT))
    with contextlib.ExitStack() as claimed:
        with json_when_stopped(use.json, FIT, data=use.data, model=None), agreed(ranks):
            if is_root(ranks):
                for name in (MODEL, RESULT, SETTINGS):
                    refuse_input(os.path.join(use.out, name), *inputs.paths.values())
                claimed.enter_context(claim(use.out, is_folder=True, names=(MODEL, RESULT)))
            job = job_of(use, ranks, inputs)
            job.check_columns()
            inputs.digests()
            raise_lost_signal()
        return _train_and_save(job, path, report)


def inputs_of(use: Any) -> Inputs:
    """The files that a fit of these settings reads."""
    return Inputs(data=use.data, test=use.test, **{f"val.{name}": file for name, file in (use.val or {}).items()})


def job_of(use: Any, ranks: Communicator | None, inputs: Inputs) -> FitJob:
    """Read the data, and build the network."""
    from ..base.patterns import matched
    from ..data.image_table import holds_images

    use = settle_data(use, holds_images(use.data))
    table = _read_table(use)
    use, recipe = settle(use, table, ranks)
    net = recipe.network(table.preprocess)
    matched("freeze", use.freeze or (), [*net.named_parameters(), *net.named_buffers()])
    return FitJob(use, recipe, table, net, ranks, inputs, validation_sets(use, table))


def _read_table(use: Any) -> Table:
    """The data of these settings; images where there is an augmentation."""
    from ..base.memory import as_bytes
    from ..data import read_table
    from ..data.image_table import read_image_table

    if use.augment is not None:
        budget = None if use.memory in (None, "auto") else as_bytes("memory", use.memory)
        return read_image_table(
            use.data, augment=use.augment, size=use.image_size, corrupt=use.corrupt, val_split=use.val_split,
            seed=use.seed, test=use.test, threads=use.threads, memory=budget,
        )  # fmt: skip
    return read_table(
        use.data, use.target, use.task, val_split=use.val_split, seed=use.seed, drop=use.drop or (),
        categorical=use.categorical or (), numeric=use.numeric or (), time=use.time,
        weight=use.weight_column, test=use.test, missing=use.missing or (), encoding=use.encoding,
    )  # fmt: skip


def _train_and_save(job: FitJob, path: str, report: str) -> int:
    """Train, write model and result (only after at least one step), then evaluate the test rows."""
    from ..base.arrays import not_finite
    from ..base.errors import GradloomError, NonFiniteError, TrainError
    from ..files import together
    from ..parallel.agree import is_root
    from ..runs.saver import failure_of, saving_result
    from ..tables.saving import save

    optimizer = optimizer_of(job)
    stop: Exception | KeyboardInterrupt | None = None
    more: dict[str, Any] = {}
    start = time.perf_counter()
    with uninterrupted() as interruptible:
        try:
            with interruptible():
                history = train(job, optimizer)
            more["planned_bytes"] = history[-1].planned_bytes
            if (there := job.on_device()) is not None:
                more["device_bytes"] = there.total
        except (Exception, KeyboardInterrupt) as error:  # the weights so far are saved
            stop = error
        seconds = time.perf_counter() - start
        steps = optimizer.state.steps
        interrupted = isinstance(stop, KeyboardInterrupt)
        if stop is not None and not steps:
            if interrupted:
                warn("interrupted before the first step; nothing is saved")
                if job.use.json and is_root(job.ranks):
                    nothing = {"steps": 0, "ending": "interrupted", "interrupted": True, "model": None}
                    print(json_text(FIT, measure(job, seconds) | nothing))
                return exit_code(stop)
            if isinstance(stop, TrainError) and not job.use.resume:
                stop.extended(after="; this was before the first step was done, and nothing is saved")
            raise stop
        bad = not_finite(job.net.state_dict())
        if bad and stop is None:
            stop = NonFiniteError("the last step made weights that are not finite; a smaller learning rate may help")
        failed = failure_of(job.watch.saver) if stop is None else stop
        done = f"stopped after {job.use.stop_after}" if job.time_is_up else "done"
        ending = done if failed is None else "interrupted" if interrupted else f"stopped: {failed}"
        result = measure(job, seconds) | more
        result |= {"steps": steps, "ending": ending, "interrupted": interrupted, "model": path}
        which = "weights so far" if interrupted or stop is None else "weights before the failed step"
        kept = f"the {which} are in {path}"
        if bad:
            kept = f"nothing is saved: {bad}"
        elif is_root(job.ranks):
            try:
                with saving_result(job.watch.saver), together(job.use.out):
                    save(job.model(ending, result), path)
                    write_result(report, result)
            except GradloomError as error:
                if stop is None or interrupted:
                    raise
                kept = f"the weights before the failed step cannot be saved: {error}"
    if isinstance(stop, Exception):
        raise with_more(stop, kept) from None
    if not interrupted:
        try:
            result |= measure_test(job)
        except KeyboardInterrupt as error:
            stop, interrupted = error, True
            result["interrupted"] = True
        if is_root(job.ranks):
            with uninterrupted(), saving_result(job.watch.saver), together(job.use.out):  # with the test scores
                save(job.model(ending, result), path)
                write_result(report, result)
    if interrupted:
        warn(f"interrupted; {kept}")
    if (interrupted or job.time_is_up) and not bad:
        line = resume_line("fit", ["--out", os.path.abspath(job.use.out)], job.ranks, job.use.exchange)
        warn(f"after step {steps:,}; resume with: {line}")
    if not interrupted:
        check_losses(job, result)
    if is_root(job.ranks):
        if not interrupted:
            summarise(job, result)
        if job.use.json:
            print(json_text(FIT, result))
    return exit_code(stop) if interrupted else Exit.DONE if failed is None else Exit.REFUSED


def optimizer_of(job: FitJob) -> Any:
    """The optimiser, whose state counts the steps, also of a training that fails."""
    recipe, rows = job.recipe, job.table.train.n
    groups = [_group(group, recipe.steps(rows)) for group in job.use.groups or ()]
    return recipe.optimizer_for(job.net, job.table.preprocess, rows, groups)


def _group(group: Group, steps: int) -> dict[str, Any]:
    """A group for gl.optim; its rate falls along the same cosine as the others."""
    import gradloom as gl

    made = {name: value for name, value in asdict(group).items() if value is not None}
    return made | ({"lr": gl.optim.schedules.Cosine(group.lr, steps=steps)} if group.lr is not None else {})


def train(job: FitJob, optimizer: Any, progress: bool = True) -> list[EpochResult]:
    """Run the training; the result of each pass. progress: it is shown where reports are."""
    use = job.use
    given = values_of(use, FitOptions, DeviceOptions) | {"parallel": job.ranks, "run": use.out}
    own = vars(job.recipe)
    return job.recipe.fit(
        job.net,
        job.data,
        loss=job.loss,
        optimizer=optimizer,
        val=job.val or None,
        metrics=job.ending[1],
        class_weight=job.class_weight,
        callbacks=[*job.stopping, job.watch],
        progress=progress and shows_reports(),
        **{name: value for name, value in given.items() if value is not None and name not in own},
    )
