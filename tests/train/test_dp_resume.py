"""Replicas that are stopped and resumed end with the bits of those that never stopped."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn
from tests import processes
from tests.refused import refused

RNG = np.random.default_rng(0)
SAMPLES = [(RNG.standard_normal((n, 5)).astype(np.float32), RNG.integers(0, 3, n)) for n in (4, 4, 6, 4, 6, 4, 4)]


def train(samples=SAMPLES, rate=0.2, stop=0, error=KeyboardInterrupt, **options):
    """Dropout, batch norm, plateaus, an order of its own for each pass. stop: the call of the loss's... sample."""

    class Samples(list):
        taken = 0

        def __getitem__(self, i):
            self.taken += 1
            if stop and self.taken == stop:
                raise error("enough")
            return super().__getitem__(i)

    def make():
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm(8), nn.Dropout(rate), nn.Linear(8, 3))

    settings = {"replicas": 2, "iterations": 20, "shuffle": True, "seed": 4, "threads": 1}
    lr = gl.optim.schedules.Plateau(0.05, patience=0)
    settings |= {"optimizer": gl.optim.AdamW(lr=lr), "max_norm": 1.0, "loss_fn": gl.ops.cross_entropy}
    return gl.dp_train(make, Samples(samples), **settings | options)


def same(one, other):
    a, b = one.model.state_dict(), other.model.state_dict()
    return one.loss_history == other.loss_history and all(a[name].tobytes() == b[name].tobytes() for name in a)


def steps_in(folder):
    return sorted(int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("*.json"))


def test_checkpoints_change_no_bit(tmp_path):
    assert same(train(), train(run=tmp_path, checkpoint_every="3steps"))
    assert steps_in(tmp_path) == [15, 18, 20] and json.loads((tmp_path / "run.json").read_text())["state"] == "finished"


@pytest.mark.parametrize("iterations", [1, 3, 4, 11, 19, 20])
def test_more_iterations_are_as_if_it_had_never_stopped(iterations, tmp_path):
    train(run=tmp_path, iterations=iterations)
    assert steps_in(tmp_path) == [iterations]
    assert same(train(), train(run=tmp_path, resume=True))


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, a, b):
        return self.layer(a + b)


def of_y(outputs, target):
    return gl.ops.cross_entropy(outputs, target["y"])


def test_the_order_of_keys_is_of_no_importance(tmp_path):
    samples = [({"a": x, "b": x * 2}, {"y": y, "z": x[:, 0]}) for x, y in SAMPLES]
    flipped = [tuple(dict(reversed(part.items())) for part in sample) for sample in samples]
    options = {"loss_fn": of_y, "replicas": 2, "lr": 0.1, "threads": 1}
    gl.dp_train(Sum, samples, iterations=4, run=tmp_path, **options)
    found = gl.dp_train(Sum, flipped, iterations=8, run=tmp_path, resume=True, **options)
    plain = gl.dp_train(Sum, samples, iterations=8, **options)
    assert found.model.state_dict()["layer.weight"].tobytes() == plain.model.state_dict()["layer.weight"].tobytes()


@pytest.mark.parametrize("replicas", [1, 3])
def test_time_that_is_up_ends_all_replicas_after_the_same_step(replicas, tmp_path):
    whole = train(replicas=replicas)
    for session in range(3):
        cut = train(run=tmp_path, replicas=replicas, resume=bool(session), stop_after="0.000001s")
        assert cut.loss_history == whole.loss_history[: session + 1] and steps_in(tmp_path)[-1] == session + 1
        weights = [m.state_dict() for m in cut.models]
        assert all(w[name].tobytes() == weights[0][name].tobytes() for w in weights for name in w)
        assert json.loads((tmp_path / "run.json").read_text())["state"] == "interrupted"
    assert same(whole, train(run=tmp_path, replicas=replicas, resume=True, stop_after="1h"))
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "finished"


def test_an_average_of_the_weights_against_numpy():
    made = [train(iterations=n) for n in range(1, 6)]
    start = train(iterations=1, optimizer=gl.optim.SGD(lr=0.0))
    found, trained = train(iterations=5, ema=0.75), made[-1]
    for name, mean in start.params.items():
        for one in made:
            mean = 0.75 * mean + 0.25 * one.params[name]
        assert np.abs(trained.params[name] - mean).max() > 1e-4
        np.testing.assert_allclose(found.params[name], mean, rtol=1e-5, atol=1e-6)
    assert found.loss_history == trained.loss_history
    assert all(m.state_dict()[n].tobytes() == v.tobytes() for m in found.models for n, v in found.params.items())


@pytest.mark.parametrize("iterations", [1, 4, 11, 20])
def test_an_average_goes_on_after_a_resume(iterations, tmp_path):
    train(run=tmp_path, iterations=iterations, ema=0.8)
    assert same(train(ema=0.8), train(run=tmp_path, resume=True, ema=0.8))


BAD = [*SAMPLES[:5], (np.full((4, 5), np.nan, np.float32), SAMPLES[5][1]), SAMPLES[6]]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_that_is_not_finite_is_skipped(replicas, tmp_path, monkeypatch):
    """It changes nothing, and its place counts; to the bit after a resume right behind it, or before it."""
    monkeypatch.delenv("GRADLOOM_CHECK", raising=False)
    options = {"replicas": replicas, "on_nonfinite": "skip", "ema": 0.5}
    whole = train(BAD, **options)
    bad = [i for i, loss in enumerate(whole.loss_history) if np.isnan(loss)]
    assert whole.skipped == len(bad) == (3, 6)[replicas - 1] and len(whole.loss_history) == 20
    first = bad[0]
    before, after = (train(BAD, iterations=n, **options | {"ema": 0.0}).model.state_dict() for n in (first, first + 1))
    assert first and all(before[name].tobytes() == after[name].tobytes() for name in before)
    for n in (first, first + 1):
        folder = tmp_path / str(n)
        train(BAD, run=folder, iterations=n, **options)
        again = train(BAD, run=folder, resume=True, **options)
        assert repr(again.loss_history) == repr(whole.loss_history)
        mine, theirs = again.model.state_dict(), whole.model.state_dict()
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in theirs)
    with pytest.raises(gl.NonFiniteError, match="epoch 1: none of its . steps was finite"):
        train([BAD[5]] * 4, **options)
    with refused("on_nonfinite", "go", need="stop or skip"):
        train(on_nonfinite="go")


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_fails_in_a_step_leaves_the_last_good_one(replicas, tmp_path):
    bad = list(SAMPLES)
    bad[5] = (np.full((4, 5), np.nan, np.float32), SAMPLES[5][1])
    with pytest.raises(gl.NonFiniteError):
        train(bad, run=tmp_path, replicas=replicas)
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "failed"
    (step,) = steps_in(tmp_path)
    assert 0 < step < 20
    with pytest.raises(gl.TrainError, match=r"the samples differ \(\w{16}, was \w{16}\)"):
        train(run=tmp_path, resume=True, replicas=replicas)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicas": 3}, "replicas is 3 and was 2"),
        ({"seed": 5}, "seed is 5 and was 4"),
        ({"optimizer": gl.optim.SGD(lr=0.1)}, "optimizer.kind is SGD and was AdamW"),
        ({"rate": 0.3}, "the graph of a step differs"),
        ({"samples": SAMPLES[:6]}, "samples is 6 and was 7"),
    ],
)
def test_what_differs_is_refused(options, said, tmp_path):
    train(run=tmp_path, iterations=3)
    with pytest.raises(gl.TrainError, match=f"cannot be resumed: .*{said}.*; need the same, or --overwrite"):
        train(run=tmp_path, resume=True, **options)


def test_arguments_that_are_not_usable(tmp_path):
    with refused("resume", True, run=...):
        train(resume=True)
    with refused("checkpoint_every", "1epoch", need="not epochs"):
        train(run=tmp_path, checkpoint_every="1epoch")


PROGRAM = """
import os, signal, sys, threading
import numpy as np
from tests.train.test_dp_resume import train
signal_number, seconds = int(sys.argv[3]), float(sys.argv[4])
if signal_number:
    threading.Timer(seconds, os.kill, (os.getpid(), signal_number)).start()
made = train(run=sys.argv[1], resume=True, checkpoint_every="0.01s", iterations=2000)
np.savez(sys.argv[2], losses=made.loss_history, **made.model.state_dict())
os._exit(0)
"""


@pytest.mark.parametrize("number", [9, 2])
@pytest.mark.slow
def test_killed_at_any_moment(number, tmp_path):
    whole = train(iterations=2000)
    goal = {"losses": np.array(whole.loss_history), **whole.model.state_dict()}
    ended, sessions = False, 0
    for seconds in (0.4, 0.6):
        command = [sys.executable, "-c", PROGRAM, tmp_path / "run", tmp_path / "out.npz", number, seconds]
        process = processes.start(command, env=processes.environment())
        said = process.communicate(timeout=120)[1]
        ended, sessions = process.returncode == 0, sessions + 1
        assert ended or process.returncode == -number or (number == 2 and "KeyboardInterrupt" in said), said
        if ended:
            break
    if not ended:
        command = [sys.executable, "-c", PROGRAM, tmp_path / "run", tmp_path / "out.npz", 0, 0]
        process = processes.start(command, env=processes.environment())
        assert process.communicate(timeout=120) and process.returncode == 0
    found = dict(np.load(tmp_path / "out.npz"))
    assert sessions > 1 and all(goal[name].tobytes() == found[name].tobytes() for name in goal)
