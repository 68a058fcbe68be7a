"""What the benchmarks share: the machine's limits, peers in processes of their own, tables."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "shared" / "data"  # real data beside the checkout, when there


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def median_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """Median wall time of `run` after one warm-up."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def installed(peer: str) -> bool:
    return importlib.util.find_spec("torch" if peer.startswith("torch") else "jax") is not None


def peer(work: str, name: str, threads: int, blocks: int = 5, *more: str) -> dict | None:
    """A peer's figures, or None where it is not installed."""
    if not installed(name):
        return None
    command = [sys.executable, str(HERE / "peers.py"), work, name, "--threads", str(threads), "--blocks", str(blocks)]
    command += more
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def in_a_process(script: str, *work: str) -> dict[str, int]:
    """The JSON object that `script --work WORK...` prints last, in a process of its own."""
    done = subprocess.run([sys.executable, script, "--work", *work], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps_on_request(step: Callable[[], float]) -> float:
    """Two steps to warm up, then one for each line "step" of stdin, whose seconds are printed, until "end"; the last
    loss."""
    loss = [step(), step()][-1]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        began = time.perf_counter()
        loss = step()
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
    return loss


def pin(threads: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def fma_peak(threads: int, precision: str = "f32") -> float:
    """GFLOP/s of multiply-adds in registers, of f32 or of what products of bf16 run on: what no kernel can exceed."""
    from gradloom import _core

    return (_core.fma_peak if precision == "f32" else _core.bf16_peak)(_core.isas()[0], threads)


def read_rate(threads: int) -> float:
    """GB/s read out of every cache, all threads at once: each sums the squares of 256 MiB of its own, best of five.

    One thread of BLAS each: OPENBLAS_NUM_THREADS=1 before NumPy is imported.
    """
    arrays = [np.ones(1 << 26, np.float32) for _ in range(threads)]
    took = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(6):
            began = time.perf_counter()
            list(pool.map(lambda x: x @ x, arrays))
            took.append(time.perf_counter() - began)
    return sum(x.nbytes for x in arrays) / min(took[1:]) * 1e-9


def in_precision(name: str, precision: str) -> str:
    """What a contender is called: JAX computes in f32 whatever is asked."""
    return name if precision == "f32" else f"{name}, {'f32' if name.lower().startswith('jax') else 'bf16'}"


def table(rows: list[tuple], heads: tuple[str, ...]) -> None:
    cells = [tuple(str(c) for c in row) for row in (heads, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    for k, row in enumerate(cells):
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))
        if k == 0:
            print("  ".join("-" * w for w in widths))
