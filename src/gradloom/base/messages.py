"""Messages about a run: records of the logger "gradloom", which go to stderr until a program sets its own handlers."""

from __future__ import annotations

import logging

from .terminal import to_stderr

log = logging.getLogger("gradloom")


class _ToStderr(logging.Handler):
    """Prints the message alone; control characters of names are escaped on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        to_stderr(record.getMessage())


if log.level == logging.NOTSET:  # a program may have configured the logger before: this module is imported late
    log.setLevel(logging.INFO)
if not log.handlers:
    log.addHandler(_ToStderr())
    log.propagate = False
