"""Processes that tests start: they heed Ctrl-C, and none is left when its test ends, whichever way it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradloom

PATHS = dict.fromkeys((str(Path(gradloom.__file__).parents[1]), str(Path(__file__).parents[1])))
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux' prctl
_prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
_started: list[subprocess.Popen[str]] = []


def environment(**more: str) -> dict[str, str]:
    """The variables of a process that imports the package that is tested, and these tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), **more}


def start(command: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """A process in a process group of its own; stdout and stderr are pipes of text. options: those of Popen.

    A shell starts background jobs with SIGINT ignored, nohup those with SIGHUP ignored, and all their children inherit
    that: both are set to their defaults. On Linux it is killed when the thread that started it ends: tests that are
    killed leave none behind.
    """
    parent = os.getpid()
    then = options.pop("preexec_fn", None)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if _prctl is not None:
            _prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before that
                os._exit(1)
        if then is not None:
            then()

    pipe = subprocess.PIPE
    given = {"stdout": pipe, "stderr": pipe, "text": True, "start_new_session": True} | options
    process = subprocess.Popen([str(word) for word in command], preexec_fn=prepare, **given)
    _started.append(process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of its process group; nothing where it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def end_all() -> None:
    """At the end of every test (tests/conftest.py)."""
    while _started:
        end(_started.pop())


@contextlib.contextmanager
def busy(loops: int = 2) -> Iterator[None]:
    """Beside processes that compute without end."""
    beside = [start(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in beside:
            end(process)
