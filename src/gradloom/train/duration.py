"""Duration of a training on the CPU, predicted from the programs that it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..base.settings import switches
from ..base.terminal import plural
from ..plan.plan import Plan
from ..run.backend import computing, device_of
from ..run.cost import Rates, program_seconds
from .batches import RowRange, cut
from .metrics import NOTHING, Measures
from .trainer import Trainer

GROUP_SECONDS = 2e-4  # of a group of micro-batches: its native call, its results

Work = list[tuple[Plan, int, int]]  # programs, how often each runs, in how many groups


@dataclass(frozen=True)
class Duration:
    """Predicted duration of the remaining part of a training.

    step          seconds of an optimiser step, the mean over a pass; steps: those that remain
    per_epoch     steps of a whole pass
    evaluation    seconds of one evaluation of all validation sets; evaluations: those that remain
    is_limit      early stopping may end the training sooner
    apart         work that is not included
    """

    step: float
    steps: int
    per_epoch: int
    evaluation: float = 0.0
    evaluations: int = 0
    is_limit: bool = False
    apart: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.step * self.steps + self.evaluation * self.evaluations

    @property
    def epoch(self) -> float:
        """Seconds of an epoch, evaluations included."""
        return self.seconds * self.per_epoch / self.steps

    def __str__(self) -> str:
        """about 3 min 20 s: 12 epochs of 17 s"""
        epochs = -(-self.steps // self.per_epoch)
        if epochs > 1:
            parts = f"{epochs:,} epochs of {approximate(self.epoch)}"
        else:
            parts = f"{plural(self.steps, 'step')} of {approximate(self.step)}"
            if self.evaluations:
                parts += f", {plural(self.evaluations, 'evaluation')} of {approximate(self.evaluation)}"
        without = f"; {' and '.join(self.apart)} not included" if self.apart else ""
        return f"{'at most ' * self.is_limit}about {approximate(self.seconds)}: {parts}{without}"


def approximate(seconds: float) -> str:
    """Two digits of a duration: 0.0123 -> 0.012 s, 16.7 -> 17 s, 203 -> 3 min 20 s, 8150 -> 2 h 15 min."""
    if seconds <= 0:
        return "0 s"
    step = 10 ** (math.floor(math.log10(seconds)) - 1)
    seconds = round(seconds / step) * step
    if seconds < 60:
        return f"{seconds:.2g} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min" + f" {rest} s" * (rest > 0)
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h" + f" {minutes} min" * (minutes > 0)


def is_predictable(trainer: Trainer) -> bool:
    """The steps are those of one process, of the same programs from call to call, without checks."""
    return trainer.driver.ranks is None and not trainer.dynamic and is_unchecked(trainer.options)


def is_unchecked(options: Mapping[str, Any]) -> bool:
    """Whether programs of these options of gl.compile run without checks, which take time."""
    at = switches(**{name: options.get(name) for name in ("check", "poison")})
    return at.check < 2 and not at.poison


def work(
    trainer: Trainer, source: Any, first: int, last: int, batch_size: int, micro_batch_size: int,
    backward: bool = True, measures: Measures = NOTHING,
) -> Work:  # fmt: skip
    """The programs of one pass over rows first..last, which are compiled; empty where some do not run on the CPU
    alone."""
    steps = trainer.prepare(
        source, first, last, batch_size=batch_size, micro_batch_size=micro_batch_size, backward=backward,
        measures=measures,
    )  # fmt: skip
    rows = RowRange(source, first, last, batch_size, min(micro_batch_size, batch_size), backward)
    accumulates = trainer.driver.keeps_gradients if backward else trainer.driver.joins.couples(rows)
    parts = zip(rows.ends(), (rows.batch_count - 1, 1), strict=True) if accumulates else ((rows, 1),)
    groups = [(group, times) for part, times in parts for group in cut(part, accumulates, backward, False)]
    plans = [step.run.plan for step in steps]
    default = trainer.options.get("backend", "cpu")
    if not all(isinstance(plan, Plan) for plan in plans) or computing(device_of(plans, default)) != "cpu":
        return []
    used = plans if accumulates else [plans[0], plans[-1]][: len(groups)]
    joined = [
        (one.run.plan, count * times, count * times)
        for step, (group, times) in zip(steps, groups, strict=False)
        if step.join is not None and not group.offset
        for one, count in step.join.programs
    ]
    return [(plan, group.count * times, times) for plan, (group, times) in zip(used, groups, strict=True)] + joined


def seconds_of(work: Work, rates: Rates) -> float:
    """Predicted seconds of these programs."""
    return sum(count * program_seconds(plan, rates) + groups * GROUP_SECONDS for plan, count, groups in work if count)
