"""Started by mpiexec: ranks that compute on a device; rank 0 prints a line for each result."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

import gradloom as gl
from gradloom.nn.module import Module
from gradloom.parallel import communicator

ranks = communicator("mpi", 20)
RNG = np.random.default_rng(8)
X = RNG.standard_normal((60, 6)).astype(np.float32)
Y = np.argmax(X[:, :3] + 0.3 * X[:, 3:], 1)
SAMPLES = [(X[at : at + 10], Y[at : at + 10]) for at in range(0, 60, 10)]


def show(name: str, model: Module, losses: list[float]) -> None:
    """A line from rank 0, when all ranks found the same."""
    found = hashlib.sha256(repr([(k, v.tobytes()) for k, v in model.state_dict().items()]).encode()).hexdigest()[:16]
    assert len(set(ranks.gather((found, repr(losses))))) == 1, name
    if ranks.is_root:
        print(name, found, *losses, flush=True)


def net() -> Module:
    return gl.nn.Sequential(
        gl.nn.Linear(6, 16), gl.nn.BatchNorm(16), gl.nn.ReLU(), gl.nn.Dropout(0.2), gl.nn.Linear(16, 3)
    ).init(4)  # fmt: skip


def fit(device: str) -> None:
    model = net()
    history = gl.fit(
        model, (X, Y), epochs=2, batch_size=16, micro_batch_size=4, val_split=0.2, seed=3, progress=False,
        parallel="mpi", device=device, optimizer=gl.optim.SGD(lr=0.1, momentum=0.9), max_norm=1.0, ema=0.9,
    )  # fmt: skip
    show(f"fit {device}", model, [x for e in history for x in (e.train.loss, e.val.loss)])


def replicas(name: str, **where: object) -> None:
    result = gl.dp_train(
        net, SAMPLES, loss_fn=gl.ops.cross_entropy, iterations=8, optimizer=gl.optim.SGD(lr=0.1), **where
    )  # fmt: skip
    show(f"dp_train {name}", result.model, result.loss_history)


if sys.argv[1] == "train":
    fit("cpu")
    fit("gpu")
    if ranks.size == 2:
        replicas("cpu", device="cpu")
        replicas("gpu", device="gpu")
        replicas("mixed", devices=["cpu", "gpu"])
else:  # a rank on another device
    try:
        fit("gpu" if ranks.rank else "cpu")
    except gl.GradloomError as error:
        if ranks.is_root:
            print(error, flush=True)
