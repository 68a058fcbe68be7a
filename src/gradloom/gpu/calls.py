"""An instruction as a kernel's rule sees it, and the dispatches that the rule makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..base.dtypes import ALL, DType
from ..graph.value import Node
from ..plan.bytecode import ARG_WRITE, NO_SEGMENT
from ..plan.layout import dense_strides

THREADS = 256  # of a workgroup: what every adapter has
_DTYPES: dict[int, DType] = {t.code: t for t in ALL}


@dataclass(frozen=True)
class Arg:
    """An argument. segment: of the bytecode, NO_SEGMENT where it is absent; offset: bytes from the segment's start to
    the first element; end: to the end of the memory that the argument may touch, whatever its shape is."""

    segment: int
    dtype: DType | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    end: int = 0
    write: bool = False

    @property
    def present(self) -> bool:
        return self.segment != NO_SEGMENT

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dense(self) -> bool:
        """Row-major without gaps; the strides of axes of one element do not count."""
        wanted = dense_strides(self.shape)
        return all(n == 1 or s == w for n, s, w in zip(self.shape, self.strides, wanted, strict=True))

    def seen_as(self, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> Arg:
        """The same memory under another shape. strides: dense by default. offset: elements further on."""
        assert self.dtype is not None
        given = tuple(shape)
        return replace(
            self, shape=given, strides=dense_strides(given) if strides is None else tuple(strides),
            offset=self.offset + self.dtype.bytes_of(offset),
        )  # fmt: skip

    def seen_with(self, dtype: DType, shape: Sequence[int], offset: int = 0) -> Arg:
        """The same memory as dense numbers of another dtype, `offset` elements further on: a piece of a workspace."""
        given, begin = tuple(shape), self.offset + dtype.bytes_of(offset)
        end = begin + dtype.bytes_of(math.prod(given))
        return replace(self, dtype=dtype, shape=given, strides=dense_strides(given), offset=begin, end=end)


NOTHING = Arg(NO_SEGMENT, None, (), ())  # an absent argument


@dataclass(frozen=True)
class Limits:
    """Of a workgroup: bytes of its memory, its threads, its threads along the first axis. What WebGPU promises
    everywhere, unless an adapter has more."""

    storage: int = 16 << 10
    threads: int = 256
    across: int = 256


@dataclass(frozen=True)
class Call:
    """An instruction. args: inputs, then outputs, then the workspace where the kernel wants one. limits: of the device
    that it runs on."""

    node: Node
    args: tuple[Arg, ...]
    limits: Limits = Limits()

    @property
    def attrs(self) -> dict[str, Any]:
        return self.node.attrs

    def __getitem__(self, i: int) -> Arg:
        return self.args[i]


@dataclass(frozen=True)
class Dispatch:
    """One run of a kernel; gpu/__init__.py documents the fields."""

    source: tuple[str, ...]
    entry: str
    args: tuple[Arg, ...]
    groups: int
    words: tuple[int | float, ...] = ()
    defines: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 0


def arg_of(record: Sequence[Any]) -> Arg:
    """A record of the bytecode, as `ndarray.tolist` gives it."""
    segment, code, rank, flags, offset, bytes, shape, strides = record
    kind, write = _DTYPES.get(code), bool(flags & ARG_WRITE)
    return Arg(segment, kind, tuple(shape[:rank]), tuple(strides[:rank]), offset, offset + bytes, write)


def args_of(records: np.ndarray) -> tuple[Arg, ...]:
    return tuple(arg_of(record) for record in records.tolist())


def groups_for(count: int, each: int = THREADS) -> int:
    """Workgroups for `count` items, at least one: a dispatch of none is not encoded."""
    return max(-(-count // each), 1)


def spread(arg: Arg, shape: Sequence[int]) -> Arg:
    """The argument read as if it had this shape: stride 0 along the axes that it broadcasts over."""
    missing = len(shape) - len(arg.shape)
    strides = [0] * missing + [0 if n == 1 else s for n, s in zip(arg.shape, arg.strides, strict=True)]
    return replace(arg, shape=tuple(shape), strides=tuple(strides))


def joined(args: Sequence[Arg]) -> tuple[Arg, ...]:
    """Arguments of one shape with fewer axes: those of one element left out, neighbours merged where all allow it."""
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in args]
    for axis, n in enumerate(args[0].shape):
        if n == 1:
            continue
        now = [a.strides[axis] for a in args]
        if shape and all(s[-1] == t * n for s, t in zip(strides, now, strict=True)):
            shape[-1] *= n
            for s, t in zip(strides, now, strict=True):
                s[-1] = t
        else:
            shape.append(n)
            for s, t in zip(strides, now, strict=True):
                s.append(t)
    return tuple(replace(a, shape=tuple(shape), strides=tuple(s)) for a, s in zip(args, strides, strict=True))
