"""Small models and data for them, with ignored rows and row weights; fits of a small classifier, and how they are
stopped as Ctrl-C stops them."""

import signal
from pathlib import Path

import numpy as np

import gradloom as gl


def mlp():
    nn = gl.nn
    return nn.Sequential(nn.Linear(50, 300, activation="relu"), nn.Dropout(0.3), nn.LayerNorm(300), nn.Linear(300, 10))


def cnn():
    nn = gl.nn
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.BatchNorm(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def data(make, n=150):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 50) if make is mlp else (n, 2, 16, 16)).astype(np.float32)
    labels = rng.integers(0, 10, n)
    labels[::7] = -100
    return gl.data.Dataset(x, labels, weights=rng.uniform(0.5, 2, n))


def net():
    """Four numbers into three classes, with dropout and running statistics."""
    nn = gl.nn
    return nn.Sequential(nn.Linear(4, 16, activation="relu"), nn.Dropout(0.2), nn.BatchNorm(16), nn.Linear(16, 3)).init(
        0
    )


def fit(model, data, **options):
    options = {"epochs": 3, "batch_size": 10, "progress": False, "optimizer": gl.optim.AdamW(lr=0.05)} | options
    return gl.fit(model, data, **options)


def same(a, b):
    """Two models of the same bits."""
    a, b = a.state_dict(), b.state_dict()
    return all(np.array_equal(a[k], b[k]) for k in a)


class Interrupt(gl.train.Callback):
    """Ctrl-C, when it hears of an optimiser step, an evaluation, the progress of an evaluation at this step, an epoch.
    A run with a folder ends its step then, writes a checkpoint, and raises KeyboardInterrupt."""

    stateless, steers = True, False

    def __init__(self, step=None, evaluation=None, measuring=None, epoch=None):
        self.step, self.evaluation, self.measuring, self.epoch = step, evaluation, measuring, epoch

    def begin(self, loop):
        self.loop = loop

    def on_batch(self, batch):
        self._at(batch.step, self.step)

    def on_progress(self, progress):
        if not progress.training:
            self._at(self.loop.steps, self.measuring)

    def on_evaluation(self, evaluation):
        self._at(evaluation.step, self.evaluation)

    def on_epoch(self, result):
        self._at(result.epoch, self.epoch)

    @staticmethod
    def _at(number, stop):
        if number == stop:
            signal.raise_signal(signal.SIGINT)


def saved_steps(folder):
    """The steps of the checkpoints in a run's folder: what a resumed run goes on from."""
    return sorted(int(path.stem.removeprefix("step-")) for path in (Path(folder) / "checkpoints").glob("*.json"))
