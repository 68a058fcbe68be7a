"""State of random ops outside tapes with a seed of their own: a seed, and the number of traces that drew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..base import locks
from ..base.errors import SettingError
from ..step.step import random_settings

_seed = 0
_step = 1  # of the next trace that draws


def seed(n: int) -> None:
    """Restart the random draws of eager ops: masks of dropout depend on this seed and on how many traces drew before.

    A tape that was opened with a seed and a step of its own draws by these. SettingError unless n is a whole number.
    """
    global _seed, _step
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
        raise SettingError(f"seed: {n!r} is not usable; need a whole number")
    with locks.building:
        _seed, _step = int(n) % (1 << 63), 1


def draw_settings(given_seed: int | None, given_step: int | None) -> dict[str, float]:
    """The settings of random ops for one trace; where a seed or step is not given, gl.seed's and the next count."""
    global _step
    with locks.building:
        drawn = (_seed if given_seed is None else given_seed), (_step if given_step is None else given_step)
        _step += given_step is None
    return random_settings(*drawn)


def position() -> dict[str, Any]:
    """State of the next draws: the seed, and the step of the next trace that draws."""
    with locks.building:
        return {"seed": _seed, "step": _step}


def load_position(values: Mapping[str, Any]) -> Callable[[], None]:
    """The function that restores `position`; it does nothing for an empty one."""
    known = {name: int(value) for name, value in values.items()}

    def load() -> None:
        global _seed, _step
        with locks.building:
            _seed, _step = known.get("seed", _seed), known.get("step", _step)

    return load
