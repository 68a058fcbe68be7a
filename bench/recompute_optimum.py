"""Time of the values that are computed again under a memory budget, against the least of all choices, on small random
graphs.

    python bench/recompute_optimum.py [--graphs 50] [--nodes 12] [--budgets 6] [--seed 0] [--all]

Each graph has 5 to --nodes values that can be computed again, which saves a tenth of its memory or more. All sets of
them are tried, each value across its longest pause and with the inputs that its clone needs, from the fastest on, until
the exact plan of one is within the budget. Budgets are evenly spaced from the least that gradloom finds to the plan
without one. Shown are quotients of predicted time: of the step, and of the clones alone where the best choice has some.
--all plans all sets, and shows how far the least budget that gradloom finds is from that of the best set. The aim is
5 % of the step's time, in the mean.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from common import table


class Choice(NamedTuple):
    """Seconds that clones add, and the clones as gradloom.transform.recompute takes them."""

    cost: float
    until: dict[Any, int]


class Found(NamedTuple):
    """At one budget: seconds of the step without clones, and those that clones add: gradloom's, the least."""

    whole: float
    ours: float
    best: float


def random_program(rng: np.random.Generator) -> Any:
    """Loss and gradients of 1 to 4 random layers of 8 to 64 columns, with branches."""
    import gradloom as gl
    from gradloom import ops
    from gradloom.transform.passes import rewrite
    from gradloom.transform.program import gather

    weights: list[Any] = []

    def dense(x: Any, width: int) -> Any:
        weights.append(gl.parameter(np.zeros((x.shape[1], width), np.float32), f"w{len(weights)}"))
        return x @ weights[-1]

    widths = (8, 16, 32, 64)
    values = [dense(gl.input("x", (64, 16)), int(rng.choice(widths)))]
    for _ in range(rng.integers(1, 5)):
        a = values[int(rng.integers(max(0, len(values) - 3), len(values)))]
        width, kind = int(rng.choice(widths)), rng.integers(5)
        b = next(v for v in values[::-1] if v.shape == a.shape)
        made = [
            lambda a=a, width=width: dense(ops.tanh(a), width),
            lambda a=a, b=b: ops.tanh(a * b) + a,
            lambda a=a: ops.softmax(a),
            lambda a=a, width=width: dense(ops.rms_norm(ops.sigmoid(a)), width),
            lambda a=a: ops.layer_norm(ops.sin(a)) * a,
        ][kind]()
        values.append(made)
    loss = ops.sum(ops.sqr(values[-1]))
    for one in values[-3:-1]:
        loss = loss + ops.sum(ops.sqr(one))
    return rewrite(gather([loss, *(g for g in gl.gradients(loss, weights) if g is not None)]))


def budget_of(program: Any) -> Any:
    from gradloom.base.settings import Switches
    from gradloom.plan.bytecode import KernelNeeds
    from gradloom.plan.plan import make_plan
    from gradloom.plan.recomputed import Budget
    from gradloom.run.cost import TYPICAL, node_seconds

    def plan_of(made: Any) -> Any:
        return make_plan(made, lambda node, args: KernelNeeds(), Switches())

    return Budget(program, plan_of, lambda node: node_seconds(node, TYPICAL))


def cloneable(budget: Any) -> list[Any]:
    """The values that `choose` may take."""
    return [one for one in budget.lives.lives if one.free and one.bytes and one.pause()[1] - one.pause()[0] > 1]


def choices(budget: Any) -> list[Choice]:
    """Of all sets of clones, the fastest first."""
    lives, free, found = budget.lives, cloneable(budget), {}
    for n in range(len(free) + 1):
        for chosen in itertools.combinations(free, n):
            lives.reset()
            for one in chosen:
                if one.split is None:
                    lives.clone(one)
            until = lives.until()
            found[frozenset(until.items())] = Choice(lives.cost, until)
    return sorted(found.values(), key=lambda one: one.cost)


def peaks(budget: Any, tries: list[Choice]) -> Iterator[tuple[Choice, int]]:
    """Each choice with the bytes of its exact plan."""
    from gradloom.plan.layout import lay_out
    from gradloom.plan.memory import place
    from gradloom.plan.order import linear_order
    from gradloom.transform.recompute import recompute

    for one in tries:
        laid = lay_out(recompute(budget.program, one.until))
        yield one, place(laid, linear_order(laid)).arena_bytes


def compared(budget: Any, tries: list[Choice], count: int) -> tuple[list[Found], int]:
    """(gradloom's choice and the best at each of `count` budgets; the number of choices that were planned)"""
    least, whole = budget.smallest[1].peak_bytes, budget.whole.peak_bytes
    left = {int(least + (whole - least) * k / count) for k in range(count)}
    at = {bytes: budget.within(bytes)[1].recomputed.overhead * budget.lives.seconds for bytes in left}
    found, planned = [], 0
    for one, peak in peaks(budget, tries):
        planned += 1
        for bytes in [b for b in left if peak <= b]:
            left.remove(bytes)
            found.append(Found(budget.lives.seconds, at[bytes], one.cost))
        if not left:
            return found, planned
    return [*found, *(Found(budget.lives.seconds, at[b], at[b]) for b in left)], planned


def drawn(count: int, nodes: int, seed: int) -> Iterator[Any]:
    """Random graphs, `count` of them, with 5 to `nodes` values that can be computed again, where that saves a tenth."""
    for k in itertools.count():
        if not count:
            return
        budget = budget_of(random_program(np.random.default_rng((seed, k))))
        if 5 <= len(cloneable(budget)) <= nodes and budget.smallest[1].peak_bytes < 0.9 * budget.whole.peak_bytes:
            count -= 1
            yield budget


def shown(name: str, quotients: list[float]) -> tuple[str, ...]:
    q = np.array(quotients)
    numbers = (np.median(q), q.mean(), np.quantile(q, 0.95), q.max())
    return name, str(len(q)), *(f"{n:.4f}" for n in numbers), f"{(q < 1 + 1e-9).mean():.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--budgets", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    every, least, tried = list[Found](), list[float](), 0
    for budget in drawn(args.graphs, args.nodes, args.seed):
        tries = choices(budget)
        found, planned = compared(budget, tries, args.budgets)
        every += found
        tried += planned
        if args.all:
            least.append(budget.smallest[1].peak_bytes / min(peak for _, peak in peaks(budget, tries)))
    steps = [(one.whole + one.ours) / (one.whole + one.best) for one in every]
    lines = [shown("time of a step", steps)]
    lines += [shown("time of the clones", [one.ours / one.best for one in every if one.best])]
    lines += [shown("least budget", least)] if least else []
    print(f"{args.graphs} graphs, {tried} plans")
    table(lines, ("gradloom / best", "budgets", "median", "mean", "95 %", "worst", "equal"))
    return 0 if np.mean(steps) <= 1.05 else 1


if __name__ == "__main__":
    sys.exit(main())
