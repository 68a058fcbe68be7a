"""Cache: the nodes, gradients and programs that were made for a structure, for when it comes again.

Nodes are interned: the same structure gives the same Value objects, so that values are keys of gradient graphs and
programs. A model's cache hangs on one of its parameters and goes with it; nothing here keeps a model alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..base import locks
from ..base.dtypes import DType
from ..graph.declaration import Declaration
from ..graph.leaves import Parameter
from ..graph.leaves import input as graph_input
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Shape, Value, graph_mode

T = TypeVar("T")

PROGRAMS = 128  # of one model, at most; the one that was not used for the longest time is evicted
NODES = 2048  # that read no parameter are kept when nothing refers to them: `total += loss` makes the same ones again


@dataclass
class Stats:
    """What eager computing has done in this process."""

    compiled: int = 0  # programs that were planned and proved
    reused: int = 0  # runs of a program that was there already
    evicted: int = 0  # programs dropped from a full cache
    nodes: int = 0  # nodes made; a structure seen before makes none
    native_calls: int = 0

    @property
    def cached(self) -> int:
        """Programs that are kept."""
        with locks.building:
            return sum(len(cache.programs) for cache in _caches)

    def __str__(self) -> str:
        return (
            f"eager: {self.compiled} programs compiled, {self.reused} runs reused one, {self.cached} cached, "
            f"{self.evicted} evicted; {self.nodes} nodes interned; {self.native_calls} native calls"
        )


counts = Stats()


def stats() -> Stats:
    """Counters of eager computing: `print(gl.stats())`. They only grow; the difference of two readings counts what
    happened between."""
    return Stats(counts.compiled, counts.reused, counts.evicted, counts.nodes, counts.native_calls)


def slot_name(k: int) -> str:
    """The name of a trace's k-th input."""
    return f"input{k}"


def slot_number(name: str) -> int:
    return int(name.removeprefix("input"))


def _frozen(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Attributes as a key; the two zeros differ."""
    items = []
    for name, x in attrs.items():
        kind = x.__class__
        items.append((name, tuple(x) if kind is list else repr(x) if kind is float and not x else x))
    return tuple(items)


class _Held(weakref.ref[Node]):
    """A reference to a node; the cache drops a node without other references."""

    __slots__ = ("key", "nodes")
    key: Hashable
    nodes: dict[Hashable, _Held]


def _forget(held: _Held) -> None:
    if held.nodes.get(held.key) is held:
        del held.nodes[held.key]


class Cache:
    """Nodes, for as long as they are needed; gradient graphs and programs, the least recently used ones dropped."""

    __slots__ = ("__weakref__", "gradients", "kept", "nodes", "programs")

    def __init__(self, kept: int = 0) -> None:
        self.nodes: dict[Hashable, _Held] = {}
        self.kept: deque[Node] = deque(maxlen=kept)  # the newest
        self.programs: OrderedDict[Hashable, Any] = OrderedDict()
        self.gradients: OrderedDict[Hashable, Any] = OrderedDict()
        _caches.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # the copy of a model begins with a cache of its own

    def intern(self, key: Hashable, make: Callable[[], Node]) -> Node:
        """The node that was made for this key before, or a new one."""
        held = self.nodes.get(key)
        node = held() if held is not None else None
        if node is None:
            with graph_mode():
                node = make()
            held = _Held(node, _forget)
            held.key, held.nodes = key, self.nodes
            self.nodes[key] = held
            self.kept.append(node)
            counts.nodes += 1
        return node

    def node(
        self, op: Declaration, values: Sequence[Value | None], attrs: Mapping[str, Any], used: dict[Hashable, int]
    ) -> Node:
        """The node of an op, its inputs and attributes. used: how often one recording has called each Python function
        with the same inputs; each call is a node of its own, the same one in the next recording."""
        key: tuple[Any, ...] = (op, _frozen(attrs) if attrs else (), *values)
        if op.python:
            used[key] = used.get(key, 0) + 1
            key = (*key, used[key])
        try:
            held = self.nodes.get(key)
        except TypeError:  # an attribute of an unusual kind
            key = (op, _frozen(REGISTRY[op.name].canonical_attrs(attrs)), *values)
            held = self.nodes.get(key)
        node = held() if held is not None else None
        return self.intern(key, partial(REGISTRY[op.name].node, values, attrs)) if node is None else node

    def input(self, k: int, shape: Shape, kind: DType) -> Value:
        """The k-th input of a trace."""
        return self.intern((k, shape, kind), lambda: graph_input(slot_name(k), shape, kind).node).outputs[0]

    def setting(self, key: Hashable, node: Node) -> Node:
        """The setting that was used for this key before, or this node."""
        return self.intern(key, lambda: node)

    def program(self, key: Hashable, make: Callable[[], T]) -> T:
        """The program that was made for this key before, or a new one."""
        program = self.programs.get(key)
        if program is None:
            program = self.programs[key] = make()
            while len(self.programs) > PROGRAMS:
                self.programs.popitem(last=False)
                counts.evicted += 1
        else:
            counts.reused += 1
            self.programs.move_to_end(key)
        return program

    def gradient(self, key: Hashable, make: Callable[[], T]) -> T:
        """The gradients that were built for this key before, or new ones."""
        slopes = self.gradients.get(key)
        if slopes is None:
            slopes = self.gradients[key] = make()
            if len(self.gradients) > PROGRAMS:
                self.gradients.popitem(last=False)
        else:
            self.gradients.move_to_end(key)
        return slopes


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
common = Cache(NODES)  # of graphs that read no parameter


def cache_of(parameter: Parameter | None) -> Cache:
    """Where a parameter's programs are kept."""
    if parameter is None:
        return common
    if parameter.programs is None:
        parameter.programs = Cache()
    return parameter.programs
