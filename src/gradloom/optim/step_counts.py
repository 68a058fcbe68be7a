"""StepCounts: the step number of each parameter, which falls behind while the parameter is not updated."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ..graph.leaves import Parameter
from ..graph.stored import Stored

STEP = "opt.t"  # the setting that holds the number of the optimiser's step, from 1


class StepCounts:
    """Counts the optimiser's steps that each parameter missed because it was frozen or had no gradient.

    Rules with a bias correction count the steps of each parameter, as torch.optim does. A parameter without missed
    steps reads "opt.t"; another reads its own setting, "opt.t.<number>", smaller by the steps that it missed.

    .missed  missed steps of each parameter that has some
    """

    def __init__(self) -> None:
        self.missed: dict[Stored, int] = {}
        self._counted: dict[Stored, None] = {}  # in the order of their first update
        self._numbers: dict[Stored, int] = {}  # of those that have ever missed a step

    def begin(self, stored: Stored, steps: int) -> None:
        """Count the steps of a parameter from now on; the optimiser has taken `steps` without it."""
        self._counted[stored] = None
        self.put(stored, steps)

    def put(self, stored: Stored, steps: int) -> None:
        """Set the number of steps that a parameter missed."""
        if steps:
            self.missed[stored] = steps
            self._numbers.setdefault(stored, len(self._numbers))
        else:
            self.missed.pop(stored, None)

    def add(self, updated: Iterable[Parameter], count: int) -> None:
        """Count `count` steps of these parameters: all others missed them."""
        mine = {p.stored for p in updated}
        for stored in self._counted:
            if stored not in mine:
                self.put(stored, self.missed.get(stored, 0) + count)

    def restart(self, steps: int) -> None:
        """Count as if every parameter had missed `steps` steps."""
        for stored in self._counted:
            self.put(stored, steps)

    def among(self, parameters: Collection[Parameter]) -> tuple[Stored, ...]:
        """Those of these parameters that have missed a step."""
        return tuple(p.stored for p in parameters if p.stored in self.missed) if self.missed else ()

    def setting_of(self, p: Parameter) -> str:
        """The name of the setting that holds the number of a parameter's step, from 1."""
        return f"{STEP}.{self._numbers[p.stored]}" if p.stored in self.missed else STEP

    def settings(self, steps: int) -> dict[str, float]:
        """The settings of the step that follows `steps` steps of the optimiser."""
        return {f"{STEP}.{self._numbers[stored]}": steps + 1 - missed for stored, missed in self.missed.items()}

    def settings_ahead(self, steps: int, count: int) -> dict[str, np.ndarray]:
        """The settings of the next `count` steps."""
        return {name: np.arange(first, first + count) for name, first in self.settings(steps).items()}
