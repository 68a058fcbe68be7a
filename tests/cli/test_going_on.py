"""The line that a stopped run prints resumes it, pasted into a shell in any folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import gradloom
from gradloom.cli.common import to_paste
from tests import processes
from tests.cli.test_fit import ENV, flowers
from tests.cli.test_outputs import language  # noqa: F401
from tests.parallel.mpi import finish, needs_mpi
from tests.parallel.mpi import start as start_ranks

ODD = 'it\'s a "run" $HOME\n`x` ~ \\ \x1b é'
FIT = ("--epochs", "6", "--hidden", "4", "--batch-size", "16", "--micro-batch-size", "8")
FINETUNE = ("--context", "32", "--steps", "4", "--targets", "attn_q")


def printed(err: str) -> str:
    [line] = re.findall(r"; resume with: (.*)$", err, re.M)
    return line


def pasted(line: str, folder: Path) -> None:
    """Run a line in a shell, in another folder, where `gradloom` is a command."""
    shims = folder / "bin"
    shims.mkdir()
    (shims / "gradloom").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gradloom "$@"\n')
    (shims / "gradloom").chmod(0o755)
    where = os.pathsep.join([str(shims), os.path.dirname(sys.executable), os.environ["PATH"]])
    env = {**ENV, "PATH": where, "PYTHONPATH": str(Path(gradloom.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", line], cwd=shims, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (line, done.stderr)


def stopped(folder: Path, *words: str) -> str:
    job = processes.start([sys.executable, "-m", "gradloom", *words, "--stop-after", "0.001s"], env=ENV, cwd=folder)
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    return printed(err)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "--config"])
def test_fit(tmp_path, how):
    flowers(tmp_path / "t.csv")
    place = tmp_path / ODD
    place.mkdir()
    (tmp_path / "s.toml").write_text('data = "../t.csv"\n')
    source = ("--config", "../s.toml") if how else ("../t.csv",)
    words = ("fit", *source, *FIT, "--out")
    whole = processes.start([sys.executable, "-m", "gradloom", *words, "whole"], env=ENV, cwd=place)
    assert whole.communicate(timeout=120) and whole.returncode == 0
    line = stopped(place, *words, f"./{ODD[:9]}/out")
    pasted(line, tmp_path)
    model = "model.safetensors"
    assert (place / ODD[:9] / "out" / model).read_bytes() == (place / "whole" / model).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("run", [(), ("--run", f"its {ODD}")])
def test_finetune(tmp_path, language, run):  # noqa: F811
    model, text = (os.path.relpath(path, tmp_path / ODD) for path in language)
    place = tmp_path / ODD
    place.mkdir()
    words = ("finetune", model, text, *FINETUNE, "--out")
    whole = processes.start([sys.executable, "-m", "gradloom", *words, "whole.gguf"], env=ENV, cwd=place)
    assert whole.communicate(timeout=120) and whole.returncode == 0
    pasted(stopped(place, *words, f"{ODD}.gguf", *run), tmp_path)
    assert (place / f"{ODD}.gguf").read_bytes() == (place / "whole.gguf").read_bytes()


@needs_mpi
@pytest.mark.parametrize("exchange", [(), ("--exchange", "fast")])
@pytest.mark.slow
def test_ranks(tmp_path, exchange):
    """The line starts as many processes as there were."""
    data, out = flowers(tmp_path / "t.csv"), tmp_path / "an out"
    words = ("-m", "gradloom", "fit", data, *FIT, "--parallel", "mpi", *exchange, "--out", out)
    done = finish(start_ranks(2, *words, "--stop-after", "0.001s"), 100)
    assert done.code == 0, done
    line = printed(done.err)
    assert line.startswith("mpiexec -n 2 gradloom fit --out ") and (("--exchange fast" in line) == bool(exchange))
    pasted(line, tmp_path)
    assert '"ranks": 2' in (out / "result.json").read_text()


@pytest.mark.parametrize("word", ["a", ODD, "-x", "", "\udcff", "\u2028", "a\tb", "\x07123", "$'x'", "!1", "\u200b'\\"])
def test_a_shell_reads_what_was_written(word):
    line = to_paste(["printf", "%s", word])
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout == os.fsencode(word) and line.isprintable()


@needs_mpi
def test_processes_that_nobody_asked_to_work_together(tmp_path):
    """One line, of the first of them; nothing where mpiexec started one process, or where they do work together."""
    data = flowers(tmp_path / "t.csv")
    code = "import sys, gradloom.cli.common as c; c.join(sys.argv[1] if sys.argv[1:] else None, None)"
    hint = (
        "mpiexec started 2 processes, and each does the whole work and writes to the same place; --parallel mpi splits "
        "each batch over them\n"
    )
    for ranks, words, said in ((2, (), hint), (2, ("mpi",), ""), (1, (), "")):
        ended = finish(start_ranks(ranks, "-c", code, *words))
        assert (ended.code, ended.err) == (0, said)
    ended = finish(start_ranks(1, "-m", "gradloom", "fit", data, *FIT, "--out", tmp_path / "o"))
    assert ended.code == 0 and "mpiexec" not in ended.err
