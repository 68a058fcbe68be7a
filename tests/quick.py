"""The short suite, `pytest --quick`: of the n cases of a test function the square root of n, rounded down, and further
ones until each parameter value of many cases (an op, a type, an instruction set) is in one of them; all cases of tests
marked cheap, and where they are few; none of tests marked slow.

A function with many cases repeats one check over ops, types, instruction sets or inputs. Which of them are in the
sample depends on their names alone: every machine and every worker draws the same ones. `run_tests.sh --full` runs all.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

MANY = 5  # cases with one value of a parameter, of which the sample has at least one
FEW = 6  # cases of a function: all of them, except where they train or start processes, which takes tenths of a second
LONG = re.compile("tests/(base|cli|llm|metrics|plan|reports|run|train)/")


def sample(cases: list[str], is_cheap: bool) -> set[str]:
    """Of the cases of one function, by name: test_x.py::test_op[relu-3-avx2] has the values relu, 3 and avx2."""
    values = {case: set(enumerate(case.split("-"))) for case in cases}
    left = {value for value, count in Counter(v for case in cases for v in values[case]).items() if count >= MANY}
    kept: set[str] = set()
    for i, case in enumerate(sorted(cases, key=lambda case: zlib.crc32(case.encode()))):
        if i < max(1, math.isqrt(len(cases))) or left & values[case] or is_cheap:
            kept.add(case)
            left -= values[case]
    return kept


class Quick:
    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Iterator[None]:
        """Drop cases before pytest makes tests of them: of 45 000 that takes 10 s in each process."""
        yield
        function, cases = metafunc.definition, {f"{metafunc.definition.nodeid}[{c.id}]": c for c in metafunc._calls}
        is_cheap = len(cases) <= FEW and not LONG.match(function.nodeid)
        kept = sample(list(cases), is_cheap or function.get_closest_marker("cheap") is not None)
        metafunc._calls[:] = [case for name, case in cases.items() if name in kept]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
