"""Bytes as a user writes them; resident memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradloom.base.memory import as_bytes, need_start_memory
from tests.refused import refused

KI, K = 1024, 1000


@pytest.mark.parametrize(
    ("given", "bytes"),
    [
        (1, 1), (np.int64(7), 7), ("5000000", 5_000_000), ("12 B", 12), ("3k", 3 * KI), ("5G", 5 * KI**3),
        ("2T", 2 * KI**4), ("1.5 MiB", 3 * KI**2 // 2), ("4GiB", 4 * KI**3), ("1TiB", KI**4), ("0.5kb", 500),
        ("4.2GB", 4_200_000_000), ("2 MB", 2 * K**2), ("3TB", 3 * K**4),
        ("123456789012345678901234567890G", 123456789012345678901234567890 * KI**3),
    ],
)  # fmt: skip
def test_bytes_with_and_without_units(given: Any, bytes: int) -> None:
    assert as_bytes("gpu_memory", given) == bytes


BAD = [
    0, -1, True, 1.5, None, b"4G", ["4G"], "", "0", "0G", "1.5", "1.5B", "0.0001K", "-4G", "4iB", "4 X", "4G ", "٤G",
    "4GiBs", "1e9", "inf", "9" * 400, "4.G", "a\nb",
]  # fmt: skip


@pytest.mark.parametrize("given", BAD)
def test_what_is_no_number_of_bytes(given: Any) -> None:
    with refused("gpu_memory", given, need="bytes, or a text such as '4GiB'"):
        as_bytes("gpu_memory", given)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_the_peak_of_a_process_does_not_include_that_of_its_parent() -> None:
    held = np.ones(400 << 20, np.uint8)  # touched: resident in this process
    shown = "from gradloom.base.memory import resident_peak; print(resident_peak())"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(done.stdout) < held.nbytes


@pytest.mark.parametrize(("limit", "most", "seen"), [(100_000, 1, None), (40, 9, None), (40, 1, "1")])
def test_libraries_start_no_threads_where_the_system_gives_none(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int, seen: str | None
) -> None:
    resource, start, started = pytest.importorskip("resource"), threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    for name in ("OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"):  # restored behind the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(threading.Thread, "start", limited)
    need_start_memory(2)
    assert os.environ.get("OPENBLAS_NUM_THREADS") == seen
    assert not any(thread.is_alive() for thread in started)
