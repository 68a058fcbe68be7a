"""A fit that is stopped at any moment and resumed ends with the same bytes as one that never stopped."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gradloom.data.encoding.targets import hold_out
from gradloom.files import load_arrays
from gradloom.files.checkpoint_files import Encoded, manifests, plain, read_checkpoint, write_checkpoint
from gradloom.files.toml_file import parse_toml
from gradloom.runs.folder import read_run
from tests import processes
from tests.cli.command import run
from tests.cli.test_fit import ENV, flowers, one_thread  # noqa: F401
from tests.cli.test_outputs import DIGITS, belong_together
from tests.data.test_readers import idx_bytes
from tests.parallel.mpi import finish, needs_mpi
from tests.parallel.mpi import start as start_ranks

SETTINGS = (
    "--epochs",
    40,
    "--hidden",
    "24,8",
    "--val-split",
    0.1,
    "--lr",
    0.01,
    "--micro-batch-size",
    10,
    "--ema",
    0.9,
)
SETTINGS += ("--patience", 30, "--eval-every", "23steps", "--optimizer", "lion", "--max-norm", 1)
MODEL = "model.safetensors"


def start(*words, **options):
    return processes.start([sys.executable, "-m", "gradloom", *words], env=ENV, **options)


def ended(job, code=0):
    out, err = job.communicate(timeout=120)
    assert job.returncode == code and "Traceback" not in err, err
    return out, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "out"
    ended(start("fit", DIGITS, *SETTINGS, "--out", out))
    return out


def same(out, whole):
    """The bytes of the model, and what was measured."""
    one, other = belong_together(out), belong_together(whole)
    for name in ("train_loss", "val_loss", "test_loss", "steps", "epochs", "ending"):
        assert one[name] == other[name], name
    numbers = [[{k: v for k, v in epoch.items() if k != "seconds"} for epoch in r["history"]] for r in (one, other)]
    assert numbers[0] == numbers[1]
    assert (out / MODEL).read_bytes() == (whole / MODEL).read_bytes()


def stopped_at(out, moment, number, *options):
    """Start or resume a run, and send it a signal some seconds after its first checkpoint; True when it was done."""
    job = start("fit", *options, "--checkpoint-every", "7steps", "--out", out)
    began = time.monotonic()
    while job.poll() is None and not list(out.glob("checkpoints/*.json")) and time.monotonic() - began < 60:
        time.sleep(0.005)
    for line in job.stderr:
        if line.startswith("model: "):  # before that, Python itself would answer a Ctrl-C
            break
    time.sleep(moment)
    if job.poll() is not None:
        return True
    os.kill(job.pid, number)
    _, err = job.communicate(timeout=120)
    assert job.returncode in (0, -number, 128 + number) and "Traceback" not in err, err
    if "interrupted; " in err:
        assert err.splitlines()[-1].endswith(f"; resume with: gradloom fit --out {out} --resume"), err
    return job.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_stopped_at_drawn_moments(tmp_path, whole, number):
    rng, out, stops = random.Random(int(number)), tmp_path / "out", 0
    done = stopped_at(out, rng.uniform(0, 0.3), number, DIGITS, *SETTINGS)
    while not done and stops < 3:  # nothing but the folder is needed to go on; another number of threads is as good
        stops += 1
        assert (read_run(out) or {"state": "running"})["state"] in ("running", "interrupted")
        done = stopped_at(out, rng.uniform(0, 0.3), number, "--resume", "--threads", 1 + stops % 2)
    ended(start("fit", "--out", out, "--resume"))
    same(out, whole)
    assert read_run(out)["state"] == "finished" and stops + done >= 1
    assert run_of(out) == run_of(whole)


def run_of(out):
    """The settings of a run, without what tells how it came to be."""
    return {
        name: value
        for name, value in parse_toml(out / "settings.toml").items()
        if name not in ("run", "checkpoint_every")
    }


def test_stop_after(capsys, tmp_path, whole):
    """Ends in order, with exit code 0 and the command that goes on."""
    out = tmp_path / "out"
    code, text, err = run(capsys, "fit", DIGITS, *SETTINGS, "--stop-after", "0.001s", "--out", out, "--json")
    result = json.loads(text)
    assert code == 0 and result["ending"] == "stopped after 0.001s" and result["interrupted"] is False
    assert f"resume with: gradloom fit --out {out} --resume" in err and result["steps"] < 40 * 41
    assert read_run(out)["state"] == "interrupted" and (out / MODEL).exists()
    code, _, err = run(capsys, "fit", DIGITS, *SETTINGS, "--out", out)
    assert code == 2 and "holds a run that has not finished" in err and "--resume" in err and "--overwrite" in err
    assert run(capsys, "fit", "--out", out, "--resume")[0] == 0
    same(out, whole)


@pytest.mark.slow
def test_settings_that_differ_are_refused(capsys, tmp_path, whole):
    out = tmp_path / "out"
    assert run(capsys, "fit", DIGITS, *SETTINGS, "--stop-after", "0.001s", "--out", out)[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for options in (("--seed", 3), ("--lr", 0.5), ("--batch-size", 16), ("--optimizer", "sgd"), ("--max-norm", 2)):
        code, _, err = run(capsys, "fit", "--out", out, "--resume", *options)
        assert code == 2 and "cannot be resumed" in err.splitlines()[-1], (options, err)
    other = shutil.copy(flowers(tmp_path / "t.csv"), tmp_path / "other.csv")
    code, _, err = run(capsys, "fit", other, "--out", out, "--resume")
    assert code == 2 and "cannot be resumed" in err.splitlines()[-1]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert run(capsys, "fit", DIGITS, "--out", out, "--resume", "--threads", 2, "--keep", 1)[0] == 0
    same(out, whole)
    assert len(list((out / "checkpoints").glob("*.json"))) <= 2


@pytest.mark.slow
def test_an_option_that_differs_is_named_and_nothing_that_follows_from_it(capsys, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{w:.3f},{w + 1:.3f},{'xy'[int(a > b)]}" for a, b, w in rng.uniform(0.5, 2, (150, 3))]
    (tmp_path / "t.csv").write_text("a,b,w,v,y\n" + "\n".join(rows) + "\n")
    out, words = tmp_path / "out", ("--weight-column", "w", "--hidden", 8, "--epochs", 40, "--stop-after", "0.001s")
    assert run(capsys, "fit", tmp_path / "t.csv", *words, "--out", out)[0] == 0
    need = "; need the same, or --overwrite (overwrite=True) to start anew\n"
    differ = {
        ("--ensemble", 9): "--ensemble is 9 and was 8",
        ("--weight-column", "v"): '--weight-column is "v" and was "w"',
        ("--folds", 4): "--folds is 4 and was 8",
        ("--drop", "b", "--hidden", 9): '--drop is ["b"] and was none; --hidden is [9] and was [8]',
    }
    for options, said in differ.items():
        code, _, err = run(capsys, "fit", "--out", out, "--resume", *options)
        assert code == 2 and err.splitlines(True)[-1] == f"gradloom: {out}: cannot be resumed: {said}{need}", err
    other = shutil.copy(tmp_path / "t.csv", tmp_path / "other.csv")
    other.write_text(other.read_text().replace("0.5", "0.6"))
    code, _, err = run(capsys, "fit", other, "--out", out, "--resume")
    assert code == 2 and "the data differ" in err and "--" not in err.splitlines()[-1].split("; need the same")[0]
    assert run(capsys, "fit", "--out", out, "--resume", "--target", "y", "--epochs", 40)[0] == 0  # says the same


def test_more_epochs_are_another_schedule(capsys, tmp_path):
    """The note of a finished run does not promise what the cosine over all steps excludes."""
    out = tmp_path / "out"
    assert run(capsys, "fit", flowers(tmp_path / "t.csv"), "--hidden", 8, "--epochs", 1, "--out", out)[0] == 0
    steps = read_run(out)["step"]
    code, _, err = run(capsys, "fit", "--out", out, "--resume")
    ended = f"finished, after {steps} steps; the schedule of its learning rate ends here: more epochs are another run\n"
    assert code == 0 and ended in err, err
    code, _, err = run(capsys, "fit", "--out", out, "--resume", "--epochs", 2)
    why = (
        f"(0.002, steps={steps}, final=0.0): --epochs changes the {steps} steps to {2 * steps}, and the schedule of "
        "the learning rate spans all of them; need the same, or --overwrite (overwrite=True) to start anew\n"
    )
    assert code == 2 and err.endswith(why), err


def test_nothing_to_resume_starts_anew_and_says_so(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    code, _, err = run(capsys, "fit", data, "--epochs", 2, "--out", tmp_path / "a", "--resume")
    assert code == 0 and "there is no checkpoint to resume from; the run starts anew" in err
    code, _, err = run(capsys, "fit", "--out", tmp_path / "none", "--resume")
    assert (
        code == 2 and "no such folder, so there is no run to resume; need the folder of a run, or DATA to begin" in err
    )
    code, _, err = run(capsys, "fit", data, "--resume", "--overwrite", "--out", tmp_path / "a")
    assert code == 2 and "mutually exclusive" in err


KILLED = """
import os, signal, sys
from gradloom.cli.main import main
from gradloom.files import checkpoint_files
from gradloom.runs import checkpoint
moment, module, name = sys.argv[1], checkpoint, "write_checkpoint"
if moment == "between":
    module, name = checkpoint_files, "atomic_inside"
write = getattr(module, name)
def killed(*words, **options):
    if moment == "between" and not words[1].endswith(".json"):  # the manifest is the last file
        return write(*words, **options)
    if moment == "after":
        write(*words, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, killed)
main(sys.argv[2:])
"""


@pytest.mark.parametrize("moment", ["before", "between", "after"])
@pytest.mark.slow
def test_a_kill_at_the_first_checkpoint(capsys, tmp_path, moment):
    """Before its arrays, between them and its manifest, after it: settings.toml and run.json are there, and --resume
    needs nothing else."""
    data, out = flowers(tmp_path / "t.csv"), tmp_path / "a"
    words = ("fit", data, "--epochs", 2, "--seed", 3, "--checkpoint-every", "1steps", "--out")
    job = processes.start([sys.executable, "-c", KILLED, moment, *words, out], env=ENV)
    assert job.wait(timeout=100) == -signal.SIGKILL
    assert {"settings.toml", "run.json", "metrics.jsonl"} <= set(os.listdir(out))
    files = [".json", ".safetensors"][{"before": 2, "between": 1, "after": 0}[moment] :]
    assert sorted(path.suffix for path in out.glob("checkpoints/step-*")) == files
    code, _, err = run(capsys, "fit", "--out", out, "--resume")
    assert code == 0 and ("there is no checkpoint to resume from; the run starts anew" in err) == (moment != "after")
    assert run(capsys, *words, tmp_path / "whole")[0] == 0
    assert (out / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()


def test_settings_that_are_gone(capsys, tmp_path):
    """The command with all its arguments goes on; without them a line says so."""
    data, out = flowers(tmp_path / "t.csv"), tmp_path / "a"
    words = ("fit", data, "--epochs", 2, "--seed", 3, "--out")
    assert run(capsys, *words, out)[0] == run(capsys, *words, tmp_path / "whole")[0] == 0
    steps = read_run(out)["step"]
    (out / "settings.toml").unlink()
    need = "need DATA and the other arguments of the run, with --resume, to resume it"
    says = f"gradloom: --resume: {out}: holds a run at step {steps}, and no settings.toml; {need}\n"
    assert run(capsys, "fit", "--out", out, "--resume") == (2, "", says)
    code, _, err = run(capsys, *words, out, "--resume")
    assert code == 0 and "starts anew" not in err
    assert (out / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()


def test_an_unfinished_run_is_replaced_when_asked(capsys, tmp_path):
    data, out = flowers(tmp_path / "t.csv"), tmp_path / "out"
    options = ("fit", data, "--epochs", 3000, "--out", out)
    assert run(capsys, *options, "--stop-after", "0.01s")[0] == 0
    assert run(capsys, "fit", data, "--epochs", 2, "--out", out)[0] == 2
    code, _, err = run(capsys, "fit", data, "--epochs", 2, "--out", out, "--overwrite")
    assert code == 0 and "replaced at the first checkpoint" in err and belong_together(out)["epochs"] == 2
    code, _, err = run(capsys, "fit", data, "--epochs", 2, "--seed", 1, "--out", out)
    assert code == 0 and "the finished run in it is replaced" in err and belong_together(out)["seed"] == 1


@pytest.mark.parametrize(
    "options, says",
    [
        (("--checkpoint-every", "often"), "--checkpoint-every often: must be a text such as 5min, 100steps or 1epoch"),
        (("--checkpoint-every", "0steps"), "--checkpoint-every 0steps: must be a text such as"),
        (("--stop-after", "100steps"), "--stop-after 100steps: must be a duration such as 90s, 5min or 3h"),
        (("--keep", "0"), "--keep 0: must be a whole number of at least 1"),
    ],
)
def test_mistakes(capsys, tmp_path, options, says):
    code, _, err = run(capsys, "fit", flowers(tmp_path / "t.csv"), "--out", tmp_path / "out", *options)
    assert code == 2 and says in err.splitlines()[-1] and not (tmp_path / "out" / MODEL).exists()


@pytest.mark.slow
def test_a_rerun_of_a_resumed_run_has_its_bytes(capsys, tmp_path, whole):
    out = tmp_path / "out"
    assert run(capsys, "fit", DIGITS, *SETTINGS, "--stop-after", "0.001s", "--out", out)[0] == 0
    assert run(capsys, "fit", "--out", out, "--resume")[0] == 0
    assert run(capsys, "rerun", out, "--out", tmp_path / "again")[0] == 0
    same(tmp_path / "again", whole)


@pytest.mark.parametrize("kind", ["held out", "npz", "idx"])
def test_other_test_rows_are_refused(capsys, tmp_path, kind):
    """A row that is measured at the end alone belongs to the run, too. The same rows in another file do not."""
    data, out = tmp_path / {"held out": "t.csv", "npz": "t.npz", "idx": "t"}[kind], tmp_path / "a"
    write_rows(data, kind)
    words = ("fit", data, "--epochs", 1, "--out", out)
    assert run(capsys, *words)[0] == 0
    write_rows(data, kind)
    code, _, err = run(capsys, *words, "--resume")
    assert code == 0, err
    write_rows(data, kind, changed=1)
    code, out, err = run(capsys, "fit", "--out", out, "--resume")
    assert (code, out) == (2, "") and "cannot be resumed: the test rows differ (" in err.splitlines()[-1], err


def table(path, header="a,b,c,d,y", low="low", high="high", separator=",", scale=1.0, colour="blue", end="\n"):
    """150 rows whose target is told by a and c."""
    rng = np.random.default_rng(0)
    rows = [header] * bool(header)
    for a, b, c in rng.uniform(-1, 1, (150, 3)).round(3).tolist():
        rows.append(f"{a * scale},{b},{c},{colour if b > 0 else 'red'},{high if a > c else low}")
    path.write_text("".join(row.replace(",", separator) + end for row in rows), newline="")
    return path


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"header": "c,b,a,d,y"}, ["column 1 is 'c', number and was 'a', number", "column 3 is 'a'"]),
        ({"header": "a,b,c,e,y"}, ["column 4 is 'e', text", "and was 'd', text"]),
        ({"low": "less"}, ["classes is ['high', 'less'] and was ['high', 'low']"]),
        ({"low": "high", "high": "low"}, ["the data differ"]),
        ({"separator": ";"}, ["separator is ; and was ,"]),
        ({"scale": 1024.0}, ["scaling.column 1 is 'a', ", " and was 'a', "]),
        ({"colour": "blau"}, ["categories ['blau', 'red'] and was", "categories ['blue', 'red']"]),
        ({"header": ""}, ["--target is ", "column 5"]),
    ],
)
def test_other_names_are_refused(capsys, tmp_path, changed, named):
    """They change no number that is trained on."""
    out, data = tmp_path / "a", tmp_path / "t.csv"
    words = ("fit", table(data), "--hidden", 4, "--epochs", 2, "--out", out)
    assert run(capsys, *words)[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    table(data, **changed)
    code, text, err = run(capsys, "fit", "--out", out, "--resume")
    last = err.splitlines()[-1]
    assert (code, text) == (2, "") and last.startswith(f"gradloom: {out}: cannot be resumed: "), err
    assert all(name in last for name in named), last
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r\n", ".gz"])
def test_the_same_table_in_other_bytes(capsys, tmp_path, end):
    """Packed, or with other ends of lines: the run continues to the same weights, and other bytes are said."""
    out, data = tmp_path / "a", table(tmp_path / "t.csv")
    words = ("--hidden", 4, "--epochs", 30, "--out", out)
    assert run(capsys, "fit", data, *words[:-1], tmp_path / "whole")[0] == 0
    assert run(capsys, "fit", data, *words, "--stop-after", "0.001s")[0] == 0
    if end == ".gz":
        data = tmp_path / "t.csv.gz"
        data.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    else:
        table(data, end=end)
    code, _, err = run(capsys, "fit", data, "--out", out, "--resume")
    assert code == 0 and ("the file of data is sha256:" in err) == (end != "\n"), err
    (one, _), (other, _) = (load_arrays(folder / MODEL) for folder in (out, tmp_path / "whole"))
    assert all((one[name] == other[name]).all() for name in other)


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version(capsys, tmp_path):
    """It holds no names: the digests that settings.toml holds are compared in their place. Without them the run
    continues, which is said."""
    out, data = tmp_path / "a", table(tmp_path / "t.csv")
    assert run(capsys, "fit", data, "--hidden", 4, "--epochs", 2, "--out", out)[0] == 0
    checkpoint = read_checkpoint(manifests(out / "checkpoints")[0][0])
    about = checkpoint.about | {"settings": dict(checkpoint.about["settings"])}
    for name in ("table", "scaling", "files"):
        del about["settings"][name]
    entries = Encoded(checkpoint.entries)
    write_checkpoint(out / "checkpoints", checkpoint.step, entries, plain(about), best=False, number=99)
    table(data, header="c,b,a,d,y")
    code, _, err = run(capsys, "fit", "--out", out, "--resume")
    assert code == 2 and "cannot be resumed: the file of data is sha256:" in err.splitlines()[-1], err
    table(data)
    code, _, err = run(capsys, "fit", "--out", out, "--resume")
    assert code == 0 and "not compared" not in err, err
    write_checkpoint(out / "checkpoints", checkpoint.step, entries, plain(about), best=False, number=100)
    settings = (out / "settings.toml").read_text()
    (out / "settings.toml").write_text(settings[: settings.index("[run.digests]")])
    code, _, err = run(capsys, "fit", "--out", out, "--resume")
    assert code == 0 and "not compared, the checkpoint of an earlier version lacks it: table, scaling" in err, err


def write_rows(path, kind, changed=0):
    """Rows with a test; changed: added to a number of one test row."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 200, (60, 2, 2), np.uint8), np.arange(60, dtype=np.uint8) % 3
    held = hold_out(y, 0.2, 0)[1] if kind == "held out" else np.arange(48, 60)
    x[held[0], 0, 0] += changed
    if kind == "held out":
        path.write_text("".join(f"{','.join(map(str, row.ravel()))},kind{at}\n" for row, at in zip(x, y, strict=True)))
    elif kind == "npz":
        np.savez(path, x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:])
    else:
        path.mkdir(exist_ok=True)
        for name, part in (("train", slice(48)), ("t10k", slice(48, 60))):
            (path / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(x[part]))
            (path / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(y[part]))


@needs_mpi
@pytest.mark.slow
def test_ranks_go_on(tmp_path, whole):
    """Two processes, stopped; one goes on, stopped; three end it."""
    out, words = tmp_path / "out", ("-m", "gradloom", "fit", "--out", tmp_path / "out", "--parallel", "mpi")
    first = finish(start_ranks(2, *words, DIGITS, *SETTINGS, "--stop-after", "0.05s"), 100)
    assert first.code == 0 and "resume with: " in first.err, first
    assert stopped_at(Path(out), 0.4, signal.SIGKILL, "--resume") in (True, False)
    last = finish(start_ranks(3, *words, "--resume"), 100)
    assert last.code == 0, last
    same(out, whole)
