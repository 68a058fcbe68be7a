"""Random programs out of public ops. A program is a list of numbers (a recipe): each picks an op and its operands, so
that a failing recipe shrinks to a short one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import ops
from gradloom.graph.leaves import setting
from gradloom.graph.value import Value

SHAPES = ((4, 6), (1, 5), (3, 1), (6,), (2, 3, 4), (0, 4), (1,), (), (5, 5), (2, 1, 3), (8, 16), (33, 17))


@dataclass
class Made:
    """A random program: what to compile, what to feed it."""

    outputs: list[Value]
    updates: list[Value]
    feeds: dict[str, Any]
    parameters: list[gl.Parameter]


@dataclass
class Builder:
    """The values so far. `take` answers the digits of the recipe's current number."""

    rng: np.random.Generator
    pool: list[Value] = field(default_factory=list)
    parameters: list[gl.Parameter] = field(default_factory=list)
    feeds: dict[str, Any] = field(default_factory=dict)
    digits: int = 0

    def take(self, n: int) -> int:
        self.digits, digit = divmod(self.digits, n)
        return digit

    def value(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value of the pool, later ones first in line."""
        found = [v for v in self.pool if fits(v)]
        return found[len(found) - 1 - self.take(len(found))] if found else None

    def parameter(self, *shape: int) -> gl.Parameter:
        p = gl.parameter(self.rng.uniform(-1, 1, shape), f"p{len(self.parameters)}")
        self.parameters.append(p)
        return p

    def ids(self, n: int, rows: int) -> Value:
        name = f"ids{len(self.feeds)}"
        self.feeds[name] = self.rng.integers(0, rows, n).astype(np.int32)
        return gl.input(name, (n,), "i32")


def full(v: Value) -> bool:
    return v.size > 0


def rows(v: Value) -> bool:
    return full(v) and v.ndim >= 1


def matrix(v: Value) -> bool:
    return full(v) and v.ndim == 2


UNARY = (
    "neg", "abs", "sin", "cos", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "relu", "softplus", "elu", "leaky_relu",
    "expm1", "step", "copy", "erf", "floor", "round",
)  # fmt: skip


def unary(b: Builder) -> list[Value | None]:
    x = b.value()
    name = UNARY[b.take(len(UNARY))]
    if x is None:
        return []
    if name == "expm1":
        return [ops.expm1(ops.tanh(x))]
    return [getattr(ops, name)(x)]


def scaled(b: Builder) -> list[Value | None]:
    x = b.value()
    return [ops.clamp(ops.scale(x, factor=0.5, bias=0.25), min=-2, max=2) if b.take(2) else ops.scale(x, factor=1.0)]


def binary(b: Builder) -> list[Value | None]:
    x = b.value()

    def fits(y: Value) -> bool:
        try:
            return x is not None and len(np.broadcast_shapes(x.shape, y.shape)) <= 4
        except ValueError:
            return False

    y = b.value(fits)
    if x is None or y is None:
        return []
    kind = b.take(8)
    if kind == 0:
        return [x + y]
    if kind == 1:
        return [x * ops.tanh(y)]
    if kind == 2:
        return [x - y]
    if kind == 3:
        return [x / (ops.sqr(ops.sin(y)) + 1.0)]
    if kind == 4:
        return [ops.maximum(x, y)]
    if kind == 5:
        return [ops.where(ops.greater(x, y), ops.minimum(x, y), ops.sin(y))]
    return [x + y * 1.0, (x + y) * 0.5] if kind == 6 else [x * 0.5 + x]


def product(b: Builder) -> list[Value | None]:
    x = b.value(lambda v: full(v) and v.ndim >= 2)
    if x is None:
        return []
    kind = b.take(6)
    n = (1, 4, 7, 16)[b.take(4)]
    if kind == 0:
        return [ops.scale(ops.matmul(x, x, transpose_y=True), factor=0.25)]
    if kind == 1:
        return [ops.scale(ops.matmul(x, x, transpose_x=True), factor=0.25)]
    z = ops.matmul(x, b.parameter(x.shape[-1], n))
    if kind == 2:
        return [ops.scale(z, factor=0.5)]
    z = ops.scale(z, factor=0.5) if kind == 3 else z + b.parameter(n)
    return [ops.relu(z)] if kind == 5 else [z]


def reduction(b: Builder) -> list[Value | None]:
    x = b.value(full)
    if x is None:
        return []
    name = ("sum", "mean", "max", "min")[b.take(4)]
    axes = None if not x.ndim or b.take(4) == 0 else b.take(x.ndim)
    y = getattr(ops, name)(x, axes, keepdims=bool(b.take(2)))
    return [ops.scale(y, factor=0.25) if name == "sum" else y]


def view(b: Builder) -> list[Value | None]:
    x = b.value()
    assert x is not None
    kind = b.take(7)
    if kind == 0 and x.ndim >= 2:
        return [ops.transpose(x)]
    if kind == 1:
        return [ops.reshape(x, (x.size,))]
    if kind == 2 and x.ndim >= 1 and x.shape[0] >= 2:
        return [x[1:], x[:-1]]
    if kind == 3 and x.ndim >= 2 and x.shape[-1] >= 3:
        return [x[..., ::2], x[..., 1]]
    if kind == 4 and x.ndim <= 3:
        return [ops.broadcast_to(x, (3, *x.shape))]
    if kind == 5 and x.ndim <= 3:
        return [ops.expand_dims(x, b.take(x.ndim + 1))]
    if kind == 6 and x.ndim >= 2:
        axes = list(range(x.ndim))
        return [ops.reshape(ops.permute(x, axes[1:] + axes[:1]), (x.size,))]
    return [x[0:0]] if x.ndim else []


def joined(b: Builder) -> list[Value | None]:
    x = b.value(rows)
    if x is None:
        return []
    axis = b.take(x.ndim)
    kind = b.take(4)
    if kind == 0:
        return [ops.concat([ops.sin(x), x, ops.neg(x)], axis)]
    if kind == 1 and x.shape[axis] >= 2:
        a, c = ops.split(x, [1, x.shape[axis] - 1], axis)
        return [ops.concat([ops.cos(c), a], axis), a, c]
    if kind == 2:
        return [ops.pad(x, [(1, 0) if i == axis else (0, 2) for i in range(x.ndim)], 0.5)]
    y = b.value(lambda v: v.shape == x.shape)
    return [ops.stack([x, x if y is None else y], axis)] if x.ndim < 4 else []


def normed(b: Builder) -> list[Value | None]:
    x = b.value(rows)
    if x is None:
        return []
    kind = b.take(6)
    if kind == 0:
        return [ops.softmax(x, scale=0.5)]
    if kind == 1:
        return [ops.softmax(x, mask=b.parameter(x.shape[-1]))]
    if kind == 2:
        return [ops.log_softmax(x)]
    if kind == 3:
        return [ops.rms_norm(x, b.parameter(x.shape[-1]), eps=0.1)]
    if kind == 4:
        return [ops.layer_norm(x, b.parameter(x.shape[-1]), b.parameter(x.shape[-1]), eps=0.1)]
    if x.ndim >= 2 and x.shape[0] >= 2:
        return list(ops.batch_norm(x, b.parameter(x.shape[1]), b.parameter(x.shape[1]), eps=0.1))
    return []


def indexed(b: Builder) -> list[Value | None]:
    kind = b.take(3)
    if kind == 0:
        table = b.parameter(5, (1, 3, 8)[b.take(3)])
        return [ops.get_rows(table, b.ids((1, 4, 9)[b.take(3)], 5))]
    x = b.value(matrix)
    if x is None:
        return []
    if kind == 1:
        return [ops.get_rows(x, b.ids(3, x.shape[0]))]
    total, weight, _ = ops.cross_entropy_sum(x, b.ids(x.shape[0], x.shape[1]), None)
    return [total / weight]


def image(b: Builder) -> list[Value | None]:
    x = b.value(lambda v: matrix(v) and min(v.shape) >= 4)
    if x is None:
        return []
    y = ops.conv2d(ops.reshape(x, (1, 1, *x.shape)), b.parameter(2, 1, 3, 3), b.parameter(2), padding=b.take(2))
    kind = b.take(4)
    if kind == 0:
        return [ops.relu(y)]
    if kind == 1:
        return [ops.avg_pool2d(y, 2)]
    return [ops.max_pool2d(ops.relu(y) if kind == 2 else y, 2)]


def dropped(b: Builder) -> list[Value | None]:
    x = b.value(rows)
    return [] if x is None else [ops.dropout(x, 0.25, stream=b.take(3))]


def scrambled(number: int) -> int:
    """Small numbers, of which hypothesis is fond, pick among all ops too."""
    number = (number + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 % 2**64
    return (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64


OPS = (unary, unary, binary, binary, product, reduction, view, view, joined, normed, indexed, image, dropped, scaled)


def build(recipe: Sequence[int], train: int, seed: int = 0) -> Made:
    """train: 0 values only, 1 gradients as well, 2 an update of every parameter, 3 accumulation and two updates."""
    b = Builder(np.random.default_rng(seed))
    b.digits = scrambled(recipe[0])
    for k in range(2):
        shape = SHAPES[b.take(len(SHAPES))]
        b.feeds[f"x{k}"] = b.rng.uniform(-1, 1, shape).astype(np.float32)
        b.pool.append(gl.input(f"x{k}", shape))
    b.pool.append(b.parameter(*SHAPES[b.take(len(SHAPES))]))
    for k, number in enumerate(recipe[1:]):
        b.digits = scrambled(number + k)
        b.pool += [v for v in OPS[b.take(len(OPS))](b) if v is not None and v.ndim <= 5 and v.size <= 4000]
    last = b.pool[-6:]
    outputs: list[Value] = [*last, b.parameters[0]]
    if b.parameters[0].ndim:
        outputs.append(b.parameters[0][::2])
    if not train:
        return Made(outputs, [], b.feeds, b.parameters)
    loss = sum((ops.mean(ops.sin(v)) for v in last if v.size), gl.constant(0.0) * 1.0)
    assert isinstance(loss, Value)
    inputs = [v for v in b.pool if v.node.op.name == "input"]
    grads = gl.gradients(loss, [*inputs, *b.parameters])
    outputs += [loss, *[g for g in grads if g is not None]]
    reached = [(p, g) for p, g in zip(b.parameters, grads[len(inputs) :], strict=True) if g is not None and p.size]
    updates: list[Value] = []
    if train >= 2 and reached:
        trained, slopes = [p for p, _ in reached], [g for _, g in reached]
        weight = gl.constant(1.0)
        outputs.append(ops.guard(loss, weight, *slopes))
        if train == 3:
            kept = [b.parameter(*p.shape) for p in trained]
            pairs = [v for pair in zip(kept, slopes, strict=True) for v in pair]
            slopes = list(ops.accumulate(setting("keep"), *pairs))
            updates += slopes
        half = len(trained) // 2
        state = [b.parameter(*p.shape) for p in trained[:half]]
        b.feeds |= {"lr": 0.25, "keep": 1.0} if train == 3 else {"lr": 0.25}
        lr, none = setting("lr"), gl.constant(0.0)
        if half:
            groups = [v for group in zip(trained[:half], slopes[:half], state, strict=True) for v in group]
            updates += ops.sgd(lr, gl.constant(0.5), none, weight, *groups)
        groups = [v for p, g in zip(trained[half:], slopes[half:], strict=True) for v in (p, g, None)]
        updates += ops.sgd(lr, none, none, weight, *groups)[::2]
    return Made(outputs, updates, b.feeds, b.parameters)
