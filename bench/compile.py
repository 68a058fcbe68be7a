"""What the first training step of a deep MLP costs before it runs: building, planning and proving it, in milliseconds
of the processor per instruction, and its growth from 1 000 to 10 000 instructions. Beside it, where they are installed,
the seconds of the first step of JAX (jit) and torch.compile, at the smallest size only: deep ones take them minutes.

python bench/compile.py [--no-peers] [--layers 2 25 250 2500] [--repeats 3] [--profile]
python bench/compile.py --within 0.5 [--layers 250 2500]

--within SHARE: the seconds that gl.compile takes to find a plan within this share of the bytes of the plan without a
budget, recomputation and proofs included, for a chain of tanh and products with SGD.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
from common import peer, pin, table

WIDTH, BATCH = 8, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 25, 250, 2500])
    parser.add_argument("--repeats", type=int, default=3, help="of each size; the least time counts")
    parser.add_argument("--profile", action="store_true", help="where the time of the last goes, by function")
    parser.add_argument("--within", type=float, metavar="SHARE", help="of the bytes of a plan without a budget")
    args = parser.parse_args()
    pin(1)
    if args.within:
        rows = [within(layers, args.within) for layers in args.layers]
        table(rows, ("layers", "instructions", "MiB", "MiB within", "compile s", "within s", "time of a step"))
        return
    lines, costs = [], []
    for layers in args.layers:
        runs = [first_step(layers, args.profile and layers == args.layers[-1]) for _ in range(args.repeats)]
        seconds, busy, instructions = min(runs, key=lambda run: run[1])
        costs.append((instructions, busy / instructions * 1e3))
        others = peers(layers, args.no_peers or layers > min(args.layers))
        lines.append((layers, instructions, f"{seconds:.3f}", f"{busy:.3f}", f"{costs[-1][1]:.3f}", *others))
    table(lines, ("layers", "instructions", "seconds", "user seconds", "ms/instruction", "jax s", "torch.compile s"))
    large = [cost for cost in costs if cost[0] >= 1000]
    if len(large) > 1:
        (few, before), (many, after) = large[0], large[-1]
        print(f"an instruction of {many} costs {after / before:.2f} times one of {few}")


def first_step(layers: int, profile: bool) -> tuple[float, float, int]:
    """(seconds and user seconds from the model to the end of its first step, instructions of that step's program)."""
    import gradloom as gl

    rng = np.random.default_rng(0)
    x, y = rng.random((BATCH, WIDTH), dtype=np.float32), rng.integers(0, WIDTH, BATCH)
    warm = gl.Trainer(gl.nn.Sequential(gl.nn.Linear(WIDTH, WIDTH)), threads=1)
    warm.step(x, y)
    began, busy = time.perf_counter(), user_seconds()
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
    seconds, busy = time.perf_counter() - began, user_seconds() - busy
    return seconds, busy, len(trainer.plans[0].order.steps)


def within(layers: int, share: float) -> tuple[object, ...]:
    """A row of the table: compiling without and with a budget."""
    import gradloom as gl

    rng = np.random.default_rng(0)
    x = gl.input("x", (BATCH * 64, WIDTH * 8))
    weights = [gl.parameter(rng.standard_normal((WIDTH * 8, WIDTH * 8), np.float32), "w") for _ in range(layers)]
    y = x
    for w in weights:
        y = gl.ops.tanh(y @ w)
    loss = gl.ops.mean(gl.ops.sqr(y))
    state = [gl.parameter(np.zeros(w.shape, np.float32), "m") for w in weights]
    groups = [v for group in zip(weights, gl.gradients(loss, weights), state, strict=True) for v in group]
    updates = gl.ops.sgd(gl.constant(0.01), gl.constant(0.9), gl.constant(0.0), gl.constant(1.0), *groups)
    began = time.perf_counter()
    whole = gl.compile([loss], updates=list(updates), threads=1).plan
    took = time.perf_counter() - began
    began = time.perf_counter()
    plan = gl.compile([loss], updates=list(updates), threads=1, memory=int(share * whole.peak_bytes)).plan
    mib = f"{whole.peak_bytes / 2**20:.1f}", f"{plan.peak_bytes / 2**20:.1f}"
    seconds = f"{took:.2f}", f"{time.perf_counter() - began:.2f}"
    return layers, len(plan.order.steps), *mib, *seconds, f"x{1 + plan.recomputed.overhead:.2f}"


def user_seconds() -> float:
    """Of this process; other load on the machine changes it less than the clock."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def peers(layers: int, left_out: bool) -> list[str]:
    names = ("jax", "torch-compile")
    timed = [None if left_out else peer("deep", name, 1, 0, "--layers", str(layers)) for name in names]
    return [f"{one['first_seconds']:.2f}" if one else "-" for one in timed]


if __name__ == "__main__":
    main()
