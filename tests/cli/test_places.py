"""Commands and the places of their outputs: links, kills, folders that vanish, terminals that close."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import sys
import termios
from pathlib import Path

import pytest

from gradloom.cli.model import load_model
from tests import processes
from tests.cli.test_outputs import (  # noqa: F401
    DIGITS,
    ENV,
    FILES,
    belong_together,
    content,
    good,
    language,
    one_thread,
    run,
    start,
    table,
    wait_for_epoch,
)

LONG = "漢" * 76 + ".gguf"
SMALL = ("--context", 32, "--steps", 1, "--val-split", 0)


def linked(out, store, name):
    """A run, one of whose files or folders is a link to where it was moved."""
    good(out)
    store.mkdir()
    (out / name).rename(store / name)
    (out / name).symlink_to(store / name)


# -- links -------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from gradloom.cli.main import main
honest, calls = os.replace, 0
def replace(*names, **folders):
    global calls
    calls += 1
    if calls == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    honest(*names, **folders)
os.replace = replace
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_run_that_is_killed_as_it_replaces_an_older_one(capsys, tmp_path):
    """Before each of its moves: those of the run's files, the commit file's, those of the change."""
    out = tmp_path / "out"
    good(out)
    old = belong_together(out)
    for moves in range(1, 50):
        words = ["fit", DIGITS, "--epochs", 1, "--hidden", 4, "--seed", moves, "--out", out, "--overwrite"]
        job = processes.start([sys.executable, "-c", KILLED, moves, *words], env=ENV)
        job.communicate(timeout=100)
        assert job.returncode in (0, -signal.SIGKILL)
        assert run(capsys, "predict", out, DIGITS)[0] == 0
        now = belong_together(out)
        assert now["seed"] in (moves, old["seed"])
        old = now
        if job.returncode == 0:
            break
    assert now["seed"] == moves > 5
    assert sorted(os.listdir(out)) == FILES


@pytest.mark.parametrize("name", ["model.safetensors", "result.json", "settings.toml", "checkpoints", "run.json"])
def test_a_link_in_the_folder_is_refused(capsys, tmp_path, name):
    """Before a step, and nothing is changed; the folder itself may be a link."""
    linked(tmp_path / "out", tmp_path / "store", name)
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    code, _, err = run(capsys, "fit", DIGITS, "--epochs", 1, "--out", tmp_path / "out", "--overwrite")
    assert code == 2 and f"{tmp_path / 'out' / name}: is a symbolic link" in err and err.count("\n") == 1, err
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before
    (tmp_path / "out" / name).unlink()
    (tmp_path / "link").symlink_to("out")
    code, _, err = run(capsys, "fit", DIGITS, "--epochs", 1, "--hidden", 4, "--out", tmp_path / "link", "--overwrite")
    assert code == 0 and (tmp_path / "link").is_symlink(), err


# -- names and inputs --------------------------------------------------------------------------------------------------


def test_long_names(capsys, tmp_path, language):  # noqa: F811
    adapter, merged = (tmp_path / f"{word}{LONG}" for word in "ab")
    table_out = (tmp_path / f"c{LONG}").with_suffix(".csv")
    assert run(capsys, "finetune", *language, *SMALL, "--out", adapter)[0] == 0
    assert run(capsys, "merge", language[0], adapter, "-o", merged)[0] == 0
    good(tmp_path / "out")
    assert run(capsys, "predict", tmp_path / "out", DIGITS, "--out", table_out)[0] == 0
    names = {"out", adapter.name, adapter.with_suffix(".run").name, merged.name, table_out.name}
    assert {*os.listdir(tmp_path)} == names


def test_what_belongs_to_an_input_is_not_replaced(capsys, tmp_path, language, monkeypatch):  # noqa: F811
    model, adapter = tmp_path / "out", tmp_path / "adapter"
    good(model)
    assert run(capsys, "finetune", *language, *SMALL, "--out", adapter)[0] == 0
    before = content(model), content(adapter)
    weights = adapter / "adapter_model.safetensors"
    monkeypatch.chdir(model)
    for command in (
        ["predict", model, DIGITS, "--out", model / "result.json"],
        ["predict", model / "model.safetensors", DIGITS, "--out", model / "result.json"],
        ["predict", "model.safetensors", DIGITS, "--out", "result.json"],
        ["merge", language[0], weights, "--out", adapter / "adapter_config.json"],
    ):
        code, _, err = run(capsys, *command)
        assert code == 2 and "is the same file as" in err and len(err.splitlines()) == 1, (command, err)
    assert (content(model), content(adapter)) == before


def test_a_model_that_is_not_there(capsys, tmp_path):
    assert (
        run(capsys, "predict", tmp_path / "us", DIGITS)[2] == f"gradloom: {tmp_path / 'us'}: no such file or folder\n"
    )


@pytest.mark.slow
def test_a_working_directory_that_is_gone(tmp_path):
    good(tmp_path / "out")
    (tmp_path / "gone").mkdir()
    code = "import os, sys; os.rmdir('../gone'); from gradloom.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for words in (["fit", DIGITS], ["predict", tmp_path / "out", DIGITS, "--out", "p.csv"]):
        (tmp_path / "gone").mkdir(exist_ok=True)
        job = processes.start([sys.executable, "-c", code, *words], env=ENV, cwd=tmp_path / "gone")
        err = job.communicate(timeout=60)[1]
        assert job.returncode == 2 and err.startswith("gradloom: working directory: does not exist any more; "), err


# -- what happens while a run lives ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_that_is_removed_is_made_again(tmp_path, language):  # noqa: F811
    for command, out in (
        (["fit", DIGITS], "out"), (["finetune", *language, "--context", 32], "adapter"),
        (["finetune", *language, "--context", 32], "new/a.gguf"),
    ):  # fmt: skip
        job = start(*command, "--epochs", 100000, "--out", tmp_path / out)
        wait_for_epoch(job, 2)
        shutil.rmtree(tmp_path / Path(out).parts[0])
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=60)
        assert job.returncode == 143 and "Traceback" not in err, err
    assert belong_together(tmp_path / "out")["ending"] == "interrupted" and load_model(tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "adapter")) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sorted(os.listdir(tmp_path / "new")) == ["a.gguf", "a.run"]


@pytest.mark.parametrize("what", ["fit", "fit --json", "finetune"])
@pytest.mark.slow
def test_a_terminal_that_is_closed(tmp_path, language, what):  # noqa: F811
    """SIGHUP, and streams that fail from then on."""
    given = [*language, "--context", 32] if what == "finetune" else [DIGITS]
    words = [*what.split(), *given, "--epochs", 100000, "--out", tmp_path / "out"]
    terminal, end = pty.openpty()
    streams = {"stdin": end, "stdout": end, "stderr": end}
    job = start(*words, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY), **streams)
    os.close(end)
    shown = b""
    while not re.search(rb"epoch (?!1/)\d+/", shown):
        assert select.select([terminal], [], [], 60)[0], shown
        shown += os.read(terminal, 10000)
    os.close(terminal)
    assert job.wait(timeout=60) == 129
    if what == "finetune":
        assert sorted(os.listdir(tmp_path / "out")) == ["adapter_config.json", "adapter_model.safetensors"]
    else:
        assert belong_together(tmp_path / "out")["interrupted"] is True
