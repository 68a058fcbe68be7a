"""Configuring a build: a compiler that is missing, broken or old is named, and the next build looks for it anew."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("cmake", "ninja", "c++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs cmake, ninja and a compiler"),
]


def configured(folder: Path, **env: str) -> tuple[int, str]:
    command = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DGRADLOOM_MODULES=OFF"]
    clean = {name: value for name, value in os.environ.items() if name not in ("CXX", "CXXFLAGS")}
    done = subprocess.run(command, env=clean | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, " ".join(done.stdout.split())


def test_a_build_after_one_without_a_compiler(tmp_path: Path) -> None:
    old = tmp_path / "g++"
    old.write_text(f'#!/bin/sh\nexec {shutil.which("c++")} -D__GNUC__=7 -Wno-builtin-macro-redefined "$@"\n')
    old.chmod(0o755)
    build = tmp_path / "build"
    code, text = configured(build, CXX="/bin/false")
    assert (
        code and "gradloom: the environment variable CXX names no C++ compiler that works: /bin/false; need one" in text
    )
    code, text = configured(build, CXX=str(old))
    if "GNU 7" in text:  # else the compiler is no GCC
        assert code and "gradloom: the C++ compiler is GNU 7" in text and "need version 11 or newer for C++20" in text
    code, text = configured(build)
    assert code == 0 and "Configuring done" in text, text
