"""Leaves: constants, inputs, settings and parameters, the values whose bytes come from outside of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.arguments import as_bool
from ..base.dlpack import CPU, exported
from ..base.dtypes import DType, dtype
from ..base.dtypes import dtype as as_dtype
from ..base.errors import DTypeError, GraphError, ShapeError
from ..base.habits import hinted
from ..base.hooks import eager_recorder
from .declaration import Spec
from .declare import op
from .graph import reachable
from .numbers import constant_array, in_expression
from .stored import Role, Stored, arrays_locked, before_write
from .value import Node, Shape, Value, recording


def as_value(x: Any) -> Value:
    """A value as it is; a number or array becomes a constant (f32 for floats and for one whole number, i32 for integer
    arrays, u8 for bools).

    Inside a tape they become an input of the recorded program.
    """
    if isinstance(x, Value):
        return x
    active = recording.get()
    return constant(in_expression(x)) if active is None else active.value(x)


def constant(data: Any, kind: str | DType | None = None, name: str = "") -> Value:
    """A constant node holding `data` (copied): f32 for floats, i32 for whole numbers of NumPy and lists of them, u8 for
    bools, unless `kind` states which; a single whole number of Python is a float.

    Raises ShapeError for rows of different lengths, DTypeError for what holds no numbers, is masked, or does not fit.
    """
    return _CONSTANT.node((), {"data": constant_array(data, kind, name)}, name).outputs[0]


_CONSTANT = op(
    "constant", inputs="", attrs="data:object", leaf=True, foldable=False,
    doc="An array known when the graph is built.",
    shape=lambda data: Spec(data.shape, dtype(data.dtype)),
    no_gradient="a constant has no gradient", no_samples="a leaf: its bytes come from the graph",
)  # fmt: skip
_INPUT = op(
    "input", inputs="", attrs="key:object extents:ints kind:dtype", leaf=True, foldable=False,
    doc="An array that the caller feeds.",
    shape=lambda extents, kind: Spec(extents, kind),
    no_gradient="an input has no gradient of its own; ask for it with gl.gradients", no_samples="a leaf",
)  # fmt: skip
_PARAMETER = op(
    "parameter", inputs="", attrs="stored:object", leaf=True, foldable=False,
    doc="An array that outlives the run and that update ops may write.",
    shape=lambda stored: Spec(stored.shape, stored.dtype),
    no_gradient="a parameter is where gradients end", no_samples="a leaf",
)  # fmt: skip
_SETTING = op(
    "setting", inputs="", attrs="key:object kind:dtype=f32", leaf=True, foldable=False,
    doc="A scalar from the settings table (learning rate, step, seed), evaluated ahead of the call.",
    shape=lambda kind: Spec((), kind),
    no_gradient="a setting is not differentiated", no_samples="a leaf",
)  # fmt: skip


@hinted
def input(name: str, shape: Sequence[int] = (), dtype: str | DType = "f32") -> Value:
    """A value that the caller feeds by name. shape: NumPy order, slowest axis first."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"input: name {name!r} is not usable; need a non-empty string")
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(not isinstance(e, (int, np.integer)) or e < 0 for e in extents):
        raise ShapeError(f"input {name}: shape {list(extents)} is not usable; need whole numbers >= 0")
    if isinstance(dtype, (str, DType)) and as_dtype(dtype).is_quantised:
        raise DTypeError(f"input {name}: {as_dtype(dtype).name} cannot be fed; need a plain dtype, or Stored.map")
    return _INPUT.node((), {"key": name, "extents": extents, "kind": dtype}, name).outputs[0]


def setting(key: str, kind: str | DType = "f32") -> Value:
    """A run-time scalar of shape () out of the settings table."""
    return _SETTING.node((), {"key": key, "kind": kind}, key).outputs[0]


class Parameter(Value):
    """A value whose array outlives the run. `numpy()` copies it out, `assign` replaces it; `trainable` may be set:
    one that is not trainable is frozen, which no optimiser touches.

    `programs` holds the programs compiled by gradloom.eager; they are freed with the parameter.
    """

    __slots__ = ("programs", "stored")

    def __init__(self, node: Node, index: int, shape: Shape, dtype: DType) -> None:
        super().__init__(node, index, shape, dtype)
        self.stored: Stored = node.attrs["stored"]
        self.programs: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return stored_value, (self.stored,)  # a copy, also in another process, is a leaf of its own

    @property
    def trainable(self) -> bool:
        return self.stored.role == "trained"

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self.stored.set_trainable(as_bool("trainable", trainable))

    def numpy(self) -> np.ndarray:
        """A copy of the current contents; quantised ones as f32."""
        return self.stored.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of the current contents; for copy=False their memory itself, read-only, or a ValueError."""
        if copy is False:
            view, reason = self._in_place()
            if view is None or dtype not in (None, view.dtype):
                reason = reason or f"they are {self.dtype.name}"
                raise ValueError(f"parameter {self.name}: its contents cannot be read without a copy: {reason}")
            return view
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def _in_place(self) -> tuple[np.ndarray | None, str]:
        """The memory of the contents, as a read-only view; None, and the reason, where there is no such memory."""
        if self.dtype.is_quantised:
            return None, f"they are {self.dtype.name}, whose numbers are decoded"
        with arrays_locked((self.stored,)):
            if self.stored.away is not None:
                return None, "their newest values are on another device"
            return self.stored.read(), ""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return CPU

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The memory of the contents for another library, read-only: it changes when the parameter is trained.

        A copy where the newest contents are on a GPU, for copy=True, and for a consumer of DLPack before 1.0, which
        does not know read-only memory. BufferError for quantised contents and where copy=False is impossible.
        """
        view, reason = self._in_place()
        if view is None and (copy is False or self.dtype.is_quantised):
            raise BufferError(f"parameter {self.name}: its contents are not shared: {reason}; use numpy()")
        array = self.numpy() if view is None else view
        return exported(array, f"parameter {self.name}", stream, max_version, dl_device, copy)

    def _no_update(self, other: Any) -> Parameter:
        raise GraphError(
            f"parameter {self.name}: cannot be changed by -=, +=, *= or /=, which only bind the name to a new value; "
            "use p.assign(p - x)"
        )

    __isub__ = __iadd__ = __imul__ = __itruediv__ = _no_update

    def _no_number(self, what: str, use: str) -> DTypeError:
        return DTypeError(f"parameter {self.name}: it has no {what} in a graph, where it changes; use numpy()")

    def assign(self, data: Any) -> None:
        """Replace the contents by an array, a number or a tensor of the parameter's shape.

        A value of a graph that is made of parameters and constants is computed: w.assign(0.9 * w). ShapeError or
        DTypeError when the data do not fit, GraphError for a value of a graph that is fed, or that was made before one
        of its parameters changed.
        """
        if isinstance(data, Value):
            if data.recorder is None and not isinstance(data, Parameter):
                _check_unchanged(data, self)
                data = eager_recorder().take(data)
            before_write((self.stored,))  # expressions of the old contents, `data` too, are computed now
        self.stored.assign(data)


def _check_unchanged(value: Value, target: Parameter) -> None:
    """GraphError where a parameter has changed since the expression was made: its old contents are gone."""
    for node in reachable([value]):
        leaves = [v.node for v in node.inputs if v is not None and v.node.op.name == "parameter"]
        for leaf, version in zip(leaves, node.versions, strict=False):  # no versions: nodes that transforms made
            if leaf.attrs["stored"].version != version:
                name = leaf.name or "p"
                raise GraphError(
                    f"parameter {target.name}: parameter {leaf.name} has changed since {node.op.name} {node.label} "
                    f"was built from it; need an expression built after the change, or a snapshot taken before: "
                    f"{name}.numpy() or gl.tensor({name})"
                )


@hinted
def parameter(data: Any, name: str = "", dtype: str | DType = "f32", trainable: bool = True) -> Parameter:
    """A trainable array, initialised with `data` (copied)."""
    role: Role = "trained" if as_bool("trainable", trainable, "parameter") else "state"
    return stored_value(Stored(name, data, dtype, role))


def stored_value(stored: Stored) -> Parameter:
    """The leaf that reads (and, under an update, writes) a stored array."""
    node = _PARAMETER.node((), {"stored": stored}, stored.name)
    value = Parameter(node, 0, node.outputs[0].shape, node.outputs[0].dtype)
    node.outputs = (value,)
    return value


def named(value: Value, name: str) -> Value:
    """The same value under a name of its own (messages, listings, gradients by name)."""
    value.node.name = name
    return value
