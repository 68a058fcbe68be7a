"""Started by mpiexec: trains what its argument says, and rank 0 prints a line for each result."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gradloom as gl
from gradloom.parallel import communicator
from tests.llm.random_models import rows_of
from tests.llm.short_finetune import finetune
from tests.train.small_models import cnn, data, mlp
from tests.train.split_training import train

ranks = communicator("mpi", 10)


def show(name: str, found: object) -> None:
    """A line from rank 0, when all ranks found the same."""
    digest = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
    assert len(set(ranks.gather(digest))) == 1, name
    if ranks.is_root:
        print(name, digest, flush=True)


def networks() -> None:
    for make, micro in ((mlp, 16), (mlp, 7), (cnn, 16), (cnn, 10)):
        show(f"{make.__name__} {micro}", train(make, "mpi", micro))


def language(path: str) -> None:
    for file, rows in ((path, rows_of(17)), (path, rows_of(3))):
        arrays, results, _ = finetune(file, rows, "mpi")
        show(f"{len(rows.tokens)} rows", (arrays, results))


def stories(model: str, text: str) -> None:
    arrays, results, _ = finetune(
        model, text, "mpi", context=64, batch_size=8, micro_batch_size=3, steps=6, epochs=None
    )
    show("stories", (arrays, results))


def noise() -> None:
    """Ordered and fast sums, with an optimiser that does not amplify noise."""
    weights = []
    for exchange in ("ordered", "fast"):
        net = mlp()
        settings = {"optimizer": gl.optim.SGD(lr=0.1), "batch_size": 64, "micro_batch_size": 10, "progress": False}
        gl.fit(net, data(mlp), epochs=2, parallel="mpi", exchange=exchange, threads=1, **settings)
        weights.append(net.state_dict())
        show(exchange, {name: array.tobytes() for name, array in weights[-1].items()})
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, rtol=1e-4, atol=1e-6)


def saving(place: str) -> None:
    """Each rank saves to a file of its own: rank 0 alone does."""
    net = mlp()
    gl.fit(net, data(mlp), batch_size=50, parallel="mpi", progress=False)
    gl.save(net, Path(place) / f"{ranks.rank}.safetensors")
    show("saved", {name: array.tobytes() for name, array in net.state_dict().items()})


def misfortune(what: str, place: str) -> None:
    """In the middle of the third epoch rank 1 is killed, raises, or gets Ctrl-C; the weights were saved after each."""
    path = Path(place) / "weights.safetensors"

    def heard(result: gl.EpochResult) -> None:
        gl.save(net, path)

    class Unlucky(gl.optim.AdamW):
        def at(self, step: int, epoch: int, memories: Any = None) -> dict[str, float]:
            if ranks.rank == 1 and (step, epoch) == (7, 2):
                if what == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if what == "raise":
                    raise RuntimeError("the disk is on fire")
                os.kill(os.getpid(), signal.SIGINT)
            return super().at(step, epoch, memories)

    net = mlp()
    try:
        gl.fit(
            net, data(mlp), optimizer=Unlucky(lr=0.01), batch_size=50, micro_batch_size=10, epochs=100, parallel="mpi",
            timeout=10, progress=False, on_epoch=heard,
        )  # fmt: skip
    except KeyboardInterrupt:
        show("interrupted", {name: array.tobytes() for name, array in net.state_dict().items()})


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
