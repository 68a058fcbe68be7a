"""Stored: an array that outlives a run (a parameter, an optimiser moment, running statistics, a mapped tensor).

Its bytes lie in one place, and every program reads and writes them there.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from ..base import locks
from ..base.aligned import ALIGNMENT, address_of, aligned_empty
from ..base.arrays import as_array
from ..base.dtypes import DType, Shaped, dtype
from ..base.errors import DTypeError, GraphError, ShapeError
from ..base.extras import optional
from ..base.memory import present
from .numbers import check_range
from .scope import current_device
from .stack import Stack

# What programs and callers may do with a stored array:
#   trained   an optimiser updates it
#   state     programs and assignments write it, no optimiser trains it: running statistics, moments, sums, caches, and
#             parameters whose training is switched off
#   frozen    it is only read: the tensors of a mapped file, data sets
Role = Literal["trained", "state", "frozen"]


@lru_cache(maxsize=1024)
def zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros of a shape, for Stored, in the memory of one number."""
    return np.broadcast_to(np.float32(0), shape)


# Eager computation is lazy: readers of an array may still be pending when the array is about to be written, and a
# write when it is about to be read.
_readers: list[Callable[[Iterable[Stored]], object]] = []
_waiting: list[Callable[[Iterable[Stored]], bool]] = []
_promised: dict[Stored, Callable[[], object]] = {}


def call_before_writes(reader: Callable[[Iterable[Stored]], object], waits: Callable[[Iterable[Stored]], bool]) -> None:
    """`reader` is called with the arrays that are about to be written; waits(arrays) returns whether that is
    necessary."""
    _readers.append(reader)
    _waiting.append(waits)


def promise_write(stored: Stored, write: Callable[[], object]) -> None:
    """An outstanding write: `write` is called before any other access to the array; it calls keep_promise."""
    _promised[stored] = write


def keep_promise(stored: Stored) -> None:
    """The outstanding write is being carried out."""
    _promised.pop(stored, None)


def before_read(stored: Iterable[Stored]) -> None:
    """Call before arrays are read: executes pending writes."""
    if _promised:
        for one in stored:
            write = _promised.get(one)
            if write is not None:
                write()


def before_write(stored: Sequence[Stored]) -> None:
    """Call before arrays are written: executes pending reads."""
    before_read(stored)
    for reader in _readers:
        reader(stored)


class Away(Protocol):
    """Newer contents of a stored array in the memory of a device."""

    @property
    def home(self) -> object:
        """The device: the same object for all arrays on it."""

    def bring(self, several: Sequence[tuple[Any, np.ndarray]]) -> None:
        """Copy arrays from this device into the memory of arrays here, in one transfer: pairs (Away, array without
        gaps)."""


def bring_home(stored: Sequence[Stored]) -> None:
    """To be called before a program reads or writes arrays by their addresses, or before several are read: contents on
    one device comes in one transfer."""
    for one in stored:
        if one.away is not None:
            break
    else:
        return
    with locks.memory:
        groups: dict[object, list[Stored]] = {}
        for one in dict.fromkeys(stored):
            if one.away is not None:
                groups.setdefault(one.away.home, []).append(one)
        for group in groups.values():
            _bring(group)


def _bring(group: Sequence[Stored]) -> None:
    """Bring home arrays from one device, with the lock of the memory held."""
    pairs = [(one.away, one._memory) for one in group]
    assert group[0].away is not None
    group[0].away.bring(pairs)
    for one in group:
        one.away = None


_serials = itertools.count()


def next_serial() -> int:
    """A number above the serial of every array so far and below that of every later one."""
    return next(_serials)


_trainable_changes = 0


def trainable_changes() -> int:
    """How often an array was declared frozen or trainable after it was created: graphs of gradients built before such a
    change is built again."""
    return _trainable_changes


@contextlib.contextmanager
def arrays_locked(reads: Sequence[Stored], writes: Sequence[Stored] = ()) -> Iterator[None]:
    """Holds the lock of all stored arrays, with nothing outstanding that writes these arrays or reads `writes`.

    Where this thread holds the lock already, readers that became pending since then follow.
    """
    if locks.has_memory():
        yield
        return
    while True:
        before_read(reads)
        if writes:
            before_write(writes)
        with locks.memory:
            if _outstanding(reads, writes):  # it came in between, from another thread
                continue
            yield
            return


def _outstanding(reads: Sequence[Stored], writes: Sequence[Stored]) -> bool:
    if _promised and any(stored in _promised for stored in (*reads, *writes)):
        return True
    return bool(writes) and any(waits(writes) for waits in _waiting)


def copies(several: Iterable[Stored]) -> list[np.ndarray]:
    """Copies of the contents of several arrays as numbers, all of one moment: between two steps of any program."""
    listed = list(several)
    copied: dict[Stored, np.ndarray] = {}
    with arrays_locked(listed):
        bring_home(listed)
        copied.update((s, s.read().copy()) for s in listed if s.role != "frozen")
    for s in listed:  # a frozen array is never written: no lock is needed
        if s not in copied:
            copied[s] = dequantised(s._contents, s.dtype, s.shape) if s.dtype.is_quantised else s.read().copy()
    return [copied[s] for s in listed]


def replace(contents: Mapping[Stored, object]) -> None:
    """Replace the contents of several arrays at one moment: no program runs in between. Errors as Stored.assign, before
    anything is changed."""
    given = [(stored, stored.checked(data)) for stored, data in contents.items()]
    with arrays_locked((), list(contents)):
        for stored, array in given:
            stored.write(array)


class Stored(Shaped):
    """A named array with a fixed shape and dtype that outlives a run.

    role: the permitted operations (see Role). version: counts the writes: `write`, assignments, runs that updated it.
    check: called before each run that reads the array, where there is one. has_optimizer: an optimiser was made with
    this among its parameters. serial: counts the arrays in the order in which they were made. Its memory is
    reached by `read` and `write`; of a quantised dtype it holds the bytes of the blocks. device: the device on which
    programs on several devices keep it, None where none was assigned. away: holds the newest
    contents, when a program on another device has written them; an access to the array here copies them first.
    stack: its layout, where it holds several equal arrays.

    Contents that follow from a rule take no memory before somebody reads or writes them: those of `deferred`, and one
    number for all (np.broadcast_to). So a step of any size is built, planned and proved without its arrays. One made by
    `uninitialised` has no contents at all until all of it is written; a read before is a GraphError.
    """

    __slots__ = (
        "__weakref__", "_array", "_make", "away", "check", "device", "dtype", "has_optimizer", "name", "role", "serial",
        "shape", "stack", "version",
    )  # fmt: skip

    def __init__(self, name: str, data: object, kind: str | DType = "f32", role: Role = "state") -> None:
        given = _numbers(name, data, kind)
        self.name = name
        self.serial = next_serial()
        self.dtype = dtype(kind)
        self.shape: tuple[int, ...] = given.shape
        self.role: Role = role
        self.has_optimizer = False
        self.version = 0
        self.away: Away | None = None
        self.device: str | None = current_device()
        self.stack: Stack | None = None
        self.check: Callable[[], object] | None = None
        self._make: Callable[[], np.ndarray] | None = None
        self._array: np.ndarray | None = None
        if given.size > 1 and not any(given.strides):
            number = given.flat[0]
            self._make = lambda: self._own(number)
        else:
            self._array = self._own(given)

    def _own(self, data: Any) -> np.ndarray:
        """Memory of its own with these contents."""
        array = aligned_empty(self.shape, self.dtype.numpy)
        array[...] = data
        return array

    @classmethod
    def deferred(
        cls, name: str, shape: Sequence[int], make: Callable[[], np.ndarray] | None, kind: str | DType = "f32",
        role: Role = "state",
    ) -> Stored:  # fmt: skip
        """An array whose contents `make` returns at the first access, under the lock of the memory.

        What `make` gives is taken as the memory itself where it is of this dtype, aligned, without gaps and writable,
        else copied.
        """
        stored = cls.__new__(cls)
        stored.serial = next_serial()
        stored.name, stored.dtype, stored.role, stored.version = name, dtype(kind), role, 0
        stored.shape, stored.check, stored.has_optimizer = tuple(shape), None, False
        stored._array, stored._make, stored.away, stored.device, stored.stack = None, make, None, None, None
        return stored

    @classmethod
    def uninitialised(cls, name: str, shape: Sequence[int], role: Role) -> Stored:
        """An f32 array whose first numbers are not written yet."""
        stored = cls.deferred(name, shape, None, role=role)
        stored.device = current_device()
        return stored

    @property
    def each(self) -> tuple[int, ...]:
        """The shape of each array of a stack; of an array that is no stack, its own."""
        return self.shape if self.stack is None else self.stack.shape

    @property
    def members(self) -> int:
        """Independent networks whose arrays it holds, in equal parts along its first axis."""
        return 1 if self.stack is None else self.stack.members

    @property
    def initialised(self) -> bool:
        """Whether it has contents, or a rule that gives them."""
        return self._array is not None or self._make is not None

    @property
    def _memory(self) -> np.ndarray:
        """The memory itself, whose contents may be older than those on a device; a deferred array is created now."""
        if self._array is None:
            with locks.memory:
                if self._make is not None:
                    data = self._make()
                    fits = data.dtype == self.dtype.numpy and data.flags.carray and not address_of(data) % ALIGNMENT
                    self._array, self._make = data if fits else self._own(data), None
        if self._array is None:
            raise GraphError(
                f"parameter {self.name}: read before it has numbers; need init(seed) or a call of the whole model, "
                "or assign"
            )
        return self._array

    @property
    def _contents(self) -> np.ndarray:
        """The memory itself, with the newest contents."""
        array = self._memory
        if self.away is not None:
            with locks.memory:
                if self.away is not None:
                    _bring((self,))
        return array

    @classmethod
    def wrap(cls, name: str, array: np.ndarray, role: Role) -> Stored:
        """Stand for an array that exists already, without copying it (a data set, a piece of a larger array)."""
        if not (array.flags.c_contiguous and array.flags.aligned):
            raise ShapeError(f"{name}: an array with gaps cannot be read in place; need a C-contiguous one")
        stored = cls.__new__(cls)
        stored.serial = next_serial()
        stored.name, stored.dtype, stored.role, stored.version = name, dtype(array.dtype), role, 0
        stored._array, stored.shape, stored.check, stored.has_optimizer = array, array.shape, None, False
        stored._make = stored.away = stored.device = None
        return stored

    @classmethod
    def map(
        cls,
        name: str,
        data: np.ndarray,
        kind: str | DType,
        shape: Sequence[int],
        check: Callable[[], object] | None = None,
    ) -> Stored:
        """Stand for the bytes of a mapped file: read where they lie, never copied; the role is "frozen".

        data: C-contiguous bytes (u8), or numbers of `kind`. kind: any dtype, quantised ones too. shape: in NumPy's
        order; blocks run along its last axis. check: called before each run; raises FileError when the file changed.
        Raises ShapeError when the bytes are not those of the shape, or lie where the machine cannot read them.
        """
        known = dtype(kind)
        extents = tuple(int(n) for n in shape)
        if known.is_quantised and (not extents or extents[-1] % known.block):
            raise ShapeError(f"{name}: {known.name}{list(extents)}; need a last axis of whole blocks of {known.block}")
        if not data.flags.c_contiguous or data.dtype not in (np.dtype(np.uint8), known.numpy):
            raise ShapeError(f"{name}: got {data.dtype}{list(data.shape)}; need the bytes of {known.name} without gaps")
        need = known.bytes_of(math.prod(extents))
        if data.nbytes != need:
            raise ShapeError(f"{name}: {data.nbytes} bytes; need {need} for {known.name}{list(extents)}")
        if data.ctypes.data % known.numpy.itemsize:
            raise ShapeError(
                f"{name}: its bytes begin at no multiple of {known.numpy.itemsize}, the size of {known.name}"
            )
        array: np.ndarray = data.reshape(-1).view(np.uint8)
        if not known.is_quantised:
            array = array.view(known.numpy).reshape(extents)
        stored = cls.wrap(name, array, "frozen")
        stored.dtype, stored.shape, stored.check = known, extents, check
        return stored

    @property
    def absent_bytes(self) -> int:
        """Its bytes that are not in memory: of a deferred array all; of a mapped file those that were not read."""
        return self.bytes - (0 if self._array is None else present(address_of(self._array), self.bytes))

    @property
    def address(self) -> int:
        """Where its bytes are now, in the memory of this process."""
        return address_of(self._contents)

    def read(self) -> np.ndarray:
        """The contents where they lie: a read-only view, no copy; of a quantised dtype the bytes of the blocks.

        The view reflects later writes. Read inside of `arrays_locked` where another thread may write; `numpy` copies.
        """
        view = self._contents.view()
        view.flags.writeable = False
        return view

    def write(self, data: object, rows: slice | None = None) -> None:
        """Overwrite the contents in place with an array or a number that fits, of these rows or all: no check, no lock
        (`assign` has both). GraphError when the array is frozen."""
        if self.role == "frozen":
            raise GraphError(f"{self.name}: it is frozen and only read; need an array that may be written")
        locks.refuse_in_user_code(f"{self.name or 'an array'} is written")
        with locks.memory:
            if rows is not None:
                self._contents[rows] = data
            elif self._array is None:  # a deferred array is not needed
                self._array, self._make = self._own(data), None
            else:
                shared = isinstance(data, np.ndarray) and np.may_share_memory(data, self._array)
                array = self._contents if shared else self._array  # contents on a device are not needed
                array[...] = data
            self.away = None
        self.version += 1

    def numpy(self) -> np.ndarray:
        """A copy of the contents as numbers; quantised ones as f32, by the gguf package."""
        return copies((self,))[0]

    def assign(self, data: object) -> None:
        """Replace the contents; ShapeError when the shape differs, DTypeError when the data are not numbers."""
        replace({self: data})

    def checked(self, data: object) -> np.ndarray:
        """The data as an array that may be assigned; the errors of assign."""
        if self.role == "frozen":
            raise GraphError(f"parameter {self.name}: it is read-only; need a gl.parameter")
        given = _numbers(self.name, data, self.dtype)
        if given.shape != self.shape:
            raise ShapeError(f"parameter {self.name}: got shape {list(given.shape)}; need {list(self.shape)}")
        return given

    def set_trainable(self, trainable: bool) -> None:
        """Train it from now on (the role "trained"), or not ("state"); GraphError when a frozen array is to train."""
        global _trainable_changes
        if trainable and self.role == "frozen":
            raise GraphError(f"parameter {self.name}: it is read-only and cannot be trained; need a gl.parameter")
        if trainable != (self.role == "trained"):
            self.role = "trained" if trainable else "state"
            _trainable_changes += 1

    def __deepcopy__(self, memo: dict[int, object]) -> Stored:
        """A copy that is written on its own; frozen arrays are shared."""
        if self.role == "frozen":
            return self
        with arrays_locked((self,)):
            if self.initialised:
                made = Stored(self.name, self._contents, self.dtype, self.role)
            else:
                made = Stored.uninitialised(self.name, self.shape, self.role)
            memo[id(self)] = made
            made.version, made.check, made.has_optimizer = self.version, self.check, self.has_optimizer
            made.device, made.stack = self.device, self.stack
        return made

    def __reduce__(self) -> tuple[object, ...]:
        if self.role == "frozen":
            raise GraphError(
                f"parameter {self.name}: it is read from a file and not pickled; need the file where it goes"
            )
        with arrays_locked((self,)):
            contents = self._contents.copy() if self.initialised else self.shape
            state = self.name, contents, self.dtype, self.role, self.version, self.has_optimizer
            return _unpickled, (*state, self.device, self.stack)

    def __repr__(self) -> str:
        return f"Stored({self.name}, {self.dtype.name}{list(self.shape)})"


def _unpickled(
    name: str, contents: np.ndarray | tuple[int, ...], kind: DType, role: Role, version: int, has_optimizer: bool,
    device: str | None, stack: Stack | None = None,
) -> Stored:  # fmt: skip
    """contents: the shape alone where it has none yet."""
    if isinstance(contents, tuple):
        stored = Stored.uninitialised(name, contents, role)
    else:
        stored = Stored(name, contents, kind, role)
    stored.version, stored.has_optimizer, stored.device, stored.stack = version, has_optimizer, device, stack
    return stored


def dequantised(data: np.ndarray, kind: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of quantised bytes as f32, computed by the gguf package: the definition."""
    if not data.size:
        return np.zeros(shape, np.float32)
    gguf = optional("gguf", kind.name, "llm")  # takes a while to import
    rows = data.reshape(-1, kind.bytes_of(shape[-1]))
    numbers: np.ndarray = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind.name.upper()])
    return numbers.reshape(shape)


def _numbers(name: str, data: object, kind: str | DType) -> np.ndarray:
    """The data as an array; DTypeError when they are no numbers or too large, ShapeError when rows differ in length."""
    if dtype(kind).is_quantised:
        raise DTypeError(f"parameter {name}: numbers do not become {dtype(kind).name}; need Stored.map of its bytes")
    try:
        given = as_array(f"parameter {name}", data)
    except ValueError:
        raise ShapeError(f"parameter {name}: rows differ in length; need a rectangular array") from None
    if given.dtype.kind not in "fiub" and given.dtype.name != "bfloat16":
        raise DTypeError(f"parameter {name}: got {given.dtype}; need numbers for {dtype(kind).name}")
    check_range(f"parameter {name}", given, dtype(kind))
    return given
