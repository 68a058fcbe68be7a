"""What gl.fit returns: a list of results, as columns and as a plot."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

import gradloom as gl

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 4)).astype(np.float32), RNG.integers(0, 3, 50)


def fitted(labels=Y, loss="cross_entropy", lr=0.1, **options):
    net = gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 3)).init(0)
    options = {"epochs": 3, "batch_size": 10, "val_split": 0.2, "progress": False} | options
    return gl.fit(net, (X, labels), loss=loss, optimizer=gl.optim.SGD(lr=lr), **options)


def test_it_is_a_list_of_results():
    history = fitted()
    assert isinstance(history, list) and isinstance(history, gl.train.History) and len(history) == 3
    assert [e.epoch for e in history] == [1, 2, 3] and history[-1].val.ndata == 10


def test_its_columns_hold_what_the_results_do():
    history = fitted(lr=lambda step, epoch: 0.1 / (1 + step))
    columns = history.to_dict()
    assert list(columns) == [
        "epoch", "loss", "loss_unc", "accuracy", "accuracy_unc", "val_loss", "val_accuracy", "val_accuracy_unc", "lr",
        "grad_norm_mean", "seconds",
    ]  # fmt: skip
    assert columns["loss"] == [e.train.loss for e in history]
    assert columns["val_accuracy"] == [e.val.accuracy for e in history]
    assert columns["lr"] == pytest.approx([0.1 / 4, 0.1 / 8, 0.1 / 12])  # of the last of 4 steps an epoch
    assert columns["grad_norm_mean"] == [e.train.grad_norms.mean() for e in history]
    assert columns["seconds"] == [e.seconds for e in history]
    assert json.loads(json.dumps(columns, allow_nan=False)) == columns


HALVED = gl.optim.schedules.Exponential(0.02, 0.5)
RATES = {
    "number": ({"match": "1.*", "lr": 0.02}, [0.02, 0.02]),
    "schedule": ({"match": "1.*", "lr": HALVED}, [HALVED(3, 0), HALVED(7, 1)]),
    "optimizer": ({"match": "1.*", "optimizer": gl.optim.SGD(lr=0.03)}, [0.03, 0.03]),
    "none": ({"match": "1.*", "weight_decay": 0.5}, None),
}


@pytest.mark.parametrize("kind", RATES)
def test_the_rates_of_parameter_groups(kind, tmp_path):
    group, expected = RATES[kind]
    net = gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 3)).init(0)
    optimizer = gl.optim.AdamW(lr=lambda step, epoch: 0.1 / (1 + step), groups=[group])
    log = gl.train.Log(tmp_path, every="1steps")
    options = {"optimizer": optimizer, "epochs": 2, "batch_size": 10, "val_split": 0.2, "progress": False}
    history = gl.fit(net, (X, Y), callbacks=[log], **options)
    columns = history.to_dict()
    rates = {"lr": [0.1 / 4, 0.1 / 8]} | ({} if expected is None else {"1.*.lr": expected})
    assert list(history[0].rates) == list(rates)
    for name, values in rates.items():
        assert columns[name] == pytest.approx(values) == [epoch.rates[name] for epoch in history]
    lines = [line for line in gl.train.read_metrics(tmp_path) if line["kind"] != "evaluation"]
    assert len(lines) == 10 and all(rates.keys() == {n for n in line if n.split(".")[-1] == "lr"} for line in lines)
    for name, values in rates.items():
        assert [line[name] for line in lines if line["kind"] == "epoch"] == pytest.approx(values)


def test_a_rate_that_a_listener_changes_is_that_of_the_steps_before():
    def halve(result):
        optimizer.lr = optimizer.lr / 2

    net, optimizer = gl.nn.Linear(4, 3), gl.optim.SGD(lr=0.4)
    history = gl.fit(net, (X, Y), optimizer=optimizer, epochs=3, batch_size=10, progress=False, on_epoch=halve)
    assert history.to_dict()["lr"] == pytest.approx([0.4, 0.2, 0.1])


def test_a_column_of_some_passes_has_none_in_the_others_and_for_what_is_not_finite():
    one, other = fitted(), fitted(val_split=0.0)
    both = gl.train.History([*one, *other])
    assert both.to_dict()["val_loss"] == [e.val.loss for e in one] + [None] * 3
    regression = fitted(X[:, :3], "mse", val_split=0.0)
    assert "accuracy" not in regression.to_dict() and "val_loss" not in regression.to_dict()
    odd = gl.train.Result()
    odd.add(10, np.array([math.inf]), np.array([10.0]))
    columns = gl.train.History([gl.EpochResult(1, odd, None, 0.0)]).to_dict()
    assert columns == {"epoch": [1], "loss": [None], "seconds": [0.0]}
    assert gl.train.History().to_dict() == {}


def test_a_plot_shows_training_and_validation():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    history = fitted()
    figure = history.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["loss", "accuracy"]
    columns = history.to_dict()
    for axis, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
        drawn = {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}
        assert drawn == {"training": columns[name], "validation": columns[f"val_{name}"]}
        assert axis.collections  # the bands
    matplotlib.pyplot.close(figure)
    assert [axis.get_ylabel() for axis in fitted(X[:, :3], "mse", val_split=0.0).plot().axes] == ["loss"]
    matplotlib.pyplot.close("all")


def test_a_plot_shows_each_validation_set_and_what_it_alone_measures():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    metrics = {"margin": lambda outputs, labels, weights: outputs[:, 0]}
    history = fitted(val={"clean": gl.data.Dataset(X, Y)}, metrics=metrics)
    figure = history.plot()
    drawn = {axis.get_ylabel(): [line.get_label() for line in axis.get_lines()] for axis in figure.axes}
    both = ["training", "validation", "clean"]
    assert drawn == {"loss": both, "accuracy": both, "margin": ["validation", "clean"]}
    matplotlib.pyplot.close(figure)


def test_no_plot_without_matplotlib_or_passes(monkeypatch):
    with pytest.raises(gl.SettingError, match="^plot: the history has no epoch; need at least one$"):
        gl.train.History().plot()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(
        gl.BackendError, match=r"^plot: requires matplotlib, not installed; run pip install 'gradloom\[plot\]'$"
    ):
        fitted().plot()


@pytest.mark.slow
def test_matplotlib_is_not_imported_before_it_is_needed():
    code = "import sys, gradloom.train; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_epoch_that_it_does_not_have():
    with pytest.raises(gl.TrainError, match="epoch 9"):
        fitted().at(9, None)
