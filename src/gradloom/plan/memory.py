"""Byte offsets: every buffer of a program placed in one arena.

Two buffers may share bytes when their lifetimes do not meet. An output may take the very buffer of an input (in place)
if the op allows it, the input dies there, and no other input of the node reads the same buffer differently.
Each goes into the lowest gap among those alive at the same time. In which order they are placed decides how close this
comes to the lower bound: several are tried and improved a little; the report shows how close the best came.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.errors import ShapeError
from ..graph.value import Node, Value
from .layout import Laid, is_dense
from .order import Lifetime, Order

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
    piece: int = 0,
) -> Placement:
    """Place all buffers. `guard` bytes stay free on both sides of each (for guard patterns). piece: bytes of each piece
    of the arena (0: it is one): a buffer that fits in a piece is placed in one, a larger one begins with a piece.

    Raises ShapeError when offsets could pass 2^63.
    """
    taken = _choose_inplace(laid, order) if inplace and reuse else {}
    roots = _roots(order.buffers, taken)
    items = _merge(order.buffers, roots)
    sizes = [aligned(b.bytes) + 2 * guard for b in items] + [aligned(w.bytes) + 2 * guard for w in workspaces]
    if sum(sizes) >= 1 << 62:
        raise ShapeError(f"plan: its buffers have {sum(sizes)} bytes in all; need fewer than 2^62: smaller shapes")
    births = [b.birth for b in items] + [w.step for w in workspaces]
    deaths = [b.death for b in items] + [w.step for w in workspaces]
    lower_bound = _most_alive(sizes, births, deaths, order.end)
    offsets = _pack(sizes, births, deaths, lower_bound, piece) if reuse else _in_a_row(sizes, piece)
    arena = _height(offsets, sizes)
    by_root = {b.value: offsets[i] + guard for i, b in enumerate(items)}
    return Placement(
        offsets={v: by_root[root] for v, root in roots.items()},
        workspace_offsets={w.step: offsets[len(items) + i] + guard for i, w in enumerate(workspaces)},
        inplace=taken,
        arena_bytes=arena,
        lower_bound_bytes=lower_bound,
        unshared_bytes=sum(aligned(b.bytes) for b in order.buffers.values())
        + sum(aligned(w.bytes) for w in workspaces),
    )


def _choose_inplace(laid: Laid, order: Order) -> dict[Value, Value]:
    taken: dict[Value, Value] = {}
    used: set[Value] = set()
    for i, node in enumerate(order.steps):
        if not node.op.may_overwrite:
            continue
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


def _merge(buffers: Mapping[Value, Lifetime], roots: Mapping[Value, Value]) -> list[Lifetime]:
    """One buffer per root, alive as long as any value that lives in it."""
    merged: dict[Value, Lifetime] = {}
    for value, buffer in buffers.items():
        root = roots[value]
        known = merged.get(root)
        if known is None:
            merged[root] = Lifetime(root, buffer.bytes, buffer.birth, buffer.death)
        else:
            merged[root] = Lifetime(root, known.bytes, min(known.birth, buffer.birth), max(known.death, buffer.death))
    return list(merged.values())


Placed = tuple[int, int, int, int]  # first byte, end, birth, death

STRETCHES = 16  # into which the steps of a program are divided to find what lives at the same time
TRIES = 60  # maximum number of orders to place in
WORK = 12_000  # and approximate number of placements in all, but at least two orders


def _pack(
    sizes: Sequence[int], births: Sequence[int], deaths: Sequence[int], lower_bound: int, piece: int
) -> list[int]:
    """Offsets without overlap, as low as a few tries come; always the same."""
    size, birth, death = (np.asarray(a, np.int64) for a in (sizes, births, deaths))
    starts = (
        np.lexsort((birth, -size)),  # largest first
        _by_breadth(size, birth, death),
        np.lexsort((birth, -size * (death - birth + 1))),  # largest and longest first
    )
    rng = np.random.default_rng(0)
    best: list[tuple[int, np.ndarray, list[int]]] = []  # from each start: height, order, offsets
    for attempt in range(max(2, min(TRIES, WORK // max(len(sizes), 1)))):
        chain = attempt % len(starts)
        order = starts[chain] if chain == attempt else _topmost_earlier(*best[chain][1:], sizes, rng)
        offsets = _first_fit(size, birth, death, order, piece)
        result = (_height(offsets, sizes), order, offsets)
        if chain == attempt:
            best.append(result)
        elif result[0] <= best[chain][0]:
            best[chain] = result
        if result[0] <= lower_bound:
            return offsets
    return min(best, key=lambda r: r[0])[2]


def _height(offsets: Sequence[int], sizes: Sequence[int]) -> int:
    return max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)


def _by_breadth(size: np.ndarray, birth: np.ndarray, death: np.ndarray) -> np.ndarray:
    """The buffers of the step at which most is alive first, then those of the next such step, ..."""
    if not len(size):
        return np.empty(0, np.int64)
    change = np.zeros(int(death.max()) + 2, np.int64)
    np.add.at(change, birth, size)
    np.add.at(change, death + 1, -size)
    alive = np.cumsum(change)
    # The most that is alive at any step of each buffer's life, by a sparse table of running maxima.
    table = [alive]
    while 2 ** len(table) <= len(alive):
        last, half = table[-1], 2 ** (len(table) - 1)
        table.append(np.maximum(last[:-half], last[half:]))
    level = np.frexp((death - birth + 1).astype(np.float64))[1] - 1
    widest = np.array([max(table[k][b], table[k][d + 1 - 2**k]) for k, b, d in zip(level, birth, death, strict=True)])
    return np.lexsort((birth, -size, -widest))


def _topmost_earlier(
    order: np.ndarray, offsets: Sequence[int], sizes: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """The same order, but one of the buffers that end at the top is placed earlier."""
    ends = (np.asarray(offsets, np.int64) + np.asarray(sizes, np.int64))[order]
    at = rng.choice(np.flatnonzero(ends == ends.max()))
    return np.insert(np.delete(order, at), rng.integers(0, at + 1), order[at])


def _in_piece(start: int, bytes: int, piece: int) -> int:
    """The first byte from `start` on where `bytes` fit in one piece, or begin with one where a piece is smaller."""
    room = piece - start % piece
    return start if bytes <= room or room == piece else start + room


def _first_fit(size: np.ndarray, birth: np.ndarray, death: np.ndarray, order: np.ndarray, piece: int = 0) -> list[int]:
    """In this order each goes to the lowest gap among the placed ones whose lifetimes meet its own.

    Two things keep the search short. It begins at the first byte that may be free at every step of the life. And a life
    that is short is held against those alone that live in the same stretch of steps.
    """
    offsets = [0] * len(size)
    steps, largest = int(death.max(initial=0)) + 1, int(size.max(initial=0))
    taken = np.zeros(steps, np.int64)  # at each step, all bytes below this are taken
    stretch = -(-steps // STRETCHES)
    placed: list[Placed] = []
    nearby: list[list[Placed]] = [[] for _ in range(STRETCHES)]  # [j]: alive in steps j*stretch..(j+2)*stretch - 1
    columns = (a[order].tolist() for a in (size, birth, death))
    for i, bytes_, first, last in zip(order.tolist(), *columns, strict=True):
        life = taken[first : last + 1]
        start = int(life.max()) if bytes_ else 0
        if piece:
            start = _in_piece(start, bytes_, piece)
        others = nearby[first // stretch] if last - first <= stretch else placed
        for at in range(bisect_left(others, (start - largest,)), len(others)):
            low, high, born, dies = others[at]
            if born <= last and dies >= first:
                if low - start >= bytes_:
                    break
                start = max(start, high)
                if piece:
                    start = _in_piece(start, bytes_, piece)
        offsets[i] = start
        life[life == start] = start + bytes_
        made = (start, start + bytes_, first, last)
        insort(placed, made)
        for j in range(max(first // stretch - 1, 0), last // stretch + 1):
            insort(nearby[j], made)
    return offsets


def _in_a_row(sizes: Sequence[int], piece: int) -> list[int]:
    offsets, at = [], 0
    for size in sizes:
        at = _in_piece(at, size, piece) if piece else at
        offsets.append(at)
        at += size
    return offsets


def _most_alive(sizes: Sequence[int], births: Sequence[int], deaths: Sequence[int], end: int) -> int:
    change = np.zeros(end + 2, np.int64)
    for size, birth, death in zip(sizes, births, deaths, strict=True):
        change[birth] += size
        change[death + 1] -= size
    return int(np.cumsum(change).max(initial=0))
