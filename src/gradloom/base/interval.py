"""Durations and intervals as text: "5min", "100steps", "1epoch"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .errors import SettingError

SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
COUNTS = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}
EXAMPLES = {"seconds": "10s, 5min or 3h", "steps": "100steps", "epochs": "1epoch"}


@dataclass(frozen=True)
class Interval:
    """A number of seconds (any above 0), of optimiser steps or of epochs (whole ones)."""

    number: float
    unit: str  # "seconds", "steps" or "epochs"

    @property
    def seconds(self) -> float | None:
        """The number of seconds, or None for another unit."""
        return self.number if self.unit == "seconds" else None

    @property
    def steps(self) -> int | None:
        """The number of steps, or None for another unit."""
        return int(self.number) if self.unit == "steps" else None

    @property
    def epochs(self) -> int | None:
        """The number of epochs, or None for another unit."""
        return int(self.number) if self.unit == "epochs" else None


def as_interval(name: str, value: Any, *units: str, place: str = "") -> Interval:
    """Parse "5min", "1.5h", "100steps" or "2 epochs". units: the accepted ones of "seconds", "steps" and "epochs", by
    default all. SettingError for anything else."""
    taken = units or tuple(EXAMPLES)
    if isinstance(value, Interval) and value.unit in taken:
        return value
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]+)\s*", value) if isinstance(value, str) else None
    if found:
        number, word = float(found[1]), found[2]
        unit = "seconds" if word in SECONDS else COUNTS.get(word)
        if unit in taken and number > 0 and (unit == "seconds" or number.is_integer()):
            return Interval(number * SECONDS.get(word, 1.0), unit)
    examples = ", ".join(EXAMPLES[unit] for unit in taken)
    raise SettingError(setting=name, seen=value, need=f"a text such as {examples}", place=place)
