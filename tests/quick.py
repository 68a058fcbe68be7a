"""The short suite, `pytest --quick`: of the n cases of a test function the square root of n, and no test marked slow.

A function with many cases repeats one check over ops, types, instruction sets or inputs. Which of them are in the
sample depends on their names alone: every machine and every worker draws the same ones. `run_tests.sh --full` runs all.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict

import pytest


def sample(items: list[pytest.Item]) -> set[pytest.Item]:
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.split("[")[0]].append(item)
    kept: set[pytest.Item] = set()
    for of_one in cases.values():
        of_one.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        kept.update(of_one[: math.ceil(math.sqrt(len(of_one)))])
    return kept


class Quick:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = sample(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
