"""States that no run can go on from are never checkpoints: weights, running statistics, averages, moments and sums that
are not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, optim
from gradloom.files.checkpoint_files import manifests

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Damage = Callable[[nn.Sequential, optim.Optimizer], gl.Parameter]


def a_weight(net: Any, opt: Any) -> Any:
    return net[0].weight


def a_frozen_weight(net: Any, opt: Any) -> Any:
    return net[2].weight


def a_running_variance(net: Any, opt: Any) -> Any:
    return net[1].running_var


def a_moment(net: Any, opt: Any) -> Any:
    return opt.state.moments[net[0].weight.stored]["v"]


def an_average(net: Any, opt: Any) -> Any:
    return opt.state.average.of(net[0].weight)


PARTS = {
    a_weight: "model.",
    a_frozen_weight: "model.",
    a_running_variance: "model.",
    an_average: "average.",
    a_moment: "optimizer.",
}


def spoil(stored: Any, number: float) -> None:
    array = stored.numpy().copy()
    array.reshape(-1)[0] = number
    stored.assign(array)


class At(gl.train.Callback):
    """Puts a number into an array after the sixth step."""

    steers = False

    def __init__(self, place: Damage, number: float, net: Any, opt: Any) -> None:
        self.given = place, number, net, opt

    def on_batch(self, batch: Any) -> None:
        place, number, net, opt = self.given
        if opt.state.steps == 6:
            spoil(place(net, opt), number)


def fit(folder: Path, place: Damage, number: float) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm(4), nn.Linear(4, 4)).init(1)
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    gl.fit(
        net, (X, X), loss="mse", optimizer=opt, epochs=2, batch_size=4, freeze="2.weight", ema=0.9, progress=False,
        run=folder, checkpoint_every="2steps", callbacks=[At(place, number, net, opt)],
    )  # fmt: skip


def steps_in(folder: Path) -> list[int]:
    return [one.step for one in manifests(folder / "checkpoints")[0]]


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("place", PARTS, ids=lambda place: place.__name__)
def test_what_is_not_finite_is_no_checkpoint(tmp_path, capfd, monkeypatch, place, number):
    """The one before stays the newest, the run has not finished."""
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)
    fit(tmp_path / "a", place, number)
    said = capfd.readouterr().err
    assert "the checkpoint of step 6 was not saved, the last one is that of step 4: array '" + PARTS[place] in said
    assert "numbers that are NaN or infinite; no run can resume from them" in said
    assert steps_in(tmp_path / "a") == [4, 2]
    assert json.loads((tmp_path / "a" / "run.json").read_text())["state"] == "failed"


def test_the_guard_refuses_what_would_make_a_moment_infinite(tmp_path):
    net = nn.Linear(1, 1, bias=False).init(0)
    opt = optim.AdamW(net.parameters(), lr=0.1)
    for number in (1e20, 1e18):
        with gl.grad_tape() as tape:
            grads = tape.backward(gl.ops.sum(net(np.full((1, 1), number, np.float32))))
        if number == 1e20:
            with pytest.raises(gl.NonFiniteError, match="the squared norm of the gradients overflows f32"):
                opt.step(grads)
        else:
            opt.step(grads)
    assert 0 < opt.state.moments[net.weight.stored]["v"].numpy().item() < math.inf


def own(folder: Path, place: Damage, number: float, **options: Any) -> None:
    """A loop of one's own, spoiled before its second checkpoint."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm(4), nn.Linear(4, 4)).init(1)
    opt = optim.AdamW(net.parameters(), lr=1e-3)
    with gl.train.Checkpoint(folder, net=net, opt=opt, **options) as saving:
        for step in (1, 2):
            with gl.grad_tape() as tape:
                grads = tape.backward(gl.ops.mean(net(X) ** 2))
            opt.step(grads)
            if step == 2:
                spoil(place(net, opt), number)
            saving.save(step)


@pytest.mark.parametrize(
    "place, number, name",
    [(a_weight, math.inf, "net."), (a_running_variance, math.nan, "net."), (a_moment, math.inf, "opt.")],
)
def test_loops_of_your_own(tmp_path, capfd, monkeypatch, place, number, name):
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)
    own(tmp_path / "a", place, number)
    said = "the checkpoint of step 2 was not saved, the last one is that of step 1: array '" + name
    assert said in capfd.readouterr().err and steps_in(tmp_path / "a") == [1]
    with pytest.raises(gl.TrainError, match=said):
        own(tmp_path / "b", place, number, on_error="stop")
    assert steps_in(tmp_path / "b") == [1]


def test_other_objects_of_a_loop(tmp_path):
    """Parameters by themselves, and those of a Trainer."""
    value = gl.parameter(np.zeros(3, np.float32), "value")
    net = nn.Linear(4, 4).init(1)
    trainer = gl.Trainer(net, "mse", optim.SGD(lr=0.1))
    gl.epoch(trainer, gl.data.Dataset(X, X), batch_size=4)
    with gl.train.Checkpoint(tmp_path, on_error="stop", value=value, several=[value], trainer=trainer) as saving:
        saving.save(1)
        value.assign(np.array([0, math.inf, 0], np.float32))
        saving.save(2)
        with pytest.raises(gl.TrainError, match="array 'value.value' holds 1 of 3 numbers"):
            saving.wait()
        value.assign(np.zeros(3, np.float32))
        spoil(net.weight, math.nan)
        saving.save(3)
        with pytest.raises(gl.TrainError, match="array 'model.weight' holds 1 of 16 numbers"):
            saving.wait()
        spoil(net.weight, 0.0)
        saving.save(4)
    assert steps_in(tmp_path) == [4, 1]
