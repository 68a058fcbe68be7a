"""Runs for the tests of resuming: one that has everything with a memory, as a function and as a process.

    python resuming.py NAME FOLDER OUT [--ranks N | --mpi] [--threads N] [--kill SECONDS | --kill-at N] [--signal N]

trains run NAME in FOLDER, going on where it is, and writes what came of it to OUT (.npz). --kill: a signal (SIGKILL by
default), so long after the training has begun; --kill-at: in the listener of the so-many-th micro-batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import nn
from gradloom.parallel.join import is_writer
from tests.train import split_training

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((150, 6)).astype(np.float32), RNG.integers(0, 3, 150)
IMAGES = RNG.integers(0, 255, (90, 1, 6, 6)).astype(np.uint8)


def mlp(**options: Any) -> tuple[nn.Module, gl.train.History]:
    """Dropout, batch norm, a plateau, early stopping that brings the best back, an accumulation window of two."""
    layers = nn.Linear(6, 16), nn.BatchNorm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    net = nn.Sequential(*layers)
    stop = gl.train.EarlyStopping(4, restore_best=True)
    lr = gl.optim.schedules.Plateau(0.02, patience=0, factor=0.5)
    settings: dict[str, Any] = {
        "epochs": 7,
        "batch_size": 20,
        "micro_batch_size": 10,
        "val_split": 0.2,
        "seed": 3,
        "progress": False,
    }
    settings |= {"callbacks": [stop]}
    settings |= {"optimizer": gl.optim.AdamW(lr=lr)}
    history = gl.fit(net, (X, Y), **settings | options)
    return net, history


def cnn(**options: Any) -> tuple[nn.Module, gl.train.History]:
    """A convolution with batch norm, windows of three micro-batches, clipping, averaged weights."""
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    net = nn.Sequential(*layers)
    settings = {"epochs": 4, "batch_size": 20, "micro_batch_size": 8, "val_split": 0.1, "seed": 5, "progress": False}
    lr = gl.optim.schedules.Cosine(0.05, steps=20, warmup=3)
    rule = gl.optim.SGD(lr=lr, momentum=0.9)
    history = gl.fit(net, (IMAGES, Y[:90]), optimizer=rule, max_norm=1.0, ema=0.9, **settings | options)
    return net, history


class Heads(nn.Module):
    """Two inputs, dropout and batch norm, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 16), nn.Linear(6, 16)
        self.norm, self.dropout = nn.BatchNorm(16), nn.Dropout(0.2)
        self.ids, self.sums = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, u: Any, v: Any) -> Any:
        hidden = self.dropout(self.norm(gl.ops.tanh(self.left(u) + self.right(v))))
        return {"ids": self.ids(hidden), "sums": self.sums(hidden)}


def two_of(x: np.ndarray, y: np.ndarray) -> gl.data.Dataset:
    """Two inputs and two labels, of features and classes."""
    return gl.data.Dataset({"u": x, "v": x**2}, {"ids": y, "sums": x.sum(1)})


def heads(**options: Any) -> tuple[nn.Module, gl.train.History]:
    """Dicts of data, labels and losses, micro-batches."""
    net = Heads()
    data = two_of(X, Y)
    if "val" in options:
        options["val"] = {name: two_of(x, y) for name, (x, y) in options["val"].items()}
    settings: dict[str, Any] = {"epochs": 4, "batch_size": 20, "micro_batch_size": 10, "val_split": 0.2, "seed": 3}
    settings |= {"loss": {"ids": "cross_entropy", "sums": "mse"}, "loss_weights": {"sums": 0.1}, "progress": False}
    return net, gl.fit(net, data, optimizer=gl.optim.AdamW(lr=0.02), **settings | options)


RUNS = {"mlp": mlp, "cnn": cnn, "heads": heads}


def outcome(net: nn.Module, history: gl.train.History) -> dict[str, np.ndarray]:
    """Weights, running statistics, the history, and the predictions of the last epoch."""
    kept = {f"net.{name}": array for name, array in net.state_dict().items()}
    for number, epoch in enumerate(history):
        for part, result in (("train", epoch.train), ("val", epoch.val)):
            if result is not None:
                kept[f"{number}.{part}"] = np.array([result.loss, result.loss_unc, result.accuracy, result.ndata])
                kept[f"{number}.{part}.each"] = np.array([*result.losses.values(), *result.accuracies.values()])
        kept[f"{number}.rates"] = np.array([epoch.epoch, *epoch.rates.values()])
    kept["predictions"] = history[-1].train.predictions
    kept["norms"] = history[-1].train.grad_norms
    return kept


def on_ranks(name: str, size: int, **options: Any) -> dict[str, np.ndarray]:
    """The outcome on so many ranks, which are threads; all of them come to the same."""
    found = split_training.on_ranks(size, lambda rank: outcome(*RUNS[name](parallel=rank, threads=1, **options)))
    if (error := split_training.raised(found)) is not None:
        raise error
    for other in found:
        assert same(found[0], other)
    return found[0]


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """The same names and bytes."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("name", "folder", "out"):
        parser.add_argument(name)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--mpi", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kill", type=float)
    parser.add_argument("--kill-at", type=int, default=0)
    parser.add_argument("--signal", type=int, default=int(signal.SIGKILL))
    asked = parser.parse_args()
    heard: list[Any] = []

    def killed(at: Any) -> None:
        heard.append(at)
        if len(heard) == 1 and asked.kill is not None:
            threading.Timer(asked.kill, os.kill, (os.getpid(), asked.signal)).start()
        if len(heard) == asked.kill_at:
            os.kill(os.getpid(), asked.signal)

    options: dict[str, Any] = {
        "run": asked.folder, "resume": True, "checkpoint_every": "0.02s", "on_train_batch": killed,
        "on_eval_batch": killed,
    }  # fmt: skip
    if asked.mpi:
        options["parallel"] = "mpi"
    if asked.ranks:
        found = on_ranks(asked.name, asked.ranks, **options)
    else:
        found = outcome(*RUNS[asked.name](threads=asked.threads, **options))
    if is_writer():
        np.savez(asked.out, **found)


if __name__ == "__main__":
    main()
