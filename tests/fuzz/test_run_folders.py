"""A short run of tests.fuzz.run_folders."""

from __future__ import annotations

import os
import sys

import pytest

from tests.fuzz import run_folders

CASES = int(os.environ.get("FUZZ_RUN_FOLDERS", "1500"))  # more of them: FUZZ_RUN_FOLDERS=20000


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of long names, by /proc")
@pytest.mark.slow
def test_nothing_outside_of_a_run_changes() -> None:
    said = run_folders.run(0, CASES)
    assert all(said[f"{what}: {how}"] > CASES // 50 for what in ("train", "together") for how in ("done", "refused"))
