"""An op whose kernel a backend lacks runs by its composition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.graph.declare import op
from gradloom.graph.graph import reachable
from gradloom.graph.leaves import input
from gradloom.graph.opspec import REGISTRY, OpSpec
from gradloom.ops.common import Quantised
from gradloom.run import backend as backends
from gradloom.run.backend import register
from gradloom.run.cpu_backend import CpuBackend
from tests.ops.cases import SMALL, node_of, reference, sampled_ops, samples_of

FUSED = [spec for spec in sampled_ops() if spec.composition is not None]


class Bare(CpuBackend):
    """The CPU without some of its kernels."""

    name: ClassVar[str] = "bare"
    lacks: ClassVar[set[str]] = set()

    def signatures(self) -> frozenset[tuple[str, str]]:
        return frozenset(known for known in super().signatures() if known[0] not in self.lacks)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    register(Bare)
    lacks: set[str] = set()
    monkeypatch.setattr(Bare, "lacks", lacks)
    yield lacks
    del backends._registered["bare"]


@pytest.mark.parametrize("spec", FUSED, ids=lambda s: s.name)
def test_every_composition_runs_in_place_of_its_kernel(spec: OpSpec, bare: set[str]) -> None:
    bare.add(spec.name)
    samples = [s for s in samples_of(spec.name) if sum(x.size for x in s.inputs if x is not None) <= SMALL]
    for sample in (samples[0], *samples[1:12:3], samples[-1]):
        feeds = {f"x{i}": x for i, x in enumerate(sample.inputs) if isinstance(x, np.ndarray)}
        values = [
            x.value() if isinstance(x, Quantised) else None if x is None else input(f"x{i}", x.shape, x.dtype.name)
            for i, x in enumerate(sample.inputs)
        ]
        node = spec.node(values, sample.attrs)
        run = gl.compile(list(node.outputs), backend="bare")
        assert spec.name not in {n.op.name for n in run.program.nodes}
        wanted = reference(node_of(spec, sample.inputs, sample.attrs), sample.inputs)
        for got, want in zip(run(**feeds), wanted, strict=True):
            finite = np.isfinite(want)
            scale = float(np.max(np.abs(want[finite]), initial=1e-30))
            assert np.all(np.abs(got[finite] - want[finite]) <= 1e-4 * scale), sample.attrs


def test_training_without_fused_kernels_gives_the_same_losses(bare: set[str]) -> None:
    """Fusion makes ops that a backend lacks; forward, backward and update nodes around them stay as they are."""
    bare |= {spec.name for spec in FUSED}
    rng = np.random.default_rng(0)
    w, v = gl.parameter(rng.normal(size=(8, 16)), "w"), gl.parameter(rng.normal(size=(16, 4)), "v")
    b, x = gl.parameter(rng.normal(size=16), "b"), gl.input("x", (5, 8))
    y = ops.softmax(ops.matmul(ops.rms_norm(ops.relu(ops.matmul(x, w) + b)), v))
    loss = ops.sum(ops.sqr(y))
    at = {"x": rng.normal(size=(5, 8)).astype(np.float32)}
    values = [loss, *[g for g in gl.gradients(loss, [w, v, b]) if g is not None]]
    with_kernels, without = gl.compile(values), gl.compile(values, backend="bare")
    names = {n.op.name for n in with_kernels.program.nodes}, {n.op.name for n in without.program.nodes}
    assert {"matmul_act", "rms_norm_back", "softmax_back"} <= names[0] and not names[1] & bare
    for a, b in zip(with_kernels(**at), without(**at), strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_op_of_ops_of_its_own_needs_no_kernel() -> None:
    """Composed of another op without a kernel; messages about what it is made of name the op's own line."""
    inner = op("inner", inputs="x", doc="y = x^2 + x", composition=lambda x: x * x + x, no_samples="made by a test")
    outer = op("outer", inputs="x", doc="y = inner(x) / 2", composition=lambda x: inner(x) / 2, no_samples="by a test")
    try:
        x = gl.input("x", (3,))
        y = outer(x)
        run = gl.compile(ops.exp(y))
        assert run(x=[1, 2, 3])[0] == pytest.approx(np.exp([1, 3, 6]), rel=1e-6)
        made = [n for n in run.program.nodes if not n.op.leaf]
        assert {n.op.name for n in made}.isdisjoint({"inner", "outer"})
        assert {n.where for n in made if n.op.name != "exp"} == {y.node.where}
    finally:
        del REGISTRY["inner"], REGISTRY["outer"]


def test_no_composition_leads_back_to_its_own_op() -> None:
    made_of: dict[str, set[str]] = {}
    for spec in FUSED:
        uses = made_of[spec.name] = set()
        assert spec.composition is not None
        for sample in samples_of(spec.name):
            node = node_of(spec, sample.inputs, sample.attrs)
            results = spec.call("composition", node.attrs | spec.bind_inputs(node.inputs))
            results = results if isinstance(results, (list, tuple)) else [results]
            uses |= {n.op.name for n in reachable(results)}
    for name in made_of:
        reached, todo = set(), [name]
        while todo:
            new = made_of.get(todo.pop(), set()) - reached
            reached |= new
            todo += new
        assert name not in reached
