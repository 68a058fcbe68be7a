"""Signals that end a run: deferred to the end of a step, and doubled by a launcher and a terminal."""

import signal

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
