"""A job in which one rank meets with a misfortune at step 20; rank 0 writes a file at each step.

misfortune.py WHAT TIMEOUT FOLDER [RANK, by default 1]
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from gradloom import parallel as comm
from gradloom.base.errors import TrainError
from gradloom.files.atomic import atomic_write

what, timeout, folder = sys.argv[1], float(sys.argv[2]), sys.argv[3]
unlucky = int(sys.argv[4]) if len(sys.argv) > 4 else 1
if what.startswith("never") and (os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]) == "1":
    if what == "never":
        import mpi4py.MPI  # noqa: F401
    elif what == "never needs it":
        sys.exit(0)
    time.sleep(1000)
ranks = comm.communicator("mpi", timeout=timeout)
if what == "killed early" and ranks.rank == unlucky:
    os.kill(os.getpid(), signal.SIGKILL)
reduction = ranks.reduction(50_000)
mine = np.ones(50_000, np.float32)
NUMBERS = np.random.default_rng(0).standard_normal(50_000)  # drawn here: the first draw imports, and loses a Ctrl-C


def work(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        np.sort(NUMBERS)


def misfortune() -> None:
    if what == "killed with a child" and os.fork() == 0:  # holds all that the rank held, and longer
        time.sleep(3)
        os._exit(0)
    if what.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif what.startswith("stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "sleeps":
        time.sleep(1000)
    elif what == "raises":
        raise ValueError("row 7 is bad")
    elif what == "tells":
        error = ValueError("row 7 is bad")
        ranks.fail(error)
        raise error
    elif what == "forks":
        if (child := os.fork()) == 0:
            try:
                ranks.gather(1)
            except TrainError as error:
                print(error, flush=True)
            os._exit(0)  # sys.exit would go through MPI_Finalize, which speaks for the rank
        os.waitpid(child, 0)
    elif what == "exits":
        sys.exit(0)
    elif what == "other call":
        ranks.gather(None)
    elif what == "slow":
        work(3 * timeout)


if what == "stopped unheard":
    sys.excepthook = lambda *_: None  # as where errors are caught and rank 0 alone reports them
for step in range(40):
    if step == 20 and ranks.rank == unlucky:
        misfortune()
    if step == 20 and what == "differs":
        ranks.check("the data", "b" if ranks.rank == 2 else "a")
    if step == 20 and what == "paused":
        pids = ranks.gather(os.getpid())
        if ranks.is_root:
            print(*pids, flush=True)
        until = time.monotonic() + 6
        while all(ranks.gather(time.monotonic() < until)):
            reduction.add(mine)
            reduction.finish()
    if step == 20 and what.startswith("interrupt"):
        try:
            if ranks.is_root:
                print("ready", flush=True)
            if what == "interrupt work" or ranks.rank == 1:
                work(1000)
            reduction.add(mine)
        except KeyboardInterrupt:
            if ranks.is_root:
                time.sleep(0.5)  # saving the work so far, while the others have nothing left to do
                with atomic_write(f"{folder}/saved") as file:
                    file.write(b"whole")
            sys.exit(130)
    reduction.add(mine)
    total = reduction.finish()
    if ranks.is_root:
        with atomic_write(f"{folder}/weights") as file:
            file.write(np.full(50_000, step, np.float32).tobytes())
            file.write(total.tobytes())
if ranks.is_root:
    print("done")
