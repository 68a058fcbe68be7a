"""precision="bf16" as it runs: products of rounded operands, the same bits for any plan, and what is not finite."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradloom as gl
from gradloom import _core, nn, ops
from gradloom.base import settings
from gradloom.base.dtypes import bf16, f32
from gradloom.graph.composition import as_read, by_reference
from gradloom.graph.leaves import input as graph_input
from gradloom.graph.leaves import setting, stored_value
from gradloom.graph.opspec import REGISTRY
from gradloom.graph.stored import Stored
from tests.ops.cases import node_of, samples_of, tolerance_of
from tests.run.test_bits import WAYS, Built, bits, block, images, trained

ISAS = _core.isas()
MOST = 40_000  # elements of a sample
CASES = [
    (spec.name, i)
    for spec in REGISTRY.values()
    if spec.rounds
    for i, sample in enumerate(samples_of(spec.name))
    if all(isinstance(x, np.ndarray) and x.dtype.name in ("float32", "int32") for x in sample.inputs if x is not None)
    and 100 < sum(x.size for x in sample.inputs if x is not None) < MOST
]


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_each_op_on_rounded_operands(case: tuple[str, int], isa: str) -> None:
    """Against float64 on the rounded operands; without the rounding the result is another one."""
    spec, sample = REGISTRY[case[0]], samples_of(case[0])[case[1]]
    names = [slot.name for slot in spec.inputs]
    given = {n: x for n, x in zip(names, sample.inputs, strict=True) if x is not None}
    values = [graph_input(n, given[n].shape, str(given[n].dtype)) if n in given else None for n in names]
    node = spec.node(values, sample.attrs)
    outputs = [v for v in node.outputs if v.dtype is f32]
    ours = gl.compile(outputs, isa=isa, precision="bf16", threads=1)(**given)
    definition = gl.compile(outputs, backend="numpy", precision="bf16")(**given)
    operands = [n for n in spec.rounds if n in given]
    known = {n: rounded(x) if n in operands else x for n, x in given.items()}
    wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in known.items()}
    narrow = {n for n in operands if bf16 in spec.dtypes[n]}
    read = spec.node(
        [ops.round_bf16(v) if n in narrow else v for n, v in zip(names, values, strict=True)], sample.attrs
    )
    exact = by_reference(read, [wide.get(n) for n in names])
    single = by_reference(read, [known.get(n) for n in names])
    plain = by_reference(node, [x if x is None or x.dtype.kind != "f" else x.astype(np.float64) for x in sample.inputs])
    differs = False
    for value, got, defined in zip(outputs, ours, definition, strict=True):
        want = exact[value.index]
        assert np.array_equal(defined, want, equal_nan=True), "backend='numpy' is float64 on the rounded operands"
        finite = np.isfinite(want)
        scale = np.abs(want[finite]).max(initial=0)
        noise = np.abs(single[value.index] - want)[finite].max(initial=0)
        assert np.abs(got - want)[finite].max(initial=0) <= max(tolerance_of(read) * scale, 4 * noise) + 1e-30
        differs |= not np.array_equal(want, plain[value.index], equal_nan=True)
    assert differs or case[0] == "relu_back"


def pooled() -> Built:
    """The gradient of the pool goes into that of the first layer's weight alone."""
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10))
    net.ensure_init(0)
    state: list[gl.Parameter] = []
    pred = net(gl.input("x", (64, 1, 16, 16)))
    outputs, updates = trained(ops.mse(pred, gl.input("y", (64, 10))), list(net.parameters()), state)
    feeds = {"x": rng.normal(size=(64, 1, 16, 16)), "y": rng.normal(size=(64, 10))}
    return outputs, updates, feeds, [*net.parameters(), *state]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("build", [block, images, pooled])
def test_the_same_bits(build: Any, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any threads, plan and fusion; and not those of f32."""
    monkeypatch.setattr(settings, "core_count", lambda: 4)
    _core.set_cores(4)
    try:
        made = build()
        right = bits(made, isa=isa, threads=1, precision="bf16")
        for options in WAYS:
            assert bits(made, isa=isa, precision="bf16", **options) == right, options
        assert bits(made, isa=isa, threads=1, precision="f32") != right
    finally:
        _core.set_cores(0)


INSIDE = [
    (name, i)
    for name in ("attention", "attention_back")
    for i, sample in enumerate(samples_of(name))
    if sample.inputs[0].dtype == ml_dtypes.bfloat16 and sample.inputs[1].shape[1] > 30
]


@pytest.mark.parametrize("isa", [isa for isa in ISAS if ("attention", "bf16_i32_f32") in _core.kernels(isa, own=True)])
@pytest.mark.parametrize("case", INSIDE, ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_weights_of_attention_are_rounded(case: tuple[str, int], isa: str) -> None:
    """As the definition rounds them, wherever the blocks of keys begin; unrounded weights give other numbers."""
    spec, sample = REGISTRY[case[0]], samples_of(case[0])[case[1]]
    node = node_of(spec, sample.inputs, sample.attrs)
    exact = [x.astype(np.float64) if x is not None and x.dtype != np.int32 else x for x in sample.inputs]
    scope = node.attrs | spec.bind_inputs(as_read(node, exact))
    want, plain = (spec.call("reference", scope | {"rounded": way}) for way in (True, False))
    ours = gl.compile([v for v in node.outputs if v.index != 1 or spec.name != "attention"], isa=isa, threads=1)()
    pairs = [(w, p) for i, (w, p) in enumerate(zip(want, plain, strict=True)) if i != 1 or spec.name != "attention"]
    for got, (w, p) in zip(ours, pairs, strict=True):  # all but lse
        scale = np.abs(w).max()
        error, other = (float(np.median(np.abs(got - x)[w != p])) / scale for x in (w, p))
        assert error < 1e-6 and other > 20 * error, (error, other)


def test_no_operand_is_widened_and_a_cache_is_read_where_it_lies() -> None:
    """By a cast, or rounded in front of attention: the kernels read bf16, and f32 of what is stored."""
    rng = np.random.default_rng(0)
    net = gl.nn.Sequential(
        gl.nn.Conv2d(1, 4, 3), gl.nn.ReLU(), gl.nn.MaxPool2d(2), gl.nn.Conv2d(4, 4, 3), gl.nn.Flatten()
    )
    net.ensure_init(0)
    x = net(gl.input("x", (2, 1, 16, 16)))
    loss = ops.sum(ops.sqr(x))
    w = gl.parameter(rng.standard_normal((16, 48)), "w")
    q, k, v = ops.split(ops.reshape(gl.input("t", (20, 16)) @ w, (1, 20, 6, 8)), [2, 2, 2], 2)
    positions = np.arange(20, dtype=np.int32)[None]
    loss = loss + ops.sum(ops.sqr(ops.attention(q, k, v, positions, scale=0.3)[0]))
    trained = [*net.parameters(), w]
    program = gl.compile([loss, *(g for g in gl.gradients(loss, trained) if g is not None)], precision="bf16").program
    operands = {
        (node.op.name, slot.name): v
        for node in program.nodes
        if node.op.name.startswith(("attention", "conv2d"))
        for slot, v in zip(node.op.inputs, node.inputs, strict=True)
        if v is not None and slot.name in node.op.rounds and bf16 in node.op.dtypes[slot.name]
    }
    assert len(operands) > 12
    for where, v in operands.items():
        assert v.dtype is bf16 or v.node.op.leaf, (where, v)
    cache = [Stored(name, np.zeros((1, 40, 2, 8), np.float32), "f32", "state") for name in ("keys", "values")]
    rows = [ops.set_rows(stored_value(c), gl.input(c.name, (1, 1, 2, 8)), setting("at", "i64"), axis=1) for c in cache]
    y = ops.attention(gl.input("q", (1, 1, 2, 8)), *rows, np.full((1, 1), 5, np.int32), scale=1.0, cached=True)[0]
    made = gl.compile(y, precision="bf16").program.nodes
    (read,) = [node for node in made if node.op.name == "attention"]
    assert [v.node.op.name for v in read.inputs[:3] if v is not None] == ["round_bf16", "set_rows", "set_rows"]


def test_gradients_are_products_of_rounded_operands() -> None:
    """dy = x' g' and dx = g' w, each operand rounded, sums f32: by hand."""
    rng = np.random.default_rng(0)
    x, w, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 7), (7, 3), (5, 3)))
    a, b = gl.input("a", x.shape), gl.parameter(w, "w")
    loss = ops.sum((a @ b) * gl.constant(c))
    found = gl.compile([loss, *gl.gradients(loss, [a, b])], precision="bf16")(a=x)
    x16, w16, c16 = (rounded(v).astype(np.float64) for v in (x, w, c))
    for got, want in zip(found, [((x16 @ w16) * c).sum(), c16 @ w16.T, x16.T @ c16], strict=True):
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.4e38])
def test_what_is_not_finite_is_found_as_in_f32(wrong: float) -> None:
    """3.4e38 rounds to infinity. The guard trips, nothing is written, and the first bad node is named."""
    net = gl.nn.Sequential(gl.nn.Linear(3, 4), gl.nn.ReLU(), gl.nn.Linear(4, 2)).init(0)
    trainer = gl.Trainer(net, "mse", gl.optim.SGD(lr=0.1), precision="bf16", threads=1)
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    trainer.step(x, y)
    before = {name: array.copy() for name, array in net.state_dict().items()}
    held = net[2].weight.numpy().copy()
    net[2].weight.assign(np.full_like(held, wrong))
    with pytest.raises(gl.NonFiniteError, match=r"2.*is not finite|2\.weight|not finite") as caught:
        trainer.step(x, y)
    assert re.search(r"\b2\b", str(caught.value)), str(caught.value)
    net[2].weight.assign(held)
    assert all(np.array_equal(array, before[name]) for name, array in net.state_dict().items())
