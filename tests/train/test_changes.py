"""A model that changes between passes or steps is built anew; nothing goes on with the old graph."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import GraphError, TrainError
from gradloom.parallel import threads
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X = RNG.standard_normal((48, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [2.0], [3.0]], np.float32)
SETTINGS = {"loss": "mse", "batch_size": 8, "progress": False, "seed": 1}


class Net(gl.nn.Module):
    """Two layers, and attributes that forward reads."""

    def __init__(self, layer=None):
        super().__init__()
        self.a = layer if layer is not None else gl.nn.Linear(3, 1)
        self.drop = gl.nn.Dropout(0.5)
        self.k, self.flag, self.pair = 1.0, True, [1, (2.0, {"at": None})]

    def forward(self, x):
        y = self.drop(self.a(x)) * self.k if self.flag else self.a(x) * 0.25
        self.last = y  # what forward sets itself asks for no new graph
        return y * float(self.pair[1][0])


def sgd():
    return gl.optim.SGD(lr=0.02, momentum=0.5)


def bits(module):
    return [a.tobytes() for a in module.state_dict().values()]


def new_layer():
    return gl.nn.Linear(3, 1).init(7)


def replace(net):
    net.a = new_layer()


def swap_in_list(net):
    net.pair[1] = (4.0, {"at": None})


CHANGES = {
    "a layer": replace,
    "a flag": lambda net: setattr(net, "flag", False),
    "a number": lambda net: setattr(net, "k", 0.5),
    "inside of a list": swap_in_list,
    "a mode": lambda net: net.drop.eval(),
    "trainable": lambda net: setattr(net.a.bias, "trainable", False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_takes_effect_in_the_next_epoch(name):
    """Bit for bit what dynamic=True gives, which builds for each call; fit's listener and epoch alike."""
    found = []
    for dynamic in (False, True):
        net = Net().init(3)
        told = []

        def listen(result, net=net, told=told):
            told.append((result.train.loss, bits(net)))
            if result.epoch == 2:
                CHANGES[name](net)

        gl.fit(net, (X, Y), optimizer=sgd(), epochs=4, on_epoch=listen, dynamic=dynamic, **SETTINGS)
        found.append(told)
    assert found[0] == found[1]
    unchanged = Net().init(3)
    history = gl.fit(unchanged, (X, Y), optimizer=sgd(), epochs=4, **SETTINGS)
    assert history[-1].train.loss != found[0][-1][0]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_change_takes_effect_in_the_next_step(name, accumulate):
    """Also inside of an accumulation window."""
    found = []
    for dynamic in (False, True):
        net = Net().init(3)
        trainer = gl.Trainer(net, "mse", sgd(), accumulate=accumulate, dynamic=dynamic)
        losses = []
        for i in range(6):
            if i == 3:
                CHANGES[name](net)
            losses.append(trainer.step(X[:8], Y[:8]).loss)
        found.append((losses, bits(net), trainer.steps))
    if name != "a layer" or accumulate == 1:  # dynamic applies the gradient of a layer that is gone, too: to that layer
        assert found[0] == found[1]
    assert found[0][0] == found[1][0]


def test_what_was_compiled_is_found_again():
    net = Net().init(3)
    trainer = gl.Trainer(net, "mse", sgd())
    data = gl.data.Dataset(X, Y)

    def turns(flag, times=2):
        net.flag = flag
        for _ in range(times):
            gl.epoch(trainer, data, split=40, batch_size=8)
        return len(trainer.compiled)

    assert [turns(True), turns(False), turns(True), turns(False)] == [2, 4, 4, 4]
    first, second = net.a, new_layer()
    net.a = second
    turns(True)
    net.a = first
    assert turns(True) == 6


def test_few_forms_keep_their_steps():
    net = Net().init(3)
    trainer = gl.Trainer(net, "mse", sgd())
    for i in range(40):
        net.k = 1 + i / 100
        trainer.step(X, Y)
    assert len(trainer.compiled) <= 16


def test_predict_of_a_trainer_sees_the_change():
    net = Net().init(3).eval()
    trainer = gl.Trainer(net, "mse", build="forward")
    before = trainer.predict(X)[1][0]
    net.k = 2.0
    np.testing.assert_array_equal(trainer.predict(X)[1][0], before * np.float32(2))


def test_parameters_join_and_leave_the_optimiser(tmp_path):
    net = Net().init(3)
    trainer = gl.Trainer(net, "mse", sgd())
    trainer.step(X, Y)
    old, net.a = net.a, gl.nn.Linear(3, 1)
    trainer.step(X, Y)
    named = net.named_parameters()
    assert [p.stored for p in trainer.optimizer_state.parameters] == [p.stored for p in named.values()]
    assert set(trainer.optimizer_state.state_dict()) == {"optimizer", "steps", "epoch", "m.0", "m.1"}
    kept = old.weight.numpy().tobytes()
    trainer.step(X, Y)
    assert old.weight.numpy().tobytes() == kept
    fresh = gl.Trainer(net, "mse", sgd())
    fresh.optimizer_state.load_state_dict(trainer.optimizer_state.state_dict())
    one, two = trainer.state, fresh.state
    assert all(one[p.stored]["m"].numpy().tobytes() == two[p.stored]["m"].numpy().tobytes() for p in named.values())


def test_a_module_that_names_parameters_of_its_own_keeps_them_in_the_optimiser():
    class Wrapped(gl.nn.Module):
        """Parameters that no attribute holds as such."""

        def __init__(self, net):
            super().__init__()
            self.hidden = lambda: net

        def named_parameters(self):
            return self.hidden().named_parameters()

        def forward(self, x):
            return self.hidden()(x)

    net = Net().init(3)
    wrapped = Wrapped(net)
    trainer = gl.Trainer(wrapped, "mse", sgd())
    for wrapped.k in (1.0, 2.0, 1.0):
        trainer.step(X, Y)
    assert trainer.optimizer_state.parameters == net.parameters()
    assert set(trainer.optimizer_state.state_dict()) == {"optimizer", "steps", "epoch", "m.0", "m.1"}


def test_a_new_layer_is_initialised_by_the_seed_of_the_trainer():
    net, twin = Net(), Net()
    trainer = gl.Trainer(net, "mse", sgd(), seed=5)
    trainer.step(X, Y)
    net.a = gl.nn.Linear(3, 1)
    trainer.optimizer.settings["lr"] = 0.0
    trainer.step(X, Y)
    assert bits(net) == bits(twin.init(5))


# ---- ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHANGES)
def test_ranks_see_a_change(name):
    def work(ranks, change=CHANGES[name]):
        net = Net().init(3)
        trainer = gl.Trainer(net, "mse", sgd(), accumulate=2, communicator=ranks, threads=1)
        data = gl.data.Dataset(X, Y)
        gl.epoch(trainer, data, batch_size=8, micro_batch_size=4, split=40)
        change(net)
        results = gl.epoch(trainer, data, batch_size=8, micro_batch_size=4, split=40)
        return bits(net), [r.loss for r in results]

    one = work(threads(1)[0])
    assert one != work(threads(1)[0], lambda net: None)
    for found in on_ranks(2, work):
        assert found == one


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_on_one_rank_alone_is_an_error(name):
    def work(ranks):
        net = Net().init(3)
        gl.fit(
            net, (X, Y), optimizer=sgd(), epochs=3, parallel=ranks, threads=1, **SETTINGS,
            on_epoch=lambda result: CHANGES[name](net),
        )  # fmt: skip

    for found in on_ranks(2, work):
        assert isinstance(found, TrainError) and "the model has changed on" in str(found), found


# ---- parameters that are made while a graph is built -----------------------------------------------------------


def test_a_parameter_that_is_made_at_each_call_is_refused(backend):
    w = gl.parameter(np.ones((3, 1)))
    models = [
        lambda x: x @ gl.parameter(np.ones((3, 1)), "mine"),
        lambda x: gl.nn.Linear(3, 1)(x),
    ]
    for model in models:
        for optimizer in (sgd(), gl.optim.SGD([w], lr=0.1)):
            with pytest.raises(GraphError, match="made anew at each call"):
                gl.fit(model, (X, Y), optimizer=optimizer, backend=backend, **SETTINGS)
            with pytest.raises(GraphError, match="made anew at each call"):
                gl.Trainer(model, "mse", optimizer, dynamic=True, backend=backend).step(X, Y)

    def loss(outputs, labels):
        return gl.ops.sum((outputs - labels * gl.parameter(1.0)) ** 2, 1)

    with pytest.raises(GraphError, match="made anew at each call"):
        gl.fit(lambda x: x @ w, (X, Y), backend=backend, **SETTINGS | {"loss": loss})


def test_a_parameter_that_is_made_once_and_kept_is_trained(backend):
    kept = []

    def model(x):
        if not kept:
            kept.append(gl.nn.Linear(3, 1))
        return kept[0](x)

    class Lazy(gl.nn.Module):
        def forward(self, x):
            if not hasattr(self, "a"):
                self.a = gl.nn.Linear(3, 1)
            return self.a(x)

    for one in (model, Lazy()):
        history = gl.fit(one, (X, Y), optimizer=sgd(), epochs=20, backend=backend, **SETTINGS)
        assert gl.evaluate(one, (X, Y), loss="mse", backend=backend).loss < 0.01 * history[0].train.loss


def test_a_constant_that_is_made_at_each_call_is_fine(backend):
    w = gl.parameter(np.zeros((3, 1)))

    def model(x):
        return x @ w + gl.parameter(np.zeros(1), trainable=False)

    gl.fit(model, (X, Y), optimizer=sgd(), epochs=20, backend=backend, **SETTINGS)
    assert gl.evaluate(model, (X, Y), loss="mse", backend=backend).loss < 0.1
