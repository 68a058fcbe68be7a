"""The log of gl.fit(run=): of a run that is stopped and resumed, the files read as those of one that was not."""

import csv
import importlib
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gradloom as gl
from gradloom.train import Callback, StopTraining, read_metrics
from tests.processes import environment
from tests.refused import refused
from tests.train.small_models import Interrupt, saved_steps

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 4)).astype(np.float32), RNG.integers(0, 3, 60)
TIMES = ("time", "seconds", "epoch_seconds", "rows_per_second", "memory_bytes", "memory_peak_bytes")


def fit(folder, stop=None, **options):
    net = gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Dropout(0.3), gl.nn.Linear(8, 3)).init(0)
    options = {"epochs": 4, "batch_size": 10, "val_split": 0.2, "progress": False, "log_every": "2steps"} | options
    return gl.fit(net, (X, Y), optimizer=gl.optim.Adam(lr=0.01), run=folder, callbacks=stop, **options)


def facts(folder):
    """The lines without what the clock and the machine say."""
    lines = read_metrics(folder)
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


@pytest.mark.parametrize("stop", [{"step": 3}, {"step": 12}, {"step": 14}, {"epoch": 2}])
def test_the_lines_of_a_resumed_run_are_those_of_one_that_never_stopped(tmp_path, stop):
    fit(tmp_path / "whole", checkpoint_every="5steps")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", Interrupt(**stop), checkpoint_every="5steps")
    assert saved_steps(tmp_path / "cut")[-1] == stop.get("step", 10)
    fit(tmp_path / "cut", resume=True, log=("csv",), checkpoint_every="5steps")
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")
    kinds = [line["kind"] for line in facts(tmp_path / "whole")]
    assert kinds.count("epoch") == kinds.count("evaluation") == 4 and kinds.count("train") == 10
    with open(tmp_path / "cut" / "metrics.csv", newline="") as file:
        assert [row["kind"] for row in csv.DictReader(file)] == kinds  # of both sessions


def test_after_a_kill_lines_past_the_checkpoint_are_cut(tmp_path):
    code = f"""
        import os, signal
        from pathlib import Path
        from tests.train.test_log_of_run import fit
        def kill(result):
            if result.epoch == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        fit(Path({str(tmp_path)!r}) / "cut", checkpoint_every="7steps", on_epoch=kill)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment(), check=False)
    text = (tmp_path / "cut" / "metrics.jsonl").read_text()
    assert [json.loads(line)["epoch"] for line in text.splitlines()][-1] == 3
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "epo')
    assert saved_steps(tmp_path / "cut")[-1] in (7, 14)  # one may have been written while the process was killed
    fit(tmp_path / "cut", resume=True, checkpoint_every="7steps", on_epoch=lambda result: None)
    fit(tmp_path / "whole", checkpoint_every="7steps")
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")


EVERY = {"steps": "2steps", "time": "0.000001s"}  # the second: whenever there is something new to tell


def test_the_first_checkpoint_has_a_log_beside_it(tmp_path):
    """Where no line was due yet: an empty one. Nothing of it is lost when the run goes on."""
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "a", Interrupt(step=1), log_every="10s")
    assert saved_steps(tmp_path / "a") == [1] and read_metrics(tmp_path / "a") == []
    for epochs in (2, 4):
        fit(tmp_path / "a", epochs=epochs, resume=True, log_every="10s")
    assert [line["epoch"] for line in read_metrics(tmp_path / "a") if line["kind"] == "epoch"] == [1, 2, 3, 4]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("step", [1, 2, 5, 6, 7, 10])
def test_a_stop_adds_no_line(tmp_path, every, step):
    """Inside of a pass and at its end, with windows of three micro-batches."""
    options = {"log_every": EVERY[every], "micro_batch_size": 4, "epochs": 3, "eval_every": "3steps"}
    fit(tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", Interrupt(step), **options)
    assert saved_steps(tmp_path / "cut") == [step]
    fit(tmp_path / "cut", Interrupt(), resume=True, **options)
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")


@pytest.mark.parametrize("every", EVERY)
def test_time_that_is_up_adds_no_line(tmp_path, every):
    """Sessions of a step each, then one without a limit."""
    options = {"log_every": EVERY[every], "micro_batch_size": 4, "epochs": 2}
    hears = Interrupt()  # of each batch: then progress is told after each, too
    fit(tmp_path / "whole", hears, **options)
    for session in range(4):
        fit(tmp_path / "cut", hears, resume=bool(session), stop_after="0.000001s", **options)
        assert saved_steps(tmp_path / "cut")[-1] == session + 1
    fit(tmp_path / "cut", hears, resume=True, **options)
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")


def test_a_long_compilation_brings_no_line(tmp_path, monkeypatch):
    """The time to the next line is counted from the last one, sessions that were stopped included, and nothing else."""
    now = [0.0]
    monkeypatch.setattr("gradloom.train.log.time.perf_counter", lambda: now[0])

    class Hours(Interrupt):
        def on_batch(self, batch):
            now[0] += 4.0
            super().on_batch(batch)

    def lines(folder):
        return [line["step"] for line in facts(folder) if line["kind"] == "train"]

    fit(tmp_path / "whole", Hours(), log_every="10s")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", Hours(5), log_every="10s")
    identity = importlib.import_module("gradloom.train.loop").identity_of

    def slow(loop):
        now[0] += 1000.0
        return identity(loop)

    monkeypatch.setattr("gradloom.train.loop.identity_of", slow)
    fit(tmp_path / "cut", Hours(), resume=True, log_every="10s")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole") == [3, 6, 9, 12, 15, 18]


def test_a_new_run_takes_the_place_of_a_finished_one_with_its_log(tmp_path):
    fit(tmp_path, log=("csv",))
    fit(tmp_path, epochs=2)
    assert [line["epoch"] for line in read_metrics(tmp_path) if line["kind"] == "epoch"] == [1, 2]
    assert not (tmp_path / "metrics.csv").exists()


def test_a_run_that_ends_before_its_first_step_leaves_no_log(tmp_path):
    class Never(Callback):
        def begin(self, loop):
            raise StopTraining

    fit(tmp_path / "run", Never(), epochs=0)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_log_needs_the_folder_of_a_run():
    with refused("log", "csv", run=...):
        gl.fit(gl.nn.Linear(4, 3), (X, Y), log="csv")
    with refused("log_every", "5s", run=...):
        gl.fit(gl.nn.Linear(4, 3), (X, Y), log_every="5s")
