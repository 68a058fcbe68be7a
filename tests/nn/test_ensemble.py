"""Ensembles: each member learns as it would alone, and what they give is averaged."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import SettingError, ShapeError
from tests.train.split_training import on_ranks

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


def test_a_shortcut_adds_what_is_linear():
    plain, net = ensemble(average="outputs"), ensemble(average="outputs", shortcut=5)
    held = net.state_dict()
    plain.load_state_dict({name: array for name, array in held.items() if not name.startswith("shortcut")})
    weight, bias = (held[f"shortcut.{name}"].astype(np.float64) for name in ("weight", "bias"))
    expected = gl.predict(plain, ROWS) + (ROWS @ weight + bias).mean(0)
    np.testing.assert_allclose(gl.predict(net, ROWS), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, 40).astype(np.float32)])
def test_a_member_learns_as_it_would_alone_without_its_fold(loss, weights):
    """Three members and two folds: the first and the last leave out one, the second the other."""
    labels = IDS if loss == "cross_entropy" else np.eye(3, dtype=np.float32)[IDS]
    data = gl.data.Dataset(ROWS, labels, weights=weights)
    folds = data.in_folds(2, 7).folds
    net = ensemble(average="probabilities" if loss == "cross_entropy" else "outputs", shortcut=5)
    held = net.state_dict()
    own = []
    for k in range(3):
        member = gl.nn.Ensemble(
            gl.nn.MemberLinear(1, 5, 8, "relu"), gl.nn.MemberLinear(1, 8, 3), average=net.average, shortcut=5
        ).init(0)
        member.load_state_dict({name: array[k : k + 1] for name, array in held.items()})
        kept = (folds != k % 2).astype(np.float32) * (1 if weights is None else weights)
        part = gl.data.Dataset(ROWS, labels, weights=kept)
        gl.fit(member, part, loss=loss, optimizer=gl.optim.SGD(lr=0.1), epochs=1, batch_size=40, progress=False)
        own.append((member, float(kept.sum())))
    total = sum(weight for _, weight in own)
    history = gl.fit(net, data, loss=loss, optimizer=gl.optim.SGD(lr=0.1), epochs=1, batch_size=40, folds=2, seed=7,
                     progress=False)  # fmt: skip
    for k, (member, weight) in enumerate(own):  # a share of the mean over all is of each
        for name, array in member.state_dict().items():
            moved = (array[0].astype(np.float64) - held[name][k]) * weight / total
            np.testing.assert_allclose(net.state_dict()[name][k] - held[name][k], moved, rtol=2e-3, atol=1e-6)
    others = [[1], [0, 2]]  # which are trained on a row of fold 0, and of fold 1
    outputs = np.stack([gl.predict(_member(net, k), ROWS).astype(np.float64) for k in range(3)])
    expected, count = 0.0, 0.0
    for row, fold in enumerate(folds):
        left_out = [k for k in range(3) if k not in others[fold]]
        weight = 1.0 if weights is None else float(weights[row])
        if loss == "mse":
            each = np.square(outputs[left_out, row].mean(0) - labels[row]).mean()
        else:
            each = -np.log(np.exp(outputs[left_out, row]).mean(0)[IDS[row]])
        expected, count = expected + weight * each, count + weight
    np.testing.assert_allclose(history[-1].val.loss, expected / count, rtol=1e-5)


def _member(net: gl.nn.Ensemble, k: int) -> gl.nn.Ensemble:
    """Member k as an ensemble of one; of logits its outputs are logarithms of probabilities."""
    made = gl.nn.Ensemble(
        gl.nn.MemberLinear(1, 5, 8, "relu"), gl.nn.MemberLinear(1, 8, 3), average=net.average, shortcut=5
    ).init(0)
    made.load_state_dict({name: array[k : k + 1] for name, array in net.state_dict().items()})
    return made


def test_folds_are_drawn_by_the_seed_and_keep_shards():
    data = gl.data.Dataset(ROWS, IDS, shard_size=4)
    folds = data.in_folds(3, 5).folds
    assert data.folds is None and np.array_equal(folds, data.in_folds(3, 5).folds)
    assert not np.array_equal(folds, data.in_folds(3, 6).folds)
    assert (folds.reshape(-1, 4) == folds[::4, None]).all() and sorted(np.bincount(folds)) == [12, 12, 16]
    with pytest.raises(gl.DataError, match="folds=11: 40 rows in 10 shards"):
        data.in_folds(11, 0)


def test_validation_inside_of_an_epoch_leaves_the_order_of_the_pass():
    """Both read the same rows; the one has an order of its own."""
    found = []
    for every in ("1epoch", "1steps"):
        net = ensemble()
        gl.fit(net, (ROWS, IDS), epochs=2, batch_size=8, folds=3, eval_every=every, progress=False)
        found.append(net.state_dict())
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_training_in_folds_goes_on_from_a_checkpoint(tmp_path):
    settings = {"batch_size": 8, "folds": 3, "progress": False, "checkpoint_every": "2steps"}
    whole, cut = ensemble(dropout=0.2), ensemble(dropout=0.2)
    gl.fit(whole, (ROWS, IDS), epochs=3, **settings, run=tmp_path / "a")

    gl.fit(cut, (ROWS, IDS), epochs=2, threads=2, **settings, run=tmp_path / "b")
    other = ensemble(dropout=0.2)
    with pytest.raises(gl.TrainError, match="folds is 2 and was 3"):
        gl.fit(other, (ROWS, IDS), epochs=3, **settings | {"folds": 2}, run=tmp_path / "b", resume=True)
    again = ensemble(dropout=0.2)
    history = gl.fit(again, (ROWS, IDS), epochs=3, threads=1, **settings, run=tmp_path / "b", resume=True)
    assert len(history) == 3 and history[-1].val is not None
    assert all((array == again.state_dict()[name]).all() for name, array in whole.state_dict().items())


def test_folds_give_the_same_bits_for_any_ranks():
    def train(ranks):
        net = ensemble(dropout=0.2)
        settings = {"batch_size": 16, "micro_batch_size": 4, "folds": 3, "progress": False, "threads": 1}
        history = gl.fit(net, (ROWS, IDS), epochs=2, parallel=ranks, **settings)
        numbers = {name: value for name, value in history[-1].numbers().items() if not name.endswith("unc")}
        return {name: array.tobytes() for name, array in net.state_dict().items()}, numbers

    alone, one, *others = train(None), *on_ranks(1, train), *on_ranks(2, train)
    assert alone == one and all(other == alone for other in others), others


@pytest.mark.parametrize(
    ("model", "given", "seen"),
    [
        (gl.nn.Linear(5, 3), {"folds": 2}, "folds=2 requires an nn.Ensemble; the model is a Linear"),
        (None, {"folds": 4}, "folds=4: must be from 2 to 3, the members"),
        (None, {"folds": 1}, "folds=1: must be from 2 to 3, the members"),
        (None, {"folds": 3, "val_split": 0.2}, "folds=3 and val_split=0.2 are mutually exclusive"),
        (None, {"folds": 3, "val": (ROWS, IDS)}, "'val' is that of the rows of val_split or folds"),
    ],
)
def test_folds_that_nobody_can_leave_out(model, given, seen):
    with pytest.raises(SettingError, match=seen):
        gl.fit(model or ensemble(), (ROWS, IDS), progress=False, **given)


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


def test_waves_of_each_member():
    net = gl.nn.Periodic(5, [3, 0], frequencies=4, width=2, scale=0.5, members=3).init(0)
    made = gl.predict(gl.nn.Sequential(net, Permuted()), ROWS)  # rows first
    for k in range(3):
        alone = gl.nn.Periodic(5, [3, 0], frequencies=4, width=2, scale=0.5)
        alone.load_state_dict({name: array[2 * k : 2 * k + 2] for name, array in net.state_dict().items()})
        np.testing.assert_array_equal(made[:, k], gl.predict(alone, ROWS))


class Permuted(gl.nn.Module):
    def forward(self, x):
        return gl.ops.permute(x, (1, 0, 2))


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_no_weight_of_a_member_learns_from_the_fold_that_it_leaves_out(loss):
    """What the command trains on tables: labels of fold 0 change nothing in member 0, and something in the others."""
    members = 4
    layers = (
        gl.nn.Periodic(5, [0, 2, 3], members=members), gl.nn.MemberLinear(members, 17, 8, "relu"),
        gl.nn.MemberLinear(members, 8, 3),
    )  # fmt: skip
    net = gl.nn.Ensemble(*layers, average="probabilities" if loss == "cross_entropy" else "outputs", shortcut=5)
    labels = IDS if loss == "cross_entropy" else np.eye(3, dtype=np.float32)[IDS]
    folds = gl.data.Dataset(ROWS, labels).in_folds(members, 7).folds
    states = []
    for other in (labels, np.where((folds == 0).reshape(-1, *[1] * (labels.ndim - 1)), labels[::-1], labels)):
        net.init(1)
        settings = {"epochs": 3, "batch_size": 8, "folds": members, "seed": 7, "progress": False, "loss": loss}
        gl.fit(net, (ROWS, other), optimizer=gl.optim.AdamW(lr=0.01), **settings)
        states.append(net.state_dict())
    for name in net.state_dict():
        one, two = (x[name].reshape(members, -1) for x in states)
        assert np.array_equal(one[0], two[0]), name
        assert (one[1:] != two[1:]).any(1).all(), name


def test_layers_that_learn_from_each_fold_are_refused():
    net = gl.nn.Ensemble(gl.nn.Linear(5, 4), gl.nn.MemberLinear(3, 4, 3))
    need = "folds=3: 0.bias is shared by all members and would train on the rows of every fold; use layers of each"
    with pytest.raises(SettingError, match=need):
        gl.fit(net, (ROWS, IDS), folds=3, progress=False)
    gl.fit(net, (ROWS, IDS), folds=3, progress=False, epochs=1, freeze="0.*")


def test_probabilities_are_no_numbers_to_regress():
    net = ensemble()
    for call in (gl.fit, gl.evaluate):
        with pytest.raises(SettingError, match=r"^loss='mse' requires nn.Ensemble"):
            call(net, (ROWS, np.eye(3, dtype=np.float32)[IDS]), loss="mse")


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
