"""Objective: what a fine-tuning learns. A declaration of samples, outputs of the model, loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import ops
from ..base.errors import GraphError, ShapeError
from ..graph.leaves import constant
from ..graph.value import Value, describe
from ..train.batch_loss import BatchLoss
from ..train.metric import Metric
from ..train.outputs import Outputs
from .embedding import Embedding
from .forms import TEXTS, Form
from .gpu_layers import GpuLayers, at
from .model import Adapter, Model
from .rows import Rows


@dataclass(frozen=True)
class Forward:
    """A model with its adapter in a program. context: the most tokens of a part; samples: the most of a row; layers:
    those on a GPU; training: with dropout."""

    model: Model
    adapter: Adapter | None
    layers: GpuLayers | None
    context: int
    samples: int
    training: bool = False

    def hidden(self, x: Value) -> Value:
        """x i32 [rows, 2 or more, L] with tokens and positions first -> [rows*L, width] after the final norm."""
        return self.model.hidden(
            x[:, 0], x[:, 1], self.adapter, training=self.training, layers=self.layers, longest=self.context
        )

    def logprobs(self, hidden: Value, labels: Value) -> Value:
        """Log-probability of each label, f32 [rows*L]; 0 where it is -100."""
        return self.model.logprobs(hidden, labels, self.adapter, self.layers)

    def loss_pair(self, hidden: Value, labels: Value) -> tuple[Value, Value]:
        """(sum, number) of the cross entropies of the labels."""
        return self.model.loss_pair(hidden, labels, self.adapter, self.layers)


class Parts(NamedTuple):
    """What a loss reads of rows that hold at most K samples each, of P parts.

    logps      f32 [rows, K, P]: log-probability of a part, the sum over its tokens that count
    counts     f32 [rows, K, P]: number of these tokens
    reference  f32 [rows, K, P]: logps of the base model without adapter; None where the objective needs none
    numbers    f32 [rows, K, V]: of each sample in the data
    present    f32 [rows, K]: 1 for a sample, 0 beyond the last one of a row
    whole      f32 [rows, K, P]: log-probability of a part with its prompt; of forms with `prompts`, else None
    lengths    f32 [rows, K, P]: number of the tokens of `whole`
    totals     f32 [] each: sums over all samples of the batch, see Objective.totals
    """

    logps: Value
    counts: Value
    reference: Value | None
    numbers: Value
    present: Value
    whole: Value | None = None
    lengths: Value | None = None
    totals: tuple[Value, ...] = ()

    def averages(self) -> Value:
        """Mean log-probability of the tokens of each part, f32 [rows, K, P]."""
        return self.per_token(self.logps)

    def per_token(self, sums: Value) -> Value:
        """Sums over the tokens of each part that count, divided by their number, f32 [rows, K, P]."""
        return sums / ops.maximum(self.counts, 1.0)

    def ratios(self) -> Value:
        """logps less those of the base model, f32 [rows, K, P]."""
        if self.reference is None:
            raise GraphError("Parts.ratios: no log-probabilities of the base model; need needs_reference = True")
        return self.logps - self.reference


class Objective:
    """Base class of objectives; a subclass is a dataclass whose fields are its settings.

    form             samples of the data: gl.llm.Form
    needs_reference  whether `loss` reads Parts.reference: computed once, before the training
    needs_teacher    whether the labels have columns that another model computes, before the training

    `loss` gives the loss of each sample; the loss of a batch is the mean over its samples. `metrics` gives further
    numbers of each sample, whose means are reported.

    Example: the mean log-probability of the chosen completion should exceed that of the rejected one by 1.

        @dataclass(frozen=True)
        class Margin(gl.llm.Objective):
            form: ClassVar = gl.llm.Form("preferences", parts=2)

            def loss(self, parts):
                means = parts.averages()
                return gl.ops.relu(1.0 - (means[:, :, 0] - means[:, :, 1]))

        gl.llm.finetune(model, "pairs.jsonl", objective=Margin())
    """

    form: ClassVar[Form] = TEXTS
    needs_reference: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = False
    has_ids: ClassVar[bool] = False  # labels are ids of tokens, in place of numbers
    takes_weights: ClassVar[bool] = False  # reads Rows.weights: then labels are numbers

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def computed(self) -> int:
        """Number of the last columns of labels that a run computes before its training."""
        return self.form.parts if self.needs_reference else 0

    @property
    def embedding(self) -> Embedding | None:
        """How texts become embeddings, of an objective that trains them; it is saved with the adapter."""
        return None

    def settled(self, model: Model, adapter: Adapter, data: Any, reading: Mapping[str, Any]) -> Objective:
        """The same with settings that depend on model, adapter and data; reading: arguments of read_samples. data:
        None for a plan without any."""
        return self

    def check(self, rows: Rows, batch_size: int) -> None:
        """Raise DataError or SettingError for training rows from which nothing can be learned in such batches."""

    def loss(self, parts: Parts) -> Value:
        """The loss of each sample, f32 [rows, K]."""
        raise NotImplementedError(f"{type(self).__name__}.loss")

    def totals(self, parts: Parts) -> Sequence[Value]:
        """Numbers of each sample, f32 [rows, K], whose sums over all samples of an optimiser step `loss` reads in
        Parts.totals; no gradient passes through them. With them each step has a forward pass more, unless all its rows
        are computed at once.

        Not called with a micro-batch alone: a loss that depends on other samples than its own declares this here.
        """
        return ()

    def metrics(self, parts: Parts) -> Mapping[str, Value | tuple[Value, Value]]:
        """Name -> a number of each sample, f32 [rows, K], or (numbers, weights) where the mean is a weighted one."""
        return {}

    # ---- rows as arrays ------------------------------------------------------------------------------------

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """(x i32 [rows, lines, L], labels) of a data set; columns of labels for reference log-probabilities are 0."""
        assert rows.parts is not None and rows.values is not None
        x = np.stack([rows.tokens, rows.positions, rows.labels, rows.parts], 1)
        missing = self._label_columns(0) - 1
        return x, np.pad(rows.values, ((0, 0), (0, 0), (0, missing)))

    def prepared(self, rows: Rows, adapter: Adapter) -> Rows:
        """The rows with the numbers that the loss reads, before `arrays`. adapter: has the head, if the objective has
        one. Raises DataError for numbers that cannot be learned."""
        return rows

    def fitted(self, rows: Rows) -> Objective:
        """The same with settings that depend on the training rows as numbers, for other rows."""
        return self

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of a row of x and of its labels."""
        return (4, self.form.parts * context), (samples, self._label_columns(numbers))

    def _label_columns(self, numbers: int) -> int:
        return 1 + numbers + self.computed

    def outputs(self, forward: Forward, x: Value) -> Outputs:
        """The outputs of a batch, which do not depend on its labels: (logps, counts), with prompts also (whole,
        lengths), f32 [rows, K, P]."""
        logps = forward.logprobs(forward.hidden(x), x[:, 2])
        with at(forward.layers and forward.layers.end):
            sums = _part_sums(logps, x[:, 3], forward.samples, self.form.parts)
            if not self.form.prompts:
                return sums
            part = ops.cast(x[:, 3], "f32")
            every = ops.cast(ops.where(part < 0.0, -2.0 - part, part), "i32")  # -1 in padding
            return (*sums, *_part_sums(logps, every, forward.samples, self.form.parts))

    def trained_loss(self, forward: Forward) -> Callable[..., tuple[Value, Value]] | BatchLoss:
        """The loss for the Trainer."""
        if type(self).totals is not Objective.totals:
            return _Coupled(self, forward)
        return lambda outputs, labels: self.pair(forward, outputs, labels)

    def pair(
        self, forward: Forward, outputs: Outputs, labels: Value, totals: tuple[Value, ...] = ()
    ) -> tuple[Value, Value]:
        """(sum, weight) of the loss of a batch."""
        with at(forward.layers and forward.layers.end):
            parts = self.parts_of(outputs, labels)._replace(totals=totals)
            return summed(of_samples(f"{self.name}.loss", self.loss(parts), parts), parts.present)

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        """The metrics; train: measured in training, too."""
        names = self._metric_names()
        return {name: Metric(_Number(self, forward, name), train=train) for name in names}

    def parts_of(self, outputs: Outputs, labels: Value) -> Parts:
        """Outputs and labels of a batch as `loss` and `metrics` read them."""
        assert isinstance(outputs, tuple)
        logps, counts, *more = outputs
        own = labels.shape[2] - self.computed
        reference = labels[:, :, own:] if self.needs_reference else None
        return Parts(logps, counts, reference, labels[:, :, 1:own], labels[:, :, 0], *more)

    def _metric_names(self) -> list[str]:
        """The names that `metrics` gives, from a call with constants."""
        one = constant(np.ones((1, 1, self.form.parts), np.float32))
        reference = one if self.needs_reference else None
        found = self.metrics(Parts(one, one, reference, one, one[:, :, 0], one, one))
        if not isinstance(found, Mapping):
            raise GraphError(
                f"{self.name}.metrics gave {type(found).__name__}; need a dict, name -> number of each sample"
            )
        return list(found)


class _Coupled(BatchLoss):
    """The loss of an objective with totals."""

    def __init__(self, objective: Objective, forward: Forward) -> None:
        self.objective, self.forward = objective, forward

    def values(self, outputs: Outputs, labels: Value | None, weights: Value | None = None) -> list[Value]:
        assert labels is not None
        parts = self.objective.parts_of(outputs, labels)
        name, given = f"{self.objective.name}.totals", self.objective.totals(parts)
        each = [of_samples(name, one, parts) for one in (given if isinstance(given, (tuple, list)) else [given])]
        return [ops.sum(ops.where(ops.equal(parts.present, 0.0), 0.0, one), 1) for one in each]

    def join(self, values: Sequence[Value]) -> list[Value]:
        return [ops.broadcast_to(ops.sum(value), value.shape) for value in values]

    def loss(
        self, outputs: Outputs, labels: Value | None, joined: Sequence[Value], weights: Value | None = None
    ) -> tuple[Value, Value]:
        assert labels is not None
        return self.objective.pair(self.forward, outputs, labels, tuple(total[0] for total in joined))


@dataclass(frozen=True)
class _Number:
    """A metric of an objective as a function of (outputs, labels)."""

    objective: Objective
    forward: Forward
    name: str

    def __call__(self, outputs: Outputs, labels: Value) -> tuple[Value, Value]:
        with at(self.forward.layers and self.forward.layers.end):
            parts = self.objective.parts_of(outputs, labels)
            found = self.objective.metrics(parts)[self.name]
            name = f"metric {self.name}"
            values, weights = found if isinstance(found, tuple) else (found, parts.present)
            weights = of_samples(name, weights, parts)
            return summed(of_samples(name, values, parts) * weights, parts.present * weights)


def of_samples(name: str, value: object, parts: Parts) -> Value:
    """The value. Raises ShapeError unless it has a number for each sample, f32 [rows, K]."""
    if not isinstance(value, Value) or value.shape != parts.present.shape:
        seen = describe(value) if isinstance(value, Value) else type(value).__name__
        raise ShapeError(f"{name} gave {seen}; need a number for each sample, f32{list(parts.present.shape)}")
    return value


def summed(values: Value, present: Value) -> tuple[Value, Value]:
    """(sum, weight) of the values [rows, K] of samples."""
    return ops.sum(ops.where(ops.equal(present, 0.0), 0.0, values)), ops.sum(present)


def _part_sums(logps: Value, parts: Value, samples: int, of_each: int) -> tuple[Value, Value]:
    """Sums of logps f32 [rows*L], and their numbers, over the places of each part: f32 [rows, samples, of_each].

    parts i32 [rows, L]: the number of the part in its row, or below 0."""
    rows, length = parts.shape
    slots = np.arange(samples * of_each, dtype=np.int32)[None, :, None]
    own = ops.equal(parts.reshape(rows, 1, length), constant(slots))  # [rows, slots, L]
    shape = rows, samples, of_each
    sums = ops.sum(ops.where(own, logps.reshape(rows, 1, length), 0.0), axes=2)
    return sums.reshape(*shape), ops.sum(ops.where(own, 1.0, 0.0), axes=2).reshape(*shape)
