#!/usr/bin/env bash
# Sets up .venv and passes the tests: formatter, linter, types, the tests. Prints the seconds of each section.
#   ./run_tests.sh           what a change needs; of the tests a sample (tests/quick.py)
#   ./run_tests.sh --full    all tests; also: PyTorch as the oracle, ranks under mpiexec, the suite under switches, sanitizer builds of the core, its allocations failing
#   ./run_tests.sh --long    some hours: 100 000 fuzzed inputs of each kind, 10 000 random gradients, 20 minutes of threads, every fault of the system, the suite under each switch
#   ./run_tests.sh --client  llama.cpp loads what we write, and we what its converter writes (builds the package llama-cpp-python: some minutes)
# The environment variable PYTHON chooses the interpreter (python3 by default).
set -euo pipefail
cd "$(dirname "$0")"
mode=${1:-}
case $mode in
  "" | --full | --long | --client) ;;
  *) echo "run_tests.sh: $mode: need --full, --long, --client or nothing" >&2; exit 2 ;;
esac
py=.venv/bin/python
unset PYTHONDONTWRITEBYTECODE  # what Python compiles is kept: hundreds of processes load it

failed=
section() {  # NAME COMMAND...; one that fails does not keep the others from being run; its failed tests are named again at the end
  local name=$1 begin=$SECONDS code log=.ci-section.log
  shift
  echo "== $name"
  set +e
  (set -e; "$@") 2>&1 | tee $log
  code=${PIPESTATUS[0]}
  set -e
  [ "$code" = 0 ] || failed+="  $name"$'\n'$(grep -aE '^(FAILED|ERROR) |EXCEEDED$' $log | cut -c 1-300 | sed 's/^/    /' || true)$'\n'
  rm -f $log
  echo "== $name: $((SECONDS - begin)) s"
}

set_up() {
  local python=${PYTHON:-python3} is_new='import sys; sys.exit(sys.version_info < (3, 10))'
  if [ ! -e .venv ]; then
    "$python" -c "$is_new" || { echo "run_tests.sh: $python is no Python 3.10 or newer: name one by the environment variable PYTHON" >&2; exit 2; }
    "$python" -m venv .venv
  fi
  .venv/bin/python -c "$is_new" || { echo "run_tests.sh: .venv has no Python 3.10 or newer: remove it (rm -r .venv) and start again" >&2; exit 2; }
  .venv/bin/pip install --quiet --upgrade pip
  local extras=test,dev
  [ "$mode" = --full ] && extras+=,mpi,plot,tensorboard,gpu,sklearn,parquet,browser,docs,onnx
  [ "$mode" = --client ] && extras+=,client
  .venv/bin/pip install --quiet -e ".[$extras]"
  case $mode in
    --full | --long) .venv/bin/pip install --quiet torch==2.13.0 transformers==5.24.0 trl==1.16.0 peft==0.21.2 pandas polars onnxruntime ;;
    --client) .venv/bin/pip install --quiet torch==2.13.0 transformers==5.24.0 sentencepiece==0.2.3 ;;
  esac
}

llama_cpp_source() {  # llama.cpp's converter, from the source of the installed llama-cpp-python; without it its tests are skipped
  local version name inside folder=$PWD/.llama-cpp
  version=$($py -c 'from importlib.metadata import version; print(version("llama-cpp-python"))')
  name=llama_cpp_python-$version inside=vendor/llama.cpp
  export LLAMA_CPP_SOURCE=$folder/$name/$inside
  [ ! -d "$LLAMA_CPP_SOURCE/conversion" ] || return 0
  if .venv/bin/pip download --quiet --no-deps --no-binary llama-cpp-python -d "$folder" "llama-cpp-python==$version" &&
     tar -xzf "$folder/$name.tar.gz" -C "$folder" "$name/$inside/"{convert_hf_to_gguf.py,gguf-py,conversion}; then
    rm "$folder/$name.tar.gz"
  else
    echo "the source of llama-cpp-python $version is not available: tests of llama.cpp's converter are skipped"
    unset LLAMA_CPP_SOURCE
  fi
}

software_gpu() {  # an adapter in software, where it may be installed: from then on the tests of the GPU fail without one
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && timeout 300 apt-get update -qq &&
     DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq mesa-vulkan-drivers libvulkan1; then
    export GRADLOOM_NEED_GPU=1
  else
    echo "cannot be installed here: without an adapter the tests of the GPU are skipped"
  fi
}

browser() {  # Chromium for the tests of pages, where it may be installed: from then on they fail without one
  if command -v chromedriver >/dev/null && { command -v chromium || command -v google-chrome; } >/dev/null ||
     { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && timeout 300 apt-get update -qq &&
       DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq chromium chromium-driver; }; then
    export GRADLOOM_NEED_BROWSER=1
  else
    echo "cannot be installed here: without chromium the tests of pages in a browser are skipped"
  fi
}

lint() {
  .venv/bin/ruff format --check .
  .venv/bin/ruff check .
  .venv/bin/mypy  # examples/ as with --strict
}

suite() {  # OPTIONS...: the tests, with the linter beside them, of which most is one process
  local code=0
  lint >.ci-lint.log 2>&1 &
  $py -m pytest -q -n $((jobs + 1)) "$@" || code=1  # one process more than there are cores: some wait for the processes that they test
  wait $! || code=1
  cat .ci-lint.log
  rm .ci-lint.log
  return $code
}

under_switches() {  # one suite, many configurations: plans and kernels must not care; kills and the capsules of all ops are tested without switches alone
  env "$@" $py -m pytest -q -n "$jobs" -k "not kill and not of_all_ops" tests/train tests/runs tests/nn tests/optim tests/golden tests/eager/test_random_scripts.py \
    2>.ci-debug.log || { tail -50 .ci-debug.log; exit 1; }
  rm -f .ci-debug.log
}

echo "== set up"
if [ "$mode" = --full ]; then
  set_up &  # pip beside apt-get: both wait for downloads
  software_gpu
  browser
  wait $!
else
  set_up
fi
echo "== set up: $SECONDS s"
jobs=$($py -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')

case $mode in
  --client)
    llama_cpp_source
    section "llama.cpp" $py -m pytest -q -s tests/client
    ;;
  --long)
    export PYTEST_ADDOPTS="-o faulthandler_timeout=0"  # one test may take hours
    section "fuzzed files" env FUZZ_CASES=100000 $py -m pytest -q -s -n "$jobs" \
      tests/fuzz/test_saved_models.py tests/fuzz/test_tables.py tests/fuzz/test_gguf.py
    section "fuzzed templates" env FUZZ_CASES=100000 $py -m pytest -q -s tests/fuzz/test_templates.py
    section "renamed and reordered tables" env IDENTITY_CASES=20000 $py -m pytest -q -n "$jobs" tests/fuzz/test_run_identity.py
    section "fuzzed control tokens" env FUZZ_CASES=10000 $py -m pytest -q tests/llm/test_control_text.py -k random
    section "fuzzed contents" $py -m tests.fuzz.contents --count 100000
    section "fuzzed checkpoints" $py -m tests.fuzz.checkpoints --count 100000
    section "fuzzed folders of runs" $py -m tests.fuzz.run_folders --count 20000
    section "kernels of GPUs" env GRADLOOM_GPU_ALL=1 $py -m pytest -q tests/gpu/test_kernels.py tests/gpu/test_deep.py
    section "placements on devices" env GRADLOOM_GPU_ALL=1 $py -m pytest -q tests/plan/test_placements.py \
      tests/gpu/test_scheduled.py
    section "random metrics" env METRIC_CASES=20000 $py -m pytest -q -n "$jobs" tests/metrics/test_metrics.py -k many_random
    section "random gradients" $py -m tests.graph.random_gradients --count 10000 --first 1000
    section "threads and forks" env STRESS_SECONDS=1200 $py -m pytest -q tests/run/test_threads.py
    section "faults of the system" bash tests/faults.sh
    for switch in GRADLOOM_REUSE=0 GRADLOOM_INPLACE=0 GRADLOOM_FUSE=0 GRADLOOM_POISON=1 GRADLOOM_CHECK=2 \
                  GRADLOOM_ISA=scalar GRADLOOM_DEBUG=4; do
      section "tests with $switch" under_switches "$switch"
    done
    ;;
  *)
    if [ "$mode" = --full ]; then
      section "tests, format, lint, types" suite
    else
      section "tests, format, lint, types" suite --quick
    fi
    ;;
esac

if [ "$mode" = --full ]; then
  # Several at once, for time: --long has each alone.
  section "tests of programs as they are written, with scalar kernels" under_switches \
    GRADLOOM_REUSE=0 GRADLOOM_INPLACE=0 GRADLOOM_FUSE=0 GRADLOOM_ISA=scalar GRADLOOM_DEBUG=4
  section "tests with guarded memory" under_switches GRADLOOM_POISON=1 GRADLOOM_CHECK=2
  section "sanitizers" bash tests/sanitize.sh
  section "allocations that fail" bash tests/faults.sh -k native
fi

if [ -n "$failed" ]; then
  printf 'FAILED:\n%s' "$failed"
  exit 1
fi
