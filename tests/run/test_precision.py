"""precision="bf16" as it runs: products of rounded operands, the same bits for any plan, and what is not finite."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradloom as gl
from gradloom import _core, ops
from gradloom.base import settings
from gradloom.base.dtypes import f32
from gradloom.graph.composition import by_reference
from gradloom.graph.leaves import input as graph_input
from gradloom.graph.opspec import REGISTRY
from tests.ops.cases import samples_of
from tests.run.test_bits import WAYS, bits, block, images

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
    exact = by_reference(node, [wide.get(n) for n in names])
    single = by_reference(node, [known.get(n) for n in names])
    plain = by_reference(node, [x if x is None or x.dtype.kind != "f" else x.astype(np.float64) for x in sample.inputs])
    differs = False
    for value, got, defined in zip(outputs, ours, definition, strict=True):
        want = exact[value.index]
        assert np.array_equal(defined, want, equal_nan=True), "backend='numpy' is float64 on the rounded operands"
        finite = np.isfinite(want)
        scale = np.abs(want[finite]).max(initial=0)
        noise = np.abs(single[value.index] - want)[finite].max(initial=0)
        assert np.abs(got - want)[finite].max(initial=0) <= max(spec.tolerance * scale, 4 * noise) + 1e-30
        differs |= not np.array_equal(want, plain[value.index], equal_nan=True)
    assert differs or case[0] == "relu_back"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("build", [block, images])
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
