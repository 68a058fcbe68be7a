"""Configuring a build: a compiler that is missing, broken or old is named, and the next build looks for it anew; a disk
without room for the build is named with the room that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("cmake", "ninja", "c++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs cmake, ninja and a compiler"),
]


def configured(folder: Path, *defined: str, **env: str) -> tuple[int, str]:
    command = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *(defined or ("-DGRADLOOM_MODULES=OFF",))]
    clean = {name: value for name, value in os.environ.items() if name not in ("CXX", "CXXFLAGS")}
    done = subprocess.run(command, env=clean | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, " ".join(done.stdout.split())


def test_a_build_after_one_without_a_compiler(tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text(f'#!/bin/sh\nexec {shutil.which("c++")} -D__GNUC__=7 -Wno-builtin-macro-redefined "$@"\n')
    old.chmod(0o755)
    build = tmp_path / "build"
    code, text = configured(build, CXX="/bin/false")
    names = "gradloom: the C++ compiler /bin/false (of the environment variable CXX, or of this Python) does not work"
    assert code and f"{names}; need one" in text
    code, text = configured(build, CXX=str(old))
    if "GNU 7" in text:  # else the compiler is no GCC
        assert code and "gradloom: the C++ compiler is GNU 7" in text and "need version 11 or newer for C++20" in text
    code, text = configured(build)
    assert code == 0 and "Configuring done" in text, text


@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="needs the headers of this interpreter"
)
def test_a_disk_without_room_for_a_build(tmp_path: Path) -> None:
    build, temporary = tmp_path / "build", tmp_path / "temporary"
    temporary.mkdir()
    python, far_more = f"-DPython_EXECUTABLE={sys.executable}", "-DGRADLOOM_SPACE=1000000000"
    code, text = configured(build, python, far_more, TMPDIR=str(temporary))
    refusal = (
        rf"gradloom: \d+ MB are free on the disk of {re.escape(str(build))}, where the build is; need 1000000000 MB: "
    )
    assert code and re.search(refusal, text), text
    small = Path("/dev/shm")
    free, room = (shutil.disk_usage(place).free // 1_000_000 for place in (small, tmp_path))
    if free < room - 2000:  # what others write meanwhile changes both
        between = f"-DGRADLOOM_SPACE={(free + room) // 2}"
        code, text = configured(build, python, between, TMPDIR=str(small))
        assert code and re.search(r"gradloom: \d+ MB are free on the disk of /dev/shm, where .* TMPDIR", text), text
    code, text = configured(build, python, "-DGRADLOOM_SPACE=100", TMPDIR=str(temporary))
    assert "MB are free" not in text, text
