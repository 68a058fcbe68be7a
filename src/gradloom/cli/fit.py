"""gradloom fit: train a model on a table, arrays or images, and save it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .common import (
    exit_code,
    going_on,
    heed_signals,
    json_text,
    shows_reports,
    told_when_stopped,
    uninterrupted,
    warn,
    with_more,
)
from .config import Asked, command
from .fit_report import (
    Job,
    check_losses,
    measure,
    measure_test,
    summarise,
    validation_sets,
    write_result,
)
from .fit_settings import FitSettings, Group, prepared, rows_of, settle
from .saved_settings import SETTINGS, Inputs, beside_run
from .setting import settings_of

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator
    from ..train.result import EpochResult


def run(asked: Asked[FitSettings]) -> int:
    """Train a model on a table, arrays or images, and save it.

    Text targets and whole-number targets with at most 20 values are classes, other numbers a regression. Where the data
    bring no test rows, a fifth of them is held out and measured at the end.
    """
    asked = beside_run(asked, asked.values.get("out", settings_of(FitSettings)["out"].default))
    with asked.naming_places():
        return _fit(prepared(asked.settings()), asked.ranks)


fit = command(FitSettings, run, "fit")


def _fit(use: FitSettings, ranks: Communicator | None) -> int:
    from ..base.patterns import matched
    from ..data import read_table
    from ..files import claim, refuse_input
    from ..parallel.agree import agreed, is_root
    from ..train.perceptron import need_room, network
    from .model import MODEL, RESULT

    inputs = Inputs(data=use.data, test=use.test, **{f"val.{name}": file for name, file in (use.val or {}).items()})
    path, report = (os.path.join(use.out, name) for name in (MODEL, RESULT))
    with contextlib.ExitStack() as claimed:
        with told_when_stopped(use.json, data=use.data, model=None), agreed(ranks):
            if is_root(ranks):
                for name in (MODEL, RESULT, SETTINGS):
                    refuse_input(os.path.join(use.out, name), *inputs.paths.values())
                claimed.enter_context(claim(use.out, is_folder=True, names=(MODEL, RESULT)))
            table = read_table(
                use.data, use.target, use.task, val_split=use.val_split, seed=use.seed, drop=use.drop or (),
                categorical=use.categorical or (), numeric=use.numeric or (), time=use.time,
                weight=use.weight_column, test=use.test, missing=use.missing or (), encoding=use.encoding,
            )  # fmt: skip
            use = settle(use, table, ranks)
            need_room(table.preprocess, use.hidden, use.ensemble)
            net = network(table.preprocess, use.hidden, use.dropout, use.ensemble, use.loss)
            matched("freeze", use.freeze or (), [*net.named_parameters(), *net.named_buffers()])
            job = Job(use, table, net, ranks, inputs, validation_sets(use, table))
            job.look_at_columns()
            inputs.digests()
            heed_signals()
        return _train_and_save(job, path, report)


def _train_and_save(job: Job, path: str, report: str) -> int:
    """Train, write model and result together (nothing before a step was done), then measure the test rows."""
    from ..base.arrays import not_finite
    from ..base.errors import GradloomError, NonFiniteError, TrainError
    from ..files import together
    from ..parallel.agree import is_root
    from ..train.saving import save

    optimizer = _optimizer(job)
    stop: Exception | KeyboardInterrupt | None = None
    more: dict[str, Any] = {}
    start = time.perf_counter()
    with uninterrupted() as interruptible:
        try:
            with interruptible():
                history = _train(job, optimizer)
            more["planned_bytes"] = history[-1].planned_bytes
            if (there := job.on_device()) is not None:
                more["device_bytes"] = there.total
        except (Exception, KeyboardInterrupt) as error:  # whatever it was, the weights so far are not lost
            stop = error
        seconds = time.perf_counter() - start
        steps = optimizer.state.steps
        interrupted = isinstance(stop, KeyboardInterrupt)
        if stop is not None and not steps:
            if interrupted:
                warn("interrupted before the first step; nothing is saved")
                if job.use.json and is_root(job.ranks):
                    nothing = {"steps": 0, "ending": "interrupted", "interrupted": True, "model": None}
                    print(json_text(measure(job, seconds) | nothing))
                return exit_code(stop)
            if isinstance(stop, TrainError) and not job.use.resume:
                stop.extended(after="; this was before the first step was done, and nothing is saved")
            raise stop
        bad = not_finite(job.net.state_dict())
        if bad and stop is None:
            stop = NonFiniteError("the last step made weights that are not finite; a smaller learning rate may help")
        done = f"stopped after {job.use.stop_after}" if job.time_is_up else "done"
        ending = done if stop is None else "interrupted" if interrupted else f"stopped: {stop}"
        result = measure(job, seconds) | more
        result |= {"steps": steps, "ending": ending, "interrupted": interrupted, "model": path}
        kept = f"the {'weights so far' if interrupted or stop is None else 'last good weights'} are in {path}"
        if bad:
            kept = f"nothing is saved: {bad}"
        elif is_root(job.ranks):
            try:
                with together(job.use.out):
                    save(job.model(ending, result), path)
                    write_result(report, result)
            except GradloomError as error:
                if stop is None or interrupted:
                    raise
                kept = f"the last good weights cannot be saved: {error}"
    if isinstance(stop, Exception):
        raise with_more(stop, kept) from None
    if not interrupted:
        try:
            result |= measure_test(job)
        except KeyboardInterrupt as error:
            stop, interrupted = error, True
            result["interrupted"] = True
        if is_root(job.ranks):
            with uninterrupted(), together(job.use.out):  # the model, now with what the test rows measured
                save(job.model(ending, result), path)
                write_result(report, result)
    if interrupted:
        warn(f"interrupted; {kept}")
    if (interrupted or job.time_is_up) and not bad:
        line = going_on("fit", ["--out", os.path.abspath(job.use.out)], job.ranks, job.use.exchange)
        warn(f"after step {steps:,}; go on with: {line}")
    if not interrupted:
        check_losses(job, result)
    if is_root(job.ranks):
        if not interrupted:
            summarise(job, result)
        if job.use.json:
            print(json_text(result))
    return exit_code(stop) if interrupted else 0


def _optimizer(job: Job) -> Any:
    """With a state of its own, which says how many steps were done, however the training ends."""
    from ..train.perceptron import optimizer_for

    use = job.use
    steps = use.epochs * -(-rows_of(use, job.table)[0] // use.batch_size)
    groups = [_group(group, steps) for group in use.groups or ()]
    images = job.table.preprocess.kind == "array"
    return optimizer_for(job.net, use.optimizer, use.lr, steps, groups, images)


def _group(group: Group, steps: int) -> dict[str, Any]:
    """As gl.optim takes it; its rate falls as that of the others does."""
    import gradloom as gl

    made = {name: value for name, value in asdict(group).items() if value is not None}
    return made | ({"lr": gl.optim.schedules.Cosine(group.lr, steps=steps)} if group.lr is not None else {})


def _train(job: Job, optimizer: Any) -> list[EpochResult]:
    import gradloom as gl

    use = job.use
    return gl.fit(
        job.net,
        job.data,
        loss=use.loss,
        optimizer=optimizer,
        epochs=use.epochs,
        batch_size=use.batch_size,
        micro_batch_size=use.micro_batch_size,
        val_split=use.val_split if job.table.val is None else 0.0,
        folds=use.folds,
        seed=use.seed,
        parallel=job.ranks,
        exchange=use.exchange or "ordered",
        val=job.val or None,
        eval_every=use.eval_every or "1epoch",
        eval_rows=use.eval_rows,
        metrics=job.ending[1],
        max_norm=use.max_norm or math.inf,
        ema=use.ema,
        freeze=use.freeze or (),
        class_weight=use.class_weight,
        on_nonfinite=use.on_nonfinite,
        callbacks=[*job.stopping, job.watch],
        progress=shows_reports(),
        precision=use.precision,
        threads=use.threads,
        device=use.device,
        run=use.out,
        log=use.log or (),
        resume=use.resume,
        overwrite=use.overwrite,
        checkpoint_every=use.checkpoint_every,
        keep=use.keep,
        stop_after=use.stop_after,
    )
