"""Time of the instructions of a step: sections of profiles (run/profile.py), with rooflines.

A roofline (Williams, Waterman, Patterson, CACM 52, 2009) shows operations by their arithmetic intensity, FLOPs per
byte, and their speed. The roofs are the measured speeds of the machine: no operation is faster than the rate of a large
matrix product, or than its bytes at the rate of cache or memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..run.profile import Profile, ProfileRow
from .figures import shown
from .page import Figure, Section, Table, write_page

TITLE = "Time of a step"
MOST = 200  # rows of a table, and points of a figure
LEAST = 1e-3  # FLOP per byte of a point
_GROUPS = {"op": "op", "line": "line of code", "module": "module"}
TEXT = (
    "Real steps are timed on this machine: other work on it makes them slower. FLOPs and bytes follow from the "
    "shapes. The limit is the share of the machine's measured speed: of arithmetic, or of bytes from cache or memory, "
    "whichever takes longer."
)


def time_sections(profiles: Mapping[str, Profile], of: str = "") -> list[Section]:
    """A section for each profile, by its name."""
    return [
        Section(
            f"Time{of}: {name}" if len(profiles) > 1 else f"Time{of}",
            [f"{name}, on {one.where}. {TEXT}"], _numbers(one),
            figures=[roofline(one, what) for what in ("op", "line") if what == "op" or len(one.by(what)) > 1],
            tables=[_by_module(one)] if len(one.by("module")) > 1 else [],
        )
        for name, one in profiles.items()
    ]  # fmt: skip


def save_profiles(path: str | os.PathLike[str], profiles: Mapping[str, Profile]) -> None:
    """Write the page of profiles, by name."""
    write_page(path, TITLE, time_sections(profiles), ", ".join(profiles))


def _numbers(one: Profile) -> list[tuple[str, str]]:
    whole = one.step_seconds
    found = [
        ("a step, the median", f"{shown(whole * 1e3, 4)} ms"),
        ("steps timed", f"{one.steps:,}"),
        ("in instructions", f"{one.seconds / whole:.0%}" if whole else ""),
        ("instructions", f"{len(one.rows):,}"),
    ]
    if one.rates is not None:
        found.append(("f32 products here", f"{one.rates.product / 1e9:.4g} GFLOP/s"))
        found.append(("memory here", f"{one.rates.memory / 1e9:.4g} GB/s"))
        found.append(("cache here", f"{one.rates.cached / 1e9:.4g} GB/s"))
    return found


def roofline(one: Profile, what: str) -> Figure:
    """The instructions of each op, or line, by intensity and speed; the area of a point is its share of the time."""
    rows = one.by(what)[:MOST]
    drawn = [row for row in rows if row.flops > LEAST * row.bytes > 0 and row.seconds > 0]
    total = one.seconds or 1.0
    roofs = [] if one.rates is None else [
        {"name": name, "rate": rate / 1e9, "per_byte": per_byte}
        for name, rate, per_byte in (
            ("f32 products", one.rates.product, False), ("cache", one.rates.cached, True),
            ("memory", one.rates.memory, True),
        )
    ]  # fmt: skip
    first = ", ".join(f"{row.name or 'unknown'} {row.seconds / total:.0%}" for row in rows[:3])
    left = len(rows) - len(drawn)
    more = f" {left} with almost no arithmetic are in the table alone." if left else ""
    return Figure(
        "roofline",
        f"Speed and intensity by {_GROUPS[what]}",
        f"{len(drawn)} points by {_GROUPS[what]}: FLOP per byte and GFLOP/s. Most of the time: {first}.{more}",
        _table(one, what, rows),
        {"roofs": roofs, "what": _GROUPS[what]},
        {
            "names": [row.name or "unknown" for row in drawn],
            "intensity": np.array([row.flops / row.bytes for row in drawn], np.float64),
            "speed": np.array([row.gflops for row in drawn], np.float64),
            "moved": np.array([row.gbs for row in drawn], np.float32),
            "share": np.array([row.seconds / total for row in drawn], np.float32),
            "limit": np.array([np.nan if row.limit_share is None else row.limit_share for row in drawn], np.float32),
        },
    )  # fmt: skip


def _table(one: Profile, what: str, rows: Sequence[ProfileRow]) -> Table:
    count = len(one.by(what))
    head = (_GROUPS[what], "instructions", "ms", "% of the time", "FLOP/byte", "GFLOP/s", "GB/s", "% of the limit")
    return Table(head, [_cells(one, row) for row in rows], "" if count == len(rows) else f"{len(rows)} of {count:,}")


def _cells(one: Profile, row: ProfileRow) -> tuple[Any, ...]:
    intensity = f"{row.flops / row.bytes:.3g}" if row.bytes else ""
    limit = "" if row.limit_share is None else f"{100 * row.limit_share:.0f}"
    part = f"{100 * row.seconds / one.seconds:.1f}" if one.seconds else ""
    speeds = f"{row.gflops:.4g}", f"{row.gbs:.4g}"
    return (row.name or "unknown", row.count, f"{row.seconds * 1e3:.4f}", part, intensity, *speeds, limit)


def _by_module(one: Profile) -> tuple[str, Table]:
    return "Time by module", _table(one, "module", one.by("module")[:MOST])
