"""Positions in sorted order along an axis."""

from __future__ import annotations

from ..calls import Call, Dispatch, groups_for
from .scan import beside
from .table import Rule, kernel


def _argsort(key: str) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        x, y = call.args
        axis = call.attrs["axis"]
        n, count = x.shape[axis], y.shape[axis]
        if not y.size:
            return []
        words = (n, count, y.strides[axis], x.strides[axis], 0xFFFFFFFF * int(call.attrs["descending"]))
        args = (beside(y, axis), beside(x, axis))
        return [Dispatch(("argsort",), "argsort", args, groups_for(x.size), words, {"KEY": key}, rounds=n)]

    return rule


kernel("argsort", "f32_i32", _argsort("float_key"))
kernel("argsort", "i32", _argsort("whole_key"))
