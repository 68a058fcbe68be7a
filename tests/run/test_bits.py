"""Large programs, in which every kernel has several parts: the same bits for any number of threads and any plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import _core, nn, ops
from gradloom.base import settings
from gradloom.graph.value import Value
from gradloom.run import cpu_backend
from tests.core.harness import isas

Built = tuple[list[Value], Sequence[Value], dict[str, Any], list[gl.Parameter]]
WAYS: tuple[dict[str, Any], ...] = (
    {"threads": 2}, {"threads": 3}, {"threads": 4}, {"threads": 4, "poison": True}, {"threads": 2, "reuse": False},
    {"threads": 1, "inplace": False}, {"threads": 3, "fuse": False}, {"threads": 2, "check": 2},
)  # fmt: skip


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings, "core_count", lambda: 4)
    _core.set_cores(4)
    yield
    _core.set_cores(0)


def trained(
    loss: Value, parameters: list[gl.Parameter], state: list[gl.Parameter]
) -> tuple[list[Value], Sequence[Value]]:
    """AdamW on one half, momentum on the other, behind a guard."""
    grads = [g for g in gl.gradients(loss, parameters) if g is not None]
    assert len(grads) == len(parameters)
    one, half, none = gl.constant(1.0), gl.constant(0.5), gl.constant(0.0)
    state += [gl.parameter(np.zeros(p.shape), f"{p.name}.{n}", trainable=False) for p in parameters for n in "mv"]
    m, v = state[0::2], state[1::2]
    k = len(parameters) // 2
    groups = [x for i in range(k) for x in (parameters[i], grads[i], m[i], v[i])]
    updates = list(ops.adamw(gl.constant(0.01), half, half, gl.constant(1e-3), none, one, one, *groups))
    groups = [x for i in range(k, len(parameters)) for x in (parameters[i], grads[i], m[i])]
    updates += ops.sgd(gl.constant(0.1), half, gl.constant(0.01), one, *groups)
    return [loss, ops.guard(loss, one, *grads), *grads], updates


def block() -> Built:
    """Embedding, attention over 96 tokens, MLP, a vocabulary of 700."""
    rng = np.random.default_rng(0)
    t, d, vocabulary = 96, 64, 700
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys("qkvo", (d, d)) | {"embedding": (vocabulary, d)}
    shapes |= {"up": (d, 4 * d), "down": (4 * d, d), "gain": (d,), "bias": (d,), "head": (d, vocabulary)}
    p = {name: gl.parameter(rng.normal(0, 0.1, shape), name) for name, shape in shapes.items()}
    ids, labels = gl.input("ids", (2, t), "i32"), gl.input("labels", (2 * t,), "i32")
    x = ops.get_rows(p["embedding"], ids)
    h = ops.layer_norm(x, p["gain"], p["bias"])

    def heads(y: Value) -> Value:
        return ops.transpose(ops.reshape(y, (2, t, 4, d // 4)), (0, 2, 1, 3))

    mask = gl.constant(np.where(np.tri(t, dtype=bool), 0, -1e9).astype(np.float32))
    scores = ops.matmul(heads(h @ p["q"]), heads(h @ p["k"]), transpose_y=True)
    mixed = ops.softmax(scores, mask=mask, scale=(d // 4) ** -0.5) @ heads(h @ p["v"])
    x = x + ops.dropout(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (2, t, d)) @ p["o"], 0.1)
    x = x + ops.gelu(ops.rms_norm(x) @ p["up"]) @ p["down"]
    logits = ops.reshape(x, (2 * t, d)) @ p["head"]
    state: list[gl.Parameter] = []
    outputs, updates = trained(ops.cross_entropy(logits, labels), list(p.values()), state)
    feeds = {"ids": rng.integers(0, vocabulary, (2, t)), "labels": rng.integers(0, vocabulary, 2 * t)}
    return [*outputs, ops.log_softmax(logits)], updates, feeds, [*p.values(), *state]


def images() -> Built:
    rng = np.random.default_rng(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3, stride=2), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip
    net.ensure_init(0)
    state: list[gl.Parameter] = []
    pred = net(gl.input("x", (40, 3, 32, 32)))
    outputs, updates = trained(ops.mse(pred, gl.input("y", (40, 10))), list(net.parameters()), state)
    feeds = {"x": rng.normal(size=(40, 3, 32, 32)), "y": rng.normal(size=(40, 10))}
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm)]
    buffers = [b for m in norms for b in (m.running_mean, m.running_var)]
    return outputs, updates, feeds, [*net.parameters(), *state, *buffers]


def tables() -> Built:
    """Elementwise chains, reductions over every axis, layout moves."""
    rng = np.random.default_rng(0)
    x, w = gl.input("x", (700, 301)), gl.parameter(rng.normal(size=(301,)), "w")
    y = ops.silu(x * w) + ops.tanh(ops.transpose(ops.transpose(x) * 2.0))
    parts = ops.split(y, [100, 101, 100], 1)
    z = ops.concat([parts[2] * parts[0], ops.exp(ops.scale(parts[1], -0.5)), ops.elu(parts[0])], 1)
    pooled = ops.max(z, 0) + ops.mean(z, 0) - ops.min(z, 0) * ops.sum(ops.sqr(z), 0)
    loss = ops.mean(ops.sin(pooled)) + ops.mean(ops.softplus(ops.sum(z, 1))) + ops.sum(ops.max(z, 1)) * 0.01
    state: list[gl.Parameter] = []
    outputs, updates = trained(loss, [w], state)
    return [*outputs, z, ops.argmax(z, 0), ops.argmax(z, 1)], updates, {"x": rng.normal(size=(700, 301))}, [w, *state]


def bits(made: Built, **options: Any) -> list[bytes]:
    outputs, updates, feeds, stored = made
    before = [p.numpy() for p in stored]
    run = gl.compile(outputs, updates, **options)
    try:
        found = [np.asarray(v).tobytes() for _ in range(2) for v in run(**feeds)]
        return found + [p.numpy().tobytes() for p in stored]
    finally:
        for p, data in zip(stored, before, strict=True):
            p.stored.write(data)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("build", [block, images, tables])
def test_the_same_bits(build: Callable[[], Built], isa: str) -> None:
    made = build()
    plan = gl.compile(made[0], made[1], isa=isa).plan
    several = {n.op.name for n, needs in zip(plan.order.steps, plan.needs, strict=True) if max(needs.parts) > 1}
    assert len(several) >= 5, "too little work to be shared by threads"
    right = bits(made, isa=isa, threads=1)
    assert len(set(right)) > len(right) // 2
    for options in WAYS:
        assert bits(made, isa=isa, **options) == right, options
    assert plan.peak_bytes <= 1.02 * plan.lower_bound_bytes


# ---- the arena --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_executables_share_one_arena_that_grows_at_compile_only() -> None:
    x = gl.input("x", (1000,))
    small = gl.compile(ops.exp(ops.sin(x)) + ops.cos(x))
    data = np.linspace(-1, 1, 1000)
    right = small(x=data)[0]
    arena = cpu_backend.arena()
    y = gl.input("y", (arena.bytes // 4 + 5000,))
    large = gl.compile(ops.exp(ops.sin(y)))
    grown = arena.bytes
    assert grown >= large.plan.bytecode.arena_bytes
    assert np.array_equal(small(x=data)[0], right)
    large(y=np.zeros(y.shape))
    assert np.array_equal(small(x=data)[0], right) and arena.bytes == grown


def test_a_run_that_stops_leaves_state_alone() -> None:
    """The guard precedes running statistics too."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), nn.Linear(4, 1))
    net.ensure_init(0)
    x = gl.input("x", (6, 3))
    loss = ops.mean(ops.log(net(x)))
    weights = list(net.parameters())
    grads = gl.gradients(loss, weights)
    one, none = gl.constant(1.0), gl.constant(0.0)
    updates = ops.sgd(one, none, none, one, *[v for p, g in zip(weights, grads, strict=True) for v in (p, g, None)])[
        ::2
    ]
    before = {k: v.copy() for k, v in net.state_dict().items()}
    for backend in ("cpu", "numpy"):
        run = gl.compile([loss, ops.guard(loss, one, *grads)], updates, backend=backend)
        with pytest.raises(gl.NonFiniteError, match=r"guard.*: the loss or a gradient is not finite"):
            run(x=np.random.default_rng(0).normal(size=(6, 3)))
        assert all(np.array_equal(v, before[k]) for k, v in net.state_dict().items())
