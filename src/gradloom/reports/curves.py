"""Curves of a training: loss, metrics, learning rate, gradient norm, seconds per step and memory over the steps.

They come from the lines of metrics.jsonl (runs/log_files.py), or from a History.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..train.history import row_of
from ..train.metric import UNCERTAINTY
from ..train.result import EpochResult
from ..train.watching import PREFIXES

MOST = 2000  # points of a curve on a page
TRAINING, EPOCHS, VALIDATION = "training", "training, mean of the epoch", "validation"
STEP, EPOCH = "optimiser step", "epoch"  # axes
_RATE = "lr"
_NO_MEASURES = {
    "schema", "kind", "step", "epoch", "time", "seconds", "rows", "tokens", "rows_per_second", "tokens_per_second",
    "memory_bytes", "memory_peak_bytes", "epoch_seconds", "not_finite", "grad_norm", "grad_norm_mean",
}  # fmt: skip
_OTHERS = (  # name, unit, name in lines -> name of its curve
    ("gradient norm", "", {"grad_norm": "last step", "grad_norm_mean": "mean since the previous point"}),
    ("memory", "MiB", {"memory_bytes": "resident", "memory_peak_bytes": "resident, at most so far"}),
)


@dataclass(frozen=True)
class Curve:
    """Points of one quantity over the steps.

    step: f64 [points], in ascending order. value: f64 [points]; nan: not finite. spread: the uncertainty of each value,
    f64 [points], nan where it is not known; None without any. logged: points before some were left out.
    """

    name: str
    step: np.ndarray
    value: np.ndarray
    spread: np.ndarray | None = None
    logged: int = 0

    def thinned(self, most: int = MOST) -> Curve:
        """At most this number of points: in each of equal parts the smallest and the largest value, and both ends."""
        if len(self.step) <= most:
            return self
        kept = extremes(self.value, most)
        spread = None if self.spread is None else self.spread[kept]
        return Curve(self.name, self.step[kept], self.value[kept], spread, self.logged)


@dataclass(frozen=True)
class Chart:
    """Curves of one quantity with common axes. axis: the quantity of Curve.step. logged: points of all curves."""

    name: str
    unit: str
    curves: tuple[Curve, ...]
    axis: str = STEP

    @property
    def logged(self) -> int:
        return sum(curve.logged for curve in self.curves)

    def thinned(self, most: int = MOST) -> Chart:
        """With at most this number of points of each curve."""
        return Chart(self.name, self.unit, tuple(curve.thinned(most) for curve in self.curves), self.axis)


def extremes(values: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most this number of values, ascending: the first, the last, and of each of equal parts the smallest
    and the largest."""
    parts = max((most - 2) // 2, 1)
    edges = np.linspace(0, len(values), parts + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges.tolist()):
        part = values[start:stop]
        if not np.isnan(part).all():
            kept |= {int(start + np.nanargmin(part)), int(start + np.nanargmax(part))}
        elif len(part):
            kept.add(int(start))
    return np.array(sorted(kept), np.int64)


def charts_of(lines: Sequence[Mapping[str, Any]], axis: str = STEP) -> list[Chart]:
    """The charts of the lines of a log: first the loss, then the other measures, then rates, norms, times, memory."""
    measures = dict.fromkeys(name for line in lines for name in _measures(line))
    made = [_chart_of_measure(lines, name, axis) for name in sorted(measures, key=lambda name: name != "loss")]
    made.append(_chart(_rates(lines), "learning rate", "", axis))
    timed = _of_training(lines, "rows_per_second")
    label = TRAINING if timed and timed[0].get("kind") == "train" else "mean of the epoch, with validation"
    made.append(_chart([_curve(label, *_seconds_per_step(timed))], "seconds per step", "s", axis))
    for name, unit, columns in _OTHERS:
        scale = 1 / (1 << 20) if unit == "MiB" else 1.0
        curves = [_curve_of(_of_training(lines, column), column, label, scale) for column, label in columns.items()]
        made.append(_chart(curves, name, unit, axis))
    return [chart for chart in made if chart.curves]


def _of_training(lines: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The lines of training with this number; those of epochs where there are none."""
    having = [line for line in lines if name in line]
    found = [line for line in having if line.get("kind") == "train"]
    return found or [line for line in having if line.get("kind") == "epoch"]


def _measures(line: Mapping[str, Any]) -> Iterator[str]:
    """The quantities that a line holds of training or of a validation set: loss, accuracy, ..."""
    return (_split(name)[1] for name in line if is_measure(name))


def is_measure(name: str) -> bool:
    """Whether a name in a line is that of a measured quantity, and of no uncertainty."""
    is_watched = name.startswith(PREFIXES)
    return not (name in _NO_MEASURES or is_watched or name.endswith(UNCERTAINTY) or is_rate(name))


def is_rate(name: str) -> bool:
    """Whether a name in a line is that of a learning rate."""
    return name == _RATE or name.endswith(f".{_RATE}")


def _split(name: str) -> tuple[str, str]:
    """(set, quantity) of a name in a line: "" for training, "validation" for val_NAME."""
    if name.startswith("val_"):
        return VALIDATION, name.removeprefix("val_")
    part, dot, quantity = name.rpartition(".")
    return (part, quantity) if dot else ("", name)


def _chart_of_measure(lines: Sequence[Mapping[str, Any]], quantity: str, axis: str) -> Chart:
    """The curves of one quantity: training, its means over epochs, each validation set."""
    trained = [line for line in lines if line.get("kind") == "train"]
    epochs = [line for line in lines if line.get("kind") == "epoch"]
    curves = [
        _curve_of(trained, quantity, TRAINING),
        _curve_of(epochs, quantity, EPOCHS if any(quantity in line for line in trained) else TRAINING),
    ]
    for name in dict.fromkeys(name for line in lines for name in line if is_measure(name)):
        part, of = _split(name)
        if part and of == quantity:
            curves.append(_curve_of(_evaluations(lines, name), name, part))
    return _chart(curves, quantity, "", axis)


def _evaluations(lines: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The lines with this number of a validation set: of evaluations, and of epochs whose end has none."""
    made = [line for line in lines if line.get("kind") == "evaluation" and name in line]
    steps = {_number(line.get("step")) for line in made}
    ends = [line for line in lines if line.get("kind") == "epoch" and name in line]
    more = [line for line in ends if _number(line.get("step")) not in steps]
    return sorted([*made, *more], key=lambda line: _number(line.get("step")))


def _curve_of(lines: Sequence[Mapping[str, Any]], name: str, label: str, scale: float = 1.0) -> Curve:
    """The curve of a number in these lines."""
    found = [line for line in lines if name in line]
    steps = np.array([_number(line.get("step")) for line in found])
    values = np.array([_number(line.get(name)) for line in found]) * scale
    spreads = np.array([_number(line.get(name + UNCERTAINTY)) for line in found]) * scale
    return _curve(label, steps, values, None if np.isnan(spreads).all() else spreads)


def _curve(name: str, steps: np.ndarray, values: np.ndarray, spreads: np.ndarray | None = None) -> Curve:
    known = np.isfinite(steps)
    return Curve(
        name,
        steps[known].astype(np.float64),
        np.where(np.isfinite(values), values, np.nan)[known].astype(np.float64),
        None if spreads is None else spreads[known],
        int(known.sum()),
    )


def _chart(curves: Sequence[Curve], name: str, unit: str, axis: str) -> Chart:
    return Chart(name, unit, tuple(curve for curve in curves if len(curve.step) and _has_numbers(curve)), axis)


def _has_numbers(curve: Curve) -> bool:
    return not np.isnan(curve.value).all()


def _number(value: Any) -> float:
    """A finite number of a file with any content; else nan."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else math.nan


def _rates(lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Learning rates: "lr", and those of parameter groups."""
    used = _of_training(lines, _RATE)
    names = dict.fromkeys(name for line in used for name in line if is_rate(name))
    label = "all parameters" if len(names) == 1 else "other parameters"
    return [_curve_of(used, name, label if name == _RATE else name.removesuffix(f".{_RATE}")) for name in names]


def _seconds_per_step(lines: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """(steps, seconds of a step): rows of a step since the previous line, by rows per second."""
    found = []
    before = (0.0, 0.0)
    for line in lines:
        step, rows, speed = (_number(line.get(name)) for name in ("step", "rows", "rows_per_second"))
        if step > before[0] and rows > before[1] and speed > 0:
            found.append((step, (rows - before[1]) / (step - before[0]) / speed))
        before = (step, rows)
    steps, seconds = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, np.float64), np.array(seconds, np.float64)


# ---- of a History ----------------------------------------------------------------------------------------------------


def lines_of(history: Sequence[EpochResult]) -> tuple[list[dict[str, Any]], str]:
    """(lines as in a log, their axis) of a training in memory: of each optimiser step, evaluation and epoch. Where the
    steps are not known, the lines count epochs."""
    lines: list[dict[str, Any]] = []
    has_steps = bool(history) and all(len(epoch.train.grad_norms) or epoch.ended is not None for epoch in history)
    step = rows = 0
    for epoch in history:
        norms = epoch.train.grad_norms
        first, step = step, _last_step(epoch, step) if has_steps else epoch.epoch
        rows += epoch.train.ndata
        state = epoch.train.state()
        if has_steps and len(norms) == len(state["losses"]) == step - first:
            lines += _steps(state, norms, first, epoch)
        for evaluation in epoch.evaluations:
            at = evaluation.step if has_steps else epoch.epoch
            lines.append({"kind": "evaluation", "step": at, "epoch": epoch.epoch, **evaluation.numbers()})
        row = {name: value for name, value in row_of(epoch).items() if name != "seconds"}
        speed = {"rows": rows, "rows_per_second": epoch.train.ndata / max(epoch.seconds, 1e-9)} if has_steps else {}
        lines.append({"kind": "epoch", "step": step, **row, **speed})
    return lines, STEP if has_steps else EPOCH


def _last_step(epoch: EpochResult, before: int) -> int:
    ended = epoch.ended
    return ended.step if ended is not None else before + len(epoch.train.grad_norms)


def _steps(state: Mapping[str, Any], norms: np.ndarray, first: int, epoch: EpochResult) -> Iterator[dict[str, Any]]:
    """A line of each optimiser step of an epoch: its loss and the norm of its gradient."""
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = state["losses"] if state["is_total"] else state["losses"] / state["weights"]
    for i, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True)):
        yield {"kind": "train", "step": first + i + 1, "epoch": epoch.epoch, "loss": loss, "grad_norm": norm}
