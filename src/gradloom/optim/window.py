"""Window: what was accumulated since the last step; GradientSource: what an optimiser needs of a tape's gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from ..base.errors import GradientError
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.value import Value


class GradientSource(Protocol):
    """What an optimiser needs of a tape's gradients: they run its step as one program with what they come from. state:
    the OptimizerState."""

    weight: Any  # what each is divided by
    limit: Any  # each element is held between -limit and limit before that

    def values(self) -> Iterable[Value | None]: ...

    def apply(self, state: Any) -> None:
        """One step with these gradients."""

    def add_to(self, state: Any, weight: Any) -> None:
        """Add these gradients to the sums of the window."""

    @staticmethod
    def clip_window(state: Any, max_norm: float) -> float:
        """The global norm of what was accumulated; the step will bring it down to max_norm."""

    @staticmethod
    def apply_window(state: Any) -> None:
        """One step with what was accumulated."""


class Window:
    """What was accumulated since the last step: of which parameters, and how the step is to take it."""

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
