"""What random ops draw by outside of tapes that say it themselves: a seed, and a count of the traces that drew."""

from __future__ import annotations

import itertools

import numpy as np

from ..base.errors import SettingError
from ..step.step import random_settings

_seed = 0
_steps = itertools.count(1)  # of the traces that drew


def seed(n: int) -> None:
    """Restart the random draws of eager ops: masks of dropout depend on this seed and on how many traces drew before.

    A tape that was opened with a seed and a step of its own draws by these. SettingError unless n is a whole number.
    """
    global _seed, _steps
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
        raise SettingError(f"seed: {n!r} is not usable; need a whole number")
    _seed, _steps = int(n) % (1 << 63), itertools.count(1)


def draw_settings(given_seed: int | None, given_step: int | None) -> dict[str, float]:
    """The settings of random ops for one trace; where a seed or step is not given, gl.seed's and the next count."""
    return random_settings(
        _seed if given_seed is None else given_seed, next(_steps) if given_step is None else given_step
    )
