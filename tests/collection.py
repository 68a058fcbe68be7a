"""Each worker begins to collect the files of tests at another place.

In a fresh clone, collection takes most of its time to rewrite the assertions of 340 files, which Python then keeps.
Workers in the same order all rewrite each file; from different places, each rewrites its share and reads the others'.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest


class _Rotated(pytest.Dir):
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        found = list(super().collect())
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        start = len(found) * worker // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        return found[start:] + found[:start]


class Rotation:
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return _Rotated.from_parent(parent, path=path) if path == Path(__file__).parent else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """All workers must find the same order: that of the paths, and within a file that of its lines."""
        items.sort(key=lambda item: item.path.parts)
