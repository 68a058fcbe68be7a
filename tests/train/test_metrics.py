"""Metrics of the user's own against NumPy in float64 on what gl.predict gives; with their uncertainties."""

import threading

import numpy as np
import pytest

import gradloom as gl
from gradloom.parallel import threads
from gradloom.train import EarlyStopping, Metric, StopTraining

ops = gl.ops
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype(np.float32)
Y = RNG.integers(0, 2, 60)
Y[[4, 9]] = -100
W = RNG.uniform(0.2, 3, 60).astype(np.float32)
W[[7, 30]] = 0
T = RNG.standard_normal((60, 2)).astype(np.float32)


def net(seed=0):
    return gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Dropout(0.2), gl.nn.Linear(8, 2)).init(seed)


def mae(outputs, labels):
    """A value per row."""
    return ops.mean(ops.abs(outputs - labels), (1,))


def mae_pair(outputs, labels, weights):
    per_row = mae(outputs, labels)
    return (ops.sum(per_row), gl.constant(float(per_row.size))) if weights is None else (
        ops.sum(per_row * weights), ops.sum(weights)
    )  # fmt: skip


def auc(outputs, labels):
    """The share of pairs of a positive and a negative row that are in order."""
    score = outputs[:, 1] - outputs[:, 0]
    above = score[labels == 1][:, None] - score[labels == 0][None, :]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def formula(values, weights):
    mean = np.average(values, weights=weights)
    return mean, np.sqrt((weights**2 * (values - mean) ** 2).sum() / (weights.sum() ** 2 - (weights**2).sum()))


@pytest.mark.parametrize("weight", [1.0, 10.0, 0.3])
def test_of_equal_weights_the_standard_error_is_that_of_a_mean(weight):
    """sqrt(var / (n - 1)), as ggml has it, to the bit."""
    result, values = gl.Result(), RNG.standard_normal(57)
    weights = np.full(57, weight)
    result.add(57, values * weights, weights)
    means = values * weights / weights
    variance = np.average((means - np.average(means, weights=weights)) ** 2, weights=weights)
    assert result.loss_unc == np.sqrt(variance / 56)


@pytest.mark.slow
def test_uncertainties_of_unequal_weights_are_the_scatter_of_means():
    """Of 200 draws of 200 rows, 5 % of which weigh 50: for values per row, for pairs, for the loss."""
    rng, found = np.random.default_rng(0), []

    def pair(outputs, labels, weights):
        return ops.sum(outputs[:, 0] * weights), ops.sum(weights)

    metrics = {"row": lambda outputs, labels: outputs[:, 0], "pair": pair}
    for _ in range(200):
        x = rng.standard_normal((200, 1)).astype(np.float32)
        weights = np.where(rng.random(200) < 0.05, 50, 1)
        data = gl.data.Dataset(x, np.zeros_like(x), weights=weights)
        result = gl.evaluate(lambda v: v * 1.0, data, loss="mse", batch_size=10, metrics=metrics)
        found.append(result.numbers())
    for name in ("row", "pair", "loss"):
        scatter = np.std([one[name] for one in found])
        told = np.sqrt(np.mean([one[name + "_unc"] ** 2 for one in found]))
        assert 0.8 < told / scatter < 1.25, (name, told, scatter)


@pytest.mark.parametrize("batch_size", [60, 13])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_per_row(batch_size, weighted, backend):
    model, data = net(), gl.data.Dataset(X, T, weights=W if weighted else None)
    result = gl.evaluate(
        model, data, loss="mse", batch_size=batch_size, metrics={"mae": mae}, backend=backend, threads=1
    )
    values = np.abs(gl.predict(model, X).astype(np.float64) - T).mean(1)
    weights = W.astype(np.float64) if weighted else np.ones(60)
    mean, spread = formula(values[weights > 0], weights[weights > 0])
    np.testing.assert_allclose((result.metrics["mae"], result.metrics["mae_unc"]), (mean, spread), rtol=1e-6)
    assert result.numbers() | result.metrics == result.numbers() and "accuracy" not in result.numbers()
    assert f", mae {mean:.6g} +- {spread:.2g})" in repr(result)


@pytest.mark.parametrize("weighted", [False, True])
def test_pairs(weighted):
    model, data = net(), gl.data.Dataset(X, T, weights=W if weighted else None)
    result = gl.evaluate(model, data, loss="mse", batch_size=13, metrics={"mae": mae_pair})
    values = np.abs(gl.predict(model, X).astype(np.float64) - T).mean(1)
    weights = W.astype(np.float64) if weighted else np.ones(60)
    parts = [slice(i, i + 13) for i in range(0, 60, 13)]
    means = np.array([np.average(values[p], weights=weights[p]) for p in parts])
    mean, spread = formula(means, np.array([weights[p].sum() for p in parts]))
    np.testing.assert_allclose((result.metrics["mae"], result.metrics["mae_unc"]), (mean, spread), rtol=1e-6)
    one = gl.evaluate(model, data, loss="mse", batch_size=60, metrics={"mae": mae_pair}).metrics
    np.testing.assert_allclose(one["mae"], mean, rtol=1e-6)
    assert one.keys() == {"mae"}  # one batch tells of no scatter


def test_rows_without_a_label_are_left_out():
    def margin(outputs, labels):
        return outputs[:, 1] - outputs[:, 0]

    result = gl.evaluate(net(), gl.data.Dataset(X, Y, weights=W), metrics={"margin": margin})
    outputs, counts = gl.predict(net(), X).astype(np.float64), (Y >= 0) & (W > 0)
    expected = formula((outputs[:, 1] - outputs[:, 0])[counts], W[counts].astype(np.float64))
    np.testing.assert_allclose((result.metrics["margin"], result.metrics["margin_unc"]), expected, rtol=1e-5)


def test_a_metric_of_all_rows():
    seen = []

    def weighted(outputs, labels, weights):
        seen.append((outputs, labels, weights))
        return auc(outputs, labels)

    metrics = {"auc": Metric(auc, whole=True), "own": Metric(weighted, whole=True)}
    model = net()
    result = gl.evaluate(model, gl.data.Dataset(X, Y, weights=W), batch_size=17, metrics=metrics)
    outputs, counts = gl.predict(model, X), (Y >= 0) & (W > 0)
    assert result.metrics == {"auc": auc(outputs[counts], Y[counts]), "own": auc(outputs[counts], Y[counts])}
    np.testing.assert_allclose(seen[0][0], outputs[counts], rtol=1e-6)
    assert np.array_equal(seen[0][1], Y[counts]) and np.array_equal(seen[0][2], W[counts])


def test_no_row_that_counts_gives_no_number():
    labels = np.full(40, -100)
    labels[30:] = 1
    metrics = {
        "most": Metric(lambda outputs, labels: outputs.max(), whole=True),
        "top": lambda outputs, labels: ops.max(outputs, (1,)),
    }
    options = {"val": gl.data.Dataset(X[:40], labels), "eval_rows": 1, "epochs": 1, "loss": "cross_entropy"}
    drawn = [fit(net(), (X, np.abs(Y) % 2), metrics=metrics, seed=s, **options)[0].val.metrics for s in range(4)]
    assert any(np.isnan(list(one.values())).all() for one in drawn)


def test_a_metric_of_all_rows_gets_outputs_as_the_model_gives_them():
    model = gl.nn.Linear(4, 2).init(0)

    def both(x):
        made = model(x)
        return {"twice": made * 2.0, "pair": (made, made + 1.0)}

    def check(outputs, labels):
        np.testing.assert_allclose(outputs["twice"], 2 * outputs["pair"][0], rtol=1e-6)
        np.testing.assert_allclose(outputs["pair"][1], outputs["pair"][0] + 1, rtol=1e-6)
        return outputs["twice"].mean()

    def loss(outputs, labels):
        return mae(outputs["twice"], labels)

    metrics = {"mean": Metric(check, whole=True, uncertainty="bootstrap")}
    result = gl.evaluate(both, (X, T), loss=loss, batch_size=25, metrics=metrics)
    np.testing.assert_allclose(result.metrics["mean"], 2 * gl.predict(model, X).mean(), rtol=1e-5)


def test_bootstrap():
    """It agrees with the formula as far as 2000 samples do; it is the same each time, and another with another seed."""

    def run(**options):
        return gl.evaluate(net(), (X, T), loss="mse", metrics={"mae": Metric(mae, **options)}).metrics

    plain, boot = run(), run(uncertainty="bootstrap", samples=2000)
    assert boot["mae"] == plain["mae"] and boot["mae_unc"] != plain["mae_unc"]
    np.testing.assert_allclose(boot["mae_unc"], plain["mae_unc"], rtol=0.1)
    assert run(uncertainty="bootstrap", samples=2000) == boot != run(uncertainty="bootstrap", samples=2000, seed=1)
    whole = Metric(
        lambda outputs, labels: np.abs(outputs - labels).mean(), whole=True, uncertainty="bootstrap", samples=2000
    )
    of_all = gl.evaluate(net(), (X, T), loss="mse", metrics={"mae": whole}).metrics
    np.testing.assert_allclose((of_all["mae"], of_all["mae_unc"]), (boot["mae"], boot["mae_unc"]), rtol=1e-6)


def test_a_ratio_of_sums_is_called_once_and_resampled():
    """The bootstrap draws from the two arrays of the first call."""
    calls = []

    def ratio(outputs, labels):
        calls.append(len(outputs))
        return np.abs(outputs - labels).reshape(len(labels), -1).mean(1), np.ones(len(labels))

    options = {"whole": True, "uncertainty": "bootstrap", "samples": 2000}
    found = gl.evaluate(net(), (X, T), loss="mse", metrics={"mae": Metric(ratio, **options)}).metrics
    each = Metric(lambda outputs, labels: np.abs(outputs - labels).mean(), **options)
    expected = gl.evaluate(net(), (X, T), loss="mse", metrics={"mae": each}).metrics
    assert calls == [len(X)]
    np.testing.assert_allclose((found["mae"], found["mae_unc"]), (expected["mae"], expected["mae_unc"]), rtol=1e-6)
    wrong = Metric(lambda outputs, labels: (np.ones(3), np.ones(3)), whole=True)
    with pytest.raises(gl.SettingError, match="metric mae: the function gave .*; need a number"):
        gl.evaluate(net(), (X, T), loss="mse", metrics={"mae": wrong})


def fit(model, data=(X, T), **options):
    options = {
        "loss": "mse",
        "epochs": 3,
        "batch_size": 10,
        "progress": False,
        "optimizer": gl.optim.AdamW(lr=0.01),
    } | options
    return gl.fit(model, data, **options)


@pytest.mark.parametrize("micro", [None, 4])
def test_metrics_change_no_bit_of_training(micro):
    a, b = net(), net()
    metrics = {"mae": Metric(mae, train=True), "pair": Metric(mae_pair, train=True), "own": Metric(mae_pair)}
    with_them = fit(a, val_split=0.2, metrics=metrics, micro_batch_size=micro)
    without = fit(b, val_split=0.2, micro_batch_size=micro)
    assert all(np.array_equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    assert [h.train.loss for h in with_them] == [h.train.loss for h in without]
    assert [h.val.loss for h in with_them] == [h.val.loss for h in without]


@pytest.mark.parametrize("micro", [None, 4])
def test_metrics_of_training(micro):
    """With a rate of 0 and no dropout they are those of an evaluation."""
    model = gl.nn.Linear(4, 2).init(0)
    metrics = {"mae": Metric(mae, train=True), "pair": Metric(mae_pair, train=True), "own": mae}
    history = fit(model, metrics=metrics, optimizer=gl.optim.SGD(lr=0.0), micro_batch_size=micro, val_split=0.2)
    train, val = gl.data.Dataset(X, T).split(0.2, 0)
    values = np.abs(gl.predict(model, X).astype(np.float64) - T).mean(1)
    for epoch in history:
        expected = formula(values[train], np.ones(len(train)))
        np.testing.assert_allclose((epoch.train.metrics["mae"], epoch.train.metrics["mae_unc"]), expected, rtol=1e-6)
        np.testing.assert_allclose(epoch.train.metrics["pair"], expected[0], rtol=1e-6)
        assert "own" not in epoch.train.metrics
        np.testing.assert_allclose(epoch.val.metrics["own"], values[val].mean(), rtol=1e-6)
        assert epoch.numbers()["mae"] == epoch.train.metrics["mae"]
        assert epoch.numbers()["val_own"] == epoch.val.metrics["own"]
    assert history.to_dict()["val_own"] == [e.val.metrics["own"] for e in history]


def test_batches_that_are_skipped_are_no_part_of_metrics():
    """Nor are the micro-batches before the one that is not finite, the last of its batch."""
    data = gl.data.Dataset(X, T)
    order = data.order(0, 1, data.split(0.0, 0)[0])
    x = X.copy()
    x[order[29], 2] = np.inf
    model = gl.nn.Linear(4, 2).init(0)
    options = {"optimizer": gl.optim.SGD(lr=0.0), "epochs": 1, "on_nonfinite": "skip", "micro_batch_size": 4}
    (epoch,) = fit(model, (x, T), metrics={"mae": Metric(mae, train=True)}, **options)
    kept = np.delete(order, np.arange(20, 30))
    values = np.abs(gl.predict(model, x[kept]).astype(np.float64) - T[kept]).mean(1)
    assert epoch.train.skipped == 1
    np.testing.assert_allclose(epoch.train.metrics["mae"], values.mean(), rtol=1e-6)


def test_early_stopping_knows_metrics():
    stop = EarlyStopping(patience=2, monitor="val_score", mode="max")
    metrics = {"score": Metric(lambda outputs, labels: -np.abs(outputs - labels).mean(), whole=True)}
    history = fit(net(), metrics=metrics, val_split=0.3, callbacks=[stop], epochs=40)
    scores = [h.val.metrics["score"] for h in history]
    assert stop.best == max(scores) and stop.best_epoch == 1 + int(np.argmax(scores))
    with pytest.raises(gl.SettingError, match="monitor='val_scor' is not measured; did you mean val_score"):
        fit(net(), metrics=metrics, val_split=0.3, callbacks=[EarlyStopping(monitor="val_scor")])


def test_ranks_measure_the_same():
    found = {}

    def work(rank, ranks):
        metrics = {"mae": mae, "pair": mae_pair, "auc": Metric(lambda o, y: (o * y).sum(), whole=True)}
        history = fit(net(), metrics=metrics, val_split=0.4, micro_batch_size=5, parallel=ranks)
        found[rank] = [h.val.metrics for h in history]

    for count in (1, 2, 3):
        workers = [
            threading.Thread(target=work, args=(count * 10 + r, c)) for r, c in enumerate(threads(count, timeout=60))
        ]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    assert len(found) == 6 and all(numbers == found[10] for numbers in found.values())


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": mae}, "metrics: the name 'loss' is reserved or invalid; use another"),
        ({"a.b": mae}, "metrics: the name 'a.b' is reserved"),
        ({"mae_unc": mae}, "metrics: the name 'mae_unc' is reserved"),
        ({"mae": 3}, r"Metric: an int must be a name, or a function \(outputs, labels, weights\)"),
        ({"mae": lambda: 3}, r"Metric: the function takes 0 arguments; need \(outputs, labels, weights\)"),
        (
            {"mae": lambda outputs, labels: outputs},
            r"metric mae: the function gave .*\[10,2\]; need f32\[10\] or a pair",
        ),
        (
            {"mae": Metric(lambda outputs, labels: "x", whole=True)},
            "metric mae: the function gave a str; need a number",
        ),
        (
            {"mae": Metric(lambda outputs, labels: np.complex64(1j), whole=True)},
            "mae: the function gave .*; need a number",
        ),
        ({"mae": Metric(lambda outputs, labels: 10**400, whole=True)}, "metric mae: .* beyond the range of float64"),
    ],
)
def test_what_is_no_metric_is_refused(metrics, message):
    with pytest.raises(gl.GradloomError, match=message):
        fit(net(), metrics=metrics, val_split=0.5, epochs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uncertainty": "guess"}, "uncertainty='guess': must be formula or bootstrap"),
        ({"whole": True, "uncertainty": "formula"}, "uncertainty='formula' cannot be combined with whole=True"),
        ({"whole": True, "train": True}, "train=True and whole=True are mutually exclusive"),
        ({"samples": 1}, "Metric: samples=1: must be a whole number of at least 2"),
    ],
)
def test_arguments_of_a_metric(options, message):
    with pytest.raises(gl.SettingError, match=message):
        Metric(mae, **options)


def test_pairs_without_the_weights_of_the_data_are_refused():
    def pair(outputs, labels):
        return ops.sum(outputs), gl.constant(1.0)

    with pytest.raises(gl.DataError, match="metric pair: the data have row weights, and the function gave a pair"):
        gl.evaluate(net(), gl.data.Dataset(X, T, weights=W), loss="mse", metrics={"pair": pair})


def test_metrics_stay_when_predictions_are_dropped():
    seen = []

    def stop(at):
        seen.append(at.train.metrics["mae"])
        if at.epoch == 3:
            raise StopTraining

    history = fit(net(), metrics={"mae": Metric(mae, train=True)}, on_epoch=stop, epochs=9)
    assert [h.train.metrics["mae"] for h in history] == seen and len(seen) == 3
