#!/usr/bin/env bash
# Fault injection, in the manner of SQLite: builds the core so that its allocations can be made to fail, in a tree of its
# own under build/, and lets every call fail that fit, finetune and merge make to the system for their files and memory:
# once, from there on, by a full disk, by a write cut short, by the end of the process. Some minutes.
#   tests/faults.sh [pytest's options]     such as -k peft
set -euo pipefail
. "$(dirname "$0")/core_tree.sh"
tree=build/faults
echo "== build"
# The scalar kernels are enough: none of them allocates.
build_core "$tree" -DGRADLOOM_FAULTS=ON -DGRADLOOM_SCALAR=ON
${CXX:-c++} -std=c++20 -O1 -shared -fPIC -o "$tree/faults.so" tests/faults/faults.cpp -ldl
# The processes that tests start take this tree's core, too: the finder of an editable install would hide it from them.
cat >"$tree/sitecustomize.py" <<'PYTHON'
import sys

sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
PYTHON
echo "== tests"
cd "$tree"
export FAULTS=all
LD_PRELOAD="$PWD/faults.so" run_pytest -s tests/faults "$@"
