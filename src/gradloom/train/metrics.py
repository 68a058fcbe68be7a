"""The nodes that compute metrics, and their sums until they are numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, SettingError, ShapeError
from ..base.schema import shown_name
from ..base.structures import Structure, leaves, mapped, named, of_named
from ..data.dataset import IGNORED
from ..graph.value import Value, describe
from .metric import UNCERTAINTY, Metric
from .outputs import Outputs, values_of


@dataclass(frozen=True)
class MetricLayout:
    """What a program gives for metrics, in order: values [rows], pairs of scalars, then the model's outputs.

    losses: before these, of each loss of several its name and the number of its pairs (sum, weight); likewise of
    accuracies (correct, counted). factors: by name, of losses of another weight than 1 in their sum; None: an accuracy
    """

    per_row: tuple[str, ...]
    pairs: tuple[str, ...]
    outputs: Outputs | None
    size: int
    losses: tuple[tuple[str, int], ...] = ()
    factors: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def loss_size(self) -> int:
        """How many values the losses give."""
        return sum(2 * pairs for _, pairs in self.losses)


EMPTY = MetricLayout((), (), None, 0)


@dataclass(frozen=True)
class Measures:
    """Measurements of a Result in addition to the loss: metrics, and whether it keeps the model's outputs."""

    metrics: tuple[tuple[str, Metric], ...] = ()
    outputs: bool = False

    def __bool__(self) -> bool:
        return bool(self.metrics) or self.outputs

    @property
    def of_training(self) -> tuple[tuple[str, Metric], ...]:
        """The metrics that are measured in training, too."""
        return tuple((name, one.of_training) for name, one in self.metrics if one.of_training is not None)

    def nodes(
        self, rows: int, outputs: Outputs, labels: Structure | None, weights: Value | None
    ) -> tuple[list[Value], MetricLayout]:
        """The values that a program of `rows` rows computes for it."""
        per_row: dict[str, Value] = {}
        pairs: dict[str, tuple[Value, Value]] = {}
        for name, metric in self.metrics:
            if metric.whole:
                continue
            made = metric(outputs, labels, weights)
            if isinstance(made, Value) and made.shape == (rows,):
                per_row[name] = made
            elif isinstance(made, tuple) and len(made) == 2 and all(isinstance(v, Value) and not v.shape for v in made):
                if weights is not None and not metric.takes_weights:
                    raise DataError(
                        f"metric {name}: the data have row weights, and the function gave a pair (sum, weight) without "
                        "them; need a function (outputs, labels, weights), or one that gives one value per row"
                    )
                pairs[name] = made
            else:
                seen = describe(made) if isinstance(made, Value) else what_is(made)
                raise ShapeError(f"metric {name}: the function gave {seen}; need f32[{rows}] or a pair (sum, weight)")
        values = [*per_row.values(), *(value for pair in pairs.values() for value in pair)]
        kept = None
        if self.outputs or any(metric.whole for _, metric in self.metrics):
            kept = outputs
            for value in values_of(outputs):
                if value.shape[:1] != (rows,):
                    seen = f"an output {describe(value)} of a batch of {rows} rows"
                    raise ShapeError(f"outputs: {seen}; need the rows along the first axis; node {value.node.label}")
                values.append(value)
        return values, MetricLayout(tuple(per_row), tuple(pairs), kept, len(values))


NOTHING = Measures()


class Measured:
    """Measurements for the metrics of one Result: arrays until they are read, numbers afterwards."""

    def __init__(self, measures: Measures) -> None:
        self.measures = measures
        self._kept: dict[str, list[np.ndarray]] = {}
        self._structure: Outputs | None = None
        self._numbers: dict[str, float] | None = None

    def add(
        self, layout: MetricLayout, arrays: Sequence[np.ndarray], rows: int, labels: Structure | None,
        weights: np.ndarray | None,
    ) -> None:  # fmt: skip
        """What a program gave for `rows` rows in equal micro-batches: arrays [micro-batches, ...], see MetricLayout."""
        self._numbers, self._structure = None, layout.outputs
        left = iter(arrays)
        for name in layout.per_row:
            self._keep(f"row.{name}", next(left).reshape(rows))
        for name in layout.pairs:
            self._keep(f"sum.{name}", next(left).astype(np.float64).ravel())
            self._keep(f"weight.{name}", next(left).astype(np.float64).ravel())
        for i, array in enumerate(left):
            self._keep(f"output.{i}", array.reshape(rows, *array.shape[2:]))
        is_whole = any(metric.whole for _, metric in self.measures.metrics)
        if layout.per_row or is_whole:
            self._keep("counts", row_weights(rows, labels, weights))
        if is_whole:
            for name, array in named("labels", labels).items():
                self._keep(name, array)
            if weights is not None:
                self._keep("weights", weights)

    def _keep(self, name: str, array: np.ndarray) -> None:
        self._kept.setdefault(name, []).append(array)

    def _all(self, name: str) -> np.ndarray:
        parts = self._kept[name]
        if len(parts) > 1:
            self._kept[name] = parts = [np.concatenate(parts)]
        return parts[0]

    def take_outputs(self) -> Outputs:
        """The outputs since the last call, in the model's structure; None if there are none. They are freed."""
        names = [name for name in self._kept if name.startswith("output.")]
        arrays = iter([self._all(name) for name in names])
        for name in names:
            del self._kept[name]
        if not names:
            return None
        return mapped(lambda _: next(arrays), self._structure)

    def mark(self) -> dict[str, int]:
        """How much it holds, for `cut`."""
        return {name: sum(map(len, parts)) for name, parts in self._kept.items()}

    def cut(self, mark: Mapping[str, int]) -> None:
        """Drop measurements since the mark."""
        self._kept = {name: [self._all(name)[: mark[name]]] for name in self._kept if name in mark}
        self._numbers = None

    def state(self) -> dict[str, Any]:
        """Contents as plain values and arrays, for load_state."""
        if self._numbers is not None:
            return {"numbers": self._numbers}
        return {name: self._all(name) for name in self._kept}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`; DataError for a metric that is not measured here."""
        names = {name for name, metric in self.measures.metrics if not metric.whole}
        for name in values:
            kind, _, metric = name.partition(".")
            if kind in ("row", "sum", "weight") and metric and metric not in names:
                raise DataError(f"load: metric {shown_name(metric)} is not measured here; need the same metrics")
        self._numbers = values.get("numbers")
        self._kept = {name: [array] for name, array in values.items() if name != "numbers"}

    def settle(self) -> None:
        """Convert the measurements to numbers, and drop the arrays."""
        self._numbers, self._kept = self.numbers(), {}

    def numbers(self) -> dict[str, float]:
        """Each metric by name, followed by its uncertainty as far as it is known."""
        if self._numbers is None:
            self._numbers = {}
            for name, metric in self.measures.metrics:
                value, spread = metric.reported(*self._number(name, metric))
                self._numbers[name] = value
                if not math.isnan(spread):
                    self._numbers[name + UNCERTAINTY] = spread
        return self._numbers

    def _number(self, name: str, metric: Metric) -> tuple[float, float]:
        """(value, uncertainty) of the mean or number that is measured; nan if unknown."""
        if metric.whole:
            return self._whole(name, metric) if "output.0" in self._kept else (math.nan, math.nan)
        if f"row.{name}" in self._kept:
            values, weights = self._all(f"row.{name}").astype(np.float64), self._all("counts")
        elif f"sum.{name}" in self._kept:
            sums, weights = self._all(f"sum.{name}"), self._all(f"weight.{name}")
            values = np.divide(sums, weights, out=np.zeros_like(sums), where=weights != 0)
        else:
            return math.nan, math.nan
        values, weights = values[weights > 0], weights[weights > 0]
        n, total = len(values), float(weights.sum())
        if not n:
            return math.nan, math.nan
        mean = float((weights * values).sum()) / total
        if n < 2:
            return mean, math.nan
        if metric.uncertainty == "formula":
            return mean, standard_error(values, weights)
        rng = np.random.default_rng(metric.seed)
        picks = (rng.integers(0, n, n) for _ in range(metric.samples))
        means = [float((weights[at] * values[at]).sum() / weights[at].sum()) for at in picks]
        return mean, float(np.std(means, ddof=1))

    def _whole(self, name: str, metric: Metric) -> tuple[float, float]:
        count = self._all("counts") > 0
        names = [kept for kept in self._kept if kept.startswith("output.")]
        outputs = [self._all(kept)[count] for kept in names]
        truth = {kept: self._all(kept)[count] for kept in self._kept if kept.startswith(("labels", "weights"))}
        labels, weights = of_named("labels", truth), truth.get("weights")
        n = int(count.sum())
        if not n:
            return math.nan, math.nan

        def measured(at: Any) -> Any:
            arrays = iter([array[at] for array in outputs])
            made = metric(
                mapped(lambda _: next(arrays), self._structure),
                None if labels is None else mapped(lambda array: array[at], labels),
                None if weights is None else weights[at],
            )
            if isinstance(made, tuple) and len(made) == 2 and all(np.shape(part) == (n,) for part in made):
                return made
            if np.ndim(made) or np.iscomplexobj(made) or not isinstance(made, (int, float, np.number, np.ndarray)):
                raise SettingError(f"metric {name}: the function gave {what_is(made)}; need a number")
            try:
                return float(made)
            except OverflowError:
                text = (
                    f"metric {name}: the function gave a whole number beyond the range of float64; need a smaller one"
                )
                raise SettingError(text) from None

        found = measured(slice(None))
        value = _ratio(*found) if isinstance(found, tuple) else found
        if metric.uncertainty == "formula" and isinstance(found, tuple):
            sums, counts = (part[found[1] > 0] for part in found)
            return value, standard_error(sums / counts, counts)
        if metric.uncertainty != "bootstrap" or n < 2:
            return value, math.nan
        rng = np.random.default_rng(metric.seed)
        picks = (rng.integers(0, n, n) for _ in range(metric.samples))
        if isinstance(found, tuple):
            sums, counts = found
            drawn = [_ratio(sums[at], counts[at]) for at in picks]
        else:
            drawn = [measured(at) for at in picks]
        return value, float(np.std(drawn, ddof=1))


def _ratio(sums: np.ndarray, counts: np.ndarray) -> float:
    total = float(counts.sum())
    return float(sums.sum()) / total if total else math.nan


def row_weights(rows: int, labels: Structure | None, weights: np.ndarray | None) -> np.ndarray:
    """How much each row counts, f64 [rows]: its weight; 0 where all labels are ignored."""
    counts = np.ones(rows) if weights is None else weights.astype(np.float64)
    every = leaves(labels)
    if every and all(array.dtype.kind == "i" for array in every):
        counts[np.logical_and.reduce([(array == IGNORED).reshape(rows, -1).all(axis=1) for array in every])] = 0
    return counts


def standard_error(values: np.ndarray, weights: np.ndarray) -> float:
    """That of the weighted mean m of independent values, f64 [n], with weights above 0, f64 [n]: nan for n < 2.

    sqrt(sum w^2 (v - m)^2 / ((sum w)^2 - sum w^2)), which is sqrt(sum w^2 (v - m)^2) / sum w times
    sqrt(k / (k - 1)) with Kish's effective count k = (sum w)^2 / sum w^2. For equal weights it is sqrt(var / (n - 1)),
    ggml's formula, to the bit.
    """
    if len(values) < 2:
        return math.nan
    share = weights / weights.max()  # 1 for equal weights, exactly
    count = float(share.sum()) ** 2 / float((share**2).sum())
    mean = float((values * weights).sum()) / float(weights.sum())
    squares = weights * share
    variance = float(((values - mean) ** 2 * squares).sum()) / float(squares.sum())
    return math.sqrt(variance / (count - 1)) if count > 1 else math.nan
