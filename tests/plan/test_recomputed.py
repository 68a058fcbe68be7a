"""Recomputation under a budget: the plan is within it, no bit changes, the choice is near the best, wrong clones are
found."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.errors import BudgetError, GraphError, SettingError
from gradloom.base.settings import Switches
from gradloom.graph.graph import check_graph, view_base
from gradloom.graph.streams import fresh_streams
from gradloom.graph.value import Node, Value
from gradloom.plan.order import kernel_order
from gradloom.plan.plan import Plan, make_plan
from gradloom.plan.recomputed import Budget, Lives, choose
from gradloom.run.cost import TYPICAL, node_seconds
from gradloom.transform.passes import rewrite
from gradloom.transform.program import Program, gather
from gradloom.transform.recompute import check_recomputed, recompute
from tests.plan.programs import PROGRAMS, interpret, needs, planned
from tests.plan.random_graphs import build
from tests.plan.test_properties import RECIPES, TRAIN, examples, run, same_bits


def seconds(node: Node) -> float:
    return node_seconds(node, TYPICAL)


def plan_of(program: Program) -> Plan:
    check_graph(program.nodes)
    return make_plan(program, needs, Switches())


def deep(layers: int, batch: int = 64, width: int = 16) -> Program:
    """The gradients of a network with dropout; each layer keeps two values for them."""
    with fresh_streams():
        x, y = gl.input("x", (batch, width)), gl.input("y", (batch,), "i32")
        layer = [[nn.Linear(width, width, activation="tanh"), nn.Dropout(0.25)] for _ in range(layers)]
        net = nn.Sequential(*itertools.chain.from_iterable(layer))
        net.ensure_init(0)
        loss, _, _ = ops.cross_entropy_sum(net(x), y, None)
        return rewrite(gather([loss, *gl.gradients(loss, list(net.parameters()))]))


@given(recipe=RECIPES, train=TRAIN, share=st.floats(0.3, 1.0))
@examples(60)
def test_random_programs_within_budgets(recipe: list[int], train: int, share: float) -> None:
    made = build(recipe, train)
    if not made.outputs:
        return
    plan, want = run(made)
    budget = max(1, int(plan.peak_bytes * share))
    try:
        small, got = run(made, memory=budget)
    except SettingError as error:
        assert error.setting == "memory" and "at least" in str(error)
        return
    assert small.peak_bytes <= budget and same_bits(want, got)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_bits_of_the_whole_plan_at_every_budget(name: str) -> None:
    """By the references, with dead ranges poisoned: nothing reads a value after its death."""
    whole = planned(name)
    with fresh_streams():
        outputs, updates = PROGRAMS[name]()
    program = rewrite(gather(outputs, updates))
    budget, want = Budget(program, plan_of, seconds), interpret(whole)
    for bytes in np.linspace(budget.smallest[1].peak_bytes, budget.whole.peak_bytes, 8).astype(int):
        if (found := budget.within(int(bytes))) is not None:
            assert found[1].peak_bytes <= bytes and interpret(found[1]) == want


def test_a_deep_network_needs_the_square_root_of_its_layers() -> None:
    """Two values a layer, in segments whose lengths fall by one: about sqrt(2 * values) are alive, and some more for a
    step. The masks of dropout are drawn again and are the same."""
    program = deep(50)
    budget = Budget(program, plan_of, seconds)
    value, values = 64 * 16 * 4, 2 * 50
    gradients = sum(v.bytes for v in program.outputs)
    least = budget.smallest[1].peak_bytes
    assert least < (np.sqrt(2 * values) + 12) * value + gradients < budget.whole.peak_bytes / 2
    found = budget.within(least)
    assert found is not None and found[1].recomputed.nodes > 60
    assert interpret(found[1]) == interpret(budget.whole)


def test_more_memory_is_never_slower_along_the_curve() -> None:
    curve = Budget(deep(30), plan_of, seconds).curve()
    bytes, times, clones = zip(*curve, strict=True)
    assert len(curve) == 5 and times[0] == 1 and clones[0] == 0 and min(clones[1:]) > 0
    assert list(bytes) == sorted(bytes, reverse=True) and list(times) == sorted(times)


@pytest.mark.parametrize("seed", range(6))
def test_small_graphs_are_near_the_best_choice(seed: int) -> None:
    """At most 5 % more time than the best of all sets of clones, on graphs small enough to try all of them."""
    rng = np.random.default_rng(seed)
    x = gl.input("x", (32, 16))
    values = [x @ gl.parameter(rng.uniform(-1, 1, (16, 16)).astype(np.float32), f"w{i}") for i in range(2)]
    for i in range(5):
        a, b = (values[int(k)] for k in rng.integers(max(0, len(values) - 3), len(values), 2))
        wide = gl.parameter(rng.uniform(-1, 1, (16, 16)).astype(np.float32), f"p{i}")
        values.append([ops.tanh(a) @ wide, ops.tanh(a * b), ops.softmax(a + b), ops.sigmoid(a) @ wide][rng.integers(4)])
    loss = ops.sum(ops.sqr(values[-1] + values[-2]))
    program = rewrite(gather([loss, *gl.gradients(loss, parameters(loss))]))
    budget = Budget(program, plan_of, seconds)
    lives = budget.lives
    free = [one for one in lives.lives if one.free and one.bytes and one.pause()[1] - one.pause()[0] > 1][:10]
    tried = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(free, n) for n in range(len(free) + 1)):
        lives.reset()
        for one in chosen:
            if one.split is None:
                lives.clone(one)
        tried.append((lives.peak(), lives.cost))
    most = lives.seconds
    for target in sorted({peak for peak, _ in tried}):
        best = min(cost for peak, cost in tried if peak <= target)
        assert choose(lives, target), f"{target} bytes"
        assert (lives.cost + most) <= 1.05 * (best + most), f"{target} bytes"


def parameters(loss: Value) -> list[Value]:
    return [node.outputs[0] for node in gather([loss]).nodes if node.op.name == "parameter"]


def test_the_counts_do_not_depend_on_the_order_of_changes() -> None:
    """What clone, keep and undo leave equals what the same clones give when they are made at once."""
    lives = Lives(deep(12), seconds, {})
    rng = np.random.default_rng(0)
    free = [one for one in lives.lives if one.free and one.bytes]
    for _ in range(300):
        one = free[rng.integers(len(free))]
        state = lives.saved()
        (lives.clone if one.split is None else lives.keep)(one)
        if rng.random() < 0.3:
            lives.undo(state)
    again = Lives(deep(12), seconds, {})
    for one, other in zip(lives.lives, again.lives, strict=True):
        if one.split is not None and other.split is None and one.split < one.uses[-1]:
            again.clone(other)
    assert np.array_equal(lives.bytes(), again.bytes()) and lives.cost == pytest.approx(again.cost)


def most_alive(program: Program) -> int:
    """The most bytes of outputs at any step, counted on the program itself; those of a node live and die together."""
    steps = kernel_order(program.nodes, view_base)[0]
    at = {node: i for i, node in enumerate(steps)}
    last, read = dict(at), {view_base(v) for v in program.outputs}
    for i, node in enumerate(steps):
        for v in node.inputs:
            if v is not None and view_base(v).node in at:
                last[view_base(v).node] = i
    read |= {view_base(v) for node in program.nodes for v in node.inputs if v is not None}
    last |= {view_base(v).node: len(steps) - 1 for v in program.outputs if view_base(v).node in at}
    alive = np.zeros(len(steps), np.int64)
    for node, i in at.items():
        for v in node.outputs:
            is_absent = v not in read and node.op.slot(node.op.outputs, v.index).optional
            if not node.op.updates and not is_absent:
                alive[i : last[node] + 1] += -(-v.bytes // 64) * 64
    return int(alive.max())


def kernels(program: Program) -> list[Node]:
    return [node for node in program.nodes if not node.op.leaf and node.op.view is None]


@pytest.mark.cheap
@pytest.mark.parametrize("name", [*PROGRAMS, "deep", *range(12)])
def test_bytes_and_seconds_are_those_of_the_program_with_clones(name: str | int) -> None:
    """For random sets of clones of values that are read before the pause: the original of any other one is left out.
    Each clone is there once, whatever reads it and through whatever views. Lives counts an original as alive at the
    step in front of which clones alone read it."""
    program = program_of(name)
    lives, rng = Lives(program, seconds, {}), np.random.default_rng(0)
    free = [one for one in lives.lives if one.free and one.step < one.pause()[0] < one.pause()[1] - 1]
    assert lives.peak() == most_alive(program)
    largest = max(one.bytes for one in lives.lives)
    for share in (0.1, 0.3, 0.5, 0.8, 1.0):
        lives.reset()
        for one in free:
            if one.split is None and rng.random() < share:
                lives.clone(one)
        made = recompute(program, lives.until())
        assert most_alive(made) <= lives.peak() <= most_alive(made) + largest
        assert len(kernels(made)) == len(kernels(program)) + len(lives.cloned())
        more = sum(map(seconds, kernels(made))) - sum(map(seconds, kernels(program)))
        assert lives.cost == pytest.approx(more, rel=1e-3, abs=1e-8 * len(free))


def program_of(name: str | int) -> Program:
    """One of PROGRAMS, a deep network, or a random program."""
    if name == "deep":
        return deep(12)
    with fresh_streams():
        if isinstance(name, str):
            return rewrite(gather(*PROGRAMS[name]()))
        rng = np.random.default_rng((7, name))
        made = build([int(n) for n in rng.integers(0, 2**40, 20)], int(rng.integers(1, 4)))
        return rewrite(gather(made.outputs, made.updates))


def test_what_may_not_be_computed_twice_is_not() -> None:
    for name in PROGRAMS:
        with fresh_streams():
            outputs, updates = PROGRAMS[name]()
        program = rewrite(gather(outputs, updates))
        for one in Lives(program, seconds, {}).lives:
            if one.node.op.updates or one.node.op.guard or not {*one.node.outputs}.isdisjoint(program.outputs):
                assert not one.free


def test_a_wrong_clone_is_found() -> None:
    program = deep(6)
    budget = Budget(program, plan_of, seconds)
    assert choose(budget.lives, budget.lives.peak() * 2 // 3)
    made = recompute(program, budget.lives.until())
    check_recomputed(program, made)
    known = set(program.nodes)
    clones = [node for node in made.nodes if node not in known and node.op.name == "dropout"]
    assert clones
    for broken in (with_stream(made, clones[0]), with_input(made, clones[-1]), with_output(made)):
        with pytest.raises(GraphError, match="recompute: "):
            check_recomputed(program, broken)


def with_stream(made: Program, clone: Node) -> Program:
    """The clone draws another mask."""
    return replaced(made, clone, attrs=dict(clone.attrs) | {clone.op.stream: 1})


def with_input(made: Program, clone: Node) -> Program:
    """The clone reads another value of the same shape."""
    first = clone.inputs[0]
    other = next(
        v for n in made.nodes for v in n.outputs
        if first is not None and v is not first and (v.shape, v.dtype) == (first.shape, first.dtype)
    )  # fmt: skip
    return replaced(made, clone, inputs=[other, *clone.inputs[1:]])


def with_output(made: Program) -> Program:
    """Two outputs change places."""
    return Program(made.nodes, (made.outputs[0], made.outputs[2], made.outputs[1], *made.outputs[3:]), made.effects)


def replaced(made: Program, clone: Node, attrs: Any = None, inputs: Any = None) -> Program:
    """The program with a changed node in the place of `clone`, for all of its readers."""
    new: dict[Any, Any] = {}
    nodes = []
    for node in made.nodes:
        given_inputs = [
            None if v is None else new.get(v, v) for v in (inputs if node is clone and inputs else node.inputs)
        ]
        copy = node if node.op.leaf else node.with_inputs(given_inputs, [])
        if node is clone and attrs:
            copy.attrs = attrs
        nodes.append(copy)
        new.update(zip(node.outputs, copy.outputs, strict=True))
    return Program(tuple(nodes), tuple(new[v] for v in made.outputs), tuple(new[v] for v in made.effects))


def test_an_update_that_is_there_twice_is_found() -> None:
    with fresh_streams():
        outputs, updates = PROGRAMS["mlp"]()
    program = rewrite(gather(outputs, updates))
    update = next(node for node in program.nodes if node.op.updates)
    twice = Program((*program.nodes, update.with_inputs(update.inputs, update.after)), program.outputs, program.effects)
    with pytest.raises(GraphError, match="there twice"):
        check_recomputed(program, twice)


def test_a_guard_that_is_there_twice_is_found() -> None:
    program = program_of("mlp")
    guard = next(node for node in program.nodes if node.op.guard)
    again = guard.with_inputs(guard.inputs, ())
    twice = Program((*program.nodes, again), program.outputs, program.effects)
    with pytest.raises(GraphError, match="there twice"):
        check_recomputed(program, twice)


def test_missing_updates_are_found() -> None:
    program = program_of("mlp")
    for effects in (program.effects[:-1], program.effects[::-1], ()):
        with pytest.raises(GraphError, match="outputs or updates"):
            check_recomputed(program, Program(program.nodes, program.outputs, effects))


def test_a_node_that_follows_another_one_is_carried_out_once() -> None:
    """It may read what the other one has written."""
    x = gl.input("x", (64,))
    first, free = ops.sin(x).node, ops.exp(x).node
    follows = free.with_inputs(free.inputs, (first,))
    late = ops.cos(first.outputs[0]) * follows.outputs[0]
    program = gather([late, first.outputs[0] * 2.0])
    assert not next(one for one in Lives(program, seconds, {}).lives if one.node is follows).free
    for after, why in (((first,), "there twice"), ((), "computes what no node")):
        nodes = (*program.nodes, follows.with_inputs(follows.inputs, after))
        with pytest.raises(GraphError, match=why):
            check_recomputed(program, Program(nodes, program.outputs))


def test_each_result_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    lives, proved = Lives(deep(4), seconds, {}), list[tuple[Program, Program]]()
    assert choose(lives, lives.peak() * 4 // 5)
    monkeypatch.setattr("gradloom.transform.recompute.check_recomputed", lambda *pair: proved.append(pair))
    program = deep(4)
    assert [(program, recompute(program, {}))] == proved


def test_workspaces_are_counted() -> None:
    budget = Budget(program_of("conv"), plan_of, seconds)
    for one in budget.lives.lives:
        workspace = needs(one.node, np.empty(0)).workspace_bytes
        assert budget.lives.own[one.step] == one.bytes + workspace


def test_a_plan_states_what_it_computes_again() -> None:
    program = deep(20)
    budget = Budget(program, plan_of, seconds)
    found = budget.within(budget.whole.peak_bytes * 2 // 3)
    assert found is not None
    made, nodes = found[0], found[1].recomputed.nodes
    whole, more = (sum(map(seconds, kernels(one))) for one in (program, made))
    assert nodes == len(kernels(made)) - len(kernels(program)) > 0
    assert found[1].recomputed.overhead == pytest.approx(more / whole - 1, rel=1e-3)
    assert found[1].recomputed.bytes >= nodes * 64


@pytest.mark.parametrize("name", [*PROGRAMS, "deep", *range(12)])
def test_the_fastest_plan_that_was_tried_is_taken_and_none_above_the_budget(
    name: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(program_of(name), plan_of, seconds)
    least, whole, plans = budget.smallest[1].peak_bytes, budget.whole.peak_bytes, list[Plan]()
    make = budget.made

    def made() -> tuple[Program, Plan]:
        found = make()
        plans.append(found[1])
        return found

    monkeypatch.setattr(budget, "made", made)
    for bytes in [int(share * least) for share in (0.5, 0.8, 0.95)] + [least - 1, least, (3 * least + whole) // 4]:
        plans.clear()
        found = budget.within(bytes)
        fitting = [plan.recomputed.overhead for plan in plans if plan.peak_bytes <= bytes]
        if found is None:
            assert not fitting and bytes < least
        else:
            assert found[1].peak_bytes <= bytes
            assert not fitting or found[1].recomputed.overhead == min(fitting)
    for target in np.linspace(least - budget.more, budget.lives.most, 7).astype(int):
        if choose(budget.lives, int(target)):
            assert budget.lives.peak() <= target


@pytest.mark.slow
def test_planning_within_a_budget_leaves_no_garbage() -> None:
    """Which would be added to the memory of the process, beside the arrays of the program: while several programs are
    compiled, nothing else collects it."""
    program = deep(20)
    budget = gl.compile(program.outputs).plan.peak_bytes * 2 // 3
    gc.collect()
    gc.disable()
    try:
        run = gl.compile(program.outputs, memory=budget)
    finally:
        gc.enable()
    assert run.plan.recomputed.nodes and gc.collect() < 100


def test_the_least_budget_of_an_error_is_enough() -> None:
    program = deep(20)
    with pytest.raises(BudgetError) as caught:
        gl.compile(program.outputs, memory=1)
    least = caught.value.least
    assert gl.compile(program.outputs, memory=least).plan.peak_bytes <= least
    assert least < gl.compile(program.outputs).plan.peak_bytes * 2 // 3


def test_a_budget_that_nothing_meets() -> None:
    x = gl.input("x", (64, 64))
    y = ops.exp(x @ gl.parameter(np.ones((64, 64), np.float32), "w"))
    with pytest.raises(SettingError, match=r"memory='1.00 KiB'.*at least 16384 bytes"):
        gl.compile([y], memory="1KiB")
    run = gl.compile([y], memory="16KiB")
    assert run.plan.peak_bytes <= 16 << 10 and run.plan.recomputed.nodes == 0


@pytest.mark.parametrize("given", ["", "many", -1, 0, 1.5, True])
def test_memory_that_is_no_number_of_bytes(given: object) -> None:
    with pytest.raises(SettingError, match="memory="):
        gl.compile([gl.input("x", (2,)) * 2], memory=given)


def test_memory_has_no_effect_on_the_definition() -> None:
    with pytest.raises(SettingError, match="memory"):
        gl.compile([gl.input("x", (2,)) * 2], backend="numpy", memory="1MiB")
