"""Cache: what was made for a structure, and is found again.

Nodes are interned: the same structure gives the same Value objects, so that values are keys of gradient graphs and
programs. A model's cache hangs on one of its parameters and goes with it; nothing here keeps a model alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base import locks
from ..graph.leaves import Parameter
from ..graph.value import Node, graph_mode

if TYPE_CHECKING:
    from .program import Program

PROGRAMS = 128  # of one model, at most; the one that was not used for the longest time is evicted
NODES = 2048  # that read no parameter are kept though nobody needs them: `total += loss` makes the same ones again


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
    """Counters of eager computing: `print(gl.stats())`. They only grow; subtract two to see what happened between."""
    return Stats(counts.compiled, counts.reused, counts.evicted, counts.nodes, counts.native_calls)


class _Held(weakref.ref[Node]):
    """A node that is found again for as long as anybody needs it."""

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
        self.programs: OrderedDict[Hashable, Program] = OrderedDict()
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

    def program(self, key: Hashable, make: Callable[[], Program]) -> Program:
        found = self.programs.get(key)
        if found is None:
            found = self.programs[key] = make()
            while len(self.programs) > PROGRAMS:
                self.programs.popitem(last=False)
                counts.evicted += 1
        else:
            counts.reused += 1
            self.programs.move_to_end(key)
        return found

    def gradient(self, key: Hashable, make: Callable[[], Any]) -> Any:
        found = self.gradients.get(key)
        if found is None:
            found = self.gradients[key] = make()
            if len(self.gradients) > PROGRAMS:
                self.gradients.popitem(last=False)
        else:
            self.gradients.move_to_end(key)
        return found


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
common = Cache(NODES)  # of what reads no parameter


def cache_of(parameter: Parameter | None) -> Cache:
    """Where a parameter's programs are kept."""
    if parameter is None:
        return common
    if parameter.programs is None:
        parameter.programs = Cache()
    return parameter.programs
