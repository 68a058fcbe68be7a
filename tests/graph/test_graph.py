"""Nodes and values: locations, names, checks, listings, stored arrays, the registry that refuses gaps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops
from gradloom.base.aligned import ALIGNMENT, aligned_empty
from gradloom.graph.declaration import Spec
from gradloom.graph.declare import op
from gradloom.graph.graph import check_graph, listing, reachable, storage_leaf, update_target
from gradloom.graph.opspec import REGISTRY, OpSpec
from gradloom.graph.stored import Stored
from gradloom.graph.value import Value


def test_ids_are_a_topological_order() -> None:
    x = gl.input("x", (2, 2))
    y = ops.exp(x) @ ops.transpose(x) + 1.0
    nodes = reachable([y])
    assert [n.id for n in nodes] == sorted(n.id for n in nodes)
    for node in nodes:
        assert all(v.node.id < node.id for v in node.inputs if v is not None)
    check_graph(nodes)
    with pytest.raises(gl.GraphError, match="which comes later or is missing"):
        check_graph(nodes[::-1])


def test_a_node_that_lies_about_its_shape_is_refused() -> None:
    node = ops.exp(gl.input("x", (2,))).node
    node.outputs = (Value(node, 0, (3,), node.outputs[0].dtype),)
    with pytest.raises(gl.GraphError, match=r"exp#\d+ at test_graph.py:\d+ states .*; its op infers"):
        check_graph(reachable(node.outputs))


BIG = 2**40


@pytest.mark.parametrize(
    "make",
    [
        lambda: gl.input("x", (BIG, BIG)),
        lambda: gl.input("x", (2**63,)),
        lambda: gl.input("x", (2**61,)),  # bytes count, not elements
        lambda: gl.input("x", (0, BIG, BIG)),
        lambda: gl.input("x", (BIG, 1)) @ gl.input("y", (1, BIG)),
        lambda: gl.input("x", (BIG, 1)) * gl.input("y", (1, BIG)),
        lambda: ops.broadcast_to(gl.input("x", (1, 1)), (BIG, BIG)),
        lambda: gl.input("x", (0,)).reshape(2**62, 0),
        lambda: ops.pad(gl.input("x", (4, 4)), ((0, 2**62), (0, 0))),
        lambda: ops.concat([gl.input("x", (2**60,))] * 2),
        lambda: gl.nn.Linear(BIG, BIG),
        lambda: gl.nn.Linear(2**70, 1),
        lambda: gl.compile([gl.input("y", (2**59,)) ** 3, gl.input("z", (2**59,)) ** 3]),
    ],
)
def test_shapes_beyond_64_bits_are_refused(make: Any) -> None:
    with pytest.raises((gl.ShapeError, gl.GraphError)) as caught:
        make()
    assert "\n" not in str(caught.value) and "need" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.dropout(x, 0.5, stream=2**70),
        lambda x: ops.scale(x, factor=10**400),
        lambda x: ops.max_pool2d(x, 2**70),
        lambda x: ops.reshape(x, (2**70, -1)),
    ],
)
def test_attributes_beyond_64_bits_are_refused(make: Any) -> None:
    with pytest.raises(gl.GradloomError, match="need") as caught:
        make(gl.input("x", (1, 4, 4, 1)))
    assert "\n" not in str(caught.value)


def test_nodes_know_their_line_and_scope() -> None:
    x = gl.input("x", (2,))
    with gl.scope("outer"), gl.scope("inner"):
        y = ops.exp(x)
    assert y.node.name == "outer.inner" and y.node.where.startswith("test_graph.py:")
    assert gl.named(ops.sin(x), "here").node.label.startswith("here at test_graph.py:")
    z = x + 1.0  # an operator: still this file's line
    assert z.node.where.startswith("test_graph.py:")
    with gl.scope("fc1"), pytest.raises(gl.ShapeError, match=r"need 2 == 3; node fc1 at test_graph.py:\d+"):
        ops.reshape(x, (1, 2)) @ gl.parameter(np.ones((3, 1)))


def test_values_are_no_arrays() -> None:
    x = gl.input("x", (2, 3))
    for f in (bool, np.asarray, float):
        with pytest.raises(TypeError):
            f(x)
    assert (
        len(x) == 2 and [v.shape for v in x] == [(3,), (3,)] and x.T.shape == (3, 2) and x.ndim == 2 and x.bytes == 24
    )
    with pytest.raises(TypeError, match="no truth"):
        if x:
            pass


def test_arithmetic_with_numbers_and_arrays_on_either_side() -> None:
    x = gl.input("x", (2,))
    data = np.float32([1, 2])
    cases = {
        "1 - x": (1 - x, [-2, -3]), "x - 1": (x - 1, [2, 3]), "6 / x": (6 / x, [2, 1.5]), "x / 2": (x / 2, [1.5, 2]),
        "x ** 2": (x**2, [9, 16]), "2 ** x": (2**x, [8, 16]), "-x": (-x, [-3, -4]), "abs": (abs(-x), [3, 4]),
        "array + x": (data + x, [4, 6]), "x + array": (x + data, [4, 6]), "array * x": (data * x, [3, 8]),
        "matrix @ x": (np.float32([[1, 0], [1, 1]]) @ x, [3, 7]), "x @ x": (x @ x, 25), "sum": (x.sum(), 7),
        "mean": (x.mean(0), 3.5),
    }  # fmt: skip
    for what, (value, right) in cases.items():
        assert np.allclose(gl.compile(value)(x=[3, 4])[0], right), what


def test_inputs_and_parameters_refuse_nonsense() -> None:
    for call, kind in (
        (lambda: gl.input("", (2,)), gl.GraphError),
        (lambda: gl.input(3, (2,)), gl.GraphError),
        (lambda: gl.input("x", (-1,)), gl.ShapeError),
        (lambda: gl.input("x", (2.5,)), gl.ShapeError),
        (lambda: gl.input("x", (2,), "f33"), gl.GradloomError),
        (lambda: gl.constant("text"), gl.DTypeError),
        (lambda: gl.constant(np.array([object()])), gl.DTypeError),
        (lambda: gl.parameter("text"), gl.DTypeError),
        (lambda: gl.parameter([[1.0], [1.0, 2.0]]), gl.GradloomError),
        (lambda: gl.constant([[1.0], [1.0, 2.0]]), gl.ShapeError),
        (lambda: gl.input("x", (2, 2)) + [[1.0], [1.0, 2.0]], gl.ShapeError),
        (lambda: ops.exp(None), gl.GraphError),
        (lambda: ops.exp("x"), gl.DTypeError),
        (lambda: ops.exp(), gl.GraphError),
    ):
        with pytest.raises(kind) as refused:
            call()
        assert "\n" not in str(refused.value)


def test_parameters_hold_copies() -> None:
    data = np.ones(3, np.float32)
    w = gl.parameter(data, "w")
    data[:] = 5
    assert w.numpy().tolist() == [1, 1, 1]
    w.numpy()[:] = 7
    assert w.numpy().tolist() == [1, 1, 1] and w.trainable and w.stored.address % ALIGNMENT == 0
    w.assign([1, 2, 3])
    assert w.numpy().tolist() == [1, 2, 3] and w.stored.version == 1
    for bad, kind in ((np.ones(4), gl.ShapeError), (["a", "b", "c"], gl.DTypeError)):
        with pytest.raises(kind, match="parameter w"):
            w.assign(bad)
    assert w.numpy().tolist() == [1, 2, 3]


def test_stored_arrays() -> None:
    for shape in ((), (3,), (2, 5)):
        array = aligned_empty(shape, np.dtype(np.float32))
        assert array.shape == shape and array.ctypes.data % ALIGNMENT == 0
    with pytest.raises(gl.ShapeError, match="an array with gaps"):
        Stored.wrap("data", np.ones((4, 4), np.float32)[:, ::2], "frozen")
    base = np.arange(4, dtype=np.float32)
    assert np.shares_memory(Stored.wrap("data", base, "frozen").read(), base)


def test_stored_arrays_are_read_as_views_and_written_in_place() -> None:
    base = np.arange(4, dtype=np.float32)
    state = Stored.wrap("order", base, "state")
    view = state.read()
    assert np.shares_memory(view, base) and state.address == base.ctypes.data and state.bytes == 16
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9
    state.write([4, 3, 2, 1])
    assert view.tolist() == base.tolist() == [4, 3, 2, 1] and state.version == 1
    state.write(0)
    assert base.tolist() == [0, 0, 0, 0] and state.version == 2


def test_roles_of_stored_arrays() -> None:
    weight = gl.parameter([1.0])
    assert weight.stored.role == "trained"
    weight.trainable = False
    assert weight.stored.role == "state" and not weight.trainable
    weight.assign([2.0])  # its training is switched off, and still it may be written
    weight.trainable = True
    assert weight.stored.role == "trained"
    base = np.ones(2, np.float32)
    frozen = Stored.wrap("data", base, "frozen")
    for change in (lambda: frozen.write(0), lambda: frozen.assign([0, 0]), lambda: frozen.set_trainable(True)):
        with pytest.raises(gl.GraphError, match="data: it is (read-only|frozen)"):
            change()
    assert base.flags.writeable and base.tolist() == [1, 1]
    frozen.set_trainable(False)
    assert frozen.role == "frozen"


def test_update_targets() -> None:
    w, m, g = gl.parameter([1.0], "w"), gl.parameter([1.0], "m"), gl.input("g", (1,))
    v = gl.parameter([[1.0, 2.0]], "v")
    one = gl.constant(1.0)
    made = ops.sgd(one, one, one, one, w, g, m, v, ops.reshape(gl.constant([1.0, 2.0]), (1, 2)), None)
    assert [update_target(o) for o in made] == [w, m, v, None]
    (again,) = ops.zero(made[0])
    assert storage_leaf(again) is w and update_target(again) is made[0] and update_target(g) is None


def test_the_listing_shows_every_node() -> None:
    x = gl.input("x", (2, 3))
    text = listing([ops.sum(ops.softmax(x), 1), ops.batch_norm(x)[1]])
    assert "sum(" in text and "axes=(1,)" in text and "f32[2,3]" in text
    assert len(text.splitlines()) == len(reachable([ops.sum(ops.softmax(x), 1), ops.batch_norm(x)[1]]))


def minimal(**changes: Any) -> OpSpec:
    fields: dict[str, Any] = {
        "inputs": "x", "doc": "y = x", "dtypes": "f32",
        "shape": lambda x: Spec(x.shape), "vjp": lambda g: [g], "reference": lambda x: x,
        "no_samples": "made by a test",
    }  # fmt: skip
    return op("minimal", **(fields | changes))


def test_the_registry_refuses_gaps() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vjp": None}, "exactly one of vjp and no_gradient"),
        ({"no_gradient": "because"}, "exactly one of vjp and no_gradient"),
        ({"reference": None}, "a reference"),
        ({"dtypes": None}, "the dtypes of its inputs"),
        ({"dtypes": "z:f32"}, "are not one word for all inputs"),
        ({"shape": None}, "a shape rule or a composition"),
        ({"no_samples": None}, "samples"),
        ({"vjp": lambda g, z: [g]}, "vjp asks for 'z'"),
        ({"reference": lambda x, scale: x}, "reference asks for 'scale'"),
        ({"may_overwrite": "z"}, "may_overwrite names"),
        ({"may_overwrite": {"z": "x"}}, "may_overwrite names"),
        ({"outputs": "x"}, "different names of inputs and outputs, not x"),
        ({"dense": "z"}, "unknown input"),
        ({"updates": "y=z"}, "unknown input"),
        ({"attrs": "scale"}, "is not name:kind"),
    ]
    before = set(REGISTRY)
    for changes, message in cases:
        with pytest.raises(AssertionError, match=message):
            minimal(**changes)
        assert set(REGISTRY) == before
    try:
        minimal()
        with pytest.raises(AssertionError, match="the name is taken"):
            minimal()
    finally:
        REGISTRY.pop("minimal", None)


def test_attributes_may_follow_the_inputs() -> None:
    x = gl.input("x", (3,))
    assert ops.scale(x, 2.0, 1.0).node.attrs == {"factor": 2.0, "bias": 1.0}
    assert ops.clamp(x, -1, max=1).node.attrs == {"min": -1.0, "max": 1.0}
    for call, message in (
        (lambda: ops.scale(x), "scale: factor is missing"),
        (lambda: ops.scale(x, 1.0, 2.0, 3.0), "scale: 2 inputs"),
        (lambda: ops.scale(x, 1.0, factor=2.0, size=1), "scale: size is not an attribute"),
        (lambda: ops.clamp(x, "low", 1.0), "clamp: min='low' is not usable"),
        (lambda: ops.exp(x, x), "exp: 2 inputs"),
    ):
        with pytest.raises(gl.GraphError, match=message):
            call()


def test_dtypes_survive_copying() -> None:
    x = gl.input("x", (2,), "i32")
    assert copy.copy(x.dtype) is x.dtype and copy.deepcopy(x.dtype) is x.dtype
