"""Node and Value: the graph itself.

A node is one application of an op; a value is one of its outputs, the object that users hold. Both are immutable.
Node ids grow with creation, so the order of ids is always a topological order.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from ..base.dtypes import DType, Shaped
from ..base.errors import DTypeError
from ..base.habits import AttributeHints, hinted, numpy_hint
from .declaration import Declaration
from .scope import current_device, current_scope, user_location

Shape = tuple[int, ...]
P = ParamSpec("P")
R = TypeVar("R")

_ids = itertools.count()
_operators: dict[str, Callable[..., Value]] = {}
# The operator of each function that NumPy calls for an expression with an array: array * value
_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "remainder": "remainder",
    "matmul": "matmul", "equal": "equal", "not_equal": "not_equal", "less": "less", "less_equal": "less_equal",
    "greater": "greater", "greater_equal": "greater_equal", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
}  # fmt: skip


class Recorder(Protocol):
    """Records eager computations: a gradloom.eager.trace.Trace."""

    def record(self, op: Declaration, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """The outputs of the op; NotImplemented where all inputs belong to a graph that is being built."""

    def value(self, data: Any) -> Value:
        """Numbers that stand in an expression."""

    def follow(self) -> Any:
        """The recorder that continues after this one has ended; itself while it has not."""


recording: ContextVar[Recorder | None] = ContextVar("gradloom_recording", default=None)  # of the open tape


@contextmanager
def graph_mode() -> Iterator[None]:
    """Inside, ops make nodes of a graph, also where a tape is open."""
    token = recording.set(None)
    try:
        yield
    finally:
        recording.reset(token)


def builds_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run in graph mode."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with graph_mode():
            return function(*args, **kwargs)

    return run


class Node:
    """One application of an op.

    inputs holds one entry per declared input: a Value, None for an absent optional one; the groups of a
    variadic op follow flat. `effects` are update values that belong to whoever computes this node (running
    statistics); `after` are nodes that must have run before; `losses` are the outputs that gl.set_loss marked; `device`
    is the device that the caller assigned (gl.device), None where none was assigned, and of leaves;
    `versions` are those of the parameters among the inputs when the node was made (see Parameter.assign).
    """

    __slots__ = (
        "__weakref__", "after", "attrs", "device", "effects", "id", "inputs", "losses", "name", "op", "outputs",
        "versions", "where",
    )  # fmt: skip

    def __init__(
        self,
        op: Declaration,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any],
        specs: Sequence[Shaped],
        name: str = "",
        where: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        self.id = next(_ids)
        self.op = op
        self.inputs = tuple(inputs)
        self.attrs = attrs
        self.outputs = tuple([Value(self, i, spec.shape, spec.dtype) for i, spec in enumerate(specs)])
        self.name = name or current_scope()
        self.where = user_location() if where is None else where
        self.device = None if op.leaf else current_device()  # leaves outlive a scope: modules keep some
        self.effects: tuple[Value, ...] = ()
        self.losses: tuple[int, ...] = ()
        self.after = tuple(after)
        self.versions = tuple([
            v.node.attrs["stored"].version for v in self.inputs if v is not None and v.node.op.name == "parameter"
        ])  # fmt: skip

    def with_inputs(self, inputs: Sequence[Value | None], after: Sequence[Node]) -> Node:
        """The same application to other inputs of the same shapes, behind other nodes; without effects and losses."""
        copy = Node.__new__(Node)
        copy.id = next(_ids)
        copy.op, copy.attrs, copy.name, copy.where = self.op, self.attrs, self.name, self.where
        copy.device = self.device
        copy.inputs, copy.after = tuple(inputs), tuple(after)
        copy.outputs = tuple([Value(copy, v.index, v.shape, v.dtype) for v in self.outputs])
        copy.effects, copy.losses, copy.versions = (), (), ()
        return copy

    @property
    def title(self) -> str:
        """The op as reports call it: a user-defined one by its function."""
        return self.attrs["call"].name if self.op.python else self.op.name

    @property
    def label(self) -> str:
        """How messages call this node: its name where it has one, else op#id; then the line of user code."""
        called = self.name or f"{self.title}#{self.id}"
        return f"{called} at {self.where}"

    def __repr__(self) -> str:
        return f"Node({self.title}, {self.label})"


class Value(Shaped, AttributeHints):
    """One output of a node: a shape, a dtype, and arithmetic that makes further nodes."""

    __slots__ = ("__weakref__", "dtype", "index", "node", "shape")
    __array_priority__ = 1000  # numpy_array * value asks the value
    recorder: Recorder | None = None  # of an eager value: records operations on it outside all tapes

    def __init__(self, node: Node, index: int, shape: Shape, dtype: DType) -> None:
        self.node = node
        self.index = index
        self.shape = shape
        self.dtype = dtype

    @property
    def name(self) -> str:
        return self.node.name

    def carry(self, *updates: Value) -> None:
        """Updates carried out with this value (running statistics)."""
        self.node.effects = updates

    @property
    def T(self) -> Value:
        """All axes reversed."""
        return _operators["permute"](self, axes=tuple(range(self.ndim))[::-1])

    def __repr__(self) -> str:
        return f"<{self.node.label}: {describe(self)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a value of shape ()")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise self._no_number("truth", "ops.where(...) to choose by it, `is` to ask for the same value, or gl.compile")

    def __int__(self) -> int:
        raise self._no_number("int()", "gl.compile, and the result")

    def __index__(self) -> int:
        raise self._no_number("index or whole number", "an int")

    def __float__(self) -> float:
        raise self._no_number("float()", "gl.compile, and the result")

    def _no_number(self, what: str, use: str) -> DTypeError:
        """The error for a value whose numbers are not known while its graph is built."""
        return DTypeError(f"{self.node.label}: a graph value ({describe(self)}) has no {what}; use {use}")

    def __iter__(self) -> Iterator[Value]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise self._no_number("array", "gl.compile, and the result")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """The operators of NumPy's arrays are those of values: array * value. DTypeError for other functions."""
        name = _UFUNCS.get(ufunc.__name__)
        if name is None or method != "__call__" or options:
            raise self._of_numpy(ufunc.__name__)
        return _operators[name](*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What looks at shapes alone, such as np.ndim; DTypeError for functions of the numbers."""
        try:
            return function._implementation(*args, **kwargs)
        except (DTypeError, TypeError) as error:
            raise self._of_numpy(function.__name__) from error

    def _of_numpy(self, name: str) -> DTypeError:
        """The error for a function of NumPy, which computes with numbers."""
        return DTypeError(f"{self.node.label}: np.{name} takes no graph value ({describe(self)}); {numpy_hint(name)}")

    def __neg__(self) -> Value:
        return _operators["neg"](self)

    def __abs__(self) -> Value:
        return _operators["abs"](self)

    def __add__(self, other: object) -> Value:
        return _operators["add"](self, other)

    def __radd__(self, other: object) -> Value:
        return _operators["add"](other, self)

    def __sub__(self, other: object) -> Value:
        return _operators["sub"](self, other)

    def __rsub__(self, other: object) -> Value:
        return _operators["sub"](other, self)

    def __mul__(self, other: object) -> Value:
        return _operators["mul"](self, other)

    def __rmul__(self, other: object) -> Value:
        return _operators["mul"](other, self)

    def __truediv__(self, other: object) -> Value:
        return _operators["div"](self, other)

    def __rtruediv__(self, other: object) -> Value:
        return _operators["div"](other, self)

    def __mod__(self, other: object) -> Value:
        return _operators["remainder"](self, other)

    def __rmod__(self, other: object) -> Value:
        return _operators["remainder"](other, self)

    def __pow__(self, other: object) -> Value:
        return _operators["pow"](self, other)

    def __rpow__(self, other: object) -> Value:
        return _operators["pow"](other, self)

    def __matmul__(self, other: object) -> Value:
        return _operators["matmul"](self, other)

    def __rmatmul__(self, other: object) -> Value:
        return _operators["matmul"](other, self)

    __hash__ = object.__hash__  # a value is a key of its own, whatever it is equal to

    def __eq__(self, other: object) -> Any:
        """Element by element, as all comparisons: u8, 1 where it holds. Ask `is` for the same value."""
        return _operators["equal"](self, other) if _comparable(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return _operators["not_equal"](self, other) if _comparable(other) else NotImplemented

    def __lt__(self, other: object) -> Any:
        return _operators["less"](self, other) if _comparable(other) else NotImplemented

    def __gt__(self, other: object) -> Any:
        return _operators["greater"](self, other) if _comparable(other) else NotImplemented

    def __le__(self, other: object) -> Any:
        return _operators["less_equal"](self, other) if _comparable(other) else NotImplemented

    def __ge__(self, other: object) -> Any:
        return _operators["greater_equal"](self, other) if _comparable(other) else NotImplemented

    def __and__(self, other: object) -> Value:
        """1 where both conditions hold (u8), as the other operators of conditions; numbers: gl.ops.logical_and."""
        return _operators["logical_and"](self, other)

    def __rand__(self, other: object) -> Value:
        return _operators["logical_and"](other, self)

    def __or__(self, other: object) -> Value:
        return _operators["logical_or"](self, other)

    def __ror__(self, other: object) -> Value:
        return _operators["logical_or"](other, self)

    def __xor__(self, other: object) -> Value:
        return _operators["logical_xor"](self, other)

    def __rxor__(self, other: object) -> Value:
        return _operators["logical_xor"](other, self)

    def __invert__(self) -> Value:
        return _operators["logical_not"](self)

    def __getitem__(self, index: Any) -> Value:
        return _operators["getitem"](self, index)

    def reshape(self, *shape: Any) -> Value:
        return _operators["reshape"](self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: Any) -> Value:
        return _operators["transpose"](
            self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        )

    @hinted
    def sum(self, axes: Any = None, keepdims: bool = False) -> Value:
        return _operators["sum"](self, axes, keepdims)

    @hinted
    def mean(self, axes: Any = None, keepdims: bool = False) -> Value:
        return _operators["mean"](self, axes, keepdims)

    def detach(self) -> Value:
        """The same numbers, through which no gradient flows back."""
        return _operators["detach"](self) if self.dtype.is_float else self


def _comparable(other: object) -> bool:
    return isinstance(other, (Value, int, float, np.ndarray, np.generic, list, tuple))


def define_operators(**functions: Callable[..., Value]) -> None:
    """ops/ gives values their arithmetic; graph/ itself imports no op."""
    _operators.update(functions)


def same_values(first: Sequence[Value | None], second: Sequence[Value | None]) -> bool:
    """Whether both hold the very same values in one order; `==` of values compares their elements."""
    return len(first) == len(second) and all(map(operator.is_, first, second))


def describe(value: Value | None) -> str:
    """dtype and shape, as messages print them: f32[32,784]."""
    return "absent" if value is None else describe_spec(value.shape, value.dtype)


def describe_spec(shape: Shape, dtype: DType) -> str:
    return f"{dtype.name}[{','.join(map(str, shape))}]"
