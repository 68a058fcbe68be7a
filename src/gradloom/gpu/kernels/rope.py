"""Rotary positions."""

from __future__ import annotations

from ..calls import Call, Dispatch, groups_for
from .table import kernel


def _rope(call: Call) -> list[Dispatch]:
    x, positions, frequencies, _ = call.args
    heads, d = x.shape[-2:]
    n = frequencies.size
    half, inverse = call.attrs["pairing"] == "half", call.attrs["inverse"]
    words = (heads, d, n, int(half), int(inverse), float(call.attrs["scale"]))
    return [Dispatch(("math", "rope"), "rope", call.args, groups_for(positions.size * (d - n)), words)]


kernel("rope", "f32_i32_f32", _rope)
