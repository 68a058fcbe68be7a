"""Microseconds per step of the eager loop: a 4-32-3 MLP at batch 32, AdamW, one thread, beside PyTorch (fused AdamW).

python bench/eager.py [--steps N] [--blocks N] [--no-peers] [--profile]

The blocks of both alternate; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from common import peer, pin, table

ROWS, BATCH = 32_000, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    args = parser.parse_args()
    pin(1)
    step = eager_step()
    for i in range(args.steps):
        step(i)
    if args.profile:
        profile(step, args.steps)
        return
    import gradloom as gl

    before = gl.stats()
    ours, theirs = [], []
    for _ in range(args.blocks):
        began = time.perf_counter()
        for i in range(args.steps):
            step(i)
        ours.append((time.perf_counter() - began) / args.steps * 1e6)
        found = None if args.no_peers else peer("tiny", "torch-fused", 1, blocks=1)
        if found:
            theirs.append(found["seconds_per_step"] * 1e6)
    compiled = gl.stats().compiled - before.compiled
    mine = statistics.median(ours)
    lines = [("gradloom eager", f"{mine:.1f}", f"{min(ours):.1f}", "1.00")]
    if theirs:
        other = statistics.median(theirs)
        lines.append(("torch eager, fused AdamW", f"{other:.1f}", f"{min(theirs):.1f}", f"{other / mine:.2f}"))
    table(lines, (f"1 thread, {args.steps} steps x {args.blocks}", "us/step", "least", "ratio"))
    print(f"programs compiled while it was timed: {compiled}")


def eager_step() -> Callable[[int], None]:
    import gradloom as gl

    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, 4), dtype=np.float32), rng.integers(0, 3, ROWS)
    model = gl.nn.Sequential(gl.nn.Linear(4, 32, activation="relu"), gl.nn.Linear(32, 3))
    opt = gl.optim.AdamW(model.parameters(), lr=1e-3)
    batches = ROWS // BATCH

    def step(i: int) -> None:
        at = i % batches * BATCH
        with gl.grad_tape() as tape:
            loss = gl.ops.cross_entropy(model(gl.tensor(x[at : at + BATCH])), gl.tensor(y[at : at + BATCH]))
        opt.step(tape.backward(loss))

    return step


def profile(step: Callable[[int], None], steps: int) -> None:
    import cProfile
    import pstats

    run = cProfile.Profile()
    run.enable()
    for i in range(steps):
        step(i)
    run.disable()
    pstats.Stats(run).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
