# Sourced by tests/sanitize.sh and tests/faults.sh: the core built with options of its own in a tree of its own under
# build/, and pytest run on that core. Sets PYTHON, and puts the build tools of that Python on the PATH.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "${PYTHON:-}" ]; then
  if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi
PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
"$PYTHON" -m pip install --quiet 'nanobind>=2.4' cmake ninja
PATH="$(dirname "$PYTHON"):$PATH"

# build_core TREE OPTIONS...: copies the sources to TREE and builds the core there with these options of cmake.
build_core() {
  local tree=$1
  shift
  mkdir -p "$tree"
  rm -rf "$tree/src" "$tree/csrc" "$tree/tests" "$tree/examples"
  cp -R -p src csrc tests examples pyproject.toml CMakeLists.txt "$tree/"
  rm -f "$tree"/src/gradloom/_core*.so "$tree"/src/gradloom/_cells*.so
  cmake -S "$tree" -B "$tree/build" -G Ninja -DGRADLOOM_INPLACE=ON "-DPython_EXECUTABLE=$PYTHON" "$@" \
        >"$tree/cmake.log" || { cat "$tree/cmake.log"; exit 1; }
  ninja -C "$tree/build" >"$tree/ninja.log" || { cat "$tree/ninja.log"; exit 1; }
}

# run_pytest OPTIONS...: pytest in the current folder, a tree of build_core, on that tree's core.
run_pytest() {
  export PYTHONPATH="$PWD/src"  # of processes that tests start
  export OPENBLAS_NUM_THREADS=1  # its threads are not built for a sanitizer, and its allocations are not ours
  # An editable install would hide this tree's own core: take its finder out, and make sure.
  "$PYTHON" - "$@" <<'PYTEST'
import os
import sys
from pathlib import Path

sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path[:0] = [str(Path("src").resolve()), ""]
from gradloom import _core

assert Path(_core.__file__).resolve().is_relative_to(Path.cwd()), f"{_core.__file__} is not the core of this tree"
assert _core.FAULTS == (os.environ.get("FAULTS") == "all"), f"{_core.__file__} is not built for these tests"
import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
PYTEST
}
