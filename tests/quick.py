"""The short suite, `pytest --quick`: of the n cases of a test function the square root of n, and further ones until
each parameter value of many cases (an op, a type, an instruction set) is in one of them; all cases of tests marked
cheap; none of tests marked slow.

A function with many cases repeats one check over ops, types, instruction sets or inputs. Which of them are in the
sample depends on their names alone: every machine and every worker draws the same ones. `run_tests.sh --full` runs all.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict

import pytest

MANY = 5  # cases with one value of a parameter, of which the sample has at least one


def sample(items: list[pytest.Item]) -> set[pytest.Item]:
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.split("[")[0]].append(item)
    kept: set[pytest.Item] = set()
    for of_one in cases.values():
        of_one.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        left = {value for value, count in Counter(v for item in of_one for v in _values(item)).items() if count >= MANY}
        for i, item in enumerate(of_one):
            if i < math.sqrt(len(of_one)) or left & _values(item) or item.get_closest_marker("cheap"):
                kept.add(item)
                left -= _values(item)
    return kept


def _values(item: pytest.Item) -> set[tuple[int, str]]:
    """The parameters of a case as its name has them: matmul-3-avx2 is (0, "matmul"), (1, "3") and (2, "avx2")."""
    return set(enumerate(item.nodeid.partition("[")[2].removesuffix("]").split("-")))


class Quick:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = sample(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
