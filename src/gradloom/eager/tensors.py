"""Tensor: a value that is computed when it is read; gl.tensor, gl.from_dlpack.

A trace (trace.py) records operations on tensors. A tensor reaches it through `Tensor.recorder`."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from .. import ops
from ..base import locks
from ..base.arrays import as_array
from ..base.dlpack import CPU, exported, imported
from ..base.dtypes import DType, f32
from ..base.dtypes import dtype as as_dtype
from ..base.errors import DTypeError, GradientError, GradloomError, GraphError, ShapeError
from ..base.habits import hinted
from ..graph.leaves import Parameter
from ..graph.numbers import converted, kind_of
from ..graph.scope import user_location
from ..graph.value import Node, Recorder, Value, describe, recording


class Away(Protocol):
    """Numbers that a program has left in the memory of a device."""

    shape: tuple[int, ...]

    def numpy(self) -> np.ndarray:
        """Here: not a copy."""


Numbers = np.ndarray | Away


class EagerRecorder(Recorder, Protocol):
    """Records what happens to tensors outside of all tapes."""

    def adopt(self, x: Tensor) -> Value:
        """The input that represents a tensor in the current recording."""

    def make_room(self) -> None:
        """Compute what waits outside of all tapes, where that is much."""


class _NotInherited:
    """An attribute of the base class that a class does not have."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type) -> Any:
        raise AttributeError(self._name)


class Tensor(Value):
    """A value that is computed when it is looked at: by numpy(), float(), int(), bool(), item(), print.

    Arithmetic and gl.ops work on it as on any Value. It never changes.
    """

    __slots__ = ("data", "error", "symbol", "trace")

    def __init__(self, *data: Any, **options: Any) -> None:
        raise TypeError("Tensor: use gl.tensor(data)")

    recorder: EagerRecorder  # set by trace.py

    trace: Any  # the Trace that recorded it; None: it was given
    symbol: Any  # the Value that represents it there
    data: Numbers | None  # None: not yet computed
    error: GradloomError | None  # why it cannot be

    @property
    def node(self) -> Node:  # type: ignore[override]
        return self._named().node

    @property
    def index(self) -> int:  # type: ignore[override]
        return self._named().index

    def _named(self) -> Value:
        if self.symbol is not None:
            return self.symbol
        locks.refuse_in_user_code("a tensor is recorded")
        return self.recorder.adopt(self)

    def computed(self) -> np.ndarray:
        """The numbers, computed now if they are not yet: not a copy."""
        data = self.wherever()
        return data if isinstance(data, np.ndarray) else data.numpy()

    def wherever(self) -> Numbers:
        """The numbers where they lie, computed now if they are not yet."""
        if self.data is None:
            if self.dtype.is_quantised:
                raise DTypeError(f"tensor: {describe(self)} is not read out; need a cast to f32")
            if self.error is None:
                self.trace.look()
        if self.data is None:
            if self.error is not None:
                raise self.error
            end = f"{self.trace.changed} changed" if self.trace.changed else "its recording ended"
            raise GraphError(f"tensor: {describe(self)} was not read before {end}; compute it again")
        return self.data

    def numpy(self) -> np.ndarray:
        """A copy of the numbers."""
        return self.computed().copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """A copy of the numbers; for copy=False their memory, read-only, or a ValueError where the dtype differs."""
        data = self.computed()
        if copy is not False:
            return np.array(data, dtype)
        if dtype not in (None, data.dtype):
            raise ValueError(f"tensor: {describe(self)} cannot be read as {np.dtype(dtype)} without a copy")
        return _read_only(data)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return CPU

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The memory of the numbers for another library, read-only; a copy for copy=True, and for a consumer of DLPack
        before 1.0, which does not know read-only memory. BufferError where copy=False is impossible."""
        return exported(_read_only(self.computed()), "tensor", stream, max_version, dl_device, copy)

    __array_ufunc__: Any = _NotInherited()  # np.exp(tensor) is an array, and array * tensor the product of the tensor

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A function of NumPy computes with the numbers of tensors and gives arrays."""

        def numbers(x: Any) -> Any:
            return x.numpy() if isinstance(x, Tensor) else type(x)(map(numbers, x)) if type(x) in (list, tuple) else x

        return function(*numbers(args), **{name: numbers(x) for name, x in kwargs.items()})

    def item(self) -> Any:
        """The one number that it holds; ShapeError when there are several."""
        if self.size != 1:
            raise ShapeError(f"item: {describe(self)} holds {self.size} numbers; need one")
        return self.computed().item()

    def tolist(self) -> Any:
        return self.computed().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if self.dtype.is_float:
            raise DTypeError(f"tensor: {describe(self)} as an index; need whole numbers, or int(tensor)")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec else str(self), spec)

    def __repr__(self) -> str:
        shown = np.array2string(self.computed(), precision=6, threshold=20, separator=", ", prefix="tensor(")
        return f"tensor({shown}, {describe(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return given, (self.numpy(), self.dtype)

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: object) -> Tensor:
        return self

    def carry(self, *updates: Value) -> None:
        """Nothing to do: a trace carries out the updates that it records."""

    def detach(self) -> Tensor:
        """The same numbers, through which no gradient flows back."""
        return ops.detach(self) if self.dtype.is_float else self


_F32 = np.dtype(np.float32)
_F32_MAX = float(np.finfo(np.float32).max)
new_tensor = object.__new__  # Tensor without its __init__


@hinted
def tensor(data: Any, dtype: str | DType | None = None) -> Tensor:
    """A tensor of these numbers (copied): f32 for floats, i32 for whole numbers of NumPy and lists of them, u8 for
    bools, unless `dtype` states which; a single whole number of Python is a float. A value of a graph is that value, so
    that one function serves eager loops and graphs; inside a tape tensors and parameters are returned as they are, and
    keep their gradients.

    Raises ShapeError for rows of different lengths, DTypeError for what holds no numbers or does not fit, and for
    masked arrays.
    """
    taped = recording.get()
    if isinstance(data, Value) and (taped is not None or not isinstance(data, (Tensor, Parameter))):
        if isinstance(data, Parameter):
            data = taped.follow().take(data)  # type: ignore[union-attr]
        return cast("Tensor", data if dtype is None or as_dtype(dtype) is data.dtype else ops.cast(data, dtype))
    Tensor.recorder.make_room()
    if isinstance(data, Tensor):
        data = data.computed()
    elif isinstance(data, Parameter):
        data = data.numpy()
    return numbers(data, dtype)


@hinted
def from_dlpack(x: Any, copy: bool | None = None) -> Tensor:
    """A tensor of the memory of an array of another library (DLPack): NumPy, PyTorch, JAX, ...

    copy   None (the default): a copy only where it is necessary, for numbers on another device; True: always; False:
           never, DTypeError instead. A parameter of gradloom is copied unless copy=False.

    The dtype is that of x; bools become u8. Memory that is shared must not change while the tensor is in use. Raises
    DTypeError for an object without DLPack, and for numbers of a dtype that gradloom does not have.
    """
    Tensor.recorder.make_room()
    array = imported(x, "from_dlpack", True if copy is None and isinstance(x, Parameter) else copy)
    return given(array, as_dtype(array.dtype))


def _holds_values(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and any(isinstance(x, Value) or _holds_values(x) for x in data)


def numbers(data: Any, dtype: str | DType | None = None) -> Tensor:
    """A tensor of a copy of these numbers; see tensor."""
    if dtype is None:  # the usual cases first
        if data.__class__ is np.ndarray and data.dtype is _F32:
            return given(data.copy(), f32)
        if data.__class__ is float and -_F32_MAX <= data <= _F32_MAX:
            return given(np.array(data, np.float32), f32)
    if isinstance(data, (list, tuple)) and recording.get() is not None and _holds_values(data):
        raise GradientError(
            "tensor: a list of tensors inside of a tape would lose their gradients; need ops.stack or ops.concat, or "
            f"their numbers: t.numpy(); at {user_location()}"
        )
    try:
        array = as_array("tensor", data)
    except ValueError:
        raise ShapeError("tensor: rows differ in length; need a rectangular array") from None
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise DTypeError(f"tensor: got {array.dtype} data; need numbers")
    kind = kind_of(data) if dtype is None else as_dtype(dtype)
    if kind.is_quantised:
        raise DTypeError(f"tensor: numbers do not become {kind.name}; need Stored.map of its bytes")
    return given(converted("tensor", array, kind), kind)


def _read_only(data: np.ndarray) -> np.ndarray:
    view = data.view()
    view.flags.writeable = False
    return view


def given(array: np.ndarray, kind: DType) -> Tensor:
    """A tensor that holds this array, which has no other writer."""
    made = new_tensor(Tensor)
    made.trace = made.symbol = made.error = None
    made.data, made.shape, made.dtype = array, array.shape, kind
    return made
