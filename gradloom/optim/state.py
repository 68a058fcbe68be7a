"""OptimizerState: what an optimiser keeps between steps. The trainer and the eager `step` both keep theirs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import ops
from ..graph.opspec import Parameter, setting, stored_value
from ..graph.stored import Stored
from ..graph.value import Value

if TYPE_CHECKING:
    from .optimizer import Optimizer


class OptimizerState:
    """Arrays per parameter (moments), sums of gradients over an accumulation window and their weight, and counts.

    Arrays are made when a parameter is first updated or accumulated: what no loss reaches takes no memory.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.steps = 0  # optimiser steps done since the last reset
        self.epoch = 0  # for schedules
        self.moments: dict[Stored, dict[str, Parameter]] = {}
        self.sums: dict[Stored, Parameter] = {}
        self.weight = stored_value(Stored("accumulated weight", np.zeros(())))

    def settings(self, ahead: int = 0) -> dict[str, float]:
        """The optimiser's settings for the step after `ahead` more: "opt.lr" -> number."""
        return self.optimizer.at(self.steps + ahead, self.epoch)

    def update(self, parameters: Sequence[Parameter], grads: Sequence[Value], weight: Value) -> tuple[Value, ...]:
        """Update nodes for these parameters; grads are sums, divided by `weight` (a scalar)."""
        for p in parameters:
            if p.stored not in self.moments:
                made = self.optimizer.make_state([p])
                self.moments[p.stored] = {name: arrays[0] for name, arrays in made.items()}
        state = {name: [self.moments[p.stored][name] for p in parameters] for name in self.optimizer.state_names}
        return self.optimizer.update(parameters, grads, weight, state)

    def accumulate(
        self, parameters: Sequence[Parameter], grads: Sequence[Value], weight: Value | None
    ) -> tuple[Value, ...]:
        """Update nodes that add grads to the sums, and weight, if there is one, to theirs (then the last output).

        With the setting "keep" 0 they write instead: the first micro-batch of a window.
        """
        for p in parameters:
            if p.stored not in self.sums:
                sums = Stored(f"{p.stored.name}.acc", np.broadcast_to(0.0, p.shape))
                self.sums[p.stored] = stored_value(sums)
        pairs = [v for p, g in zip(parameters, grads, strict=True) for v in (self.sums[p.stored], g)]
        if weight is not None:
            pairs += [self.weight, weight]
        return ops.accumulate(setting("keep"), *pairs)

    def drop_sums(self) -> None:
        """Zero what was accumulated."""
        for array in (*self.sums.values(), self.weight):
            array.stored.array[...] = 0

    def reset(self) -> None:
        """Forget moments and steps, as if no step had been taken; `epoch` stays."""
        self.steps = 0
        for arrays in self.moments.values():
            for moment in arrays.values():
                moment.stored.array[...] = 0
