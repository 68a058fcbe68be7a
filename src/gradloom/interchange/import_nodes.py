"""Nodes of ONNX files as plain data, and operands of their ops: values of a graph, or arrays that are known when it is
built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import GraphError
from ..graph.leaves import as_value
from ..graph.value import Value

MOST = 1 << 24  # elements of an array that is computed while a graph is built
MOST_IN_ALL = 1 << 26  # of all such arrays of a forward pass
MAX_RANK = 6

Operand = Any  # Value | np.ndarray | None


@dataclass
class OnnxNode:
    """A node of a file, as plain data."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    version: int = 0  # of the operator set

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def fault(self, text: str) -> GraphError:
        """The error of this node."""
        return GraphError(f"import_onnx: {self.op} {self.name!r:.60}: {text}")

    def need(self, **settings: Any) -> None:
        """GraphError unless attributes, where given, have these values."""
        for name, value in settings.items():
            if name in self.attributes and self.attributes[name] != value:
                seen, need = (one.decode("utf-8", "replace") if isinstance(one, bytes) else one
                              for one in (self.attributes[name], value))  # fmt: skip
                raise self.fault(f"{name}={seen!r:.60}; need {name}={need!r}")


@dataclass
class ErrorFunction:
    """erf(x * sqrt(1/2)) of a scaled value; plus 1 and times x it is 2 gelu(x). plus_one: 1 was added."""

    x: Value
    scaled: Value
    plus_one: bool = False

    def value(self) -> Value:
        made = ops.erf(self.scaled)
        return ops.add(made, 1.0) if self.plus_one else made


Entry = Callable[..., Any]
_products: ContextVar[dict[int, tuple[Any, Any, float]]] = ContextVar("gradloom_onnx_products")


@contextmanager
def scaling() -> Iterator[None]:
    """Inside, products x * number of a forward pass are remembered: by id (the product, x, number)."""
    token = _products.set({})
    try:
        yield
    finally:
        _products.reset(token)


def factor_of(x: Operand) -> tuple[Any, float]:
    """(y, number) of y * number, or (x, 1)."""
    _, first, factor = _products.get().get(id(x), (x, x, 1.0))
    return first, factor


def remember(product: Value, x: Any, factor: float) -> None:
    """The product is x * factor."""
    _products.get()[id(product)] = product, x, factor


def is_known(*operands: Operand) -> bool:
    """Whether these are arrays, not values of the graph."""
    return not any(isinstance(one, (Value, ErrorFunction)) for one in operands)


def value_of(x: Operand) -> Value:
    """An operand as a value; whole numbers of 64 bits become i32."""
    if isinstance(x, ErrorFunction):
        return x.value()
    if isinstance(x, np.ndarray) and x.dtype == np.int64:
        x = x.astype(np.int32)
    return as_value(x.astype(np.uint8) if isinstance(x, np.ndarray) and x.dtype == np.bool_ else x)


def as_output(x: Operand) -> Value:
    """An output of the whole graph."""
    return value_of(x)


def known(node: OnnxNode, x: Operand, what: str) -> np.ndarray:
    """An operand that must be an array; GraphError for a value that is computed from inputs."""
    if not is_known(x) or x is None:
        raise node.fault(f"{what} is computed from the inputs; need a constant")
    return np.asarray(x)


def whole_numbers(node: OnnxNode, x: Operand, what: str) -> list[int]:
    """The whole numbers of a constant."""
    array = known(node, x, what)
    if array.dtype.kind not in "iu" or array.size > 64:
        raise node.fault(f"{what} is {array.dtype}{list(array.shape)}; need a few whole numbers")
    return [int(n) for n in array.reshape(-1)]


def check_size(node: OnnxNode, shape: Sequence[int]) -> None:
    """GraphError for a shape of too many axes or elements, or with an extent below 0."""
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or math.prod(shape) > MOST:
        raise node.fault(f"makes shape {list(shape)!s:.60}; need at most {MAX_RANK} axes and {MOST:,} elements")


def axes_of(node: OnnxNode, x: Operand, given: Operand, rank: int | None = None) -> list[int] | None:
    """The axes of an input or of the attribute of this name, counted from 0."""
    axes = node.get("axes") if given is None else whole_numbers(node, given, "axes")
    if axes is None:
        return None
    count = len(x.shape) if rank is None else rank
    if any(not -count <= axis < count for axis in axes):
        raise node.fault(f"axes {list(axes)!s:.60} of {count}; need axes of the input")
    return [axis % count for axis in axes]
