"""Errors of writing: each number of the system has its own remedy."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import gradloom as gl
from gradloom.base.reasons import unreadable, unwritten
from gradloom.files.atomic import atomic_write
from tests import processes

DIGITS = str(Path(__file__).parents[2] / "examples" / "data" / "digits.npz")
REMEDIES = {
    "ENOSPC": "free some space or choose another place",
    "EDQUOT": "free some space of your quota or choose another place",
    "EFBIG": "raise the limit of the size of a file (`ulimit -f`), or choose a file system that takes larger files",
    "EROFS": "choose another place",
    "EACCES": "choose another place",
    "ENAMETOOLONG": "choose a shorter name",
    "EMFILE": "raise the limit of open files (`ulimit -n`)",
    "ENFILE": "too many in the whole system: end other programs",
    "EIO": "choose another place",
}


@pytest.mark.parametrize("name", REMEDIES)
def test_each_number_has_its_remedy(name: str, tmp_path: Path) -> None:
    number = getattr(errno, name)
    error = OSError(number, os.strerror(number))
    line = f"cannot be written: {os.strerror(number).lower()}; {REMEDIES[name]}"
    assert unwritten(error) == line
    with pytest.raises(gl.FileError, match="no part of it is left behind") as raised, atomic_write(tmp_path / "x"):
        raise error
    assert str(raised.value).endswith(f"; {REMEDIES[name]}") and list(tmp_path.iterdir()) == []
    kept = "" if REMEDIES[name] == "choose another place" else f"; {REMEDIES[name]}"
    assert unreadable(error) == f"cannot be read: {os.strerror(number).lower()}{kept}"


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="limits of Linux")
@pytest.mark.parametrize(
    ("limit", "number", "remedy"),
    [("ulimit -f 4", errno.EFBIG, "ulimit -f"), ("ulimit -n 6", errno.EMFILE, "ulimit -n")],
)
def test_a_command_under_a_limit_of_the_shell(tmp_path: Path, limit: str, number: int, remedy: str) -> None:
    command = (
        f'{limit} && exec "{sys.executable}" -m gradloom fit {DIGITS} --epochs 1 --ensemble 1 --out {tmp_path}/run'
    )
    # no bytecode: Python keeps a file of it that the limit has cut off, and fails to read it from then on
    env = processes.environment(PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and f": {os.strerror(number).lower()}" in last and f"(`{remedy}`)" in last, done.stderr
    assert "free some space" not in done.stderr and "Traceback" not in done.stderr
