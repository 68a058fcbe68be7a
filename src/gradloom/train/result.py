"""What a pass over data measured, with its uncertainties (ggml_opt_result)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import TrainError
from ..base.habits import AttributeHints
from ..base.html import html_table
from ..data.dataset import IGNORED
from .metric import UNCERTAINTY
from .metrics import NOTHING, Measured, Measures, standard_error

_QUIET: dict[str, Any] = {"over": "ignore", "invalid": "ignore"}  # losses that are not finite: their numbers are nan
MAIN = "val"  # the name of the validation set that is a part of the training data


class Mark(NamedTuple):
    """How much a Result holds."""

    ndata: int
    counted: int
    correct: int
    batches: int
    predictions: int
    measured: dict[str, int]


class Result(AttributeHints):
    """Losses, weights and predictions of the batches that were added.

    loss is the weighted mean over all rows (the plain total for the loss "sum"), loss_unc its standard error from the
    scatter between batches: that of a mean weighted by the batches' weights w, sqrt(sum w^2 (v - loss)^2 /
    ((sum w)^2 - sum w^2)) for batch losses v, which for equal weights is sqrt(var/(n-1)), as in ggml; nan for fewer
    than two batches that weigh something. accuracy is the share of rows whose largest output is the label, accuracy_unc
    sqrt(a(1-a)/(n-1)); nan where there are no classes. grad_norms: f64[optimiser steps], the global norm of each step's
    gradient before clipping; grad_norm: that of the last step, nan before the first. predictions are the largest
    outputs, in the order of the rows. skipped: optimiser steps that were left out because a number was not finite;
    their rows are no part of the rest. losses: of several losses (marked ones, gl.set_loss, or those of outputs) each
    by its name, in order; loss is then the sum of those with a label that counts, weighted by `factors` (name ->
    factor, where it is not 1).
    accuracies: of each output with the loss cross_entropy, "class_accuracy" of the output "class"; such a Result has no
    predictions, which gl.predict gives. metrics: values of user-defined metrics, by name, "mae" and "mae_unc".
    """

    def __init__(self, measures: Measures = NOTHING) -> None:
        self.measured = Measured(measures)
        self.is_total = False  # the loss adds up instead of being a mean
        self.ndata = 0
        self.counted = 0  # rows with a label that counts
        self.correct = 0
        self.skipped = 0
        self.batches = 0
        self._predicted = 0  # predictions that it holds
        self._losses: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        self._norms: list[np.ndarray] = []
        self._loss_parts: dict[str, list[np.ndarray]] = {}  # of losses and accuracies: f64 [batches, pairs, 2] each
        self.factors: dict[str, float | None] = {}  # of losses in their sum, where not 1; None of an accuracy
        self._predictions: list[np.ndarray] | None = []

    def add(
        self,
        rows: int,
        losses: np.ndarray,
        weights: np.ndarray,
        predictions: np.ndarray | None = None,
        labels: np.ndarray | None = None,
        row_weights: np.ndarray | None = None,
        grad_norms: np.ndarray | None = None,
        parts: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Batches of `rows` rows in all: loss sums and weights, one per batch; predicted and true ids, one per row; the
        gradient's norm, one per optimiser step that ended in them; of several losses by name their pairs, [batches,
        pairs, 2] with sums and weights, whose means add up to the loss.

        Rows of weight 0 and rows that are ignored do not count for the accuracy.
        """
        self.ndata += rows
        self._losses.append(np.asarray(losses, np.float64).ravel())
        self._weights.append(np.asarray(weights, np.float64).ravel())
        self.batches += len(self._losses[-1])
        for name, pairs in (parts or {}).items():
            self._loss_parts.setdefault(name, []).append(np.asarray(pairs, np.float64))
        if grad_norms is not None:
            self._norms.append(np.asarray(grad_norms, np.float64).ravel())
        if predictions is not None:
            predicted = predictions.ravel()
            if self._predictions is not None:
                self._predictions.append(predicted)
                self._predicted += len(predicted)
            if labels is not None:
                true = labels if labels.dtype.kind in "iu" else labels.argmax(axis=-1)
                true = true.ravel()
                valid = true != IGNORED if true.dtype.kind == "i" else np.ones(len(true), bool)
                if row_weights is not None:
                    valid &= np.repeat(row_weights != 0, len(true) // len(row_weights))
                self.counted += int(valid.sum())
                self.correct += int(((predicted == true) & valid).sum())

    def mark(self) -> Mark:
        """How much it holds now, for `cut`."""
        return Mark(self.ndata, self.counted, self.correct, self.batches, self._predicted, self.measured.mark())

    def cut(self, mark: Mark) -> None:
        """Drop additions since the mark: the micro-batches of an optimiser step that was not completed."""
        sums, weights = self._parts()
        self.ndata, self.counted, self.correct, self.batches, self._predicted, measured = mark
        self.measured.cut(measured)
        self._losses, self._weights = [sums[: self.batches]], [weights[: self.batches]]
        self._loss_parts = {name: [self._part(name)[: self.batches]] for name in self._loss_parts}
        if self._predictions:
            self._predictions = [np.concatenate(self._predictions)[: self._predicted]]

    def state(self) -> dict[str, Any]:
        """All that it holds, as plain values and arrays: losses f64[batches], weights f64[batches], grad_norms
        f64[steps], predictions i32[rows] or None."""
        sums, weights = self._parts()
        kept = self._predictions
        predictions = np.concatenate(kept) if kept else None if kept is None else np.empty(0, np.int32)
        return {
            "is_total": self.is_total, "ndata": self.ndata, "counted": self.counted, "correct": self.correct,
            "skipped": self.skipped, "losses": sums, "weights": weights, "grad_norms": self.grad_norms,
            "predictions": predictions, **{f"measured.{name}": v for name, v in self.measured.state().items()},
            **{f"part.{name}": self._part(name) for name in self._loss_parts},
            **({"factors": dict(self.factors)} if self.factors else {}),
        }  # fmt: skip

    @classmethod
    def of_state(cls, state: Mapping[str, Any], measures: Measures = NOTHING) -> Result:
        """The Result that `state` was taken from. measures: those of a Result that more is added to."""
        made = cls(measures)
        mine = "measured."
        made.measured.load_state({n.removeprefix(mine): v for n, v in state.items() if n.startswith(mine)})
        made.is_total, made.ndata, made.counted = state["is_total"], state["ndata"], state["counted"]
        made.correct, made.skipped, made.batches = state["correct"], state["skipped"], len(state["losses"])
        made._losses, made._weights = [state["losses"]], [state["weights"]]
        made._loss_parts = {name: [pairs] for name, pairs in under(state, "part.").items()}
        made.factors = dict(state.get("factors", {}))
        made._norms = [state["grad_norms"]] if len(state["grad_norms"]) else []
        predictions = state["predictions"]
        made._predicted = 0 if predictions is None else len(predictions)
        made._predictions = None if predictions is None else [predictions] if made._predicted else []
        return made

    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._losses:
            return np.empty(0), np.empty(0)
        if len(self._losses) > 1:
            self._losses, self._weights = [np.concatenate(self._losses)], [np.concatenate(self._weights)]
        return self._losses[0], self._weights[0]

    def _part(self, name: str) -> np.ndarray:
        """The pairs of one of several losses, or of an accuracy, f64 [batches, pairs, 2]."""
        kept = self._loss_parts[name]
        if len(kept) > 1:
            self._loss_parts[name] = kept = [np.concatenate(kept)]
        return kept[0]

    @property
    def losses(self) -> dict[str, float]:
        names = [name for name in self._loss_parts if self.factors.get(name, 1.0) is not None]
        return {name: _sum_of_means(self._part(name)) for name in names}

    def factor(self, name: str) -> float:
        """The weight of one of several losses in their sum."""
        return found if (found := self.factors.get(name, 1.0)) is not None else 0.0

    @property
    def accuracies(self) -> dict[str, float]:
        names = [name for name in self._loss_parts if self.factors.get(name, 1.0) is None]
        return {name: _sum_of_means(self._part(name)) for name in names}

    def _loss_unc(self, name: str) -> float:
        """The standard error of one of several losses; nan where it is a sum of means of different weights."""
        pairs = self._part(name)
        used = pairs[pairs[:, 0, 1] > 0, 0]
        return standard_error(used[:, 0] / used[:, 1], used[:, 1]) if pairs.shape[1] == 1 else math.nan

    @property
    def loss(self) -> float:
        if self._loss_parts:
            known = {name: value for name, value in self.losses.items() if self._part(name)[..., 1].any()}
            return math.fsum(self.factor(name) * value for name, value in known.items()) if known else math.nan
        sums, weights = self._parts()
        if not len(sums):
            return math.nan
        with np.errstate(**_QUIET):
            total, loss = float(weights.sum()), float(sums.sum())
        return loss if self.is_total else loss / total if total else math.nan

    def recent(self, batches: int) -> float:
        """The loss of the last `batches` batches."""
        sums, weights = (a[-batches:] for a in self._parts())
        total = float(weights.sum())
        return float(sums.sum()) / total if total else math.nan

    def latest(self, batches: int) -> tuple[float, float]:
        """(loss, weight) of the last `batches` batches, without reading those before them."""
        total = weight = 0.0
        for sums, weights in zip(reversed(self._losses), reversed(self._weights), strict=True):
            if batches < 1:
                break
            total, weight = float(sums[-batches:].sum()) + total, float(weights[-batches:].sum()) + weight
            batches -= len(sums)
        return total if self.is_total else total / weight if weight else math.nan, weight

    def latest_losses(self, batches: int) -> dict[str, float]:
        """Of several losses and accuracies each of the last `batches` batches, by name."""
        return {name: _sum_of_means(self._part(name)[-batches:]) for name in self._loss_parts if batches > 0}

    @property
    def loss_unc(self) -> float:
        sums, weights = self._parts()
        n = len(sums)
        if n < 2 or not weights.sum():
            return math.nan
        with np.errstate(**_QUIET):
            if self.is_total:
                return math.sqrt(max(float(sums.var()), 0.0) * n / (n - 1))
            used = weights > 0
            return standard_error(sums[used] / weights[used], weights[used])

    @property
    def grad_norms(self) -> np.ndarray:
        if len(self._norms) > 1:
            self._norms = [np.concatenate(self._norms)]
        return self._norms[0] if self._norms else np.empty(0)

    @property
    def grad_norm(self) -> float:
        return float(self._norms[-1][-1]) if self._norms else math.nan

    @property
    def accuracy(self) -> float:
        return self.correct / self.counted if self.counted else math.nan

    @property
    def accuracy_unc(self) -> float:
        return _share_unc(self.accuracy, self.counted)

    @property
    def predictions(self) -> np.ndarray:
        """i32, one per row, in the order in which the rows were taken; TrainError after drop_predictions."""
        if self._predictions is None:
            raise TrainError(
                "predictions: fit keeps those of its last epoch alone; need them in on_epoch, or gl.predict"
            )
        return np.concatenate(self._predictions) if self._predictions else np.empty(0, np.int32)

    @property
    def measures(self) -> Measures:
        """Measures in addition to the loss."""
        return self.measured.measures

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.measured.numbers())

    def settle(self) -> None:
        """Convert the metrics to numbers, and free their arrays: nothing more is added."""
        self.measured.settle()

    def numbers(self) -> dict[str, float]:
        """Measured numbers by name: loss, accuracy where there are classes, metrics; each followed by its uncertainty
        (name + "_unc") as far as it is known."""
        found = {"loss": self.loss, "loss_unc": self.loss_unc}
        for name, value in self.losses.items():
            found |= {name: value, name + UNCERTAINTY: self._loss_unc(name)}
        for name, value in self.accuracies.items():
            found |= {name: value, name + UNCERTAINTY: _share_unc(value, float(self._part(name)[:, 0, 1].sum()))}
        if self.counted:
            found |= {"accuracy": self.accuracy, "accuracy_unc": self.accuracy_unc}
        known = {n: number for n, number in found.items() if not (n.endswith(UNCERTAINTY) and math.isnan(number))}
        return known | self.measured.numbers()

    def drop_predictions(self) -> None:
        """Free the predictions, if there are any; the measured numbers stay."""
        self.settle()
        self._predictions = None if self._predictions else self._predictions

    def _repr_html_(self) -> str:
        return numbers_html(self.numbers())

    def __repr__(self) -> str:
        text = f"loss {self.loss:.6g}{_spread(self.loss_unc)}"
        if self.batches == 1:
            text += " (of one batch, without an uncertainty)"
        for name, value in self.losses.items():
            text += f", {name} {value:.6g}"
        for name, value in self.accuracies.items():
            text += f", {name} {value:.4f}"
        if self.counted:
            text += f", accuracy {self.accuracy:.4f}{_spread(self.accuracy_unc)}"
        numbers = self.metrics
        for name in (name for name in numbers if not name.endswith(UNCERTAINTY)):
            text += f", {name} {numbers[name]:.6g}{_spread(numbers.get(name + UNCERTAINTY))}"
        if self.skipped:
            text += f", {self.skipped} skipped"
        return f"Result({self.ndata} rows, {text})"


def _sum_of_means(pairs: np.ndarray) -> float:
    """Of pairs (sum, weight) f64 [batches, pairs, 2] the sum of the means; nan without any weight."""
    sums, weights = pairs.sum(axis=0).T
    return math.nan if not weights.all() else math.fsum(sums / weights)


def _share_unc(share: float, count: float) -> float:
    """The standard error of a share of `count` rows."""
    return math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else math.nan


def _spread(uncertainty: float | None) -> str:
    """An uncertainty behind its number, as far as it is known."""
    return "" if uncertainty is None or math.isnan(uncertainty) else f" +- {uncertainty:.2g}"


def numbers_html(numbers: Mapping[str, float]) -> str:
    """Numbers by name, each with its uncertainty where there is one."""
    rows = []
    for name, number in numbers.items():
        if not name.endswith(UNCERTAINTY):
            spread = numbers.get(name + UNCERTAINTY)
            rows.append((name, f"{number:.6g}", _spread(spread).strip()))
    return html_table((), rows)


@dataclass(frozen=True)
class Evaluation:
    """Results of the validation sets of a training after `step` optimiser steps, in an epoch counted from 1.

    results: name of the set -> Result; "val" is the part of the training data that val_split held out.
    """

    step: int
    epoch: int
    results: dict[str, Result]

    @property
    def val(self) -> Result | None:
        """The Result of "val", or else of the first set."""
        return next(iter(self.results.values()), None)

    def numbers(self) -> dict[str, float]:
        """Measured numbers by name: val_loss, val_accuracy, ... of "val" or else of the first set; clean.loss, ... of
        a set that is called "clean"."""
        found = {} if self.val is None else {f"val_{name}": number for name, number in self.val.numbers().items()}
        for name, result in self.results.items():
            if name != MAIN:
                found |= {f"{name}.{what}": number for what, number in result.numbers().items()}
        return found

    def _repr_html_(self) -> str:
        return numbers_html(self.numbers())

    def drop_predictions(self) -> None:
        """Free the predictions."""
        for result in self.results.values():
            result.drop_predictions()

    def state(self) -> dict[str, Any]:
        """As plain values and arrays: step, epoch, names, "NAME.losses", ..., see Result.state."""
        kept = {"step": self.step, "epoch": self.epoch, "names": list(self.results)}
        return kept | {f"{name}.{k}": v for name, result in self.results.items() for k, v in result.state().items()}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Evaluation:
        """The Evaluation that `state` was taken from."""
        results = {name: Result.of_state(under(state, f"{name}.")) for name in state["names"]}
        return cls(state["step"], state["epoch"], results)


def under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values whose names begin so, without that."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class EpochResult(AttributeHints):
    """One epoch of a fit: its number from 1, what training and validation measured (val is None without a split).

    seconds: of both. planned_bytes: the arena and scratch that the steps so far planned for. rates: the learning rates
    of its last step by name: "lr", and "head.*.lr" of a parameter group that has its own; none where no step was done.
    averaged: validation measured the moving average of the
    weights (ema=). evaluations: those inside of the epoch and at its end, in order; val is that of the one at its end.
    """

    epoch: int
    train: Result
    val: Result | None
    seconds: float
    planned_bytes: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    averaged: bool = False
    evaluations: tuple[Evaluation, ...] = ()

    def numbers(self) -> dict[str, float]:
        """Measured numbers by name: loss, loss_unc, accuracy, ... of training; val_loss, ... of validation at the end
        of the epoch; clean.loss, ... of a validation set that is called "clean"."""
        ended = self.ended
        if ended is not None:
            return self.train.numbers() | ended.numbers()
        val = {} if self.val is None else self.val.numbers()
        return self.train.numbers() | {f"val_{name}": number for name, number in val.items()}

    def _repr_html_(self) -> str:
        return numbers_html(self.numbers())

    @property
    def ended(self) -> Evaluation | None:
        """The evaluation at the end of the epoch."""
        last = self.evaluations[-1] if self.evaluations else None
        return last if last is not None and last.val is self.val else None

    def drop_predictions(self) -> None:
        """Free the predictions: fit keeps those of its last epoch."""
        for result in (self.train, self.val, *self.evaluations):
            if result is not None:
                result.drop_predictions()

    def state(self) -> dict[str, Any]:
        """All but its seconds and evaluations, as plain values and arrays: "train.losses", "val.losses", ...; see
        Result.state."""
        ended = self.ended is not None
        kept: dict[str, Any] = {
            "epoch": self.epoch, "planned_bytes": self.planned_bytes, "rates": dict(self.rates), "ended": ended,
            "evaluations": len(self.evaluations), "averaged": self.averaged,
        }  # fmt: skip
        parts = {"train": self.train} | ({} if self.val is None or ended else {"val": self.val})
        return kept | {f"{part}.{name}": value for part, one in parts.items() for name, value in one.state().items()}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], evaluations: tuple[Evaluation, ...], seconds: float) -> EpochResult:
        """The EpochResult that `state` was taken from, with its evaluations."""
        val = under(state, "val.")
        made = evaluations[-1].val if state["ended"] else Result.of_state(val) if val else None
        train = Result.of_state(under(state, "train."))
        rest = state["planned_bytes"], state["rates"], state["averaged"], evaluations
        return cls(state["epoch"], train, made, seconds, *rest)
