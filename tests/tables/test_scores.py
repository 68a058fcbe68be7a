"""Scores of predictions against scikit-learn's, with row weights, ties, absent classes; baselines; uncertainties."""

import numpy as np
import pytest

from gradloom.base.errors import ShapeError
from gradloom.tables.scores import (
    classification_scores,
    confusion,
    constant,
    gain,
    majority,
    of_each_class,
    regression_scores,
)

metrics = pytest.importorskip("sklearn.metrics")
CASES = [(2, 40), (2, 3), (3, 50), (7, 200)]


def drawn(classes, rows, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes)) * 2
    logits = np.round(logits) if ties else logits
    p = np.exp(logits)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, rows)])[:rows]  # each class has a row
    return p / p.sum(1, keepdims=True), labels, rng.uniform(0.1, 3, rows)


@pytest.mark.parametrize(("classes", "rows"), CASES)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_classification_is_scikit_learns(classes, rows, ties, weighted):
    p, labels, weights = drawn(classes, rows, ties=ties)
    w = weights if weighted else None
    guess = p.argmax(1)
    want = {
        "accuracy": metrics.accuracy_score(labels, guess, sample_weight=w),
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, guess, sample_weight=w),
        "f1_macro": metrics.f1_score(labels, guess, average="macro", sample_weight=w),
        "log_loss": metrics.log_loss(labels, p, sample_weight=w),
        "brier": metrics.brier_score_loss(labels, p[:, 1] if classes == 2 else p, sample_weight=w),
        "roc_auc": metrics.roc_auc_score(
            labels, p[:, 1] if classes == 2 else p, multi_class="ovr", sample_weight=w
        ),
    }  # fmt: skip
    found = classification_scores(p, labels, w)
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-12)


def test_of_classes_that_no_row_has():
    p, labels, _ = drawn(3, 30)
    labels = labels % 2
    guess = p.argmax(1)
    found = classification_scores(p, labels)
    with pytest.warns(UserWarning):
        assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, guess))
    assert found["f1_macro"] == pytest.approx(metrics.f1_score(labels, guess, average="macro"))
    one = classification_scores(p[:5], np.zeros(5, int))
    assert np.isnan(one["roc_auc"]) and np.isnan(one["roc_auc_unc"]) and one["log_loss"] > 0


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_regression_is_scikit_learns(targets, weighted):
    rng = np.random.default_rng(targets)
    true = rng.standard_normal((50, targets)) * 7 + 3
    guess = true + rng.standard_normal((50, targets)) * np.arange(1, targets + 1)
    w = rng.uniform(0.1, 3, 50) if weighted else None
    found = regression_scores(guess, true, w)
    assert found["r2"] == pytest.approx(metrics.r2_score(true, guess, sample_weight=w), rel=1e-12)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(true, guess, sample_weight=w), rel=1e-12)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(true, guess, sample_weight=w), rel=1e-12)
    assert np.isnan(regression_scores(guess, np.ones_like(guess))["r2"])


def test_each_class_is_scikit_learns():
    p, labels, _ = drawn(4, 60)
    guess = p.argmax(1)
    guess[guess == 3] = 0  # a class that is never predicted
    names = ["a", "b", "c", "d"]
    want = metrics.precision_recall_fscore_support(labels, guess, labels=range(4), zero_division=0)
    found = of_each_class(guess, labels, names)
    for i, name in enumerate(names):
        assert list(found[name].values()) == pytest.approx([column[i] for column in want])
    assert confusion(guess, labels, 4) == metrics.confusion_matrix(labels, guess, labels=range(4)).tolist()
    assert confusion(guess, labels, 51) is None


@pytest.mark.slow
def test_uncertainties_are_those_of_other_draws_of_rows():
    """The spread of the score over 300 fresh data sets, against the uncertainty that one of them tells."""
    fresh = [classification_scores(*drawn(2, 150, seed)[:2]) for seed in range(300)]
    for name in ("balanced_accuracy", "f1_macro", "roc_auc", "log_loss", "brier"):
        spread = np.std([one[name] for one in fresh])
        told = np.median([one[name + "_unc"] for one in fresh[:40]])
        assert 0.8 * spread < told < 1.25 * spread, name
    rng = np.random.default_rng(0)
    errors = [regression_scores(rng.standard_normal((100, 1)), np.zeros((100, 1))) for _ in range(200)]
    for name in ("rmse", "mae"):
        spread = np.std([one[name] for one in errors])
        assert 0.8 * spread < np.median([one[name + "_unc"] for one in errors[:30]]) < 1.25 * spread


def test_the_baseline():
    dummy = pytest.importorskip("sklearn.dummy")
    rng = np.random.default_rng(3)
    train, labels = rng.choice(3, 90, p=[0.2, 0.7, 0.1]), rng.choice(3, 40, p=[0.3, 0.5, 0.2])
    prior = dummy.DummyClassifier(strategy="prior").fit(np.zeros((90, 1)), train)
    scores, most = majority(train, labels, 3)
    assert most == 1 and scores["accuracy"] == prior.score(np.zeros((40, 1)), labels)
    want = metrics.log_loss(labels, prior.predict_proba(np.zeros((40, 1))))
    assert scores["log_loss"] == pytest.approx(want)
    true = rng.standard_normal((30, 2))
    assert constant(np.zeros(2), true)["mae"] == pytest.approx(np.abs(true).mean())


def test_gain_is_paired():
    base = np.random.default_rng(0).standard_normal(50)
    assert gain(base - 1, base) == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    mean, error = gain(np.zeros(50), base)
    assert error == pytest.approx(base.std(ddof=1) / 50**0.5) and mean == pytest.approx(base.mean())


def test_shapes_are_checked():
    with pytest.raises(ShapeError, match=r"\[3, 2\] and \[4\]; need \[rows, classes\] and \[rows\]"):
        classification_scores(np.ones((3, 2)) / 2, np.zeros(4, int))
    with pytest.raises(ShapeError, match=r"weights of shape \[2\]; need \[3\]"):
        classification_scores(np.ones((3, 2)) / 2, np.zeros(3, int), np.ones(2))
