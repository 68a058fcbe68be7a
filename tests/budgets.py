"""CPU time of the tests by package: the folders of tests/. `pytest` without paths fails when one exceeds its budget.

CPU time of the tests and of the processes that they start, which depends little on other work on the machine. A budget
is about twice the time on two cores of an AMD EPYC (Zen 4; of gpu and llm without AVX-512): a test of minutes exceeds
it, a slower machine does not.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

SECONDS = {  # package -> CPU seconds
    "gpu": 1800, "cli": 1000, "llm": 1600, "train": 700, "parallel": 400, "ops": 400, "faults": 300, "fuzz": 300,
    "run": 300, "plan": 300, "core": 200, "eager": 200, "runs": 600, "tables": 300, "data": 240,
    "reports": 300, "metrics": 300, "docs": 800,
}  # fmt: skip
OTHER = 120  # any other package, and the files in tests/ itself


def _cpu_seconds() -> float:
    return sum(os.times()[:4])  # user and system time, of this process and of its children that have ended


class Budgets:
    """CPU time of each test, measured in the process that runs it; the controller of pytest-xdist adds it up."""

    def __init__(self, config: pytest.Config) -> None:
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
        self.enforced = whole and not config.getoption("--quick")
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._begin = _cpu_seconds()
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        item.user_properties.append(("cpu_seconds", _cpu_seconds() - self._begin))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "teardown":
            folders = report.nodeid.split("::")[0].split("/")[1:-1]  # of tests/PACKAGE/.../test_x.py
            self.seconds[folders[0] if folders else "."] += dict(report.user_properties).get("cpu_seconds", 0.0)

    def exceeded(self) -> dict[str, float]:
        return {name: s for name, s in self.seconds.items() if s > SECONDS.get(name, OTHER)}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.enforced and self.exceeded() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.enforced:
            return
        terminalreporter.section("CPU seconds by package (budget)")
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            budget = SECONDS.get(name, OTHER)
            note = "  EXCEEDED" if seconds > budget else ""
            terminalreporter.write_line(f"{name:12}{seconds:8.0f} ({budget}){note}")
