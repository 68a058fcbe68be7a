"""A moving average of weights in a loop of one's own: the bits of fit's ema, to the bit after a resume."""

import numpy as np
import pytest

import gradloom as gl
from tests.refused import refused

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((48, 4)).astype(np.float32), RNG.integers(0, 3, 48)


def net():
    return gl.nn.Sequential(gl.nn.Linear(4, 8, activation="tanh"), gl.nn.Linear(8, 3)).init(1)


def bits(model):
    return {name: array.tobytes() for name, array in model.state_dict().items()}


def loop(steps, folder=None, decay=0.8, shown=False):
    """The model and its average after so many steps of six rows, those of a checkpoint included."""
    model = net()
    opt = gl.optim.AdamW(model.parameters(), lr=0.05)
    average = gl.train.AveragedWeights(model.parameters(), decay)
    saving = folder and gl.train.Checkpoint(folder, model=model, optimizer=opt, average=average)
    first = (saving.load() or 0) if saving else 0
    average.show(False)
    for step in range(first, steps):
        rows = slice(step % 8 * 6, step % 8 * 6 + 6)
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X[rows])), gl.tensor(Y[rows]))
        opt.step(tape.backward(loss))
        average.update()
    if saving:
        average.show(shown)
        saving.save(steps)
        saving.close()
        average.show(False)
    return model, average


def test_the_bits_are_those_of_fit():
    model, average = loop(8)
    trained, fitted = bits(model), net()
    trainer = gl.Trainer(
        fitted, lambda p, t: (gl.ops.cross_entropy(p, t), gl.constant(1.0)), gl.optim.AdamW(lr=0.05), ema=0.8
    )
    gl.epoch(trainer, gl.data.Dataset(X, Y), batch_size=6, order=np.arange(48))
    trainer.show_average(False)
    assert bits(fitted) == trained
    trainer.show_average()
    with average.shown():
        assert bits(model) == bits(fitted) != trained
    assert bits(model) == trained


def test_against_numpy():
    model, means = net(), None
    opt = gl.optim.SGD(model.parameters(), lr=0.5)
    average = gl.train.AveragedWeights(model.parameters(), 0.75)
    means = model[0].weight.numpy()
    for _ in range(5):
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(X)), gl.tensor(Y))
        opt.step(tape.backward(loss))
        average.update()
        means = 0.75 * means + 0.25 * model[0].weight.numpy()
    with average.shown():
        np.testing.assert_allclose(model[0].weight.numpy(), means, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("stop", [1, 5])
def test_a_resumed_loop_ends_with_the_same_bits(stop, shown, tmp_path):
    whole, expected = loop(11)
    loop(stop, tmp_path, shown=shown)
    model, average = loop(11, tmp_path)
    assert bits(model) == bits(whole)
    with average.shown(), expected.shown():
        assert bits(model) == bits(whole)


def test_what_is_refused(tmp_path):
    model, average = loop(1, tmp_path)
    with pytest.raises(gl.TrainError, match=r"average: decay=0.5, in the state 0.8; need the same"):
        loop(2, tmp_path, decay=0.5)
    with average.shown(), pytest.raises(gl.TrainError, match=r"hold the means; need show\(False\) before update"):
        average.update()
    with refused("decay", 1.0):
        gl.train.AveragedWeights(model.parameters(), 1.0)
    with pytest.raises(gl.SettingError, match="AveragedWeights: got .*; need parameters, such as"):
        gl.train.AveragedWeights([3.0])
    with pytest.raises(gl.SettingError, match="AveragedWeights: there are no parameters"):
        gl.train.AveragedWeights([])
