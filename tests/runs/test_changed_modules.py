"""What a callback, or a loop, changes in modules beside their arrays goes on after a resume: modes, numbers, ..."""

from __future__ import annotations

import random

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((160, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


class Cut(gl.train.Callback):
    """The power fails in the so-many-th step: no checkpoint is written there."""

    stateless = True

    def __init__(self, step):
        self.left = step

    def __repr__(self):
        return "Cut()"

    def on_batch(self, batch):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("power cut")


class Net(nn.Module):
    """Numbers of its own, random generators, and layers in a list."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.first, self.last, self.norm, self.drop = (
            nn.Linear(6, 12, activation="relu"), nn.Linear(12, 2), nn.BatchNorm(12), nn.Dropout(0.2)
        )  # fmt: skip
        self.scale, self.pair, self.rates, self.table, self.extra = scale, (1.0, True), {"a": [1.0]}, RNG, []
        self.calls, self.draw, self.stream = 0, random.Random(3), np.random.Generator(np.random.MT19937(4))

    def forward(self, x):
        self.calls += 1
        x = self.drop(self.norm(self.first(x))) * (self.scale * self.pair[0] * self.rates["a"][0])
        for each in self.extra:
            x = each(x)
        return self.last(x)


class Drawing(Net):
    """Each graph is another one: by a count, and by what generators draw."""

    def forward(self, x):
        y = super().forward(x)
        y = y * 1.5 if self.draw.random() < 0.5 else y
        y = y * 0.5 if self.stream.random() < 0.5 else y
        return -y if self.calls % 3 == 0 else y


def batch_norm_off(net, epoch):
    net.norm.eval()


def change_twice(net, epoch):
    net.drop.rate = 0.5 / epoch


def back_and_forth(net, epoch):
    net.scale = (1.0, 0.5)[epoch % 2]


def lists(net, epoch):
    if epoch == 2:
        net.pair, net.rates["a"][0] = (0.5, False), 3.0


def none(net, epoch):
    net.first.bias = None


CHANGES = {
    "nothing": lambda net, epoch: None,
    "rate": change_twice,
    "mode": batch_norm_off,
    "momentum": lambda net, epoch: setattr(net.norm, "momentum", 0.5),
    "numpy number": lambda net, epoch: setattr(net.norm, "momentum", np.float32(0.25)),
    "number of its own": back_and_forth,
    "tuples and lists": lists,
    "new attribute": lambda net, epoch: setattr(net, "made", epoch),
}


class Change(gl.train.Callback):
    """on_epoch changes the model, as the epoch alone decides."""

    stateless = True

    def __init__(self, net, change):
        self.net, self.change = net, change

    def __repr__(self):
        return "Change()"

    def on_epoch(self, result):
        self.change(self.net, result.epoch)


def fit(folder, change="nothing", cut=0, model=Net, scale=1.0, every="2steps", **options):
    """The model's bytes, after 4 epochs of 10 steps; None where the power has failed before."""
    net = model(scale)
    callbacks = [Change(net, CHANGES[change] if isinstance(change, str) else change), Cut(cut)]
    try:
        gl.fit(
            net, (X, Y), epochs=4, batch_size=16, callbacks=callbacks, ema=0.5, progress=False, threads=1,
            **({} if folder is None else {"run": folder, "resume": True, "checkpoint_every": every}), **options,
        )  # fmt: skip
    except RuntimeError:
        assert cut
        return None
    return {name: array.tobytes() for name, array in net.state_dict().items()}, net.training, net.norm.training


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_callback_changes_goes_on(change, dynamic, tmp_path):
    """Stopped in the first epoch, at the end of one, right behind it, and later, one after the other."""
    whole = fit(None, change, dynamic=dynamic)
    for cuts in ((5, 4), (15, 9), (20,), (21,)):
        folder = tmp_path / "-".join(map(str, cuts))
        for cut in cuts:
            assert fit(folder, change, cut, dynamic=dynamic) is None
        assert fit(folder, change, dynamic=dynamic) == whole, cuts


@pytest.mark.parametrize("cut", [5, 15, 21])
@pytest.mark.slow
def test_a_model_that_counts_and_draws_goes_on(cut, tmp_path):
    """The graph is another one from call to call; what checkpoints ask for changes nothing of it."""
    whole = fit(None, model=Drawing, dynamic=True)
    assert fit(tmp_path / "whole", model=Drawing, dynamic=True) == whole
    fit(tmp_path / "cut", model=Drawing, dynamic=True, cut=cut)
    assert fit(tmp_path / "cut", model=Drawing, dynamic=True) == whole


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.slow
def test_a_model_that_the_script_makes_otherwise_is_refused(dynamic, tmp_path):
    """What is compared is the model as the run began with it, with and without a change of the same attribute."""
    for change in ("nothing", "number of its own"):
        fit(tmp_path / change, change, 15, dynamic=dynamic)
        with pytest.raises(
            gl.TrainError, match=r"the graph of a step differs \(scale is 0.5 and was 1.0\); need the sa"
        ):
            fit(tmp_path / change, change, scale=0.5, dynamic=dynamic)
        assert fit(tmp_path / change, change, dynamic=dynamic) == fit(None, change, dynamic=dynamic)


def add_layer(net, epoch):
    net.extra.append(nn.Linear(12, 12))


def add_dropout(net, epoch):
    net.extra.append(nn.Dropout(0.1))


def other_function(net, epoch):
    net.first.act = gl.ops.tanh


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (add_layer, "extra.0.bias, extra.0.weight is in the state alone"),
        (
            add_dropout,
            r"extra was list\(Dropout\), changed after the run began, and is \[\]: a checkpoint holds no lay",
        ),
        (other_function, "first.act was tanh, changed after the run began, and is relu: a checkpoint holds no layers"),
        (none, "first.bias is missing; "),
    ],
)
def test_layers_and_functions_that_were_changed_are_refused(change, said, tmp_path):
    assert fit(tmp_path, change, 15) is None
    with pytest.raises(gl.TrainError, match=f"load: model: {said}"):
        fit(tmp_path, change)


def test_another_object_is_said(tmp_path, capsys):
    def change(net, epoch):
        net.table = {1, 2}

    fit(tmp_path, change, 15)
    capsys.readouterr()
    fit(tmp_path, change)
    said = "table had changed after the run began, which no checkpoint holds: as the script makes it now; the same bits"
    assert f"{tmp_path}: {said} are not promised\n" in capsys.readouterr().err


class Draws(gl.train.Callback):
    """Draws eager random numbers."""

    def __init__(self):
        self.drawn = []

    def on_epoch(self, result):
        self.drawn.append(gl.ops.dropout(gl.tensor(np.ones(64, np.float32)), 0.5).numpy().tolist())

    def state(self):
        return {"drawn": self.drawn}

    def load_state(self, values):
        self.drawn = list(values["drawn"])


@pytest.mark.slow
def test_what_a_callback_draws_goes_on(tmp_path):
    def drawn(folder, cut=0):
        gl.seed(4)
        draws = Draws()
        try:
            gl.fit(
                nn.Linear(6, 2), (X, Y), epochs=4, batch_size=16, run=folder, resume=True, checkpoint_every="2steps",
                callbacks=[draws, Cut(cut)], progress=False,
            )  # fmt: skip
        except RuntimeError:
            gl.seed(5)
        return draws.drawn

    whole = drawn(tmp_path / "whole")
    assert len({tuple(each) for each in whole}) == 4
    for cut in (9, 10, 11, 33):
        drawn(tmp_path / str(cut), cut)
        assert drawn(tmp_path / str(cut)) == whole


@pytest.mark.parametrize("how", ["module", "trainer"])
def test_in_a_loop_of_ones_own(how, tmp_path):
    def made(momentum=0.1):
        net = Net()
        net.norm.momentum = momentum
        return net, net if how == "module" else gl.Trainer(net)

    net, given = made()
    with gl.train.Checkpoint(tmp_path, model=given) as checkpoint:
        net.drop.rate, net.scale, net.pair = 0.75, 3.0, (2.0, False)
        net.norm.eval()
        net.draw.random()
        net.stream.random()
        net.table = None
        checkpoint.save(1)
    again, given = made(0.5)  # of this script, and not changed by the loop
    checkpoint = gl.train.Checkpoint(tmp_path, model=given)
    assert checkpoint.load() == 1
    checkpoint.close()
    assert (again.drop.rate, again.scale, again.pair, again.table) == (0.75, 3.0, (2.0, False), None)
    assert (again.norm.training, again.drop.training, again.norm.momentum) == (False, True, 0.5)
    assert again.draw.random() == net.draw.random() and again.stream.random() == net.stream.random()


def test_a_state_in_memory_takes_all_of_it_back():
    net = Net()
    state = (trainer := gl.Trainer(net)).train_state
    before = state.collect()
    net.drop.rate, net.rates["a"][0], net.first.act = 0.75, 3.0, net.first.act
    net.eval()
    after = state.collect()
    state.load(before)
    assert (net.drop.rate, net.rates, net.training, net.drop.training) == (0.2, {"a": [1.0]}, True, True)
    trainer.train_state.load(after)
    assert (net.drop.rate, net.rates, net.training, net.drop.training) == (0.75, {"a": [3.0]}, False, False)


def test_a_state_without_this_part_is_refused():
    trainer = gl.Trainer(Net())
    saved = {name: v for name, v in trainer.train_state.collect().items() if not name.startswith("modules.")}
    with pytest.raises(gl.TrainError, match="^load: modules: attributes, .* is missing; need "):
        trainer.train_state.load(saved)


def test_replicas_take_it_back(tmp_path):
    """Another shape comes first behind the resume, and is built with the number of the model then."""
    xs = [(RNG.standard_normal((n, 6)).astype(np.float32), np.zeros(n, np.int32)) for n in (4, 4, 4, 4, 8, 4)]

    def train(iterations, **options):
        made = []

        def make():
            made.append(nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.0)))
            return made[0]

        class Samples(list):
            def __getitem__(self, i):
                if i == 2:
                    made[0][1].rate = 0.5
                return super().__getitem__(i)

        options = {"iterations": iterations, "loss_fn": gl.ops.cross_entropy, "threads": 1, "seed": 4, **options}
        result = gl.dp_train(make, Samples(xs), replicas=1, optimizer=gl.optim.SGD(lr=0.1), **options)
        return result.loss_history, result.model[1].rate

    whole = train(6)
    train(4, run=tmp_path)
    assert train(6, run=tmp_path, resume=True) == whole and whole[1] == 0.5


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_change_of_running_statistics_alone_is_seen(dynamic):
    """The momentum of a batch norm is in what the graph carries, not in its outputs."""
    assert fit(None, "momentum", dynamic=dynamic)[0] != fit(None, dynamic=dynamic)[0]
