"""Structure: what two graphs that are the same program have in common, as a hashable value."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from .graph import reachable
from .stored import Stored
from .value import Value


def named(stored: Stored) -> Hashable:
    """What stands for an array in another process: its name and kind, not its numbers."""
    return (stored.name, stored.shape, stored.dtype.name, stored.role)


def structure(values: Iterable[Value], of: Callable[[Stored], Hashable] = id) -> Hashable:
    """What makes two graphs the same program: ops, attributes, shapes, wiring, and which arrays they touch.

    of: what stands for an array.
    """
    number: dict[Any, int] = {}
    lines = []
    values = list(values)
    for i, node in enumerate(reachable(values)):
        number[node] = i
        attrs: list[tuple[str, Any]] = []
        for k, v in node.attrs.items():
            if k == "stored":
                attrs.append((k, of(v)))
            elif k == "data":
                attrs.append((k, v.tobytes()))
            else:
                attrs.append((k, repr(v)))
        wires = tuple(None if v is None else (number[v.node], v.index) for v in node.inputs)
        lines.append((node.op.name, tuple(attrs), wires, tuple((v.shape, v.dtype.name) for v in node.outputs)))
    return (tuple(lines), tuple((number[v.node], v.index) for v in values))
