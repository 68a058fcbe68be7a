"""The command's edge: what inputs do to Python itself is one line and exit code 2; faults of ours show themselves."""

import json
import os
import subprocess
import sys

import pytest

import gradloom
from gradloom.cli.common import json_text
from gradloom.cli.main import main
from gradloom.data import read_table
from tests import processes
from tests.json_checks import ANY


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    return tmp_path


def refused(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.startswith("gradloom: ") and err.count("\n") == 1 and len(err) < 2100
    return err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "memory: not enough; need smaller data, a smaller model or smaller batches"),
        (MemoryError("Unable to allocate 9 TiB"), "memory: not enough (Unable to allocate 9 TiB); need smaller data"),
        (RecursionError("maximum depth"), "input: nested too deeply (maximum depth); need a flatter one"),
        (OverflowError("int too large"), "input: a number is too large (int too large); need a smaller one"),
        (OSError(5, "Input/output error", "x.csv"), "x.csv: input/output error"),
        (OSError("what"), "input or output: what"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            "input or output: a text that cannot be converted ('utf-8' ",
        ),
    ],
)
def test_what_inputs_do_to_python(capsys, monkeypatch, table, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("gradloom.data.read_table", fail)
    assert f"gradloom: {message}" in refused(capsys, "fit", "t.csv")
    assert os.listdir() == ["t.csv"]


@pytest.mark.parametrize("error", [TypeError, AssertionError, KeyError, IndexError, ValueError, ZeroDivisionError])
def test_faults_of_ours_show_themselves(monkeypatch, table, error):
    def fail(*_, **__):
        raise error("ours")

    monkeypatch.setattr("gradloom.data.read_table", fail)
    with pytest.raises(error, match="ours"):
        main(["fit", "t.csv"])


@pytest.mark.parametrize("digits", [20, 400, 4000, 5000])
@pytest.mark.parametrize(
    "option", ["--epochs", "--batch-size", "--micro-batch-size", "--threads", "--seed", "--hidden"]
)
def test_numbers_of_many_digits(capsys, table, option, digits):
    err = refused(capsys, "fit", "t.csv", option, "9" * digits)
    assert option in err and ("must be" in err or "is not a valid integer" in err)
    assert os.listdir() == ["t.csv"]


def test_layers_that_memory_does_not_hold(capsys, table):
    for widths in ("2147483647", "100000000,1000000", ",".join(["100000"] * 9)):
        assert "parameters need" in refused(capsys, "fit", "t.csv", "--hidden", widths)
    assert os.listdir() == ["t.csv"]


def test_names_that_are_too_long(capsys, table):
    unseen = "no such file or folder" if sys.version_info >= (3, 14) else "file name too long"  # by pathlib
    assert unseen in refused(capsys, "fit", "a" * 300 + ".csv")
    assert "name too long" in refused(capsys, "predict", "a" * 300 + ".safetensors", "t.csv")


@pytest.mark.slow
def test_names_that_are_no_utf8(table):
    """File names are bytes: such a table is trained on, predicted and printed, and its result is JSON."""
    os.rename("t.csv", b"\xff.csv")

    def run(*arguments):
        done = subprocess.run([sys.executable, "-m", "gradloom", *arguments], capture_output=True, env=ENV)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
        return done.stdout

    out = run("fit", b"\xff.csv", "--epochs", "1", "--out", b"o\xff")
    assert b"saved" in out and b"o\xff/model.safetensors" in out
    out = run("fit", b"\xff.csv", "--epochs", "1", "--out", b"o\xff", "--json")
    assert os.fsencode(json.loads(out)["data"]) == b"\xff.csv"
    assert (
        os.fsencode(json.loads((table / os.fsdecode(b"o\xff") / "result.json").read_text())["model"])
        == b"o\xff/model.safetensors"
    )
    assert len(json.loads(run("predict", b"o\xff", b"\xff.csv", "--json"))["predictions"]) == 40


ENV = processes.environment(GRADLOOM_THREADS="1")


def test_json_of_any_text():
    value = {"a": "é\udcff", "b": None}
    text = json_text(ANY, value)
    assert text == '{"schema": "test/1", "a": "é\\udcff", "b": null}' and json.loads(text)["a"] == "é\udcff"


def test_what_training_saves_can_be_read_again(table):
    """What the reader of models would refuse is refused before the training."""
    rows = "".join(f"{'é' * 32_000}{i % 90},{i % 2}\n" for i in range(180))
    (table / "t.csv").write_text("a,y\n" + rows)
    with pytest.raises(
        gradloom.DataError, match=r"t.csv: names, texts and classes take .* characters; need fewer or sho"
    ):
        read_table(table / "t.csv", test_split=0)
