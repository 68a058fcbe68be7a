"""Model quality equals scikit-learn's functions and gl.evaluate on the same held-out rows."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.cli.main import main
from gradloom.reports.held_out import HeldOut, held_out
from gradloom.reports.importance import Importance, importance
from gradloom.reports.quality import Classes, Numbers, calibration_curve, confusion_matrix, quality, roc_curve
from gradloom.reports.run_files import read_run_files

NAMES = ["age", "plan", "calls", "city </script>\u202e", "noise"]


def write_churn(path: Path, rows: int = 1500, seed: int = 1) -> None:
    """Customers who leave because of `plan` and `calls`; the other columns determine nothing."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*NAMES, "churn"])
        for _ in range(rows):
            plan, calls = rng.choice("abc"), rng.randint(0, 20)
            leaves = 2 * (plan == "a") + 0.3 * calls - 4 + rng.gauss(0, 0.5) > 0
            city = rng.choice(["Bonn", "K\u00f6ln</script><b>", "Ulm\u202e"])
            out.writerow([rng.randint(18, 80), plan, calls, city, round(rng.random(), 4), "yes" if leaves else "no"])


def fit(*words: str) -> None:
    assert main(["fit", *words, "--quiet"]) == 0


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("churn")
    write_churn(folder / "churn.csv")
    fit(str(folder / "churn.csv"), "--out", str(folder / "run"), "--epochs", "12", "--ensemble", "2", "--folds", "0")
    return folder / "run"


def opened(run: Path) -> tuple[Any, HeldOut]:
    found = read_run_files(run)
    assert found.model is not None
    return found.model, held_out(found.model, found.settings)


def test_the_held_out_rows_are_those_of_the_run(churn: Path) -> None:
    model, rows = opened(churn)
    result = json.loads((churn / "result.json").read_text())
    found = quality(model, rows)
    assert isinstance(found, Classes) and (rows.part, rows.count) == ("test", result["rows_test"])
    assert found.confusion.tolist() == result["test_confusion"]
    for name in ("accuracy", "roc_auc", "log_loss", "brier", "f1_macro", "accuracy_unc"):
        assert found.scores[name] == pytest.approx(result[f"test_{name}"], rel=1e-6), name
    table = gl.data.read_table(str(churn.parent / "churn.csv"), val_split=None)
    assert table.test is not None
    order = np.lexsort(rows.features.T)
    assert np.array_equal(rows.features[order], table.test.data[np.lexsort(table.test.data.T)])
    measured = gl.evaluate(model.net, (rows.features, rows.targets.astype(np.int32)), loss="cross_entropy")
    assert found.scores["accuracy"] == pytest.approx(measured.accuracy, abs=1e-12)
    assert found.scores["log_loss"] == pytest.approx(measured.loss, rel=1e-5)


def test_classes_equal_those_of_scikit_learn(churn: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    model, rows = opened(churn)
    found = quality(model, rows)
    assert isinstance(found, Classes)
    assert np.array_equal(found.confusion, metrics.confusion_matrix(rows.targets, found.predicted))
    x, y, threshold = metrics.roc_curve(rows.targets, found.probabilities[:, 1])
    (roc,) = found.roc
    assert np.array_equal(roc.false_positive, x) and np.array_equal(roc.true_positive, y)
    assert np.array_equal(roc.threshold, threshold)
    assert roc.area == pytest.approx(metrics.roc_auc_score(rows.targets, found.probabilities[:, 1]), abs=1e-12)
    observed, predicted = calibration.calibration_curve(rows.targets, found.probabilities[:, 1], n_bins=10)
    assert np.allclose(found.calibration.observed, observed) and np.allclose(found.calibration.predicted, predicted)
    own = found.probabilities[np.arange(rows.count), rows.targets]
    assert np.array_equal(np.sort(own)[:20], own[found.worst])


@pytest.mark.parametrize("seed", range(20))
def test_curves_of_odd_scores_equal_those_of_scikit_learn(seed: int) -> None:
    """Ties, scores of 0 and 1, few rows, one class that is rare."""
    metrics = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    score = np.round(rng.random(n), int(rng.integers(0, 3)))
    label = rng.random(n) < rng.random()
    label[:2] = True, False
    found = roc_curve(label, score)
    x, y, threshold = metrics.roc_curve(label, score)
    assert np.allclose(found.false_positive, x) and np.allclose(found.true_positive, y)
    assert np.array_equal(found.threshold, threshold)
    assert found.area == pytest.approx(metrics.roc_auc_score(label, score))
    observed, predicted = calibration.calibration_curve(label, score, n_bins=10)
    made = calibration_curve(label, score)
    assert np.allclose(made.observed, observed) and np.allclose(made.predicted, predicted)
    assert made.rows.sum() == n
    classes = rng.integers(0, 4, (2, n))
    expected = metrics.confusion_matrix(*classes, labels=range(4))
    assert np.array_equal(confusion_matrix(classes[0], classes[1], 4), expected)


def test_a_curve_of_rows_of_one_class_has_no_area() -> None:
    found = roc_curve(np.array([True, True]), np.array([0.2, 0.7]))
    assert np.isnan(found.area) and not np.isnan(found.true_positive).any()


class Wrapped:
    """A model as an estimator of scikit-learn, on encoded rows."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, *_: Any) -> Wrapped:
        return self

    def score(self, features: np.ndarray, targets: np.ndarray) -> float:
        outputs = self.model.outputs(np.ascontiguousarray(features))
        if self.model.task == "classification":
            return float((outputs.argmax(axis=1) == targets).mean())
        from sklearn.metrics import r2_score

        return float(r2_score(targets, self.model.preprocess.outputs_to_targets(outputs)))


def sklearn_importance(model: Any, rows: HeldOut, repeats: int) -> Any:
    inspection = pytest.importorskip("sklearn.inspection")
    return inspection.permutation_importance(
        Wrapped(model), rows.features, rows.targets, n_repeats=repeats, random_state=0
    )


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression whose columns are one feature each."""
    folder = tmp_path_factory.mktemp("line")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    y = 3 * x[:, 0] - x[:, 2] + 0.1 * rng.normal(size=600)
    text = ["a,b,c,d,y", *(",".join(f"{v:.5f}" for v in (*row, one)) for row, one in zip(x, y, strict=True))]
    (folder / "line.csv").write_text("\n".join(text) + "\n")
    words = ["--epochs", "10", "--hidden", "16", "--ensemble", "1", "--batch-size", "32", "--loss", "mse"]
    fit(str(folder / "line.csv"), "--out", str(folder / "run"), *words)
    return folder / "run"


def test_a_regression_equals_its_result_and_scikit_learn(line: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    model, rows = opened(line)
    found = quality(model, rows)
    result = json.loads((line / "result.json").read_text())
    assert isinstance(found, Numbers) and rows.part == "test"
    for name in ("r2", "rmse", "mae"):
        assert found.scores[name] == pytest.approx(result[f"test_{name}"], rel=1e-6), name
    assert found.scores["r2"] == pytest.approx(metrics.r2_score(rows.targets, found.predicted))
    assert np.array_equal(np.sort(-abs(found.residuals[:, 0]))[:20], -abs(found.residuals[found.worst, 0]))


@pytest.mark.parametrize("name", ["line", "churn"])
def test_importance_equals_that_of_scikit_learn(name: str, request: pytest.FixtureRequest) -> None:
    model, rows = opened(request.getfixturevalue(name))
    found = importance(model, rows, repeats=4)
    assert found is not None and found.rows == found.of_rows == rows.count and found.repeats == 4
    theirs = sklearn_importance(model, rows, 4)
    widths = [c.width for c in model.preprocess.columns if c.width]
    starts = np.cumsum([0, *widths[:-1]])
    alone = [i for i, width in enumerate(widths) if width == 1]
    assert len(alone) >= 3
    for i in alone:  # scikit-learn shuffles single features
        assert found.mean[i] == pytest.approx(theirs.importances_mean[starts[i]], abs=1e-9)
        assert found.spread[i] == pytest.approx(theirs.importances_std[starts[i]], abs=1e-9)


def test_importance_finds_the_columns_that_determine_the_target(churn: Path) -> None:
    model, rows = opened(churn)
    found = importance(model, rows)
    assert isinstance(found, Importance) and found.names == NAMES
    assert {found.names[i] for i in found.order()[:2]} == {"plan", "calls"}
    for i, name in enumerate(found.names):
        determines = name in ("plan", "calls")
        assert (found.mean[i] > 5 * found.error[i]) == determines, (name, found.mean[i], found.error[i])
        assert (found.mean[i] > 0.05) == determines


def test_importance_stays_within_its_time(churn: Path) -> None:
    """Fewer rows, then fewer repeats, then fewer columns; the counts are stated."""
    model, rows = opened(churn)
    many = HeldOut(
        rows.path, rows.part, np.tile(rows.rows, 10), np.tile(rows.features, (10, 1)), np.tile(rows.targets, 10),
        np.tile(rows.outputs, (10, 1)),
    )  # fmt: skip
    found = importance(model, many, seconds=1e-6)
    assert found is not None and (found.rows, found.of_rows, found.repeats) == (500, many.count, 3)
    assert found.left_out == len(NAMES) - len(found.names) > 0
    assert "500 of 3,000 rows" in found.described() and f"last {found.left_out} column" in found.described()


def test_a_changed_or_missing_file_is_stated_in_one_line(churn: Path, tmp_path: Path) -> None:
    found = read_run_files(churn)
    changed = tmp_path / "churn.csv"
    changed.write_text((churn.parent / "churn.csv").read_text() + "20,a,3,Bonn,0.5,no\n")
    with pytest.raises(gl.FileError, match="has changed since the training: its digest was sha256:.* and is now sha"):
        held_out(found.model, {"data": str(changed)})
    with pytest.raises(gl.FileError, match="gone.csv: cannot be read: no such file or directory"):
        held_out(found.model, {"data": str(tmp_path / "gone.csv")})
    with pytest.raises(gl.FileError, match="the place of its data file is not recorded; need it as data"):
        held_out(found.model, {})
    without = SimpleNamespace(uses=None)
    with pytest.raises(gl.FileError, match="does not hold which rows"):
        held_out(without, {"data": str(changed)})  # type: ignore[arg-type]


def test_rows_of_another_file_are_measured_where_it_is_given(churn: Path, tmp_path: Path) -> None:
    model, _ = opened(churn)
    write_churn(tmp_path / "new.csv", rows=200, seed=7)
    rows = held_out(model, {}, data=str(tmp_path / "new.csv"))
    assert (rows.part, rows.count, rows.described()) == ("given", 200, "200 rows of new.csv")
    own = held_out(model, {}, data=str(churn.parent / "churn.csv"))
    assert own.part == "test" and own.count == 300


def test_validation_rows_are_used_where_there_are_no_test_rows(tmp_path: Path) -> None:
    write_churn(tmp_path / "all.csv", rows=400)
    table = gl.data.read_table(str(tmp_path / "all.csv"), test_split=0.0, val_split=0.25)
    from gradloom.llm.input_digest import digest

    assert table.uses is not None
    table.uses.digests = {"data": digest(tmp_path / "all.csv")}
    net = gl.nn.Sequential(gl.nn.Linear(table.preprocess.inputs, 2))
    model = gl.train.Model(net, table.preprocess, uses=table.uses)
    rows = held_out(model, {"data": str(tmp_path / "all.csv")})
    assert (rows.part, rows.count) == ("validation", 100)
