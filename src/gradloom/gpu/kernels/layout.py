"""The same elements in another place: copy, flip, concat, pad."""

from __future__ import annotations

from dataclasses import replace

from ..calls import Arg, Call, Dispatch, groups_for, joined
from .table import kernel


def moved(to: Arg, x: Arg) -> Dispatch:
    """x into a place of its shape, both strided; elements of 4 bytes."""
    args = joined([to, x])
    return Dispatch(("layout",), "relocate", args, groups_for(to.size))


def filled(to: Arg, value: float) -> Dispatch:
    """One f32 everywhere."""
    return Dispatch(("fill",), "fill", (to,), groups_for(to.size), (float(value),))


def _copy(call: Call) -> list[Dispatch]:
    return [moved(call[1], call[0])]


def _copy_wide(call: Call) -> list[Dispatch]:
    x, y = call.args
    return [Dispatch(("layout_wide",), "move_wide", joined([y, x]), groups_for(y.size))]


def _copy_small(call: Call) -> list[Dispatch]:
    x, y = call.args
    assert y.dtype is not None
    size = y.dtype.bytes
    defines = {"BYTES": str(size), "GET": "u8_1" if size == 1 else "half_1"}
    return [Dispatch(("layout_small",), "move_small", joined([y, x]), groups_for(-(-y.size * size // 4)), (), defines)]


def _flip(call: Call) -> list[Dispatch]:
    """From the last element along the axes, by strides below 0: kernels compute places modulo 2^32."""
    x, y = call.args
    axes = call.attrs["axes"]
    if not y.size:
        return []
    last = sum((x.shape[a] - 1) * x.strides[a] for a in axes)
    seen = x.seen_as(x.shape, [-s if a in axes else s for a, s in enumerate(x.strides)], last)
    to, flipped = joined([y, seen])
    args = (to, replace(flipped, strides=tuple(s % (1 << 32) for s in flipped.strides)))
    return [Dispatch(("layout",), "relocate", args, groups_for(y.size))]


def _concat(call: Call) -> list[Dispatch]:
    *inputs, y = call.args
    axis, made, at = call.attrs["axis"], [], 0
    for x in inputs:
        if x.size:
            made.append(moved(y.seen_as(x.shape, y.strides, at), x))
        at += x.shape[axis] * y.strides[axis]
    return made


def _pad(call: Call) -> list[Dispatch]:
    x, y = call.args
    before, interior = call.attrs["before"], call.attrs["interior"]
    made = [filled(y, call.attrs["value"])]
    if x.size:
        at = sum(b * s for b, s in zip(before, y.strides, strict=True))
        window = y.seen_as(x.shape, [s * (1 + i) for s, i in zip(y.strides, interior, strict=True)], at)
        made.append(moved(window, x))
    return made


kernel("copy", "f32 i32", _copy)
kernel("flip", "f32", _flip)
kernel("copy", "i64", _copy_wide)
kernel("copy", "u8 f16 bf16", _copy_small)
kernel("concat", "f32", _concat)
kernel("pad", "f32", _pad)
