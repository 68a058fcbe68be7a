"""What tests start ends with them, and heeds Ctrl-C where the tests run in the background of a shell."""

from __future__ import annotations

import signal
import sys

from tests import conftest, processes

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(1000)"


def test_ctrl_c_is_heeded_where_the_tests_ignore_it() -> None:
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = processes.start([sys.executable, "-c", WAITS])
    finally:
        signal.signal(signal.SIGINT, old)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in job.communicate(timeout=30)[1]


def test_no_process_outlives_its_test() -> None:
    ending = conftest.no_process_outlives_its_test.__wrapped__()  # the function below pytest's fixture
    next(ending)
    jobs = [processes.start(["sleep", 1000]), processes.start([sys.executable, "-c", WAITS])]
    assert [job.poll() for job in jobs] == [None, None]
    assert next(ending, "ended") == "ended"
    assert [job.returncode for job in jobs] == [-signal.SIGKILL, -signal.SIGKILL]
