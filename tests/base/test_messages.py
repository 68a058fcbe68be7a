"""Messages about a run go to stderr, or to the handlers of a program."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.messages import log
from tests.cli.command import run
from tests.cli.test_fit import flowers

X, Y = np.eye(4, dtype=np.float32), np.arange(4, dtype=np.int32)


def train(folder: Path) -> None:
    net = gl.nn.Linear(4, 4).init(0)
    gl.fit(net, (X, Y), epochs=1, run=folder, resume=True, progress=False)


def test_messages_go_to_stderr_and_have_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path)
    assert "there is no checkpoint to resume from; the run starts anew\n" in capsys.readouterr().err
    train(tmp_path)
    assert "this run has finished, after 1 step; more epochs continue it\n" in capsys.readouterr().err
    log.setLevel(logging.WARNING)
    try:
        train(tmp_path)
    finally:
        log.setLevel(logging.INFO)
    assert capsys.readouterr().err == ""


def test_a_program_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[logging.LogRecord] = []
    own = logging.Handler()
    monkeypatch.setattr(own, "emit", records.append)
    monkeypatch.setattr(log, "handlers", [own])
    train(tmp_path)
    assert capsys.readouterr().err == ""
    assert [one.levelname for one in records] == ["WARNING"] and "the run starts anew" in records[0].getMessage()


@pytest.mark.parametrize(("given", "level"), [("", logging.INFO), ("log.setLevel(40)", logging.ERROR)])
def test_handlers_and_levels_that_are_set_before_the_import_stay(given: str, level: int) -> None:
    code = (
        f"import logging; log = logging.getLogger('gradloom'); log.addHandler(logging.NullHandler()); {given}\n"
        "import gradloom.base.messages; print(len(log.handlers), log.propagate, log.level)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", str(level)]


def test_quiet_hides_messages_below_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = flowers(tmp_path / "t.csv")
    given = ("fit", data, "--epochs", 1, "--ensemble", 1, "--out", tmp_path / "out", "--quiet")
    assert run(capsys, *given)[0] == 0
    code, _, err = run(capsys, *given, "--resume")
    assert code == 0 and "has finished" not in err
    code, _, err = run(capsys, *given[:-1], "--resume")
    assert code == 0 and "this run has finished" in err
