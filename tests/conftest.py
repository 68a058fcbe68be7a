"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import processes


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    processes.end_all()
