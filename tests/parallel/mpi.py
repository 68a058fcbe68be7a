"""Start real processes with mpiexec. Tests that need it ask for `needs_mpi`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
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


@contextlib.contextmanager
def started(ranks: int, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """mpiexec -n ranks python ARGUMENTS. Whatever is left of it ends with the block: the ranks when mpiexec is gone."""
    assert MPIEXEC is not None
    command = [MPIEXEC, "-n", ranks, sys.executable, *arguments]
    with processes.started(command, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}) as job:
        yield job


def finish(job: subprocess.Popen[str], limit: float = 120) -> Ended:
    """Wait for the end of a job; one that does not end in time fails the test."""
    begin = time.monotonic()
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the job has not ended after {limit} s\n{error.stdout!r}\n{error.stderr!r}")
    return Ended(job.returncode, out, err, time.monotonic() - begin)


def run(ranks: int, *arguments: object, limit: float = 120) -> Ended:
    """Run to the end."""
    with started(ranks, *arguments) as job:
        return finish(job, limit)
