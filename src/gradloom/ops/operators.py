"""What Python's operators mean on values: +, ==, <=, ** and the like."""

from __future__ import annotations

from typing import Any

from ..base.dtypes import f32, i32
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Value, define_operators, recording
from .elementwise import abs, add, cast, div, equal, greater, less, mul, neg, power, sqr, sqrt, sub


def pow(x: Any, y: Any) -> Value:
    """x ^ y; the exponents 1, 2 and 0.5 become x, sqr and sqrt."""
    if isinstance(y, (int, float)) and y in (1, 2, 0.5):
        return as_value(x) if y == 1 else sqr(x) if y == 2 else sqrt(x)
    return power(x, y)


def _compared_values(op: OpSpec, x: Value, y: Any) -> Value:
    """op(x, y) as u8; whole numbers are compared as f32 unless both are i32."""
    if not isinstance(y, Value):
        y = as_value(y) if x.recorder is None or recording.get() is not None else x.recorder.value(y)
    alike = x.dtype is y.dtype and (x.dtype is f32 or (op is equal and x.dtype is i32))
    return op(x, y) if alike else op(cast(x, f32), cast(y, f32))


def _either(x: Value, first: OpSpec, y: Any) -> Value:
    """x first y or x == y."""
    both = add(cast(_compared_values(first, x, y), f32), cast(_compared_values(equal, x, y), f32))
    return _compared_values(greater, both, 0.0)


define_operators(neg=neg, abs=abs, add=add, sub=sub, mul=mul, div=div, pow=pow)
define_operators(
    equal=lambda x, y: _compared_values(equal, x, y),
    not_equal=lambda x, y: _compared_values(less, _compared_values(equal, x, y), 1.0),
    less=lambda x, y: _compared_values(less, x, y),
    greater=lambda x, y: _compared_values(greater, x, y),
    less_equal=lambda x, y: _either(x, less, y),
    greater_equal=lambda x, y: _either(x, greater, y),
)
