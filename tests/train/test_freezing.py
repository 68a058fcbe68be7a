"""parameter.trainable = False and True between two steps: what is frozen keeps its bits, its moments wait for it."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import SGD, AdamW

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 5)).astype(np.float32), RNG.integers(0, 3, 24)


def net():
    return gl.nn.Sequential(gl.nn.Linear(5, 8, activation="relu"), gl.nn.Linear(8, 3)).init(1)


def named(model):
    return {name: p.numpy() for name, p, _ in model.named_stored()}


class Eager:
    """A loop of one's own with the face of a Trainer."""

    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = type(optimizer)(model.parameters(), **optimizer.settings)

    @property
    def state(self):
        return self.optimizer.state.moments

    def step(self, x, y):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(self.model(gl.tensor(x)), gl.tensor(y))
        self.optimizer.step(tape.backward(loss))


def trainer(how, model):
    optimizer = AdamW(lr=0.05, weight_decay=0.5)
    return Eager(model, optimizer) if how == "eager" else gl.Trainer(model, optimizer=optimizer)


@pytest.mark.parametrize("how", ["trainer", "eager"])
def test_frozen_and_thawed(how):
    """Weight decay and moments are still, too; thawed, it goes on with the moments that it had."""
    model = net()
    first = [p for name, p in model.named_parameters().items() if name.startswith("0.")]
    one = trainer(how, model)
    one.step(X[:8], Y[:8])
    one.step(X[8:16], Y[8:16])
    before = named(model)
    kept = {p.stored: {k: m.numpy() for k, m in one.state[p.stored].items()} for p in first}
    for p in first:
        p.trainable = False
    for _ in range(3):
        one.step(X[16:], Y[16:])
    after = named(model)
    assert all(np.array_equal(after[name], before[name]) for name in ("0.weight", "0.bias"))
    assert not np.array_equal(after["1.weight"], before["1.weight"])
    for p in first:
        assert all(np.array_equal(m.numpy(), kept[p.stored][k]) for k, m in one.state[p.stored].items())
        p.trainable = True
    one.step(X[:8], Y[:8])
    assert not np.array_equal(named(model)["0.weight"], before["0.weight"])
    moment = one.state[first[0].stored]["m"].numpy()
    expected = 0.9 * kept[first[0].stored]["m"]
    assert np.abs(moment - expected).max() < 0.2 * np.abs(expected).max() + 0.05
    m, v = kept[first[0].stored]["m"], kept[first[0].stored]["v"]
    slope = (moment - 0.9 * m) / 0.1
    np.testing.assert_allclose(
        one.state[first[0].stored]["v"].numpy(), 0.999 * v + 0.001 * slope**2, rtol=1e-3, atol=1e-7
    )


@pytest.mark.parametrize("how", ["trainer", "eager"])
def test_the_same_whether_frozen_by_hand_or_never_there(how):
    """Frozen from the start, it is as a parameter that no optimiser has."""
    model, other = net(), net()
    for p in model[0].parameters():
        p.trainable = False
    one, plain = trainer(how, model), gl.Trainer(other, optimizer=AdamW(lr=0.05, weight_decay=0.5), freeze="0.*")
    for each in (one, plain):
        for at in (0, 8, 16):
            each.step(X[at : at + 8], Y[at : at + 8])
    mine, theirs = named(model), named(other)
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_frozen_between_the_epochs_of_fit():
    model, seen = net(), []

    def on_epoch(result):
        seen.append(named(model))
        for name, p, _ in model.named_stored():
            if name.startswith("0."):
                p.trainable = result.epoch != 2

    gl.fit(model, (X, Y), optimizer=AdamW(lr=0.05), epochs=4, batch_size=8, progress=False, on_epoch=on_epoch)
    assert not np.array_equal(seen[0]["0.weight"], seen[1]["0.weight"])
    assert np.array_equal(seen[1]["0.weight"], seen[2]["0.weight"])
    assert not np.array_equal(seen[2]["0.weight"], seen[3]["0.weight"])


@pytest.mark.parametrize("how", ["trainer", "eager"])
def test_frozen_inside_of_a_window(how):
    """What was accumulated for it is not applied."""
    model = net()
    opt = SGD(lr=0.5) if how == "trainer" else SGD(model.parameters(), lr=0.5)
    one = gl.Trainer(model, optimizer=opt, accumulate=2) if how == "trainer" else None

    def add(rows):
        if one is not None:
            return one.step(X[rows], Y[rows])
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X[rows])), gl.tensor(Y[rows]))
        return opt.accumulate(tape.backward(loss))

    before = named(model)
    first = [p for name, p in model.named_parameters().items() if name.startswith("0.")]
    add(slice(0, 8))
    for p in first:
        p.trainable = False
    add(slice(8, 16))
    if one is None:
        opt.step()
    after = named(model)
    assert np.array_equal(after["0.weight"], before["0.weight"]) and np.array_equal(after["0.bias"], before["0.bias"])
    assert not np.array_equal(after["1.weight"], before["1.weight"])


@pytest.mark.parametrize("thawed_by_the_script", [True, False])
@pytest.mark.parametrize("starts_frozen", [True, False])
def test_a_state_tells_what_is_frozen(starts_frozen, thawed_by_the_script):
    """Frozen or thawed in the middle of a run; whoever goes on with it may have frozen others at first."""

    def made(frozen):
        model = net()
        parameters = {name: p for name, p, _ in model.named_stored()}
        for name in ("0.weight", "0.bias") if frozen else ():
            parameters[name].trainable = False
        return model, parameters, gl.Trainer(model, optimizer=AdamW(lr=0.05, weight_decay=0.5))

    def run(trainer, parameters, first, last):
        for i in range(first, last):
            if i in (2, 6):
                for name in ("0.weight", "0.bias"):
                    parameters[name].trainable = (i == 2) == starts_frozen
            trainer.step(X[8 * (i % 3) : 8 * (i % 3) + 8], Y[8 * (i % 3) : 8 * (i % 3) + 8])

    for stop in (1, 2, 4, 6, 8):
        whole, parameters, trainer = made(starts_frozen)
        run(trainer, parameters, 0, 10)
        _, parameters, begun = made(starts_frozen)
        run(begun, parameters, 0, stop)
        if stop in (2, 6):  # thawed or frozen, and no step since
            for name in ("0.weight", "0.bias"):
                parameters[name].trainable = (stop == 2) == starts_frozen
        second, parameters, again = made(starts_frozen if thawed_by_the_script else not starts_frozen)
        again.train_state.load(begun.train_state.collect())
        run(again, parameters, stop, 10)
        mine, theirs = named(second), named(whole)
        assert all(np.array_equal(mine[name], theirs[name]) for name in mine), stop
