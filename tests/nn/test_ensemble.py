"""Ensembles: each member learns as it would alone, and what they give is averaged."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import SettingError, ShapeError

ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
IDS = (ROWS[:, 0] > 0).astype(np.int32) + (ROWS[:, 1] > 1).astype(np.int32)


def ensemble(members: int = 3, **more) -> gl.nn.Ensemble:
    layers = gl.nn.MemberLinear(members, 5, 8, "relu"), gl.nn.MemberLinear(members, 8, 3)
    return gl.nn.Ensemble(*layers, **more).init(1)


def alone(net: gl.nn.Ensemble, k: int) -> gl.nn.Sequential:
    """Member k as a network of its own."""
    made = gl.nn.Sequential(gl.nn.Linear(5, 8, "relu"), gl.nn.Linear(8, 3)).init(0)
    held = net.state_dict()
    made.load_state_dict(
        {f"{i}.weight": held[f"{i}.weight"][k].T for i in (0, 1)}
        | {f"{i}.bias": held[f"{i}.bias"][k, 0] for i in (0, 1)}
    )
    return made


@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 40).astype(np.float32)])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_each_member_learns_as_it_would_alone(loss, weights):
    """By plain gradient descent, whose step is linear in the gradient: a third of the mean loss, at three times the
    rate."""
    labels = IDS if loss == "cross_entropy" else np.eye(3, dtype=np.float32)[IDS]
    data = gl.data.Dataset(ROWS, labels, weights=weights)
    net = ensemble(average="probabilities" if loss == "cross_entropy" else "outputs")
    ones = [alone(net, k) for k in range(3)]
    settings = {"loss": loss, "epochs": 3, "batch_size": 16, "progress": False}
    whole = gl.fit(net, data, optimizer=gl.optim.SGD(lr=0.3), **settings)
    each = [gl.fit(one, data, optimizer=gl.optim.SGD(lr=0.1), **settings) for one in ones]
    for k, one in enumerate(ones):
        for name, array in alone(net, k).state_dict().items():
            np.testing.assert_allclose(array, one.state_dict()[name], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(whole[-1].train.loss, np.mean([h[-1].train.loss for h in each]), rtol=1e-5)


def test_what_members_give_is_averaged():
    net = ensemble()
    logits = np.stack([gl.predict(alone(net, k), ROWS) for k in range(3)]).astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(gl.predict(net, ROWS), np.log(shares.mean(0)), rtol=1e-4, atol=1e-6)
    net.average = "outputs"
    np.testing.assert_allclose(gl.predict(net, ROWS), logits.mean(0), rtol=1e-4, atol=1e-6)


def test_an_unlikely_class_keeps_a_finite_logarithm():
    net = ensemble()
    net.load_state_dict({name: 300 * array for name, array in net.state_dict().items()})
    assert np.isfinite(gl.predict(net, ROWS)).all()


def test_micro_batches_drop_the_same():
    found = []
    for size in (16, 4):
        net = ensemble(dropout=0.5)
        gl.fit(net, (ROWS, IDS), epochs=2, batch_size=16, micro_batch_size=size, progress=False, seed=3,
               optimizer=gl.optim.SGD(lr=0.1))  # fmt: skip
        found.append(np.concatenate([a.ravel() for a in net.state_dict().values()]))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


def test_a_sequence_is_no_ensemble():
    """Outputs of another module that have an axis more than the labels are an error, as before."""
    outputs = gl.nn.Sequential(gl.nn.Linear(5, 6))
    with pytest.raises(ShapeError):
        gl.fit(lambda x: gl.ops.reshape(outputs(x), (-1, 2, 3)), (ROWS, IDS), progress=False)


def test_waves_of_numbers():
    net = gl.nn.Periodic(5, [3, 0], frequencies=4, width=2, scale=0.5).init(0)
    held = {name: array.astype(np.float64) for name, array in net.state_dict().items()}
    waves = np.cos(2 * np.pi * ROWS[:, [3, 0]].T[:, :, None] * held["coefficients"] + held["phases"])
    made = np.maximum(waves @ held["weight"] + held["bias"], 0)
    expected = np.concatenate([made.transpose(1, 0, 2).reshape(40, 4), ROWS], axis=1)
    np.testing.assert_allclose(gl.predict(net, ROWS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: gl.nn.Ensemble(gl.nn.Linear(2, 3)), ShapeError),
        (lambda: gl.nn.Ensemble(gl.nn.MemberLinear(2, 3, 3), gl.nn.MemberLinear(3, 3, 3)), ShapeError),
        (lambda: gl.nn.Ensemble(gl.nn.MemberLinear(2, 3, 3), average="median"), SettingError),
        (lambda: gl.nn.Periodic(3, [3]), ShapeError),
        (lambda: gl.nn.Periodic(3, []), ShapeError),
        (lambda: gl.nn.Periodic(3, [0], scale=0.0), SettingError),
    ],
)
def test_what_is_refused(make, kind):
    with pytest.raises(kind):
        make()
