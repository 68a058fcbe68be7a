"""An op that states its composition and nothing else: shape, reference and gradients follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.graph.composition import by_reference
from gradloom.graph.declare import op
from gradloom.graph.opspec import REGISTRY
from tests.ops.cases import composition_error, sampled_ops


@pytest.fixture
def declared() -> Iterator[Any]:
    """op(...) whose declarations go at the end of the test."""
    before = set(REGISTRY)
    yield op
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


def rational(declared: Any, **fields: Any) -> Any:
    """y = a x / (1 + x^2) + bias"""
    return declared(
        "rational", inputs="x bias?", attrs="a:float=1", doc="y = a x / (1 + x^2) + bias",
        composition=lambda x, bias, a: ops.scale(x, a) / (1.0 + x * x) + (0.0 if bias is None else bias),
        no_samples="made by a test", **fields,
    )  # fmt: skip


def test_shape_reference_and_gradient_follow(declared: Any) -> None:
    made = rational(declared)
    x, w, b = gl.input("x", (4, 1)), gl.parameter(np.linspace(-1, 2, 3), "w"), gl.parameter([0.5, -1, 2], "b")
    y = made(x * w, b, a=3.0)
    assert y.shape == (4, 3) and y.dtype.name == "f32"
    at = np.linspace(-2, 2, 4).reshape(4, 1)
    z = at * w.numpy()
    (got,) = gl.compile(y, backend="numpy")(x=at)
    assert np.allclose(got, 3 * z / (1 + z * z) + b.numpy(), rtol=1e-12)
    assert gl.check_gradients(ops.sum(ops.sin(y)), {"x": at}) < 1e-6
    first = gl.gradients(ops.sum(ops.sin(y)), [w])[0]
    assert first is not None and gl.check_gradients(ops.sum(ops.sqr(first)), {"x": at}) < 1e-6
    (without_bias,) = gl.compile(made(x), backend="numpy")(x=at)
    assert np.allclose(without_bias, at / (1 + at * at), rtol=1e-12)
    with pytest.raises(gl.ShapeError, match=r"shapes do not broadcast.*test_composition.py"):
        made(x, gl.input("b", (3, 3)))


def test_one_value_given_twice_gets_both_gradients(declared: Any) -> None:
    made = declared(
        "weighted", inputs="x y", outputs="z", doc="z = x y^2", composition=lambda x, y: x * y * y,
        no_samples="made by a test",
    )  # fmt: skip
    w = gl.parameter([1.0, -2.0, 3.0], "w")
    (g,) = gl.gradients(ops.sum(made(w, w)), [w])
    assert g is not None and np.allclose(gl.compile(g, backend="numpy")()[0], 3 * w.numpy() ** 2)


def test_several_outputs_whole_numbers_and_repeated_inputs(declared: Any) -> None:
    made = declared(
        "blend", inputs="ids | x", outputs="total picked", doc="total = sum of x; picked = rows ids of the first x",
        composition=lambda ids, x: [x[0] + x[1], ops.get_rows(x[0], ids)],
        no_gradient_to={"ids": "row numbers have no slope"}, no_samples="made by a test",
    )  # fmt: skip
    u, v = gl.parameter(np.arange(6.0).reshape(3, 2), "u"), gl.parameter(np.ones((3, 2)), "v")
    total, picked = made(np.array([2, 0], np.int32), u, v)
    loss = ops.sum(ops.sqr(total)) + ops.sum(ops.sin(picked))
    got = gl.compile([total, picked], backend="numpy")()
    assert got[0].tolist() == (u.numpy() + 1).tolist() and got[1].tolist() == [[4, 5], [0, 1]]
    assert gl.check_gradients(loss) < 1e-6
    single = by_reference(total.node, [np.array([2, 0], np.int32), *(p.numpy() for p in (u, v))])
    assert {a.dtype for a in single} == {np.dtype(np.float32)}


def test_a_vjp_of_its_own_and_no_gradient_go_before_the_composition(declared: Any) -> None:
    w = gl.parameter([2.0], "w")
    (g,) = gl.gradients(rational(declared, vjp=lambda g: [ops.scale(g, 7.0), None])(w), [w])
    assert gl.compile(g, backend="numpy")()[0].tolist() == [7]
    del REGISTRY["rational"]
    with pytest.raises(gl.GradientError, match="rational has no gradient: on purpose"):
        gl.gradients(rational(declared, no_gradient="on purpose")(w), [w])


def test_a_reference_beside_a_composition_is_held_against_it(declared: Any) -> None:
    for spec in sampled_ops():
        if spec.composition is not None:
            assert composition_error(spec) <= 1e-9, spec.name
    samples = {"no_samples": None, "samples": REGISTRY["relu"].samples}
    fields = {"inputs": "x", "doc": "y = x + 1e-6", "reference": lambda x: x + 1e-6, **samples}
    assert composition_error(declared("wrong", composition=lambda x: x + 0.0, **fields)) > 1e-7
