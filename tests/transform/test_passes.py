"""Rewrites: what is merged, folded and fused, what never is; and that no bit changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import nn, ops
from gradloom.graph.graph import check_graph
from gradloom.graph.leaves import setting, stored_value
from gradloom.graph.value import Value
from gradloom.transform.passes import rewrite
from gradloom.transform.program import Program, gather
from gradloom.transform.substitute import substitute
from tests.core.harness import isas

ISAS = isas()


def rewritten(*outputs: Value, fuse: bool = True, updates: Sequence[Value] = ()) -> Program:
    program = rewrite(gather(outputs, updates), fuse=fuse)
    check_graph(program.nodes)
    return program


def names(program: Program) -> list[str]:
    return sorted(n.op.name for n in program.nodes if not n.op.leaf)


def draws(values: Sequence[Value], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = [n for n in gather(values).nodes if n.op.name == "input"]
    return {n.attrs["key"]: rng.standard_normal(n.outputs[0].shape).astype(np.float32) for n in inputs}


def same_with_and_without(values: Sequence[Value], signed_zero: bool = True) -> None:
    feeds = draws(values)
    exact = gl.compile(values, backend="numpy")(**feeds)
    for isa in ISAS:
        a, b = (gl.compile(values, isa=isa, fuse=fuse)(**feeds) for fuse in (True, False))
        for x, y, z in zip(a, b, exact, strict=True):
            assert x.tobytes() == y.tobytes()
            assert np.abs(x - z).max(initial=0) <= 1e-5 * max(1, np.abs(z).max(initial=0))


# ---- simplification ---------------------------------------------------------------------------------------


def test_twins_are_merged() -> None:
    x = gl.input("x", (3,))
    again = gl.input("x", (3,))  # the same input under another node
    y = ops.exp(x) * ops.sin(ops.exp(again))
    assert names(rewritten(y)) == ["exp", "mul", "sin"]
    assert names(rewritten(ops.scale(x, 2.0), ops.scale(x, 2.0), ops.scale(x, 3.0))) == ["scale", "scale"]
    assert names(rewritten(ops.sum(x, 0), ops.sum(x, 0, keepdims=True))) == ["sum", "sum"]


def test_leaves_of_one_array_are_one() -> None:
    w = gl.parameter([1.0, 2.0], "w")
    other = stored_value(w.stored)
    assert names(rewritten(ops.exp(w) + ops.exp(other))) == ["add", "exp"]
    twin = gl.parameter([1.0, 2.0], "w")  # equal numbers, another array
    assert names(rewritten(ops.exp(w) + ops.exp(twin))) == ["add", "exp", "exp"]
    s, t, u = setting("lr"), setting("lr"), setting("other")
    assert names(rewritten(ops.exp(s) + ops.exp(t) + ops.exp(u))) == ["add", "add", "exp", "exp"]


def test_constants_are_folded_and_parameters_never() -> None:
    c = gl.constant([1.0, 2.0])
    y = ops.exp(c) * 2.0 + ops.sum(ops.reshape(c, (1, 2)))
    assert names(rewritten(y)) == []
    assert np.allclose(gl.compile(y)()[0], np.exp([1, 2]) * 2 + 3)
    w = gl.parameter([1.0, 2.0], "w")
    z = ops.exp(w) * ops.exp(c)
    assert names(rewritten(z)) == ["exp", "mul"]
    run = gl.compile(z)
    first = run()[0]
    w.assign([3.0, 4.0])
    assert not np.array_equal(run()[0], first)


def test_folding_works_in_double_precision() -> None:
    c = gl.constant(np.full(3, 0.1, np.float32))
    (found,) = gl.compile(ops.sqr(c) - 0.01)()
    exact = np.float32(np.float64(np.float32(0.1)) ** 2)  # each node is rounded to f32, none before
    assert found.tolist() == [np.float32(np.float64(exact) - np.float64(np.float32(0.01)))] * 3


def test_what_cannot_be_folded_waits_for_the_run() -> None:
    bad = ops.get_rows(gl.constant(np.ones((2, 2))), gl.constant(np.int32([5])))
    run = gl.compile(bad)
    with pytest.raises(gl.DataError, match="5"):
        run()


def test_large_results_are_not_folded() -> None:
    c = gl.constant(np.ones((600, 600), np.float32))
    assert names(rewritten(ops.exp(c))) == ["exp"]


def test_random_ops_are_never_merged_nor_folded() -> None:
    x = gl.input("x", (50,))
    a, b = ops.dropout(x, 0.5, stream=1), ops.dropout(x, 0.5, stream=1)
    assert names(rewritten(a + b)) == ["add", "dropout", "dropout"]
    key = {"seed": gl.constant(1, "i64"), "step": gl.constant(1, "i64"), "row": gl.constant(0, "i64")}
    assert "dropout" in names(rewritten(ops.dropout(gl.constant(np.ones(50)), 0.5, stream=1, **key)))


def test_updates_are_never_merged() -> None:
    w = gl.parameter([1.0], "w")
    (a,) = ops.assign(w, w + 1.0)
    (b,) = ops.assign(a, a + 1.0)
    gl.compile([], [a, b])()
    assert w.numpy().tolist() == [3]
    acc = gl.parameter([0.0], "acc")
    (c,) = ops.accumulate(gl.constant(1.0), acc, gl.constant([1.0]))
    (d,) = ops.accumulate(gl.constant(1.0), c, gl.constant([1.0]))
    gl.compile([], [d])()
    assert acc.numpy().tolist() == [2]


def test_what_changes_nothing_disappears() -> None:
    x, y = gl.input("x", (2, 3)), gl.input("y", (3,))
    one = np.ones((2, 3), np.float32)
    for value in (x * 1.0, 1.0 * x, x / 1.0, x * gl.constant(one), ops.permute(ops.permute(x, (1, 0)), (1, 0))):
        program = rewritten(value)
        assert program.outputs[0].node.op.name == "input" and not names(program)
    assert names(rewritten(y * gl.constant(one))) == ["mul"]  # this one broadcasts
    assert names(rewritten(x + 0.0, 1.0 / x)) == ["add", "div"]  # -0 + 0 is 0
    feeds = {"x": np.float32([[-0.0, np.inf, np.nan], [1, -1, 5]])}
    assert np.signbit(gl.compile(x * 1.0)(**feeds)[0])[0, 0]
    assert not np.signbit(gl.compile(x + 0.0)(**feeds)[0])[0, 0]


def test_dead_code_is_dropped() -> None:
    x, w = gl.input("x", (3,)), gl.parameter(np.ones(3), "w")
    y = ops.exp(x)
    gl.gradients(ops.sum(ops.sin(y) * w), [w])
    ops.zero(w)
    assert names(rewritten(y)) == ["exp"]
    program = rewrite(gather([y]))
    assert not any(n.op.name == "parameter" for n in program.nodes)


# ---- sums of pads -----------------------------------------------------------------------------------------


def split_gradient(x: Value, sizes: Sequence[int], axis: int, keep: Callable[[int], bool] = lambda i: True) -> Value:
    parts = ops.split(x, sizes, axis)
    functions = (ops.sin, ops.sqr, ops.tanh, ops.exp)
    loss = sum((ops.sum(functions[i % 4](p)) for i, p in enumerate(parts) if keep(i)), ops.sum(parts[0] * parts[0]))
    (g,) = gl.gradients(loss, [x])
    assert g is not None
    return g


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sizes", [[2, 2, 2], [1, 5], [3, 0, 3], [1, 1, 1, 1, 1, 1]])
def test_the_gradient_of_a_split_is_one_concat(sizes: list[int], axis: int) -> None:
    x = gl.input("x", (6, 6, 6))
    g = split_gradient(x, sizes, axis)
    for fuse in (True, False):
        program = rewritten(g, fuse=fuse)
        found = names(program)
        assert found.count("concat") == 1 and "pad" not in found
    same_with_and_without([g])


def test_gaps_are_filled_with_zeros() -> None:
    x = gl.input("x", (4, 9))
    for sizes, keep in (
        ([2, 3, 4], lambda i: i != 1),
        ([2, 3, 4], lambda i: i == 1),
        ([1, 2, 3, 3], lambda i: i in (1, 3)),
    ):
        g = split_gradient(x, sizes, 1, keep)
        assert names(rewritten(g)).count("concat") == 1 and "pad" not in names(rewritten(g))
        same_with_and_without([g])


def test_rows_by_number() -> None:
    """x[0], x[2], x[5]: slices and reshapes between."""
    x = gl.input("x", (6, 4))
    (g,) = gl.gradients(ops.sum(x[0] * x[2]) + ops.sum(ops.sqr(x[5])), [x])
    assert names(rewritten(g)).count("concat") == 1
    same_with_and_without([g])


def test_pads_that_overlap_are_added() -> None:
    x = gl.input("x", (8,))
    (g,) = gl.gradients(ops.sum(ops.sin(x[:5]) * x[3:]), [x])
    assert "concat" not in names(rewritten(g)) and "add" in names(rewritten(g))
    same_with_and_without([g])


def test_other_pads_stay() -> None:
    """Of two axes, with a value, with gaps inside, of different axes."""
    x = gl.input("x", (4, 6))
    (two_axes,) = gl.gradients(ops.sum(ops.sin(x[:2, :3])) + ops.sum(ops.sin(x[2:, 3:])), [x])
    (steps,) = gl.gradients(ops.sum(ops.sin(x[:, ::2])) + ops.sum(ops.sqr(x[:, 1::2])), [x])
    (mixed,) = gl.gradients(ops.sum(ops.sin(x[:2])) + ops.sum(ops.sqr(x[:, 3:])), [x])
    value = ops.pad(x, [(0, 4), (0, 0)], 1.0) + ops.pad(x, [(4, 0), (0, 0)], 1.0)
    for g in (two_axes, steps, mixed, value):
        found = names(rewritten(g))
        assert "concat" not in found and found.count("pad") == 2
        same_with_and_without([g])


def test_a_partial_sum_that_is_read_elsewhere() -> None:
    x = gl.input("x", (3, 2))
    a, b, c = (ops.pad(ops.sin(x) * float(i + 1), [(0, 0), (2 * i, 4 - 2 * i)]) for i in range(3))
    partial = a + b
    total = partial + c
    program = rewritten(total, ops.exp(partial))
    assert names(program).count("concat") == 2
    same_with_and_without([total, ops.exp(partial), partial])
    same_with_and_without([total * 1.0 + total, partial + partial])


def test_a_sum_with_something_else_in_it() -> None:
    x = gl.input("x", (3, 6))
    a, b = ops.split(x, 2, 1)
    (g,) = gl.gradients(ops.sum(ops.sin(a) * b) + ops.sum(ops.sqr(x)), [x])
    same_with_and_without([g])


# ---- fusion -----------------------------------------------------------------------------------------------


def layer() -> tuple[Value, Value, Value]:
    return gl.input("x", (5, 4)), gl.input("w", (4, 3)), gl.input("b", (3,))


def test_bias_and_activation() -> None:
    x, w, b = layer()
    y = ops.relu(x @ w + b)
    assert names(rewritten(y)) == ["matmul_act"]
    assert sorted(names(rewritten(y, fuse=False))) == ["add", "matmul", "relu"]
    assert names(rewritten(b + x @ w)) == ["matmul_act"]
    assert "matmul_act" in names(rewritten(x @ w + ops.reshape(b, (1, 3))))
    same_with_and_without([y])
    same_with_and_without([b + x @ w])
    same_with_and_without([ops.relu(x @ w + ops.reshape(b, (1, 3)))])


def test_a_column_is_no_bias() -> None:
    """[N] as a column of an N x N product repeats along the other axis."""
    x, w, b = gl.input("x", (3, 4)), gl.input("w", (4, 3)), gl.input("b", (3,))
    column = ops.reshape(b, (3, 1))
    for y in (
        x @ w + column,
        x @ w + ops.broadcast_to(column, (3, 3)),
        x @ w + ops.transpose(ops.broadcast_to(b, (3, 3))),
    ):
        assert "matmul_act" not in names(rewritten(y))
        same_with_and_without([y])
    single = gl.input("x", (1, 4)) @ gl.input("w", (4, 1)) + gl.input("b", (1,))
    same_with_and_without([single])
    wide = gl.input("x", (3, 4)) @ gl.input("w", (4, 1)) + gl.input("b", (3, 1))
    same_with_and_without([wide])


def test_what_is_used_elsewhere_is_not_fused_away() -> None:
    x, w, b = layer()
    z = x @ w
    y = ops.relu(z + b)
    assert names(rewritten(y, z)) == ["add", "matmul", "relu"]
    s = z + b
    assert names(rewritten(ops.relu(s), s)) == ["matmul_act", "relu"]
    assert names(rewritten(z + z)) == ["add", "matmul"]
    same_with_and_without([y, z])
    same_with_and_without([ops.relu(s), s])
    same_with_and_without([z + z])


def test_gradients_through_fused_nodes() -> None:
    x, w, b = layer()
    v = gl.input("v", (3, 2))
    loss = ops.sum(ops.sqr(ops.relu(x @ w + b) @ v))
    values = [loss, *[g for g in gl.gradients(loss, [x, w, b, v]) if g is not None]]
    assert "matmul_relu_back" in names(rewritten(*values))
    same_with_and_without(values)


def test_convolution_relu_pool() -> None:
    x, w, b = gl.input("x", (2, 1, 8, 8)), gl.input("w", (3, 1, 3, 3)), gl.input("b", (3,))
    y = ops.relu(ops.conv2d(x, w, b, padding=1))
    assert names(rewritten(y)) == ["conv2d"]
    same_with_and_without([y])
    pooled = ops.max_pool2d(y, 2)
    assert names(rewritten(pooled)) == ["conv2d_max_pool"]
    loss = ops.sum(ops.sin(pooled))
    same_with_and_without([loss, *[g for g in gl.gradients(loss, [x, w, b]) if g is not None]])
    other = ops.max_pool2d(ops.conv2d(x, w, b), 3)
    assert names(rewritten(other)) == ["conv2d", "max_pool2d"]
    for settings in ({"stride": 1}, {"padding": 1}, {"stride": 2, "padding": 1}):
        other = ops.max_pool2d(ops.conv2d(x, w, b), 2, **settings)
        assert names(rewritten(other)) == ["conv2d", "max_pool2d"]
    loss = ops.sum(ops.sin(ops.max_pool2d(ops.relu(ops.conv2d(x, w, b)), 3, stride=1, padding=1)))
    same_with_and_without([loss, *[g for g in gl.gradients(loss, [x, w, b]) if g is not None]])


POOLED = ("conv2d_pool_back_input", "conv2d_pool_back_weight")


def test_the_gradient_of_a_pool_goes_into_those_of_the_convolution() -> None:
    """Where nothing else reads it, its image is small, and the windows are halves."""
    x, w, b = gl.input("x", (2, 1, 8, 9)), gl.input("w", (3, 1, 3, 3)), gl.input("b", (3,))
    image = ops.conv2d(x, w, b, padding=1)
    relu = ops.relu(image)
    for y, to_x, to_w in itertools.product((relu, image, ops.tanh(image)), (False, True), (False, True)):
        loss = ops.sum(ops.sin(ops.max_pool2d(y, 2)))
        values = [loss, *[g for g in gl.gradients(loss, [x] * to_x + [w, b] * to_w) if g is not None]]
        made = names(rewritten(*values))
        fused = y is image or y is relu
        assert [made.count(name) for name in POOLED] == [fused and to_x, fused and to_w]
        assert made.count("max_pool2d_back") == (not fused and (to_x or to_w))
        assert made.count("relu_back") == (y is relu and to_x)
        same_with_and_without(values)


def test_the_gradient_of_a_pool_that_is_read_elsewhere_stays() -> None:
    x, w = gl.input("x", (2, 1, 8, 8)), gl.input("w", (3, 1, 3, 3))
    image = ops.conv2d(x, w, padding=1)
    loss = ops.sum(ops.sin(ops.max_pool2d(image, 2)))
    to_image, to_x, to_w = (g for g in gl.gradients(loss, [image, x, w]) if g is not None)
    for values in (
        [to_image, to_x, to_w],
        [to_x, to_w, ops.sum(to_image)],
        [ops.conv2d_back_weight(to_image, to_image, kernel=(3, 3), padding=(1, 1))[0], to_w],
    ):
        made = names(rewritten(*values))
        assert made.count("max_pool2d_back") == 1 and not {*POOLED} & {*made}
        same_with_and_without(values)


def test_the_gradient_of_other_pools_and_of_large_images_stays() -> None:
    x, w = gl.input("x", (2, 1, 8, 9)), gl.input("w", (3, 1, 3, 3))
    loss = ops.sum(ops.sin(ops.max_pool2d(ops.conv2d(x, w, padding=1), 2, stride=1)))
    values = [loss, *[g for g in gl.gradients(loss, [x, w]) if g is not None]]
    assert not {*POOLED} & {*names(rewritten(*values))}
    same_with_and_without(values)
    x, w = gl.input("x", (1, 1, 258, 258)), gl.input("w", (1, 1, 3, 3))
    loss = ops.sum(ops.max_pool2d(ops.conv2d(x, w, padding=1), 2))
    assert not {*POOLED} & {*names(rewritten(loss, *[g for g in gl.gradients(loss, [x, w]) if g is not None]))}


def test_rewriting_twice_changes_nothing() -> None:
    x, w, b = layer()
    loss = ops.sum(ops.sqr(ops.relu(x @ w + b)))
    program = rewritten(loss, *[g for g in gl.gradients(loss, [w, b]) if g is not None])
    assert names(rewrite(program)) == names(program)


def test_names_and_lines_survive() -> None:
    x, w, b = layer()
    with gl.scope("fc1"):
        y = ops.relu(x @ w + b)
    (node,) = [n for n in rewritten(y).nodes if not n.op.leaf]
    assert node.name == "fc1" and node.where == y.node.where


# ---- substitution -----------------------------------------------------------------------------------------


def test_substitute_takes_updates_and_losses_along() -> None:
    x, other = gl.input("x", (6, 3)), gl.input("other", (6, 3))
    norm = nn.BatchNorm(3)
    norm.ensure_init(0)
    hidden = gl.set_loss(norm(x))
    y = ops.sum(hidden * 2.0)
    moved = substitute(y, {x: other})
    assert moved is not y and y.node.inputs[0] is not moved.node.inputs[0]
    assert [n.attrs["key"] for n in gather([moved]).nodes if n.op.name == "input"] == ["other"]
    data = np.random.default_rng(0).normal(3, 1, (6, 3))
    gl.compile(moved)(other=data)
    assert np.allclose(norm.running_mean.numpy(), 0.1 * data.mean(0), atol=1e-5)
    assert any(n.losses for n in gather([moved]).nodes)
    same = substitute(y, {other: x})
    assert same is y  # nothing of it was replaced


def test_substitute_one_of_several_outputs() -> None:
    x = gl.input("x", (4, 3))
    y, mean, var = ops.batch_norm(x)
    total = ops.sum(y) + ops.sum(mean) + ops.sum(var)
    changed = substitute(total, {mean: gl.constant([1.0, 2.0, 3.0])})
    data = np.random.default_rng(0).normal(size=(4, 3))
    a, b = (float(gl.compile(v, backend="numpy")(x=data)[0]) for v in (total, changed))
    assert b - a == pytest.approx(6 - data.mean(0).sum(), abs=1e-5)


# ---- what a program is ------------------------------------------------------------------------------------


def test_updates_of_nodes_on_the_way_belong_to_the_program() -> None:
    x = gl.input("x", (6, 3))
    norm = nn.BatchNorm(3)
    norm.ensure_init(0)
    program = gather([ops.sum(norm(x))])
    assert len(program.effects) == 2 and len(rewrite(program).effects) == 2
    norm.eval()
    assert not gather([ops.sum(norm(x))]).effects


def test_each_program_prints() -> None:
    from gradloom.graph.graph import dot, listing

    x, w, b = layer()
    y = ops.relu(x @ w + b)
    text = listing(rewritten(y).outputs)
    assert text.splitlines()[-1].startswith("%") and "matmul_act" in text and "act=relu" in text
    drawn: Any = dot([y])
    assert drawn.startswith("digraph") and drawn.count("->") == 5


def test_a_frozen_operand_stays_on_the_right() -> None:
    """(x @ y)^T is y^T @ x^T only where both may lie on either side."""
    data = ops.common.draw_blocks(np.random.default_rng(0), "q8_0", (6, 32))
    w = gl.graph.leaves.stored_value(gl.graph.stored.Stored.map("w", data, "q8_0", (6, 32)))
    half = gl.graph.leaves.stored_value(gl.graph.stored.Stored.map("h", np.ones((32, 6), np.float16), "f16", (32, 6)))
    x = gl.input("x", (5, 32))
    numbers = np.random.default_rng(1).normal(size=(5, 32)).astype(np.float32)
    for y in (w.T, half):
        run = gl.compile(ops.matmul(x, y).T * 1.0)
        assert [n.op.name for n in run.plan.order.steps] == ["matmul", "copy"]
        want = gl.compile(ops.matmul(x, y).T * 1.0, backend="numpy")(x=numbers)[0]
        assert np.allclose(run(x=numbers)[0], want, atol=1e-4)
    bias = gl.parameter(np.ones(6))
    fused = gl.compile(ops.relu(ops.matmul(x, w.T) + bias))
    assert [n.op.name for n in fused.plan.order.steps] == ["matmul_act"]
    fed = gl.parameter(np.ones((5, 32)), "fed")
    (g,) = gl.gradients(ops.sum(ops.relu(ops.matmul(ops.relu(fed), w.T))), [fed])
    assert [n.op.name for n in gl.compile(g).plan.order.steps][-1] == "matmul_relu_back"
