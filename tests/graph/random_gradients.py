"""Random graphs with casts, soft labels, row weights, several losses and second derivatives: their gradients, computed
by the float64 references, against PyTorch's in float64, and some of them on the CPU against the references.

    python -m tests.graph.random_gradients --count 10000 [--first 0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gradloom as gl
from gradloom import ops
from gradloom.graph.graph import reachable
from gradloom.graph.value import Value
from gradloom.run.numpy_backend import evaluate
from tests.random_cases import run_cases

ROWS, WIDTH = 4, 6  # most values are [4, 6]: so they meet in many ways
KINDS = ("bf16", "f16")


class Pairs:
    """A random graph under way: values, each with its twin in PyTorch (float64)."""

    def __init__(self, seed: int) -> None:
        import torch

        self.torch = torch
        self.functional = torch.nn.functional
        self.rng = np.random.default_rng(seed)
        self.parameters: list[tuple[gl.Parameter, Any]] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.has_casts = False
        self.first_order_only = False  # attention has no second derivative
        self.used: list[str] = []
        self.pool = [self.parameter(ROWS, WIDTH), self.parameter(ROWS, WIDTH), self.input(ROWS, WIDTH)]

    # ---- leaves ------------------------------------------------------------------------------------------

    def parameter(self, *shape: int) -> tuple[Value, Any]:
        data = self.rng.uniform(-1, 1, shape).astype(np.float32)
        p = gl.parameter(data, f"p{len(self.parameters)}")
        twin = self.torch.tensor(data.astype(np.float64), requires_grad=True)
        self.parameters.append((p, twin))
        return p, twin

    def input(self, *shape: int) -> tuple[Value, Any]:
        data = self.rng.uniform(-1, 1, shape).astype(np.float32)
        name = f"x{len(self.feeds)}"
        self.feeds[name] = data
        return gl.input(name, shape), self.torch.tensor(data.astype(np.float64))

    def ids(self, count: int, rows: int, ignored: bool = False) -> tuple[Value, Any]:
        data = self.rng.integers(0, rows, count).astype(np.int32)
        if ignored and self.chance(0.5):
            data[self.rng.integers(count)] = -100
        name = f"x{len(self.feeds)}"
        self.feeds[name] = data
        return gl.input(name, (count,), "i32"), self.torch.tensor(data.astype(np.int64))

    # ---- choices -----------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def one(self, things: Any) -> Any:
        return things[int(self.rng.integers(len(things)))]

    def value(self) -> tuple[Value, Any]:
        """A value of shape [ROWS, WIDTH]."""
        return self.one(self.pool)

    def narrow(self, pair: tuple[Value, Any]) -> tuple[Value, Any]:
        """Sometimes cast to halves: the references keep float64, so its twin stays as it is."""
        if not self.chance(0.5):
            return pair
        self.has_casts = True
        return ops.cast(pair[0], self.one(KINDS)), pair[1]

    def weights(self) -> tuple[Value | None, Any]:
        """Row weights [ROWS]: none, given, or computed from the graph."""
        kind = int(self.rng.integers(3))
        if kind == 0:
            return None, self.torch.ones(ROWS, dtype=self.torch.float64)
        if kind == 1:
            return self.input(ROWS)
        v, t = self.value()
        return ops.sigmoid(v[:, 0]), self.torch.sigmoid(t[:, 0])

    def grow(self) -> None:
        name = self.one(tuple(STEPS))
        self.used.append(name)
        self.pool.append(STEPS[name](self))


# ---- steps: each makes a value of shape [ROWS, WIDTH] ------------------------------------------------------


def unary(b: Pairs) -> tuple[Value, Any]:
    torch, (v, t) = b.torch, b.value()
    f = b.functional
    table: tuple[tuple[Callable[[Value], Value], Callable[[Any], Any]], ...] = (
        (ops.tanh, torch.tanh), (ops.sigmoid, torch.sigmoid), (ops.silu, f.silu), (ops.sin, torch.sin),
        (ops.cos, torch.cos), (ops.sqr, torch.square), (ops.softplus, f.softplus), (ops.abs, torch.abs),
        (ops.gelu, f.gelu), (ops.gelu_tanh, lambda x: f.gelu(x, approximate="tanh")), (ops.relu, torch.relu),
        (ops.elu, f.elu), (ops.leaky_relu, f.leaky_relu),
        (lambda x: ops.exp(ops.tanh(x)), lambda x: torch.exp(torch.tanh(x))),
        (lambda x: ops.expm1(ops.tanh(x)), lambda x: torch.expm1(torch.tanh(x))),
        (lambda x: ops.log(ops.sqr(x) + 1.0), lambda x: torch.log(x * x + 1)),
        (lambda x: ops.sqrt(ops.sqr(x) + 0.5), lambda x: torch.sqrt(x * x + 0.5)),
        (lambda x: ops.clamp(x, min=-0.7, max=0.9), lambda x: torch.clamp(x, -0.7, 0.9)),
        (lambda x: ops.scale(x, factor=-1.5, bias=0.25), lambda x: -1.5 * x + 0.25),
        (ops.detach, lambda x: x.detach()),
        (lambda x: -x, lambda x: -x),
        (lambda x: x * ops.step(x), lambda x: x * (x > 0)),
        (lambda x: x * ops.sgn(x), lambda x: x * torch.sign(x).detach()),
        (ops.erf, torch.erf),
        (lambda x: ops.log1p(ops.sqr(x)), lambda x: torch.log1p(x * x)),
        (lambda x: x + ops.floor(ops.sigmoid(x)), lambda x: x + torch.floor(torch.sigmoid(x))),
        (lambda x: ops.roll(x, 1, -1), lambda x: torch.roll(x, 1, -1)),
        (lambda x: ops.flip(x, 0), lambda x: torch.flip(x, [0])),
        (lambda x: ops.l2_norm(x, eps=0.1), lambda x: f.normalize(x, dim=-1, eps=0.1)),
        (lambda x: ops.einsum("ij,kj,kl->il", x, x, ops.tanh(x)),
         lambda x: torch.einsum("ij,kj,kl->il", x, x, x.tanh())),
    )  # fmt: skip
    mine, theirs = b.one(table)
    return mine(v), theirs(t)


def binary(b: Pairs) -> tuple[Value, Any]:
    torch, (v, t), (w, u) = b.torch, b.value(), b.value()
    table = (
        (lambda x, y: x + y, lambda x, y: x + y),
        (lambda x, y: x - y, lambda x, y: x - y),
        (lambda x, y: ops.tanh(x) * y, lambda x, y: torch.tanh(x) * y),
        (lambda x, y: x / (ops.sqr(y) + 1.0), lambda x, y: x / (y * y + 1)),
        (lambda x, y: ops.maximum(x, y), lambda x, y: torch.maximum(x, y)),
        (lambda x, y: ops.minimum(x, y), lambda x, y: torch.minimum(x, y)),
        (lambda x, y: ops.where(ops.greater(x, y), ops.sin(x), y), lambda x, y: torch.where(x > y, torch.sin(x), y)),
        (lambda x, y: ops.pow(ops.sqr(x) + 0.5, ops.tanh(y)), lambda x, y: torch.pow(x * x + 0.5, torch.tanh(y))),
        (lambda x, y: x + ops.sum(y, 0), lambda x, y: x + y.sum(0)),
        (lambda x, y: x * ops.mean(y, 1, keepdims=True), lambda x, y: x * y.mean(1, keepdim=True)),
        (ops.swiglu, lambda x, y: b.functional.silu(x) * y),
        (ops.geglu, lambda x, y: b.functional.gelu(x, approximate="tanh") * y),
    )
    mine, theirs = b.one(table)
    return mine(v, w), theirs(t, u)


def halves(b: Pairs) -> tuple[Value, Any]:
    """Through halves and back: rounding has slope 1."""
    v, t = b.value()
    b.has_casts = True
    return ops.cast(ops.cast(v, b.one(KINDS)), "f32"), t


def product(b: Pairs) -> tuple[Value, Any]:
    v, t = b.value()
    if b.chance(0.3):  # with another value of the graph
        w, u = b.narrow(b.value())
        return ops.matmul(v, w, transpose_y=True) @ v * 0.25, t @ u.T @ t * 0.25
    w, u = b.narrow(b.parameter(WIDTH, WIDTH))
    if b.chance(0.3):
        return ops.matmul(v, w, transpose_y=True), t @ u.T
    z, s = ops.matmul(v, w), t @ u
    if b.chance(0.5):
        bias, c = b.parameter(WIDTH)
        z, s = z + bias, s + c
    return (ops.relu(z), b.torch.relu(s)) if b.chance(0.3) else (z, s)


def batched(b: Pairs) -> tuple[Value, Any]:
    (v, t), (w, u) = b.value(), b.narrow(b.parameter(2, 3, 3))
    z = ops.matmul(ops.reshape(v, (2, ROWS, 3)), w)
    return ops.reshape(z, (ROWS, WIDTH)), (t.reshape(2, ROWS, 3) @ u).reshape(ROWS, WIDTH)


def rows_by_id(b: Pairs) -> tuple[Value, Any]:
    table, twin = b.narrow(b.parameter(5, WIDTH) if b.chance(0.5) else b.value())
    ids, at = b.ids(ROWS, table.shape[0])
    return ops.get_rows(table, ids), twin[at]


def view(b: Pairs) -> tuple[Value, Any]:
    torch, (v, t), (w, u) = b.torch, b.value(), b.value()
    kind = int(b.rng.integers(7))
    if kind == 0:
        return ops.reshape(ops.transpose(v), (ROWS, WIDTH)), t.T.reshape(ROWS, WIDTH)
    if kind == 1:
        return ops.concat([v[1:], w[:1]], 0), torch.cat([t[1:], u[:1]], 0)
    if kind == 2:
        return ops.concat([w[:, ::2], v[:, 1::2]], 1), torch.cat([u[:, ::2], t[:, 1::2]], 1)
    if kind == 3:
        return ops.pad(v[1:, :4], [(1, 0), (0, 2)], 0.5), b.functional.pad(t[1:, :4], (0, 2, 1, 0), value=0.5)
    if kind == 4:
        return ops.broadcast_to(v[0], (ROWS, WIDTH)) * w, t[0].expand(ROWS, WIDTH) * u
    if kind == 5:
        both = ops.stack([v, w], 0)
        return both[0] + both[1] * 0.5, t + u * 0.5
    a, c = ops.split(v, [2, 4], 1)
    return ops.concat([c, a], 1), torch.cat([t[:, 2:], t[:, :2]], 1)


def reduction(b: Pairs) -> tuple[Value, Any]:
    torch, (v, t) = b.torch, b.value()
    axis = int(b.rng.integers(2))
    table = (
        (ops.sum, torch.sum), (ops.mean, torch.mean), (ops.max, torch.amax), (ops.min, torch.amin),
    )  # fmt: skip
    mine, theirs = b.one(table)
    return v - 0.25 * mine(v, axis, keepdims=True), t - 0.25 * theirs(t, axis, keepdim=True)


def norm(b: Pairs) -> tuple[Value, Any]:
    torch, f, (v, t) = b.torch, b.functional, b.value()
    kind = int(b.rng.integers(6))
    if kind == 0:
        return ops.softmax(v, scale=0.5), torch.softmax(t * 0.5, -1)
    if kind == 1:
        mask, m = b.parameter(WIDTH)
        return ops.softmax(v, mask=mask), torch.softmax(t + m, -1)
    if kind == 2:
        return ops.log_softmax(v), torch.log_softmax(t, -1)
    weight, w = b.parameter(WIDTH)
    bias, c = b.parameter(WIDTH)
    if kind == 3:
        return ops.layer_norm(v, weight, bias, eps=0.1), f.layer_norm(t, (WIDTH,), w, c, 0.1)
    if kind == 4:
        return ops.rms_norm(v, weight, eps=0.1), t / torch.sqrt((t * t).mean(-1, keepdim=True) + 0.1) * w
    y, mean, var = ops.batch_norm(v, weight, bias, eps=0.1)
    s = f.batch_norm(t, None, None, w, c, True, 0.0, 0.1)
    return y + mean * ops.sin(var), s + t.mean(0) * torch.sin(t.var(0, unbiased=False))


def image(b: Pairs) -> tuple[Value, Any]:
    f, (v, t), (w, u) = b.functional, b.value(), b.parameter(1, 1, 3, 3)
    z = ops.conv2d(ops.reshape(v, (1, 1, ROWS, WIDTH)), w, padding=1)
    s = f.conv2d(t.reshape(1, 1, ROWS, WIDTH), u, padding=1)
    kind = int(b.rng.integers(3))
    if kind == 1:
        z, s = ops.avg_pool2d(z, 3, 1, 1), f.avg_pool2d(s, 3, 1, 1)
    if kind == 2:
        z, s = ops.max_pool2d(z, 3, 1, 1), f.max_pool2d(s, 3, 1, 1)
    return ops.reshape(z, (ROWS, WIDTH)), s.reshape(ROWS, WIDTH)


def rotated(b: Pairs) -> tuple[Value, Any]:
    """Rotary positions, the frequencies of which are trained."""
    torch, (v, t), (frequencies, w) = b.torch, b.value(), b.parameter(3)
    positions = np.arange(ROWS, dtype=np.int32)
    pairing, inverse = b.one(("interleaved", "half")), b.chance(0.5)
    y = ops.rope(
        ops.reshape(v, (ROWS, 1, WIDTH)), gl.constant(positions), frequencies, pairing=pairing, inverse=inverse
    )
    angle = torch.tensor(positions.astype(np.float64))[:, None] * w * (-1 if inverse else 1)
    c, s = torch.cos(angle), torch.sin(angle)
    if pairing == "half":
        first, second = t[:, :3], t[:, 3:]
        z = torch.cat([first * c - second * s, first * s + second * c], 1)
    else:
        first, second = t[:, ::2], t[:, 1::2]
        z = torch.stack([first * c - second * s, first * s + second * c], 2).reshape(ROWS, WIDTH)
    return ops.reshape(y, (ROWS, WIDTH)), z


def attended(b: Pairs) -> tuple[Value, Any]:
    b.first_order_only = True
    torch, triples = b.torch, [b.value() for _ in range(3)]
    q, k, v = (ops.reshape(x, (1, ROWS, 2, 3)) for x, _ in triples)
    y, _ = ops.attention(q, k, v, gl.constant(np.arange(ROWS, dtype=np.int32)[None]), scale=0.5)
    s, r, u = (x.reshape(1, ROWS, 2, 3).transpose(1, 2) for _, x in triples)
    scores = (s @ r.transpose(2, 3)) * 0.5
    scores = scores.masked_fill(torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), float("-inf"))
    return ops.reshape(y, (ROWS, WIDTH)), (torch.softmax(scores, -1) @ u).transpose(1, 2).reshape(ROWS, WIDTH)


STEPS: dict[str, Callable[[Pairs], tuple[Value, Any]]] = {
    "unary": unary, "unary again": unary, "binary": binary, "binary again": binary, "halves": halves,
    "product": product, "product again": product, "batched": batched, "rows": rows_by_id, "view": view,
    "reduction": reduction, "norm": norm, "image": image, "rotated": rotated, "attended": attended,
}  # fmt: skip


# ---- losses ------------------------------------------------------------------------------------------------


def loss_of(b: Pairs) -> tuple[Value, Any]:
    torch, f, (v, t) = b.torch, b.functional, b.value()
    kind = b.one(("sum", "mse", "ids", "soft", "linear", "linear"))
    b.used.append(kind)
    weights, row_weights = b.weights()
    if kind == "sum":
        return ops.sum(ops.sin(v)), torch.sin(t).sum()
    if kind == "mse":
        w, u = b.value()
        squares = ((t - u) ** 2 * row_weights[:, None]).sum() / (row_weights.sum() * WIDTH)
        return ops.mse(v, w, weights), squares
    if kind == "soft":
        w, u = b.value()  # label rows that are computed: of sum 1, or of any sum
        labels, rows = (ops.softmax(w), torch.softmax(u, -1)) if b.chance(0.5) else (ops.sigmoid(w), torch.sigmoid(u))
        losses = -(rows * torch.log_softmax(t, -1)).sum(1)
        return ops.cross_entropy(v, labels, weights), (losses * row_weights).sum() / row_weights.sum()
    if kind == "ids":
        ids, at = b.ids(ROWS, WIDTH, ignored=True)
        logits, scores, found = v, t, ops.cross_entropy
    else:
        ids, at = b.ids(ROWS, 7, ignored=True)
        head, h = b.narrow(b.parameter(7, WIDTH))
        scores = t @ h.T

        def found(x: Value, labels: Value, weights: Value | None) -> Value:
            total, weight = ops.linear_cross_entropy_pair(x, head, labels, weights)
            return total / weight

        logits = v
    counted = row_weights * (at != -100)
    losses = f.cross_entropy(scores, at, reduction="none", ignore_index=-100)
    return found(logits, ids, weights), (losses * counted).sum() / counted.sum()


# ---- the comparison ----------------------------------------------------------------------------------------


def compare(seed: int) -> str:
    """Build the graph of this seed and hold its gradients against PyTorch's; what it consisted of. AssertionError."""
    b = Pairs(seed)
    for _ in range(int(b.rng.integers(1, 10))):
        b.grow()
    pairs = [loss_of(b) for _ in range(int(b.rng.integers(1, 4)))]
    losses, total = [v for v, _ in pairs], sum(t for _, t in pairs)
    wrt, twins = [p for p, _ in b.parameters], [t for _, t in b.parameters]
    what = f"seed {seed}: {', '.join(b.used)}"
    second = b.chance(0.5) and not b.first_order_only
    grads = gl.gradients(losses, wrt)
    if not total.requires_grad:  # all was cut
        agree(b, grads, [None] * len(wrt), what)
        return what
    theirs = b.torch.autograd.grad(total, twins, create_graph=second, allow_unused=True)
    agree(b, grads, theirs, f"{what}; first")
    if second:
        mine = [ops.sum(ops.sin(g)) for g in grads if g is not None]
        total = sum(b.torch.sin(t).sum() for t in theirs if t is not None)
        if mine and total.requires_grad:
            grads = gl.gradients(mine, wrt)
            theirs = b.torch.autograd.grad(total, twins, allow_unused=True)
            agree(b, grads, theirs, f"{what}; second")
    if seed % 4 == 0 and not b.has_casts:
        on_the_cpu(b, [*losses, *[g for g in grads if g is not None]], what)
    return what


def agree(b: Pairs, mine: list[Value | None], theirs: Any, what: str) -> None:
    """A gradient that one side lacks is zero on the other."""
    present = [g for g in mine if g is not None]
    known = evaluate(present, fed(b, present))
    for (p, _), g, t in zip(b.parameters, mine, theirs, strict=True):
        got = np.zeros(p.shape) if g is None else known[g]
        want = np.zeros(p.shape) if t is None else t.detach().numpy()
        room = 1e-9 * (1 + np.abs(want).max(initial=0))
        error = np.abs(got - want).max(initial=0)
        assert error <= room, f"{what} derivative of {p.name}: error {error:.3g}, room {room:.3g}\n{got}\n{want}"


def on_the_cpu(b: Pairs, values: list[Value], what: str) -> None:
    feeds = fed(b, values)
    known = evaluate(values, feeds)
    for value, array in zip(values, gl.compile(values)(**feeds), strict=True):
        want = known[value]
        room = 1e-2 * (1e-2 + np.abs(want).max(initial=0))
        error = np.abs(array - want).max(initial=0)
        assert error <= room, f"{what}; {value!r} on the cpu: error {error:.3g}, room {room:.3g}"


def fed(b: Pairs, values: list[Value]) -> dict[str, np.ndarray]:
    used = {n.attrs["key"] for n in reachable(values) if n.op.name == "input"}
    return {k: v for k, v in b.feeds.items() if k in used}


if __name__ == "__main__":
    run_cases(compare, __doc__, count=10_000)
