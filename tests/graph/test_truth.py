"""Numbers of graph values: what Python asks of a value whose numbers are not known is refused by name."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import ops

ASKED: dict[str, Callable[[Any], Any]] = {
    "if": lambda x: 1 if x else 2, "and": lambda x: x and 1, "not": lambda x: not x, "in": lambda x: x in [2.0 * x],
    "contains": lambda x: 2 in x, "==": lambda x: bool(x == 2.0), "int": int, "float": float, "index": operator.index,
    "range": range, "array": np.asarray, "max": lambda x: max(x, 2.0), "list": lambda x: [1, 2][x],
}  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_a_graph_value_has_no_number(asked: str) -> None:
    with pytest.raises(gl.DTypeError) as caught:
        ASKED[asked](gl.input("features", (1,)))
    assert "use" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", [name for name in ASKED if name != "array"])
def test_a_parameter_is_asked_for_its_numbers_by_name(asked: str) -> None:
    with pytest.raises(gl.DTypeError, match="numpy|use"):
        ASKED[asked](gl.parameter([1.0], "gate"))


def test_tensors_keep_their_meaning() -> None:
    one, two = gl.tensor([1.0]), gl.tensor([2.0])
    assert one and not gl.tensor([0.0]) and int(two) == 2 and float(two) == 2.0
    assert two in [one, two] and max(one, two) is two and bool(one == 1.0)
    assert operator.index(gl.tensor([3], "i32")) == 3 and list(range(gl.tensor([2], "i32"))) == [0, 1]
    with pytest.raises(gl.DTypeError, match="whole numbers"):
        operator.index(two)


def test_softmax_names_the_mask() -> None:
    x = gl.input("x", (2, 3))
    with pytest.raises(gl.ShapeError, match="softmax: axis .*mask="):
        ops.softmax(x, x)
    assert ops.softmax(x, mask=x).shape == (2, 3)


PUBLIC = [name for name in sorted(ops.__all__) if inspect.isfunction(getattr(ops, name))]


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("wrong", ["a value", "a text"])
def test_no_argument_takes_a_value_for_a_number(name: str, wrong: str) -> None:
    """Each argument that has a default is given a graph value or a text: the call is taken or refused by an error of
    ours."""
    function, x = getattr(ops, name), gl.input("x", (4, 4))
    parameters = inspect.signature(function).parameters.values()
    needed = {p.name: x for p in parameters if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD}
    for p in parameters:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and (p.default is not p.empty or wrong == "a value"):
            try:
                function(**(needed | {p.name: x if wrong == "a value" else "text"}))
            except gl.GradloomError as error:
                assert "\n" not in str(error)
