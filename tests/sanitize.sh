#!/usr/bin/env bash
# Builds the core with sanitizers, in trees of their own under build/, and runs its tests there.
#   tests/sanitize.sh [address|thread]...     both by default
# address: AddressSanitizer and UndefinedBehaviorSanitizer; a poisoned run also marks dead arena ranges as forbidden.
# thread: ThreadSanitizer over the machine, its pool and kernels of several parts, and over a short form of the loads of
# tests/run/test_threads.py; with the scalar kernels, which divide their work as the others do.
set -euo pipefail
. "$(dirname "$0")/core_tree.sh"
compiler=${CXX:-c++}
[ $# -gt 0 ] || set -- address thread

for kind in "$@"; do
  case $kind in
    address) options=-DGRADLOOM_SANITIZE=address,undefined; library=libasan.so; what="-n 2 tests/core tests/eager/test_dlpack.py" ;;
    thread) options="-DGRADLOOM_SANITIZE=thread -DGRADLOOM_SCALAR=ON"; library=libtsan.so
            what="tests/core/test_vm.py tests/core/test_threads.py tests/run/test_threads.py" ;;
    *) echo "sanitize.sh: $kind: need address or thread" >&2; exit 2 ;;
  esac
  tree=build/sanitize-$kind
  echo "== $kind: build"
  # shellcheck disable=SC2086
  build_core "$tree" $options
  echo "== $kind: tests"
  # The libraries come first in the process, as each demands. Python itself keeps memory until it ends.
  preload=$("$compiler" -print-file-name=$library)
  [ "$kind" = address ] && preload="$preload $("$compiler" -print-file-name=libstdc++.so)"
  (
    cd "$tree"
    echo "race:dl_deallocate_tls" >tsan.supp  # glibc frees the locals of an ended thread, after a wait that is not instrumented
    export LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 \
           UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:suppressions=$PWD/tsan.supp
    export STRESS_SECONDS="${STRESS_SECONDS:-12}"
    # Processes of their own would find the core by themselves, and signals wait in such a build: tested without
    # sanitizers.
    # shellcheck disable=SC2086
    run_pytest -k "not process and not children and not workers and not handler and not pytorch" $what
  )
done
