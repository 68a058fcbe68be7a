"""Exit codes of the command; docs/command.md documents them."""

from __future__ import annotations

import enum

from .interrupts import number_of


class Exit(enum.IntEnum):
    """Exit codes of the command. A signal that ends it gives 128 + its number."""

    DONE = 0
    FAILED = 1  # verify, doctor, replay: something is wrong; the reader of stdout went away; a rank failed
    REFUSED = 2  # bad input, or an output that cannot be written
    CLOSED = 129  # SIGHUP
    INTERRUPTED = 130  # SIGINT
    TERMINATED = 143  # SIGTERM


def of_signal(stop: BaseException | None) -> Exit:
    """The exit code of a command that was stopped by this; that of Ctrl-C for None."""
    return Exit(128 + number_of(stop))
