"""Entry point of the command: an installation whose required packages are missing or too old ends with one line."""

from __future__ import annotations

import sys

from ..base.exit_codes import Exit
from ..base.extras import broken_requirement


def main() -> int:
    """Run the command; returns its exit code. Without click, which parses it, one line on stderr."""
    try:
        from .main import main as run
    except (ImportError, AttributeError) as error:
        line = broken_requirement(error)
        if line is None:
            raise
        print(f"gradloom: {line}", file=sys.stderr)
        return Exit.REFUSED
    return run()
