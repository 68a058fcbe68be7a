"""Numbers that a reader sees on the page equal gl.evaluate and scikit-learn on predictions of the saved model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.data.frames import features_of
from gradloom.reports.run_report import report
from tests.reports.tables_of import Numbers
from tests.reports.test_quality import NAMES, fit, write_churn


class Opened:
    """A run with a test file of its own, as scikit-learn sees it: cells of the file, and the saved model."""

    def __init__(self, folder: Path, target: str) -> None:
        self.page = Numbers(report(folder / "run").html)
        self.model = gl.load(folder / "run")
        with (folder / "test.csv").open() as file:
            head, *lines = csv.reader(file)
        self.cells = np.array([[line[head.index(name)] for name in head if name != target] for line in lines], object)
        self.answers = np.array([line[head.index(target)] for line in lines])
        self.columns = [name for name in head if name != target]

    def fit(self, *_: Any) -> Opened:
        return self

    def score(self, cells: np.ndarray, answers: np.ndarray) -> float:
        """Accuracy, or R2."""
        metrics = pytest.importorskip("sklearn.metrics")
        predicted = self.model.predict(cells.tolist())
        if self.model.task == "classification":
            return float(metrics.accuracy_score(answers, predicted))
        return float(metrics.r2_score(answers.astype(np.float64), predicted))

    def importance(self) -> Any:
        inspection = pytest.importorskip("sklearn.inspection")
        return inspection.permutation_importance(self, self.cells, self.answers, n_repeats=10, random_state=0)


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("churn")
    write_churn(folder / "churn.csv", rows=1200)
    write_churn(folder / "test.csv", rows=300, seed=2)
    words = ["--test", str(folder / "test.csv"), "--epochs", "12", "--ensemble", "2", "--folds", "0"]
    fit(str(folder / "churn.csv"), "--out", str(folder / "run"), *words)
    return Opened(folder, "churn")


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("line")
    rng = np.random.default_rng(0)
    for name, rows in (("line.csv", 500), ("test.csv", 200)):
        x = rng.normal(size=(rows, 3))
        y = 3 * x[:, 0] - x[:, 2] + 0.1 * rng.normal(size=rows)
        text = ["a,b,c,y", *(",".join(f"{v:.5f}" for v in (*row, one)) for row, one in zip(x, y, strict=True))]
        (folder / name).write_text("\n".join(text) + "\n")
    words = ["--test", str(folder / "test.csv"), "--epochs", "12", "--hidden", "16", "--ensemble", "1", "--loss", "mse"]
    fit(str(folder / "line.csv"), "--out", str(folder / "run"), "--batch-size", "32", *words)
    return Opened(folder, "y")


def last_digit(text: str) -> float:
    """Half a unit of the last digit of a number as text."""
    number, _, exponent = text.partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(number.partition(".")[2])) * 1.001


def test_scores_are_those_of_evaluate(churn: Opened) -> None:
    features, targets, _, _ = features_of(churn.cells.tolist(), churn.model.preprocess)
    assert targets is None
    ids = np.array([churn.model.classes.index(one) for one in churn.answers], np.int32)
    measured = gl.evaluate(churn.model.net, (features, ids), loss="cross_entropy")
    shown = churn.page.numbers["Model quality"]
    text, _, unc = shown["accuracy"].partition(" \u00b1 ")
    assert float(text) == pytest.approx(measured.accuracy, abs=last_digit(text))
    assert float(unc) == pytest.approx(measured.accuracy_unc, abs=last_digit(unc))
    text = shown["log_loss"].partition(" \u00b1 ")[0]
    assert float(text) == pytest.approx(measured.loss, abs=last_digit(text))
    assert churn.page.numbers["Summary"]["test accuracy"] == shown["accuracy"]


def test_confusion_roc_and_calibration_are_those_of_scikit_learn(churn: Opened) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    probability = churn.model.predict_proba(churn.cells.tolist())[:, 1]
    predicted = churn.model.predict(churn.cells.tolist())
    classes = churn.model.classes
    matrix = churn.page.of("Confusion matrix")
    assert matrix.head[1:] == classes == matrix.column("true class")
    expected = metrics.confusion_matrix(churn.answers, predicted, labels=classes)
    assert [[int(cell) for cell in row[1:]] for row in matrix.rows] == expected.tolist()

    roc = churn.page.of("ROC")
    x, y, threshold = metrics.roc_curve(churn.answers, probability, pos_label=classes[1])
    area = metrics.roc_auc_score(churn.answers == classes[1], probability)
    assert set(roc.column("area")) == {f"{area:.4f}"} and set(roc.column("class")) == {classes[1]}
    found = [[float(cell.replace("above all", "inf")) for cell in row[1:4]] for row in roc.rows]
    assert np.allclose(found, np.stack([threshold, x, y], axis=1), rtol=1e-5, atol=1e-6)

    drawn = churn.page.of("Calibration")
    observed, mean = calibration.calibration_curve(churn.answers == classes[1], probability, n_bins=10)
    shown = np.array([[float(cell or "nan") for cell in row] for row in drawn.rows])
    assert np.allclose(shown[:, 0], mean, atol=5.1e-5) and np.allclose(shown[:, 1], observed, atol=5.1e-5)
    assert shown[:, 4].sum() == len(churn.answers)
    error = np.average(abs(observed - mean), weights=shown[:, 4])
    count = shown[:, 4]
    middle, half = observed + 0.5 / count, np.sqrt(observed * (1 - observed) / count + 0.25 / count**2)
    ends = np.stack([middle - half, middle + half], 1) / (1 + 1 / count[:, None])  # Wilson's interval for z = 1
    assert np.allclose(shown[:, 2:4], ends, atol=5.1e-5) and (shown[:, 2] < shown[:, 3]).all()
    assert drawn.caption.endswith(f"expected calibration error {error:.4f}")


def test_importance_is_that_of_scikit_learn_on_the_cells_of_the_file(churn: Opened) -> None:
    """The same rows and the same shuffles: also of columns that are several features of the network."""
    theirs = churn.importance()
    shown = churn.page.of("Permutation importance")
    assert set(shown.column("column")) == set(map(plain, NAMES))
    determines, spread = {}, {}
    for name, value, deviation, error in shown.rows:
        k = [plain(one) for one in churn.columns].index(name)
        assert float(value) == pytest.approx(theirs.importances_mean[k], abs=max(last_digit(value), 1e-9)), name
        assert float(deviation) == pytest.approx(theirs.importances_std[k], abs=max(last_digit(deviation), 1e-9)), name
        determines[name], spread[name] = float(value), max(float(deviation), float(error))
    assert [row[0] for row in shown.rows] == sorted(determines, key=lambda name: -determines[name])
    for name, value in determines.items():
        assert (value > 5 * spread[name]) == (name in ("plan", "calls")), (name, value, spread[name])


def plain(name: str) -> str:
    return name.replace("\u202e", "\\u202e")


def test_a_regression_has_the_numbers_of_scikit_learn(line: Opened) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    true, predicted = line.answers.astype(np.float64), line.model.predict(line.cells.tolist())
    shown = line.page.numbers["Model quality"]
    for name, want in (
        ("r2", metrics.r2_score(true, predicted)),
        ("rmse", metrics.root_mean_squared_error(true, predicted)),
        ("mae", metrics.mean_absolute_error(true, predicted)),
    ):
        text = shown[name].partition(" \u00b1 ")[0]
        assert float(text) == pytest.approx(want, abs=last_digit(text)), name
    scatter = line.page.of("Predicted against true y")
    of_true = dict(zip((f"{one:.7g}" for one in true), predicted, strict=True))
    assert len(scatter.rows) == 120 and "120 of 200 rows" not in scatter.caption
    for one, text, residual in scatter.rows:
        assert float(text) == pytest.approx(of_true[one], rel=1e-6)
        assert float(residual) == pytest.approx(float(one) - of_true[one], rel=1e-3)
    residuals = line.page.of("Residuals of y")
    counts, edges = np.histogram(true - predicted, 20)
    assert [int(count) for count in residuals.column("rows")] == counts.tolist()
    assert np.allclose([float(one) for one in residuals.column("from")], edges[:-1], rtol=1e-4)

    theirs = line.importance()
    for name, value, deviation, _ in line.page.of("Permutation importance").rows:
        k = line.columns.index(name)
        assert float(value) == pytest.approx(theirs.importances_mean[k], rel=2e-5, abs=1e-6), name
        assert float(deviation) == pytest.approx(theirs.importances_std[k], rel=1e-2, abs=1e-6), name


def test_three_classes_have_the_numbers_of_scikit_learn(tmp_path: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(0)
    for name, rows in (("all.csv", 400), ("test.csv", 150)):
        x = rng.normal(size=(rows, 2))
        kinds = np.digitize(x[:, 0] + 0.4 * rng.normal(size=rows), [-0.7, 0.7])
        text = ["x,z,kind", *(f"{a:.4f},{b:.4f},{'abc'[k]}" for (a, b), k in zip(x, kinds, strict=True))]
        (tmp_path / name).write_text("\n".join(text) + "\n")
    words = ["--test", str(tmp_path / "test.csv"), "--epochs", "8", "--ensemble", "1", "--folds", "0"]
    fit(str(tmp_path / "all.csv"), "--out", str(tmp_path / "run"), *words)
    found = Opened(tmp_path, "kind")
    probability = found.model.predict_proba(found.cells.tolist())
    roc = found.page.of("ROC")
    for k, name in enumerate(found.model.classes):
        own = [[float(cell.replace("above all", "inf")) for cell in row[1:]] for row in roc.rows if row[0] == name]
        x, y, threshold = metrics.roc_curve(found.answers == name, probability[:, k])
        kept = np.isin([f"{one:.6g}" for one in threshold], [f"{row[0]:.6g}" for row in own])
        assert len(own) > 4 and np.allclose([row[:3] for row in own], np.stack([threshold, x, y], 1)[kept], atol=1e-6)
        area = metrics.roc_auc_score(found.answers == name, probability[:, k])
        assert {f"{row[3]:.4f}" for row in own} == {f"{area:.4f}"}
    right = found.model.predict(found.cells.tolist()) == found.answers
    observed, mean = calibration.calibration_curve(right, probability.max(axis=1), n_bins=10)
    shown = np.array([[float(cell) for cell in row[:2]] for row in found.page.of("Calibration").rows])
    assert np.allclose(shown, np.stack([mean, observed], axis=1), atol=5.1e-5)
    matrix = metrics.confusion_matrix(found.answers, found.model.predict(found.cells.tolist()))
    assert [[int(cell) for cell in row[1:]] for row in found.page.of("Confusion matrix").rows] == matrix.tolist()
