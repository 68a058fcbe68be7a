"""Dates of records, also where the clock is far off."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def utc(seconds: float) -> str:
    """The time in UTC as ISO 8601 has it: 2026-11-23T20:39:25+00:00. seconds: since 1970.

    Years that `datetime` does not have carry a sign: +11476-07-26T06:40:00+00:00. Empty where the system knows no date.
    """
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        pass
    try:
        t = time.gmtime(seconds)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{t.tm_year:+05d}-{t.tm_mon:02d}-{t.tm_mday:02d}T{t.tm_hour:02d}:{t.tm_min:02d}:{t.tm_sec:02d}+00:00"


def local_now() -> datetime:
    """The local time; the last or first one that `datetime` has where the clock passes it."""
    try:
        return datetime.now()
    except (ValueError, OverflowError, OSError):
        return datetime.max if time.time() > 0 else datetime.min
