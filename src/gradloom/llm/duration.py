"""Predicted duration of a planned fine-tuning and of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..base.settings import switches
from ..plan.plan import Plan
from ..run.cost import program_seconds
from ..run.rates import rates_for
from ..train import prediction
from ..train.duration import Duration, is_predictable, is_unchecked, seconds_of, work
from ..train.source import RowSource
from .tuning import Tuning


def duration_of(tuning: Tuning, source: RowSource) -> Duration | None:
    """That of a fine-tuning that is compiled for this source and measures its validation rows before the first step and
    at the end of each epoch; None where it does not run on the CPU in one process. All steps count as whole ones."""
    trainer, job = tuning.trainer, tuning.job
    if not is_predictable(trainer):
        return None
    sizes, measures = (job.batch_size, job.micro_batch_size), tuning.measures_of
    trained = work(trainer, source, 0, job.batch_size, *sizes, measures=measures(training=True))
    if not trained:
        return None
    last, evaluated = job.rows + job.val_rows, []
    if job.val_rows:
        evaluated = work(
            trainer, source, job.rows, last, *sizes, backward=False, measures=measures(training=False)
        )  # fmt: skip
    rates = rates_for([plan for plan, _, _ in trained], trainer.options.get("isa"), lambda _: math.inf, 0.0)
    assert rates is not None
    per_epoch = -(-job.rows // job.batch_size)
    return Duration(
        seconds_of(trained, rates), tuning.steps_total, per_epoch,
        seconds_of(evaluated, rates), (1 + tuning.epochs_total) * bool(evaluated),
        apart=() if tuning.sampler is None else ("sampled texts",),
    )  # fmt: skip


def evaluation_seconds(plan: Any, batches: int, options: Mapping[str, Any]) -> float | None:
    """Predicted seconds of this number of runs of a program; None where they are few, or the program does not run on
    the CPU alone. options: of gl.compile."""
    device = options.get("device", options.get("backend", "cpu"))
    if not isinstance(plan, Plan) or (plan.device or device or "cpu") != "cpu" or not is_unchecked(options):
        return None
    isa = switches(isa=options.get("isa")).isa
    rates = rates_for([plan], isa, lambda rates: batches * program_seconds(plan, rates), prediction.LONG)
    return None if rates is None else batches * program_seconds(plan, rates)
