"""Training under a real mpiexec: the same bits for any number of ranks, and ends that name the rank."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.files import load_arrays
from tests.llm.random_models import rows_of, write
from tests.llm.short_finetune import finetune
from tests.parallel.mpi import finish, needs_mpi, run, start
from tests.real_data import need
from tests.train.small_models import data, mlp
from tests.train.split_training import train

pytestmark = needs_mpi
SCRIPT = Path(__file__).parent / "training.py"


def lines(ranks, *arguments):
    """What training.py printed: name -> digest."""
    ended = run(ranks, SCRIPT, *arguments)
    assert ended.code == 0, ended.err
    return dict(line.rsplit(" ", 1) for line in ended.out.splitlines())


def digest(found):
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


@pytest.mark.slow
def test_networks():
    one = lines(1, "networks")
    assert one["mlp 16"] == digest(train(mlp, None, 16)) and one["mlp 7"] == digest(train(mlp, None, 7))
    for ranks in (2, 3):
        assert lines(ranks, "networks") == one


@pytest.mark.slow
def test_language_models(tmp_path):
    path = write(tmp_path)
    plain = {f"{n} rows": digest(finetune(path, rows_of(n), None)[:2]) for n in (17, 3)}
    for ranks in (1, 2, 3):
        assert lines(ranks, "language", path) == plain


@pytest.mark.slow
def test_stories(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(need("text/tinyshakespeare.txt").read_text()[:6000])
    model = need("gguf/stories260K.gguf")
    one = lines(1, "stories", model, text)
    for ranks in (2, 3):
        assert lines(ranks, "stories", model, text) == one


def test_fast_sums():
    lines(3, "noise")


@pytest.mark.parametrize("what", ["kill", "raise"])
@pytest.mark.slow
def test_a_rank_that_ends_is_named_and_saved_weights_stay(tmp_path, what):
    ended = run(3, SCRIPT, "misfortune", what, tmp_path)
    assert ended.code != 0
    assert ended.seconds < 40
    if what == "raise":
        assert "rank 1" in ended.err and "the disk is on fire" in ended.err
    else:
        assert "gradloom: rank 1 of 3 ended without a word" in ended.err
    net = mlp()
    gl.load(net, tmp_path / "weights.safetensors")
    same = mlp()
    settings = {"batch_size": 50, "micro_batch_size": 10, "epochs": 2, "progress": False}
    gl.fit(same, data(mlp), optimizer=gl.optim.AdamW(lr=0.01), **settings)
    for name, array in same.state_dict().items():
        assert net.state_dict()[name].tobytes() == array.tobytes(), name
    assert os.listdir(tmp_path) == ["weights.safetensors"]


def test_ctrl_c_stops_all_after_the_same_step(tmp_path):
    ended = run(3, SCRIPT, "misfortune", "interrupt", tmp_path)
    assert ended.out.startswith("interrupted "), ended.err


def test_rank_0_alone_writes(tmp_path):
    assert list(lines(2, "saving", tmp_path)) == ["saved"]
    assert os.listdir(tmp_path) == ["0.safetensors"]


def commands(ranks, *arguments):
    """gradloom ARGUMENTS under mpiexec."""
    return run(ranks, "-m", "gradloom", *arguments)


@pytest.mark.slow
def test_the_command_fit(tmp_path):
    table = need("tabular/iris.csv")
    seen = []
    for ranks in (1, 2, 3):
        out = tmp_path / str(ranks)
        ended = commands(
            ranks, "fit", table, "--parallel", "mpi", "--micro-batch-size", 7, "--epochs", 5, "--val-split", 0.1,
            "--out", out, "--json",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        assert len(ended.out.splitlines()) == 1 and ended.err.count("epoch 5/5") == 1
        report = json.loads(ended.out)
        assert report["ranks"] == ranks
        arrays, _ = load_arrays(out / "model.safetensors")
        names = ("train_loss", "train_accuracy", "val_loss", "test_loss", "test_accuracy", "steps")
        seen.append(({k: a.tobytes() for k, a in arrays.items()}, {k: report[k] for k in names}))
    assert seen == [seen[0]] * 3


@pytest.mark.slow
def test_the_command_finetune(tmp_path):
    model, text = need("gguf/stories260K.gguf"), tmp_path / "text.txt"
    text.write_text(need("text/tinyshakespeare.txt").read_text()[:6000])
    files = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.gguf"
        ended = commands(
            ranks, "finetune", model, text, "--parallel", "mpi", "--context", 64, "--steps", 4, "--batch-size", 6,
            "--micro-batch-size", 2, "--dropout", 0.1, "--out", out, "--json",
        )  # fmt: skip
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["ranks"] == ranks
        files.append(out.read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "nowhere.csv", "--parallel", "mpi"),
        ("finetune", "nowhere.gguf", "nowhere.txt", "--parallel", "mpi"),
    ],
)
def test_bad_input_is_said_once(arguments):
    ended = commands(2, *arguments)
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1 and ended.err.startswith("gradloom: nowhere")


@pytest.mark.parametrize("first, second", [(("--threads", 1), ()), ((), ("--threads", 2))])
@pytest.mark.slow
def test_threads_may_be_said_for_one_rank_alone(tmp_path, first, second):
    fit = ("-m", "gradloom", "fit", need("tabular/iris.csv"), "--parallel", "mpi", "--epochs", 2, "--overwrite")
    seen = []
    for one, other in (((), ()), (first, second)):
        out = tmp_path / "out"
        ended = run(1, *fit, "--out", out, *one, ":", "-n", 1, sys.executable, *fit, "--out", out, *other)
        assert ended.code == 0, ended.err
        seen.append((out / "model.safetensors").read_bytes())
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "environment, options, said",
    [
        ((), ("--device", "tpu"), "--device tpu: must be"),
        (("GRADLOOM_THREADS=0",), (), "GRADLOOM_THREADS='0': must be"),
    ],
)
def test_why_one_rank_alone_ends_is_said(tmp_path, environment, options, said):
    fit = ("-m", "gradloom", "fit", need("tabular/iris.csv"), "--parallel", "mpi", "--out", tmp_path / "out")
    ended = run(1, *fit, ":", "-n", 1, "env", *environment, sys.executable, *fit, *options)
    assert ended.code != 0 and f"gradloom: rank 1 ended while the others wait for it in gather: {said}" in ended.err


def test_exchange_needs_ranks():
    ended = commands(1, "fit", "nowhere.csv", "--exchange", "fast")
    assert ended.code == 2 and "--exchange fast requires --parallel mpi" in ended.err


def test_ctrl_c_of_the_command_saves_once(tmp_path):
    table = need("tabular/winequality-red.csv")
    endless = ("--epochs", 100000, "--patience", 0)
    job = start(2, "-m", "gradloom", "fit", table, "--parallel", "mpi", *endless, "--out", tmp_path, "--json")
    metrics, until = tmp_path / "metrics.jsonl", time.monotonic() + 100
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < until:  # an epoch is done
        time.sleep(0.1)
    os.kill(job.pid, signal.SIGINT)
    ended = finish(job)
    assert ended.code == 130, (ended.code, ended.err)
    assert "interrupted; the weights so far are in" in ended.err
    arrays, _ = load_arrays(tmp_path / "model.safetensors")
    assert all(np.isfinite(a).all() for a in arrays.values())
