"""dp_train over real processes: the same bits as over threads, and errors that name the rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mpi import ROOT, needs_mpi, run

FOLDER = ROOT.parent / "shared" / "data" / "tabular"
EXAMPLE = ROOT / "examples" / "dp_iris.py"

FAULTY = """
import numpy as np
import gradloom as gl
from gradloom.parallel import communicator

rank = communicator("mpi", 20).rank
samples = [(np.ones((2, 4), np.float32), np.zeros(2, np.int64)) for _ in range(6)]
if {where!r} == "sample":
    samples[5] = (np.ones((2, 3), np.float32), np.zeros(2, np.int64))
options = {{"lr": 0.1 * (rank + 1)}} if {where!r} == "settings" else {{}}
def make():
    if {where!r} == "model" and rank == 1:
        raise ValueError("no such file")
    return gl.nn.Linear(4, 3)
def loss(out, target):
    if {where!r} == "graph" and rank == 1:
        out = out * 2.0
    return gl.ops.cross_entropy(out, target)
gl.dp_train(make, samples, loss_fn=loss, iterations=50, timeout=20, **options)
"""


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_and_threads_give_the_same_weights(ranks: int) -> None:
    if not FOLDER.exists():
        pytest.skip(f"needs iris.csv in {FOLDER}")
    processes = run(ranks, EXAMPLE, FOLDER, "--iterations", 120)
    assert processes.code == 0, processes.err
    threads = run(1, EXAMPLE, FOLDER, "--iterations", 120, "--replicas", ranks)
    assert threads.code == 0, threads.err
    assert processes.out.splitlines() == threads.out.splitlines() and len(threads.out.splitlines()) == 2
    assert processes.out.startswith(f"{ranks} replicas: loss ")
    assert processes.err.splitlines()[-1].startswith("step 120/120  loss ") and len(processes.err.splitlines()) == 10


@needs_mpi
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("sample", "rank 1, sample 5, step 3: matmul: inner sizes differ"),
        ("graph", "TrainError: rank 1 makes another graph than those before it of samples ("),
        ("model", "make_model of rank 1: no such file"),
        ("settings", "rank 1 differs from rank 0 in the settings: "),
    ],
)
@pytest.mark.slow
def test_a_rank_that_fails_ends_all(where: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAULTY.format(where=where))
    ended = run(2, script)
    assert ended.code != 0 and said in ended.err and ended.seconds < 60, ended.err


@needs_mpi
def test_replicas_that_do_not_fit_the_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAULTY.format(where="").replace("timeout=20", "replicas=3"))
    ended = run(2, script)
    assert ended.code != 0
    assert "replicas=3 must be the number of processes, 2, or omitted" in ended.err
