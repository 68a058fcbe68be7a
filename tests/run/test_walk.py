"""Walks: programs run step by step find where a plan or a kernel is wrong."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.settings import switches
from gradloom.graph.opspec import REGISTRY
from gradloom.plan import plan as planning
from gradloom.plan.bytecode import ARENA
from gradloom.run.walk import Walk, distance, first_difference, judge
from gradloom.transform.passes import rewrite
from gradloom.transform.program import gather


def step(seed=0, width=8):
    """One step of AdamW on a small network: (program, feeds, settings, parameters)."""
    rng = np.random.default_rng(seed)
    x, y = gl.input("x", (6, 5)), gl.input("y", (6,), "i32")
    w1 = gl.parameter(rng.standard_normal((5, width)), "w1")
    w2 = gl.parameter(rng.standard_normal((width, 4)), "w2")
    h = gl.ops.rms_norm(gl.ops.silu(gl.ops.dropout(x @ w1, 0.2, stream=1)), gl.parameter(np.ones(width), "g"))
    loss, weight = gl.ops.cross_entropy_pair(h @ w2, y)
    grads = gl.gradients(loss, [w1, w2])
    guard = gl.ops.guard(loss, weight, *grads)
    optimizer = gl.optim.AdamW(lr=0.1)
    made = optimizer.make_state([w1, w2])
    updates = optimizer.update(gl.optim.UpdateInputs([w1, w2], grads, weight, made))
    program = rewrite(gather([loss, weight, guard], updates))
    feeds = {"x": rng.standard_normal((6, 5)).astype(np.float32), "y": rng.integers(0, 4, 6).astype(np.int32)}
    settings = optimizer.at(0, 0) | {"opt.t": 1}
    return program, feeds, settings


class Restored:
    """The stored arrays of a walk, put back after each run."""

    def __init__(self, walk):
        self.held = [(s, s.read().copy()) for s in walk.writes]

    def __call__(self):
        for stored, array in self.held:
            stored.write(array)


def unshared(program, feeds, settings):
    walk = Walk(program, switches(reuse=False, threads=1))
    restore = Restored(walk)
    walk.begin(feeds, settings)
    values = walk.run_all()
    restore()
    return walk, values, restore


def test_every_plan_of_a_program_walks_through_the_same_bits():
    program, feeds, settings = step()
    base, values, restore = unshared(program, feeds, settings)
    assert len(values) == len(base.steps) and all(values)
    assert {s.name for s in base.writes} >= {"w1", "w2"} and len(base.writes) == 6
    for options in ({}, {"inplace": False}, {"poison": True}, {"threads": 2}, {"check": 2}):
        walk = Walk(program, switches(**{"threads": 1, **options}))
        walk.begin(feeds, settings)
        assert first_difference(walk, values) is None, options
        restore()
    assert walk.plan.placement.arena_bytes < base.plan.placement.arena_bytes


def unread():
    """A program of three steps whose middle one writes two outputs that have no reader."""
    rng = np.random.default_rng(0)
    q, k, v = (gl.parameter(rng.standard_normal((1, 6, 2, 4)), name) for name in "qkv")
    positions = gl.input("positions", (1, 6), "i32")
    y, _ = gl.ops.attention(gl.ops.silu(q), k, v, positions, scale=0.5)
    (dv,) = gl.gradients(y.sum(), [v])
    program = rewrite(gather([dv * 2.0], []))
    return program, {"positions": np.arange(6, dtype=np.int32)[None]}


def test_outputs_that_nobody_reads_are_compared_before_they_are_poisoned():
    program, feeds = unread()
    base, values, _ = unshared(program, feeds, {})
    read = {v for node in base.steps for v in node.inputs}
    (back,) = [n for n in base.steps if n.op.name == "attention_back"]
    assert [v in read for v in back.outputs] == [False, False, True]
    walk = Walk(program, switches(threads=1, poison=True))
    walk.begin(feeds, {})
    found = first_difference(walk, values)
    assert found is None, found


def test_a_read_of_dead_bytes_is_named_where_it_happens(monkeypatch):
    """Bytes that the plan calls dead after a step are poisoned before the next one, which reads them here."""
    program, feeds, settings = step()
    _, values, restore = unshared(program, feeds, settings)
    monkeypatch.setattr(planning, "check", lambda *a: None)
    honest, reader = planning.lower, []

    def hasty(laid, order, calls, needs, placement, guard=0):
        bytecode, places = honest(laid, order, calls, needs, placement, guard)
        k = next(k for k, n in enumerate(order.steps) if n.op.name == "rms_norm")
        reader.append(order.steps[k])
        x = order.steps[k].inputs[0]
        bytecode.dead.append((order.steps.index(x.node), ARENA, placement.offsets[x], x.bytes))
        return bytecode, places

    monkeypatch.setattr(planning, "lower", hasty)
    for poison in (False, True):
        walk = Walk(program, switches(threads=1, poison=poison, inplace=False))
        walk.begin(feeds, settings)
        found = first_difference(walk, values)
        restore()
        assert (found is not None) == poison and (not poison or found.node is reader[-1]), found


def test_a_walk_gives_what_a_whole_run_gives():
    program, feeds, settings = step()
    base, values, restore = unshared(program, feeds, settings)
    whole = Walk(program, switches(threads=2))
    loss, weight, _ = whole(**feeds, **settings)
    assert (
        weight == 6
        and loss.tobytes() == values[[n.op.name for n in base.steps].index("cross_entropy_sum")][0].tobytes()
    )
    for k, node in enumerate(base.steps):
        if node.op.updates:
            for value, array in whole.written(k):
                assert array.tobytes() == values[k][value.index].tobytes()
    restore()


def test_a_plan_that_shares_bytes_too_early_is_named(monkeypatch):
    """The proof would refuse it; a walk finds it by what it does."""
    program, feeds, settings = step()
    _, values, restore = unshared(program, feeds, settings)
    monkeypatch.setattr(planning, "check", lambda *a: None)
    honest = planning.place

    def careless(laid, order, workspaces=(), **options):
        found = honest(laid, order, workspaces, **options)
        silu = next(n for n in order.steps if n.op.name == "matmul")
        victim, thief = silu.outputs[0], next(n for n in order.steps if n.op.name == "dropout").outputs[0]
        found.offsets[thief] = found.offsets[victim] + 64  # inside it, while it is read
        return found

    monkeypatch.setattr(planning, "place", careless)
    walk = Walk(program, switches(threads=1))
    walk.begin(feeds, settings)
    found = first_difference(walk, values)
    restore()
    assert found is not None and found.node.op.name == "dropout" and found.amount > 0.01
    assert str(found).startswith("dropout") and "of its largest number" in str(found)


def test_references_agree_node_by_node():
    program, feeds, settings = step()
    base, values, _ = unshared(program, feeds, settings)
    found = list(judge(base, values))
    assert {j.node for j in found} == set(base.steps)
    worst = max(found, key=lambda j: j.excess)
    assert worst.excess < 1 and max(j.total for j in found if not j.node.op.updates) < 1e-4
    assert max(j.own for j in found) > 0


def test_a_kernel_that_is_wrong_is_named(monkeypatch):
    """Its definition is moved instead of its code: the first node that fails is the one, not those after it."""
    program, feeds, settings = step()
    base, values, _ = unshared(program, feeds, settings)
    honest = REGISTRY["silu"].reference
    monkeypatch.setattr(REGISTRY["silu"], "reference", lambda x: honest(x) * 1.01)
    found = [j for j in judge(base, values) if j.excess > 1]
    assert [j.node.op.name for j in found] == ["silu"] and found[0].own == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_number_that_is_rounded_to_the_other_side_is_no_fault(monkeypatch, factor):
    """Attention rounds its weights. As if all of them had gone to the other side; and with a result that is 1 % off."""
    rng = np.random.default_rng(0)
    q, k, v = (gl.parameter(rng.standard_normal((1, 9, 2, 8)), name) for name in "qkv")
    y, _ = gl.ops.attention(q, k, v, gl.input("positions", (1, 9), "i32"), scale=0.3)
    program = rewrite(gather([y], []), precision="bf16")
    base, values, _ = unshared(program, {"positions": np.arange(9, dtype=np.int32)[None]}, {})
    at = next(i for i, n in enumerate(base.steps) if n.op.name == "attention")
    rounded = next(j for j in judge(base, values) if j.node is base.steps[at])
    assert rounded.excess < 1 and rounded.spread > 1e-4
    attention_ops = sys.modules["gradloom.ops.attention"]  # the package has the op by this name
    honest = attention_ops.to_bf16
    other = lambda x: np.where(honest(x) == x, x, 2 * x - honest(x))  # noqa: E731 - as far from x on the other side
    monkeypatch.setattr(attention_ops, "to_bf16", lambda x: other(x) if x.dtype == np.float64 else honest(x))
    values[at][0] = values[at][0] * np.float32(factor)
    found = next(j for j in judge(base, values) if j.node is base.steps[at])
    assert found.own > 1e-4 and (found.excess > 1) == (factor != 1)


def test_distance():
    assert distance(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5
    assert (
        distance(np.array([np.nan]), np.array([np.nan])) == 0
        and distance(np.array([np.inf]), np.array([1.0])) == np.inf
    )
    assert distance(np.zeros(0), np.zeros(0)) == 0 and distance(np.array([1e-9]), np.zeros(1)) == 1e-9
