"""Structure: what two graphs that are the same program have in common, as a hashable value, or as digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from .graph import reachable
from .stored import Stored
from .value import Node, Value


def named(stored: Stored) -> Hashable:
    """Identifies an array across processes: its name and kind, not its numbers."""
    return (stored.name, stored.shape, stored.dtype.name, stored.role)


def structure(values: Iterable[Value], of: Callable[[Stored], Hashable] = id) -> Hashable:
    """What makes two graphs the same program: ops, attributes, shapes, wiring, and which arrays they touch.

    of: maps an array to its identifier.
    """
    number: dict[Any, int] = {}
    lines = []
    values = list(values)
    for i, node in enumerate(reachable(values)):
        number[node] = i
        wires = tuple(None if v is None else (number[v.node], v.index) for v in node.inputs)
        lines.append((node.op.name, _attrs(node, of), wires, tuple((v.shape, v.dtype.name) for v in node.outputs)))
    return (tuple(lines), tuple((number[v.node], v.index) for v in values))


def digests(values: Iterable[Value], of: Callable[[Stored], Hashable] = named) -> list[str]:
    """A digest for each value, of all that it is computed from: ops, attributes, shapes, wiring, arrays. It is the same
    in another process, and whichever nodes were made first.

    of: maps an array to its identifier.
    """
    found: dict[Node, str] = {}
    values = list(values)
    for node in reachable(values):
        wires = [None if v is None else (found[v.node], v.index) for v in node.inputs]
        shapes = [(v.shape, v.dtype.name) for v in node.outputs]
        text = repr((node.op.name, _attrs(node, of), wires, shapes, [found[before] for before in node.after]))
        found[node] = hashlib.sha256(text.encode()).hexdigest()
    return [f"{found[v.node]}.{v.index}" for v in values]


def _attrs(node: Node, of: Callable[[Stored], Hashable]) -> tuple[tuple[str, Any], ...]:
    attrs: list[tuple[str, Any]] = []
    for k, v in node.attrs.items():
        if k == "stored":
            attrs.append((k, of(v)))
        elif k == "data":
            attrs.append((k, v.tobytes()))
        elif k == "call":
            attrs.append((k, v.number if of is id else v.fingerprint))
        else:
            attrs.append((k, repr(v)))
    return tuple(attrs)
