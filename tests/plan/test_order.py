"""The order of steps, the layouts of values, and the bytes that they take."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.errors import PlanError
from gradloom.base.memory import show_bytes
from gradloom.graph.value import Node, Value
from gradloom.plan.bytecode import encode_attrs, signature
from gradloom.plan.check import check
from gradloom.plan.layout import dense_strides, is_dense
from gradloom.plan.memory import _first_fit, _height, _most_alive, _pack
from gradloom.plan.plan import Plan


def plan_of(*outputs: Value, updates: tuple[Value, ...] = (), **options: object) -> Plan:
    return gl.compile(list(outputs), updates, backend="null", **options).plan


def steps(plan: Plan) -> list[str]:
    return [n.op.name for n in plan.order.steps]


# ---- order ------------------------------------------------------------------------------------------------


def test_updates_go_last_and_after_every_reader_of_the_old_value() -> None:
    w, x = gl.parameter(np.ones(3), "w"), gl.input("x", (3,))
    (new,) = ops.assign(w, w * 2.0)
    late = ops.exp(x + w)  # made after the update, reads the value before it
    plan = plan_of(late, w, updates=(new,))
    assert steps(plan)[-1] == "assign"
    assert set(steps(plan)[:-1]) == {"mul", "add", "exp", "copy"}


def test_the_guard_comes_before_every_update() -> None:
    w, v = gl.parameter(np.ones(3), "w"), gl.parameter(np.ones(3), "v")
    (first,) = ops.assign(w, w * 2.0)
    (second,) = ops.assign(v, ops.sqr(first))
    norm = ops.guard(ops.sum(w), gl.constant(1.0), ops.exp(v))
    plan = plan_of(norm, updates=(first, second))
    assert steps(plan).index("guard") < steps(plan).index("assign")


def test_a_guard_that_reads_an_update_is_refused() -> None:
    w = gl.parameter(np.ones(3), "w")
    (new,) = ops.assign(w, w * 2.0)
    for read in (new, ops.exp(ops.reshape(new, (3, 1)))):
        norm = ops.guard(gl.constant(1.0), gl.constant(1.0), read)
        with pytest.raises(
            gl.GraphError, match=r"order: guard .* reads what assign .* has updated; a guard comes before"
        ):
            plan_of(norm, updates=(new,))


def test_after_is_kept_through_views() -> None:
    x = gl.input("x", (3,))
    first = ops.sin(x)
    turned = ops.reshape(first, (3, 1))
    second = ops.exp(x)
    second.node.after = (turned.node, x.node)
    third = ops.cos(second)
    plan = plan_of(third, first)
    assert steps(plan) == ["sin", "exp", "cos"]
    bytecode = plan.bytecode
    bytecode.instructions = bytecode.instructions[[1, 0, 2]]
    bytecode.dead = bytecode.dead[:1]
    places = dict(zip(plan.laid.program.outputs, plan.output_places, strict=True))
    with pytest.raises(PlanError, match="which it must follow"):
        check(bytecode, plan.laid.program, places)


def test_the_users_order_is_kept() -> None:
    x = gl.input("x", (3,))
    values = [f(x) for f in (ops.exp, ops.sin, ops.cos, ops.tanh, ops.sqr)]
    assert steps(plan_of(*values[::-1])) == ["exp", "sin", "cos", "tanh", "sqr"]


def test_what_no_update_writes_cannot_be_asked_for() -> None:
    w, one = gl.parameter(np.ones(3), "w"), gl.constant(1.0)
    new, absent = ops.sgd(one, one, one, one, w, gl.input("g", (3,)), None)
    with pytest.raises(gl.GraphError, match=r"sgd: output 1 of .* is never written: its input is absent"):
        plan_of(absent, updates=(new,))
    with pytest.raises(gl.GraphError, match=r"exp: it reads m of sgd .*, which was called without m"):
        plan_of(ops.exp(absent))


# ---- layout -----------------------------------------------------------------------------------------------


def test_strides() -> None:
    for shape in ((), (3,), (2, 3), (2, 1, 4), (0, 3)):
        assert dense_strides(shape) == tuple(s // 4 for s in np.empty(shape, np.float32).strides) or 0 in shape
        assert is_dense(shape, dense_strides(shape))
    assert is_dense((1, 3), (77, 1)) and not is_dense((2, 3), (4, 1)) and not is_dense((3,), (0,))


@pytest.mark.parametrize(
    ("build", "copies"),
    [
        (lambda x: ops.sum(ops.transpose(x) * 2.0), 0),
        (lambda x: ops.transpose(x) @ x, 0),
        (lambda x: x[:, ::2] @ x[::2], 1),  # a gap along the last axis, then one along the rows: fine
        (lambda x: ops.softmax(ops.transpose(x)), None),
        (lambda x: ops.reshape(ops.transpose(x), (36,)), 1),
        (lambda x: ops.reshape(x[1:3], (12,)) * 1.5, 0),
        (lambda x: ops.transpose(ops.exp(x)), 1),  # an output is dense,
        (lambda x: ops.reshape(ops.exp(x), (4, 9))[1:3], 0),  # as some views are
        (lambda x: ops.broadcast_to(x[0], (5, 6)) + 1.0, 0),
        (lambda x: ops.concat([ops.transpose(x), x[::-1 * -1]], 0), 0),
        (lambda x: ops.get_rows(ops.transpose(x), gl.constant(np.int32([1, 2]))), 1),
    ],
)  # fmt: skip
def test_copies_only_where_a_kernel_needs_them(build: object, copies: int | None) -> None:
    x = gl.input("x", (6, 6))
    value = build(x)  # type: ignore[operator]
    plan = plan_of(value)
    if copies is not None:
        assert steps(plan).count("copy") == copies
    data = np.arange(36.0).reshape(6, 6) / 36
    (a,), (b,) = gl.compile(value)(x=data), gl.compile(value, backend="numpy")(x=data)
    assert np.allclose(a, b, atol=1e-5)


def test_one_copy_serves_all_readers() -> None:
    x = gl.input("x", (4, 4))
    t = ops.transpose(ops.exp(x))
    ids = gl.constant(np.int32([1, 2]))
    plan = plan_of(ops.get_rows(t, ids) + ops.get_rows(t, ids) * 2.0, ops.get_rows(t, gl.constant(np.int32([0]))))
    assert steps(plan).count("copy") == 1


def test_signatures_and_attribute_words() -> None:
    x, ids = gl.input("x", (4, 3)), gl.input("ids", (2,), "i32")
    assert signature(ops.get_rows(x, ids).node) == "f32_i32_f32"
    assert signature(ops.add(x, x).node) == "f32"
    assert signature(ops.softmax(x).node) == "f32" and signature(ops.argmax(x, 1).node) == "f32_i32"
    node = ops.sum(x, (0, 1), keepdims=True).node
    assert encode_attrs(node.op, node.attrs) == [2, 0, 1, 1]
    node = ops.scale(x, 1.0, -0.0).node
    assert encode_attrs(node.op, node.attrs) == [0x3FF0000000000000, -(2**63)]
    node = ops.matmul_act(x, ops.transpose(x), None, act="relu").node
    assert encode_attrs(node.op, node.attrs) == [1]


# ---- memory -----------------------------------------------------------------------------------------------


def test_a_chain_in_place_takes_one_buffer() -> None:
    x = gl.input("x", (1000,))
    y = ops.exp(ops.sin(ops.cos(ops.tanh(ops.sqr(x)))))
    assert plan_of(y).peak_bytes == 4032 and plan_of(y, inplace=False).peak_bytes == 2 * 4032
    assert plan_of(y, reuse=False).peak_bytes == 5 * 4032


def test_a_value_that_is_read_again_is_not_overwritten() -> None:
    x = gl.input("x", (1000,))
    a = ops.exp(x)
    b = ops.sin(a)
    plan = plan_of(b * a, a)
    assert plan.placement.offsets[plan.laid.program.outputs[1]] != plan.placement.offsets[b]
    assert not any(base is a for base in plan.placement.inplace.values())


def test_a_view_of_a_value_keeps_it_from_being_overwritten() -> None:
    x = gl.input("x", (10, 10))
    for build in (lambda a: a + ops.transpose(a), lambda a: a * a[0], lambda a: ops.sin(a) + ops.sum(a[1:], 0)):
        value = build(ops.exp(x))
        data = np.random.default_rng(0).normal(size=(10, 10))
        a, b = gl.compile(value, poison=True)(x=data), gl.compile(value, backend="numpy")(x=data)
        assert np.allclose(a[0], b[0], rtol=1e-5)


def packed(sizes: list[int], births: list[int], deaths: list[int], piece: int = 0) -> tuple[int, int]:
    """(bytes taken, lower bound), having checked that nothing overlaps, or lies in two pieces where it fits in one."""
    bound = _most_alive(sizes, births, deaths, max(deaths, default=0))
    offsets = _pack(sizes, births, deaths, bound, piece)
    for offset, size in zip(offsets, sizes, strict=True) if piece else ():
        fits = size <= piece and offset // piece == max(offset, offset + size - 1) // piece
        assert fits or (size > piece and offset % piece == 0), f"{size} bytes at {offset}, in pieces of {piece}"
    for i in range(len(sizes)):
        for j in range(i):
            if births[i] <= deaths[j] and births[j] <= deaths[i]:
                assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
    return _height(offsets, sizes), bound


def test_buffers_fill_gaps() -> None:
    assert packed([], [], []) == (0, 0)
    assert packed([0, 8], [0, 0], [1, 1]) == (8, 8)
    assert packed([100, 50, 60, 40], [0, 0, 1, 2], [3, 0, 3, 2]) == (200, 200)
    # Largest first would lay the two long ones side by side and find no room for the third below them.
    assert packed([64, 64, 128], [0, 1, 2], [1, 3, 3])[0] == 192


@pytest.mark.parametrize("seed", range(30))
def test_buffers_never_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    births = rng.integers(0, 40, n).tolist()
    deaths = [b + int(rng.integers(0, 12)) for b in births]
    sizes = (64 * rng.integers(0, 30, n)).tolist()
    height, bound = packed(sizes, births, deaths)
    assert bound <= height <= 1.15 * bound
    packed(sizes, births, deaths, piece=64 * int(rng.integers(1, 40)))


@pytest.mark.parametrize("seed", range(40))
def test_each_buffer_lies_in_the_lowest_gap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 150))
    size, birth = 64 * rng.integers(0, 8, n), rng.integers(0, rng.choice([5, 40, 200]), n)
    death = birth + rng.integers(0, rng.choice([1, 8, 150]), n)
    order = rng.permutation(n) if seed % 2 else np.lexsort((birth, -size))
    expected = [0] * n
    for count, i in enumerate(order):
        meet = [j for j in order[:count] if birth[j] <= death[i] and birth[i] <= death[j]]
        for low, high in sorted((expected[j], expected[j] + size[j]) for j in meet):
            if low - expected[i] >= size[i]:
                break
            expected[i] = max(expected[i], high)
    assert _first_fit(size, birth, death, order) == expected


def test_real_training_steps_come_close_to_the_lower_bound() -> None:
    """Nothing is wasted where it matters: a deep MLP and a small transformer block."""
    x, labels = gl.input("x", (64, 100)), gl.input("labels", (64,), "i32")
    net = gl.nn.Sequential(*[gl.nn.Linear(100, 100, activation="relu") for _ in range(8)], gl.nn.LayerNorm(100))
    net.ensure_init(0)
    loss = ops.cross_entropy(net(x), labels)
    grads = [g for g in gl.gradients(loss, list(net.parameters())) if g is not None]
    plan = plan_of(loss, ops.guard(loss, gl.constant(1.0), *grads))
    assert plan.peak_bytes <= 1.02 * plan.lower_bound_bytes
    assert plan.peak_bytes < 0.75 * plan.unshared_bytes


def test_plans_print() -> None:
    x, w = gl.input("x", (3, 4)), gl.parameter(np.ones((4, 2)), "weights")
    with gl.scope("fc"):
        y = ops.exp(x[1:]) @ w
    text = str(plan_of(y))
    assert re.match(r"\d+ steps; peak \d+ B, lower bound \d+ B \(x1\.\d+\), unshared", text)
    assert "weights+0" in text and "inputs+" in text and "# fc at test_order.py" in text and "=>f32" in text
    assert show_bytes(1536) == "1.50 KiB" and show_bytes(12) == "12 B" and show_bytes(3 << 30) == "3.00 GiB"


def test_a_node_of_a_huge_id_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids in the bytecode are 32 bits wide."""
    import itertools

    from gradloom.graph import value

    monkeypatch.setattr(value, "_ids", itertools.count(2**32 + 5))
    x = gl.input("x", (3,))
    run = gl.compile(ops.log(x), check=2)
    with pytest.raises(gl.NonFiniteError, match="log"):
        run(x=[1, -1, 1])
    assert isinstance(ops.exp(x).node, Node)
