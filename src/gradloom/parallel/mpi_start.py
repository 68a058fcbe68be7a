"""Starting MPI: the module mpi4py.MPI, or an error that names the missing part; a time-out for missing ranks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ..base.errors import BackendError
from ..base.extras import install
from .communicator import described, launched

START = 10  # time-outs to wait for all ranks to come, while there are no messages yet


def started_mpi(timeout: float) -> Any:
    """The module mpi4py.MPI, started."""
    try:
        with _alarm(START * timeout):
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"parallel='mpi': mpi4py with a working MPI is missing ({described(error)}); run {install('mpi')}"
        ) from None
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise BackendError(
            "parallel='mpi': this MPI was started without MPI_THREAD_MULTIPLE; take one that has it (the package "
            "mpich) and leave mpi4py.rc.thread_level alone"
        )
    if MPI.COMM_WORLD.size < launched():
        raise BackendError(
            f"parallel='mpi': mpiexec started {launched()} processes, but mpi4py's MPI sees {MPI.COMM_WORLD.size}: "
            f"they belong to different MPIs; mpi4py has {MPI.Get_library_version().split(chr(10))[0].strip()}"
        )
    return MPI


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """MPI starts only when all ranks have come, and lets no thread run before: another process ends a vain wait."""
    if launched() == 1 or "mpi4py.MPI" in sys.modules:
        yield
        return
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-I", "-S", "-c", _ALARM, f"{seconds:g}", str(launched())]
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=quiet)
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


_ALARM = """
import os, select, signal, sys
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    text = "gradloom: not all ranks came within %s s: each of the %s must call this; all end\\n"
    os.write(2, (text % (sys.argv[1], sys.argv[2])).encode())
    os.kill(os.getppid(), signal.SIGKILL)
"""
