"""The Vec<T> vocabulary, lane by lane: tests/csrc/simd_check.cpp, compiled as the kernels are."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.core.harness import isas

SOURCE = Path(__file__).resolve().parent.parent / "csrc" / "simd_check.cpp"
FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
}
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("isa", isas())
def test_every_operation(isa, tmp_path):
    program = tmp_path / "simd_check"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    flags += [*FLAGS[isa], f"-DGL_ISA={isa}", f"-DGL_ISA_{isa.upper()}=1"]
    built = subprocess.run([COMPILER, *flags, str(SOURCE), "-o", str(program)], capture_output=True, text=True)
    assert built.returncode == 0 and not built.stderr, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
