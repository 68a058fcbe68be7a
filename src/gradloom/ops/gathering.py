"""Elements by position along an axis: gather, its transpose, and what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import f32, i32
from ..base.errors import DTypeError
from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.scope import user_location
from ..graph.value import Shape, Value, describe
from .common import Sample, Spec, bad, draw, need, need_axis, need_plain
from .elementwise import add, cast
from .index import get_rows
from .layout import axis_of, broadcast_to, permute, reshape, shape_error

IDS = "a position has no slope"
# (shape of x, axis, extent of ids along it)
PICKED: tuple[tuple[Shape, int, int], ...] = (
    ((1,), 0, 1), ((7,), 0, 9), ((5, 33), 1, 4), ((5, 33), 0, 8), ((2, 3, 4, 5), 1, 3), ((2, 1, 4, 5), 1, 3),
    ((3, 4, 5), 2, 7), ((40, 9, 30), 1, 5), ((401, 351), 1, 300), ((351, 401), 0, 400),
)  # fmt: skip


def _at(x: np.ndarray, ids: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """The index of NumPy for the element of each id."""
    places = list(np.ix_(*[np.arange(n) for n in ids.shape]))
    places[axis] = ids
    return tuple(places)


def _need_beside(x: Spec, ids: Spec, axis: int, name: str) -> None:
    """ids has the axes of x, of the same extents but for one."""
    need_axis(x, axis)
    alike = ids.ndim == x.ndim and all(
        i == axis or a == b for i, (a, b) in enumerate(zip(x.shape, ids.shape, strict=True))
    )
    wanted = [*map(str, x.shape[:axis]), "k", *map(str, x.shape[axis + 1 :])]
    need(alike, "ids do not fit", f"ids of shape [{', '.join(wanted)}], as {name} has outside axis {axis}")


def _gather_shape(x: Spec, ids: Spec, axis: int) -> Spec:
    _need_beside(x, ids, axis, "x")
    return Spec(ids.shape, x.dtype)


def _range_of(x: Any, axis: int) -> IdRange:
    return IdRange("ids", x.shape[axis])


def _gather_reference(x: np.ndarray, ids: np.ndarray, axis: int) -> np.ndarray:
    _range_of(x, axis).check("gather", ids)
    return x[_at(x, ids, axis)]


def _ids_of(rng: np.random.Generator, shape: Shape, axis: int, count: int) -> np.ndarray:
    wide = [count if i == axis else n for i, n in enumerate(shape)]
    return rng.integers(0, shape[axis], wide).astype(np.int32)


def _gather_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for shape, axis, count in PICKED:
        samples.append(Sample((draw(rng, shape), _ids_of(rng, shape, axis, count)), {"axis": axis}))
    for shape, axis, count in PICKED[:7]:
        x = rng.integers(-100, 100, shape).astype(np.int32)
        samples.append(Sample((x, _ids_of(rng, shape, axis, count)), {"axis": axis}))
    return samples


_gather: OpSpec = op(
    "gather", inputs="x ids", attrs="axis:int", dense="x ids",
    doc="y[.., i, ..] = x[.., ids[.., i, ..], ..] along the axis", dtypes="x:f32|i32 ids:i32", shape=_gather_shape,
    vjp=lambda g, x, ids, axis: [gather_back(g, ids, axis=axis, count=x.shape[axis]) if x.dtype is f32 else None, None],
    no_gradient_to={"ids": IDS}, reference=_gather_reference, exact=True, ids=_range_of,
    cost=lambda ids: (float(ids.size), 12.0 * ids.size), samples=_gather_samples,
    bad_samples=[
        bad("gather: dtype f32 is not taken: x f32[4,3], ids f32[4,2]; need i32", (4, 3), (4, 2), axis=1),
        bad(
            "gather: ids do not fit: x f32[4,3], ids i32[3,3]; need ids of shape [4, k], as x has outside axis 1",
            (4, 3), ("i32", (3, 3)), axis=1,
        ),
        bad("gather: axis 2 does not exist: x f32[4,3], ids i32[4,3]; need an axis from 0 to 1", (4, 3),
            ("i32", (4, 3)), axis=2),
    ],
)  # fmt: skip


def _gather_back_shape(g: Spec, ids: Spec, axis: int, count: int) -> Spec:
    need_axis(g, axis)
    need(g.shape == ids.shape, "shapes differ", "g and ids of one shape")
    need(count >= 0, f"{count} elements along the axis", "count >= 0")
    return Spec((*g.shape[:axis], count, *g.shape[axis + 1 :]))


def _counted(count: int) -> IdRange:
    return IdRange("ids", count)


def _gather_back_reference(g: np.ndarray, ids: np.ndarray, axis: int, count: int) -> np.ndarray:
    _counted(count).check("gather_back", ids)
    y = np.zeros((*g.shape[:axis], count, *g.shape[axis + 1 :]), g.dtype)
    np.add.at(y, _at(y, ids, axis), g)
    return y


gather_back: OpSpec = op(
    "gather_back", inputs="g ids", attrs="axis:int count:int", dense="g ids",
    doc="y[.., ids[.., i, ..], ..] += g[.., i, ..] along the axis, in the order of i; elements that no id names are 0",
    dtypes="f32 ids:i32", shape=_gather_back_shape, vjp=lambda g_y, ids, axis: [_gather(g_y, ids, axis=axis), None],
    no_gradient_to={"ids": IDS}, reference=_gather_back_reference, ids=_counted,
    cost=lambda g, y: (float(g.size), 8.0 * g.size + y.bytes),
    samples=lambda rng: [
        Sample(
            (draw(rng, (*shape[:axis], count, *shape[axis + 1 :])), _ids_of(rng, shape, axis, count)),
            {"axis": axis, "count": shape[axis]},
        )
        for shape, axis, count in PICKED
    ],
    bad_samples=[
        bad(
            "gather_back: shapes differ: g f32[3,2], ids i32[3,3]; need g and ids of one shape",
            (3, 2), ("i32", (3, 3)), axis=1, count=5,
        ),
        bad(
            "gather_back: -1 elements along the axis: g f32[3], ids i32[3]; need count >= 0",
            (3,), ("i32", (3,)), axis=0, count=-1,
        ),
    ],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def _positions(name: str, ids: Any) -> Value:
    """ids as i32; DTypeError for floats."""
    ids = reshape(np.array([ids]), ()) if isinstance(ids, (int, np.integer)) else as_value(ids)
    if ids.dtype.is_float:
        raise DTypeError(f"{name}: ids are {describe(ids)}; need whole numbers; at {user_location()}")
    return cast(ids, i32)


def gather(x: Any, ids: Any, axis: int = -1) -> Value:
    """Elements by position along an axis: y[i, j] = x[i, ids[i, j]] for axis 1 (torch.gather, numpy.take_along_axis).

    x     f32 or i32
    ids   whole numbers from 0 to x.shape[axis] - 1, of x's shape but for the extent along the axis

    The result has the shape of ids. Raises ShapeError for other shapes, which PyTorch cuts and NumPy broadcasts,
    DTypeError for ids that are no whole numbers, and DataError, in a run, for one that is out of range.
    """
    x = as_value(x)
    at = axis_of("gather", x, axis, x.ndim)
    return _gather(x, _positions("gather", ids), axis=at)


def scatter_add(x: Any, ids: Any, src: Any, axis: int = -1) -> Value:
    """x with elements added by position along an axis: y = x, then y[i, ids[i, j]] += src[i, j] for axis 1
    (torch.scatter_add), in the order of j.

    x     f32
    ids   whole numbers from 0 to x.shape[axis] - 1, of x's shape but for the extent along the axis
    src   f32, of the shape of ids, or a number

    Raises ShapeError for other shapes, DTypeError for ids that are no whole numbers, and DataError, in a run, for one
    that is out of range.
    """
    x = as_value(x)
    at = axis_of("scatter_add", x, axis, x.ndim)
    ids, src = _positions("scatter_add", ids), as_value(src)
    beside = [n for i, n in enumerate(x.shape) if i != at]
    if ids.ndim != x.ndim or [n for i, n in enumerate(ids.shape) if i != at] != beside:
        wanted = f"ids with x's extents outside axis {at}"
        raise shape_error("scatter_add", [x, ids], "ids do not fit", wanted)
    if src.ndim and src.shape != ids.shape:
        raise shape_error("scatter_add", [ids, src], "src does not fit", "src of the shape of ids")
    return add(x, gather_back(broadcast_to(src, ids.shape), ids, axis=at, count=x.shape[at]))


def take(x: Any, ids: Any, axis: int) -> Value:
    """Slices by position along an axis: x with the axis replaced by those of ids (numpy.take, torch.index_select).

    x     f32, f16 or bf16; whole numbers are taken as f32. The result is f32
    ids   whole numbers from 0 to x.shape[axis] - 1, of any shape

    Raises ShapeError for an axis that does not exist, DTypeError for ids that are no whole numbers, and DataError, in a
    run, for one that is out of range. For axis 0, get_rows and embedding are the same.
    """
    x = as_value(x)
    at = axis_of("take", x, axis, x.ndim)
    ids = _positions("take", ids)
    if at == 0:
        return get_rows(x, ids)
    rows = get_rows(permute(x, (at, *(i for i in range(x.ndim) if i != at))), ids)
    k = ids.ndim
    return permute(rows, (*range(k, k + at), *range(k), *range(k + at, rows.ndim)))


def one_hot(ids: Any, num_classes: int) -> Value:
    """1 at the position of each id and 0 elsewhere: f32 [*ids.shape, num_classes].

    ids   whole numbers from 0 to num_classes - 1; another one is a DataError in a run. Losses take ids as they are

    Raises ShapeError for num_classes < 1, DTypeError for ids that are no whole numbers.
    """
    ids = _positions("one_hot", ids)
    need_plain("one_hot", num_classes=num_classes)
    if not isinstance(num_classes, (int, np.integer)) or num_classes < 1:
        raise shape_error("one_hot", ids, f"num_classes={num_classes} is not usable", "a whole number >= 1")
    places = reshape(ids, (*ids.shape, 1))
    return gather_back(broadcast_to(1.0, places.shape), places, axis=ids.ndim, count=int(num_classes))
