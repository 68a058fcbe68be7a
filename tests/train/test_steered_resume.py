"""What steers a run, stopped in the middle and gone on with: groups, an average of the weights, frozen parameters."""

import numpy as np
import pytest

import gradloom as gl
from gradloom.optim import Adafactor, AdamW, Lion, Muon, schedules

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((90, 5)).astype(np.float32), RNG.integers(0, 3, 90)

OPTIMIZERS = {
    "groups": lambda: AdamW(
        lr=schedules.Cosine(0.05, steps=40), weight_decay=0.1, no_decay="norms_and_biases",
        groups=[{"match": "0.*", "lr": schedules.Plateau(0.02, 0.5, 0)}, {"match": "1.bias", "optimizer": Lion()}],
    ),
    "muon": lambda: Muon(lr=0.02, groups=[{"match": "not_2d", "optimizer": AdamW(lr=0.01)}]),
    "adafactor": lambda: Adafactor(weight_decay=0.1),
}  # fmt: skip


def net():
    return gl.nn.Sequential(
        gl.nn.Linear(5, 8, activation="tanh"), gl.nn.Linear(8, 8), gl.nn.Dropout(0.2), gl.nn.Linear(8, 3)
    ).init(1)


class Freezes(gl.train.Callback):
    """Freezes the first layer in the second epoch, and thaws it after that."""

    stateless = True

    def __init__(self, model):
        self.first = model[0].parameters()

    def on_epoch(self, result):
        for p in self.first:
            p.trainable = result.epoch != 1


class Stops(gl.train.Callback):
    stateless = True

    def __init__(self, step):
        self.step = step

    def on_batch(self, batch):
        if batch.step == self.step:
            raise KeyboardInterrupt


def fit(kind, model, folder, stop=None, **options):
    callbacks = [Freezes(model), Stops(stop)]
    return gl.fit(
        model, (X, Y), optimizer=OPTIMIZERS[kind](), epochs=4, batch_size=20, micro_batch_size=8, val_split=0.2, seed=3,
        ema=0.9, max_value=0.1, max_norm=0.5, run=folder, checkpoint_every="1steps", callbacks=callbacks,
        progress=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "stops"), [("groups", (4, 6)), ("muon", (5,)), ("adafactor", (9,))])
def test_the_end_is_that_of_a_run_that_was_never_stopped(kind, stops, tmp_path):
    whole = net()
    expected = fit(kind, whole, tmp_path / "whole")
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            fit(kind, net(), tmp_path / f"run{stop}", stop)
        again = net()
        history = fit(kind, again, tmp_path / f"run{stop}", resume=True)
        mine, theirs = again.state_dict(), whole.state_dict()
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
        assert [e.numbers() for e in history] == [e.numbers() for e in expected]
        assert all(e.averaged for e in history)
