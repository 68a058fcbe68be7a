"""Outputs of a model: one value, or tuples, lists and dicts of values inside one another."""

from __future__ import annotations

from typing import Any

from ..base.errors import GraphError
from ..base.structures import mapped
from ..graph.value import Value, describe

Outputs = Any  # Value | tuple[Outputs, ...] | list[Outputs] | dict[Any, Outputs]


def values_of(outputs: Outputs) -> list[Value]:
    """The values, in order. GraphError for anything else among them, and when there are none."""
    values: list[Value] = []

    def take(value: Any) -> Value:
        if not isinstance(value, Value):
            raise GraphError(f"model: it gave {type(value).__name__}; need a value of a graph, or several")
        values.append(value)
        return value

    mapped(take, outputs)
    if not values:
        raise GraphError(f"model: it gave an empty {type(outputs).__name__}; need at least one value of a graph")
    return values


def described(outputs: Outputs) -> str:
    """How messages name several outputs: "2 outputs (f32[4,3], f32[4])"."""
    values = values_of(outputs)
    return f"{len(values)} outputs ({', '.join(map(describe, values))})"
