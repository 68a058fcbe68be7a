"""The log of a run: metrics.jsonl, CSV and TensorBoard files, read back by others than what wrote them."""

import csv
import errno
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.runs import log_files
from gradloom.train import Log, read_metrics
from tests.processes import environment
from tests.refused import refused
from tests.train.split_training import on_ranks

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 4)).astype(np.float32), RNG.integers(0, 3, 50)


def fit(log, net=None, **options):
    net = net or gl.nn.Sequential(gl.nn.Linear(4, 8, activation="relu"), gl.nn.Linear(8, 3)).init(0)
    options = {"epochs": 3, "batch_size": 10, "val_split": 0.2, "progress": False} | options
    optimizer = gl.optim.SGD(lr=lambda step, epoch: 0.1 / (1 + step))
    return gl.fit(net, (X, Y), optimizer=optimizer, callbacks=[log] if log else [], **options)


def strict(path):
    """The lines, by a reader that takes nothing but JSON."""

    def refuse(name):
        raise AssertionError(name)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_a_line_for_each_evaluation_and_epoch(tmp_path):
    history = fit(Log(tmp_path / "run"))
    lines = strict(tmp_path / "run" / "metrics.jsonl")
    assert [line["kind"] for line in lines] == ["evaluation", "epoch"] * 3
    assert [(line["step"], line["epoch"]) for line in lines[1::2]] == [(4, 1), (8, 2), (12, 3)]
    for result, evaluation, epoch in zip(history, lines[::2], lines[1::2], strict=True):
        assert evaluation["val_loss"] == epoch["val_loss"] == result.val.loss
        assert epoch["loss"] == result.train.loss and epoch["loss_unc"] == result.train.loss_unc
        assert epoch["accuracy"] == result.train.accuracy and epoch["val_accuracy"] == result.val.accuracy
        assert epoch["lr"] == pytest.approx(0.1 / (4 * result.epoch))
        assert epoch["grad_norm"] == result.train.grad_norm
        assert epoch["grad_norm_mean"] == pytest.approx(result.train.grad_norms.mean())
        assert epoch["rows"] == 40 * result.epoch and epoch["rows_per_second"] > 0
        assert epoch["memory_peak_bytes"] >= epoch["memory_bytes"] > 10_000_000
        assert epoch["epoch_seconds"] == round(result.seconds, 3)
        assert "tokens" not in epoch
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds) and lines[-1]["time"] - lines[0]["time"] < 60


def test_training_has_the_same_bits_with_a_log(tmp_path):
    def losses(log):
        return [(e.train.loss, e.val.loss) for e in fit(log)]

    assert losses(Log(tmp_path, ("csv",), every="0.001s")) == losses(None)


def test_lines_of_training_come_every_so_often(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("gradloom.train.log.time.perf_counter", lambda: now[0])

    def work(at):  # each step takes 3 s
        now[0] += 3.0

    history = fit(Log(tmp_path, row_tokens=7), on_train_batch=work, val_split=0.0)
    lines = [line for line in strict(tmp_path / "metrics.jsonl") if line["kind"] == "train"]
    assert [(line["step"], line["epoch"], line["seconds"]) for line in lines] == [
        (4, 1, 12.0), (8, 2, 24.0), (12, 3, 36.0)
    ]  # fmt: skip
    assert lines[0]["rows"] == 40 and lines[0]["tokens"] == 280
    assert lines[0]["loss"] != lines[1]["loss"] and len(history) == 3
    for line in lines:
        assert line["lr"] == pytest.approx(0.1 / line["step"])
        assert line["tokens_per_second"] == pytest.approx(line["rows_per_second"] * 7, rel=0.1)


@pytest.mark.parametrize("micro", [None, 5])
def test_lines_of_training_after_so_many_steps(tmp_path, micro):
    log = Log(tmp_path, every="3steps")
    history = fit(log, micro_batch_size=micro)
    lines = [line for line in strict(tmp_path / "metrics.jsonl") if line["kind"] == "train"]
    assert [(line["step"], line["epoch"], line["rows"]) for line in lines] == [
        (3, 1, 30), (6, 2, 60), (9, 3, 90), (12, 3, 120)
    ]  # fmt: skip
    first, second, third, fourth = lines
    one, two, three = (epoch.train for epoch in history)
    assert first["grad_norm"] == one.grad_norms[2] and second["grad_norm"] == two.grad_norms[1]
    assert first["grad_norm_mean"] == pytest.approx(one.grad_norms[:3].mean())
    assert second["grad_norm_mean"] == pytest.approx(two.grad_norms[:2].mean())
    assert fourth["grad_norm_mean"] == pytest.approx(three.grad_norms[1:].mean())
    assert third["loss"] * 10 + fourth["loss"] * 30 == pytest.approx(three.loss * 40)  # of 1 step, and of the 3 others
    right = third["accuracy"] * 10 + fourth["accuracy"] * 30
    assert right == pytest.approx(three.correct)
    assert [line["lr"] for line in lines] == pytest.approx([0.1 / 3, 0.1 / 6, 0.1 / 9, 0.1 / 12])
    assert all(0 < line["rows_per_second"] < 1e7 for line in lines)


def test_one_of_several_ranks_writes(tmp_path):
    fit(Log(tmp_path / "alone", every="3steps"), micro_batch_size=5)
    on_ranks(2, lambda ranks: fit(Log(tmp_path / "ranks", every="3steps"), parallel=ranks, micro_batch_size=5))
    alone, ranks = strict(tmp_path / "alone" / "metrics.jsonl"), strict(tmp_path / "ranks" / "metrics.jsonl")
    same = ("kind", "step", "epoch", "loss", "accuracy", "val_loss", "lr", "rows")
    assert [{n: line.get(n) for n in same} for line in ranks] == [{n: line.get(n) for n in same} for line in alone]
    assert [line.get("grad_norm") for line in ranks] == pytest.approx([line.get("grad_norm") for line in alone])


def test_what_is_not_finite_is_null_with_its_reason(tmp_path):
    head = {"kind": "epoch", "step": 1, "epoch": 1, "time": 2.0, "seconds": 3.0}
    line = log_files.text_of({**head, "loss": math.nan, "val_loss": -math.inf, "lr": 0.1})
    assert json.loads(line) == {
        "schema": "gradloom.metrics/1", **head,
        "loss": None, "val_loss": None, "lr": 0.1, "not_finite": {"loss": "nan", "val_loss": "-inf"},
    }  # fmt: skip
    assert "NaN" not in line and "Infinity" not in line


def test_nothing_is_written_before_a_step_is_done(tmp_path):
    net = gl.nn.Linear(4, 3).init(0)
    trainer = gl.Trainer(net, optimizer=gl.optim.SGD(lr=0.1))
    log = Log(tmp_path)

    def loop(steps):
        made = gl.train.Loop(
            trainer, gl.data.Dataset(X, Y), np.arange(40), np.arange(40, 50), batch_size=10, micro_batch_size=10,
            steps=steps, callbacks=[log], validates_first=True,
        )  # fmt: skip
        made.run()

    loop(0)
    assert not list(tmp_path.iterdir())
    loop(4)
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_new_run_replaces_the_lines_of_an_old_one(tmp_path):
    fit(Log(tmp_path))
    fit(Log(tmp_path), epochs=1)
    assert [line["epoch"] for line in read_metrics(tmp_path)] == [1, 1]


class Failing:
    """os.write that fails while `full`, after it has written a part."""

    def __init__(self):
        self.full, self.write = False, os.write

    def __call__(self, file, text):
        if not self.full:
            return self.write(file, text)
        self.write(file, text[:10])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_said_once_and_the_training_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("GRADLOOM_DEBUG", raising=False)  # which writes to stderr, too
    disk = Failing()
    monkeypatch.setattr("gradloom.runs.log_files.os.write", disk)

    def at(result):
        disk.full = result.epoch in (2, 3)

    history = fit(Log(tmp_path), on_epoch=at, epochs=5)
    assert len(history) == 5
    said = capfd.readouterr().err.splitlines()
    where = tmp_path / "metrics.jsonl"
    assert said == [f"gradloom: {where}: a line cannot be written: no space left on device; the training continues"]
    assert [line["epoch"] for line in strict(where)] == [1, 1, 2, 4, 5, 5]  # an evaluation, and its epoch


def test_files_that_may_not_grow_hold_whole_lines_and_go_on_when_they_may(tmp_path):
    code = f"""if True:
        import resource, signal, numpy as np, gradloom as gl
        def limit(result):
            bytes = {{3: 2000, 9: resource.RLIM_INFINITY}}.get(result.epoch)
            if bytes:
                resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))
        x = np.ones((50, 4), np.float32)
        history = gl.fit(gl.nn.Linear(4, 3), (x, np.zeros(50, int)), epochs=12, progress=False, on_epoch=limit,
                         callbacks=[gl.train.Log({str(tmp_path)!r}, "csv")])
        assert len(history) == 12
    """
    done = subprocess.run([sys.executable, "-c", code], env=environment(), check=True, capture_output=True, text=True)
    assert done.stderr.count("a line cannot be written: file too large; the training continues") == 1
    epochs = [line["epoch"] for line in strict(tmp_path / "metrics.jsonl")]
    assert epochs[-4:] == [9, 10, 11, 12] and epochs[:3] == [1, 2, 3] and len(epochs) < 11
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in epochs]


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(gl.FileError, match="file.*cannot be written: not a directory"):
        fit(Log(tmp_path / "file" / "run"))
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(gl.FileError, match="is a folder"):
        fit(Log(tmp_path / "run"))


# ---- a run that was stopped --------------------------------------------------------------------------------------


def test_lines_after_a_checkpoint_are_cut_and_the_seconds_go_on(tmp_path):
    fit(Log(tmp_path, ("csv",)))
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    second = Log(tmp_path, ("csv",))
    kept = len(whole.splitlines(True)[0]) + len(whole.splitlines(True)[1])
    (tmp_path / "metrics.jsonl").write_bytes(whole + b'{"kind": "tr')  # cut short by a kill
    second.load_state({"seconds": 1000.0, "size": kept, "told": [1, 4, 4, 40, 3], "steps": 4, "waited": 9.0})
    assert second.state() == {
        "seconds": pytest.approx(1000.0, abs=1),
        "size": kept,
        "told": [1, 4, 4, 40, 3],
        "steps": 4,
        "waited": pytest.approx(9.0, abs=1),
    }
    fit(second, epochs=1)
    lines = strict(tmp_path / "metrics.jsonl")
    assert (tmp_path / "metrics.jsonl").read_bytes()[:kept] == whole[:kept]
    assert [line["kind"] for line in lines] == ["evaluation", "epoch"] * 2
    assert lines[1]["seconds"] < 1000 <= lines[2]["seconds"]
    with open(tmp_path / "metrics.csv", newline="") as file:
        assert [row["seconds"] for row in csv.DictReader(file)] == [str(line["seconds"]) for line in lines]


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_file_that_does_not_end_where_it_was_said_to_is_cut_at_its_last_whole_line(tmp_path, size):
    log = Log(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n{"b": 2}\n{"c')
    log.load_state({"seconds": 0.0, "size": size, "told": [0] * 5, "steps": 0})
    fit(log, epochs=1)
    assert [line.get("kind") for line in strict(tmp_path / "metrics.jsonl")] == [None] * (1 if size == 10 else 2) + [
        "evaluation", "epoch"
    ]  # fmt: skip


def test_a_kill_leaves_whole_lines(tmp_path):
    code = f"""if True:
        import os, signal, numpy as np, gradloom as gl
        def kill(result):
            if result.epoch == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        x = np.ones((50, 4), np.float32)
        gl.fit(gl.nn.Linear(4, 3), (x, np.zeros(50, int)), epochs=9, progress=False, on_epoch=kill,
               callbacks=[gl.train.Log({str(tmp_path)!r})])
    """
    subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
    assert [line["epoch"] for line in strict(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_the_reader_leaves_out_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train"}\n{"kind": "ep')
    assert read_metrics(path) == read_metrics(tmp_path) == [{"kind": "train"}]
    path.write_text('{"kind": "train"}\n[1]\n')
    with pytest.raises(gl.FileError, match="line 2 is no JSON object; need the metrics of a run"):
        read_metrics(path)
    with pytest.raises(gl.FileError, match="cannot be read: no such file"):
        read_metrics(tmp_path / "none.jsonl")


# ---- CSV and TensorBoard -----------------------------------------------------------------------------------------


def test_a_csv_file_holds_the_same_lines(tmp_path):
    fit(Log(tmp_path, "csv"))
    lines = strict(tmp_path / "metrics.jsonl")
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        cells = {name: str(value) for name, value in line.items() if name != "schema"}
        assert {name: value for name, value in row.items() if value} == cells
    assert next(csv.reader(open(tmp_path / "metrics.csv", newline="")))[:3] == ["kind", "step", "epoch"]  # noqa: SIM115


def test_a_csv_file_is_written_anew_when_a_column_joins(tmp_path):
    file = log_files.CsvFile()
    file.begin(tmp_path, [])
    assert (tmp_path / "metrics.csv").read_bytes() == b""
    file.add({"a": 1, "b": 'x, "y"'})
    file.add({"a": 2, "c": math.inf, "not_finite": {"d": "nan"}, "d": None})
    file.add({"a": 3})
    with open(tmp_path / "metrics.csv", newline="") as opened:
        assert list(csv.reader(opened)) == [
            ["a", "b", "c", "d"], ["1", 'x, "y"', "", ""], ["2", "", "", ""], ["3", "", "", ""]
        ]  # fmt: skip


def events(folder):
    """(step, {tag: value}) of each event, by TensorBoard's own reader where it is installed, else tensorboardX's
    protocol buffers and the format of TFRecord: length, checksum, bytes, checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.glob("events.out.tfevents.*")
    found, data, at = [], path.read_bytes(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size
        if event.summary.value:
            found.append((event.step, {v.tag: v.simple_value for v in event.summary.value}))
    return found


def test_event_files_hold_the_same_lines(tmp_path):
    pytest.importorskip("tensorboardX")
    fit(Log(tmp_path, ("csv", "tensorboard")))
    lines = strict(tmp_path / "metrics.jsonl")
    found = events(tmp_path / "tensorboard")
    assert [step for step, _ in found] == [line["step"] for line in lines]
    for (_, scalars), line in zip(found, lines, strict=True):
        numbers = {
            f"{line['kind']}/{k}": v
            for k, v in line.items()
            if isinstance(v, float | int) and k not in ("step", "time")
        }
        assert scalars == pytest.approx(numbers, rel=1e-6)


def test_event_files_of_a_resumed_run_hold_its_lines_once(tmp_path):
    pytest.importorskip("tensorboardX")
    fit(Log(tmp_path, "tensorboard"))
    kept = sum(map(len, (tmp_path / "metrics.jsonl").read_bytes().splitlines(True)[:4]))
    again = Log(tmp_path, "tensorboard")
    again.load_state({"seconds": 10.0, "size": kept, "told": [0] * 5, "steps": 0})
    fit(again, epochs=1)
    assert [step for step, _ in events(tmp_path / "tensorboard")] == [4, 4, 8, 8, 4, 4]


def test_tensorboard_reads_them(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("tensorboardX")
    history = fit(Log(tmp_path, "tensorboard"))
    made = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    made.Reload()
    assert [(e.step, e.value) for e in made.Scalars("epoch/val_loss")] == [
        (4 * r.epoch, pytest.approx(r.val.loss, rel=1e-6)) for r in history
    ]


def test_what_is_missing_or_unknown_is_said_in_one_line(tmp_path, monkeypatch):
    with refused("log", "xlsx", need="some of csv, tensorboard"):
        Log(tmp_path, "xlsx")
    with refused("log_every", "1epoch"):
        Log(tmp_path, every="1epoch")
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(
        gl.BackendError, match=r"^log: requires tensorboardX, not installed; run pip install 'gradloom\[tensorboard\]'$"
    ):
        Log(tmp_path, "tensorboard")


def test_the_page_of_logs_names_all_that_lines_hold(tmp_path):
    page = (
        (Path(__file__).parents[2] / "docs" / "logs.md").read_text().partition("| name | meaning |")[2].split("\n\n")[0]
    )
    told = set()
    for row in re.findall(r"^\| (.*?) \|", page, re.M):
        told |= set(row.replace(", ...", "").split(", "))
    fit(Log(tmp_path, every="2steps", row_tokens=3))
    found = {name.removesuffix("_unc") for line in strict(tmp_path / "metrics.jsonl") for name in line}
    assert found == told


class StopsAt(gl.train.Callback):
    """Ends the training after a step."""

    stateless = True

    def __init__(self, step):
        self.step = step

    def on_batch(self, batch):
        if batch.step == self.step:
            raise gl.train.StopTraining("enough")


def test_a_line_for_an_epoch_that_ends_inside(tmp_path):
    """By a batch and by an evaluation; the line stays where the run is resumed."""

    def run(name, callback, **options):
        net = gl.nn.Linear(4, 3).init(0)
        options = {"epochs": 5, "batch_size": 10, "val_split": 0.2, "progress": False, "log": "csv", **options}
        history = gl.fit(net, (X, Y), run=tmp_path / name, callbacks=[callback], **options)
        lines = [line for line in read_metrics(tmp_path / name) if line["kind"] == "epoch"]
        assert [line["epoch"] for line in lines] == [epoch.epoch for epoch in history]
        assert [line["loss"] for line in lines] == history.to_dict()["loss"]
        assert [line["rows"] for line in lines] == np.cumsum([epoch.train.ndata for epoch in history]).tolist()
        with open(tmp_path / name / "metrics.csv", newline="") as file:
            assert sum(row["kind"] == "epoch" for row in csv.DictReader(file)) == len(lines)
        return history, lines

    history, lines = run("batch", StopsAt(6))
    assert [line["step"] for line in lines] == [4, 6] and history[-1].val is None and "val_loss" not in lines[-1]
    stop = gl.train.EarlyStopping(patience=2, min_delta=9.0)
    history, lines = run("evaluation", stop, eval_every="3steps")
    assert [line["step"] for line in lines] == [4, 6] and len(history[-1].evaluations) == 1
    history, lines = run("batch", StopsAt(0), resume=True, epochs=6)
    assert [line["step"] for line in lines] == [4, 6]
