"""Scores of predictions on held-out rows, their uncertainties, and scores of a baseline.

The definitions are scikit-learn's (balanced_accuracy_score, f1_score(average="macro"), roc_auc_score with
multi_class="ovr", log_loss, brier_score_loss, root_mean_squared_error, mean_absolute_error, r2_score). An
uncertainty is the standard deviation of the score over resamplings of the rows (bootstrap) from a fixed seed; it does
not depend on the order of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import ShapeError
from ..metrics.ranking import Ranking
from ..train.metric import UNCERTAINTY, Metric
from ..train.metrics import standard_error

_RESAMPLINGS = 200
_MOST_NUMBERS = 100_000_000  # that all resamplings of one score look at; large data need fewer of them
_SEED = 0
_MOST_SHOWN = 50  # classes of a confusion matrix

Scores = dict[str, float]


class Measure(NamedTuple):
    """Scores of rows as a function of their weights, f64 [rows]; what resamplings need: keys, numbers of each row that
    order the rows, and how many numbers one resampling looks at."""

    scores: Callable[[np.ndarray], Scores]
    keys: Sequence[np.ndarray]
    numbers: int


def classification_scores(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, uncertainties: bool = True
) -> Scores:
    """accuracy, balanced_accuracy, f1_macro, roc_auc, log_loss, brier; each followed by NAME_unc where asked for.

    probabilities: f64 [rows, classes], each row adds up to 1. labels: ids i [rows]. weights: of the rows, f64 [rows].
    The predicted class is the one with the largest probability. balanced_accuracy averages the recall of the classes
    that have rows; roc_auc is that of the second class where there are two, else the mean over the classes that have
    rows (each against the rest); brier is the mean squared distance, halved for two classes. nan: not defined for these
    rows. ShapeError where the arrays do not fit together.
    """
    _check(probabilities, labels, weights)
    scores, keys, numbers = class_measure(probabilities, labels)
    return with_uncertainties(scores, keys, numbers if uncertainties else 0, weights)


def class_measure(probabilities: np.ndarray, labels: np.ndarray) -> Measure:
    """The scores of classification_scores."""
    rows, classes = probabilities.shape
    predicted = probabilities.argmax(axis=1)
    own = probabilities[np.arange(rows), labels]
    surprise = -np.log(np.clip(own, np.finfo(np.float64).eps, 1.0))
    squares = np.square(probabilities).sum(axis=1) - 2 * own + 1
    curves = [Ranking(probabilities[:, c], labels == c) for c in ((1,) if classes == 2 else range(classes))]

    def scores(weight: np.ndarray) -> Scores:
        total = weight.sum()
        hits = np.bincount(labels, weight * (predicted == labels), classes)
        true, guessed = np.bincount(labels, weight, classes), np.bincount(predicted, weight, classes)
        present, seen = true > 0, (true > 0) | (guessed > 0)
        areas = np.array([curve.area(weight) for curve in curves])
        return {
            "accuracy": float(hits.sum() / total),
            "balanced_accuracy": float((hits[present] / true[present]).mean()),
            "f1_macro": float((2 * hits[seen] / (true[seen] + guessed[seen])).mean()),
            "roc_auc": math.nan if np.isnan(areas).all() else float(np.nanmean(areas)),
            "log_loss": float((weight * surprise).sum() / total),
            "brier": float((weight * squares).sum() / total / (2 if classes == 2 else 1)),
        }

    return Measure(scores, (squares, own, predicted, labels), rows * (len(curves) + 4))


def class_probabilities(outputs: np.ndarray, loss: str) -> np.ndarray:
    """f64 [rows, classes] of a model's outputs f32 [rows, classes]: the softmax of logits; of a model that was trained
    with the loss "mse", whose outputs are shares already, those within 0 and 1, divided by their sum."""
    values = outputs.astype(np.float64)
    if loss == "mse":
        shares = np.clip(values, 0.0, 1.0)
        shares[shares.sum(axis=1) == 0] = 1.0
    else:
        shares = np.exp(values - values.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def regression_scores(
    predicted: np.ndarray, true: np.ndarray, weights: np.ndarray | None = None, uncertainties: bool = True
) -> Scores:
    """r2 (share of the variance explained, 1 is perfect), rmse and mae in the units of the target; each followed by
    NAME_unc where asked for.

    predicted, true: f64 [rows, targets]; each score is the mean of those of the targets. r2 is nan where a target is
    constant. ShapeError where the arrays do not fit together.
    """
    scores, keys, numbers = number_measure(predicted, true)
    return with_uncertainties(scores, keys, numbers if uncertainties else 0, weights)


def number_measure(predicted: np.ndarray, true: np.ndarray) -> Measure:
    """The scores of regression_scores."""
    true = np.reshape(true, predicted.shape).astype(np.float64)
    error = np.abs(predicted - true)

    def differ(weight: np.ndarray) -> bool:
        counted = true[weight > 0]
        return bool((counted != counted[0]).any(axis=0).all())

    def scores(weight: np.ndarray) -> Scores:
        share = weight / weight.sum()
        squares = share @ np.square(error)
        spread = share @ np.square(true - share @ true)
        return {
            "r2": float(np.mean(1 - squares / spread)) if differ(weight) else math.nan,
            "rmse": float(np.sqrt(squares).mean()),
            "mae": float((share @ error).mean()),
        }

    keys = [*np.reshape(predicted, (len(true), -1)).T, *np.reshape(true, (len(true), -1)).T]
    return Measure(scores, keys, 4 * true.size)


def of_each_class(predicted: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, dict[str, float]]:
    """precision, recall, f1 and the number of rows of each class by its name; 0 where nothing is divided by nothing.

    predicted, labels: ids i [rows].
    """
    classes = len(names)
    hits = np.bincount(labels[predicted == labels], minlength=classes)
    true, guessed = np.bincount(labels, minlength=classes), np.bincount(predicted, minlength=classes)
    columns = {
        "precision": hits / np.maximum(guessed, 1),
        "recall": hits / np.maximum(true, 1),
        "f1": 2 * hits / np.maximum(true + guessed, 1),
    }
    return {
        name: {key: float(values[i]) for key, values in columns.items()} | {"rows": int(true[i])}
        for i, name in enumerate(names)
    }


def confusion(predicted: np.ndarray, labels: np.ndarray, classes: int) -> list[list[int]] | None:
    """Rows of each true class (first index) that were given each class (second index); None for more than 50
    classes."""
    if classes > _MOST_SHOWN:
        return None
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).tolist()


# ---- while training ---


SCORES = {
    "classification": ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "log_loss", "brier"),
    "regression": ("rmse", "mae", "r2"),
}
HIGHER = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "r2")  # those that are to be large


def is_defined(name: str, labels: np.ndarray, weights: np.ndarray | None) -> bool:
    """Whether the score is a number for rows of these labels: roc_auc requires two classes, r2 targets that differ."""
    if name not in ("roc_auc", "r2"):
        return True
    counted = labels if weights is None else labels[weights > 0]
    differs = (counted != counted[:1]).any(axis=0)
    return bool(differs.all() if name == "r2" else differs.any())


def score_metric(name: str, loss: str, units: Callable[[np.ndarray], np.ndarray]) -> Metric:
    """A score by its name as a metric of gl.fit, of classes or of numbers. loss: of the training.
    units: of outputs f32 [rows, targets], or of their labels, in the units of the target, f64."""

    def of_classes(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> float:
        ids = labels.argmax(axis=1) if labels.ndim == 2 else labels  # mse over classes has rows of 0 and 1
        return classification_scores(class_probabilities(outputs, loss), ids, weights, uncertainties=False)[name]

    def of_numbers(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> float:
        return regression_scores(units(outputs), units(labels), weights, uncertainties=False)[name]

    return Metric(of_numbers if name in SCORES["regression"] else of_classes, whole=True)


# ---- the baseline ----------------------------------------------------------------------------------------------------


def majority(
    train: np.ndarray, labels: np.ndarray, classes: int,
    train_weights: np.ndarray | None = None, weights: np.ndarray | None = None,
) -> tuple[Scores, int]:  # fmt: skip
    """(accuracy and log_loss on labels i [rows], the class): always the most frequent class of the training rows, with
    their shares as probabilities."""
    count = np.bincount(train, train_weights, classes)
    shares = np.clip(count / count.sum(), np.finfo(np.float64).eps, 1.0)
    most = int(count.argmax())
    hits, surprise = labels == most, -np.log(shares[labels])
    return {
        name: float(np.average(v, weights=weights)) for name, v in (("accuracy", hits), ("log_loss", surprise))
    }, most


def constant(value: np.ndarray, true: np.ndarray, weights: np.ndarray | None = None) -> Scores:
    """rmse and mae on true f64 [rows, targets] of the same numbers, f64 [targets], for every row."""
    scores = regression_scores(np.broadcast_to(value, true.shape), true, weights)
    return {name: scores[name] for name in ("rmse", "mae")}


def gain(model: np.ndarray, baseline: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """(mean, standard error) of how much less the model loses than the baseline, from the losses of each on the same
    rows, f64 [rows]; row by row, so that what makes a row hard for both cancels. The error is 0 where it is not
    known."""
    less = baseline.astype(np.float64) - model
    weight = np.ones(len(less)) if weights is None else weights.astype(np.float64)
    less, weight = less[weight > 0], weight[weight > 0]
    error = standard_error(less, weight)
    return float(np.average(less, weights=weight)), 0.0 if math.isnan(error) else error


# ---- uncertainties ---------------------------------------------------------------------------------------------------


def with_uncertainties(
    scores: Callable[[np.ndarray], Scores], keys: Sequence[np.ndarray], numbers: int, weights: np.ndarray | None
) -> Scores:
    """The scores, each followed by its standard deviation over resamplings.

    keys: numbers of each row, [rows] each. Resamplings draw the rows in their order by these, the last one first: the
    same rows in another order have the same uncertainty. numbers: that one resampling looks at, 0: the scores alone.
    """
    rows = len(keys[0])
    weight = np.ones(rows) if weights is None else weights.astype(np.float64)
    found = scores(weight)
    if not numbers:
        return found
    rng = np.random.default_rng(_SEED)
    order = np.lexsort((weight, *keys))
    drawn = []
    for _ in range(min(_RESAMPLINGS, max(_MOST_NUMBERS // max(numbers, 1), 20)) if rows > 1 else 0):
        count = np.empty(rows)
        count[order] = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        count *= weight
        if count.any():
            drawn.append(scores(count))
    made: Scores = {}
    for name, value in found.items():
        values = np.array([one[name] for one in drawn])
        values = values[~np.isnan(values)]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 and not math.isnan(value) else math.nan
        made |= {name: value, name + UNCERTAINTY: spread}
    return made


def _check(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        shapes = f"{list(probabilities.shape)} and {list(labels.shape)}"
        raise ShapeError(f"scores: probabilities and labels of shapes {shapes}; need [rows, classes] and [rows]")
    if weights is not None and weights.shape != labels.shape:
        raise ShapeError(f"scores: weights of shape {list(weights.shape)}; need {list(labels.shape)}")


def prefixed(scores: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The scores with names that begin so: test_accuracy."""
    return {prefix + name: value for name, value in scores.items()}
