"""A short run of tests.fuzz.contents in a process of its own, whose address space it limits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradloom
from tests import processes

ROOT = Path(gradloom.__file__).parents[1]
CASES = int(os.environ.get("FUZZ_CONTENTS", "40"))  # more of them: FUZZ_CONTENTS=100000


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc to measure the memory of a process")
@pytest.mark.slow
def test_models_and_adapters_whose_parts_disagree():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.contents", "--count", str(CASES)],
        env=processes.environment(),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["cases"] == CASES  # and both ways out are tested:
    assert all(0 < told[what] < CASES for what in ("load", "load: refused", "adapter", "adapter: refused", "step"))
