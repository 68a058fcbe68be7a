"""attention of bf16 operands: against its definition in float64; the units against their twins, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from gradloom import _core
from gradloom.graph.opspec import REGISTRY
from tests.core.harness import isas, run
from tests.ops.cases import attr_list, node_of, reference, samples_of

BF16 = ml_dtypes.bfloat16
ISAS = _core.isas()
UNITS = sorted(set(ISAS) - set(isas()))
TWINS = [(isa, f"{isa}-twin") for isa in ISAS if _core.bf16_unit(isa)]
OPS = ("attention", "attention_back")


def bf16_samples(name):
    """Those of the registry: strips and blocks that are not whole, odd D, groups of heads, caches, windows, caps."""
    return [s for s in samples_of(name) if s.inputs[0].dtype == BF16]


CASES = [(name, i) for name in OPS for i in range(len(bf16_samples(name)))]
rng = np.random.default_rng(0)


def outputs(name, inputs, attrs, isa, **options):
    node = node_of(REGISTRY[name], inputs, attrs)
    return run(name, list(inputs), [("f32", v.shape) for v in node.outputs], attr_list(node), isa=isa, **options)


def same_bits(one, other):
    return all(p.tobytes() == q.tobytes() for p, q in zip(one, other, strict=True))


def operands(t, heads, groups, d):
    q, k, v = (rng.normal(size=(1, t, h, d)).astype(np.float32).astype(BF16) for h in (heads, groups, groups))
    return [q, k, v, np.arange(t, dtype=np.int32)[None]]


def backward(q, k, v, positions, scale):
    """The inputs of attention_back."""
    y, lse = reference(node_of(REGISTRY["attention"], [q, k, v, positions], {"scale": scale}), [q, k, v, positions])
    g = rng.normal(size=q.shape).astype(np.float32).astype(BF16)
    return [g, q, k, v, y.astype(np.float32).astype(BF16), lse.astype(np.float32), positions, None]


def test_units_have_kernels_of_their_own():
    for isa in UNITS:
        assert set(OPS) <= {op for op, _ in _core.kernels(isa, own=True)}


@pytest.mark.parametrize("isa", UNITS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64_on_rounded_operands(isa, case):
    """Few weights lie so near the middle between two numbers of bf16 that they are rounded to the other one."""
    name, i = case
    sample = bf16_samples(name)[i]
    got = outputs(name, sample.inputs, sample.attrs, isa)
    wanted = reference(node_of(REGISTRY[name], sample.inputs, sample.attrs), sample.inputs)
    for one, want in zip(got, wanted, strict=True):
        error, size = np.abs(one - want), max(np.abs(want).max(initial=0), 1e-9)
        assert np.all(error <= 2.0**-8 * size), error.max() / size
        if want.size > 1000:
            assert np.sqrt(np.mean(np.square(error))) <= 1e-4 * size, np.sqrt(np.mean(np.square(error))) / size
    for threads in (2, 3):
        assert same_bits(got, outputs(name, sample.inputs, sample.attrs, isa, threads=threads)), threads


@pytest.mark.skipif(not TWINS, reason="this processor has no unit for bf16")
@pytest.mark.parametrize("unit, twin", TWINS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_unit_and_its_twin_have_the_same_bits(unit, twin, case):
    sample = bf16_samples(case[0])[case[1]]
    got = outputs(case[0], sample.inputs, sample.attrs, unit)
    assert same_bits(got, outputs(case[0], sample.inputs, sample.attrs, twin))


@pytest.mark.parametrize("isa", UNITS)
def test_sums_are_those_of_the_unit(isa):
    """And not the products in f32 of the instruction set below."""
    forward = operands(70, 2, 1, 64)
    given = backward(*forward, 0.125)
    for name, inputs in (("attention", forward), ("attention_back", given)):
        got, below = (outputs(name, inputs, {"scale": 0.125}, on) for on in (isa, "avx512"))
        assert not any(p.tobytes() == q.tobytes() for p, q in zip(got, below, strict=True))
        for p, q in zip(got, below, strict=True):
            np.testing.assert_allclose(p, q, rtol=0, atol=2e-3 * np.abs(q).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen_and_no_query_before_it_sees_it(isa, bad):
    """A value of a key that comes later changes no bit of the queries in strips before it."""
    q, k, v, positions = operands(100, 2, 2, 16)
    got = outputs("attention", [q, k, v, positions], {"scale": 0.25}, isa)
    v[0, 70, 1, 3] = bad
    again = outputs("attention", [q, k, v, positions], {"scale": 0.25}, isa)
    assert not np.isfinite(again[0][0, 70:, 1, 3]).any()
    assert again[0][0, :64].tobytes() == got[0][0, :64].tobytes()
    assert again[0][0, :, 0].tobytes() == got[0][0, :, 0].tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_gradients(isa, bad):
    given = backward(*operands(50, 2, 1, 16), 0.25)
    assert all(np.isfinite(x).all() for x in outputs("attention_back", given, {"scale": 0.25}, isa))
    given[0][0, 20, 0, 5] = bad
    dq, dk, dv = outputs("attention_back", given, {"scale": 0.25}, isa)
    assert not np.isfinite(dq[0, 20, 0]).any() and np.isfinite(dq[0, 20, 1]).all()
    assert not np.isfinite(dk[0, :21]).all() and not np.isfinite(dv[0, :21, 0, 5]).any()
