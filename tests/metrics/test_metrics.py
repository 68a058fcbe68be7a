"""Named metrics against scikit-learn; in trainings; with uncertainties; what is refused."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

import gradloom as gl
from gradloom import losses, metrics
from gradloom.run.numpy_backend import evaluate
from gradloom.train import EarlyStopping, Metric
from tests.metrics.metric_cases import compare
from tests.train.split_training import on_ranks

ops = gl.ops
RNG = np.random.default_rng(0)
N = 60
X = RNG.standard_normal((N, 4)).astype(np.float32)
IDS = RNG.integers(0, 3, N)
IDS[[4, 9]] = -100
BITS = RNG.integers(0, 2, N)
MANY = RNG.integers(0, 2, (N, 3)).astype(np.float32)
NUMBERS = RNG.standard_normal((N, 2)).astype(np.float32)
W = RNG.uniform(0.2, 3, N).astype(np.float32)
W[[7, 30]] = 0
OF_COUNTS = ["precision", "recall", "f1", "f_beta", "iou"]
OF_SCORES = ["roc_auc", "average_precision", "ece"]
OF_NUMBERS = ["mae", "mape", "rmse", "r2"]


def net(outputs, seed=0):
    return gl.nn.Sequential(gl.nn.Linear(4, 6, activation="tanh"), gl.nn.Linear(6, outputs)).init(seed)


# ---- against scikit-learn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_cases_are_scikit_learns(first):
    pytest.importorskip("sklearn")
    assert sum(compare(seed) for seed in range(first, first + 25)) > 500


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + int(os.environ.get("METRIC_CASES", "750")), 250))
def test_many_random_cases_are_scikit_learns(first):
    pytest.importorskip("sklearn")
    for seed in range(first, first + 250):
        compare(seed)


# ---- in trainings ----------------------------------------------------------------------------------------------------

RUNS = [
    ("cross_entropy", 3, IDS, [*OF_COUNTS, *OF_SCORES]),
    ("focal", 3, IDS, [*OF_COUNTS, *OF_SCORES]),
    ("bce", 1, BITS, [*OF_COUNTS, *OF_SCORES, "binary_accuracy"]),
    ("bce", 3, MANY, [*OF_COUNTS, *OF_SCORES, "binary_accuracy"]),
    ("hinge", 1, BITS, [*OF_COUNTS, "roc_auc", "binary_accuracy"]),
    ("huber", 2, NUMBERS, ["rmse", "r2"]),
]


@pytest.mark.parametrize(("loss", "outputs", "labels", "names"), RUNS)
def test_metrics_are_those_of_all_rows(loss, outputs, labels, names):
    """Not means over batches: the numbers of arrays, for batches of any size, with row weights."""
    model = net(outputs)
    predicted = gl.predict(model, X)
    expected = {name: metrics.named(name)(predicted, labels, W) for name in names}
    for size in (60, 7):
        data = gl.data.Dataset(X, labels, weights=W)
        found = gl.evaluate(model, data, loss=loss, batch_size=size, metrics=names).metrics
        assert {name for name in found if not name.endswith("_unc")} == set(names)
        for name in names:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_means_over_rows_have_standard_errors():
    model = net(2)
    error = np.abs(gl.predict(model, X).astype(np.float64) - NUMBERS)
    data = gl.data.Dataset(X, NUMBERS, weights=W)
    found = gl.evaluate(model, data, loss="mse", metrics=["mae", "mape"], batch_size=7).metrics
    for name, each in (("mae", error), ("mape", error / np.abs(NUMBERS.astype(np.float64)))):
        rows, w = each.mean(1)[W > 0], W[W > 0].astype(np.float64)
        mean = np.average(rows, weights=w)
        spread = np.sqrt((w**2 * (rows - mean) ** 2).sum() / (w.sum() ** 2 - (w**2).sum()))
        np.testing.assert_allclose((found[name], found[name + "_unc"]), (mean, spread), rtol=1e-5)


@pytest.mark.slow
def test_uncertainties_follow_the_number():
    """Of a root and of an exponential: that of the mean times the slope; the scatter of 300 samples."""
    rng, found = np.random.default_rng(1), []
    for _ in range(300):
        x = rng.standard_normal((100, 3)).astype(np.float32)
        of_numbers = gl.evaluate(
            lambda v: v[:, 0] * 1.0, (x, np.zeros(100, "f4")), loss="mse", metrics=["rmse"]
        ).metrics
        of_classes = gl.evaluate(lambda v: v * 1.0, (x, np.arange(100) % 3), metrics=["perplexity"]).metrics
        found.append(of_numbers | of_classes)
    for name in ("rmse", "perplexity"):
        scatter = np.std([one[name] for one in found])
        unc = np.sqrt(np.mean([one[name + "_unc"] ** 2 for one in found]))
        assert 0.85 < unc / scatter < 1.18, (name, unc, scatter)


def test_a_bootstrap_of_a_named_metric():
    wrapped = Metric(metrics.F1(), uncertainty="bootstrap", samples=50)
    found = gl.evaluate(net(3), (X, IDS), metrics=[wrapped, "roc_auc"]).metrics
    assert found["f1"] == gl.evaluate(net(3), (X, IDS), metrics=["f1"]).metrics["f1"]
    assert 0.01 < found["f1_unc"] < 0.2 and "roc_auc_unc" not in found


def test_errors_name_the_k_of_top_k():
    top = gl.metrics.TopK(k=2)
    with pytest.raises(gl.SettingError, match="metrics: 'top_2' requires a loss of exclusive classes; not bce"):
        gl.evaluate(net(1), (X, BITS), loss="bce", metrics=[top])
    need = r"top_2: the outputs are a ndarray; need .*metrics=\[gl.metrics.TopK\(k=2\)\]\) measures it on data"
    with pytest.raises(gl.DataError, match=need):
        top(X, BITS)
    with pytest.raises(gl.DataError, match=r"metrics=\['mae'\]\) measures it on data"):
        gl.metrics.MAE()(X, BITS)


def test_top_k_and_perplexity_of_sequences():
    """Each label counts once, times the weight of its row; -100 does not."""
    tokens = RNG.integers(0, 6, (20, 5)).astype(np.int32)
    labels = RNG.integers(0, 6, (20, 5))
    labels[3, 2:] = labels[8] = -100
    w = RNG.uniform(0.5, 2, 20).astype(np.float32)
    model = gl.nn.Embedding(6, 6).init(3)
    scores = gl.predict(model, tokens).astype(np.float64)
    named = ["perplexity", metrics.TopK(k=2), "f1"]
    found = gl.evaluate(model, gl.data.Dataset(tokens, labels, weights=w), metrics=named, batch_size=8).metrics
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    own = np.take_along_axis(log_p, np.maximum(labels, 0)[..., None], -1)[..., 0]
    each = np.where(labels == -100, 0, w[:, None].astype(np.float64))
    np.testing.assert_allclose(found["perplexity"], np.exp(-(own * each).sum() / each.sum()), rtol=1e-5)
    rank = (log_p > own[..., None]).sum(-1)
    np.testing.assert_allclose(found["top_2"], ((rank < 2) * each).sum() / each.sum(), rtol=1e-6)
    flat = metrics.F1()(scores.reshape(-1, 6), labels.ravel(), np.repeat(w, 5))
    np.testing.assert_allclose(found["f1"], flat, rtol=1e-9)


def test_metrics_of_training():
    """Means over rows are measured in training where that is asked for."""
    named = {"mae": Metric(metrics.MAE(), train=True), "r2": "r2"}
    model = gl.nn.Linear(4, 2).init(0)
    options = {"loss": "mse", "epochs": 2, "optimizer": gl.optim.SGD(lr=0.0), "progress": False, "val_split": 0.3}
    history = gl.fit(model, (X, NUMBERS), metrics=named, **options)
    train, val = gl.data.Dataset(X, NUMBERS).split(0.3, 0)
    error = np.abs(gl.predict(model, X) - NUMBERS)
    np.testing.assert_allclose(history[-1].train.metrics["mae"], error[train].mean(), rtol=1e-5)
    np.testing.assert_allclose(history[-1].val.metrics["mae"], error[val].mean(), rtol=1e-5)
    assert "r2" in history[-1].val.metrics and "r2" not in history[-1].train.metrics


def test_early_stopping_by_a_named_metric():
    stop = EarlyStopping(patience=2, monitor="val_f1", mode="max")
    history = gl.fit(
        net(3), (X, IDS), metrics=["f1"], val_split=0.3, callbacks=[stop], epochs=30, progress=False
    )  # fmt: skip
    assert stop.best == max(e.val.metrics["f1"] for e in history)


def test_ranks_measure_the_same():
    named = ["f1", "roc_auc", "average_precision", "ece", "perplexity", "top_5"]

    def measured(ranks):
        data = gl.data.Dataset(X, IDS, weights=W)
        return gl.evaluate(net(3), data, metrics=named, batch_size=20, parallel=ranks).metrics

    assert on_ranks(2, measured) == on_ranks(1, measured) * 2


def test_a_resumed_run_has_the_same_metrics(tmp_path):
    """By name and options."""

    def run(score, **options):
        return gl.fit(
            net(3), (X, IDS), metrics=[score], val_split=0.3, epochs=2, progress=False, run=tmp_path, **options
        )

    first = run(metrics.F1(average="micro"))
    again = run(metrics.F1(average="micro"), resume=True)
    assert [e.val.metrics for e in first] == [e.val.metrics for e in again]
    with pytest.raises(gl.TrainError, match="f1: f1"):
        run(metrics.F1(), resume=True)


# ---- corners ---------------------------------------------------------------------------------------------------------


def test_without_rows_that_count():
    x, ids, w = X[:5, :3], np.full(5, -100), np.zeros(5)
    for name in [*OF_COUNTS, *OF_SCORES]:
        score = metrics.named(name)
        for labels, weights in ((ids, None), (np.arange(5) % 3, w), (ids[:0], None)):
            found = score(x[: len(labels)], labels, weights)
            assert math.isnan(found), (name, found)
    for name in ("rmse", "r2"):
        assert math.isnan(metrics.named(name)(X, X, np.zeros(N)))
        assert math.isnan(metrics.named(name)(X[:0], X[:0]))


def test_one_class_only():
    x, y = X[:, :3], np.ones(N, int)
    hits = x.argmax(1) == 1
    assert metrics.Recall(label=1)(x, y) == hits.mean() and metrics.Precision(label=1)(x, y) == 1.0
    assert math.isnan(metrics.ROCAUC()(x, y)) and metrics.AveragePrecision()(x, y) == pytest.approx(1 / 3)
    assert metrics.Recall(average=None, zero_division=1.0)(x, y).tolist() == [1.0, hits.mean(), 1.0]


def test_a_constant_target():
    constant = np.full(N, 0.1, np.float32)
    assert metrics.R2()(constant, constant) == 1.0 and metrics.R2()(X[:, 0], constant) == 0.0


def test_outputs_that_are_no_numbers():
    x = X[:, :3].copy()
    x[5, 1] = np.nan
    for name in [*OF_COUNTS, *OF_SCORES]:
        assert math.isnan(metrics.named(name)(x, np.arange(N) % 3)), name
        weights = np.ones(N)
        weights[5] = 0
        assert metrics.named(name)(x, np.arange(N) % 3, weights) >= 0, name
    assert math.isnan(metrics.BinaryAccuracy()(x, MANY)) and np.isnan(metrics.F1(average=None)(x, MANY)).all()
    assert math.isnan(metrics.F1(average="micro")(x, MANY)) and math.isnan(metrics.Recall(label=2)(x, MANY))
    for name in ("rmse", "r2"):
        for y in (x[:, 0], np.zeros(N)):
            assert math.isnan(metrics.named(name)(x[:, 1], y)), name
    hits = metrics.TopK()(gl.constant(x), gl.constant((np.arange(N) % 3).astype("i4")))
    found = evaluate([hits])[hits]
    assert math.isnan(found[5]) and (np.delete(found, 5) == 1).all()


def test_whole_number_targets():
    """-100 does not count, alone or among the targets of a row."""
    x, y = X[:, :2], RNG.integers(1, 5, (N, 2))
    y[::4], y[1::4, 1] = -100, -100
    keep = y != -100
    wide = keep * W[:, None]
    names = ["mae", "mape", "rmse", "r2"]
    found = gl.evaluate(lambda x: x[:, :2] * 1.0, gl.data.Dataset(X, y, weights=W), loss="l1", metrics=names)
    of_each = np.abs(x - y)
    assert found.loss == pytest.approx((of_each * wide).sum() / wide.sum(), rel=1e-5)
    assert found.metrics["mae"] == pytest.approx(found.loss, rel=1e-6)
    share = of_each / np.maximum(np.abs(y), 2.2e-16)
    assert found.metrics["mape"] == pytest.approx((share * wide).sum() / wide.sum(), rel=1e-5)
    columns = [(x[keep[:, c], c], y[keep[:, c], c], W[keep[:, c]]) for c in range(2)]
    for name in ("rmse", "r2"):
        each = [metrics.named(name)(a, b.astype("f4"), w) for a, b, w in columns]
        assert metrics.named(name)(x, y, W) == pytest.approx(np.mean(each), rel=1e-9)
        assert found.metrics[name] == pytest.approx(np.mean(each), rel=1e-5)


def test_scaled_numbers():
    """Metric.scale multiplies the number and its uncertainty, with each way to measure them."""
    for score, uncertainty in (
        (metrics.MAE(), None), (metrics.MAE(), "bootstrap"), (metrics.RMSE(), None), (metrics.RMSE(), "bootstrap"),
        (metrics.R2(), "bootstrap"),
    ):  # fmt: skip
        plain, scaled = (Metric(score, uncertainty=uncertainty) for _ in range(2))
        scaled.scale = 3.0
        found = gl.evaluate(net(1), (X, NUMBERS[:, 0]), loss="mse", metrics={"a": plain, "b": scaled}).metrics
        np.testing.assert_allclose((found["b"], found["b_unc"]), (3 * found["a"], 3 * found["a_unc"]), rtol=1e-12)


REFUSED = [
    ("f1", "metrics is a str; must be a list of names"),
    (["f2"], "metrics: 'f2' is not known; must be one of"),
    (["accuracy"], "metrics: 'accuracy' is not known; .*leave it out: always measured with cross_entropy"),
    ([lambda outputs, labels: outputs], "metrics: a function has no name; use a dict"),
    (["f1", metrics.F1(average="micro")], "metrics: two metrics are called 'f1'; use a dict"),
    (["mae"], r"mae: shapes differ: outputs f32\[60,3\], labels i32\[60\]"),
    ({"f": metrics.F1(average=None)}, "Metric: average=None of metric='f1' gives an array; use an average, or label="),
    (["confusion_matrix"], "metrics: 'confusion_matrix' is not known; .*use gl.metrics.confusion_matrix"),
    (["top_3"], r"metrics: 'top_3' is not known; .*use gl.metrics.TopK\(k=3\)"),
    ({"f": metrics.F1(label=7)}, "F1: label=7: must be a class from 0 to 2"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[m[:30] for _, m in REFUSED])
def test_refused(given, message):
    with pytest.raises(gl.GradloomError, match=message):
        _ = gl.evaluate(net(3), (X, IDS), metrics=given).metrics


def test_losses_and_metrics_that_do_not_fit():
    for name in ("f1", "roc_auc", "ece", "binary_accuracy", "perplexity", "top_5"):
        with pytest.raises(gl.SettingError, match=f"metrics: '{name}' requires a loss of .*classes; not mse"):
            gl.evaluate(net(2), (X, NUMBERS), loss="mse", metrics=[name])
    with pytest.raises(gl.SettingError, match="metrics: 'top_5' requires a loss of exclusive classes; not bce"):
        gl.evaluate(net(1), (X, BITS), loss="bce", metrics=["top_5"])
    with pytest.raises(gl.SettingError, match="Metric: whole=True cannot be combined with metric='mae'"):
        Metric(metrics.MAE(), whole=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.F1(average="samples"), "F1: average='samples': must be auto, macro, micro, weighted or None"),
        (lambda: metrics.F1(zero_division=0.5), "F1: zero_division=0.5: must be 0, 1 or nan"),
        (lambda: metrics.F1(label=1, average="micro"), "F1: label=1 and average='micro' are mutually exclusive"),
        (lambda: metrics.FBeta(beta=0), "FBeta: beta=0: must be a finite number above 0"),
        (lambda: metrics.TopK(k=0), "TopK: k=0: must be a whole number of at least 1"),
        (lambda: metrics.ECE(bins=0), "ECE: bins=0: must be a whole number of at least 1"),
        (lambda: metrics.ROCAUC(average="auto"), "ROCAUC: average='auto': must be macro, micro, weighted or None"),
    ],
)
def test_options(make, message):
    with pytest.raises(gl.SettingError, match=message):
        make()


def test_arrays_that_do_not_fit():
    for outputs, labels, weights, message in (
        (X, None, None, "f1: the data have no labels"),
        (X, IDS[:5], None, r"f1: outputs float32\[60, 4\], labels int64\[5\]; need a label per row of outputs"),
        (X, IDS, W[:5], "f1: weights float64.5.; need a weight per row of outputs, 60"),
        (X, IDS, np.where(np.arange(N) == 3, -1, W), "f1: weight -1 in row 3; need finite numbers of at least 0"),
        (X, IDS, np.where(np.arange(N) == 3, np.nan, W), "f1: weight nan in row 3; need finite numbers"),
        (X, np.full(N, 4), None, "f1: label 4; need 0..3, or -100"),
        (X, NUMBERS, None, "f1: outputs .*, labels .*; need outputs .* with ids"),
        ((X, X), IDS, None, r"f1: 2 outputs; need one array of outputs; .* use metrics={output: \['f1'\]}"),
    ):
        with pytest.raises(gl.GradloomError, match=message):
            metrics.F1()(outputs, labels, weights)
    for name in ("mae", "top_5"):
        with pytest.raises(
            gl.DataError, match=rf"{name}: the outputs are a ndarray; need values of a graph; gl.evaluate"
        ):
            metrics.named(name)(X, IDS)
    assert metrics.F1()(X.tolist(), IDS.tolist()) == metrics.F1()(X, IDS)
    with pytest.raises(gl.ShapeError, match="f1: outputs .*; need one output per label"):
        metrics.F1(sigmoid=True)(X, IDS)
    with pytest.raises(gl.SettingError, match="confusion_matrix: 3 yes-or-no labels per row"):
        metrics.confusion_matrix(MANY, MANY)


@pytest.mark.parametrize("name", ["top_5", "perplexity"])
def test_ids_that_are_no_classes(name):
    """Where the loss is a function, which does not check them."""
    with pytest.raises(gl.GradloomError, match="id 3 at position . is out of range; need 0..2"):
        gl.evaluate(gl.nn.Linear(4, 3), (X[:4], [0, -100, 3, 1]), loss=lambda x, y: x[:, 0], metrics=[name])


def test_names_of_losses_and_metrics_are_texts():
    assert repr(metrics.F1(average="micro")) == "f1(average='micro')" and repr(metrics.TopK(k=3)) == "top_5(k=3)"
    assert metrics.ROCAUC().of_loss(losses.BCE()).sigmoid is True
    assert metrics.ROCAUC().of_loss(losses.CrossEntropy()).sigmoid is False
