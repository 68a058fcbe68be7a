"""Milliseconds per instruction to build, plan, prove and run the first training step of a deep MLP, beside the first
step of JAX (jit) and torch.compile, which take minutes for deep ones: they do the smallest size only.

python bench/compile.py [--no-peers] [--layers 100 200 400 800 1600] [--profile]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from common import peer, pin, table

WIDTH, BATCH = 8, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--layers", type=int, nargs="+", default=[100, 200, 400, 800, 1600])
    parser.add_argument("--profile", action="store_true", help="where the time of the last goes, by function")
    args = parser.parse_args()
    pin(1)
    lines = []
    for layers in args.layers:
        seconds, instructions = first_step(layers, args.profile and layers == args.layers[-1])
        each = f"{seconds / instructions * 1e3:.3f}"
        others = peers(layers, args.no_peers or layers > min(args.layers))
        lines.append((str(layers), str(instructions), f"{seconds:.2f}", each, *others))
    table(lines, ("layers", "instructions", "seconds", "ms/instruction", "jax s", "torch.compile s"))


def first_step(layers: int, profile: bool) -> tuple[float, int]:
    """(seconds from the model to the end of its first step, instructions of that step's program)."""
    import gradloom as gl

    rng = np.random.default_rng(0)
    x, y = rng.random((BATCH, WIDTH), dtype=np.float32), rng.integers(0, WIDTH, BATCH)
    warm = gl.Trainer(gl.nn.Sequential(gl.nn.Linear(WIDTH, WIDTH)), threads=1)
    warm.step(x, y)
    began = time.perf_counter()
    if profile:
        import cProfile

        profiler = cProfile.Profile()
        profiler.enable()
    net = gl.nn.Sequential(*(gl.nn.Linear(WIDTH, WIDTH, activation="relu") for _ in range(layers)))
    trainer = gl.Trainer(net, threads=1)
    trainer.step(x, y)
    if profile:
        import pstats

        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
    seconds = time.perf_counter() - began
    run = trainer.compiled[0].run
    return seconds, len(run.plan.order.steps)


def peers(layers: int, left_out: bool) -> list[str]:
    found = [] if left_out else [peer("deep", name, 1, 0, "--layers", str(layers)) for name in ("jax", "torch-compile")]
    return [f"{one['first_seconds']:.2f}" if one else "-" for one in found] or ["-", "-"]


if __name__ == "__main__":
    main()
