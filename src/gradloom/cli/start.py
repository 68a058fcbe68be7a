"""Entry point of the command: a signal, and an installation whose required packages are missing or too old, end it with
one line."""

from __future__ import annotations

import sys

from ..base.exit_codes import Exit, of_signal
from ..base.extras import broken_requirement
from ..base.interrupts import end_on_signals


def main() -> int:
    """Run the command; returns its exit code. Without click, which parses it, one line on stderr."""
    end_on_signals()
    try:
        from .main import main as run
    except (ImportError, AttributeError) as error:
        line = broken_requirement(error)
        if line is None:
            raise
        print(f"gradloom: {line}", file=sys.stderr)
        return Exit.REFUSED
    try:
        return run()
    except KeyboardInterrupt as stop:  # before or after the command itself
        print("gradloom: interrupted", file=sys.stderr)
        return of_signal(stop)
