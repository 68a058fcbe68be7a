"""Signals that end a run: deferred to the end of a step, and doubled by a launcher and a terminal."""

import importlib
import signal
import sys
import time
import weakref

import pytest

from gradloom.base import interrupts


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of the next signal, in seconds."""
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 100.0 + seconds)


def raised(call, *arguments):
    """The interrupt that a call raises, None where it raises none: pytest itself would end with it."""
    try:
        call(*arguments)
    except KeyboardInterrupt as error:
        return error
    return None


def test_a_second_signal_at_once_asks_for_the_same(clock):
    """A terminal and its launcher both pass Ctrl-C on; a user who presses it again means: now."""
    held = interrupts.Held()
    assert raised(held, signal.SIGINT, None) is None
    clock(interrupts.SAME_SECONDS / 2)
    assert raised(held, signal.SIGTERM, None) is None
    first = raised(held.check)
    assert interrupts.number_of(first) == signal.SIGINT and not hasattr(first, "at_once")
    assert raised(held.check) is None  # it is raised once
    assert raised(held, signal.SIGINT, None) is None
    clock(2 * interrupts.SAME_SECONDS)
    second = raised(held, signal.SIGTERM, None)
    assert interrupts.number_of(second) == signal.SIGTERM and second.at_once


def test_a_handler_that_raises_ignores_the_doubled_signal(clock):
    raising = interrupts.Raising()
    assert type(raised(raising, signal.SIGINT, None)) is KeyboardInterrupt
    clock(interrupts.SAME_SECONDS / 2)
    assert raised(raising, signal.SIGINT, None) is None
    clock(2 * interrupts.SAME_SECONDS)
    assert type(raised(raising, signal.SIGTERM, None)) is interrupts.Terminated


@pytest.fixture
def raising():
    """A handler of SIGTERM that raises, with the waits of this module cut short after the test."""
    handler = interrupts.Raising()
    old = signal.signal(signal.SIGTERM, handler)
    yield handler
    handler.take()
    signal.signal(signal.SIGTERM, old)


def signalled():
    """SIGTERM to this process; the handler has run."""
    signal.raise_signal(signal.SIGTERM)


def import_of(tmp_path, monkeypatch, text):
    """Import a module with this source that can send SIGTERM: signalled()."""
    name = f"imported_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"from {__name__} import interrupts, signal, signalled\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name)


def test_a_signal_waits_for_the_end_of_an_import(tmp_path, monkeypatch, raising):
    """C code makes an ImportError of what is raised in an import: NumPy's does."""
    module = import_of(tmp_path, monkeypatch, "signalled()\nwhole = True\n")
    assert module.whole and raising.waiting == signal.SIGTERM and raising.last is None
    stop = raised(time.sleep, 10)  # the wait ends at once
    assert interrupts.number_of(stop) == signal.SIGTERM and stop is raising.last and raising.waiting is None


def test_a_signal_does_not_wait_for_ever_for_an_import(tmp_path, monkeypatch, raising, clock):
    clock(0)
    text = "import time\nmonotonic = time.monotonic\nsignalled()\n"
    text += f"interrupts.time.monotonic = lambda: {100 + interrupts.IMPORT_SECONDS}\ntime.sleep(10)\n"
    stop = raised(import_of, tmp_path, monkeypatch, text)
    assert interrupts.number_of(stop) == signal.SIGTERM and stop is raising.last


def test_another_handler_takes_over_a_signal_that_waited(tmp_path, monkeypatch, raising):
    import_of(tmp_path, monkeypatch, "signalled()\n")
    with interrupts.held_back() as held:
        time.sleep(0.1)
        assert raising.waiting is None
        assert interrupts.number_of(raised(held.check)) == signal.SIGTERM


def test_an_interrupt_that_is_lost_is_raised_again(capfd, raising):
    """In the callback of a weak reference, as importlib has them, nothing can be raised."""

    class Thing:
        pass

    with raising.sending_lost_again():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: signalled())
        del thing
        assert reference() is None and raising.last is not None and raising.waiting == signal.SIGTERM
        assert interrupts.number_of(raised(time.sleep, 10)) == signal.SIGTERM
        assert raising.waiting is None
    assert capfd.readouterr() == ("", "")


def test_other_exceptions_that_are_lost_are_reported(monkeypatch, raising):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: seen.append(str(lost.exc_value)))

    class Thing:
        def __del__(self):
            raise ValueError("in a destructor")

    with raising.sending_lost_again():
        Thing()
    assert seen == ["in a destructor"] and raising.waiting is None
