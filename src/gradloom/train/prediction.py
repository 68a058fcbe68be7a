"""Prediction of the duration of a Loop, before its first step."""

from __future__ import annotations

from collections.abc import Sequence

from ..run.cost import Rates
from ..run.rates import rates_for
from .duration import Duration, Work, is_predictable, seconds_of, work
from .loop_state import LoopState
from .stopping import EarlyStopping

LONG = 5.0  # seconds of the shortest training whose duration is announced


def duration_of(loop: LoopState, validates_first: bool) -> Duration | None:
    """That of the remaining steps and evaluations of a loop, which are compiled for it; None where it is shorter than
    LONG or not predicted: on a GPU, with ranks or replicas, of graphs that change from call to call. validates_first:
    the validation sets are measured before the first step, too."""
    trainer, evaluator, total = loop.trainer, loop.evaluator, loop.steps_total or 0
    left = total - loop.steps
    rows, batch_size = loop.rows_of_pass(loop.steps), loop.batch_size
    if left <= 0 or rows <= 0 or not is_predictable(trainer):
        return None
    source, per_epoch = trainer.source(loop.data), -(-len(loop.train_rows) // batch_size)
    trained = work(trainer, source, 0, rows, batch_size, loop.micro_batch_size, measures=loop.measures)
    if not trained:
        return None
    evaluations = evaluator.count(loop.steps, total, per_epoch) if evaluator else 0
    if evaluator and validates_first and not loop.passes and loop.before is None:
        evaluations += 1

    def predicted(rates: Rates, evaluated: Sequence[Work] = ()) -> Duration:
        """Of these evaluations."""
        return Duration(
            seconds_of(trained, rates) / -(-rows // batch_size), left, per_epoch,
            sum(seconds_of(one, rates) for one in evaluated), evaluations if evaluated else 0,
            any(isinstance(each, EarlyStopping) for each in loop.callbacks),
            tuple(name for each in loop.subscribers for name in each.apart),
        )  # fmt: skip

    plans = [plan for plan, _, _ in trained]
    rates = rates_for(plans, trainer.options.get("isa"), lambda rates: predicted(rates).seconds, LONG)
    if rates is None:
        return None
    return predicted(rates, evaluator.work(loop.micro_batch_size) if evaluations else ())
