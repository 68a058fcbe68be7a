"""A number for each comparison with PyTorch, which takes its place where it is not installed: the short suite.

A test compares our values with PyTorch's where that is installed, and in any case their sum, with random weights, with
the number that was kept in torch_answers.json of an earlier comparison. GRADLOOM_UPDATE_GOLDEN=1 writes those of the
tests that run anew, after their comparisons (in one process, with PyTorch).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FILE = Path(__file__).with_name("torch_answers.json")
INSTALLED = find_spec("torch") is not None


class _Torch:
    """PyTorch, imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("torch"), name)


torch: Any = _Torch()


@cache
def _kept() -> dict[str, float]:
    return json.loads(FILE.read_text())


_calls: Counter[str] = Counter()


def check_kept(arrays: Iterable[np.ndarray]) -> None:
    """AssertionError unless these arrays of the running test are those that were compared with PyTorch, to 1e-7."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    key = f"{test} {_calls[test]}" if _calls[test] else test
    _calls[test] += 1
    rng, total, scale = np.random.default_rng(1), 0.0, 1.0
    for array in arrays:
        terms = np.nan_to_num(np.asarray(array, np.float64), nan=5.0, posinf=7.0, neginf=9.0)
        terms = terms * rng.uniform(-1, 1, terms.shape)
        total, scale = total + float(terms.sum()), scale + float(np.abs(terms).sum())
    kept = _kept()
    if os.environ.get("GRADLOOM_UPDATE_GOLDEN") == "1" and INSTALLED:
        kept[key] = float(f"{total:.10g}")
        lines = [f"{json.dumps(name)}: {value}" for name, value in sorted(kept.items())]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert total == pytest.approx(kept[key], rel=0, abs=1e-7 * scale), key
