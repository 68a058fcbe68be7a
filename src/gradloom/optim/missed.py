"""Missed: the steps that an optimiser took without some of its parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ..graph.leaves import Parameter
from ..graph.stored import Stored

STEP = "opt.t"  # the setting that holds the number of the optimiser's step, from 1


class Missed:
    """How many of the optimiser's steps each parameter has missed: it was frozen, or had no gradient.

    Rules with a bias correction count the steps of each parameter, as torch.optim does. A parameter that has missed
    none reads "opt.t"; another reads a setting of its own, "opt.t.<number>", which is smaller by what it has missed.

    .steps  of each parameter that has missed some: how many
    """

    def __init__(self) -> None:
        self.steps: dict[Stored, int] = {}
        self._counted: dict[Stored, None] = {}  # in the order in which they were first updated
        self._numbers: dict[Stored, int] = {}  # of those that have ever missed a step

    def begin(self, stored: Stored, steps: int) -> None:
        """Count the steps of a parameter from now on; the optimiser has done so many without it."""
        self._counted[stored] = None
        self.put(stored, steps)

    def put(self, stored: Stored, steps: int) -> None:
        """A parameter has missed so many."""
        if steps:
            self.steps[stored] = steps
            self._numbers.setdefault(stored, len(self._numbers))
        else:
            self.steps.pop(stored, None)

    def add(self, updated: Iterable[Parameter], count: int) -> None:
        """So many steps of these parameters were done: the others have missed them."""
        mine = {p.stored for p in updated}
        for stored in self._counted:
            if stored not in mine:
                self.put(stored, self.steps.get(stored, 0) + count)

    def restart(self, steps: int) -> None:
        """As if all were without a step among so many."""
        for stored in self._counted:
            self.put(stored, steps)

    def among(self, parameters: Collection[Parameter]) -> tuple[Stored, ...]:
        """Those of these parameters that have missed a step."""
        return tuple(p.stored for p in parameters if p.stored in self.steps) if self.steps else ()

    def setting_of(self, p: Parameter) -> str:
        """The name of the setting that holds the number of a parameter's step, from 1."""
        return f"{STEP}.{self._numbers[p.stored]}" if p.stored in self.steps else STEP

    def settings(self, steps: int) -> dict[str, float]:
        """The settings of the step after so many of the optimiser."""
        return {f"{STEP}.{self._numbers[stored]}": steps + 1 - missed for stored, missed in self.steps.items()}

    def settings_ahead(self, steps: int, count: int) -> dict[str, np.ndarray]:
        """The settings of the next `count` steps."""
        return {name: np.arange(first, first + count) for name, first in self.settings(steps).items()}
