"""Window: gradients accumulated since the last step; GradientSource: an optimiser's interface to a tape's gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from ..base.errors import GradientError
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.value import Value


class GradientSource(Protocol):
    """An optimiser's interface to a tape's gradients: one program computes the gradients and the step. state:
    the OptimizerState."""

    weight: Any  # the divisor of each
    limit: Any  # each element is held between -limit and limit before that

    def values(self) -> Iterable[Value | None]: ...

    def apply(self, state: Any) -> None:
        """One step with these gradients."""

    def add_to(self, state: Any, weight: Any) -> None:
        """Add these gradients to the sums of the window."""

    @staticmethod
    def clip_window(state: Any, max_norm: float) -> float:
        """The global norm of the accumulated gradients; the step reduces it to max_norm."""

    @staticmethod
    def apply_window(state: Any) -> None:
        """One step with the accumulated gradients."""


class Window:
    """Gradients accumulated since the last step: their parameters, and how the step applies them."""

    def __init__(self) -> None:
        self.parameters: dict[Stored, Parameter] = {}
        self.clear()

    def clear(self) -> None:
        self.parameters.clear()
        self.weighted: bool | None = None  # the sums have a weight; None: nothing was accumulated
        self.max_norm = self.max_value = math.inf  # of its step
        self.gradients: type[GradientSource] | None = None  # who runs its step in a loop of the user's own
        self.options: tuple[Any, ...] = ()  # of the tape: how its programs are compiled (see eager.options)

    def add(self, parameters: Iterable[Parameter]) -> None:
        self.parameters.update((p.stored, p) for p in parameters)

    def runner(self, what: str) -> type[GradientSource]:
        """Who runs the step; GradientError when there is nothing to step with."""
        if self.gradients is None:
            raise GradientError(f"{what}: there are no gradients; need {what}(grads), or accumulate(grads) before")
        return self.gradients
