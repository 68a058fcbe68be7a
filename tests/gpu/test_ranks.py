"""Ranks on a device, under mpiexec: the same bits for any number of ranks, and the CPU's numbers to noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.gpu.backend import GpuBackend
from gradloom.parallel import threads
from gradloom.run import backend as backends
from tests.parallel.mpi import needs_mpi, run

SCRIPT = Path(__file__).parent / "ranks.py"


def found(ranks: int) -> dict[str, tuple[str, np.ndarray]]:
    """name -> (digest of the weights, losses) of what the script trains with so many ranks."""
    ended = run(ranks, SCRIPT, "train")
    assert not ended.code, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    return {f"{a} {b}": (digest, np.array(losses, float)) for a, b, digest, *losses in lines}


@needs_mpi
def test_two_ranks_train_as_one_and_as_on_the_cpu() -> None:
    one, two = found(1), found(2)
    for device in ("cpu", "gpu"):
        alone, together = one[f"fit {device}"], two[f"fit {device}"]
        assert alone[0] == together[0] and alone[1].tobytes() == together[1].tobytes()
    for name in ("fit gpu", "dp_train gpu", "dp_train mixed"):
        digest, losses = two[name.split()[0] + " cpu"]
        assert two[name][0] != digest
        assert np.allclose(two[name][1], losses, rtol=1e-3), name


@needs_mpi
def test_ranks_on_unlike_devices_are_refused() -> None:
    ended = run(2, SCRIPT, "unlike")
    assert not ended.code and "rank 1 has device='" in ended.out and "rank 0 has 'cpu'" in ended.out, ended.out


def test_each_rank_takes_the_next_adapter_of_the_same_make(monkeypatch: pytest.MonkeyPatch) -> None:
    backends.make_of("gpu")
    monkeypatch.setitem(backends._alike, "gpu", lambda: [0, 2])
    monkeypatch.setitem(backends._devices, "gpu", lambda chosen, number: GpuBackend(chosen))  # each is there
    net = gl.nn.Linear(4, 3)
    made = [gl.train.Trainer(net, device="gpu", communicator=rank) for rank in threads(3)]
    assert [trainer.options["backend"] for trainer in made] == ["gpu", "gpu:2", "gpu"]
    given = gl.train.Trainer(net, device="gpu:1", communicator=threads(2)[1])
    assert given.options["backend"] == "gpu:1" and gl.train.Trainer(net, device="gpu").options["backend"] == "gpu"
