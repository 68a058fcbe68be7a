"""distil: the distribution of a teacher over the next token, for each token that counts.

Hinton et al. 2015 (arXiv 1503.02531), forward KL as supervised KD in Agarwal et al. 2023 (2306.13649). Only the k
likeliest tokens of the teacher are kept; the other ones are joined to one class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ... import ops
from ...base.errors import SettingError
from ...base.memory import need_memory, show_bytes
from ...graph.value import Value
from ...ops.distillation import Distilled
from ...train.metric import Metric
from ...train.outputs import Outputs
from ..gpu_layers import at
from ..objective import Forward, Objective
from ..rows import Rows

METRICS = {"kl": "kl", "nll_loss": "nll", "same_top": "same"}  # name -> field of ops.Distilled


COLDEST, HOTTEST = 0.01, 100.0  # of others, f32 does not hold T^2 KL to four digits


@dataclass(frozen=True)
class Distil(Objective):
    """(1 - hard_weight) T^2 KL(teacher || student) at temperature T, plus hard_weight times the cross entropy of the
    data's own tokens; the mean over all tokens that count in a batch.

    teacher: a Model, or the path of a GGUF file or of a Hugging Face folder, with the student's vocabulary.
    """

    needs_teacher: ClassVar[bool] = True
    teacher: Any = field(default=None, repr=False)  # a resumed run compares its weights, not its place
    top_k: int = 64
    temperature: float = 1.0
    hard_weight: float = 0.0

    def __post_init__(self) -> None:
        if not COLDEST <= self.temperature <= HOTTEST:
            need = f"{COLDEST:g} to {HOTTEST:g} in distil"
            raise SettingError(setting="temperature", seen=self.temperature, need=need, place="finetune")

    @property
    def computed(self) -> int:
        return 2 * self.top_k + 1

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """x i32 [rows, 2, L], labels f32 [rows, L, 1 + computed]: the id of the token, then columns for the teacher's:
        k ids, their log-probabilities, that of all others."""
        shape = (*rows.labels.shape, 1 + self.computed)
        need = 4 * int(np.prod(shape, dtype=np.int64))
        what = f"finetune: {show_bytes(need)} of memory are needed for the teacher's {self.top_k} tokens at each place"
        need_memory(need, what, "need a smaller --top-k, or fewer data")
        labels = np.zeros(shape, np.float32)
        labels[:, :, 0] = rows.labels
        return np.stack([rows.tokens, rows.positions], 1), labels

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (2, context), (context, 1 + self.computed)

    def outputs(self, forward: Forward, x: Value) -> Outputs:
        return forward.hidden(x)

    def pair(
        self, forward: Forward, outputs: Outputs, labels: Value, totals: tuple[Value, ...] = ()
    ) -> tuple[Value, Value]:
        found = self._distilled(forward, outputs, labels)
        return found.loss, found.weight

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        def metric(field: str) -> Metric:
            def measure(outputs: Outputs, labels: Value) -> tuple[Value, Value]:
                found = self._distilled(forward, outputs, labels)
                return getattr(found, field), found.weight

            return Metric(measure, train=train)

        return {name: metric(field) for name, field in METRICS.items()}

    def _distilled(self, forward: Forward, outputs: Outputs, labels: Value) -> Distilled:
        assert isinstance(outputs, Value)
        with at(forward.layers and forward.layers.end):
            rows = labels.reshape(outputs.shape[0], labels.shape[2])
            own = ops.cast(rows[:, :1], "i32").reshape(outputs.shape[0])
            ids, teacher = ops.cast(rows[:, 1 : 1 + self.top_k], "i32"), rows[:, 1 + self.top_k :]
            return forward.model.distilled(
                outputs, own, ids, teacher, self.temperature, self.hard_weight, forward.adapter, forward.layers
            )


OBJECTIVE = Distil
