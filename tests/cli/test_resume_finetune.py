"""A finetune that is stopped at any moment and resumed ends with the same bytes as one that never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from gradloom.files.toml_file import parse_toml
from gradloom.runs.folder import read_run
from tests import processes
from tests.cli.command import run
from tests.cli.test_fit import ENV
from tests.cli.test_outputs import language  # noqa: F401
from tests.parallel.mpi import finish, needs_mpi
from tests.parallel.mpi import start as start_ranks

SETTINGS = ("--context", 32, "--steps", 400, "--lr", 0.01, "--micro-batch-size", 2, "--dropout", 0.1, "--max-norm", 1)
SETTINGS += ("--ema", 0.9, "--eval-every", "50steps", "--keep-best", "--val-split", 0.2, "--seed", 3)
SETTINGS += ("--optimizer", "adamw", "--weight-decay", 0.1)


def start(*words, **options):
    return processes.start([sys.executable, "-m", "gradloom", "finetune", *words], env=ENV, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, language):  # noqa: F811
    """The adapter of a run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "a.gguf"
    _, err = (job := start(*language, *SETTINGS, "--out", out)).communicate(timeout=120)
    assert job.returncode == 0, err
    return out


def numbers(out):
    """What was measured: the evaluations and epochs of metrics.jsonl."""
    lines = [json.loads(line) for line in (out.with_suffix(".run") / "metrics.jsonl").read_text().splitlines()]
    names = ("kind", "step", "epoch", "loss", "val_loss", "lr", "grad_norm", "rows", "tokens")
    return [{name: line.get(name) for name in names} for line in lines if line["kind"] != "train"]


def same(out, whole):
    assert out.read_bytes() == whole.read_bytes()
    assert numbers(out) == numbers(whole)
    folders, often = (out.with_suffix(".run"), whole.with_suffix(".run")), ("run", "checkpoint_every", "keep")
    one, other = ({k: v for k, v in parse_toml(f / "settings.toml").items() if k not in often} for f in folders)
    assert one == other
    assert read_run(folders[0])["state"] == "finished"


def stopped_at(out, moment, number, *words):
    """Start or resume a run, and send it a signal some seconds after its first checkpoint; True when it was done."""
    job, folder = start(*words, "--checkpoint-every", "7steps", "--out", out), out.with_suffix(".run")
    began = time.monotonic()
    while job.poll() is None and not list(folder.glob("checkpoints/*.json")) and time.monotonic() - began < 60:
        time.sleep(0.005)
    for line in job.stderr:
        if "it fits" in line:  # before that, Python itself would answer a Ctrl-C
            break
    time.sleep(moment)
    if job.poll() is not None:
        return True
    os.kill(job.pid, number)
    _, err = job.communicate(timeout=120)
    assert job.returncode in (0, -number, 128 + number) and "Traceback" not in err, err
    if "the weights so far are in" in err:
        assert f"; resume with: gradloom finetune --out {out} --resume\n" in err, err
    return job.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.slow
def test_stopped_at_drawn_moments(tmp_path, language, whole, number):  # noqa: F811
    draw, out, stops = random.Random(int(number)), tmp_path / "a.gguf", 0
    done = stopped_at(out, draw.uniform(0, 0.4), number, *language, *SETTINGS)
    while not done and stops < 3:  # nothing but the folder is needed to go on; another number of threads is as good
        stops += 1
        assert read_run(out.with_suffix(".run"))["state"] in ("running", "interrupted")
        done = stopped_at(out, draw.uniform(0, 0.4), number, "--resume", "--threads", 1 + stops % 2)
    assert stops + done >= 1
    _, err = (job := start("--out", out, "--resume", "--threads", 2)).communicate(timeout=120)
    assert job.returncode == 0, err
    same(out, whole)


@pytest.mark.slow
def test_stop_after(capsys, tmp_path, language, whole):  # noqa: F811
    """Ends in order, with exit code 0 and the command that goes on, wherever the folder is."""
    out, folder = tmp_path / "a.gguf", tmp_path / "here"
    options = ("--out", out, "--run", folder)
    code, text, err = run(capsys, "finetune", *language, *SETTINGS, "--stop-after", "0.001s", *options, "--json")
    found = json.loads(text)
    assert code == 0 and 1 <= found["steps"] < 400 and found["interrupted"] is False and out.exists()
    assert f"; resume with: gradloom finetune --out {out} --run {folder} --resume\n" in err
    assert read_run(folder)["state"] == "interrupted"
    code, _, err = run(capsys, "finetune", *language, *SETTINGS, *options)
    assert code == 2 and "holds a run that has not finished" in err and "--resume" in err and "--overwrite" in err
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for more, said in (
        (("--seed", 4), "seed is 4 and was 3"), (("--lr", 0.5), "optimizer.lr"), (("--batch-size", 2), "batch_size"),
        (("--ema", 0.5), "ema is 0.5 and was 0.9"), (("--epochs", 9), "steps is "), (("--rank", 2), "adapter.rank"),
        (("--eval-every", "9steps"), "evaluation.every"), (("--eval-rows", 2), "evaluation.rows"),
    ):  # fmt: skip
        code, _, err = run(capsys, "finetune", "--resume", *options, *more)
        last = err.splitlines()[-1]
        assert code == 2 and "cannot be resumed: " in last and said in last, err
        assert "; need the same, or --overwrite (overwrite=True) to start anew" in last, last
        longer = "--epochs or --steps changes the 400 steps to "
        assert (longer in last and last.endswith("(--lora FILE; in Python continue_from=)")) == (more[0] == "--epochs")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert run(capsys, "finetune", "--run", folder, "--resume", "--keep", 1, "--threads", 2)[0] == 0
    assert out.read_bytes() == whole.read_bytes() and len(list(folder.glob("checkpoints/*.json"))) <= 2
    out.unlink()  # it was not written, or lost: the run has it
    code, _, err = run(capsys, "finetune", *options, "--resume")
    assert code == 0 and out.read_bytes() == whole.read_bytes()
    assert "this run has finished" in err and "more epochs are another run" in err
    assert run(capsys, "rerun", folder, "--out", tmp_path / "b.gguf")[0] == 0
    same(tmp_path / "b.gguf", whole)


@pytest.mark.slow
def test_an_unfinished_run_is_replaced_when_asked(capsys, tmp_path, language, whole):  # noqa: F811
    words = ("finetune", *language, "--out", tmp_path / "a.gguf", *SETTINGS)
    assert run(capsys, *words, "--seed", 7, "--stop-after", "0.001s")[0] == 0
    assert run(capsys, *words)[0] == 2 and run(capsys, *words, "--resume", "--overwrite")[0] == 2
    code, _, err = run(capsys, *words, "--overwrite")
    assert code == 0 and "the unfinished run in it is replaced" in err
    same(tmp_path / "a.gguf", whole)


def test_nothing_to_resume(capsys, tmp_path, monkeypatch, language):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "finetune", "--resume")
    assert code == 2 and "need the folder of a run, or MODEL and DATA to begin one" in err
    code, _, err = run(capsys, "finetune", *language, "--context", 32, "--steps", 2, "--resume")
    assert code == 0 and "adapter.run: there is no checkpoint to resume from; the run starts anew" in err
    full = ("--method", "full", "--context", 32, "--steps", 400)
    assert run(capsys, "finetune", *language, *full, "--stop-after", "0.001s")[0] == 0
    assert run(capsys, "finetune", "--method", "full", "--resume")[0] == 0
    assert read_run("model.run")["step"] == 400 and read_run("adapter.run")["step"] == 2


def test_a_run_that_is_refused_leaves_the_folder_free(capsys, tmp_path, language, monkeypatch):  # noqa: F811
    from gradloom.base import memory

    words = ("finetune", *language, "--context", 32, "--steps", 1, "--out", tmp_path / "a.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 300_000))
        code, _, err = run(capsys, *words)
        assert code == 2 and "of memory are needed" in err
    assert not (tmp_path / "a.run").exists() and run(capsys, *words)[0] == 0


def test_how_often_and_how_many(capsys, tmp_path, language):  # noqa: F811
    options = ("--context", 32, "--steps", 12, "--checkpoint-every", "3steps", "--keep", 2, "--val-split", 0)
    assert run(capsys, "finetune", *language, *options, "--out", tmp_path / "a.gguf")[0] == 0
    names = sorted(path.name for path in (tmp_path / "a.run" / "checkpoints").glob("*.json"))
    assert [int("".join(c for c in name if c.isdigit())) for name in names] == [9, 12]
    code, out, _ = run(capsys, "runs", tmp_path, "--json")
    [found] = json.loads(out.splitlines()[-1])["runs"]
    assert code == 0 and (found["name"], found["kind"], found["state"]) == ("a.run", "finetune", "finished")
    assert found["steps"] == 12 and found["settings"] == "settings.toml" and found["numbers"]["loss"] > 0


@pytest.mark.parametrize("name", ["settings.toml", "metrics.jsonl", "samples.jsonl"])
def test_data_are_no_files_of_the_run(capsys, tmp_path, language, name):  # noqa: F811
    data = tmp_path / name
    data.write_text(Path(language[1]).read_text())
    code, _, err = run(capsys, "finetune", language[0], data, "--out", tmp_path / "a.gguf", "--run", tmp_path)
    assert code == 2 and f"is the same file as {data}, which is read" in err
    assert data.read_text() == Path(language[1]).read_text()


@pytest.mark.parametrize("options, says", [
    (("--checkpoint-every", "often"), "--checkpoint-every often: must be a text such as 5min, 100steps or 1epoch"),
    (("--stop-after", "100steps"), "--stop-after 100steps: must be a duration such as 90s, 5min or 3h"),
    (("--keep", "0"), "--keep 0: must be a whole number of at least 1"),
    (("--patience", 2, "--val-split", 0), "--patience 2 requires validation rows: --val-split above 0"),
    (("--eval-every", "2steps", "--val-split", 0), "--eval-every 2steps requires validation rows"),
    (("--eval-rows", 2, "--val-split", 0), "--eval-rows 2 requires validation rows"),
    (("--log", "xml"), "--log xml: must be a list, each of it csv or tensorboard"),
])  # fmt: skip
def test_mistakes(capsys, tmp_path, language, options, says):  # noqa: F811
    code, _, err = run(capsys, "finetune", *language, *options, "--context", 32, "--out", tmp_path / "a.gguf")
    assert code == 2 and says in err.splitlines()[-1] and os.listdir(tmp_path) == [], err


def test_what_is_logged(capsys, tmp_path, language):  # noqa: F811
    options = ("--context", 32, "--steps", 5, "--val-split", 0.2, "--eval-every", "2steps", "--eval-rows", 3)
    code = run(capsys, "finetune", *language, *options, "--log", "csv", "--out", tmp_path / "a.gguf")[0]
    lines = [json.loads(line) for line in (tmp_path / "a.run" / "metrics.jsonl").read_text().splitlines()]
    assert code == 0 and {2, 4, 5} <= {line["step"] for line in lines if line["kind"] == "evaluation"}
    assert lines[-1]["kind"] == "epoch" and lines[-1]["tokens"] == 32 * lines[-1]["rows"] > 0
    head, *rows = (tmp_path / "a.run" / "metrics.csv").read_text().splitlines()
    assert "val_loss" in head.split(",") and len(rows) == len(lines)


def test_it_ends_when_nothing_improves(capsys, tmp_path, language):  # noqa: F811
    """And saves the best weights, where that is asked for."""
    options = ("--context", 32, "--steps", 200, "--val-split", 0.2, "--lr", 2.0, "--schedule", "constant", "--json")
    options += ("--eval-every", "1steps", "--warmup", 0)
    found = {}
    for name, more in (("a", ()), ("b", ("--keep-best",))):
        out = tmp_path / f"{name}.gguf"
        code, text, err = run(capsys, "finetune", *language, *options, "--patience", 2, *more, "--out", out)
        found[name] = json.loads(text)
        assert code == 0 and found[name]["steps"] < 200 and "resume with" not in err, err
        assert read_run(out.with_suffix(".run"))["state"] == "finished"
    assert found["a"]["steps"] == found["b"]["steps"]
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "b.gguf").read_bytes()
    assert found["b"]["val_loss"] < found["a"]["val_loss"]  # each is of the weights that it saved
    assert "weights" in err and ", the best" in err


@needs_mpi
@pytest.mark.slow
def test_ranks_go_on(tmp_path, language, whole):  # noqa: F811
    """Two processes, stopped; three end it."""
    out = tmp_path / "a.gguf"
    words = ("-m", "gradloom", "finetune", "--out", out, "--parallel", "mpi")
    first = finish(start_ranks(2, *words, *language, *SETTINGS, "--stop-after", "0.001s"), 100)
    assert first.code == 0 and "resume with: " in first.err, first
    last = finish(start_ranks(3, *words, "--resume"), 100)
    assert last.code == 0, last
    same(out, whole)


@pytest.mark.slow
def test_data_of_other_keys_and_other_test_rows(capsys, tmp_path, language):  # noqa: F811
    """Keys are names, and the test file is measured at the end: both are compared. Other bytes alone are noted."""
    data, out = tmp_path / "data", tmp_path / "a.gguf"
    data.mkdir()

    def write(completion="completion", test="the dog sat", line="\n"):
        rows = [{"prompt": f"the cat {i}", completion: "sat on the mat"} for i in range(8)]
        (data / "train.jsonl").write_text("".join(json.dumps(row) + line for row in rows))
        (data / "test.jsonl").write_text(json.dumps({"prompt": "the log", completion: test}) + "\n")

    write()
    words = ("--context", 16, "--steps", 2, "--rank", 2, "--batch-size", 2, "--out", out)
    assert run(capsys, "finetune", language[0], data, *words)[0] == 0
    for changed, named in (
        ({"completion": "output"}, "keys is ['prompt', 'output'] and was ['prompt', 'completion']"),
        ({"test": "the cat sat"}, "the test rows differ ("),
    ):
        write(**changed)
        options = ("--completion-key", "output") if "completion" in changed else ()
        code, _, err = run(capsys, "finetune", "--out", out, "--resume", *options)
        assert code == 2 and "cannot be resumed: " in err and named in err.splitlines()[-1], err
    write(line="\n\n")
    code, _, err = run(capsys, "finetune", "--out", out, "--resume")
    assert code == 0 and "the file of data is sha256:" in err, err


def test_a_resumed_run_names_the_objective_that_differs(capsys, tmp_path, language):  # noqa: F811
    """Before the settings of the earlier one, which do not fit the other."""
    lines = [json.dumps({"text": text, "label": label}) for text, label in (("good", "a"), ("bad", "b"), ("odd", "a"))]
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    out = tmp_path / "a.gguf"
    words = ("--objective", "classify", "--class-weight", "balanced", "--context", 32, "--steps", 2)
    code, _, err = run(capsys, "finetune", language[0], tmp_path / "labels.jsonl", *words, "--out", out)
    assert code == 0, err
    code, _, err = run(capsys, "finetune", "--resume", "--objective", "regress", "--out", out)
    assert code == 2
    assert "--objective regress: the run has classify" in err
