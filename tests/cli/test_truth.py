"""What gradloom fit tells of a model beside its loss: scores, those of a baseline, and warnings."""

import json

import numpy as np
import pytest

import gradloom as gl
from gradloom.data import read_table
from gradloom.tables.scores import class_probabilities, classification_scores, regression_scores
from tests.cli.command import run

RNG = np.random.default_rng(1)
X = RNG.standard_normal((600, 3))


def write(path, y, x=X):
    lines = ["a,b,c,y", *(",".join(map(str, [*row, label])) for row, label in zip(x, y, strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def fitted(capsys, tmp_path, y, *options):
    path = write(tmp_path / "t.csv", y)
    code, out, err = run(capsys, "fit", path, "--out", tmp_path / "o", "--epochs", 5, "--json", *options)
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err, path


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_scores_of_classes_are_those_of_the_test_rows(capsys, tmp_path, loss):
    metrics = pytest.importorskip("sklearn.metrics")
    y = np.where(X[:, 0] + RNG.standard_normal(600) > 0.6, "yes", "no")
    found, err, path = fitted(capsys, tmp_path, y, "--loss", loss)
    assert found["warnings"] == [] and "warning" not in err
    table = read_table(path)
    assert found["rows_test"] == table.test.n == 120
    model = gl.load(tmp_path / "o")
    p, true = class_probabilities(gl.predict(model.net, table.test.data), loss), table.test.labels
    assert (model.probabilities(gl.predict(model.net, table.test.data)) == p).all()
    assert found["test_roc_auc"] == pytest.approx(metrics.roc_auc_score(true, p[:, 1]))
    assert found["test_log_loss"] == pytest.approx(metrics.log_loss(true, p))
    assert found["test_brier"] == pytest.approx(metrics.brier_score_loss(true, p[:, 1]))
    assert found["test_balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(true, p.argmax(1)))
    assert found["test_f1_macro"] == pytest.approx(metrics.f1_score(true, p.argmax(1), average="macro"))
    assert found["test_confusion"] == metrics.confusion_matrix(true, p.argmax(1)).tolist()
    assert found["test_classes"]["yes"]["recall"] == pytest.approx(metrics.recall_score(true, p.argmax(1)))
    assert found["test_accuracy"] == pytest.approx((p.argmax(1) == true).mean())
    assert found["baseline_accuracy"] == pytest.approx((true == 0).mean()) and found["baseline"] == "always 'no'"
    for name in ("balanced_accuracy", "f1_macro", "roc_auc", "log_loss", "brier"):
        assert 0 < found[f"test_{name}_unc"] < 0.2


def test_a_model_that_is_not_better_than_always_no(capsys, tmp_path):
    y = np.where(RNG.random(600) < 0.1, "yes", "no")
    found, err, _ = fitted(capsys, tmp_path, y)
    imbalanced, no_better = found["warnings"]
    assert "classes are imbalanced: 'no' has" in imbalanced and "--class-weight balanced" in imbalanced
    assert "is not better than always 'no'" in no_better and "balanced accuracy 0.5" in no_better
    assert f"warning: {imbalanced}" in err and f"warning: {no_better}" in err
    again, err, _ = fitted(capsys, tmp_path, y, "--class-weight", "balanced", "--overwrite")
    assert not any("imbalanced" in text for text in again["warnings"])


@pytest.mark.parametrize("loss", ["l1", "huber"])
def test_a_regression_by_another_loss(capsys, tmp_path, loss):
    """The reported loss is that of the standardised test rows; outliers of the target matter less than with mse."""
    y = 10 * X[:, 0] + 3 * RNG.standard_normal(600)
    found, _, path = fitted(capsys, tmp_path, y, "--loss", loss)
    assert found["loss"] == loss and found["test_r2"] > 0.5
    table, model = read_table(path), gl.load(tmp_path / "o")
    error = np.abs(gl.predict(model.net, table.test.data).astype(np.float64).ravel() - table.test.labels.ravel())
    each = error if loss == "l1" else np.where(error < 1, error**2 / 2, error - 0.5)
    assert found["test_loss"] == pytest.approx(each.mean(), rel=1e-5)


@pytest.mark.slow
def test_a_regression(capsys, tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    y = 10 * X[:, 0] + 3 * RNG.standard_normal(600)
    found, err, path = fitted(capsys, tmp_path, y)
    assert found["warnings"] == [] and found["test_r2"] > 0.5
    table = read_table(path)
    model = gl.load(tmp_path / "o")
    preprocess = model.preprocess
    guess = preprocess.outputs_to_targets(gl.predict(model.net, table.test.data))[:, 0]
    assert found["test_mae"] == pytest.approx(metrics.mean_absolute_error(table.test_targets, guess))
    assert found["test_rmse"] == pytest.approx(metrics.root_mean_squared_error(table.test_targets, guess))
    mean = np.full(120, preprocess.target_mean[0])
    assert found["baseline_rmse"] == pytest.approx(metrics.root_mean_squared_error(table.test_targets, mean))
    assert found["baseline_mae"] == pytest.approx(metrics.mean_absolute_error(table.test_targets, mean))

    noise = np.random.default_rng(1).standard_normal(600)  # of which one draw in six looks like something
    found, err, _ = fitted(capsys, tmp_path, noise, "--epochs", 60)
    assert "not better than that of always the mean" in found["warnings"][0] and "warning: rmse" in err


def test_a_person_reads_them(capsys, tmp_path):
    path = write(tmp_path / "t.csv", np.where(X[:, 0] > 0.3, "yes", "no"))
    code, out, _ = run(capsys, "fit", path, "--out", tmp_path / "o", "--epochs", 5)
    assert code == 0
    test, baseline = (next(line for line in out.splitlines() if line.startswith(name)) for name in ("test", "baseline"))
    assert all(word in test for word in ("accuracy 0.", "balanced 0.", "F1 0.", "ROC AUC ", " +- "))
    assert "accuracy 0." in baseline and "(always 'no')" in baseline


@pytest.mark.parametrize("options", [[], ["--val-split", 0.2]])
def test_the_baseline_of_data_in_time_is_the_last_value(capsys, tmp_path, options):
    days = np.arange(600)
    y = np.cumsum(RNG.standard_normal(600)) + days / 10
    shuffled = RNG.permutation(600)
    rows = [f"{np.datetime64('2020-01-01') + int(d)},{X[d, 0]},{y[d]}" for d in shuffled]
    (tmp_path / "t.csv").write_text("day,a,y\n" + "\n".join(rows) + "\n")
    settings = ["--out", tmp_path / "o", "--epochs", 3, "--json", "--time", "day", *options]
    code, out, err = run(capsys, "fit", tmp_path / "t.csv", *settings)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["baseline"] == "always the last value before the test rows" and found["rows_test"] == 120
    assert found["baseline_rmse"] == pytest.approx(np.sqrt(np.mean((y[480:] - y[479]) ** 2)), rel=1e-4)


CLASSES = {"accuracy": max, "balanced_accuracy": max, "f1_macro": max, "roc_auc": max, "log_loss": min, "brier": min}
NUMBERS = {"rmse": min, "mae": min, "r2": max}


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_the_metric_says_when_to_end(capsys, tmp_path, name):
    """The weights that are kept are those of the best validation by that score."""
    y = X[:, 0] + RNG.standard_normal(600)
    y = np.where(y > 0.6, "yes", "no") if name in CLASSES else y
    options = ("--val-split", 0.15, "--patience", 3, "--epochs", 40, "--lr", 0.02)
    found, _, path = fitted(capsys, tmp_path, y, "--metric", name, *options)
    values = [one[f"val_{name}"] for one in found["history"]]
    assert len(values) < 40
    table = read_table(path, val_split=0.15)
    rows = table.train.split(0.15, 0)[1]
    model = gl.load(tmp_path / "o")
    outputs, labels = gl.predict(model.net, table.train.data[rows]), table.train.labels[rows]
    if name in CLASSES:
        kept = classification_scores(model.probabilities(outputs), labels)[name]
    else:
        units = table.preprocess.outputs_to_targets
        kept = regression_scores(units(outputs), units(labels))[name]
    assert kept == pytest.approx((CLASSES | NUMBERS)[name](values), rel=1e-5)
    other = "rmse" if name in CLASSES else "accuracy"
    code, _, err = run(capsys, "fit", path, "--metric", other, "--out", tmp_path / "b")
    assert code == 2 and f"--metric {other}: must be one of " in err and " for a " in err


def test_the_rows_that_a_network_left_out_validate_it(capsys, tmp_path):
    """What is said of validation is what those networks make of each row that were not trained on it."""
    y = np.where(X[:, 0] + RNG.standard_normal(600) > 0.6, "yes", "no")
    options = ("--patience", 3, "--epochs", 40, "--lr", 0.02, "--seed", 2)
    found, err, path = fitted(capsys, tmp_path, y, "--ensemble", 4, *options)
    assert "480 rows in 4 folds (a network trains without one, which validates it), 120 test rows" in err
    assert found["rows_train"] == found["rows_val"] == 480 and found["folds"] == 4 and len(found["history"]) < 40
    table, net = read_table(path, seed=2), gl.load(tmp_path / "o").net
    folds = table.train.in_folds(4, 2).folds
    net.eval()
    each = gl.predict(lambda x: gl.ops.log_softmax(net.of_each(x), -1), table.train.data)
    outside = each[np.arange(480), folds, table.train.labels]
    assert -outside.mean() == pytest.approx(min(one["val_loss"] for one in found["history"]), rel=1e-5)
    lines = {
        ("--folds", 4, "--val-split", 0.2): "--folds 4 and --val-split 0.2 are mutually exclusive",
        ("--folds", 4, "--time", "a"): "--folds 4 and --time a are mutually exclusive",
        ("--folds", 4, "--val", path): f"--folds 4 and --val {path} are mutually exclusive",
        ("--folds", 9): "--folds 9: must be 0, or from 2 to 8: there are 8 networks and 480 training rows",
        ("--folds", 2, "--ensemble", 1): "--folds 2: must be 0: there is one network, or one row",
        ("--folds", 0, "--val-split", 0, "--metric", "f1_macro"): "--metric f1_macro requires validation rows",
    }
    for words, seen in lines.items():
        code, _, err = run(capsys, "fit", path, *words, "--out", tmp_path / "b")
        assert code == 2 and seen in err and err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("words", "folds", "share"),
    [((), 8, 0), (("--folds", 3), 3, 0), (("--folds", 0), 0, 0.15), (("--val-split", 0.3), 0, 0.3),
     (("--val-split", 0), 0, 0), (("--time", "a"), 0, 0.15), (("--ensemble", 1), 0, 0.15), (("--hidden", ""), 0, 0.15)],
)  # fmt: skip
def test_which_rows_validate(capsys, tmp_path, words, folds, share):
    found, _, _ = fitted(capsys, tmp_path, X[:, 0], *words, "--epochs", 1)
    assert found["folds"] == folds
    assert found["rows_val"] == (480 if folds else round(480 * share)) and found["rows_train"] + found["rows_val"] == (
        960 if folds else 480
    )


@pytest.mark.slow
def test_an_ensemble_of_so_many(capsys, tmp_path):
    y = np.where(X[:, 0] > 0.6, "yes", "no")
    sizes = {}
    for members in (1, 3):
        found, err, _ = fitted(capsys, tmp_path, y, "--ensemble", members, "--hidden", 4)
        sizes[members] = found["parameters"]
        assert gl.load(tmp_path / "o").net.members == members and ("3 networks 3-4-2" in err) == (members == 3)
    assert sizes[3] == 3 * sizes[1]
    code, _, err = run(capsys, "fit", tmp_path / "t.csv", "--ensemble", 2, "--hidden", "", "--out", tmp_path / "b")
    assert code == 2 and err == "gradloom: --ensemble 2 requires at least one --hidden layer\n"


def test_a_class_without_test_rows_is_said(capsys, tmp_path):
    y = np.where(np.arange(600) % 10, "no", "yes")
    alone = tmp_path / "alone.csv"
    alone.write_text("a,b,c,y\n" + "".join(f"{a},{b},{c},no\n" for a, b, c in X[:50]))
    found, err, _ = fitted(capsys, tmp_path, y, "--test", alone)
    said = "no test row is of class 'yes': the scores do not cover it; ROC AUC needs rows of two classes"
    assert said in found["warnings"] and said in err and "test_roc_auc" not in found and "nan" not in err
    assert any(text.endswith("(difference +0.0000 +- 0.0000)") for text in found["warnings"])


def test_a_score_that_validation_does_not_define_is_refused_before_the_training(capsys, tmp_path, monkeypatch):
    """It would be nan at each evaluation: training would end, and the best weights would be none."""
    monkeypatch.setattr("gradloom.train.loop.run_part", lambda *given, **more: pytest.fail("it trains"))
    alone = tmp_path / "alone.csv"
    for kind, metric, cell, need in (
        (np.where(np.arange(600) % 10, "no", "yes"), "roc_auc", "no", "two classes, or one of accuracy, "),
        (X[:, 0] * 3, "r2", "1.5", "targets that differ, or one of rmse, mae"),
    ):
        alone.write_text("a,b,c,y\n" + "".join(f"{a},{b},{c},{cell}\n" for a, b, c in X[:50]))
        path = write(tmp_path / "t.csv", kind)
        out = tmp_path / metric
        for loss in ("mse",) if metric == "r2" else ("mse", "cross_entropy"):
            options = ("--metric", metric, "--epochs", 3, "--loss", loss, "--overwrite")
            code, _, err = run(capsys, "fit", path, "--val", alone, "--out", out, *options)
            assert code == 2
            assert f"--metric {metric} is not defined for the validation rows; use rows with {need}" in err


def test_an_uncertainty_that_is_not_known_is_not_shown():
    net, x, y = gl.nn.Linear(2, 3), np.ones((120, 2), np.float32), np.arange(120) % 3
    assert "+- nan" not in repr(gl.evaluate(net, (x, y)))
    assert "(of one batch, without an uncertainty), accuracy" in repr(gl.evaluate(net, (x, y)))
    several = gl.evaluate(net, (x, y), batch_size=50)
    assert f" +- {several.loss_unc:.2g}, accuracy" in repr(several) and "nan" not in repr(several)
    assert "nan" not in gl.evaluate(net, (x, y))._repr_html_() and "nan" not in repr(gl.evaluate(net, (x[:1], y[:1])))
