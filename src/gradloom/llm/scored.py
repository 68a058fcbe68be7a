"""HeadObjective: an objective that learns scores of texts, by a head on the hidden state of the last token."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from .. import ops
from ..base.errors import SettingError
from ..graph.leaves import constant
from ..graph.value import Value
from ..train.metric import Metric
from ..train.outputs import Outputs
from .gpu_layers import at
from .head import Head
from .headed import Headed
from .model import Adapter, Model
from .objective import Forward, Objective, summed
from .pooled import last_hidden, places_of_last
from .rows import Rows


class Scored(NamedTuple):
    """What a loss reads of rows that hold at most K samples each, of P parts.

    scores     f32 [rows, K, P, C]: the scores of each part
    numbers    f32 [rows, K, V]: of each sample in the data
    present    f32 [rows, K]: 1 for a sample, 0 beyond the last one of a row
    head       facts of the head
    """

    scores: Value
    numbers: Value
    present: Value
    head: Head


class HeadObjective(Objective):
    """Base class of objectives with a head; a subclass is a dataclass whose fields are its settings.

    `loss_of` gives the loss of each sample, `metrics_of` further numbers of each.
    """

    head_kind: ClassVar[str]

    def loss_of(self, scored: Scored) -> Value | tuple[Value, Value]:
        """The loss of each sample, f32 [rows, K], or (losses, weights) where the mean is a weighted one."""
        raise NotImplementedError(f"{type(self).__name__}.loss_of")

    def metrics_of(self, scored: Scored) -> Mapping[str, Value]:
        """Name -> a number of each sample, f32 [rows, K]."""
        return {}

    def head_of(self, rows: Rows | None, given: Head | None) -> Head:
        """The facts of the head for these rows, of any rows where they are None. given: those of a head whose training
        continues. Raises SettingError for a head of another kind."""
        if given is not None and given.kind != self.head_kind:
            text = f"finetune: {{adapter}} has a head for {given}; {{objective}} needs its own"
            raise SettingError(text, adapter=..., objective=self.name)
        return Head(self.head_kind) if given is None else given

    # ---- rows as arrays ------------------------------------------------------------------------------------

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """(x i32 [rows, 3, L], labels f32 [rows, K, 1 + V]) of a data set; the third line of x begins with the place of
        the last token of each part."""
        assert rows.values is not None
        return np.stack([rows.tokens, rows.positions, places_of_last(rows, self.form.parts)], 1), rows.values

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (3, self.form.parts * context), (samples, 1 + numbers)

    def outputs(self, forward: Forward, x: Value) -> Outputs:
        """Scores f32 [rows, K, P, C]."""
        hidden = forward.hidden(x)
        adapter = forward.adapter
        assert isinstance(adapter, Headed) and adapter.head_weight is not None
        with at(forward.layers and forward.layers.end):
            last = last_hidden(hidden, x[:, 2], forward.samples * self.form.parts)
            scores = ops.matmul(last, adapter.head_weight, transpose_y=True)
            return scores.reshape(x.shape[0], forward.samples, self.form.parts, scores.shape[1])

    def pair(
        self, forward: Forward, outputs: Outputs, labels: Value, totals: tuple[Value, ...] = ()
    ) -> tuple[Value, Value]:
        with at(forward.layers and forward.layers.end):
            scored = self.scored(forward, outputs, labels)
            loss = self.loss_of(scored)
            values, weights = loss if isinstance(loss, tuple) else (loss, 1.0)
            return summed(values * weights, scored.present * weights)

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        one = constant(np.zeros((1, 1, self.form.parts, head_in(forward).outputs), np.float32))
        count = head_in(forward).outputs if head_in(forward).several else 1
        number = constant(np.zeros((1, 1, count), np.float32))
        names = self.metrics_of(Scored(one, number, number[:, :, 0], head_in(forward)))
        return {name: Metric(self._measure(forward, name), train=train) for name in names}

    def _measure(self, forward: Forward, name: str) -> Callable[[Outputs, Value], tuple[Value, Value]]:
        def measure(outputs: Outputs, labels: Value) -> tuple[Value, Value]:
            with at(forward.layers and forward.layers.end):
                scored = self.scored(forward, outputs, labels)
                return summed(self.metrics_of(scored)[name], scored.present)

        return measure

    def scored(self, forward: Forward, outputs: Outputs, labels: Value) -> Scored:
        """Outputs and labels of a batch as `loss_of` and `metrics_of` read them."""
        assert isinstance(outputs, Value)
        return Scored(outputs, labels[:, :, 1:], labels[:, :, 0], head_in(forward))


def with_own(found: Mapping[str, Metric], of_rows: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics, in validation and tests with these in their places: of all rows at once, which can be resampled."""
    for name, metric in of_rows.items():
        metric.in_training = found[name].of_training
    return {**found, **of_rows}


def head_in(forward: Forward) -> Head:
    """The facts of the head of a model's adapter."""
    adapter = forward.adapter
    assert isinstance(adapter, Headed) and adapter.head is not None
    return adapter.head


def with_head(objective: Objective, adapter: Adapter, model: Model, rows: Rows | None) -> Adapter:
    """The adapter, or a copy of it with the head or embedding that the objective requires: for plans."""
    changes = isinstance(objective, HeadObjective) or objective.embedding is not None
    made = copy.copy(adapter) if changes and isinstance(adapter, Headed) else adapter
    prepare_head(objective, made, model, rows, 0)
    return made


def prepare_head(objective: Objective, adapter: Adapter, model: Model, rows: Rows | None, seed: int) -> None:
    """Give the adapter the head or the embedding that the objective requires. rows: of the training; seed: of a new
    head.

    SettingError for an adapter that cannot have one, and for a head, of the adapter or of the model's file, that the
    objective would not train: its scores would not fit the other tensors any more.
    """
    if not isinstance(objective, HeadObjective):
        adapter_head = adapter.head if isinstance(adapter, Headed) else None
        for name, head in (("adapter", adapter_head), ("model", model.classifier and model.classifier.head)):
            if head is not None:
                text = f"finetune: {{{name}}} has a head for {head}; {{objective}} trains none; use one without a head"
                raise SettingError(text, {name: ..., "objective": objective.name})
        if isinstance(adapter, Headed) and objective.embedding is not None:
            adapter.embedding = objective.embedding
        return
    if not isinstance(adapter, Headed):
        text = "finetune: {objective} requires a LoRA or TrainedTensors as {adapter}"
        raise SettingError(text, objective=objective.name, adapter=...)
    stored = None if adapter.head is not None else model.classifier
    given = adapter.head if stored is None else stored.head
    head = objective.head_of(rows, given)
    adapter.add_head(head, model, getattr(adapter, "seed", seed), None if stored is None else stored.weight)
