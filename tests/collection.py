"""Every second worker collects the files of tests from the last to the first.

In a fresh clone, collection takes most of its time to rewrite the assertions of 340 files, which Python then keeps. Two
workers in the same order rewrite each file twice; from both ends, each rewrites half and reads what the other one kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest


class _Backwards(pytest.Dir):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed(list(super().collect()))


class FromBothEnds:
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        return _Backwards.from_parent(parent, path=path) if int(worker) % 2 else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """All workers must find the same order: that of the paths, and within a file that of its lines."""
        items.sort(key=lambda item: item.path.parts)
