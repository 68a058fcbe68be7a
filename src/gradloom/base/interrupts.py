"""What ends a run in order: Ctrl-C, in a command also SIGTERM and SIGHUP (its terminal is closed), StopTraining.

The library installs no handler for the two.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handlers = dict[int, Any]  # of signals by their numbers
SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}  # the name of each
if hasattr(signal, "SIGHUP"):
    SIGNALS[signal.SIGHUP] = "SIGHUP"
last_interrupt: KeyboardInterrupt | None = None  # raised by the last signal
SAME_SECONDS = 1.0  # signals that come so soon after one another ask for the same thing
IMPORT_SECONDS = 5.0  # so long a signal waits for the end of an import
_AGAIN_SECONDS = 0.01
_IMPORTS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")  # files of frames


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM and SIGHUP; a KeyboardInterrupt, so that code that handles Ctrl-C handles it as well."""

    def __init__(self, number: int) -> None:
        super().__init__(number)  # which a rank pickles, for the others
        self.number = number


class StopTraining(Exception):
    """Raised by a listener of `fit` or `finetune`: training ends in order, and what came of it is returned.

    No error: outside of a listener nothing catches it.
    """


def interrupt(number: int) -> KeyboardInterrupt:
    """The exception that a signal raises."""
    global last_interrupt
    last_interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
    return last_interrupt


def number_of(stop: BaseException | None) -> int:
    """The signal that raised this; SIGINT for any other KeyboardInterrupt, and where nothing was raised."""
    return stop.number if isinstance(stop, Terminated) else signal.SIGINT


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
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if has_default(number):
                signal.signal(number, end_at_once)


class Raising:
    """A handler that raises. A second signal that comes at once, from launcher and terminal, is ignored.

    Inside of an import it waits for its end, for at most IMPORT_SECONDS: there importlib may drop the exception, and C
    code, such as NumPy's, makes an ImportError of it.
    """

    def __init__(self) -> None:
        self._heard = -SAME_SECONDS
        self.last: KeyboardInterrupt | None = None  # the exception raised last; a caller may have caught or replaced it
        self.waiting: int | None = None  # the signal that is sent again

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.waiting is None:
            if now - self._heard < SAME_SECONDS:
                return
            self._heard = now
        if now - self._heard < IMPORT_SECONDS and _in_import(frame):
            self.send_again(number)
            return
        self.waiting = None
        self.last = interrupt(number)
        raise self.last

    def send_again(self, number: int) -> None:
        """Send a signal once more to the main thread, soon, unless `waiting` is set to None before."""
        self.waiting = number
        _thread.start_new_thread(self._send, ())

    def take(self) -> KeyboardInterrupt | None:
        """The exception of a signal that would be sent again; it is not any more."""
        number, self.waiting = self.waiting, None
        return None if number is None else interrupt(number)

    def _send(self) -> None:
        time.sleep(_AGAIN_SECONDS)
        number = self.waiting
        if number is None:
            return
        if signal.getsignal(number) is not self:  # another handler takes it over
            self.waiting = None
        if sys.platform == "win32":
            _thread.interrupt_main(number)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, number)  # interrupts a wait of the system as well

    @contextlib.contextmanager
    def sending_lost_again(self) -> Iterator[None]:
        """Inside, an interrupt that a destructor or a weak reference's callback loses is sent again."""

        def hook(lost: sys.UnraisableHookArgs) -> None:
            if lost.exc_value is not None and lost.exc_value is last_interrupt:
                self.send_again(number_of(lost.exc_value))
            else:
                old(lost)

        old, sys.unraisablehook = sys.unraisablehook, hook
        try:
            yield
        finally:
            sys.unraisablehook = old


def _in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in _IMPORTS:
            return True
        frame = frame.f_back
    return False


def replace(handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Set a handler for the signals that raise KeyboardInterrupt in this process, in the main thread; returns the old
    ones. An ignored signal (in the background, under nohup) stays ignored, and one with its default ends the process.
    """
    old: Handlers = {}
    for number in SIGNALS:
        now = signal.getsignal(number)
        if isinstance(now, Raising) or (number == signal.SIGINT and callable(now)):
            old[number] = signal.signal(number, handler)
    return old


def restore(old: Handlers) -> None:
    """Set the handlers again that `replace` has replaced."""
    for number, handler in old.items():
        signal.signal(number, handler)


class Held:
    """A handler that defers a signal until `check`, so that a step in progress completes first. A second signal raises
    at once; the exception then has the attribute `at_once`."""

    def __init__(self) -> None:
        self._asked: KeyboardInterrupt | None = None
        self._at = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked is None:
            self._asked, self._at = interrupt(number), time.monotonic()
        elif time.monotonic() - self._at >= SAME_SECONDS:
            raise raised_at_once(number)

    def check(self) -> None:
        """Raise the deferred signal."""
        asked, self._asked = self._asked, None
        if asked is not None:
            raise asked


def raised_at_once(number: int) -> KeyboardInterrupt:
    """The exception of a signal that interrupts whatever runs."""
    error = interrupt(number)
    error.at_once = True  # type: ignore[attr-defined]
    return error


@contextlib.contextmanager
def held_back() -> Iterator[Held]:
    """Inside, in the main thread, the signals that raise KeyboardInterrupt wait for `check`."""
    held = Held()
    old = replace(held) if threading.current_thread() is threading.main_thread() else {}
    try:
        yield held
    finally:
        restore(old)


@contextlib.contextmanager
def postponed() -> Iterator[Callable[[], bool]]:
    """Inside, in the main thread, signal handlers are deferred to the end; the function returns whether one is pending.

    For work in Python that must be counted before anything is raised.
    """
    pending: list[tuple[int, FrameType | None]] = []
    old: Handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if callable(signal.getsignal(number)):
                old[number] = signal.signal(number, lambda n, frame: pending.append((n, frame)))
    try:
        yield lambda: bool(pending)
    finally:
        restore(old)
    for number, frame in pending:
        old[number](number, frame)
