#!/usr/bin/env bash
# Builds the core with sanitizers, in trees of their own under build/, and runs its tests there.
#   tests/sanitize.sh [address|thread]...     both by default
# address: AddressSanitizer and UndefinedBehaviorSanitizer; a poisoned run also marks dead arena ranges as forbidden.
# thread: ThreadSanitizer over the machine, its pool and kernels of several parts, and over a short form of the loads of
# tests/run/test_threads.py.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
  if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi
PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
"$PYTHON" -m pip install --quiet 'nanobind>=2.4' cmake ninja
bin=$(dirname "$PYTHON")
PATH="$bin:$PATH"
compiler=${CXX:-c++}
[ $# -gt 0 ] || set -- address thread

for kind in "$@"; do
  case $kind in
    address) flags=address,undefined; library=libasan.so; what="-n 2 tests/core" ;;
    thread) flags=thread; library=libtsan.so
            what="tests/core/test_vm.py tests/core/test_threads.py tests/run/test_threads.py" ;;
    *) echo "sanitize.sh: $kind: need address or thread" >&2; exit 2 ;;
  esac
  tree=build/sanitize-$kind
  mkdir -p "$tree"
  rm -rf "$tree/gradloom" "$tree/csrc" "$tree/tests" "$tree/examples"
  cp -R -p gradloom csrc tests examples pyproject.toml CMakeLists.txt "$tree/"
  rm -f "$tree"/gradloom/_core*.so
  echo "== $kind: build"
  cmake -S "$tree" -B "$tree/build" -G Ninja -DGRADLOOM_INPLACE=ON "-DGRADLOOM_SANITIZE=$flags" \
        "-DPython_EXECUTABLE=$PYTHON" >"$tree/cmake.log" || { cat "$tree/cmake.log"; exit 1; }
  ninja -C "$tree/build" >"$tree/ninja.log" || { cat "$tree/ninja.log"; exit 1; }
  echo "== $kind: tests"
  # The libraries come first in the process, as each demands. Python itself keeps memory until it ends.
  preload=$("$compiler" -print-file-name=$library)
  [ "$kind" = address ] && preload="$preload $("$compiler" -print-file-name=libstdc++.so)"
  (
    cd "$tree"
    export LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 \
           UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
    export OPENBLAS_NUM_THREADS=1  # its threads are not built for a sanitizer
    export STRESS_SECONDS="${STRESS_SECONDS:-12}"
    # An editable install would hide this tree's own core: take its finder out, and make sure.
    # shellcheck disable=SC2086
    "$PYTHON" - $what <<'PYTEST'
import sys
from pathlib import Path

sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, "")
from gradloom import _core

assert Path(_core.__file__).resolve().is_relative_to(Path.cwd()), f"{_core.__file__} is not the sanitized core"
import pytest

# Processes of their own would find the core by themselves, and signals wait in such a build: tested without sanitizers.
alone = "not process and not children and not workers and not handler"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", alone, *sys.argv[1:]]))
PYTEST
  )
done
