"""regress: a number for each text, learned by its squared error, as in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ... import ops
from ...base.errors import DataError
from ...graph.value import Value
from ...tables.scores import regression_scores
from ...train.metrics import Metric
from ..forms import Form
from ..head import Head
from ..objective import Forward
from ..rows import Rows
from ..scored import HeadObjective, Scored, head_in


@dataclass(frozen=True)
class Regress(HeadObjective):
    """(s - (y - mean) / deviation)^2 with s the score, and mean and standard deviation of the training numbers y, which
    belong to the head: predictions and metrics have the units of the data."""

    form: ClassVar[Form] = Form("labelled", last=True, labels="numbers")
    head_kind: ClassVar[str] = "regress"

    def head_of(self, rows: Rows | None, given: Head | None) -> Head:
        head = super().head_of(rows, given)
        if rows is None or given is not None:
            return head
        assert rows.values is not None
        train = rows.values[rows.train].reshape(-1, rows.values.shape[2])
        numbers = train[train[:, 0] == 1, 1].astype(np.float64)
        deviation = float(numbers.std())
        if not np.float32(deviation) > 0:
            raise DataError(f"data: the label of all training samples is {numbers[0]:g}; need numbers that differ")
        return Head("regress", mean=float(numbers.mean()), deviation=deviation)

    def loss_of(self, scored: Scored) -> Value:
        head = scored.head
        return ops.sqr(scored.scores[:, :, 0, 0] - (scored.numbers[:, :, 0] - head.mean) * (1 / head.deviation))

    def metrics_of(self, scored: Scored) -> Mapping[str, Value]:
        head = scored.head
        return {"mae": ops.abs(scored.scores[:, :, 0, 0] * head.deviation + head.mean - scored.numbers[:, :, 0])}

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        head = head_in(forward)

        def of(name: str) -> Metric:
            def measure(outputs: np.ndarray, labels: np.ndarray) -> float:
                there = labels[:, :, 0] == 1
                predicted = outputs[:, :, 0, 0][there].astype(np.float64) * head.deviation + head.mean
                return regression_scores(predicted, labels[:, :, 1][there], uncertainties=False)[name]

            return Metric(measure, whole=True, uncertainty="bootstrap")

        return super().measures(forward, train) | {name: of(name) for name in ("rmse", "r2")}


OBJECTIVE = Regress
