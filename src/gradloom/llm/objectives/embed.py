"""embed: embeddings of texts, near each other for texts that belong together.

InfoNCE (van den Oord et al. 2018, arXiv 1807.03748) with the other samples of the batch as negatives (Henderson et al.
2017, 1705.00652): MultipleNegativesRankingLoss of sentence-transformers. Widths: Kusupati et al. 2022 (2205.13147).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ... import ops
from ...base.errors import DataError, SettingError
from ...graph.leaves import constant
from ...graph.value import Value
from ...train.batch_loss import BatchLoss
from ...train.metric import Metric
from ...train.outputs import Outputs
from ..embedding import Embedding
from ..forms import Form
from ..gpu_layers import at
from ..model import Adapter, Model
from ..objective import Forward, Objective
from ..pairs import has_negatives
from ..pooled import last_hidden, mean_hidden, parts_of_tokens, places_of_last
from ..rows import Rows

ANCHOR, POSITIVE = 0, 1  # parts; a third one is a negative
POOLING = "last"  # by default: under causal attention only the last token has read the whole text
_FAR = -1e30  # the similarity of a text that is no candidate
_IDS = 1 << 24  # whole numbers that f32 holds
_BLOCK = 1 << 24  # similarities at a time


@dataclass(frozen=True)
class Embed(Objective):
    """-log softmax of the similarity of anchor and positive, cosine / temperature, among the similarities of the anchor
    to all positives and all negatives of the optimiser step. A positive of another sample with the same anchor or the
    same positive, and any text that is identical to the own positive, is no candidate.

    pooling: see llm.embedding.Embedding; None: that of adapter or model, else "last". widths: the loss is the mean of
    those of the first components, normalised again. negatives: samples have a negative text; finetune reads it from the
    data.
    """

    form: ClassVar[Form] = Form("pairs", parts=2, last=True)
    temperature: float = 0.05
    pooling: str | None = None
    widths: Sequence[int] | None = None
    negatives: bool = False

    def __post_init__(self) -> None:
        if self.widths is not None:
            object.__setattr__(self, "widths", checked_widths(self.widths))
        parts = 3 if self.negatives else 2
        object.__setattr__(self, "form", replace(type(self).form, parts=parts, end=self.pooling == "last"))

    @property
    def embedding(self) -> Embedding:
        return Embedding(self.pooling or POOLING, tuple(self.widths or ()))

    def settled(self, model: Model, adapter: Adapter, data: Any, reading: Mapping[str, Any]) -> Embed:
        known = getattr(adapter, "embedding", None)
        if known is None and (self.pooling is None or self.widths is None):
            known = model.embedding if self.pooling is None else None
        widths = self.widths
        if widths is None and known is not None:
            widths = known.widths or None
        over = [width for width in widths or () if width > model.config.width]
        if over:
            need = f"at most {model.config.width}, the width of the model"
            raise SettingError(setting="widths", seen=over[0], need=need, place="finetune")
        pooling = self.pooling or (POOLING if known is None else known.pooling)
        negatives = self.negatives or (data is not None and _has_negatives(data, reading))
        named = reading.get("negative_key")
        if named is not None and data is not None and not negatives:
            raise DataError(
                f"data: the first row has no {named!r:.60}, which {{negative_key}} names", negative_key=named
            )
        return replace(self, pooling=pooling, widths=widths, negatives=negatives)

    def check(self, rows: Rows, batch_size: int) -> None:
        assert rows.values is not None
        of_row = np.sort(rows.values[rows.train, :, 0].sum(1))
        if self.negatives:
            return
        if of_row[-batch_size:].sum() < 2:
            if of_row.sum() < 2:
                raise DataError("data: one training sample without a negative; need two or more, or negatives")
            text = "{batch_size}: one sample in each step, without a negative; need a larger one, or negatives"
            raise SettingError(text, batch_size=batch_size)
        ids = _text_ids(rows, rows.values.shape[1] * self.form.parts).reshape(*rows.values.shape[:2], self.form.parts)
        texts = ids[rows.train][rows.values[rows.train, :, 0] == 1]
        for part, name in ((ANCHOR, "anchors"), (POSITIVE, "positive texts")):
            if (texts[:, part] == texts[0, part]).all():
                raise DataError(
                    f"data: the {name} of all training samples are the same within the context; need others"
                )

    # ---- rows as arrays ------------------------------------------------------------------------------------

    def arrays(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """(x i32 [rows, 3, L], labels f32 [rows, K, 1 + P]): the third line of x has the places of the last tokens, or
        the part of each token; labels are 1 for a sample and an id of each text, equal for equal texts."""
        assert rows.values is not None
        line = places_of_last(rows, self.form.parts) if self.pooling == "last" else parts_of_tokens(rows)
        ids = _text_ids(rows, rows.values.shape[1] * self.form.parts)
        shape = *rows.values.shape[:2], self.form.parts
        labels = np.concatenate([rows.values[:, :, :1], ids.reshape(shape)], axis=2)
        return np.stack([rows.tokens, rows.positions, line], 1), labels

    def shapes(self, context: int, samples: int, numbers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (3, self.form.parts * context), (samples, 1 + self.form.parts)

    def outputs(self, forward: Forward, x: Value) -> Outputs:
        """Embeddings f32 [rows, K, P, width], of norm 1."""
        hidden = forward.hidden(x)
        slots, width = forward.samples * self.form.parts, hidden.shape[1]
        with at(forward.layers and forward.layers.end):
            pooled = (last_hidden if self.pooling == "last" else mean_hidden)(hidden, x[:, 2], slots)
            return _of_norm_1(pooled).reshape(x.shape[0], forward.samples, self.form.parts, width)

    # ---- loss and metrics ----------------------------------------------------------------------------------

    def trained_loss(self, forward: Forward) -> BatchLoss:
        return _OfStep(self, forward)

    def pair(
        self, forward: Forward, outputs: Outputs, labels: Value, totals: tuple[Value, ...] = ()
    ) -> tuple[Value, Value]:
        assert isinstance(outputs, Value)
        return ops.sum(self.row_losses(outputs, labels)), ops.sum(labels[:, :, 0])

    def row_losses(self, embeddings: Value, labels: Value) -> Value:
        """The sum of the losses of the samples of each row, f32 [rows], with all rows as candidates."""
        rows, samples, parts, width = embeddings.shape
        texts = embeddings.reshape(rows * samples, parts, width)
        facts = labels.reshape(rows * samples, 1 + parts)
        own, excluded = _candidates(facts)
        widths = self.widths or (width,)
        losses = [_info_nce(_first(texts, n), own, excluded, self.temperature) for n in widths]
        mean = sum(losses[1:], losses[0]) * (1 / len(widths))
        there = ops.where(ops.equal(facts[:, 0], 0.0), 0.0, mean)
        return ops.sum(there.reshape(rows, samples), axes=1)

    def measures(self, forward: Forward, train: bool) -> dict[str, Metric]:
        """recall@1, recall@5 and mrr (mean reciprocal rank) of the positives, among all texts of the rows."""

        def of(score: Callable[[np.ndarray], np.ndarray]) -> Metric:
            def measure(outputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                there = labels[:, :, 0]
                scores = np.zeros(there.shape)
                scores[there == 1] = score(ranks(outputs[there == 1], labels[there == 1, 1:]))
                return scores.sum(1), there.sum(1)

            return Metric(measure, whole=True, uncertainty="bootstrap")

        return {
            "recall@1": of(partial(_within, 1)),
            "recall@5": of(partial(_within, 5)),
            "mrr": of(lambda rank: 1 / (rank + 1.0)),
        }


class _OfStep(BatchLoss):
    """The mean loss of the samples of a step; coupled: the loss of its rows, with the gradient through all of them."""

    def __init__(self, objective: Embed, forward: Forward) -> None:
        self.forward, self.coupled = forward, BatchLoss.through(objective.row_losses)

    def values(self, outputs: Outputs, labels: Value | None, weights: Value | None = None) -> Sequence[Value]:
        return self.coupled.values(outputs, labels)

    def join(self, values: Sequence[Value]) -> Sequence[Value]:
        return self.coupled.join(values)

    def loss(
        self, outputs: Outputs, labels: Value | None, joined: Sequence[Value], weights: Value | None = None
    ) -> tuple[Value, Value]:
        assert labels is not None
        with at(self.forward.layers and self.forward.layers.end):
            total, _ = self.coupled.loss(outputs, labels, joined)
            return total, ops.sum(labels[:, :, 0])


def checked_widths(widths: Any) -> tuple[int, ...]:
    """Different whole numbers above 0, in their order. Raises SettingError."""
    listed = isinstance(widths, (list, tuple)) and len(widths) > 0
    whole = listed and all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in widths)
    if not whole or len(set(widths)) < len(widths):
        raise SettingError(setting="widths", seen=widths, need="different whole numbers above 0, such as 64,128,256")
    return tuple(int(n) for n in widths)


def _has_negatives(data: Any, reading: Mapping[str, Any]) -> bool:
    """Whether the samples of data, also of packed ones, have a negative."""
    reports = getattr(data, "reports", None) or [getattr(data, "report", None)]
    parts = getattr(reports[0], "parts", None)
    return bool(has_negatives(data, reading.get("negative_key")) if parts is None else parts == 3)


def _text_ids(rows: Rows, slots: int) -> np.ndarray:
    """f32 [rows, slots]: a number of each text, equal for equal tokens; 0 where there is none."""
    part = parts_of_tokens(rows)
    found = np.zeros((len(part), slots), np.float32)
    known: dict[bytes, int] = {}
    for row, of_tokens in enumerate(part):
        starts = np.flatnonzero(np.diff(of_tokens, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(of_tokens)], strict=True):
            if of_tokens[start] >= 0:
                text = rows.tokens[row, start:stop].tobytes()
                found[row, of_tokens[start]] = known.setdefault(text, len(known)) % _IDS
    return found


def _candidates(facts: Value) -> tuple[Value, Value]:
    """(own, excluded), bool [N, M] each: whether candidate j, positive or negative text, is the positive of sample i,
    and whether it is none of its candidates. facts f32 [N, 1 + P]: presence, and an id of each text."""
    count, columns = facts.shape
    negatives = columns > 1 + 1 + POSITIVE
    sides = 1 + negatives
    place = np.arange(count, dtype=np.int32)
    own = ops.equal(constant(place[:, None]), constant(np.concatenate([place, np.full(count * (sides - 1), -1)])[None]))
    present, anchor, positive = (facts[:, i].reshape(1, count) for i in (0, 1 + ANCHOR, 1 + POSITIVE))
    texts = ops.concat([positive, facts[:, 3].reshape(1, count)], 1) if negatives else positive
    there = ops.concat([present] * sides, 1)
    of_anchor = ops.concat([anchor, ops.broadcast_to(constant(-1.0), anchor.shape)], 1) if negatives else anchor
    same_text = ops.where(ops.equal(positive.reshape(count, 1), texts), 1.0, 0.0)
    same_anchor = ops.where(ops.equal(anchor.reshape(count, 1), of_anchor), 1.0, 0.0)
    against = ops.where(own, 0.0, same_text + same_anchor + (1.0 - there))
    return own, ops.greater(against, 0.0)


def _info_nce(texts: Value, own: Value, excluded: Value, temperature: float) -> Value:
    """The loss of each sample, f32 [N]. texts f32 [N, P, width], of norm 1."""
    candidates = ops.concat([texts[:, side] for side in range(POSITIVE, texts.shape[1])], 0)
    similarity = ops.matmul(texts[:, ANCHOR], candidates, transpose_y=True) * (1 / temperature)
    scores = ops.log_softmax(ops.where(excluded, _FAR, similarity))
    return -ops.sum(ops.where(own, scores, 0.0), axes=1)


def _of_norm_1(x: Value) -> Value:
    """Rows [N, width] divided by their norms."""
    return ops.rms_norm(x, eps=1e-12) * (1 / math.sqrt(x.shape[-1]))


def _first(texts: Value, width: int) -> Value:
    """The first components of embeddings [N, P, width], of norm 1."""
    if width == texts.shape[2]:
        return texts
    count, parts, _ = texts.shape
    return _of_norm_1(ops.contiguous(texts[:, :, :width]).reshape(count * parts, width)).reshape(count, parts, width)


def ranks(embeddings: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """How many other candidates are at least as similar to each anchor as its positive, i64 [N]. embeddings f32 [N, P,
    width], ids [N, P]: equal for equal texts; candidates are those of the loss."""
    count, parts = ids.shape
    candidates = np.concatenate([embeddings[:, side] for side in range(POSITIVE, parts)])
    texts = np.concatenate([ids[:, side] for side in range(POSITIVE, parts)])
    found = np.empty(count, np.int64)
    for start in range(0, count, step := max(1, _BLOCK // len(candidates))):
        part = slice(start, start + step)
        similarity = embeddings[part, ANCHOR] @ candidates.T
        other = texts[None] != ids[part, POSITIVE][:, None]
        other[:, :count] &= ids[None, :, ANCHOR] != ids[part, ANCHOR][:, None]
        mine = similarity[np.arange(len(similarity)), np.arange(count)[part]]
        found[part] = ((similarity >= mine[:, None]) & other).sum(1)
    return found


def _within(count: int, rank: np.ndarray) -> np.ndarray:
    return (rank < count).astype(np.float64)


OBJECTIVE = Embed
