"""Comparisons and conditions (u8: 1 where they hold, else 0), and Python's operators for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.dtypes import f32, i32, u8
from ..base.errors import DTypeError
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.scope import user_location
from ..graph.value import Value, define_operators, describe, recording
from .elementwise import abs, add, cast, equal, greater, less, mul, scale, where


def _compared(op: OpSpec, x: Value, y: Any) -> Value:
    """op(x, y) as u8; whole numbers are compared as f32 unless both are i32."""
    if not isinstance(y, Value):
        y = as_value(y) if x.recorder is None or recording.get() is not None else x.recorder.value(y)
    alike = x.dtype is y.dtype and (x.dtype is f32 or (op is equal and x.dtype is i32))
    return op(x, y) if alike else op(cast(x, f32), cast(y, f32))


def _either(x: Any, first: OpSpec, y: Any) -> Value:
    """x first y or x == y."""
    x = as_value(x)
    both = add(cast(_compared(first, x, y), f32), cast(_compared(equal, x, y), f32))
    return greater(both, 0.0)


def not_equal(x: Any, y: Any) -> Value:
    """1 where x != y, else 0 (u8); x and y broadcast together. NaN differs from every number and from itself.

    Whole numbers are compared as f32 unless both are i32. There is no gradient: a comparison has no slope.
    """
    return logical_not(_compared(equal, as_value(x), y))


def less_equal(x: Any, y: Any) -> Value:
    """1 where x <= y, else 0 (u8), and 0 where one is NaN; x and y broadcast together, whole numbers are compared as
    f32. There is no gradient: a comparison has no slope."""
    return _either(x, less, y)


def greater_equal(x: Any, y: Any) -> Value:
    """1 where x >= y, else 0 (u8), and 0 where one is NaN; x and y broadcast together, whole numbers are compared as
    f32. There is no gradient: a comparison has no slope."""
    return _either(x, greater, y)


def isnan(x: Any) -> Value:
    """1 where x is NaN, else 0 (u8)."""
    return not_equal(x, x)


def isinf(x: Any) -> Value:
    """1 where x is inf or -inf, else 0 (u8)."""
    return equal(abs(cast(as_value(x), f32)), math.inf)


def isfinite(x: Any) -> Value:
    """1 where x is neither NaN nor inf nor -inf, else 0 (u8)."""
    return less(abs(cast(as_value(x), f32)), math.inf)


# ---- conditions ------------------------------------------------------------------------------------------


def _truth(x: Any) -> Value:
    """1 where x is not 0, else 0 (f32)."""
    x = as_value(x)
    return where(x, 1.0, 0.0) if x.dtype is u8 else scale(cast(logical_not(x), f32), factor=-1.0, bias=1.0)


def logical_not(x: Any) -> Value:
    """1 where x is 0, else 0 (u8). x of any dtype; NaN is not 0."""
    return _compared(equal, as_value(x), 0.0)


def logical_and(x: Any, y: Any) -> Value:
    """1 where both x and y are not 0, else 0 (u8); of any dtypes, they broadcast together. NaN is not 0."""
    return greater(mul(_truth(x), _truth(y)), 0.0)


def logical_or(x: Any, y: Any) -> Value:
    """1 where x or y is not 0, else 0 (u8); of any dtypes, they broadcast together. NaN is not 0."""
    return greater(add(_truth(x), _truth(y)), 0.0)


def logical_xor(x: Any, y: Any) -> Value:
    """1 where exactly one of x and y is not 0, else 0 (u8); of any dtypes, they broadcast together. NaN is not 0."""
    return equal(add(_truth(x), _truth(y)), 1.0)


def _need_conditions(symbol: str, use: str, *operands: Any) -> None:
    """DTypeError unless all are conditions: values of u8, or bools."""
    for x in operands:
        if isinstance(x, Value) and x.dtype is not u8:
            seen = describe(x)
        elif not isinstance(x, (Value, bool, np.bool_)) and np.asarray(x).dtype != np.bool_:
            seen = type(x).__name__
        else:
            continue
        raise DTypeError(
            f"{symbol}: an operand is {seen}; need conditions (u8 or bool), such as x > 0; "
            f"gl.ops.{use} takes numbers; at {user_location()}"
        )


def _and(x: Any, y: Any) -> Value:
    _need_conditions("&", "logical_and", x, y)
    return logical_and(x, y)


def _or(x: Any, y: Any) -> Value:
    _need_conditions("|", "logical_or", x, y)
    return logical_or(x, y)


def _xor(x: Any, y: Any) -> Value:
    _need_conditions("^", "logical_xor", x, y)
    return logical_xor(x, y)


def _not(x: Any) -> Value:
    _need_conditions("~", "logical_not", x)
    return logical_not(x)


define_operators(
    equal=lambda x, y: _compared(equal, x, y),
    not_equal=not_equal,
    less=lambda x, y: _compared(less, x, y),
    greater=lambda x, y: _compared(greater, x, y),
    less_equal=less_equal,
    greater_equal=greater_equal,
)
define_operators(logical_and=_and, logical_or=_or, logical_xor=_xor, logical_not=_not)
