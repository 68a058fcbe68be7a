"""Byte offsets: every buffer of a program placed in one arena.

Two buffers may share bytes when their lifetimes do not meet. An output may take the very buffer of an input (in place)
when the op says so, the input dies there, and no other input of the node looks at the same buffer differently.
Largest first, each into the lowest gap among those alive at the same time: close to the lower bound in practice, and
the report says how close.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.value import Node, Value
from .layout import Laid, is_dense
from .order import Buffer, Order

ALIGN = 64


def aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


@dataclass(frozen=True)
class Workspace:
    """A buffer that a single step needs for itself."""

    step: int
    bytes: int


@dataclass(frozen=True)
class Placement:
    offsets: dict[Value, int]
    workspace_offsets: dict[int, int]  # step -> offset
    inplace: dict[Value, Value]  # output -> the input whose buffer it took
    arena_bytes: int
    lower_bound_bytes: int  # largest sum of bytes alive at one step, in this order, with these in-place choices
    unshared_bytes: int  # what every buffer on its own would take


def place(
    laid: Laid,
    order: Order,
    workspaces: Sequence[Workspace] = (),
    *,
    reuse: bool = True,
    inplace: bool = True,
    guard: int = 0,
) -> Placement:
    """Place all buffers. `guard` bytes stay free on both sides of each (for guard patterns)."""
    taken = _choose_inplace(laid, order) if inplace and reuse else {}
    roots = _roots(order.buffers, taken)
    items = _merge(order.buffers, roots)
    sizes = [aligned(b.bytes) + 2 * guard for b in items] + [aligned(w.bytes) + 2 * guard for w in workspaces]
    births = [b.birth for b in items] + [w.step for w in workspaces]
    deaths = [b.death for b in items] + [w.step for w in workspaces]
    offsets = _first_fit(sizes, births, deaths) if reuse else _in_a_row(sizes)
    arena = max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)
    by_root = {b.value: offsets[i] + guard for i, b in enumerate(items)}
    return Placement(
        offsets={v: by_root[root] for v, root in roots.items()},
        workspace_offsets={w.step: offsets[len(items) + i] + guard for i, w in enumerate(workspaces)},
        inplace=taken,
        arena_bytes=arena,
        lower_bound_bytes=_most_alive(sizes, births, deaths, order.end),
        unshared_bytes=sum(aligned(b.bytes) for b in order.buffers.values())
        + sum(aligned(w.bytes) for w in workspaces),
    )


def _choose_inplace(laid: Laid, order: Order) -> dict[Value, Value]:
    taken: dict[Value, Value] = {}
    used: set[Value] = set()
    for i, node in enumerate(order.steps):
        for out in node.outputs:
            if out not in order.buffers:
                continue
            for value in _candidates(node, out):
                base = laid.layouts[value].base
                buffer = order.buffers.get(base)
                if buffer is not None and buffer.death == i and base not in used and _same_place(laid, node, base, out):
                    taken[out] = base
                    used.add(base)
                    break
    return taken


def _candidates(node: Node, out: Value) -> list[Value]:
    return [v for i, v in enumerate(node.inputs) if v is not None and _allowed(node, out, i)]


def _allowed(node: Node, out: Value, position: int) -> bool:
    """Does the op declare that `out` may overwrite the input at this position?"""
    op = node.op
    return op.slot(op.inputs, position).name in op.may_overwrite.get(op.slot(op.outputs, out.index).name, ())


def _same_place(laid: Laid, node: Node, base: Value, out: Value) -> bool:
    """Every input of the node that looks into base's buffer is one that `out` may overwrite and covers it exactly."""
    for i, value in enumerate(node.inputs):
        if value is None or laid.layouts[value].base is not base:
            continue
        at = laid.layouts[value]
        exact = value.shape == out.shape and at.offset == 0 and is_dense(value.shape, at.strides)
        if not _allowed(node, out, i) or not exact or value.dtype.bytes != out.dtype.bytes or base.bytes != out.bytes:
            return False
    return True


def _roots(values: Iterable[Value], taken: Mapping[Value, Value]) -> dict[Value, Value]:
    """The value whose buffer each lives in, through chains of in-place steps; `values` in the order of their birth."""
    roots: dict[Value, Value] = {}
    for value in values:
        roots[value] = roots[taken[value]] if value in taken else value
    return roots


def _merge(buffers: Mapping[Value, Buffer], roots: Mapping[Value, Value]) -> list[Buffer]:
    """One buffer per root, alive as long as any value that lives in it."""
    merged: dict[Value, Buffer] = {}
    for value, buffer in buffers.items():
        root = roots[value]
        known = merged.get(root)
        if known is None:
            merged[root] = Buffer(root, buffer.bytes, buffer.birth, buffer.death)
        else:
            merged[root] = Buffer(root, known.bytes, min(known.birth, buffer.birth), max(known.death, buffer.death))
    return list(merged.values())


def _first_fit(sizes: Sequence[int], births: Sequence[int], deaths: Sequence[int]) -> list[int]:
    """Largest first; each goes to the lowest gap among the placed ones whose lifetimes meet its own."""
    n = len(sizes)
    offsets = np.zeros(n, np.int64)
    size, birth, death = (np.asarray(a, np.int64) for a in (sizes, births, deaths))
    order = np.lexsort((np.arange(n), birth, -size)) if n else np.empty(0, np.int64)
    placed = np.zeros(n, bool)
    for i in order:
        meets = placed & (birth <= death[i]) & (death >= birth[i])
        found = offsets[meets]
        by_offset = np.argsort(found, kind="stable")
        starts = found[by_offset]
        ends = np.maximum.accumulate(starts + size[meets][by_offset]) if len(starts) else starts
        gap_starts = np.concatenate(([0], ends))
        gap_ends = np.concatenate((starts, [np.iinfo(np.int64).max]))
        fits = np.flatnonzero(gap_ends - gap_starts >= size[i])
        offsets[i] = gap_starts[fits[0]]
        placed[i] = True
    return [int(o) for o in offsets]


def _in_a_row(sizes: Sequence[int]) -> list[int]:
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += size
    return offsets


def _most_alive(sizes: Sequence[int], births: Sequence[int], deaths: Sequence[int], end: int) -> int:
    change = np.zeros(end + 2, np.int64)
    for size, birth, death in zip(sizes, births, deaths, strict=True):
        change[birth] += size
        change[death + 1] -= size
    return int(np.cumsum(change).max(initial=0))
