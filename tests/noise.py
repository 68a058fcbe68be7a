"""f32 noise: how far a result in f32 may lie from the truth in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

UNIT = 2.0**-24  # of f32 rounding, relative


def assert_noise(
    what: str, ours: Any, single: Any, double: Any, longest: int = 1, largest: float = 0.0, worst: bool = True
) -> None:
    """The error of `ours` against float64, as root mean square and at `worst`, is at most 4 times that of another f32
    (PyTorch's), or 8 units of rounding of the largest value, times the square root of the longest sum.

    The other f32 alone is no measure: it may be exact by luck, on one processor and not on the next.

    longest: terms of the longest sum; a smaller number asks for more
    largest: of the values that are added up, where they cancel in the result; otherwise that of the result counts
    """
    ours, single, double = (np.asarray(a, np.float64) for a in (ours, single, double))
    assert ours.shape == double.shape, what
    error, theirs = np.abs(ours - double), np.abs(single - double)
    size = max(float(np.abs(double).max(initial=0)), largest)
    floor = 8 * UNIT * size * longest**0.5
    measures = {"root mean square": lambda e: np.sqrt(np.mean(e * e))} | ({"worst": np.max} if worst else {})
    for name, measure in measures.items():
        allowed = max(4 * measure(theirs), floor)
        said = f"{what}: {name} error {measure(error):.3g}, PyTorch's {measure(theirs):.3g}, of {size:.3g}"
        assert measure(error) <= allowed, f"{said}; allowed {allowed:.3g}"


def assert_all_noise(
    ours: Mapping[str, Any], single: Mapping[str, Any], double: Mapping[str, Any], longest: int = 1, where: str = ""
) -> None:
    """The same of each array by its name. One that vanishes, as the gradient of a bias before a norm does, is what is
    left of values of the others' size."""
    assert ours.keys() == single.keys() == double.keys()
    sizes = {name: float(np.abs(array).max(initial=0)) for name, array in double.items()}
    most = max(sizes.values())
    for name, size in sizes.items():
        largest = most if size < 1e-9 * most else size
        assert_noise(f"{where} {name}".strip(), ours[name], single[name], double[name], longest, largest)
