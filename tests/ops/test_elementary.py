"""Elementary functions without a kernel of their own, norms of vectors, and remainders: against NumPy and PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gradloom as gl
from gradloom.run.numpy_backend import evaluate
from tests.ops.compositions import check, numbers

ops = gl.ops
SHAPE = (3, 5)


def between(low, high, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape)


def soft(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


FUNCTIONS = [
    ("reciprocal", ops.reciprocal, np.reciprocal, numbers([SHAPE])[0]),
    ("rsqrt", ops.rsqrt, lambda x: 1 / np.sqrt(x), between(0.2, 3)),
    ("exp2", ops.exp2, np.exp2, between(-9, 9)),
    ("log2", ops.log2, np.log2, between(0.1, 90)),
    ("tan", ops.tan, np.tan, between(-1.2, 1.2)),
    ("logsigmoid", ops.logsigmoid, lambda x: -soft(-x), between(-9, 9)),
    ("softplus", lambda x: ops.softplus(x, beta=2.5), lambda x: soft(2.5 * x) / 2.5, between(-3, 3)),
    ("remainder", lambda x: ops.remainder(x, 0.75), lambda x: np.mod(x, 0.75), between(0.8, 1.45)),
    ("%", lambda x: x % -3, lambda x: x % -3, between(-2.5, -0.5)),
    ("% of a number", lambda x: 7 % x, lambda x: 7 % x, between(2.4, 3.4)),
    *[(f"norm {p}, {axes}", lambda x, p=p, axes=axes: ops.norm(x, p, axes),
       lambda x, p=p, axes=axes: (np.abs(x).max(axes) if p == math.inf
                                  else (np.abs(x) ** p).sum(axes) ** (1 / p)), numbers([(2, 3, 4)])[0])
      for p in (1, 2, 2.5, 3, math.inf) for axes in (None, 1, (0, 2))],
    ("norm, kept", lambda x: ops.norm(x, axes=-1, keepdims=True),
     lambda x: np.linalg.norm(x, axis=-1, keepdims=True), numbers([SHAPE])[0]),
    ("l2_norm", ops.l2_norm, lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), numbers([(2, 3, 7)])[0]),
    ("l2_norm of axis 1", lambda x: ops.l2_norm(x, 1), lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
     numbers([(2, 3, 7)])[0]),
    ("l2_norm below eps", lambda x: ops.l2_norm(x, eps=100.0), lambda x: x / 100, numbers([SHAPE])[0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "definition", "x"), FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_like_numpy(name, function, definition, x):
    check(function, definition, [x], exact=1e-7)


def test_powers_of_two_are_exact():
    n = np.arange(-126, 128, dtype=np.float32)
    np.testing.assert_array_equal(ops.exp2(gl.tensor(n)).numpy(), np.exp2(n.astype(np.float64)))
    np.testing.assert_array_equal(ops.round(ops.log2(gl.tensor(np.exp2(n)))).numpy(), n)


def test_halves_are_rounded_to_even():
    x = gl.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    np.testing.assert_array_equal(ops.round(x).numpy(), [0, 2, 2, -0.0, -2, -2])


def test_logsigmoid_of_large_numbers():
    x = np.array([-1e4, -100, 0, 100, 1e4], np.float32)
    np.testing.assert_allclose(
        ops.logsigmoid(gl.tensor(x)).numpy(), [-1e4, -100, -math.log(2), 0, 0], rtol=1e-6, atol=1e-40
    )


def gradient(function, x):
    w = gl.parameter(np.asarray(x, np.float32))
    with gl.grad_tape() as tape:
        loss = ops.sum(function(w))
        return tape.backward(loss)[w].numpy()


def test_vectors_of_zeros_have_finite_gradients():
    zeros = np.zeros((2, 3))
    np.testing.assert_array_equal(gradient(lambda x: ops.norm(x, axes=1), zeros), zeros)
    np.testing.assert_array_equal(gradient(lambda x: ops.norm(x, 3, axes=1), zeros), zeros)
    np.testing.assert_allclose(gradient(lambda x: ops.l2_norm(x, eps=0.5), zeros), zeros + 2)
    length = ops.norm(gl.constant([1.0, math.nan]))
    assert np.isnan(evaluate([length])[length])


@pytest.mark.oracle
def test_norms_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    x = numbers([(4, 5, 6)])[0].astype(np.float32)
    for p in (1, 2, 3.5, math.inf):
        for axes, keep in ((None, False), (1, True), ((0, 2), False)):
            want = torch.linalg.vector_norm(torch.from_numpy(x), p, axes, keep)
            np.testing.assert_allclose(ops.norm(gl.tensor(x), p, axes, keep).numpy(), want, rtol=2e-6)
    want = torch.nn.functional.normalize(torch.from_numpy(x), dim=1)
    np.testing.assert_allclose(ops.l2_norm(gl.tensor(x), 1).numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("isa", [None, "scalar", "avx2"])
def test_remainders_are_those_of_numpy_bit_for_bit(isa):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4001).astype(np.float32) * np.float32(10.0) ** rng.integers(-30, 30, 4001)
    y = rng.standard_normal(4001).astype(np.float32) * np.float32(10.0) ** rng.integers(-20, 20, 4001)
    x[:1000] = np.round(x[:1000] % 1000) * y[:1000]  # whole multiples, of which many are exact
    x, y = x.astype(np.float32), y.astype(np.float32)
    a, b = gl.input("x", x.shape), gl.input("y", y.shape)
    found = gl.compile([a % b], isa=isa)(x=x, y=y)[0]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.mod(x, y))


REFUSED = [
    (lambda x: ops.norm(x, 0.5), gl.SettingError, "ord"), (lambda x: ops.norm(x, "fro"), gl.SettingError, "ord"),
    (lambda x: ops.norm(x, axes=2), gl.ShapeError, "norm: axis 2 does not exist: f32[3,5]"),
    (lambda x: ops.l2_norm(x, 2), gl.ShapeError, "l2_norm: axis 2 does not exist: f32[3,5]"),
    (lambda x: ops.l2_norm(x, eps=0.0), gl.SettingError, "eps"),
    (lambda x: ops.softplus(x, 0), gl.SettingError, "beta"),
    (lambda x: ops.softplus(x, threshold=20), TypeError, "leave it out: large values do not overflow"),
    (lambda x: ops.norm(x, p=1), TypeError, "use ord="),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(call, error, message):
    with pytest.raises(error) as caught:
        call(gl.input("x", SHAPE))
    assert message in str(caught.value) and "\n" not in str(caught.value)
