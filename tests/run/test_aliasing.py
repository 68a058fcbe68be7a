"""Kernels whose output takes the buffer of an input, through the planner: what went wrong in ggml for 17 months."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.graph.value import Value
from tests.core.harness import isas

ISAS = isas()
WAYS: tuple[dict[str, Any], ...] = (
    {}, {"reuse": False}, {"inplace": False}, {"poison": True}, {"fuse": False}, {"threads": 2}, {"check": 2},
)  # fmt: skip


def in_arena(name: str, data: np.ndarray) -> tuple[Value, dict[str, np.ndarray]]:
    """A value with a buffer of its own that a reader may take over."""
    return ops.copy(gl.input(name, data.shape)), {name: data}


def taken(run: Any, op: str) -> list[str]:
    """The inputs whose buffers outputs of the op took."""
    found = []
    for out, base in run.plan.placement.inplace.items():
        if out.node.op.name == op:
            names = [n for n, v in out.node.op.named_inputs(out.node.inputs) if v is not None and v is base]
            found += names
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shared", [False, True])
def test_rms_norm_back_over_its_input(isa: str, shared: bool) -> None:
    """dz = x = [1, 0, 0, 0]: 0.00079952 first. A kernel that reads x after overwriting it gives other numbers."""
    row = np.float32([[1, 0, 0, 0]])
    x, feeds = in_arena("x", row)
    g, more = (x, {}) if shared else in_arena("g", row)
    run = gl.compile(ops.rms_norm_back(g, x, eps=1e-4), isa=isa)
    assert taken(run, "rms_norm_back")
    (dx,) = run(**feeds, **more)
    assert dx[0, 0] == pytest.approx(0.00079952, rel=1e-4) and not dx[0, 1:].any()


def _heads(x: Value) -> Value:
    """[T, W] as [T, 1, W + 1]: wide enough for a pair of dimensions."""
    return ops.expand_dims(ops.concat([x, x[:, :1]], 1), 1)


def _places(x: Value) -> np.ndarray:
    return np.arange(x.shape[0], dtype=np.int32)


def _qkv(x: Value, g: Value) -> list[Any]:
    """q in a buffer of its own, k and v fed; two sequences packed."""
    t = x.shape[0]
    positions = np.concatenate([np.arange(t // 3), np.arange(t - t // 3)]).astype(np.int32)[None]
    return [ops.sin(x.reshape(1, t, 1, -1)), g.reshape(1, t, 1, -1), x.reshape(1, t, 1, -1), positions]


def _attention_back(x: Value, g: Value) -> tuple[Value, ...]:
    q, k, v, positions = _qkv(x, g)
    k, v = ops.cos(k), ops.sigmoid(v)
    y, lse = ops.attention(q, k, v, positions, scale=0.3)
    return ops.attention_back(g.reshape(q.shape), q, k, v, ops.exp(y), lse, positions, scale=0.3)


def _self_attention(x: Value) -> Value:
    """One value at a position that y may overwrite, and at two that it may not."""
    t = x.reshape(1, x.shape[0], 1, -1)
    return ops.attention(t, t, t, _places(x)[None], scale=0.3)[0].reshape(x.shape)


def _both(values: Any) -> Value:
    """All of them in one value."""
    return ops.concat([ops.reshape(v, (-1,)) for v in values])


BACKWARD = {
    "softmax_back over y": (lambda x, g: ops.softmax_back(g, ops.softmax(x), scale=0.5), "softmax_back", "y"),
    "softmax_back over g": (
        lambda x, g: ops.softmax_back(ops.sin(g), ops.softmax(x)) + ops.softmax(x),
        "softmax_back",
        "g",
    ),
    "log_softmax_back over y": (lambda x, g: ops.log_softmax_back(g, ops.log_softmax(x)), "log_softmax_back", "y"),
    "layer_norm_back over x": (lambda x, g: ops.layer_norm_back(g, ops.sin(x)), "layer_norm_back", "x"),
    "rms_norm_back over x": (lambda x, g: ops.rms_norm_back(g, ops.sin(x)), "rms_norm_back", "x"),
    "rms_norm_back over g": (lambda x, g: ops.rms_norm_back(ops.sin(g), x), "rms_norm_back", "g"),
    "silu_back over x": (lambda x, g: ops.silu_back(g, ops.sin(x)), "silu_back", "x"),
    "rope back over g": (
        lambda x, g: (
            ops.rope(ops.sin(_heads(x)), _places(x), ops.rope_frequencies(2), pairing="half", inverse=True) * _heads(g)
        ),
        "rope",
        "x",
    ),
    "swiglu_back over gate": (lambda x, g: ops.swiglu_back(g, ops.sin(x), g)[0], "swiglu_back", "gate"),
    "swiglu_back over g and up": (
        lambda x, g: _both(ops.swiglu_back(ops.sin(g), x, ops.cos(g))),
        "swiglu_back",
        "g up",
    ),
    "attention over q": (lambda x, g: ops.attention(*_qkv(x, g), scale=0.3)[0], "attention", "q"),
    "attention_back over q, k, v": (
        lambda x, g: _both(_attention_back(x, g)),
        "attention_back",
        "k q v",
    ),
    "softmax over x": (lambda x, g: ops.softmax(ops.sin(x), mask=g) * g, "softmax", "x"),
    "attention of q that is k, over none": (lambda x, g: _self_attention(ops.sin(x)) * g, "attention", ""),
    "cross entropy of labels that are logits, over none": (
        lambda x, g: ops.loss.cross_entropy_sum(*[ops.softmax(x)] * 2)[2] * g,
        "cross_entropy_sum",
        "",
    ),
}


@pytest.mark.cheap
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", BACKWARD)
def test_in_place_gives_the_same_bits(case: str, isa: str) -> None:
    """Over one input, the other being fed and so never overwritten; odd sizes and one large."""
    build, op, name = BACKWARD[case]
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 5), (7, 33), (600, 65)):
        feeds = {k: rng.standard_normal(shape).astype(np.float32) for k in "xg"}
        value = build(gl.input("x", shape), gl.input("g", shape))
        run = gl.compile(value, isa=isa)
        assert sorted(taken(run, op)) == name.split()
        (right,) = gl.compile(value, isa=isa, inplace=False)(**feeds)
        (exact,) = gl.compile(value, backend="numpy")(**feeds)
        (found,) = run(**feeds)
        assert found.tobytes() == right.tobytes()
        assert np.abs(found - exact).max() < 1e-5 * max(1, np.abs(exact).max())


def deep(layers: int = 12, tokens: int = 9, width: int = 16) -> tuple[list[Value], list[gl.Parameter]]:
    """Norm, product, SiLU, softmax, residual adds."""
    rng = np.random.default_rng(1)
    weights = [gl.parameter(rng.normal(0, width**-0.5, (width, width)), f"w{i}") for i in range(layers)]
    gains = [gl.parameter(rng.uniform(0.5, 1.5, width), f"gain{i}") for i in range(layers)]
    h = gl.input("x", (tokens, width))
    for i, (w, gain) in enumerate(zip(weights, gains, strict=True)):
        n = ops.rms_norm(h, gain) if i % 2 else ops.layer_norm(h, gain)
        y = n @ w
        h = h + (ops.silu(y) if i % 3 else ops.softmax(y, scale=2.0) * y)
    loss = ops.cross_entropy(h, gl.input("labels", (tokens,), "i32"))
    parameters = [*weights, *gains]
    grads = gl.gradients(loss, parameters)
    return [loss, *[g for g in grads if g is not None]], parameters


@pytest.mark.parametrize("isa", ISAS)
def test_a_deep_chain_has_the_right_gradients_however_it_is_planned(isa: str) -> None:
    outputs, parameters = deep()
    assert len(outputs) == 1 + len(parameters)
    rng = np.random.default_rng(2)
    feeds = {"x": rng.standard_normal((9, 16)), "labels": rng.integers(0, 16, 9)}
    run = gl.compile(outputs, isa=isa, threads=1)
    right = run(**feeds)
    assert len(run.plan.placement.inplace) > 20
    for options in WAYS:
        found = gl.compile(outputs, isa=isa, **options)(**feeds)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, right, strict=True)), options
    exact = gl.compile(outputs, backend="numpy")(**feeds)
    for value, a, b in zip(outputs, right, exact, strict=True):
        assert np.abs(b).max() > 1e-3, "a gradient of nothing proves nothing"
        assert np.abs(a - b).max() < 2e-6 * max(1.0, np.abs(b).max()), value
    assert gl.check_gradients(outputs[0], feeds, parameters=parameters[::5], entries=6) < 1e-5


def test_training_twelve_layers_is_the_same_in_place_and_not() -> None:
    """Twenty steps of SGD: the losses of the planned run are those of the unshared one, bit for bit, and they fall."""
    losses = []
    for options in ({"poison": True}, {"reuse": False, "fuse": False}):
        outputs, parameters = deep()
        one, none = gl.constant(1.0), gl.constant(0.0)
        groups = [v for p, g in zip(parameters, outputs[1:], strict=True) for v in (p, g, None)]
        updates = ops.sgd(gl.constant(0.5), none, none, one, *groups)[::2]
        run = gl.compile(outputs[:1], updates, **options)
        rng = np.random.default_rng(2)
        feeds = {"x": rng.standard_normal((9, 16)), "labels": rng.integers(0, 16, 9)}
        losses.append([float(run(**feeds)[0]) for _ in range(20)])
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.25 * losses[0][0]


def blocks(layers: int = 4, tokens: int = 37, width: int = 24) -> tuple[list[Value], list[gl.Parameter]]:
    """A small decoder: rope, grouped attention on packed rows, gated units, two norms a layer."""
    rng = np.random.default_rng(3)
    parameters: list[gl.Parameter] = []

    def linear(x: Value, out: int) -> Value:
        parameters.append(gl.parameter(rng.normal(0, x.shape[1] ** -0.5, (out, x.shape[1])), f"w{len(parameters)}"))
        return ops.matmul(x, parameters[-1], transpose_y=True)

    positions = np.concatenate([np.arange(20), np.arange(tokens - 20)]).astype(np.int32)[None]
    frequencies = ops.rope_frequencies(8)
    h = gl.input("x", (tokens, width))
    for i in range(layers):
        n = ops.rms_norm(h)
        q, k, v = (linear(n, heads * 8).reshape(1, tokens, heads, 8) for heads in (4, 2, 2))
        q, k = (ops.rope(a, positions, frequencies, pairing=("interleaved", "half")[i % 2]) for a in (q, k))
        y, _ = ops.attention(q, k, v, positions, scale=8**-0.5)
        h = h + linear(y.reshape(tokens, 32), width)
        n = ops.rms_norm(h)
        gate, up = linear(n, 40), linear(n, 40)
        h = h + linear(ops.geglu(gate, up) if i % 2 else ops.swiglu(gate, up), width)
    loss = ops.cross_entropy(ops.rms_norm(h), gl.input("labels", (tokens,), "i32"))
    return [loss, *[g for g in gl.gradients(loss, parameters) if g is not None]], parameters


@pytest.mark.parametrize("isa", ISAS)
def test_a_decoder_has_the_right_gradients_however_it_is_planned(isa: str) -> None:
    outputs, parameters = blocks()
    assert len(outputs) == 1 + len(parameters)
    rng = np.random.default_rng(4)
    feeds = {"x": rng.standard_normal((37, 24)), "labels": rng.integers(0, 24, 37)}
    run = gl.compile(outputs, isa=isa, threads=1)
    right = run(**feeds)
    assert {"rope", "attention_back", "swiglu_back", "rms_norm_back"} <= {
        v.node.op.name for v in run.plan.placement.inplace
    }
    for options in WAYS:
        found = gl.compile(outputs, isa=isa, **options)(**feeds)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, right, strict=True)), options
    exact = gl.compile(outputs, backend="numpy")(**feeds)
    for value, a, b in zip(outputs, right, exact, strict=True):
        assert np.abs(b).max() > 1e-3, "a gradient of nothing proves nothing"
        assert np.abs(a - b).max() < 4e-6 * max(1.0, np.abs(b).max()), value
    assert gl.check_gradients(outputs[0], feeds, parameters=parameters[::4], entries=4) < 1e-5
