"""The moving average of weights: what fit's ema= measures, keeps and leaves in the model."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import SGD, AdamW
from gradloom.train import EarlyStopping
from tests.refused import refused
from tests.train.small_models import Interrupt, saved_steps
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 5)).astype(np.float32), RNG.integers(0, 3, 60)
DATA = gl.data.Dataset(X, Y)


def net():
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="tanh"), gl.nn.Linear(8, 3)).init(1)


def named(model):
    return {name: p.numpy() for name, p in model.named_parameters().items()}


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def by_hand(decay, optimizer, steps=12, **options):
    """(the average, the weights) after steps on 10 rows each, from the weights after every step."""
    model = net()
    trainer = gl.Trainer(model, optimizer=optimizer, **options)
    mean = {name: array.astype(np.float64) for name, array in named(model).items()}
    for i in range(steps):
        at = 10 * (i % 6)
        trainer.step(X[at : at + 10], Y[at : at + 10])
        for name, array in named(model).items():
            mean[name] = decay * mean[name] + (1 - decay) * array
    return mean, named(model)


OPTIMIZERS = {
    "sgd": lambda: SGD(lr=0.3, momentum=0.9),
    "adamw": lambda: AdamW(lr=0.05, weight_decay=0.1),
    "groups": lambda: AdamW(
        lr=0.05, groups=[{"match": "0.*", "lr": 0.01}, {"match": "1.bias", "optimizer": SGD(lr=0.3)}]
    ),
}


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_is_the_average_over_the_steps(kind, backend):
    mean, last = by_hand(0.9, OPTIMIZERS[kind](), backend=backend)
    model = net()
    trainer = gl.Trainer(model, optimizer=OPTIMIZERS[kind](), ema=0.9, backend=backend)
    for i in range(12):
        at = 10 * (i % 6)
        trainer.step(X[at : at + 10], Y[at : at + 10])
    assert same(named(model), last)  # the weights that are trained know nothing of it
    trainer.show_average()
    for name, array in named(model).items():
        np.testing.assert_allclose(array, mean[name], rtol=1e-5, atol=1e-6)
        assert np.abs(array - last[name]).max() > 1e-3
    trainer.show_average(False)
    assert same(named(model), last)


def fit(model, ema=0.0, optimizer=None, **options):
    options = {"epochs": 4, "batch_size": 10, "val_split": 0.2, "seed": 3, "progress": False, **options}
    return gl.fit(model, DATA, optimizer=optimizer or AdamW(lr=0.05), ema=ema, **options)


@pytest.mark.parametrize("micro", [None, 3])
def test_fit_measures_and_leaves_the_average(micro):
    seen, plain, model = [], net(), net()
    weights = []
    fit(plain, micro_batch_size=micro, on_epoch=lambda result: weights.append(named(plain)))
    optimizer = AdamW(model.named_parameters(), lr=0.05)
    history = fit(model, 0.9, optimizer, micro_batch_size=micro, on_epoch=lambda result: seen.append(named(model)))
    assert all(epoch.averaged for epoch in history) and not any(epoch.averaged for epoch in fit(net()))
    assert same(named(model), seen[-1])  # on_epoch saw the average, and the model holds it in the end
    _, val_rows = DATA.split(0.2, 3)
    held_out = gl.data.Dataset(X[val_rows], Y[val_rows])
    assert gl.evaluate(model, held_out).loss == pytest.approx(history[-1].val.loss, rel=1e-6)
    averaged = named(model)
    optimizer.show_average(False)
    assert same(named(model), weights[-1])  # the other set: that of a fit without an average, to the bit
    assert not same(averaged, named(model))
    optimizer.show_average()
    assert same(named(model), averaged)


def test_restore_best_keeps_what_was_measured():
    model, kept = net(), {}
    stop = EarlyStopping(patience=3, restore_best=True)

    def on_epoch(result):
        kept[result.epoch] = named(model)

    history = fit(model, 0.9, SGD(lr=2.0), epochs=12, on_epoch=[on_epoch, stop])
    assert stop.best_epoch < len(history)
    assert same(named(model), kept[stop.best_epoch])
    _, val_rows = DATA.split(0.2, 3)
    held_out = gl.data.Dataset(X[val_rows], Y[val_rows])
    best = min(epoch.val.loss for epoch in history)
    assert gl.evaluate(model, held_out).loss == pytest.approx(best, rel=1e-6)


def test_running_statistics_are_the_models_own():
    class Net(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.second = gl.nn.Linear(5, 8), gl.nn.BatchNorm(8), gl.nn.Linear(8, 3)

        def forward(self, x):
            return self.second(gl.ops.relu(self.norm(self.first(x))))

    plain, model = Net().init(0), Net().init(0)
    fit(plain)
    fit(model, 0.9)
    buffers = {name: p.numpy() for name, p in model.named_buffers().items()}
    assert buffers and all(np.array_equal(p.numpy(), buffers[name]) for name, p in plain.named_buffers().items())
    assert not same(named(plain), named(model))


def test_ranks_keep_the_same_average():
    def train(ranks):
        model = net()
        fit(model, 0.9, micro_batch_size=5, parallel=ranks, threads=1)
        return named(model)

    (one,) = on_ranks(1, train)
    assert all(same(one, each) for each in on_ranks(2, train))


@pytest.mark.parametrize("shown", [False, True])
def test_a_state_goes_on_to_the_bit(shown):
    def trainer(model):
        return gl.Trainer(model, optimizer=AdamW(lr=0.05), ema=0.9)

    def run(one, first, last):
        for i in range(first, last):
            at = 10 * (i % 6)
            one.step(X[at : at + 10], Y[at : at + 10])

    whole, first, second = net(), net(), net()
    one = trainer(whole)
    run(one, 0, 12)
    begun = trainer(first)
    run(begun, 0, 6)
    begun.show_average(shown)
    again = trainer(second)
    again.train_state.load(begun.train_state.collect())
    assert same(named(first), named(second))
    run(again, 6, 12)
    again.show_average(False)
    assert same(named(whole), named(second))
    again.show_average()
    one.show_average()
    assert same(named(whole), named(second))
    other = gl.Trainer(net(), optimizer=AdamW(lr=0.05), ema=0.5)
    with pytest.raises(gl.TrainError, match=r"load: average: decay=0.5, in the state 0.9"):
        other.train_state.load(begun.train_state.collect())
    with pytest.raises(gl.TrainError, match="load: average: .* is in the state alone"):
        gl.Trainer(net(), optimizer=AdamW(lr=0.05)).train_state.load(begun.train_state.collect())


def first_layer(model):
    return [model[0].weight, model[0].bias]


def set_trainable(parameters, trainable):
    for p in parameters:
        p.trainable = trainable


def follow(mean, model, decay=0.9):
    return {name: decay * mean[name] + (1 - decay) * array for name, array in model.state_dict().items()}


def close(model, mean):
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(array, mean[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_frozen_later_is_averaged_on(accumulate):
    model = net()
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.5), ema=0.9, accumulate=accumulate)
    mean = {name: array.astype(np.float64) for name, array in model.state_dict().items()}
    for i in range(30):
        set_trainable(first_layer(model), not 10 <= i < 20)
        for _ in range(accumulate):
            trainer.step(X[:10], Y[:10])
        last, mean = model.state_dict(), follow(mean, model)
        if i in (9, 10, 19, 20, 29):
            trainer.show_average()
            close(model, mean)
            assert np.abs(model.state_dict()["0.weight"] - last["0.weight"]).max() > 1e-3
            trainer.show_average(False)
            assert same(model.state_dict(), last)


def test_what_was_never_trained_has_no_average():
    model = net()
    set_trainable(first_layer(model), False)
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.5), ema=0.9)
    mean = {name: array.astype(np.float64) for name, array in model.state_dict().items()}
    before = model.state_dict()
    for i in range(10):
        set_trainable(first_layer(model), i >= 5)
        trainer.step(X[:10], Y[:10])
        mean = follow(mean, model)
        trainer.show_average()
        assert np.array_equal(model.state_dict()["0.weight"], before["0.weight"]) == (i < 5)
        close(model, mean)
        trainer.show_average(False)


def test_it_is_thawed_while_the_average_is_shown():
    model = net()
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.5), ema=0.9)
    trainer.step(X[:10], Y[:10])
    set_trainable(first_layer(model), False)
    trainer.step(X[:10], Y[:10])
    last = model.state_dict()
    trainer.show_average()
    set_trainable(first_layer(model), True)
    trainer.show_average(False)
    assert same(model.state_dict(), last)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_step_does_not_reach_is_averaged_on(dynamic):
    class Switched(gl.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.way = gl.nn.Linear(5, 3), gl.nn.Linear(5, 3), 0

        def forward(self, x):
            return (self.other if self.way else self.one)(x)

    model = Switched().init(1)
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.5), ema=0.9, dynamic=dynamic)
    mean = {name: array.astype(np.float64) for name, array in model.state_dict().items()}
    for way in (0, 0, 1, 0, 1, 1, 0):
        model.way = way
        trainer.step(X[:10], Y[:10])
        mean = follow(mean, model)
    trainer.show_average()
    close(model, mean)


def test_a_loop_of_ones_own_averages_what_is_frozen_on():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.5)
    fit(model, 0.9, optimizer, epochs=1)
    mean = {name: array.astype(np.float64) for name, array in model.state_dict().items()}
    optimizer.show_average(False)
    set_trainable(first_layer(model), False)
    for _ in range(4):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
        optimizer.step(tape.backward(loss))
        mean = follow(mean, model)
    optimizer.show_average()
    close(model, mean)


class Freezes(gl.train.Callback):
    """Freezes a layer in some epochs."""

    stateless = True

    def begin(self, loop):
        self.loop = loop

    def on_epoch(self, result):
        set_trainable(first_layer(self.loop.trainer.model), result.epoch not in (2, 3))


@pytest.mark.parametrize("micro", [None, 4])
def test_validation_measures_what_is_frozen_with_its_average(micro):
    model, trained, steps = net(), [], []
    optimizer = SGD(model.named_parameters(), lr=0.3)

    class Steps(gl.train.Callback):
        def on_batch(self, batch):
            steps.append(model.state_dict())

    mean = {name: array.astype(np.float64) for name, array in model.state_dict().items()}

    def on_epoch(result):
        trained.append(model.state_dict())

    options = {"micro_batch_size": micro, "epochs": 6, "callbacks": [Steps(), Freezes()], "on_epoch": on_epoch}
    fit(model, 0.9, optimizer, **options)
    ends = []
    for i, weights in enumerate(steps):
        mean = {name: 0.9 * mean[name] + 0.1 * array for name, array in weights.items()}
        if (i + 1) % 5 == 0:
            ends.append(mean)
    for shown, by_hand_ in zip(trained, ends, strict=True):
        for name, array in shown.items():
            np.testing.assert_allclose(array, by_hand_[name], rtol=1e-5, atol=1e-6)
    assert same(model.state_dict(), trained[-1])


def test_ranks_average_on_what_is_frozen():
    def train(ranks):
        model = net()
        trainer = gl.Trainer(model, optimizer=SGD(lr=0.3), ema=0.9, communicator=ranks, threads=1)
        source, seen = trainer.source(DATA), []
        mean = {name: array.astype(np.float64) for name, array in model.state_dict().items()}
        for i in range(12):
            set_trainable(first_layer(model), not 4 <= i < 8)
            trainer.run_rows(source, 0, 10, gl.train.Result(), batch_size=10, micro_batch_size=5)
            mean = follow(mean, model)
            if i in (5, 7, 8, 11):
                trainer.show_average()
                close(model, mean)
                seen.append(model.state_dict())
                trainer.show_average(False)
        return seen

    (one,) = on_ranks(1, train)
    for other in on_ranks(2, train):
        assert all(same(a, b) for a, b in zip(one, other, strict=True))


def test_a_run_that_freezes_resumes_to_the_bit(tmp_path):
    def run(model, **options):
        options = {"epochs": 6, "callbacks": [Freezes()], "checkpoint_every": "1steps", "overwrite": False, **options}
        return fit(model, 0.9, SGD(model.named_parameters(), lr=0.3), run=tmp_path, **options)

    whole, cut = net(), net()
    fit(whole, 0.9, SGD(whole.named_parameters(), lr=0.3), epochs=6, callbacks=[Freezes()])

    with pytest.raises(KeyboardInterrupt):
        run(cut, callbacks=[Freezes(), Interrupt(13)])  # while the layer is frozen
    assert saved_steps(tmp_path)[-1] == 13
    again = net()
    run(again, resume=True)
    assert same(again.state_dict(), whole.state_dict())


def test_a_reset_begins_it_anew():
    model = net()
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.5), ema=0.9)
    trainer.step(X[:10], Y[:10])
    trainer.reset(optimizer=True)
    before = named(model)
    trainer.show_average()
    assert same(before, named(model))


def test_a_step_that_is_not_finite_leaves_it():
    model = net()
    trainer = gl.Trainer(model, optimizer=SGD(lr=0.5), ema=0.9)
    trainer.step(X[:10], Y[:10])
    trainer.show_average()
    before = named(model)
    with pytest.raises(gl.NonFiniteError):
        trainer.step(np.full((4, 5), np.inf, np.float32), Y[:4])
    assert same(before, named(model))


@pytest.mark.parametrize("ema", [1.0, -0.1, float("nan"), True, "0.9", 2])
def test_decays_that_are_refused(ema):
    with refused("ema"):
        fit(net(), ema)


def test_there_is_no_other_set_without_it():
    opt = AdamW(net().parameters())
    with pytest.raises(gl.GradientError, match="show_average: there is no average; need gl.fit"):
        opt.show_average()


def test_evaluations_inside_of_an_epoch_measure_it():
    class Hears(gl.train.Callback):
        def __init__(self, model):
            self.model, self.seen = model, []

        def on_evaluation(self, evaluation):
            self.seen.append((evaluation.results["val"].loss, named(self.model)))

    model = net()
    heard = Hears(model)
    fit(model, 0.9, val_split=0.2, eval_every="2steps", epochs=2, callbacks=[heard])
    _, val_rows = DATA.split(0.2, 3)
    held_out = gl.data.Dataset(X[val_rows], Y[val_rows])
    assert len(heard.seen) > 2
    other = net()
    for loss, weights in heard.seen:
        for name, p in other.named_parameters().items():
            p.assign(weights[name])
        assert gl.evaluate(other, held_out).loss == pytest.approx(loss, rel=1e-6)
    plain = Hears(other := net())
    fit(other, val_split=0.2, eval_every="2steps", epochs=2, callbacks=[plain])
    assert all(abs(a[0] - b[0]) > 1e-6 for a, b in zip(heard.seen, plain.seen, strict=True))


def test_a_loop_of_ones_own_goes_on_from_the_weights_that_are_trained():
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.05)
    fit(model, 0.9, optimizer)
    with gl.grad_tape() as tape:
        loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
    with pytest.raises(gl.GradientError, match="step: the model holds the average of its weights"):
        optimizer.step(tape.backward(loss))
    before = named(model)
    optimizer.show_average(False)
    with gl.grad_tape() as tape:
        loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
    optimizer.step(tape.backward(loss))
    optimizer.show_average()
    assert not same(before, named(model))  # it has moved
