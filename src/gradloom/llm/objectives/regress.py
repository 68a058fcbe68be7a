"""regress: a number for each text, learned by its squared error, as in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ... import ops
from ...base.errors import DataError
from ...graph.value import Value
from ...tables.scores import regression_scores
from ...train.metric import Metric
from ..forms import Form
from ..head import Head
from ..headed import Headed
from ..model import Adapter
from ..objective import Forward
from ..rows import Rows
from ..scored import HeadObjective, Scored, head_in, with_own


@dataclass(frozen=True)
class Regress(HeadObjective):
    """(s - (y - mean) / deviation)^2 with s the score, and mean and standard deviation of the training numbers y, which
    belong to the head: predictions and metrics have the units of the data. Numbers are standardised in f64, once."""

    form: ClassVar[Form] = Form("labelled", last=True, labels="numbers")
    head_kind: ClassVar[str] = "regress"

    def head_of(self, rows: Rows | None, given: Head | None) -> Head:
        head = super().head_of(rows, given)
        if rows is None or given is not None:
            return head
        assert rows.values is not None
        train = rows.values[rows.train].reshape(-1, rows.values.shape[2])
        numbers = train[train[:, 0] == 1, 1].astype(np.float64)
        if (numbers == numbers[0]).all():
            raise DataError(f"data: the label of all training samples is {numbers[0]:g}; need numbers that differ")
        halves = numbers / 2 - numbers[0] / 2  # exact where numbers are close, and finite where they are not
        unit = float(abs(halves).max())  # squares of other numbers than about 1 could be 0, or not finite
        mean = 2 * (numbers[0] / 2 + float((halves / unit).mean()) * unit)
        deviation = 2 * (float((halves / unit).std()) * unit)
        if not deviation > 0:
            text = (
                f"data: the labels of all training samples are about {numbers[0]:g}, which float64 cannot standardise"
            )
            raise DataError(f"{text}; need numbers that differ more")
        return Head("regress", mean=float(mean), deviation=float(deviation))

    def prepared(self, rows: Rows, adapter: Adapter) -> Rows:
        """With f32 numbers (y - mean) / deviation, computed in f64."""
        assert rows.values is not None and isinstance(adapter, Headed) and adapter.head is not None
        head, there = adapter.head, rows.values[:, :, 0] == 1
        numbers = np.where(there, rows.values[:, :, 1], head.mean).astype(np.float64)
        with np.errstate(over="ignore"):
            standard = ((numbers / 2 - head.mean / 2) / (head.deviation / 2)).astype(np.float32)
        if not np.isfinite(standard).all():
            row, sample = np.argwhere(~np.isfinite(standard))[0]
            seen = f"the label {numbers[row, sample]:g} is more than {np.finfo(np.float32).max:.0e} standard deviations"
            raise DataError(f"data: {seen} ({head.deviation:g}) from the mean of the training; need labels like those")
        return replace(rows, values=np.stack([there, standard], 2).astype(np.float32))

    def loss_of(self, scored: Scored) -> Value:
        return ops.sqr(scored.scores[:, :, 0, 0] - scored.numbers[:, :, 0])

    def metrics_of(self, scored: Scored) -> Mapping[str, Value]:
        return {"mae": ops.abs(scored.scores[:, :, 0, 0] - scored.numbers[:, :, 0])}

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        deviation = head_in(forward).deviation

        def of(name: str, scale: float) -> Metric:
            def measure(outputs: np.ndarray, labels: np.ndarray) -> float:
                there = labels[:, :, 0] == 1
                predicted = outputs[:, :, 0, 0][there].astype(np.float64)
                return regression_scores(predicted, labels[:, :, 1][there], uncertainties=False)[name]

            made = Metric(measure, whole=True, uncertainty="bootstrap")
            made.scale = scale
            return made

        found = super().measures(forward, train)
        found["mae"].scale = deviation
        found = with_own(found, {"mae": of("mae", deviation)})
        return found | {"rmse": of("rmse", deviation), "r2": of("r2", 1.0)}


OBJECTIVE = Regress
