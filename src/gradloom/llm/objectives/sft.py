"""sft: the next token of the texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...graph.value import Value
from ...train.metrics import Metric
from ...train.outputs import Outputs
from ..objective import Forward, Objective
from ..rows import Rows


@dataclass(frozen=True)
class Sft(Objective):
    """The mean cross entropy of all tokens that count in a batch."""

    has_ids: ClassVar[bool] = True

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([rows.tokens, rows.positions], 1), rows.labels

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (2, context), (context,)

    def outputs(self, forward: Forward, x: Value) -> Outputs:
        return forward.hidden(x)

    def pair(
        self, forward: Forward, outputs: Outputs, labels: Value, totals: tuple[Value, ...] = ()
    ) -> tuple[Value, Value]:
        assert isinstance(outputs, Value)
        return forward.loss_pair(outputs, labels)

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        return {}


OBJECTIVE = Sft
