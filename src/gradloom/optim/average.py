"""Average: an exponential moving average of the weights that an optimiser trains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ..graph.graph import storage_leaf
from ..graph.leaves import Parameter, constant, stored_value
from ..graph.stored import Stored, arrays_locked
from ..graph.value import Value


class Average:
    """mean <- decay * mean + (1 - decay) * w after each optimiser step, f32, in the step's own program.

    It begins as the weights before the first step of each parameter, as Keras' use_ema and timm's ModelEma do. Buffers
    (running statistics) have none: the model's own are used with it. A parameter that is frozen later, or that a step
    does not reach, is averaged on: its mean comes nearer to the weight as it is. One that was never trained has none.

    .arrays  the array of a parameter -> that of its mean; where the mean is shown, they have changed places
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.arrays: dict[Stored, Parameter] = {}
        self._shown: dict[Stored, Stored] = {}  # whose mean the model's arrays hold now
        self.is_shown = False

    def updates(self, parameters: Sequence[Parameter], written: Iterable[Value]) -> tuple[Value, ...]:
        """Nodes that follow these updates of parameters; those that are not written stay as they are."""
        new = {leaf.stored: v for v in written if isinstance(leaf := storage_leaf(v), Parameter)}
        pairs = [v for p in parameters for v in (self.of(p), new.get(p.stored, p))]
        return ops.average(constant(np.float32(self.decay)), *pairs)

    def of(self, p: Parameter) -> Parameter:
        """The mean of a parameter; of a new one, the weight at the first access."""
        if p.stored not in self.arrays:
            make = partial(_copy, p.stored)
            self.arrays[p.stored] = stored_value(Stored.deferred(f"{p.stored.name}.ema", p.shape, make))
        return self.arrays[p.stored]

    def show(self, shown: bool) -> None:
        """Let the model's arrays hold the means (True) or the weights that are trained (False)."""
        if shown == self.is_shown:
            return
        if shown:
            self._shown = {w: mean.stored for w, mean in self.arrays.items()}
        with arrays_locked((), [*self._shown, *self._shown.values()]):
            for w, mean in self._shown.items():
                other = w.read().copy()
                w.write(mean.read())
                mean.write(other)
        self.is_shown = shown
        if not shown:
            self._shown = {}

    def restart(self) -> None:
        """Begin anew, from the weights as they are."""
        self.show(False)
        with arrays_locked((), [mean.stored for mean in self.arrays.values()]):
            for w, mean in self.arrays.items():
                mean.stored.write(w.read())

    # ---- its part of a run's state -------------------------------------------------------------------------

    def entries(self, parameters: Sequence[Parameter]) -> dict[str, Any]:
        """decay, the numbers of the parameters whose mean is shown, and "mean.3", the array that is not in use for
        parameter 3."""
        numbers = [i for i, p in enumerate(parameters) if p.stored in self._shown]
        kept: dict[str, Any] = {"decay": self.decay, "is_shown": self.is_shown, "shown": numbers}
        return kept | {
            f"mean.{i}": self.arrays[p.stored].stored for i, p in enumerate(parameters) if p.stored in self.arrays
        }

    def take(self, parameters: Sequence[Parameter], is_shown: bool, shown: Sequence[int]) -> None:
        """The arrays were loaded: which of them changed places with those of the model."""
        self.is_shown = is_shown
        self._shown = {parameters[i].stored: self.of(parameters[i]).stored for i in shown}


def _copy(stored: Stored) -> np.ndarray:
    return stored.read().copy()
