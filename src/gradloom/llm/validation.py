"""Predictions of a fine-tuned model on rows of its validation: the loss of each token, or the rewards of preferences.

Time and memory are bounded: at most MOST_ROWS rows are computed, about 512 tokens at a time, fewer of them where the
predicted time is above SECONDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import SettingError
from ..base.memory import need_memory
from ..data.dataset import IGNORED, Dataset
from ..graph.leaves import input as input_value
from ..graph.value import Value
from ..run.compile import compile as compile_program
from ..train.duration import approximate
from .computed_labels import compute_rows, padded_rows
from .duration import evaluation_seconds
from .not_finite import not_finite
from .objective import Forward, Objective
from .reference import Reference
from .rows import Rows
from .scored import HeadObjective
from .tokenizer import Tokenizer

MOST_ROWS = 64
SECONDS = 30.0  # planned for all rows; where one batch takes more than _LATEST, nothing is computed
_LATEST = 60.0
_TOKENS = 512  # of a batch, about
MARGINS, GOOD, BAD = "chosen minus rejected", "good completions", "bad completions"


@dataclass(frozen=True)
class Sample:
    """A sample, or a window of a text.

    tokens: the text of each token; bytes that are no UTF-8 as escapes. losses: f64 [tokens], -log of the probability
    of each token after those before it, in nats; nan where the token does not count.
    """

    tokens: list[str]
    losses: np.ndarray

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.losses))


@dataclass(frozen=True)
class Predicted:
    """Predictions on some validation rows.

    rows, of_rows  rows that were computed, and rows of the validation
    samples        of texts: all samples of these rows
    rewards        of preferences: name -> f64 [samples], of MARGINS for pairs, else of GOOD and BAD completions
    """

    rows: int
    of_rows: int
    samples: list[Sample]
    rewards: dict[str, np.ndarray]

    @property
    def loss(self) -> tuple[float, float, int]:
        """(mean, its standard error, number) of the losses of all tokens that count."""
        every = np.concatenate([sample.losses for sample in self.samples])
        counted = every[~np.isnan(every)]
        error = counted.std(ddof=1) / np.sqrt(len(counted)) if len(counted) > 1 else np.nan
        return float(counted.mean()), float(error), len(counted)


def has_predictions(objective: Objective) -> bool:
    """Whether its samples have losses of tokens, or rewards."""
    return objective.form.kind in ("texts", "preferences", "judged")


def predicted(
    forward: Forward, objective: Objective, rows: Rows, base: Forward | None = None, **options: Any
) -> Predicted | None:
    """Predictions on the validation rows of a fine-tuning; None for objectives without losses of tokens and rewards
    (classify, regress, embed).

    forward: the trained model. base: that of the reference log-probabilities, by default the model without its adapter.
    options: of gl.compile. Raises SettingError for a run without validation rows, and where a batch would take more
    than a minute or more memory than there is; NonFiniteError for losses that are not finite.
    """
    if not has_predictions(objective):
        return None
    if not len(rows.val):
        raise SettingError("the run has no validation rows")
    chosen = rows.val[np.unique(np.linspace(0, len(rows.val) - 1, min(len(rows.val), MOST_ROWS)).astype(np.int64))]
    size = min(max(1, _TOKENS // rows.tokens.shape[1]), len(chosen))
    if objective.form.kind == "texts":
        used = _Batches(forward, size, rows.tokens.shape[1], options)
        chosen, losses = used.token_losses(rows, chosen)
        samples = [one for row, of in zip(chosen, losses, strict=True) for one in _samples(forward, rows, row, of)]
        return Predicted(len(chosen), len(rows.val), samples, {})
    return _rewards(forward, objective, rows, chosen, size, base or replace(forward, adapter=None), options)


class _Batches:
    """A program for batches of rows, and the number of rows that it computes in time."""

    def __init__(self, forward: Forward, size: int, length: int, options: Mapping[str, Any]) -> None:
        self.forward, self.size, self.length, self.options = forward, size, length, options

    def token_losses(self, rows: Rows, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the rows that were computed, f32 [rows, length] losses; 0 where a label does not count)."""
        forward = self.forward
        x = input_value("rows", (self.size, 3, self.length), "i32")
        value = -forward.logprobs(forward.hidden(x), x[:, 2])
        data = np.stack([rows.tokens, rows.positions, rows.labels], 1)[chosen]
        run = compile_program([value], **self.options)
        chosen = chosen[: self.affordable(run, len(chosen))]
        found = np.empty((len(chosen), self.length), np.float32)

        def compute(start: int, stop: int) -> np.ndarray:
            part = padded_rows(data, start, stop, self.size)
            part[stop - start :, 2] = IGNORED
            (losses,) = run(rows=part)
            self.check(losses, f"the loss of validation rows {start} to {stop - 1}", run, value)
            return np.asarray(losses.reshape(self.size, self.length)[: stop - start])

        compute_rows(found, self.size, compute)
        return chosen, found

    def affordable(self, run: Any, rows: int, times: int = 1) -> int:
        """The number of rows for the planned time. times: programs like this one that run. SettingError where there
        is not the time or the memory for one batch."""
        plan = run.plan
        if hasattr(plan, "peak_bytes"):
            need_memory(plan.peak_bytes, "predictions on validation rows", "need a machine with more")
        batches = -(-rows // self.size)
        seconds = evaluation_seconds(plan, batches * times, self.options)
        if seconds is None or seconds <= SECONDS:
            return rows
        each = seconds / batches
        if each > _LATEST:
            raise SettingError(
                f"predicting a batch of validation rows would take {approximate(each)}; at most a minute"
            )
        return min(rows, max(int(SECONDS / each), 1) * self.size)

    def check(self, found: np.ndarray, what: str, run: Any, value: Value) -> None:
        if not np.isfinite(found).all():
            forward = self.forward
            raise not_finite(what, forward.model, forward.adapter, run, [value], {}, **self.options)


def _samples(forward: Forward, rows: Rows, row: int, losses: np.ndarray) -> list[Sample]:
    """The samples of a row, or its window. losses: f32 [length] of the token after each place."""
    tokenizer, labels = forward.model.tokenizer, rows.labels[row]
    starts = np.flatnonzero(rows.positions[row] == 0)
    found = []
    for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(labels)], strict=True):
        counted = labels[first:last] != IGNORED
        if not counted.any():  # padding
            continue
        ids = [*rows.tokens[row, first:last].tolist(), *labels[last - 1 : last][counted[-1:]].tolist()]
        own = np.append(np.nan, np.where(counted, losses[first:last].astype(np.float64), np.nan))
        found.append(Sample([_text(tokenizer, token) for token in ids], own[: len(ids)]))
    return found


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece_bytes(token).decode("utf-8", "backslashreplace")


# ---- preferences -----------------------------------------------------------------------------------------------------


def _rewards(
    forward: Forward, objective: Objective, rows: Rows, chosen: np.ndarray, size: int, base: Forward,
    options: Mapping[str, Any],
) -> Predicted | None:  # fmt: skip
    """The rewards of validation samples."""
    count, length = len(chosen), rows.tokens.shape[1]
    x, labels = objective.arrays(_only(rows, chosen))
    forward = replace(forward, samples=labels.shape[1], training=False)
    rows_in = input_value("rows", (size, *x.shape[1:]), "i32")
    labels_in = input_value("labels", (size, *labels.shape[1:]), "f32")
    found = _values(forward, objective, rows_in, labels_in)
    if found is None:
        return None
    values, is_good = found
    batches = _Batches(forward, size, length, options)
    outputs = [values, labels_in[:, :, 0] if is_good is None else is_good]  # the labels are read in each case
    run = compile_program(outputs, **options)
    count = batches.affordable(run, count, 1 + objective.needs_reference)
    data = Dataset(x[:count], labels[:count].copy())
    if objective.needs_reference:
        reference = Reference(objective, replace(base, samples=forward.samples), size, options)
        reference.prepare(length)
        reference.complete(data)
    made = np.empty((count, labels.shape[1], len(outputs)), np.float32)
    assert data.labels is not None
    truth = data.labels

    def compute(start: int, stop: int) -> np.ndarray:
        feeds = {"rows": padded_rows(data.data, start, stop, size), "labels": padded_rows(truth, start, stop, size)}
        computed = np.stack(run(**feeds), axis=-1)[: stop - start]
        own = computed[truth[start:stop, :, 0] == 1]
        batches.check(own, f"a reward of validation rows {start} to {stop - 1}", run, values)
        return computed

    compute_rows(made, size, compute)
    own = made[truth[:, :, 0] == 1].astype(np.float64)
    if is_good is None:
        rewards = {MARGINS: own[:, 0]}
    else:
        rewards = {GOOD: own[own[:, 1] == 1, 0], BAD: own[own[:, 1] == 0, 0]}
    return Predicted(count, len(rows.val), [], {name: of for name, of in rewards.items() if len(of)})


def _values(forward: Forward, objective: Objective, x: Value, labels: Value) -> tuple[Value, Value | None] | None:
    """f32 [rows, K] each: the margin of each pair, or the reward of each completion and 1 for a good one."""
    outputs = objective.outputs(forward, x)
    if isinstance(objective, HeadObjective):
        every: Mapping[str, Any] = objective.metrics_of(objective.scored(forward, outputs, labels))
    else:
        every = objective.metrics(objective.parts_of(outputs, labels))
    found = every.get("rewards/margins", every.get("rewards/chosen"))
    if found is None:
        return None
    return found if isinstance(found, tuple) else (found, None)


def _only(rows: Rows, chosen: np.ndarray) -> Rows:
    """These rows alone."""
    names = ("tokens", "positions", "labels", "parts", "values", "samples", "weights")
    kept = {name: getattr(rows, name)[chosen] for name in names if getattr(rows, name) is not None}
    return replace(rows, **kept, train=np.arange(0), val=np.arange(len(chosen)))
