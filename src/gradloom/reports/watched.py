"""Watched values of a run: norms over the steps as curves or, of many, as a heat map; histograms as heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..runs.log_files import HISTOGRAM
from ..train.watching import PREFIX
from .curves import STEP, Chart, Curve
from .figures import chart_figure, shown
from .page import Figure, Section, Table

_GRADIENT = "grad:"
_CURVES = 6  # of a chart; more norms are a heat map
_COLUMNS = 100  # watched steps of a heat map
_NAMES = 200  # rows of a heat map of norms
_HISTOGRAMS = 12
_BINS = 256  # of a histogram in a file
_ROWS = 100  # of a table


def watched_section(lines: Sequence[Mapping[str, Any]], of: str = "") -> list[Section]:
    """The section of the watched values in the lines of a log, which may hold any values; none without any."""
    watched = [line for line in lines if line.get("kind") == "watch" and _number(line.get("step")) >= 0]
    names = dict.fromkeys(name for line in watched for name in line if isinstance(name, str))
    norms = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    figures = _norms("norm of watched values", [n for n in norms if not n.startswith(_GRADIENT)], watched)
    figures += _norms("norm of watched gradients", [n for n in norms if n.startswith(_GRADIENT)], watched)
    histograms = [name for name in names if name.startswith(HISTOGRAM)]
    figures += [figure for name in histograms[:_HISTOGRAMS] for figure in _histogram(name, watched)]
    if not figures:
        return []
    text = ["Of the last micro-batch of each watched step, with the weights before the step."]
    if len(histograms) > _HISTOGRAMS:
        text.append(f"The first {_HISTOGRAMS} of {len(histograms):,} histograms.")
    return [Section(f"Watched values{of}", text, figures=figures)]


def _number(value: Any) -> float:
    """A finite number of a file with any content; else nan."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan


def _norms(title: str, names: Sequence[str], watched: Sequence[Mapping[str, Any]]) -> list[Figure]:
    steps = np.array([_number(line["step"]) for line in watched])
    values = np.array([[_number(line.get(PREFIX + name)) for line in watched] for name in names], np.float64)
    if not names or np.isnan(values).all():
        return []
    if len(names) > _CURVES:
        return [_heat_of_norms(title, names, steps, values)]
    has = [~np.isnan(row) for row in values]
    curves = [
        Curve(name, steps[kept], row[kept], logged=int(kept.sum()))
        for name, row, kept in zip(names, values, has, strict=True)
        if kept.any()
    ]
    ends = float(steps.min()), float(steps.max())
    return [chart_figure([("", Chart(title, "", tuple(curves)))], ends)]


def _heat_of_norms(title: str, names: Sequence[str], steps: np.ndarray, values: np.ndarray) -> Figure:
    """A row for each name, a column for each watched step; the shade is the logarithm of the norm."""
    kept, rows = _kept(len(steps)), values[:_NAMES]
    positive = rows[rows > 0]
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (1.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(rows > 0, np.log(rows / low) / (math.log(high / low) or 1.0), 0.0)[:, kept].T
    shade = np.where(np.isnan(rows[:, kept].T), 255, np.round(np.clip(share, 0, 1) * 254))
    table = [(name, shown(row[0]), shown(np.nanmax([*row, -math.inf])), shown(row[-1]))
             for name, row in zip(names[:_ROWS], values, strict=False)]  # fmt: skip
    counts = f", {len(rows)} of {len(names):,} drawn" if len(rows) < len(names) else ""
    return Figure(
        "heat", f"{title}{counts}",
        f"{title}: {len(names)} names at {len(steps)} watched steps, {shown(low)} to {shown(high)}; dark is large.",
        Table(("name", "first", "largest", "last"), table, f"{len(table)} of {len(names):,}"),
        {"axis": STEP, "names": list(names[:_NAMES]), "unit": "norm", "least": low, "most": high},
        {
            "step": steps[kept], "shade": shade.astype(np.uint8).reshape(-1),
            "value": rows[:, kept].T.astype(np.float32).reshape(-1),
        },
    )  # fmt: skip


def _histogram(name: str, watched: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """A column for each watched step, of its bins; the shade is the count of a bin."""
    found = [(int(line["step"]), one) for line in watched if (one := _checked(line.get(name))) is not None]
    if not found:
        return []
    bins = max(len(one[2]) for _, one in found)
    found = [pair for pair in found if len(pair[1][2]) == bins]
    kept = [found[k] for k in _kept(len(found))]
    counts = np.array([one[2] for _, one in kept], np.float64)
    share = counts / np.maximum(counts.max(axis=1, keepdims=True), 1)
    shade = np.round(np.sqrt(share) * 254).astype(np.uint8)
    title = name.removeprefix(HISTOGRAM)
    lows, highs = ([one[k] for _, one in kept] for k in (0, 1))
    rows = [(step, shown(low), shown(high), int(sum(counts)), odd) for step, (low, high, counts, odd) in kept[:_ROWS]]
    few = f", {len(kept)} of {len(found):,} steps drawn" if len(kept) < len(found) else ""
    return [
        Figure(
            "heat", f"histogram of {title}{few}",
            f"Histograms of {title} at {len(found)} watched steps, from {shown(min(lows))} to {shown(max(highs))}.",
            Table((STEP, "least", "largest", "finite numbers", "not finite"), rows),
            {"axis": STEP, "names": None, "unit": "numbers", "bins": bins},
            {
                "step": np.array([step for step, _ in kept], np.float64), "shade": shade.reshape(-1),
                "low": np.array(lows, np.float64), "high": np.array(highs, np.float64),
                "value": counts.astype(np.uint32).reshape(-1),
            },
        )
    ]  # fmt: skip


def _checked(value: Any) -> tuple[float, float, list[int], int] | None:
    """(low, high, counts, not finite) of a histogram of a log; None of any other value."""
    if not isinstance(value, Mapping):
        return None
    low, high, counts = _number(value.get("low")), _number(value.get("high")), value.get("counts")
    if not low <= high or not isinstance(counts, list) or not 0 < len(counts) <= _BINS:
        return None
    if not all(type(count) is int and 0 <= count < 1 << 32 for count in counts):
        return None
    odd = value.get("not_finite")
    return low, high, counts, odd if type(odd) is int else 0


def _kept(count: int) -> np.ndarray:
    """Indices of at most _COLUMNS of these, evenly, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).round().astype(np.int64))
