"""Random memory budgets on six graphs: the plan is within its budget, no bit changes, the process takes no more.

    python bench/memory_budgets.py [--budgets 200] [--runs 200] [--decoder-runs 5] [--processes 10] [--only cnn,mlp]
                                   [--seed 0] [--small] [--keep FOLDER]

Graphs: LoRA (64 tokens) and full fine-tuning (4 x 256) of SmolLM2-135M's shape, a CNN with batch norm, an MLP with
dropout, a deep chain of tanh and products whose nodes have no names, and random graphs (tests/plan/random_graphs.py;
those whose memory can be reduced, five budgets each). Budgets are uniform between 0.98 of the least bytes that gradloom
finds and the bytes of the plan without a budget.

planned: programs of a budget whose plan has at most its bytes; a budget is rejected only below the least.
run: the first budgets of a graph are compiled and run (--decoder-runs: of LoRA and full): loss, gradients, updated
parameters and statistics have the bits of the program without a budget, and the plan is that of `planned`.
processes: of four large graphs and LoRA, a process of its own each: what two steps add to its resident memory, in which
the plan's arena and scratch are whole huge pages, is at most the budget and the bytes of inputs, constants and
instructions. Exit code 1 where one of these does not hold. --small: graphs that take seconds, as the tests have.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import in_a_process, table

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # examples/, tests/
MIB, HUGE = 2**20, 2 << 20
GRAPHS = ("lora", "full", "cnn", "mlp", "deep", "random")
PER_GRAPH = 5  # budgets of a random graph
OPTIONS = {"threads": 2}  # of gl.compile
TINY = {"layers": 4, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 512}


class Graph(NamedTuple):
    outputs: list[Any]
    updates: list[Any]
    feeds: dict[str, Any]


# ---- the graphs ------------------------------------------------------------------------------------------------------


def trained(loss: Any, parameters: list[Any], feeds: dict[str, Any], *more: Any) -> Graph:
    """The graph of a step of SGD with momentum behind a guard."""
    import gradloom as gl

    grads = gl.gradients(loss, parameters)
    one, none = gl.constant(1.0), gl.constant(0.0)
    norm = gl.ops.guard(loss, one, *grads)
    state = [gl.parameter(np.zeros(p.shape, np.float32), f"m{i}") for i, p in enumerate(parameters)]
    groups = [v for group in zip(parameters, grads, state, strict=True) for v in group]
    return Graph([loss, norm, *more], list(gl.ops.sgd(gl.constant(0.01), gl.constant(0.9), none, one, *groups)), feeds)


def cnn(rows: int) -> Graph:
    import gradloom as gl

    nn, rng = gl.nn, np.random.default_rng(1)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU()]
    net = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
    net.init(0)
    x, y = gl.input("x", (rows, 3, 16, 16)), gl.input("y", (rows,), "i32")
    total, weight, _ = gl.ops.cross_entropy_sum(net(x), y, None)
    feeds = {"x": rng.standard_normal(x.shape, np.float32), "y": rng.integers(0, 10, rows).astype(np.int32)}
    return trained(total / weight, list(net.parameters()), feeds)


def mlp(rows: int) -> Graph:
    import gradloom as gl

    nn, rng = gl.nn, np.random.default_rng(2)
    layers = [
        layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.1))
    ]
    net = nn.Sequential(nn.Linear(32, 128), *layers, nn.Linear(128, 10))
    net.init(0)
    x, y = gl.input("x", (rows, 32)), gl.input("y", (rows,), "i32")
    logits = net(x)
    total, weight, _ = gl.ops.cross_entropy_sum(logits, y, None)
    feeds = {"x": rng.standard_normal(x.shape, np.float32), "y": rng.integers(0, 10, rows).astype(np.int32)}
    return trained(total / weight, list(net.parameters()), feeds, gl.ops.argmax(logits, -1))


def deep(rows: int) -> Graph:
    """64 layers of widths that differ, some of which read an earlier one; nothing repeats by name or shape."""
    import gradloom as gl

    rng = np.random.default_rng(3)
    x = gl.input("x", (rows, 48))
    values, weights = [x], []
    for i in range(64):
        width = int(rng.integers(24, 96))
        sources = [values[-1]] if i % 5 else [values[-1], values[int(rng.integers(0, len(values)))]]
        total = None
        for one in sources:
            w = gl.parameter(rng.normal(0, 1.4 / np.sqrt(one.shape[1]), (one.shape[1], width)).astype(np.float32), "")
            weights.append(w)
            total = one @ w if total is None else total + one @ w
        values.append(gl.ops.tanh(total))
    loss = gl.ops.mean(gl.ops.sqr(values[-1]))
    return trained(loss, weights, {"x": rng.standard_normal(x.shape, np.float32)})


def random_graph(seed: int) -> Graph:
    from gradloom.graph.streams import fresh_streams
    from tests.plan.random_graphs import build

    rng = np.random.default_rng((4, seed))
    with fresh_streams():
        made = build([int(n) for n in rng.integers(0, 2**40, rng.integers(12, 27))], int(rng.integers(0, 4)))
    return Graph(made.outputs, made.updates, made.feeds)


def decoder(path: Path, method: str, rows: int = 1, length: int = 64) -> Graph:
    """Loss and gradients of fine-tuning a model file."""
    import gradloom as gl
    from gradloom import llm

    model, rng = llm.load(path), np.random.default_rng(5)
    adapter = llm.TrainedTensors("all") if method == "full" else llm.LoRA(rank=8, alpha=16, seed=0)
    adapter.bind(model)
    if method == "lora":
        for b in adapter.b.values():
            b.assign(rng.normal(0, 0.01, b.shape))
    ids, positions, labels = (gl.input(name, (rows, length), "i32") for name in ("ids", "positions", "labels"))
    loss, _ = model.loss_pair(model.hidden(ids, positions, adapter, training=True), labels, adapter)
    text = rng.integers(0, TINY["vocab"], (rows, length + 1)).astype(np.int32)
    feeds = {"ids": text[:, :-1].copy(), "labels": text[:, 1:].copy()}
    feeds["positions"] = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    return Graph([loss, *gl.gradients(loss, list(adapter.parameters().values()))], [], feeds)


def model_file(folder: Path, small: bool) -> Path:
    """A model of random weights, written unless it is there."""
    from examples.random_gguf import SHAPES, write_random

    path = folder / ("tiny.gguf" if small else "smollm2-135m.gguf")
    if not path.exists():
        write_random(path, **(TINY if small else SHAPES["smollm2-135m"]))
    return path


def graphs(name: str, folder: Path, small: bool, large: bool = False) -> Iterator[Graph]:
    """The graph of a name; of "random" one after the other. large: of 100 MiB and more."""
    if name == "random":
        seed = 0
        while True:
            yield random_graph(seed)
            seed += 1
    if name in ("lora", "full"):
        more = (4, 256) if large or (name == "full" and not small) else ()  # more bytes than all gradients of `full`
        yield decoder(model_file(folder, small), name, *more)
        return
    made: dict[str, tuple[Callable[[int], Graph], int, int]] = {
        "cnn": (cnn, 16, 512), "mlp": (mlp, 64, 8192), "deep": (deep, 512, 8192)
    }  # fmt: skip
    build, few, many = made[name]
    yield build(many if large else few)


# ---- plans and runs --------------------------------------------------------------------------------------------------


def plans_of(graph: Graph) -> Any:
    """The gradloom.plan.recomputed.Budget of the program that gl.compile makes."""
    import gradloom as gl
    from gradloom.plan.recomputed import Budget
    from gradloom.run.backend import backend, plan_for
    from gradloom.run.cost import TYPICAL, node_seconds

    run = gl.compile(graph.outputs, graph.updates, backend="null:cpu", **OPTIONS)
    one = backend("null:cpu", run.switches)
    return Budget(run.program, lambda made: plan_for(one, made, run.switches), lambda n: node_seconds(n, TYPICAL))


def results(graph: Graph, **options: Any) -> tuple[Any, list[bytes]]:
    """(the plan, the bytes of outputs and then of stored arrays that a step has written), which get their former values
    back."""
    import gradloom as gl

    run = gl.compile(graph.outputs, graph.updates, **OPTIONS, **options)
    written = [one for one in run.plan.bytecode.stored if one.check is None] if run.program.effects else []
    before = [one.read().copy() for one in written]
    known = {*run.inputs, *run.settings}
    try:
        found = run(**{name: value for name, value in graph.feeds.items() if name in known})
        by_name = sorted((one.name, i) for i, one in enumerate(written))
        return run.plan, [*(a.tobytes() for a in found), *(written[i].read().tobytes() for _, i in by_name)]
    finally:
        for one, array in zip(written, before, strict=True):
            one.write(array)


class Counts(NamedTuple):
    budgets: int = 0
    rejected: int = 0
    too_large: int = 0  # plans
    cloned: int = 0  # plans with clones
    run: int = 0
    differ: int = 0

    def __add__(self, other: Any) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


def tried(graph: Graph, budgets: int, runs: int, rng: np.random.Generator) -> Counts:
    """Random budgets of one graph."""
    plans = plans_of(graph)
    least, whole, count = plans.smallest[1].peak_bytes, plans.whole.peak_bytes, Counts()
    if least == whole:
        return count
    right = results(graph)[1] if runs else []
    for k in range(budgets):
        budget = max(1, int(rng.uniform(0.98 * least, whole)))
        found = plans.within(budget)
        if found is None:
            count += Counts(1, 1, too_large=int(budget >= least))
            continue
        plan = found[1]
        count += Counts(1, 0, int(plan.peak_bytes > budget), int(plan.recomputed.nodes > 0))
        if k < runs:
            compiled, got = results(graph, memory=budget)
            same = got == right and compiled.peak_bytes <= budget and compiled.recomputed == plan.recomputed
            count += Counts(run=1, differ=int(not same))
    return count


def all_of(name: str, folder: Path, args: argparse.Namespace) -> Counts:
    rng = np.random.default_rng((args.seed, GRAPHS.index(name)))
    count, runs = Counts(), args.decoder_runs if name in ("lora", "full") else args.runs
    for graph in graphs(name, folder, args.small):
        n = min(PER_GRAPH, args.budgets - count.budgets) if name == "random" else args.budgets
        if graph.outputs:
            count += tried(graph, n, max(0, runs - count.run), rng)
        if count.budgets >= args.budgets:
            break
    return count


# ---- memory of processes ---------------------------------------------------------------------------------------------


def taken(name: str, share: float, folder: Path) -> dict[str, int]:
    """In this process: bytes of the budget, of the plan, and those that two steps have added to the resident memory,
    less inputs, constants, stored arrays and the instructions of the step."""
    import gradloom as gl
    from gradloom.base import memory
    from gradloom.run.budget import STEP_BYTES

    graph = next(graphs(name, folder, small=name == "lora", large=True))
    plans = plans_of(graph)
    least, whole = plans.smallest[1].peak_bytes, plans.whole.peak_bytes
    budget = int(least + share * (whole - least))
    del plans
    for stored in gl.compile(graph.outputs, graph.updates, backend="null:cpu", **OPTIONS).plan.bytecode.stored:
        stored.read().sum()
    gc.collect()
    memory.trim()
    before = memory.resident()
    run = gl.compile(graph.outputs, graph.updates, memory=budget, **OPTIONS)
    gc.collect()
    memory.trim()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    for _ in range(2):
        run(**graph.feeds)
    plan = run.plan
    others = plan.bytecode.inputs_bytes + len(plan.bytecode.constants) + STEP_BYTES * len(plan.order.steps)
    others += sum(v.bytes for v in run.program.outputs)
    return {"budget": budget, "planned": plan.peak_bytes, "grown": memory.resident_peak() - before - others}


def in_processes(name: str, count: int, rng: np.random.Generator, folder: Path) -> tuple[int, float, float]:
    """(processes that have more, the largest quotient of growth and budget, the smallest budget in MiB)"""
    found = [in_a_process(__file__, name, str(rng.uniform(0, 1)), str(folder)) for _ in range(count)]
    more = sum(one["grown"] > one["budget"] + 2 * HUGE for one in found)
    return more, max(one["grown"] / one["budget"] for one in found), min(one["budget"] for one in found) / MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=int, default=200)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--decoder-runs", type=int, default=5)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--only", default=",".join(GRAPHS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the model files, used again when they are there")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(taken(args.work[0], float(args.work[1]), Path(args.work[2]))))
        return 0
    lines, bad = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.only.split(","):
            count = all_of(name, folder, args)
            bad += count.too_large + count.differ + (count.budgets == 0)
            line = [name, *count, "", "", ""]
            if args.processes and name not in ("full", "random"):
                model_file(folder, small=True)
                rng = np.random.default_rng((args.seed, 9, GRAPHS.index(name)))
                more, most, least = in_processes(name, args.processes, rng, folder)
                bad += more
                line[-3:] = [f"{more} of {args.processes}", f"{most:.3f}", f"{least:.1f}"]
            lines.append(tuple(line))
            print(*line, flush=True)
    heads = ("budgets", "rejected", "plan too large", "with clones", "run", "other bits")
    table(lines, ("graph", *heads, "processes with more", "growth / budget", "least budget MiB"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
