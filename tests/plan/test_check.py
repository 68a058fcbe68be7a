"""The proof against mutants: all bytecode that was tampered with is refused by a PlanError that names the nodes, or
computes the same bytes: so says the machine of programs.py, which runs bytecode by references and poisons what is dead.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import PlanError
from gradloom.base.settings import Switches
from gradloom.graph.graph import update_target
from gradloom.graph.value import Node, Value
from gradloom.plan.bytecode import (
    ARENA,
    ARG_WRITE,
    EACH_STEP,
    INSTRUCTION,
    INSTRUCTION_GUARD,
    NO_SEGMENT,
    Bytecode,
)
from gradloom.plan.check import check
from gradloom.plan.layout import _Layouter
from gradloom.plan.plan import Plan, make_plan
from gradloom.transform.passes import rewrite
from gradloom.transform.program import gather
from tests.plan.programs import PROGRAMS, interpret, needs, planned

Mutant = tuple[str, Bytecode]  # what was done, the bytecode
MOST = 300  # mutants of one kind and program: more are drawn at random (from a fixed seed)


def copied(bytecode: Bytecode) -> Bytecode:
    return dataclasses.replace(
        bytecode, kernels=list(bytecode.kernels), instructions=bytecode.instructions.copy(), args=bytecode.args.copy(),
        attrs=bytecode.attrs.copy(), stored=list(bytecode.stored), input_offsets=dict(bytecode.input_offsets),
        settings=dict(bytecode.settings), dead=list(bytecode.dead), guards=list(bytecode.guards),
    )  # fmt: skip


def prove(plan: Plan, bytecode: Bytecode, places: dict[Value, tuple[int, int]] | None = None) -> None:
    found = dict(zip(plan.laid.program.outputs, plan.output_places, strict=True)) if places is None else places
    wants = dict(zip(plan.order.steps, plan.needs, strict=True))
    check(bytecode, plan.laid.program, found, wants)


def refusal(plan: Plan, bytecode: Bytecode) -> str | None:
    try:
        prove(plan, bytecode)
    except PlanError as refused:
        return str(refused)
    return None


def named(plan: Plan, message: str) -> set[str]:
    """The nodes that a message names, as op#id."""
    return {f"{n.op.name}#{n.id}" for n in plan.laid.program.nodes} & set(re.findall(r"\w+#\d+", message))


def span(bytecode: Bytecode, i: int) -> range:
    ins = bytecode.instructions[i]
    return range(int(ins["arg_first"]), int(ins["arg_first"]) + int(ins["arg_count"]))


def operands(plan: Plan) -> Iterator[tuple[int, int, str]]:
    """(instruction, argument, "input" | "output" | "unread" output | "workspace") of all arguments that are there."""
    for i, node in enumerate(plan.order.steps):
        kinds = ["input"] * len(node.inputs)
        kinds += ["output" if v in plan.laid.read or update_target(v) is not None else "unread" for v in node.outputs]
        for kind, at in zip([*kinds, "workspace"], span(plan.bytecode, i), strict=False):
            if plan.bytecode.args[at]["segment"] != NO_SEGMENT:
                yield i, at, kind


def size_of(arg: np.void) -> int:
    return int(np.prod(arg["shape"][: int(arg["rank"])]))


def readers(plan: Plan, value: Value) -> list[int]:
    """The steps that look into the buffer of a base value."""
    layouts = plan.laid.layouts
    return [
        i for i, n in enumerate(plan.order.steps) if any(v is not None and layouts[v].base is value for v in n.inputs)
    ]


T = TypeVar("T")


def drawn(found: list[T], most: int) -> list[T]:
    """All, or so many of them, always the same."""
    return found if len(found) <= most else random.Random(0).sample(found, most)


# ---- the mutants -------------------------------------------------------------------------------------------


def shifted(plan: Plan) -> Iterator[Mutant]:
    """An operand somewhere else."""
    for _, at, kind in operands(plan):
        if not size_of(plan.bytecode.args[at]):
            continue
        for by in (-64, -4, 4, 64, 1 << 40):
            bytecode = copied(plan.bytecode)
            moved = int(bytecode.args[at]["offset"]) + by
            if moved >= 0:
                bytecode.args[at]["offset"] = moved
                yield f"{kind} {at} moved by {by}", bytecode


def resegmented(plan: Plan) -> Iterator[Mutant]:
    """An operand in another segment: among others, every output written over a parameter."""
    for _, at, kind in operands(plan):
        for segment in (*range(4 + len(plan.bytecode.stored)), 1000):
            if segment != plan.bytecode.args[at]["segment"] and size_of(plan.bytecode.args[at]):
                for offset in {0, int(plan.bytecode.args[at]["offset"])}:
                    bytecode = copied(plan.bytecode)
                    bytecode.args[at]["segment"], bytecode.args[at]["offset"] = segment, offset
                    yield f"{kind} {at} in segment {segment}", bytecode


def reshaped(plan: Plan) -> Iterator[Mutant]:
    """Another extent, rank, dtype, length or stride."""
    for _, at, kind in operands(plan):
        arg = plan.bytecode.args[at]
        rank = int(arg["rank"])
        for axis in range(rank):
            for field, by in (("shape", 1), ("shape", -1), ("strides", 1), ("strides", -1), ("strides", 7)):
                if (field == "strides" and arg["shape"][axis] <= 1) or not size_of(arg):
                    continue  # where there is one element, a stride says nothing
                bytecode = copied(plan.bytecode)
                bytecode.args[at][field][axis] += by
                yield f"{kind} {at} {field}[{axis}] {by:+d}", bytecode
        if rank >= 2 and len(set(arg["shape"][:rank].tolist())) > 1:
            bytecode = copied(plan.bytecode)
            for field in ("shape", "strides"):
                bytecode.args[at][field][:rank] = arg[field][:rank][::-1]
            yield f"{kind} {at} transposed", bytecode
        for field, value in (
            ("bytes", int(arg["bytes"]) - 1),
            ("bytes", int(arg["bytes"]) + 4),
            ("dtype", 7),
            ("dtype", 4),
        ):
            if arg[field] != value and value >= 0:
                bytecode = copied(plan.bytecode)
                bytecode.args[at][field] = value
                yield f"{kind} {at} {field} = {value}", bytecode
        bytecode = copied(plan.bytecode)
        bytecode.args[at]["flags"] ^= ARG_WRITE
        yield f"{kind} {at} flags", bytecode


def removed_operands(plan: Plan) -> Iterator[Mutant]:
    """An operand that is there made absent: inputs, outputs that somebody reads, the workspace."""
    for i, at, kind in operands(plan):
        node = plan.order.steps[i]
        if kind in ("output", "unread"):
            value = node.outputs[at - int(plan.bytecode.instructions[i]["arg_first"]) - len(node.inputs)]
            if node.op.slot(node.op.outputs, value.index).optional and value not in plan.laid.read:
                continue  # may be absent
        bytecode = copied(plan.bytecode)
        bytecode.args[at]["segment"] = NO_SEGMENT
        yield f"{kind} {at} absent", bytecode


def redirected(plan: Plan) -> Iterator[Mutant]:
    """An input or output that takes the place of another operand of the same form."""
    found = [(at, kind) for _, at, kind in operands(plan) if size_of(plan.bytecode.args[at])]
    for (at, kind), (other, _) in drawn(list(itertools.permutations(found, 2)), 2 * MOST):
        mine, its = plan.bytecode.args[at], plan.bytecode.args[other]
        place = ("segment", "offset")
        if kind != "workspace" and mine["bytes"] <= its["bytes"] and any(mine[f] != its[f] for f in place):
            bytecode = copied(plan.bytecode)
            for f in place:
                bytecode.args[at][f] = its[f]
            yield f"{kind} {at} redirected to that of {other}", bytecode


def reordered(plan: Plan) -> Iterator[Mutant]:
    """Instructions swapped, moved to the front or to the end, dropped, doubled. Dead ranges stay where they are."""
    n = len(plan.bytecode.instructions)
    orders = [
        (f"{i} and {j} swapped", [j if k == i else i if k == j else k for k in range(n)])
        for i in range(n)
        for j in range(i)
    ]
    for i in range(n):
        rest = [k for k in range(n) if k != i]
        orders += [(f"{i} dropped", rest), (f"{i} first", [i, *rest]), (f"{i} last", [*rest, i])]
        orders += [(f"{i} twice", [*range(i + 1), *range(i, n)]), (f"{i} again at the end", [*range(n), i])]
    for what, order in orders:
        if order != list(range(n)):
            bytecode = copied(plan.bytecode)
            bytecode.instructions = plan.bytecode.instructions[order].astype(INSTRUCTION)
            yield f"instruction {what}", bytecode


def instructions(plan: Plan) -> Iterator[Mutant]:
    """Another kernel, node, parts, attribute or flag."""
    for i, ins in enumerate(plan.bytecode.instructions):
        changes: list[tuple[str, Any]] = [
            ("kernel", (int(ins["kernel"]) + 1) % (len(plan.bytecode.kernels) + 1)), ("kernel", 1000),
            ("phases", int(ins["phases"]) + 1), ("parts", (7, 1, 1, 1)),
            ("flags", int(ins["flags"]) ^ INSTRUCTION_GUARD),
            ("node", 0xFFFFFFF0), ("arg_count", int(ins["arg_count"]) - 1), ("arg_first", int(ins["arg_first"]) + 1),
            ("attr_first", int(ins["attr_first"]) + 1),
        ]  # fmt: skip
        if int(ins["attr_count"]):
            changes.append(("attr_count", int(ins["attr_count"]) - 1))
        for field, value in changes:
            if field == "attr_first" and not int(ins["attr_count"]):
                continue
            bytecode = copied(plan.bytecode)
            bytecode.instructions[i][field] = value
            if field != "attr_first" or _words(bytecode, i) != _words(plan.bytecode, i):
                yield f"instruction {i} {field} = {value}", bytecode
        for other in plan.order.steps:
            if other.id != int(ins["node"]):
                bytecode = copied(plan.bytecode)
                bytecode.instructions[i]["node"] = other.id
                yield f"instruction {i} runs node {other.id}", bytecode
                break
    for word in range(len(plan.bytecode.attrs)):
        for bit in (1, 1 << 62):
            bytecode = copied(plan.bytecode)
            bytecode.attrs[word] ^= bit
            yield f"attribute word {word} ^ {bit}", bytecode
    for k, (op, signature) in enumerate(plan.bytecode.kernels):
        for changed in ((op, signature + "_i32"), (op + "_back", signature)):
            bytecode = copied(plan.bytecode)
            bytecode.kernels[k] = changed
            yield f"kernel {k} is {changed}", bytecode


def _words(bytecode: Bytecode, i: int) -> list[int]:
    first = int(bytecode.instructions[i]["attr_first"])
    return bytecode.attrs[first : first + int(bytecode.instructions[i]["attr_count"])].tolist()


def deaths(plan: Plan) -> Iterator[Mutant]:
    """Live bytes called dead, at every step of their life; dead ranges that come too early or lie elsewhere."""
    bytecode = plan.bytecode
    for value, buffer in plan.order.buffers.items():
        for step in range(buffer.birth, min(buffer.death, len(plan.order.steps))):
            for offset, size in ((0, 4), (0, max(value.bytes, 1)), (max(value.bytes - 1, 0), 1)):
                if value.bytes:
                    mutant = copied(bytecode)
                    mutant.dead.append((step, ARENA, plan.placement.offsets[value] + offset, size))
                    yield f"{value.node.label} dead at {step}", mutant
    for k, (step, segment, offset, size) in enumerate(bytecode.dead):
        others = [(step, 4 + s, 0, 4) for s in range(len(bytecode.stored))] + [(step, 1, 0, 4), (step, 2, 0, 4)]
        others += [(step, segment, bytecode.arena_bytes - 1, 2), (10**6, segment, offset, size)]
        if step != EACH_STEP:
            others.append((max(step - 1, 0), segment, offset, size))
        for changed in others:
            mutant = copied(bytecode)
            mutant.dead[k] = changed
            yield f"dead range {k} is {changed}", mutant


def overlapping(plan: Plan) -> Iterator[Mutant]:
    """Two buffers that live at the same time in one place: all operands, dead ranges and outputs move along."""
    roots: dict[int, list[Value]] = {}
    for value in plan.order.buffers:
        root = value
        while root in plan.placement.inplace:
            root = plan.placement.inplace[root]
        roots.setdefault(id(root), []).append(value)
    groups = [g for g in roots.values() if g[0].bytes]
    lives = [(min(plan.order.buffers[v].birth for v in g), max(plan.order.buffers[v].death for v in g)) for g in groups]
    pairs = list(itertools.permutations(list(zip(groups, lives, strict=True)), 2))
    for (g, life), (h, other) in drawn(pairs, 2 * MOST):
        if life[0] <= other[1] and other[0] <= life[1]:
            by = plan.placement.offsets[h[0]] - plan.placement.offsets[g[0]]
            if plan.placement.offsets[h[0]] + g[0].bytes <= plan.bytecode.arena_bytes:
                yield f"{g[0].node.label} placed over {h[0].node.label}", _relocated(plan, set(g), by)


def _relocated(plan: Plan, values: set[Value], by: int) -> Bytecode:
    bytecode = copied(plan.bytecode)
    for i, node in enumerate(plan.order.steps):
        for at, value in zip(span(bytecode, i), (*node.inputs, *node.outputs), strict=False):
            if value is not None and plan.laid.layouts[value].base in values and bytecode.args[at]["segment"] == ARENA:
                bytecode.args[at]["offset"] = int(bytecode.args[at]["offset"]) + by
    start = plan.placement.offsets[next(iter(values))]
    ends = {plan.order.buffers[v].death for v in values}
    bytecode.dead = [(s, g, o + by if o == start and s in ends else o, n) for s, g, o, n in bytecode.dead]
    return bytecode


def workspaces(plan: Plan) -> Iterator[Mutant]:
    """A workspace over each operand of its own instruction, over live values, too small, too far, gone."""
    for i, at, kind in operands(plan):
        if kind != "workspace":
            continue
        for _, other, _ in drawn(list(operands(plan)), 20):
            arg = plan.bytecode.args[other]
            if arg["segment"] == ARENA and other != at:
                bytecode = copied(plan.bytecode)
                bytecode.args[at]["offset"] = arg["offset"]
                yield f"workspace of {i} over operand {other}", bytecode
        for size in (0, 64):
            bytecode = copied(plan.bytecode)
            bytecode.args[at]["shape"][0] = bytecode.args[at]["bytes"] = size
            yield f"workspace of {i} of {size} bytes", bytecode
        bytecode = copied(plan.bytecode)
        bytecode.instructions[i]["arg_count"] -= 1
        yield f"no workspace for {i}", bytecode
    bytecode = copied(plan.bytecode)
    bytecode.scratch_bytes = 0
    if plan.bytecode.scratch_bytes:
        yield "no scratch", bytecode


def outside(plan: Plan) -> Iterator[Mutant]:
    """Constants, inputs, settings, parameters and their segments."""
    bytecode = plan.bytecode
    used = {int(a["offset"]) + k for a in bytecode.args if a["segment"] == 1 for k in range(int(a["bytes"]))}
    for byte in sorted(used):
        mutant = copied(bytecode)
        data = bytearray(bytecode.constants)
        data[byte] ^= 0x40
        mutant.constants = bytes(data)
        yield f"constant byte {byte}", mutant
    if bytecode.constants:
        yield "no constants", dataclasses.replace(copied(bytecode), constants=b"")
    for field in ("arena_bytes", "inputs_bytes"):
        if getattr(bytecode, field):
            yield f"shorter {field}", dataclasses.replace(copied(bytecode), **{field: getattr(bytecode, field) - 64})
    for table in ("input_offsets", "settings"):
        names = list(getattr(bytecode, table))
        for a, b in itertools.combinations(names, 2):
            mutant = copied(bytecode)
            swapped = getattr(mutant, table)
            swapped[a], swapped[b] = swapped[b], swapped[a]
            yield f"{table}: {a} and {b} swapped", mutant
        for name in names:
            mutant = copied(bytecode)
            del getattr(mutant, table)[name]
            yield f"{table}: {name} missing", mutant
            mutant = copied(bytecode)
            getattr(mutant, table)[name] += 1
            yield f"{table}: {name} moved", mutant
    for a, b in itertools.combinations(range(len(bytecode.stored)), 2):
        mutant = copied(bytecode)
        mutant.stored[a], mutant.stored[b] = mutant.stored[b], mutant.stored[a]
        yield f"arrays {a} and {b} swapped", mutant
    for a in range(len(bytecode.stored)):
        mutant = copied(bytecode)
        mutant.stored.pop(a)
        yield f"array {a} missing", mutant


KINDS: tuple[Callable[[Plan], Iterator[Mutant]], ...] = (
    shifted, resegmented, reshaped, removed_operands, redirected, reordered, instructions, deaths, overlapping,
    workspaces, outside,
)  # fmt: skip
# A fault of one instruction alone has one node to name; where two meet, the message names both.
BOTH = (shifted, redirected, overlapping, deaths)


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_mutants_are_refused(name: str, kind: Callable[[Plan], Iterator[Mutant]]) -> None:
    plan = planned(name)
    right = interpret(plan)
    mutants = drawn(list(kind(plan)), MOST if len(plan.order.steps) < 50 else 100)
    equivalent = 0
    for what, bytecode in mutants:
        try:
            prove(plan, bytecode)
        except PlanError as refused:
            text = str(refused)
            assert "\n" not in text and text.startswith("proof: ")
            if kind in BOTH:
                assert len(named(plan, text)) >= 2 or _one_is_all(plan, text), f"{what}: {text}"
        else:
            equivalent += 1
            free = kind in (reordered, deaths, workspaces) or what.startswith(("unread", "workspace"))
            assert free, f"survived: {what}"
            assert interpret(plan, bytecode) == right, f"survived and computes something else: {what}"
    assert equivalent <= len(mutants) // 2, "too many mutants change nothing: they test nothing"


def _one_is_all(plan: Plan, text: str) -> bool:
    """Messages about places that hold nothing of another node."""
    alone = ("is no multiple of 64", "the segment holds", "lie outside the arena", "does not exist",
             "bytes that nothing wrote", "the caller reads", "no cache lines")  # fmt: skip
    collides = re.search(r"to the same bytes as (the workspace of )?(.*)", text)
    if collides is not None and text.count(collides[2]) > 1:
        return True  # with another operand of its own
    return (
        (bool(named(plan, text)) and any(a in text for a in alone)) or "lie outside" in text or "does not exist" in text
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_planned_is_accepted(name: str) -> None:
    for switches in ({}, {"reuse": False}, {"inplace": False}, {"check": 2}, {"check": 2, "reuse": False}):
        plan = planned(name, **switches)
        prove(plan, copied(plan.bytecode))
        assert interpret(plan) == interpret(planned(name)), switches


def test_outputs_must_be_where_the_caller_looks() -> None:
    plan = planned("mlp")
    places = dict(zip(plan.laid.program.outputs, plan.output_places, strict=True))
    for value, (segment, offset) in places.items():
        for wrong in ((segment, offset + 64), (4, 0), (2, 0)):
            with pytest.raises(PlanError, match="the caller reads"):
                prove(plan, plan.bytecode, places | {value: wrong})


def test_guard_bytes_may_not_meet_buffers() -> None:
    plan = planned("mlp", check=2)
    assert plan.bytecode.guards
    for value in plan.order.buffers:
        bytecode = copied(plan.bytecode)
        bytecode.guards.append((ARENA, plan.placement.offsets[value] + value.bytes - 1, 1))
        with pytest.raises(PlanError, match="guard bytes"):
            prove(plan, bytecode)
    known = np.zeros(plan.bytecode.arena_bytes, bool)  # each buffer has guard bytes, or another buffer, on both sides
    parts = [(at, size) for _, at, size in plan.bytecode.guards]
    parts += [(plan.placement.offsets[value], value.bytes) for value in plan.order.buffers]
    parts += [(at, plan.needs[step].workspace_bytes) for step, at in plan.placement.workspace_offsets.items()]
    for at, size in parts:
        known[at : at + size] = True
    for value in plan.order.buffers:
        begin, end = plan.placement.offsets[value], plan.placement.offsets[value] + value.bytes
        assert begin == 0 or known[begin - 1], value
        assert end == known.size or known[end], value
    bytecode = copied(plan.bytecode)
    bytecode.guards.append((ARENA, plan.bytecode.arena_bytes, 64))
    with pytest.raises(PlanError, match="outside the arena"):
        prove(plan, bytecode)


def updates_of(plan: Plan) -> list[int]:
    return [i for i, n in enumerate(plan.order.steps) if n.op.updates]


@pytest.mark.parametrize("name", ["mlp", "conv", "attention"])
def test_updates_come_after_the_guard_and_after_readers_of_the_old_value(name: str) -> None:
    """Each update moved before each earlier step: refused for the guard, or for a reader of the old value."""
    plan = planned(name)
    guard = next(i for i, n in enumerate(plan.order.steps) if n.op.guard)
    for i in updates_of(plan):
        for to in range(i):
            order = list(range(len(plan.order.steps)))
            order.insert(to, order.pop(i))
            bytecode = copied(plan.bytecode)
            bytecode.dead = [d for d in bytecode.dead if d[0] == EACH_STEP]
            bytecode.instructions = plan.bytecode.instructions[order]
            if to <= guard:
                with pytest.raises(PlanError):
                    prove(plan, bytecode)
            else:
                refused = refusal(plan, bytecode)
                if refused is None:
                    assert interpret(plan, bytecode) == interpret(plan)
                else:
                    assert len(named(plan, refused)) >= 2


def test_the_guard_is_what_refuses() -> None:
    """Without any reader of the old value in between, the guard alone holds an update back."""
    plan = planned("mlp")
    steps = list(plan.order.steps)
    guard = next(i for i, n in enumerate(steps) if n.op.guard)
    update = updates_of(plan)[0]
    order = list(range(len(steps)))
    order.remove(guard)
    order.insert(order.index(update) + 1, guard)
    bytecode = copied(plan.bytecode)
    bytecode.dead = [d for d in bytecode.dead if d[0] == EACH_STEP]
    bytecode.instructions = plan.bytecode.instructions[order]
    with pytest.raises(PlanError, match=r"state changes before .* has guarded it"):
        prove(plan, bytecode)


def overwrites_not_allowed(plan: Plan) -> Iterator[tuple[Node, str, Bytecode]]:
    for i, node in enumerate(plan.order.steps):
        first = int(plan.bytecode.instructions[i]["arg_first"])
        for value in node.outputs:
            slot = node.op.slot(node.op.outputs, value.index).name
            at = first + len(node.inputs) + value.index
            for k, read in enumerate(node.inputs):
                name = node.op.slot(node.op.inputs, k).name
                arg = plan.bytecode.args[first + k]
                if read is None or update_target(value) is not None or plan.bytecode.args[at]["segment"] == NO_SEGMENT:
                    continue
                if (
                    arg["segment"] == ARENA
                    and name not in node.op.may_overwrite.get(slot, ())
                    and read.bytes >= value.bytes > 0
                ):
                    bytecode = copied(plan.bytecode)
                    bytecode.args[at]["offset"] = int(arg["offset"]) // 64 * 64
                    yield node, name, bytecode


@pytest.mark.parametrize("name", PROGRAMS)
def test_illegal_in_place_is_refused_for_that_reason(name: str) -> None:
    plan = planned(name)
    seen = 0
    for node, input_name, bytecode in overwrites_not_allowed(plan):
        with pytest.raises(PlanError) as refused:
            prove(plan, bytecode)
        text = str(refused.value)
        assert f"{node.op.name}#{node.id}" in text
        seen += f"over its input {input_name}" in text
    assert seen or name in ("chain", "split"), "no case in which this is the first fault"


def test_an_output_over_a_part_of_an_input_is_refused() -> None:
    """An op that allows its output over an input allows it in the very place of it alone."""
    plan = gl.compile(ops.relu(ops.sin(gl.input("a", (64,)))), fuse=False).plan
    (out,) = plan.placement.inplace
    assert out.node.op.name == "relu"
    bytecode = _relocated(plan, {out}, 64)
    bytecode.arena_bytes += 64
    (place,) = plan.output_places
    with pytest.raises(PlanError, match="relu.* writes y over its input x"):
        prove(plan, bytecode, {plan.laid.program.outputs[0]: (place[0], place[1] + 64)})


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_workspace_over_an_input_is_refused(name: str) -> None:
    plan, seen, refused = planned(name), 0, 0
    for i, at, kind in operands(plan):
        for step, other, of in operands(plan) if kind == "workspace" else ():
            arg, length = plan.bytecode.args[other], int(plan.bytecode.args[at]["bytes"])
            if step == i and of == "input" and arg["segment"] == ARENA and size_of(arg):
                for offset in {int(arg["offset"]) // 64 * 64, max(int(arg["offset"]) // 64 * 64 + 64 - length, 0)}:
                    if offset + length <= plan.bytecode.arena_bytes:
                        bytecode = copied(plan.bytecode)
                        bytecode.args[at]["offset"] = offset
                        seen, refused = seen + 1, refused + ("lies on its input" in str(refusal(plan, bytecode)))
    assert seen == refused and (seen or name in ("chain", "split", "optional")), f"{refused} of {seen}"


def test_two_steps_of_a_program_share_nothing_but_storage() -> None:
    """A value of the step before is no value: reads before the first write are refused."""
    plan = planned("chain")
    for i, at, kind in operands(plan):
        if kind == "input" and plan.bytecode.args[at]["segment"] == ARENA:
            bytecode = copied(plan.bytecode)
            bytecode.instructions = np.concatenate([bytecode.instructions[i:], bytecode.instructions[:i]])
            with pytest.raises(PlanError):
                prove(plan, bytecode)


def test_a_declared_layout_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided operand reaches a kernel only where its op takes one: here a planner forgets the copies."""
    x = gl.input("x", (4, 6))
    table = ops.transpose(gl.parameter(np.ones((3, 7)), "table"))
    rows = ops.get_rows(table, gl.input("ids", (2,), "i32"))
    product = ops.reshape(x, (4, 3, 2))[:, :, 0] @ gl.parameter(np.ones((3, 2)), "w")
    turned = ops.broadcast_to(x[0], (5, 6)) @ gl.parameter(np.ones((6, 2)), "w")
    for value, message in (
        (rows, "with gaps"),
        (product, "a matrix with a stride of 1"),
        (turned, "a matrix with a stride of 1"),
    ):
        program = rewrite(gather([value]))
        make_plan(program, needs, Switches())
        with monkeypatch.context() as patch, pytest.raises(PlanError, match=message):
            patch.setattr(_Layouter, "fits", lambda *_: True)
            make_plan(program, needs, Switches())
