"""What a resumed run has in common with the one before: functions, long texts, ranks, dynamic graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gradloom as gl

sys.path.insert(0, str(Path(__file__).parent))

from resuming import RUNS, X, Y, mlp, on_ranks, outcome, same


def stopping(count):
    """A listener that ends the run at the so-many-th call."""
    calls = []

    def listener(at):
        calls.append(at)
        if len(calls) == count:
            raise KeyboardInterrupt

    return listener


def steps_in(folder):
    return sorted(int(path.stem.removeprefix("step-")) for path in (Path(folder) / "checkpoints").glob("*.json"))


def plain(**options):
    """Dropout, windows of three micro-batches, clipping, averaged weights; no running statistics."""
    net = gl.nn.Sequential(gl.nn.Linear(6, 8), gl.nn.ReLU(), gl.nn.Dropout(0.2), gl.nn.Linear(8, 3))
    settings = {"epochs": 4, "batch_size": 20, "micro_batch_size": 8, "val_split": 0.1, "seed": 5, "progress": False}
    rule = gl.optim.AdamW(lr=gl.optim.schedules.Cosine(0.05, steps=28, warmup=3))
    return net, gl.fit(net, (X, Y), optimizer=rule, max_norm=1.0, ema=0.9, **settings | options)


@pytest.mark.parametrize("first", [0, 2])
def test_without_running_statistics_ranks_and_one_process_are_one_run(first, tmp_path, monkeypatch):
    """Begun by one process and resumed by two ranks, and the other way round."""
    monkeypatch.setitem(RUNS, "plain", plain)
    whole = outcome(*plain())

    def run(ranks, **options):
        return on_ranks("plain", ranks, **options) if ranks else outcome(*plain(**options))

    with pytest.raises(KeyboardInterrupt):
        run(first, run=tmp_path, on_train_batch=stopping(8))
    assert steps_in(tmp_path)[-1] < 28
    assert same(whole, run(2 - first, run=tmp_path, resume=True))
    assert steps_in(tmp_path)[-1] == 28


def test_a_dynamic_graph_is_not_compared_which_is_said(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        plain(run=tmp_path, dynamic=True, on_train_batch=stopping(8))
    plain(run=tmp_path, dynamic=True, resume=True)
    assert f"{tmp_path}: dynamic=True: whether the model's graph" in capsys.readouterr().err


def constant(rate):
    return lambda step, epoch: rate if epoch < 2 else rate / 10


def test_the_numbers_of_a_function_are_compared(tmp_path):
    """A learning rate that is a function: by what it gives, not by its name alone."""

    def run(rate, **options):
        return outcome(*mlp(run=tmp_path, optimizer=gl.optim.AdamW(lr=constant(rate)), **options))

    with pytest.raises(KeyboardInterrupt):
        run(0.1, on_train_batch=stopping(9))
    said = r"optimizer.lr is .*lambda> \(1.0 at step 0, .* and was .*lambda> \(0.1 at step 0"
    with pytest.raises(gl.TrainError, match=said):
        run(1.0, resume=True)
    run(0.1, resume=True)


def test_the_part_of_a_long_text_that_differs_is_shown(tmp_path):
    callbacks = [gl.train.EarlyStopping(4, 1e-4, restore_best=True), gl.train.EarlyStopping(5)]
    with pytest.raises(KeyboardInterrupt):
        mlp(run=tmp_path, callbacks=callbacks, on_train_batch=stopping(9))
    callbacks[1] = gl.train.EarlyStopping(6)
    with pytest.raises(gl.TrainError, match=r"callbacks is \.\.\..*patience=6.* and was \.\.\..*patience=5"):
        mlp(run=tmp_path, callbacks=callbacks, resume=True)
