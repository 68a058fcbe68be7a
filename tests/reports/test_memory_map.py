"""Memory maps: rectangles against the proved bytecode, phases against the graph, sizes in the page."""

from __future__ import annotations

import base64
import json
import random
import re
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.settings import Switches
from gradloom.plan.bytecode import ARG_WRITE
from gradloom.plan.memory import aligned
from gradloom.plan.memory_map import WORKSPACE, MemoryMap, memory_maps
from gradloom.plan.phases import BACKWARD, FORWARD, PHASES, UPDATE
from gradloom.plan.plan import Plan, make_plan
from gradloom.reports.memory_map import LARGEST, figure, stored_table
from gradloom.reports.page import Section, page
from gradloom.transform.passes import rewrite
from gradloom.transform.program import gather
from tests.plan.devices import DEVICES, ended, schedule_of
from tests.plan.programs import PROGRAMS, needs, parameter, planned, scalars
from tests.plan.random_graphs import build
from tests.plan.test_properties import RECIPES, TRAIN, examples
from tests.plan.test_recomputed import deep, plan_of

ARENA = 0  # segment


def check_map(one: MemoryMap, plan: Plan) -> None:
    steps = len(plan.order.steps)
    end = one.offset + one.bytes
    for i in range(len(one.first)):
        meets = (one.first[:i] <= one.last[i]) & (one.last[:i] >= one.first[i])
        overlaps = meets & (one.offset[:i] < end[i]) & (end[:i] > one.offset[i])
        assert not overlaps.any(), f"rectangle {i} overlaps {np.flatnonzero(overlaps)}"
    assert max(map(aligned, end.tolist()), default=0) == plan.placement.arena_bytes
    assert (one.first <= one.last).all() and (one.last <= steps).all() and (one.first < steps).all()
    places = {(f, o): i for i, (f, o) in enumerate(zip(one.first.tolist(), one.offset.tolist(), strict=True))}
    written, readers, empty = set(), [set() for _ in one.first], set()
    for step, instruction in enumerate(plan.bytecode.instructions):
        begin = int(instruction["arg_first"])
        for arg in plan.bytecode.args[begin : begin + int(instruction["arg_count"])]:
            low, size = int(arg["offset"]), int(arg["bytes"])
            if not size:
                empty.add(step)  # its node may read an empty view of a buffer
            if arg["segment"] != ARENA or not size:
                continue
            if arg["flags"] & ARG_WRITE:
                i = places[step, low]
                assert one.bytes[i] == size
                written.add(i)
                continue
            alive = (one.first < step) & (one.last >= step - 1) & (one.offset <= low) & (low + size <= end)
            handed = {o for f, o in places if f == step}  # in place: its rectangle ends at the step before
            found = [i for i in np.flatnonzero(alive) if one.last[i] >= step or int(one.offset[i]) in handed]
            assert len(found) == 1, f"step {step} reads {low}+{size}, which {len(found)} rectangles hold"
            readers[found[0]].add(step)
    buffers = {i for i, spec in enumerate(one.spec) if one.specs[spec] != WORKSPACE}
    assert written == set(range(len(one.first)))  # workspaces are arguments, too
    for i in buffers:
        named = set(one.readers[one.reader_starts[i] : one.reader_starts[i + 1]].tolist())
        assert readers[i] <= named and named - readers[i] <= empty


def only(plan: Plan) -> MemoryMap:
    (one,) = memory_maps(plan)
    return one


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("switches", [{}, {"reuse": False}, {"inplace": False}])
def test_rectangles_are_those_of_the_bytecode(name: str, switches: dict[str, bool]) -> None:
    plan = planned(name, **switches)
    check_map(only(plan), plan)


@examples(25)
@given(RECIPES, TRAIN)
def test_rectangles_of_random_plans(recipe: list[int], train: int) -> None:
    made = build(recipe, train)
    plan = gl.compile(made.outputs, made.updates, threads=1).plan
    check_map(only(plan), plan)


def test_a_moved_rectangle_is_found() -> None:
    plan = planned("mlp")
    one = only(plan)
    one.offset[3] += 64
    with pytest.raises((AssertionError, KeyError)):
        check_map(one, plan)


def test_most_bytes_are_alive_at_the_lower_bound() -> None:
    one = only(planned("mlp"))
    assert 0 <= one.lower_bound_bytes - one.alive.max() < 64 * len(one.first)


def phase_of(plan: Plan, op: str) -> set[int]:
    one = only(plan)
    return {int(p) for p, node in zip(one.phase, plan.order.steps, strict=True) if node.op.name == op}


def test_phases_of_a_training_step() -> None:
    plan = planned("mlp")
    assert phase_of(plan, "cross_entropy_sum") == {FORWARD} == phase_of(plan, "argmax")
    assert phase_of(plan, "guard") == {UPDATE} == phase_of(plan, "adamw") | phase_of(plan, "accumulate")
    assert phase_of(plan, "matmul_act") == {FORWARD} and phase_of(plan, "matmul") | phase_of(
        plan, "matmul_relu_back"
    ) == {BACKWARD}
    assert set(only(plan).phase.tolist()) == {FORWARD, BACKWARD, UPDATE}


def test_the_weight_of_a_loss_is_forward() -> None:
    """Also where nothing but the guard reads it."""
    w, x, rows = parameter("w", 5), gl.input("x", (5,)), gl.input("rows", (5,))
    loss, weight = ops.sum(ops.sqr(w * x)), ops.sum(ops.tanh(rows))
    (g,) = gl.gradients(loss, [w])
    norm = ops.guard(loss, weight, g)
    new = ops.sgd(*scalars("lr", "momentum", "decay", "weight"), w, g, None)
    plan = make_plan(rewrite(gather([loss, norm], new)), needs, Switches())
    assert phase_of(plan, "tanh") == {FORWARD}


def test_a_gradient_of_a_gradient_is_backward() -> None:
    plan = planned("attention")
    again = plan.laid.layouts[plan.laid.program.outputs[2]].base.node
    assert only(plan).phase[plan.order.steps.index(again)] == BACKWARD


def test_phases_without_guard_and_updates() -> None:
    net, x = nn.Sequential(nn.Linear(5, 7, activation="relu"), nn.Linear(7, 3)), gl.input("x", (4, 5))
    net.ensure_init(0)
    logits = net(x)
    loss = ops.mean(ops.sqr(logits))
    forward = only(gl.compile([loss, logits]).plan)
    assert set(forward.phase.tolist()) == {FORWARD}
    both = only(gl.compile([loss, *gl.gradients(loss, list(net.parameters()))]).plan)
    assert set(both.phase.tolist()) == {FORWARD, BACKWARD}
    steps = len(forward.phase)
    assert set(both.phase[: steps - 1].tolist()) == {FORWARD} and set(both.phase[steps + 1 :].tolist()) == {BACKWARD}


def test_nodes_computed_again() -> None:
    program = deep(12)
    whole = plan_of(program)
    assert not only(whole).again.any()
    net_budget = whole.peak_bytes * 8 // 10
    run = gl.compile(program.outputs, program.effects, memory=net_budget, threads=1)
    one = only(run.plan)
    check_map(one, run.plan)
    assert run.plan.budget == net_budget and 0 < one.again.sum() <= run.plan.recomputed.nodes
    assert set(one.phase[one.again].tolist()) == {BACKWARD}
    facts = figure(one, "").facts
    assert facts["budget"] == net_budget - run.plan.bytecode.scratch_bytes * run.plan.threads


def test_a_schedule_has_a_map_for_each_device() -> None:
    rng = np.random.default_rng(0)
    weights = [gl.parameter(rng.normal(size=(6, 6)), f"w{k}") for k in range(4)]
    h = gl.input("x", (8, 6))
    for w in weights:
        h = ops.tanh(h @ w)
    outputs, updates = ended(h, gl.input("labels", (8,), "i32"), weights)
    draw = random.Random(1)
    schedule = schedule_of(outputs, updates, lambda i, node: draw.choice(DEVICES))
    maps = memory_maps(schedule)
    assert [one.device for one in maps] == list(schedule.parts) and len(maps) == 2
    for one in maps:
        check_map(one, schedule.parts[one.device].plan)
    assert {int(p) for one in maps for p in one.phase} == {FORWARD, BACKWARD, UPDATE}
    steps = {one.device: schedule.parts[one.device].plan.order.steps for one in maps}
    guards = [one.phase[k] for one in maps for k, node in enumerate(steps[one.device]) if node.op.guard]
    assert guards and set(guards) == {UPDATE}


def test_the_table_holds_the_largest_buffers() -> None:
    plan = planned("mlp")
    one = only(plan)
    table = figure(one, "").table
    sizes = [row[3] for row in table.rows]
    assert sizes == sorted(one.bytes.tolist(), reverse=True)[:LARGEST] and len(table.rows) == len(one.first)
    named = {row[0]: row for row in table.rows}
    assert any(row[8].startswith("programs.py:") for row in named.values())
    assert {row[6] for row in table.rows} <= set(PHASES)
    stored = stored_table(one)
    assert ("w1", "f32[5,7]", "trained", 140) in stored.rows and len(stored.rows) == len(plan.bytecode.stored)


def large(layers: int) -> Plan:
    h = gl.input("x", (16, 24))
    for k in range(layers):
        with gl.scope(f"block.{k}"):
            w = gl.parameter(np.full((24, 24), 0.01, np.float32), f"block.{k}.weight")
            h = h + ops.gelu(ops.rms_norm(h) @ w)
    loss = ops.mean(ops.sqr(h))
    weights = [n.outputs[0] for n in gl.compile(loss).program.nodes if n.op.name == "parameter"]
    plan: Plan = gl.compile([loss, *gl.gradients(loss, weights)]).plan
    return plan


def embedded(text: str) -> list[dict[str, Any]]:
    """The data of each figure, as a script of the page sees them."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)
    return [json.loads(one) for one in found]


def test_a_rectangle_takes_few_bytes_and_arrays_are_whole() -> None:
    one = only(large(60))
    text = page("t", [Section("s", figures=[figure(one, "map")])])
    (data,) = embedded(text)
    packed = sum(len(array["data"]) for array in data["arrays"].values())
    assert len(one.first) > 400 and packed / len(one.first) <= 40
    array = data["arrays"]["bytes"]
    planes = np.frombuffer(zlib.decompress(base64.b64decode(array["data"])), np.uint8).reshape(array["size"], -1)
    assert (planes.T.copy().view("<u4").reshape(-1) == one.bytes).all()
    names = json.loads(zlib.decompress(base64.b64decode(data["arrays"]["names"]["data"])))
    assert any("block.59" in name for name in names)
