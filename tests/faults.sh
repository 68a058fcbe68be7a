#!/usr/bin/env bash
# Fault injection, in the manner of SQLite: builds the core so that its allocations can be made to fail, in a tree of its
# own under build/, and lets every call fail that fit, finetune and merge make to the system for their files and memory:
# once, from there on, by a full disk, by a write cut short, by the end of the process. Some minutes.
#   tests/faults.sh [pytest's options]     such as -k peft
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
  if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi
PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
"$PYTHON" -m pip install --quiet 'nanobind>=2.4' cmake ninja
PATH="$(dirname "$PYTHON"):$PATH"
tree=build/faults
mkdir -p "$tree"
rm -rf "$tree/gradloom" "$tree/csrc" "$tree/tests" "$tree/examples"
cp -R -p gradloom csrc tests examples pyproject.toml CMakeLists.txt "$tree/"
rm -f "$tree"/gradloom/_core*.so
echo "== build"
# The scalar kernels are enough: none of them allocates.
cmake -S "$tree" -B "$tree/build" -G Ninja -DGRADLOOM_INPLACE=ON -DGRADLOOM_FAULTS=ON -DGL_COMPILES_AVX2=OFF \
      -DGL_COMPILES_AVX512=OFF "-DPython_EXECUTABLE=$PYTHON" >"$tree/cmake.log" || { cat "$tree/cmake.log"; exit 1; }
ninja -C "$tree/build" >"$tree/ninja.log" || { cat "$tree/ninja.log"; exit 1; }
${CXX:-c++} -std=c++20 -O1 -shared -fPIC -o "$tree/faults.so" tests/faults/faults.cpp -ldl
echo "== tests"
cd "$tree"
export FAULTS=all OPENBLAS_NUM_THREADS=1
LD_PRELOAD="$PWD/faults.so" "$PYTHON" - "$@" <<'PYTEST'
import sys
from pathlib import Path

# An editable install would hide this tree's own core.
sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, "")
from gradloom import _core

assert Path(_core.__file__).resolve().is_relative_to(Path.cwd()) and _core.FAULTS, f"{_core.__file__} is not the core"
import pytest

sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", "tests/faults", *sys.argv[1:]]))
PYTEST
