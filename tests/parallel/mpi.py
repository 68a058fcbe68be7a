"""Start real processes with mpiexec. Tests that need it ask for `needs_mpi`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import processes

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpiexec and mpi4py are missing: pip install 'gradloom[mpi]'",
)


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float


def start(ranks: int, *arguments: object) -> subprocess.Popen[str]:
    """mpiexec -n ranks python ARGUMENTS. If mpiexec is killed, the ranks end as well."""
    assert MPIEXEC is not None
    command = [MPIEXEC, "-n", ranks, sys.executable, *arguments]
    return processes.start(command, env=processes.environment(OMP_NUM_THREADS="1"))


def finish(job: subprocess.Popen[str], limit: float = 120) -> Ended:
    """Wait for the end of a job; one that does not end in time fails the test."""
    begin = time.monotonic()
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        job.kill()
        out, err = job.communicate()
        pytest.fail(f"the job has not ended after {limit} s\n{out}\n{err}")
    return Ended(job.returncode, out, err, time.monotonic() - begin)


def run(ranks: int, *arguments: object, limit: float = 120) -> Ended:
    """Run to the end."""
    return finish(start(ranks, *arguments), limit)
