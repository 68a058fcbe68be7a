"""Random cases of named metrics against scikit-learn: weights (some 0), labels of -100, classes without rows, ties.

python -m tests.metrics.metric_cases --count 10000 [--first 0]
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import metrics as M
from gradloom.run.numpy_backend import evaluate
from gradloom.train.metrics import standard_error
from tests.random_cases import run_cases

Check = tuple[str, Any, Any]  # name, ours, scikit-learn's
AVERAGES = ("macro", "micro", "weighted", None)


class Case:
    """Arrays of one case, by its number."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = int(self.rng.integers(1, 40))
        self.classes = int(self.rng.integers(2, 6))
        self.weights = None
        if self.rng.random() < 0.5:
            self.weights = self.rng.uniform(0.1, 3, self.n)
            self.weights[self.rng.random(self.n) < 0.2] = 0
            self.weights[0] = 1.0

    def logits(self, *shape: int) -> np.ndarray:
        """Many of them equal in half of the cases."""
        x = self.rng.standard_normal((self.n, *shape)) * 2
        return (np.round(x) if self.rng.random() < 0.5 else x).astype(np.float32)

    def ids(self) -> np.ndarray:
        """Class ids, some ignored; in half of the cases some class has no row."""
        ids = self.rng.integers(0, self.rng.integers(1, self.classes + 1), self.n)
        ids[self.rng.random(self.n) < 0.1] = -100
        ids[0] = 0
        return ids

    def counted(self, ids: np.ndarray) -> np.ndarray:
        return ids != -100 if self.weights is None else (ids != -100) & (self.weights > 0)

    def weights_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.weights is None else self.weights[rows]


def of_counts(true: Any, guess: Any, w: Any, x: Any, y: Any, weights: Any, labels: Any, rng: Any) -> Iterator[Check]:
    """Scores of counts. labels: of scikit-learn's average=None."""
    from sklearn import metrics as S

    zero = float(rng.choice([0.0, 1.0]))
    beta = float(rng.uniform(0.3, 3))
    kinds = {
        "precision": (lambda **o: M.Precision(**o), lambda **o: S.precision_score(true, guess, **o)),
        "recall": (lambda **o: M.Recall(**o), lambda **o: S.recall_score(true, guess, **o)),
        "f1": (lambda **o: M.F1(**o), lambda **o: S.f1_score(true, guess, **o)),
        "f_beta": (lambda **o: M.FBeta(beta=beta, **o), lambda **o: S.fbeta_score(true, guess, beta=beta, **o)),
        "iou": (lambda **o: M.IoU(**o), lambda **o: S.jaccard_score(true, guess, **o)),
    }
    for name, (ours, theirs) in kinds.items():
        for average in AVERAGES:
            more = {"labels": labels} if average is None else {}
            expected = theirs(average=average, sample_weight=w, zero_division=zero, **more)
            yield f"{name}, {average}", ours(average=average, zero_division=zero)(x, y, weights), expected
        one = int(rng.integers(len(labels)))
        expected = theirs(average=None, labels=labels, sample_weight=w, zero_division=zero)[one]
        yield f"{name} of {one}", ours(label=one, zero_division=zero)(x, y, weights), expected
        if name != "iou":
            expected = theirs(average="macro", sample_weight=w, zero_division=math.nan)
            yield f"{name}, nan", ours(average="macro", zero_division=math.nan)(x, y, weights), expected


def exclusive(case: Case) -> Iterator[Check]:
    from sklearn import metrics as S

    x, y = case.logits(case.classes), case.ids()
    rows = case.counted(y)
    w, true = case.weights_of(rows), y[rows]
    guess = x[rows].argmax(1)
    yield from of_counts(true, guess, w, x, y, case.weights, np.arange(case.classes), case.rng)
    matrix = S.confusion_matrix(true, guess, labels=np.arange(case.classes), sample_weight=w)
    yield "confusion_matrix", M.confusion_matrix(x, y, case.weights), matrix

    chosen = x[rows].astype(np.float64)
    shares = np.exp(chosen - chosen.max(1, keepdims=True))  # rounded as ours: ties stay ties
    shares /= shares.sum(1, keepdims=True)
    hits = true[:, None] == np.arange(case.classes)
    parts = range(1, 2) if case.classes == 2 else range(case.classes)
    areas = np.array([
        S.roc_auc_score(hits[:, c], shares[:, c], sample_weight=w) if 0 < hits[:, c].sum() < len(hits) else math.nan
        for c in parts
    ])  # fmt: skip
    yield "roc_auc of each", M.ROCAUC(average=None)(x, y, case.weights), areas
    known = ~np.isnan(areas)
    macro = areas[known].mean() if known.any() else math.nan
    yield "roc_auc", M.ROCAUC()(x, y, case.weights), macro
    if hits.any(0).all() and case.classes > 2:
        for average in ("macro", "micro", "weighted"):
            expected = S.roc_auc_score(true, shares, average=average, sample_weight=w, multi_class="ovr")
            yield f"roc_auc, {average}", M.ROCAUC(average=average)(x, y, case.weights), expected
    for average in AVERAGES:
        expected = S.average_precision_score(hits.astype(int), shares, average=average, sample_weight=w)
        yield f"average_precision, {average}", M.AveragePrecision(average=average)(x, y, case.weights), expected
    bins = int(case.rng.integers(1, 20))
    yield "ece", M.ECE(bins=bins)(x, y, case.weights), ece(shares.max(1), guess == true, w, bins)
    k = int(case.rng.integers(1, case.classes + 1))
    top = S.top_k_accuracy_score(true, x[rows], k=k, sample_weight=w, labels=np.arange(case.classes)) if (
        case.classes > 2) else None  # fmt: skip
    if top is not None:
        yield "top_k", mean_of(M.TopK(k=k), x, y, case.weights), top
    loss = S.log_loss(true, shares, sample_weight=w, labels=np.arange(case.classes))
    yield "perplexity", mean_of(M.Perplexity(), x, y, case.weights), math.exp(loss)


def mean_of(score: M.Score, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> float:
    """A metric of values per row, by their float64 references."""
    kind = "f32" if y.dtype.kind == "f" else "i32"
    value = score(gl.input("x", x.shape), gl.input("y", y.shape, kind), None)
    each = evaluate([value], {"x": x, "y": y.astype("f4" if kind == "f32" else "i4")})[value]
    counted = np.ones(len(x)) if weights is None else weights.copy()
    if y.dtype.kind == "i":
        counted[y == -100] = 0
    return score.reported(float(np.average(each, weights=counted)), 0.0)[0]


def ece(shares: np.ndarray, right: np.ndarray, w: np.ndarray | None, bins: int) -> float:
    """By its definition, bin by bin."""
    w = np.ones(len(shares)) if w is None else w
    edges, total = np.linspace(0, 1, bins + 1), 0.0
    for i in range(bins):
        inside = (shares > edges[i]) & (shares <= edges[i + 1]) | ((i == 0) & (shares == 0))
        if w[inside].any():
            part = w[inside]
            total += part.sum() * abs(
                np.average(right[inside], weights=part) - np.average(shares[inside], weights=part)
            )
    return total / w.sum()


def one_label(case: Case) -> Iterator[Check]:
    from sklearn import metrics as S

    x, y = case.logits(), np.minimum(case.ids(), 1)
    if case.rng.random() < 0.5:
        x = x[:, None]
    rows = case.counted(y)
    w, true, score = case.weights_of(rows), y[rows], x[rows].ravel().astype(np.float64)
    guess = (score > 0).astype(int)
    yield from of_counts(true, guess, w, x, y, case.weights, np.arange(2), case.rng)
    for name, ours, theirs in (
        ("precision", M.Precision(), S.precision_score), ("f1", M.F1(), S.f1_score), ("iou", M.IoU(), S.jaccard_score),
    ):  # fmt: skip
        expected = theirs(true, guess, pos_label=1, average="binary", sample_weight=w, zero_division=0)
        yield f"{name} of yes", ours(x, y, case.weights), expected
    yield "binary_accuracy", M.BinaryAccuracy()(x, y, case.weights), S.accuracy_score(true, guess, sample_weight=w)
    matrix = S.confusion_matrix(true, guess, labels=[0, 1], sample_weight=w)
    yield "confusion_matrix", M.confusion_matrix(x, y, case.weights), matrix
    area = S.roc_auc_score(true, score, sample_weight=w) if 0 < true.sum() < len(true) else math.nan
    yield "roc_auc", M.ROCAUC()(x, y, case.weights), area
    expected = S.average_precision_score(true, score, sample_weight=w)
    yield "average_precision", M.AveragePrecision()(x, y, case.weights), expected
    share = 1 / (1 + np.exp(-score))
    yield "ece", M.ECE()(x, y, case.weights), ece(share, true, w, 15)


def several_labels(case: Case) -> Iterator[Check]:
    from sklearn import metrics as S

    x = case.logits(case.classes)
    y = (case.rng.random(x.shape) < case.rng.uniform(0, 1, case.classes)).astype(np.float32)
    rows = np.ones(case.n, bool) if case.weights is None else case.weights > 0
    w, true, score = case.weights_of(rows), y[rows].astype(int), x[rows].astype(np.float64)
    guess = (score > 0).astype(int)
    yield from of_counts(true, guess, w, x, y, case.weights, np.arange(case.classes), case.rng)
    for average in AVERAGES:
        expected = S.average_precision_score(true, score, average=average, sample_weight=w)
        if average == "micro" or average is None or true.any():
            yield f"average_precision, {average}", M.AveragePrecision(average=average)(x, y, case.weights), expected
    if (true.any(0) & ~true.all(0)).all():
        for average in AVERAGES:
            expected = S.roc_auc_score(true, score, average=average, sample_weight=w)
            yield f"roc_auc, {average}", M.ROCAUC(average=average)(x, y, case.weights), expected
    flat = None if w is None else np.repeat(w, case.classes)
    share = 1 / (1 + np.exp(-score))
    yield "ece", M.ECE()(x, y, case.weights), ece(share.ravel(), true.ravel(), flat, 15)
    expected = S.accuracy_score(true.ravel(), guess.ravel(), sample_weight=flat)
    yield "binary_accuracy", M.BinaryAccuracy()(x, y, case.weights), expected


def numbers(case: Case) -> Iterator[Check]:
    from sklearn import metrics as S

    shape = () if case.rng.random() < 0.5 else (case.classes,)
    x, y = case.logits(*shape), case.logits(*shape)
    if case.rng.random() < 0.2:
        y[...] = 2.0  # a constant target
    if case.rng.random() < 0.1:
        x = y.copy()
    y[y == 0] = 0.25  # mape: 1 / 2.2e-16 is no number of f32's precision
    w = case.weights
    rows = np.ones(case.n, bool) if w is None else w > 0
    given = {"sample_weight": case.weights_of(rows)}
    true, guess = y[rows].astype(np.float64), x[rows].astype(np.float64)
    yield "mae", mean_of(M.MAE(), x, y, w), S.mean_absolute_error(true, guess, **given)
    yield "mape", mean_of(M.MAPE(), x, y, w), S.mean_absolute_percentage_error(true, guess, **given)
    expected = S.root_mean_squared_error(true, guess, **given)
    yield "rmse", M.RMSE()(x, y, w), expected
    found = M.RMSE().measured(x, y, w)
    if isinstance(found, tuple):
        mean, spread = found[0].sum() / found[1].sum(), standard_error(found[0] / found[1], found[1])
        root, error = M.RMSE().reported(float(mean), spread)
        yield "rmse from its parts", root, expected
        yield "uncertainty of rmse", error, spread / (2 * expected) if expected else math.nan
    else:
        yield "rmse as it is reported", M.RMSE().reported(found, 0.0)[0], expected
    r2 = S.r2_score(true, guess, **given) if rows.sum() > 1 else math.nan
    if rows.sum() > 1 and (true == true.flat[0]).all():  # scikit-learn divides by the rounding of a weighted mean
        r2 = np.mean((guess == true).all(axis=0))
    yield "r2", M.R2()(x, y, w), r2


KINDS = (exclusive, one_label, several_labels, numbers)


def compare(seed: int) -> int:
    """Compare the case of this number, and return how many numbers it has. AssertionError where one differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of scores that are not defined
        checks = list(KINDS[seed % len(KINDS)](Case(seed)))
    for name, ours, theirs in checks:
        message = f"case {seed}: {KINDS[seed % len(KINDS)].__name__}, {name}"
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=message)
    return len(checks)


if __name__ == "__main__":
    run_cases(compare, __doc__)
