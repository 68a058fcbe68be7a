"""Figures of a run: the records of curves.py, quality.py and importance.py as figures of a page, with their tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.terminal import plural
from .curves import EPOCHS, MOST, TRAINING, VALIDATION, Chart, Curve, extremes
from .importance import Importance
from .page import Figure, Table
from .quality import Calibration, Classes, Numbers, Roc, histogram

COLOURS = 6  # of series in the style sheet
_TABLE_ROWS = 120  # of a chart's table
_CLOUD = 2000  # points of a scatter plot
_CURVE = 400  # points of a ROC curve
_MATRIX = 25  # classes that a drawn matrix shows
_BARS = 40
_OWN_COLOUR = {TRAINING: 0, VALIDATION: 1, EPOCHS: 2}


def shown(value: float, digits: int = 5) -> str:
    """A number as text; "not finite" for nan."""
    return "not finite" if math.isnan(value) else f"{value:.{digits}g}"


# ---- curves ----------------------------------------------------------------------------------------------------------


def chart_figures(charts: Sequence[Sequence[tuple[str, Chart]]], most: int = MOST) -> list[Figure]:
    """A figure of each quantity, which one run or several have: see chart_figure. All have one range of steps."""
    ends: dict[str, list[float]] = {}
    for _, chart in (pair for pairs in charts for pair in pairs):
        for curve in chart.curves:
            ends.setdefault(chart.axis, []).extend((float(curve.step[0]), float(curve.step[-1])))
    ranges = {axis: (min(of), max(of)) for axis, of in ends.items()}
    return [chart_figure(pairs, ranges[pairs[0][1].axis], most) for pairs in charts]


def chart_figure(runs: Sequence[tuple[str, Chart]], ends: tuple[float, float], most: int = MOST) -> Figure:
    """One quantity over the steps: of one run, or of several in one drawing. runs: (name, chart) of each run.

    ends: the first and the last step of all charts of a page. most: points of a curve, which keeps its smallest and
    largest values.
    """
    first = runs[0][1]
    curves = [(name, curve) for name, chart in runs for curve in _compared(chart, len(runs) > 1)]
    thinned = [curve.thinned(most) for _, curve in curves]
    facts: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    has_sets = any(curve.name in _OWN_COLOUR for curve in first.curves)
    numbers = {name: k for k, (name, _) in enumerate(runs)}
    for i, ((run, _), curve) in enumerate(zip(curves, thinned, strict=True)):
        label = f"{run}: {curve.name}" if len(runs) > 1 else curve.name
        own = _OWN_COLOUR.get(curve.name, i if first.curves[0].name not in _OWN_COLOUR else i + 3)
        colour = numbers[run] if len(runs) > 1 else own
        has_band = curve.spread is not None
        is_dashed = len(runs) > 1 and has_sets and curve.name != TRAINING
        facts.append({"name": label, "colour": colour % COLOURS + 1, "dashed": is_dashed, "band": has_band})
        arrays[f"x{i}"], arrays[f"y{i}"] = _steps(curve.step), curve.value.astype(np.float32)
        if curve.spread is not None:
            arrays[f"s{i}"] = curve.spread.astype(np.float32)
    logged, kept = sum(c.logged for _, c in curves), sum(len(c.step) for c in thinned)
    counts = "" if kept == logged else f", {kept:,} of {logged:,} points drawn"
    first_step, last_step = ends if ends[0] < ends[1] else (ends[0] - 1, ends[0] + 1)
    unit = f" in {first.unit}" if first.unit else ""
    last = "; ".join(f"{fact['name']} ends at {shown(_last(c))}" for fact, c in zip(facts, thinned, strict=True))
    return Figure(
        "curves",
        f"{first.name}{unit}{counts}",
        f"{first.name} over {first.axis}s: {last}.",
        _curve_table([fact["name"] for fact in facts], [curve for _, curve in curves], first.axis),
        {"axis": first.axis, "unit": first.unit, "curves": facts, "range": [first_step, last_step]},
        arrays,
    )


def _compared(chart: Chart, is_compared: bool) -> list[Curve]:
    """The curves of a chart; together with those of other runs without means of epochs where there are values of steps,
    and one of each run for norms and memory."""
    names = [curve.name for curve in chart.curves]
    if is_compared and chart.name in ("gradient norm", "memory"):
        return list(chart.curves[-1:])
    return [c for c in chart.curves if not (is_compared and c.name == EPOCHS and TRAINING in names)]


def _steps(steps: np.ndarray) -> np.ndarray:
    is_whole = bool((steps == np.floor(steps)).all()) and float(steps.max(initial=0)) < 1 << 32
    return steps.astype(np.uint32) if is_whole and float(steps.min(initial=0)) >= 0 else steps


def _last(curve: Curve) -> float:
    known = curve.value[~np.isnan(curve.value)]
    return float(known[-1]) if len(known) else math.nan


def _curve_table(names: Sequence[str], curves: Sequence[Curve], axis: str) -> Table:
    """Some points of each curve, with their uncertainties."""
    most = max(_TABLE_ROWS // max(len(curves), 1), 4)
    rows, count = [], 0
    for name, curve in zip(names, curves, strict=True):
        count += len(curve.step)
        for k in np.unique(np.linspace(0, len(curve.step) - 1, min(most, len(curve.step))).astype(int)).tolist():
            spread = math.nan if curve.spread is None else float(curve.spread[k])
            rows.append((f"{curve.step[k]:.10g}", name, shown(float(curve.value[k]), 7), _spread(spread)))
    note = "" if len(rows) == count else f"{len(rows):,} of {count:,} points"
    return Table((axis, "curve", "value", "uncertainty"), rows, note)


def _spread(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


# ---- classes ---------------------------------------------------------------------------------------------------------


def class_figures(found: Classes) -> list[Figure]:
    """Confusion matrix, ROC curves and calibration of a classification."""
    return [_matrix(found), *([roc_figure(found.roc)] if found.roc else []), _calibration(found.calibration)]


def _matrix(found: Classes) -> Figure:
    names, counts = list(found.names), found.confusion
    rows = counts.sum()
    right = int(np.trace(counts))
    note = ""
    if len(names) > _MATRIX:
        chosen = np.sort(np.argsort(-(counts.sum(axis=0) + counts.sum(axis=1)), kind="stable")[:_MATRIX])
        names, counts = [names[k] for k in chosen], counts[np.ix_(chosen, chosen)]
        note = f"the {_MATRIX} classes with the most rows of {len(found.names):,}"
    table = Table(
        ("true class", *names), [(name, *row) for name, row in zip(names, counts.tolist(), strict=True)], note
    )
    title = "Confusion matrix: rows of each true class by predicted class" + f" ({note})" * bool(note)
    label = f"Confusion matrix of {len(names)} classes: {right:,} of {plural(int(rows), 'row')} are predicted right."
    arrays: dict[str, Any] = {"names": names, "value": counts.astype(np.uint32)}
    return Figure("matrix", title, label, table, {}, arrays)


def roc_figure(curves: Sequence[Roc], kind: str = "class", of: str = "") -> Figure:
    """ROC curves in one drawing, of several classes or runs (kind). of: for the title."""
    series, arrays, rows, names = [], {}, [], []
    for i, curve in enumerate(curves):
        kept = _thin_curve(curve)
        area = "not defined" if math.isnan(curve.area) else f"{curve.area:.4f}"
        names.append(f"{curve.name} (area {area})")
        series.append(
            {"name": names[-1], "colour": i % COLOURS + 1, "line": True, "named": True, "dashed": i >= COLOURS}
        )
        arrays[f"x{i}"] = curve.false_positive[kept].astype(np.float32)
        arrays[f"y{i}"] = curve.true_positive[kept].astype(np.float32)
        some = np.unique(np.linspace(0, len(kept) - 1, min(len(kept), max(_TABLE_ROWS // len(curves), 4))).astype(int))
        for k in kept[some].tolist():
            rates = f"{curve.false_positive[k]:.6g}", f"{curve.true_positive[k]:.6g}"
            rows.append((curve.name, _threshold(float(curve.threshold[k])), *rates, area))
    count = sum(len(curve.threshold) for curve in curves)
    note = "" if len(rows) == count else f"{len(rows):,} of {count:,} points"
    return Figure(
        "xy",
        f"ROC{of}: true positive rate against false positive rate, by threshold",
        f"ROC curves{of}: {'; '.join(names)}.",
        Table((kind, "threshold", "false positive rate", "true positive rate", "area"), rows, note),
        {
            "x": "false positive rate", "y": "true positive rate", "x_limits": [0, 1], "y_limits": [0, 1.01],
            "diagonal": True, "series": series,
        },
        arrays,
    )  # fmt: skip


def _threshold(value: float) -> str:
    """Empty for a point of a mean of curves."""
    return "" if math.isnan(value) else "above all" if math.isinf(value) else f"{value:.6g}"


def _thin_curve(curve: Roc) -> np.ndarray:
    """Indices of some points of a ROC curve, evenly along it."""
    length = np.cumsum(np.append(0.0, abs(np.diff(curve.false_positive)) + abs(np.diff(curve.true_positive))))
    if len(length) <= _CURVE:
        return np.arange(len(length))
    return np.unique(np.append(np.searchsorted(length, np.linspace(0, length[-1], _CURVE)), len(length) - 1))


def _calibration(found: Calibration) -> Figure:
    rows = [
        (f"{p:.4f}", f"{o:.4f}", f"{low:.4f}", f"{high:.4f}", n)
        for p, o, low, high, n in zip(
            found.predicted, found.observed, found.low, found.high, found.rows.tolist(), strict=True
        )
    ]
    series = [{"name": found.name, "colour": 1, "line": True}]
    return Figure(
        "xy",
        f"Calibration: {found.name}; expected calibration error {found.error:.4f}",
        f"Calibration in {plural(len(rows), 'part')}; observed and predicted differ by {found.error:.4f} on average.",
        Table(("predicted", "observed share", "from", "to", "rows"), rows, "from, to: Wilson interval of z = 1"),
        {
            "x": "predicted probability", "y": "observed share", "x_limits": [0, 1], "y_limits": [0, 1.01],
            "diagonal": True, "series": series,
        },
        {
            "x0": found.predicted.astype(np.float32), "y0": found.observed.astype(np.float32),
            "l0": found.low.astype(np.float32), "h0": found.high.astype(np.float32),
            "t0": [plural(n, "row") for n in found.rows.tolist()],
        },
    )  # fmt: skip


# ---- numbers ---------------------------------------------------------------------------------------------------------


def number_figures(found: Numbers, target: str) -> list[Figure]:
    """Predictions against targets, and residuals, of each target of a regression."""
    several = found.true.shape[1] > 1
    made = []
    for k in range(min(found.true.shape[1], 4)):
        name = f"{target} {k}" if several else target
        made += [_scatter(found.true[:, k], found.predicted[:, k], name), _residuals(found.residuals[:, k], name)]
    return made


def _scatter(true: np.ndarray, predicted: np.ndarray, name: str) -> Figure:
    kept = np.arange(len(true))
    if len(true) > _CLOUD:
        drawn = np.random.default_rng(0).choice(len(true), _CLOUD // 2, replace=False)
        kept = np.unique(np.append(extremes(true - predicted, _CLOUD // 2), drawn))
    some = kept[np.linspace(0, len(kept) - 1, min(len(kept), _TABLE_ROWS)).astype(int)]
    rows = [(f"{true[k]:.7g}", f"{predicted[k]:.7g}", f"{true[k] - predicted[k]:.4g}") for k in some.tolist()]
    counts = "" if len(kept) == len(true) else f", {len(kept):,} of {len(true):,} rows drawn"
    return Figure(
        "xy",
        f"Predicted against true {name}{counts}",
        f"Predicted against true {name} of {plural(len(true), 'row')}; the line is where both are equal.",
        Table(("true", "predicted", "residual"), rows, f"{len(rows):,} of {plural(len(true), 'row')}"),
        {
            "x": "true", "y": "predicted", "diagonal": True, "equal": True,
            "series": [{"name": name, "colour": 1, "line": False, "cloud": True}],
        },
        {"x0": true[kept].astype(np.float32), "y0": predicted[kept].astype(np.float32)},
    )  # fmt: skip


def _residuals(residuals: np.ndarray, name: str) -> Figure:
    return histogram_figure(residuals, f"Residuals of {name}: true minus predicted", f"residuals of {name}",
                            "true minus predicted")  # fmt: skip


def histogram_figure(
    values: np.ndarray, title: str, noun: str, x: str, unit: str = "rows", ends: tuple[float, float] | None = None
) -> Figure:
    """A histogram of finite values. noun: of the values, in the label; unit: noun of the counts; ends: of the first
    and the last bar, by default those of the values."""
    counts, edges = histogram(values, ends)
    pairs = zip(edges, edges[1:], counts.tolist(), strict=False)
    table = [(f"{low:.5g}", f"{high:.5g}", n) for low, high, n in pairs]
    mean, std = float(values.mean()), float(values.std())
    return Figure(
        "counts",
        title,
        f"Histogram of {len(values):,} {noun}: mean {mean:.4g}, standard deviation {std:.4g}.",
        Table(("from", "to", unit), table),
        {"x": x, "unit": unit},
        {"edges": edges.astype(np.float32), "rows": counts.astype(np.uint32)},
    )


# ---- importance ------------------------------------------------------------------------------------------------------


def importance_figure(found: Importance) -> Figure:
    """The columns by their permutation importance. The bars' lines are the larger one of both uncertainties."""
    order = found.order()
    drawn = order[:_BARS]
    error = np.fmax(found.spread, found.error)
    rows = [
        (found.names[k], f"{found.mean[k]:.6g}", f"{found.spread[k]:.3g}", _spread(float(found.error[k])))
        for k in order[:500].tolist()
    ]
    most = ", ".join(found.names[k] for k in order[:3])
    note = "" if len(rows) == len(found.names) else f"{len(rows):,} of {len(found.names):,} columns"
    counts = "" if len(drawn) == len(order) else f", the first {len(drawn)} of {len(order):,} columns"
    return Figure(
        "bars",
        f"Permutation importance: {found.score} lost when a column is shuffled{counts}",
        f"Permutation importance of {plural(len(found.names), 'column')}; the largest: {most}. {found.described()}",
        Table(("column", "importance", "deviation of the shuffles", "standard error of the rows"), rows, note),
        {"x": f"{found.score} lost"},
        {
            "names": [found.names[k] for k in drawn], "value": found.mean[drawn].astype(np.float32),
            "error": error[drawn].astype(np.float32),
        },
    )  # fmt: skip
