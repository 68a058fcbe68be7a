"""What tests start ends with them, and heeds Ctrl-C where the tests run in the background of a shell."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests import conftest, processes

WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(1000)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_heeded_where_the_tests_ignore_it(number: int) -> None:
    old = signal.signal(number, signal.SIG_IGN)
    try:
        job = processes.start([sys.executable, "-c", WAITS])
    finally:
        signal.signal(number, old)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    job.send_signal(number)
    assert job.wait(timeout=30) == -number


def test_the_tests_send_themselves_signals_where_the_shell_ignores_them(tmp_path: Path) -> None:
    test = "import os, signal, pytest\ndef test():\n with pytest.raises(KeyboardInterrupt): os.kill(os.getpid(), 2)\n"
    (tmp_path / "test_it.py").write_text(test)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    ignore = "import signal, sys, pytest; signal.signal(2, signal.SIG_IGN); sys.exit(pytest.main(sys.argv[1:]))"
    job = processes.start(
        [sys.executable, "-c", ignore, "-q", "-p", "no:cacheprovider", tmp_path],
        env=processes.environment(), cwd=tmp_path,
    )  # fmt: skip
    out, err = job.communicate(timeout=60)
    assert job.returncode == 0, out + err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems tell no child of it")
def test_no_process_outlives_the_tests_that_are_killed() -> None:
    code = f"from tests import processes; print(processes.start(['sleep', 1000]).pid, flush=True); {WAITS}"
    tests = processes.start([sys.executable, "-c", code.replace("\n", "; ")], env=processes.environment())
    assert tests.stdout is not None
    child = Path("/proc", tests.stdout.readline().strip())
    assert child.exists() and tests.stdout.readline() == "ready\n"
    tests.kill()
    tests.wait()
    for _ in range(500):
        if not child.exists() or "State:\tZ" in (child / "status").read_text():
            return
        time.sleep(0.01)
    raise AssertionError("it lives")


def test_no_process_outlives_its_test() -> None:
    ending = conftest.no_process_outlives_its_test.__wrapped__()  # the function below pytest's fixture
    next(ending)
    jobs = [processes.start(["sleep", 1000]), processes.start([sys.executable, "-c", WAITS])]
    assert [job.poll() for job in jobs] == [None, None]
    assert next(ending, "ended") == "ended"
    assert [job.returncode for job in jobs] == [-signal.SIGKILL, -signal.SIGKILL]
