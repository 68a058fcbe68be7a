"""Small real programs with all that a plan has to get right, and a machine that runs bytecode by the references."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import nn, ops
from gradloom.base.dtypes import ALL
from gradloom.base.settings import Switches
from gradloom.graph.calls import computed
from gradloom.graph.leaves import setting
from gradloom.graph.streams import fresh_streams
from gradloom.graph.value import Node, Value
from gradloom.plan.bytecode import ARG_WRITE, EACH_STEP, NO_SEGMENT, SETTING_BYTES, Bytecode, KernelNeeds
from gradloom.plan.plan import Plan, make_plan
from gradloom.transform.passes import rewrite
from gradloom.transform.program import gather

KINDS = {t.code: t.numpy for t in ALL}
Built = tuple[list[Value], Sequence[Value]]  # outputs, updates


def parameter(name: str, *shape: int, low: float = -1.0) -> gl.Parameter:
    rng = np.random.default_rng(len(name) + sum(shape))
    return gl.parameter(rng.uniform(low, 1.0, shape), name)


def scalars(*names: str) -> list[Value]:
    return [setting(name) for name in names]


def mlp() -> Built:
    """Two layers, cross entropy, guard, accumulators, AdamW; a parameter as an output."""
    x, labels = gl.input("x", (6, 5)), gl.input("labels", (6,), "i32")
    w1, b1, w2, b2 = parameter("w1", 5, 7), parameter("b1", 7), parameter("w2", 7, 3), parameter("b2", 3)
    h = ops.relu(x @ w1 + b1)
    logits = h @ w2 + b2
    loss, weight, _ = ops.cross_entropy_sum(logits, labels, None)
    weights = [w1, b1, w2, b2]
    grads = gl.gradients(loss, weights)
    guard = ops.guard(loss, weight, *grads)
    accs = [parameter(f"{p.name}.acc", *p.shape) for p in weights]
    acc = ops.accumulate(setting("keep"), *[v for pair in zip(accs, grads, strict=True) for v in pair])
    state = [(parameter(f"{p.name}.m", *p.shape), parameter(f"{p.name}.v", *p.shape, low=0.1)) for p in weights]
    groups = [v for p, a, (m, s) in zip(weights, acc, state, strict=True) for v in (p, a, m, s)]
    updates = ops.adamw(*scalars("lr", "beta1", "beta2", "eps", "decay", "t"), weight, *groups)
    return [loss, ops.argmax(logits, -1), guard, w1], (*acc, *updates)


def conv() -> Built:
    """Convolution, pooling, a dense layer, momentum."""
    x, target = gl.input("x", (2, 1, 6, 6)), gl.input("target", (2, 3))
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    net.ensure_init(0)
    loss = ops.mse(net(x), target)
    weights = list(net.parameters())
    grads = gl.gradients(loss, weights)
    norm = ops.guard(loss, gl.constant(1.0), *grads)
    groups = [v for p, g in zip(weights, grads, strict=True) for v in (p, g, parameter(f"{p.name}.m", *p.shape))]
    return [loss, norm], ops.sgd(*scalars("lr", "momentum", "decay", "weight"), *groups)


def batch_norm() -> Built:
    """Running statistics beside the gradient step."""
    x = gl.input("x", (5, 4))
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.Tanh())
    net.ensure_init(0)
    loss = ops.mean(ops.sqr(net(x) - 0.5))
    weights = list(net.parameters())
    grads = gl.gradients(loss, weights)
    ops.guard(loss, gl.constant(1.0), *grads)
    groups = [v for p, g in zip(weights, grads, strict=True) for v in (p, g, None)]
    return [loss], list(ops.sgd(*scalars("lr", "momentum", "decay", "weight"), *groups))[::2]


def views() -> Built:
    """Transposes, slices, broadcasts, reshapes; some readers take them, others get copies."""
    x, y = gl.input("x", (4, 6)), parameter("y", 6, 4)
    a = ops.transpose(ops.exp(x))[1:5, ::2] + y[1:5, 1:3]
    b = ops.softmax(ops.transpose(a))
    c = ops.reshape(ops.permute(ops.reshape(ops.sin(x), (2, 2, 6)), (2, 0, 1)), (6, 4)) @ ops.transpose(y)
    d = ops.broadcast_to(ops.sum(b, 1, keepdims=True), (2, 6)) * c[:2]
    (g,) = gl.gradients(ops.sum(d), [y])
    return [d, g, y[2:4]], ()


def split() -> Built:
    """Concat, split, pad, and the gradients that they exchange."""
    x, w = gl.input("x", (3, 8)), parameter("w", 3, 8)
    a, b, c = ops.split(x * w, [3, 2, 3], 1)
    joined = ops.concat([ops.tanh(c), a * c, ops.pad(b, [(0, 0), (1, 0)])], 1)
    loss = ops.sum(ops.sqr(joined))
    (g,) = gl.gradients(loss, [w])
    return [joined, g], ops.sgd(*scalars("lr", "momentum", "decay", "weight"), w, g, None)[:1]


def optional() -> Built:
    """Optional outputs, present and absent; ids; rows by id."""
    table, ids = parameter("table", 7, 4), gl.input("ids", (5,), "i32")
    labels = gl.input("labels", (5,), "i32")
    rows = ops.get_rows(table, ids)
    used, _, grad = ops.cross_entropy_sum(rows, labels, None)
    unused, _, _ = ops.cross_entropy_sum(ops.sigmoid(rows), labels, None)
    image = ops.reshape(rows, (1, 1, 5, 4))
    small = ops.max_pool2d(image, 2)
    (g,) = gl.gradients(ops.sum(small) + used, [table])
    return [used + unused, grad, small, g], ()


def chain() -> Built:
    """Much in place, with values that must survive it."""
    x, y = gl.input("x", (3, 5)), gl.input("y", (3, 5))
    a = ops.exp(ops.sin(x))
    b = ops.neg(ops.sqr(ops.cos(a)))
    c = ops.silu(b + a) * ops.tanh(y)
    d = ops.sigmoid(ops.scale(c, 2.0, 0.5)) - c
    return [ops.relu(d) + a, ops.maximum(d, y)], ()


def attention() -> Built:
    """Norm, products with transposes, softmax with a mask, dropout, residuals, a second gradient."""
    x, mask = gl.input("x", (2, 3, 4)), gl.input("mask", (3, 3))
    wq, wk, wo = parameter("wq", 4, 4), parameter("wk", 4, 4), parameter("wo", 4, 4)
    h = ops.rms_norm(x)
    scores = ops.matmul(h @ wq, h @ wk, transpose_y=True)
    p = ops.dropout(ops.softmax(scores, mask=mask, scale=0.5), 0.25)
    y = x + (p @ h) @ wo
    loss = ops.sum(ops.sqr(ops.layer_norm(y)))
    gq, gk, go = gl.gradients(loss, [wq, wk, wo])
    (again,) = gl.gradients(ops.sum(ops.sqr(gq)), [wk])
    norm = ops.guard(loss, gl.constant(1.0), gq, gk, go)
    new = ops.sgd(*scalars("lr", "momentum", "decay", "weight"), wq, gq, None, wk, gk, None)
    last = ops.sgd(*scalars("lr", "momentum", "decay", "weight"), wo, go + new[0] * 0.1, parameter("wo.m", 4, 4))
    return [loss, norm, again], (new[0], new[2], *last)


def user_op() -> Built:
    """Two user-defined ops, of several results and of a view, between products; an update that needs no guard."""
    cut = gl.op(
        lambda x: (np.tanh(x), x.sum(1)),
        lambda outputs, gradients: gradients[0] * (1 - outputs[0] ** 2) + gradients[1][:, None],
        lambda x: [x, x.shape[:1]],
    )
    x, w, v = gl.input("x", (4, 3)), parameter("w", 3, 5), parameter("v", 5, 2)
    h, sums = cut(x @ w)
    y = gl.op(lambda a, b: a * b, lambda inputs, gradients: (gradients[0] * inputs[1], None))(h.T, 0.5)
    loss = ops.sum(ops.sqr(ops.transpose(y) @ v)) + ops.sum(sums)
    new = ops.sgd(*scalars("lr", "momentum", "decay", "weight"), *_trained(loss, w, v))
    return [loss, sums, ops.sgn(sums)], new


def _trained(loss: Value, *weights: Value) -> list[Value | None]:
    return [v for w, g in zip(weights, gl.gradients(loss, weights), strict=True) for v in (w, g, None)]


PROGRAMS: dict[str, Callable[[], Built]] = {
    f.__name__: f for f in (mlp, conv, batch_norm, views, split, optional, chain, attention, user_op)
}


def needs(node: Node, args: np.ndarray) -> KernelNeeds:
    """Some ops ask for a workspace and several parts, as kernels of large tensors do."""
    if node.op.name in ("sum", "matmul", "matmul_act", "guard", "softmax", "conv2d_back_weight"):
        return KernelNeeds((2, 1), 64, 192)
    return KernelNeeds()


@functools.cache
def planned(name: str, **switches: Any) -> Plan:
    with fresh_streams():  # the same masks each time
        outputs, updates = PROGRAMS[name]()
    program = rewrite(gather(outputs, updates))
    return make_plan(program, needs, Switches(**switches))


# ---- a machine that runs bytecode by the references ------------------------------------------------------------


def output_ranges(plan: Plan) -> list[tuple[int, int, int]]:
    """(segment, offset, bytes) of each output."""
    return [(*place, v.bytes) for place, v in zip(plan.output_places, plan.laid.program.outputs, strict=True)]


def interpret(plan: Plan, bytecode: Bytecode | None = None, seed: int = 0) -> list[bytes]:
    """Run a plan (or other bytecode in its place) on random inputs, dead ranges poisoned, by the references: the
    outputs' bytes and what every stored array holds after it."""
    bytecode = plan.bytecode if bytecode is None else bytecode
    rng = np.random.default_rng(seed)
    memory = [np.full(n + 64, 255, np.uint8) for n in bytecode.segment_bytes]
    memory[1][: len(bytecode.constants)] = np.frombuffer(bytecode.constants, np.uint8)
    leaves = {n.attrs["key"]: n.outputs[0] for n in plan.laid.program.nodes if n.op.name == "input"}
    for key, offset in bytecode.input_offsets.items():
        value = leaves[key]
        data = rng.uniform(-1, 1, value.shape) if value.dtype.is_float else rng.integers(0, 3, value.shape)
        raw = np.asarray(data, value.dtype.numpy).reshape(-1).view(np.uint8)
        memory[2][offset : offset + raw.size] = raw
    for key, word in bytecode.settings.items():
        kind = np.int64 if key in ("seed", "step", "row") else np.float32
        at = SETTING_BYTES * word
        memory[3][at : at + np.dtype(kind).itemsize] = np.array(
            [{"lr": 0.25, "eps": 0.5, "beta1": 0.5, "beta2": 0.75, "momentum": 0.5, "decay": 0.1}.get(key, 1)], kind
        ).view(np.uint8)
    for i, stored in enumerate(bytecode.stored):
        raw = stored.read().reshape(-1).view(np.uint8)
        memory[4 + i][: raw.size] = raw

    def view(arg: np.void) -> np.ndarray:
        kind = KINDS[int(arg["dtype"])]
        rank = int(arg["rank"])
        strides = [int(s) * kind.itemsize for s in arg["strides"][:rank]]
        shape = [int(n) for n in arg["shape"][:rank]]
        return np.ndarray(shape, kind, memory[int(arg["segment"])].data, int(arg["offset"]), strides)

    def bury(step: int) -> None:
        for when, segment, offset, size in bytecode.dead:
            if when == step:
                memory[segment][offset : offset + size] = 255

    bury(EACH_STEP)
    for i, ins in enumerate(bytecode.instructions):
        node = bytecode.nodes[int(ins["node"])]
        first = int(ins["arg_first"])
        args = bytecode.args[first : first + int(ins["arg_count"])]
        given = [None if a["segment"] == NO_SEGMENT else view(a).copy() for a in args[: len(node.inputs)]]
        with np.errstate(all="ignore"):
            if node.op.python:
                results = computed(node, [a for a in given if a is not None])
            else:
                results = node.op.call("reference", dict(node.attrs) | node.op.bind_inputs(given))
        results = results if isinstance(results, (tuple, list)) else (results,)
        for arg in args[len(node.inputs) + len(node.outputs) :]:
            view(arg)[...] = 255  # the workspace
        for arg, result in zip(args[len(node.inputs) :], results, strict=False):
            if arg["segment"] != NO_SEGMENT and arg["flags"] & ARG_WRITE:
                view(arg)[...] = result
        bury(i)
    found = [memory[segment][offset : offset + size].tobytes() for segment, offset, size in output_ranges(plan)]
    return found + [memory[4 + i][: s.bytes].tobytes() for i, s in enumerate(bytecode.stored)]
