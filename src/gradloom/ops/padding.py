"""Values around a tensor: constants, reflections, repeated edges, or those of the other end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.errors import DTypeError, SettingError
from ..base.habits import value_hint
from ..graph.leaves import as_value
from ..graph.scope import user_location
from ..graph.value import Value
from .common import f32_values, need_plain
from .indexing import part
from .layout import broadcast_to, concat, pad_op, shape_error
from .rolled import flip

PAD_MODES = ("constant", "reflect", "replicate", "circular")


def pad(x: Any, pads: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Value:
    """x with more elements around it: [n, ...] -> [before + n + after, ...]. f32.

    pads   (before, after) for each axis, whole numbers >= 0
    value  of the new elements, with mode "constant"
    mode   "constant"; "reflect": mirrored at the edge, which is not repeated; "replicate": the element at the edge;
           "circular": the elements of the other end

    Raises ShapeError for pads of another count or below 0, and for those that the mode cannot fill: "reflect" takes
    less than the extent, "circular" at most the extent, "replicate" an axis that is not empty. SettingError for another
    mode, and for a value with another mode than "constant"; DTypeError for pads that are no pairs.
    """
    need_plain("pad", pads=pads)
    check_pad_mode("pad", "mode", mode, PAD_MODES)
    try:
        sides = [(int(a), int(b)) for a, b in pads]
    except (TypeError, ValueError):
        need = "a pair (before, after) of whole numbers for each axis"
        raise DTypeError(f"pad: pads {pads!r} are not usable; need {need}; at {user_location()}") from None
    if mode == "constant":
        ends = {"before": [a for a, _ in sides], "after": [b for _, b in sides]}
        return pad_op(as_value(x), **ends, interior=[0] * len(sides), value=value)
    (x,) = f32_values("pad", x, promote=False)
    if value != 0.0:
        raise SettingError(f'pad: value={value!r} has no effect with mode "{mode}"; need mode="constant"')
    if len(sides) != x.ndim or min((n for side in sides for n in side), default=0) < 0:
        raise shape_error("pad", x, f"pads {sides} are not usable", f"{x.ndim} pairs of whole numbers >= 0")
    for axis, (before, after) in enumerate(sides):
        if before or after:
            x = _padded_along(x, axis, before, after, mode)
    return x


def check_pad_mode(place: str, setting: str, mode: Any, known: Sequence[str]) -> None:
    """SettingError for a mode that is not among the known ones."""
    if mode not in known:
        hint = value_hint("pad_mode", mode, known)
        need = f"one of {', '.join(known)}{hint}"
        raise SettingError(setting=setting, seen=mode, need=need, place=f"{place} at {user_location()}")


def _padded_along(x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n, "replicate": max(before, after) if n else 0}[mode]
    if max(before, after) > most:
        seen = f'({before}, {after}) along axis {axis} is too much for mode "{mode}"'
        raise shape_error("pad", x, seen, f"at most {max(most, 0)} on each side")
    if mode == "reflect":
        low, high = part(x, axis, 1, before + 1), part(x, axis, n - 1 - after, n - 1)
        ends = [flip(low, axis), flip(high, axis)]
    elif mode == "circular":
        ends = [part(x, axis, n - before, n), part(x, axis, 0, after)]
    else:
        ends = [_repeated(part(x, axis, 0, 1), axis, before), _repeated(part(x, axis, n - 1, n), axis, after)]
    return concat([end for end in (ends[0], x, ends[1]) if end is x or end.shape[axis]], axis)


def _repeated(x: Value, axis: int, count: int) -> Value:
    return broadcast_to(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
