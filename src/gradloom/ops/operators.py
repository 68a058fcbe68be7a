"""What Python's arithmetic operators mean on values: +, ** and the like. Comparisons are in comparisons.py."""

from __future__ import annotations

from typing import Any

from ..graph.leaves import as_value
from ..graph.value import Value, define_operators
from .elementwise import abs, add, div, mul, neg, power, sqr, sqrt, sub


def pow(x: Any, y: Any) -> Value:
    """x ^ y; the exponents 1, 2 and 0.5 become x, sqr and sqrt."""
    if isinstance(y, (int, float)) and y in (1, 2, 0.5):
        return as_value(x) if y == 1 else sqr(x) if y == 2 else sqrt(x)
    return power(x, y)


define_operators(neg=neg, abs=abs, add=add, sub=sub, mul=mul, div=div, pow=pow)
