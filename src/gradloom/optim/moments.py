"""Layout of moments in 8 bits: which parameters keep them, and the names, shapes and dtypes of their arrays.

A moment "m" in 8 bits is two arrays: "m_code", u8 of the parameter's shape, and "m_scale", f32 [arrays, blocks], one
number for each block of 256 elements (ops/update_8bit.py has the codes). A parameter of a stack has blocks of its own
for each of its arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..base.dtypes import u8
from ..base.errors import SettingError
from ..graph.declaration import Spec
from ..graph.value import Value
from ..ops.update_8bit import blocks_of
from .rule import UpdateInputs

FULL_BITS = 32  # of f32, the default
CHOICES = (8, FULL_BITS)
LEAST_SIZE = 4096  # elements; a smaller parameter (norms, biases) keeps f32 moments


def checked_bits(bits: Any, who: str) -> int:
    """The argument state_bits, or SettingError."""
    if isinstance(bits, bool) or bits not in CHOICES:
        need = f"{CHOICES[0]} or {CHOICES[1]}"
        raise SettingError(setting="state_bits", seen=bits, need=need, place=who)
    return int(bits)


def names_8bit(moments: Sequence[str]) -> tuple[str, ...]:
    """The names of the arrays of these moments in 8 bits: "m" -> "m_code", "m_scale"."""
    return tuple(f"{name}_{part}" for name in moments for part in ("code", "scale"))


def is_coded(each: tuple[int, ...]) -> bool:
    """Whether a parameter whose arrays have this shape keeps moments in 8 bits."""
    return math.prod(each) >= LEAST_SIZE


def layout_8bit(moments: Sequence[str], shape: tuple[int, ...], each: tuple[int, ...]) -> dict[str, Spec]:
    """The arrays of a parameter: name -> shape and dtype. each: the shape of one array of a stack, or its own."""
    if not is_coded(each):
        return {name: Spec(shape) for name in moments}
    scales = blocks_of(shape, math.prod(shape) // math.prod(each))
    specs = (Spec(shape, u8), Spec(scales))
    return dict(zip(names_8bit(moments), specs * len(moments), strict=True))


def updated_by_form(
    given: UpdateInputs, moments: Sequence[str], plain: Callable[..., Any], coded: Callable[..., Any]
) -> list[Value]:
    """The update nodes of a step: one of `plain` for the parameters that keep f32 moments, one of `coded` for each with
    8 bits. Both are called with the parameter, its gradient and its moments in the order of the op."""
    written: list[Value] = []
    for is_8bit, names in ((False, moments), (True, names_8bit(moments))):
        at = [i for i, p in enumerate(given.parameters) if is_coded(p.stored.each) == is_8bit]
        some = replace(given, parameters=[given.parameters[i] for i in at], grads=[given.grads[i] for i in at])
        each = some.interleaved(*names)  # of a name, the arrays are those of these parameters
        if is_8bit:
            size = 2 + len(names)
            for i in range(0, len(each), size):
                written += coded(*each[i : i + size])
        elif each:
            written += plain(*each)
    return written
