"""Signals while the command starts. Imported before anything else of the package: imports next to nothing itself."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

NUMBERS: list[int] = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler that ends the process with one line. Nothing but imports has run, in which an exception may be lost."""
    try:
        os.write(2, b"gradloom: interrupted\n")
    finally:  # also where stderr is closed
        os._exit(128 + number)


def has_default(number: int) -> bool:
    """Whether a signal has Python's own handler, or that of the start. An ignored one stays ignored."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.getsignal(number) in (default, end_at_once)


def end_on_signals() -> None:
    """Until the command sets its own handlers, a signal ends the process. Other threads than the main one get none."""
    try:
        for number in NUMBERS:
            if has_default(number):
                signal.signal(number, end_at_once)
    except ValueError:  # not the main thread
        pass


def is_command() -> bool:
    """Whether this process runs `python -m gradloom` or an installed script of the command, which imports the package
    for that; False in any other program."""
    if sys.argv[:1] == ["-m"]:  # until the module is found
        return sys.orig_argv[-len(sys.argv) :][:1] == ["gradloom"]
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is not None and "gradloom.cli.start" in frame.f_code.co_names
