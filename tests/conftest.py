"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests import processes

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: tests send it to their own process
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    yield
    processes.end_all()
