"""Processes that tests start: they heed Ctrl-C, and none is left when its test ends, whichever way it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


def heed_ctrl_c() -> None:
    """For preexec_fn. A shell starts background jobs with SIGINT ignored, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a process group of its own, all of which is killed at the end; stdout and stderr are pipes of text.

    options: those of Popen; what preexec_fn does comes after SIGINT is back to its default.
    """
    then = options.pop("preexec_fn", None)

    def prepare() -> None:
        heed_ctrl_c()
        if then is not None:
            then()

    pipe = subprocess.PIPE
    given = {"stdout": pipe, "stderr": pipe, "text": True, "start_new_session": True} | options
    process = subprocess.Popen([str(word) for word in command], preexec_fn=prepare, **given)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for end in (process.stdout, process.stderr):
            if end is not None:
                end.close()
        process.wait()


@contextlib.contextmanager
def busy(loops: int = 2) -> Iterator[None]:
    """Beside processes that compute without end."""
    with contextlib.ExitStack() as stack:
        for _ in range(loops):
            stack.enter_context(started(["sh", "-c", "while :; do :; done"]))
        yield
