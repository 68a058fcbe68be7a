#!/usr/bin/env bash
# Sets up .venv and passes the tests: formatter, linter, types, the whole suite.
#   ./run_tests.sh           what a change needs
#   ./run_tests.sh --full    also: PyTorch as the oracle, ranks under mpiexec, the suite under each switch, sanitizer builds of the core, its allocations failing
#   ./run_tests.sh --client  llama.cpp loads what we write (builds the package llama-cpp-python: some minutes)
# The environment variable PYTHON chooses the interpreter (python3 by default).
set -euo pipefail
cd "$(dirname "$0")"
full=false
[ "${1:-}" = "--full" ] && full=true

[ -d .venv ] || "${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --upgrade pip
extras=test,dev
$full && extras+=,mpi
.venv/bin/pip install --quiet -e ".[$extras]"
$full && .venv/bin/pip install --quiet torch==2.13.0
py=.venv/bin/python

if [ "${1:-}" = "--client" ]; then
  .venv/bin/pip install --quiet -e '.[client]'
  exec $py -m pytest -q -s tests/client
fi

echo "== format, lint, types"
.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy

echo "== tests"
jobs=$($py -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
$py -m pytest -q -n "$jobs"

if $full; then
  # One suite, many configurations: plans and kernels must not care.
  for switch in GRADLOOM_REUSE=0 GRADLOOM_INPLACE=0 GRADLOOM_FUSE=0 GRADLOOM_POISON=1 GRADLOOM_CHECK=2 \
                GRADLOOM_ISA=scalar GRADLOOM_DEBUG=4; do
    echo "== tests with $switch"
    env "$switch" $py -m pytest -q -n "$jobs" tests/train tests/nn tests/optim tests/golden tests/eager/test_random_scripts.py 2>.ci-debug.log || { tail -50 .ci-debug.log; exit 1; }
  done
  rm -f .ci-debug.log
  bash tests/sanitize.sh
  echo "== allocations that fail"
  bash tests/faults.sh -k native
fi
