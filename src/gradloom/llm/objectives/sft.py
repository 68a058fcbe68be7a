"""sft: the next token of the texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ... import ops
from ...base.dtypes import i32
from ...data.dataset import IGNORED
from ...graph.value import Value
from ...train.metric import Metric
from ...train.outputs import Outputs
from ..gpu_layers import at
from ..objective import Forward, Objective
from ..rows import Rows


@dataclass(frozen=True)
class Sft(Objective):
    """The mean cross entropy of all tokens that count in a batch.

    Of rows with weights it is the weighted mean: x i32 [rows, 3, L] has the ids to predict in its third line, labels
    f32 [rows, L] are the weights, and outputs f32 [rows, L] the log-probabilities of these ids.
    """

    has_ids: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        if rows.weights is None:
            return np.stack([rows.tokens, rows.positions], 1), rows.labels
        weights = np.where(rows.labels == IGNORED, 0, rows.weights).astype(np.float32)
        return np.stack([rows.tokens, rows.positions, rows.labels], 1), weights

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (3 if numbers else 2, context), (context,)

    def outputs(self, forward: Forward, x: Value) -> Outputs:
        hidden = forward.hidden(x)
        if x.shape[1] == 2:
            return hidden
        return forward.logprobs(hidden, x[:, 2]).reshape(x.shape[0], x.shape[2])

    def pair(
        self, forward: Forward, outputs: Outputs, labels: Value, totals: tuple[Value, ...] = ()
    ) -> tuple[Value, Value]:
        assert isinstance(outputs, Value)
        if labels.dtype == i32:
            return forward.loss_pair(outputs, labels)
        with at(forward.layers and forward.layers.end):
            losses = ops.where(ops.equal(labels, 0.0), 0.0, -outputs)
            return ops.sum(losses * labels), ops.sum(labels)

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        return {}


OBJECTIVE = Sft
