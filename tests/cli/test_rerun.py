"""A run is repeated from its settings.toml alone, to the bit; data that have changed are refused."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shlex
import shutil
import sys

import pytest

from gradloom.files.toml_file import parse_toml
from gradloom.llm import input_digest
from gradloom.llm.input_digest import digest
from gradloom.runs.folder import read_run
from tests import processes
from tests.cli.command import run
from tests.cli.test_fit import ENV, flowers, houses, one_thread  # noqa: F401
from tests.cli.test_outputs import language  # noqa: F401


def fitted(capsys, *arguments):
    code, _, err = run(capsys, "fit", *arguments)
    assert code == 0, err


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--optimizer", "sgd", "--lr", 0.01, "--hidden", "9,5", "--val-split", 0.1, "--batch-size", 50),
        ("--micro-batch-size", 7, "--seed", 5, "--loss", "mse", "--hidden", ""),
    ],
)
@pytest.mark.slow
def test_the_same_bits(capsys, tmp_path, monkeypatch, options):
    """Also from another folder and in another process, with what the first run had decided."""
    monkeypatch.chdir(tmp_path)
    data = flowers(tmp_path / "t.csv")
    fitted(capsys, "t.csv", "--epochs", 3, "--out", "a/run", *options)
    saved = parse_toml(tmp_path / "a" / "run" / "settings.toml")
    decided = {"epochs", "batch_size", "micro_batch_size", "lr", "val_split", "seed"}
    assert saved["data"] == data and decided <= set(saved)
    assert saved["run"]["line"].startswith("gradloom fit t.csv --epochs 3 --out a/run")
    assert saved["run"]["digests"] == {"data": digest(data)} and "threads" not in saved and "out" not in saved
    (tmp_path / "elsewhere").mkdir()
    words = [sys.executable, "-m", "gradloom", "rerun", tmp_path / "a" / "run", "--threads", 2, "--json"]
    job = processes.start(words, env=ENV, cwd=tmp_path / "elsewhere")
    out, err = job.communicate(timeout=100)
    assert job.returncode == 0 and "the same bits are not promised" not in err, err
    model = (tmp_path / "a" / "run" / "model.safetensors").read_bytes()
    assert (tmp_path / "a" / "run-again" / "model.safetensors").read_bytes() == model
    measured = {"seconds", "rows_per_second", "peak_bytes", "planned_bytes", "history", "model", "data"}
    first = json.loads((tmp_path / "a" / "run" / "result.json").read_text())
    again = json.loads(out)
    assert {k: v for k, v in first.items() if k not in measured} == {
        k: v for k, v in again.items() if k not in measured
    }
    assert [one["loss"] for one in first["history"]] == [one["loss"] for one in again["history"]]
    assert run(capsys, "rerun", tmp_path / "a" / "run-again" / "settings.toml", "--out", "b")[0] == 0
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == model


def test_its_settings_are_a_settings_file(capsys, tmp_path):
    fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 3, "--seed", 4, "--out", tmp_path / "a")
    fitted(capsys, "--config", tmp_path / "a" / "settings.toml", "--out", tmp_path / "b")
    fitted(capsys, "--config", tmp_path / "a" / "settings.toml", "--out", tmp_path / "c", "--seed", 5)
    one, two, three = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert one == two != three


def test_the_run_that_is_repeated_stays(capsys, tmp_path, monkeypatch):
    """Its own folder is no place to write, however it is named."""
    monkeypatch.chdir(tmp_path)
    fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 1, "--out", "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").glob("*.*")}
    (tmp_path / "link").symlink_to("a")
    for run_, out in (("a", "a"), ("a", tmp_path / "link"), ("link", "a/."), ("link/settings.toml", "a/")):
        code, text, err = run(capsys, "rerun", run_, "--out", out)
        says = f"gradloom: --out {out}: is the place of the repeated run; must be another one\n"
        assert (code, text, err) == (2, "", says)
    assert {path: path.read_bytes() for path in (tmp_path / "a").glob("*.*")} == before


def test_beside_the_run_as_it_is_named_now(capsys, tmp_path, monkeypatch):
    """Not beside the place where it was trained, nor for settings that were copied out of it."""
    monkeypatch.chdir(tmp_path)
    fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 1, "--out", "a")
    (tmp_path / "below").mkdir()
    os.rename("a", "below/b")
    assert run(capsys, "rerun", "below/b")[0] == 0
    assert (tmp_path / "below" / "b-again" / "settings.toml").exists() and not (tmp_path / "a-again").exists()
    shutil.copy("below/b/settings.toml", "below/mine.toml")
    assert run(capsys, "rerun", "below/mine.toml")[0] == 0
    assert (tmp_path / "below" / "mine-again" / "settings.toml").exists() and not (tmp_path / "a-again").exists()
    shutil.rmtree("below/b-again")
    monkeypatch.chdir(tmp_path / "below" / "b")
    assert run(capsys, "rerun", ".")[0] == 0
    assert (tmp_path / "below" / "b-again" / "settings.toml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fit", "finetune"])
@pytest.mark.parametrize("has_run_json", [True, False])
def test_the_settings_of_a_run_choose_no_place_to_write_to(capsys, tmp_path, language, kind, has_run_json):  # noqa: F811
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "fit":
        fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 1, "--out", tmp_path / "a.run")
        places = [("a.run-again", "precious"), ("a.run-again", "")]
    else:
        options = ("--steps", 1, "--context", 16, "--rank", 2, "--batch-size", 2)
        assert run(capsys, "finetune", *language, *options, "--out", tmp_path / "a.gguf")[0] == 0
        places = [("a-again.gguf", "precious.gguf"), ("a-again", "precious")]
    if not has_run_json:
        (tmp_path / "a.run" / "run.json").unlink()
    file = tmp_path / "a.run" / "settings.toml"
    for there, out in places:
        text = re.sub("(?m)^out = .*$", f"out = {json.dumps(str(elsewhere / out))}", file.read_text())
        file.write_text(text)
        code, _, err = run(capsys, "rerun", tmp_path / "a.run")
        assert code == 0 and (tmp_path / there).exists() and not list(elsewhere.iterdir()), err
        for path in tmp_path.glob("*-again*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.slow
def test_beside_a_run_whatever_it_is_called(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run.v2", "..x"):
        fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 1, "--out", name)
        assert run(capsys, "rerun", name)[0] == 0
        assert (tmp_path / f"{name}-again" / "settings.toml").exists()


def test_a_rerun_that_was_stopped(capsys, tmp_path, monkeypatch):
    """It has no --resume; the line that it prints goes on with it, to the same bits."""
    monkeypatch.chdir(tmp_path)
    fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 4, "--out", "a b")
    again = tmp_path / "a b-again"
    fitted(capsys, "--config", "a b/settings.toml", "--out", again, "--stop-after", "0.001s")
    assert read_run(again)["state"] == "interrupted"
    before = {path: path.read_bytes() for path in again.rglob("*") if path.is_file()}
    code, _, err = run(capsys, "rerun", "a b")
    line = f"gradloom fit --out '{again}' --resume"
    assert code == 2 and "has not finished (at step " in err and f"; need another --out; {line} resumes it" in err
    assert {path: path.read_bytes() for path in again.rglob("*") if path.is_file()} == before
    fitted(capsys, *shlex.split(line)[2:], "--stop-after", "1h")
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "a b" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_beside_a_finetune_as_it_is_named_now(capsys, tmp_path, language, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    options = ("--steps", 1, "--context", 16, "--rank", 2, "--batch-size", 2)
    for out in (("a.gguf",), ("c", "--run", "d")):
        assert run(capsys, "finetune", *language, *options, "--out", *out)[0] == 0
    (tmp_path / "below").mkdir()
    for old, new in (("a.gguf", "b.gguf"), ("a.run", "b.run"), ("c", "f"), ("d", "e")):
        os.rename(old, f"below/{new}")
    assert run(capsys, "rerun", "below/b.run")[0] == 0
    assert (tmp_path / "below" / "b-again.gguf").exists() and (tmp_path / "below" / "b-again.run").is_dir()
    assert run(capsys, "rerun", "below/e")[0] == 0
    assert (tmp_path / "below" / "e-again").is_dir() and (tmp_path / "below" / "e-again.run").is_dir()
    assert not list(tmp_path.glob("*-again*"))


def test_data_that_changed_are_refused(capsys, tmp_path):
    data = flowers(tmp_path / "t.csv")
    fitted(capsys, data, "--epochs", 2, "--out", tmp_path / "a")
    then = digest(data)
    flowers(tmp_path / "t.csv", seed=1)
    code, _, err = run(capsys, "rerun", tmp_path / "a")
    assert code == 2 and not (tmp_path / "a-again").exists()
    assert err == f"gradloom: {data}: has changed: {digest(data)}, at the run {then}; need the data of the run\n"
    (tmp_path / "t.csv").unlink()
    code, _, err = run(capsys, "rerun", tmp_path / "a")
    need = f"need it there, or its new place as data = in {tmp_path / 'a' / 'settings.toml'}"
    assert code == 2 and err == f"gradloom: {data}: cannot be read: no such file or directory; {need}\n"
    moved = flowers(tmp_path / "moved.csv")
    file = tmp_path / "a" / "settings.toml"
    file.write_text(file.read_text().replace(json.dumps(data), json.dumps(moved)))
    assert run(capsys, "rerun", tmp_path / "a")[0] == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (
        tmp_path / "a-again" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    "change, says",
    [
        (("gradloom = .*", "gradloom = '0.0.1'"), r"the same bits are not promised: gradloom 0\.0\.1 then, .* now"),
        (("isa = .*", "isa = 'none'"), "the same bits are not promised: isa none then, "),
        (("flush = false", "flush = true"), "the same bits are not promised: flush True then, False now"),
        (("target = ", "exchange = 'fast'\ntarget = "), "not promised: gradients were exchanged with --exchange fast"),
    ],
)
def test_what_may_change_the_bits_is_said(capsys, tmp_path, change, says):
    fitted(capsys, flowers(tmp_path / "t.csv"), "--epochs", 1, "--out", tmp_path / "a")
    file = tmp_path / "a" / "settings.toml"
    text = re.sub(*change, file.read_text(), count=1)
    assert text != file.read_text()
    file.write_text(text)
    code, _, err = run(capsys, "rerun", tmp_path / "a")
    assert code == 0 and re.search(says, err), err


@pytest.mark.parametrize(
    "text, says",
    [
        (None, "settings.toml: no such file; need the folder of a run, which has its settings.toml"),
        ("epochs = 3\n", "has no table [run]"),
        ("[run]\ncommand = 'predict'\n", "is of the command 'predict'"),
        ("run = 3\n", "is of the command None"),
        ("epochs = 0\n[run]\ncommand = 'fit'\n", "settings.toml: epochs = 0: must be a whole number of at least 1"),
        ("epochs = 1\n[run]\ncommand = 'fit'\n", "Missing argument 'DATA'"),
        ("data = 'x'\n[run]\ncommand = 'fit'\n[run.digests]\nmodel = 'a'\n", "cannot be read"),
        ("epochs = \n", "is not TOML"),
        ("data = 'x'\n[run]\ncommand = 'fit'\nout = \"a\\u0000\"\n", "must be the name of a file or folder"),
        ("data = 'x'\n[run]\ncommand = 'fit'\nout = '/'\n[run.digests]\nmodel = 'a'\n", "cannot be read"),
    ],
)
def test_what_is_no_run(capsys, tmp_path, text, says):
    (tmp_path / "a").mkdir()
    if text is not None:
        (tmp_path / "a" / "settings.toml").write_text(text)
    code, out, err = run(capsys, "rerun", tmp_path / "a")
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1, err


def test_a_folder_has_a_digest(tmp_path):
    """Of its idx files, packed or not; other files do not count."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(b"one")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"two"))
    first = digest(folder)
    (folder / "notes.txt").write_text("x")
    assert digest(folder) == first
    shutil.copy(folder / "train-images-idx3-ubyte", folder / "t10k-images-idx3-ubyte")
    assert digest(folder) != first
    (folder / "t10k-images-idx3-ubyte").unlink()
    (folder / "train-images-idx3-ubyte").write_bytes(b"oNe")
    assert digest(folder) != first


def test_an_adapter_in_a_folder_has_a_digest(tmp_path):
    """Of the two files that PEFT writes."""
    for name in ("adapter_model.safetensors", "adapter_config.json", "README.md"):
        (tmp_path / name).write_text(name)
    first = digest(tmp_path)
    (tmp_path / "README.md").write_text("x")
    assert digest(tmp_path) == first
    (tmp_path / "adapter_model.safetensors").write_text("x")
    assert digest(tmp_path) != first


def test_no_run_is_without_the_digests_of_its_data(capsys, tmp_path, monkeypatch):
    """Data that were read once and cannot be read again for their digest: an error before the training."""
    data = flowers(tmp_path / "t.csv")

    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(input_digest, "digest", broken)
    before = sorted(os.listdir(tmp_path))
    code, out, err = run(capsys, "fit", data, "--epochs", 1, "--out", tmp_path / "a")
    assert (code, out, err) == (2, "", f"gradloom: {data}: cannot be read: input/output error\n")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_regression_is_repeated(capsys, tmp_path):
    fitted(capsys, houses(tmp_path / "t.csv"), "--target", "price", "--epochs", 2, "--out", tmp_path / "a")
    assert run(capsys, "rerun", tmp_path / "a", "--out", tmp_path / "b")[0] == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_an_adapter_that_was_replaced(capsys, tmp_path, language):  # noqa: F811
    """A run from a copy of the adapter that it began with is repeated; without one it is not."""
    options = ("--context", 32, "--steps", 1, "--lr", 0.1, "--out", tmp_path / "a.gguf")
    assert run(capsys, "finetune", *language, *options)[0] == 0
    shutil.copy(tmp_path / "a.gguf", tmp_path / "first.gguf")
    assert run(capsys, "finetune", *language, *options, "--lora", tmp_path / "a.gguf")[0] == 0
    code, _, err = run(capsys, "rerun", tmp_path / "a.run")
    assert code == 2 and "a.gguf: the run has written over the adapter that it began with; need a copy" in err, err
    file = tmp_path / "a.run" / "settings.toml"
    file.write_text(re.sub('(lora = ".*/)a.gguf"', r'\1first.gguf"', file.read_text()))
    assert run(capsys, "rerun", tmp_path / "a.run")[0] == 0
    assert (tmp_path / "a-again.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()


@pytest.mark.parametrize("out", ["a.gguf", "peft", "full.gguf"])
def test_a_fine_tuning_is_repeated(capsys, tmp_path, language, out):  # noqa: F811
    """The bytes of the adapter, in both formats, and of the model."""
    method = ("--method", "full") if out == "full.gguf" else ("--dropout", 0.1, "--targets", "attn_q,attn_v")
    options = ("--context", 32, "--steps", 3, "--lr", 0.01, "--optimizer", "lion", "--freeze", "*.0.*", "--max-norm", 1)
    code, _, err = run(capsys, "finetune", *language, *method, *options, "--out", tmp_path / out)
    assert code == 0, err
    folder = (tmp_path / out).with_suffix(".run")
    code, _, err = run(capsys, "rerun", folder, "--out", tmp_path / out)
    assert code == 2 and "is the place of the repeated run" in err, err
    code, _, err = run(capsys, "rerun", folder)
    assert code == 0, err
    again = tmp_path / f"{(tmp_path / out).stem}-again{(tmp_path / out).suffix}"
    if out == "peft":
        assert {p.name: p.read_bytes() for p in again.iterdir()} == {
            p.name: p.read_bytes() for p in (tmp_path / out).iterdir()
        }
    else:
        assert again.read_bytes() == (tmp_path / out).read_bytes()


@pytest.mark.slow
def test_a_run_that_went_on_with_another_precision(capsys, tmp_path):
    out = tmp_path / "a"
    words = ("--epochs", 40, "--patience", 0, "--out", out)
    assert run(capsys, "fit", flowers(tmp_path / "t.csv"), *words, "--stop-after", "0.01s")[0] == 0
    code, _, err = run(capsys, "fit", "--out", out, "--resume", "--precision", "bf16")
    assert code == 0 and "precision is bf16 and was f32" in err
    told = json.loads((out / "run.json").read_text())["went_on"]
    assert len(told) == 1 and re.fullmatch("from step [0-9]+: precision is bf16 and was f32(; .*)?", told[0])
    code, _, err = run(capsys, "rerun", out)
    assert code == 0 and f"the same bits are not promised: the run went on {told[0]}" in err
