"""Samples per second of dp_train: one replica and two, of one thread each, on a compute-bound model.

python bench/dp.py                             one process
mpiexec -n 1 python bench/dp.py --steps 100    the same over processes
mpiexec -n 2 python bench/dp.py --steps 100

The model is the 784-500-10 MLP, a sample 500 rows. 1.0 is one replica; the machine's own limit, multiply-adds on two
cores against one, is measured beside it.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from common import fma_peak, table

import gradloom as gl
from gradloom.parallel import launched

ROWS, SAMPLES = 500, 16


def model() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(784, 500, activation="relu"), gl.nn.Linear(500, 10))


def rate(samples: list, replicas: int | None, steps: int) -> tuple[float, bool]:
    """Samples per second, compiling not counted; and whether this process is the one that prints."""
    seconds = []
    for iterations in (1, 1 + steps):
        result = gl.dp_train(
            model,
            samples,
            loss_fn=gl.ops.cross_entropy,
            replicas=replicas,
            iterations=iterations,
            optimizer=gl.optim.AdamW(lr=1e-3),
            threads=1,
        )
        seconds.append(result.seconds)
    return steps * result.replicas / (seconds[1] - seconds[0]), result.is_root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2])
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    samples = [
        (rng.random((ROWS, 784), dtype=np.float32), rng.integers(0, 10, ROWS)) for _ in range(SAMPLES)
    ]  # fmt: skip
    ranks = launched(otherwise=0)
    kinds: list[int | None] = [None] if ranks else list(args.replicas)
    found: dict[int | None, list[float]] = {kind: [] for kind in kinds}
    limits = []
    for _ in range(args.repeats):  # in turns: the machine changes
        for kind in kinds:
            speed, root = rate(samples, kind, args.steps)
            found[kind].append(speed)
        if not ranks:
            limits.append(fma_peak(2) / fma_peak(1))
    best = {kind: statistics.median(values) for kind, values in found.items()}
    if not root:
        return
    lines = []
    for kind, speed in best.items():
        name = f"mpiexec -n {ranks}" if kind is None else f"{kind} replica" + "s" * (kind > 1)
        flops = speed * ROWS * (4 * 784 * 500 + 6 * 500 * 10) / 1e9  # the first layer needs no gradient of x
        lines.append((name, f"{speed:.1f}", f"{speed / best[kinds[0]]:.2f}", f"{flops:.0f}"))
    table(lines, ("784-500-10, AdamW, 500 rows a sample", "samples/s", "ratio", "GFLOP/s"))
    if limits:
        print(f"multiply-adds in registers, two cores against one: {statistics.median(limits):.2f}")


if __name__ == "__main__":
    main()
