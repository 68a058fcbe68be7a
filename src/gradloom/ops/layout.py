"""Layout ops. reshape, permute, slice and broadcast_to are views: no bytes move where the reader takes strides."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.dtypes import bf16, f16
from ..base.errors import GraphError, ShapeError
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.scope import user_location
from ..graph.value import Shape, Value, define_operators, describe
from .common import LARGE, Reject, Sample, Spec, bad, dense_strides, draw, need, need_plain, normal_axis, unbroadcast

View = tuple[int, list[int]]  # offset and strides, in elements


def product(extents: Sequence[int]) -> int:
    n = 1
    for extent in extents:
        n *= extent
    return n


# ---- views -----------------------------------------------------------------------------------------------


def _reshape_shape(x: Spec, shape: Shape) -> Spec:
    need(all(e >= 0 for e in shape), f"shape {list(shape)} is not usable", "extents >= 0")
    need(product(shape) == x.size, f"{x.size} elements do not fill shape {list(shape)}", f"{product(shape)} elements")
    return Spec(shape, x.dtype)


def _reshape_view(layout_shape: Shape, strides: Sequence[int], shape: Shape) -> View | None:
    """Match groups of old and new axes of equal size; old axes of a group must lie without gaps in each other."""
    if product(layout_shape) == 0:
        return 0, dense_strides(shape)
    old = [(e, s) for e, s in zip(layout_shape, strides, strict=True) if e != 1]
    new_strides = [0] * len(shape)
    i = j = 0
    while i < len(old):
        size, j_end, n = old[i][0], j, 1
        i_end = i + 1
        while n != size:
            if n < size:
                n *= shape[j_end]
                j_end += 1
            else:
                size *= old[i_end][0]
                i_end += 1
        for (_, outer), (extent, inner) in zip(old[i : i_end - 1], old[i + 1 : i_end], strict=True):
            if outer != extent * inner:
                return None
        stride = old[i_end - 1][1]
        for k in reversed(range(j, j_end)):
            new_strides[k] = stride
            stride *= shape[k]
        i, j = i_end, j_end
    for k in reversed(range(len(shape))):  # axes of extent 1: any stride; this one reads naturally
        if shape[k] == 1 and new_strides[k] == 0:
            new_strides[k] = new_strides[k + 1] * shape[k + 1] if k + 1 < len(shape) else 1
    return 0, new_strides


def _viewed(*cases: tuple[Any, dict[str, Any]]) -> Any:
    return lambda rng: [Sample((draw(rng, shape),), attrs) for shape, attrs in cases]


_reshape: OpSpec = op(
    "reshape", inputs="x", attrs="shape:ints",
    doc="The same elements in the same order under another shape (a view).", dtypes="any", shape=_reshape_shape,
    view=_reshape_view, vjp=lambda g, x: [reshape(g, x.shape)], reference=lambda x, shape: x.reshape(shape),
    samples=_viewed(
        ((), {"shape": ()}), ((6,), {"shape": (2, 3)}), ((2, 3, 4), {"shape": (6, 4)}), ((2, 3, 4), {"shape": (24,)}),
        ((5, 1, 7), {"shape": (5, 7)}), ((5, 7), {"shape": (1, 5, 1, 7)}), ((4, 6), {"shape": (2, 2, 3, 2)}),
        ((1,), {"shape": ()}), ((3, 4), {"shape": (2, 6)}),
    ),
    bad_samples=[
        bad("reshape: 6 elements do not fill shape [4]: x f32[2,3]; need 4 elements", (2, 3), shape=(4,)),
        bad("reshape: the result has 7 axes: x f32[1]; need at most 6", (1,), shape=(1,) * 7),
    ],
)  # fmt: skip


def _permute_shape(x: Spec, axes: Shape) -> Spec:
    need(
        sorted(axes) == list(range(x.ndim)),
        f"axes {list(axes)} are no order of the axes",
        f"each of 0..{x.ndim - 1} once",
    )
    return Spec(tuple(x.shape[a] for a in axes), x.dtype)


_permute: OpSpec = op(
    "permute", inputs="x", attrs="axes:ints", doc="The axes in another order (a view).", dtypes="any",
    shape=_permute_shape, view=lambda strides, axes: (0, [strides[a] for a in axes]),
    vjp=lambda g, axes: [permute(g, [axes.index(i) for i in range(len(axes))])],
    reference=lambda x, axes: x.transpose(axes),
    samples=_viewed(
        ((3, 4), {"axes": (1, 0)}), ((2, 3, 4), {"axes": (2, 0, 1)}), ((2, 3, 4, 5), {"axes": (0, 2, 1, 3)}),
        ((1, 3), {"axes": (1, 0)}), ((3,), {"axes": (0,)}), ((), {"axes": ()}),
    ),
    bad_samples=[
        bad("permute: axes [0, 0] are no order of the axes: x f32[2,3]; need each of 0..1 once", (2, 3), axes=(0, 0)),
    ],
)  # fmt: skip


def _slice_extents(shape: Shape, starts: Shape, stops: Shape, steps: Shape) -> Shape:
    return tuple(max(0, -(-(b - a) // s)) for a, b, s in zip(starts, stops, steps, strict=True))


def _slice_shape(x: Spec, starts: Shape, stops: Shape, steps: Shape) -> Spec:
    lengths = f"starts {list(starts)}, stops {list(stops)}, steps {list(steps)}"
    need(len(starts) == len(stops) == len(steps) == x.ndim, f"{lengths} are not {x.ndim} each", f"{x.ndim} of each")
    need(all(s > 0 for s in steps), f"steps {list(steps)} are not all positive", "steps >= 1")
    inside = all(0 <= a <= n and 0 <= b <= n for a, b, n in zip(starts, stops, x.shape, strict=True))
    need(inside, f"{lengths} leave the shape", "0 <= start, stop <= extent")
    return Spec(_slice_extents(x.shape, starts, stops, steps), x.dtype)


def _slice_back(g: Value, x: Value, starts: Shape, steps: Shape) -> Value:
    """g back in its place, zeros elsewhere; nothing of x is read."""
    after = [n - a - ((k - 1) * s + 1 if k else 0) for n, a, s, k in zip(x.shape, starts, steps, g.shape, strict=True)]
    return pad_op(g, before=starts, after=after, interior=[s - 1 for s in steps])


slice_op: OpSpec = op(
    "slice", inputs="x", attrs="starts:ints stops:ints steps:ints",
    doc="Every step-th element from start up to stop (a view).", dtypes="any", shape=_slice_shape,
    view=lambda strides, starts, steps: (
        sum(a * t for a, t in zip(starts, strides, strict=True)),
        [t * s for t, s in zip(strides, steps, strict=True)],
    ),
    vjp=lambda g, x, starts, steps: [_slice_back(g, x, starts, steps)],
    reference=lambda x, starts, stops, steps: x[
        tuple(builtins.slice(a, b, s) for a, b, s in zip(starts, stops, steps, strict=True))
    ],
    samples=_viewed(
        ((7,), {"starts": (2,), "stops": (6,), "steps": (1,)}), ((7,), {"starts": (1,), "stops": (7,), "steps": (3,)}),
        ((5, 6), {"starts": (1, 0), "stops": (4, 6), "steps": (1, 2)}),
        ((5, 6), {"starts": (0, 5), "stops": (5, 6), "steps": (2, 1)}),
        ((1, 3), {"starts": (0, 0), "stops": (1, 3), "steps": (1, 1)}),
    ),
    bad_samples=[
        bad(
            "slice: starts [0], stops [9], steps [1] leave the shape: x f32[7]; need 0 <= start, stop <= extent",
            (7,), starts=(0,), stops=(9,), steps=(1,),
        ),
        bad(
            "slice: steps [-1] are not all positive: x f32[7]; need steps >= 1",
            (7,), starts=(0,), stops=(7,), steps=(-1,),
        ),
    ],
)  # fmt: skip


def _broadcast_shape(x: Spec, shape: Shape) -> Spec:
    lead = len(shape) - x.ndim
    fits = lead >= 0 and all(e in (1, n) for e, n in zip(x.shape, shape[lead:], strict=True))
    need(fits, f"x does not broadcast to {list(shape)}", "extents that are equal or 1, counted from the last axis")
    return Spec(shape, x.dtype)


def _broadcast_view(layout_shape: Shape, strides: Sequence[int], shape: Shape) -> View:
    lead = len(shape) - len(layout_shape)
    kept = [s if e == n else 0 for e, s, n in zip(layout_shape, strides, shape[lead:], strict=True)]
    return 0, [0] * lead + kept


_broadcast_to: OpSpec = op(
    "broadcast_to", inputs="x", attrs="shape:ints",
    doc="x repeated along axes of extent 1 and new leading axes (a view).", dtypes="any", shape=_broadcast_shape,
    view=_broadcast_view, vjp=lambda g, x: [unbroadcast(g, x)], reference=lambda x, shape: np.broadcast_to(x, shape),
    samples=_viewed(
        ((), {"shape": (3, 4)}), ((4,), {"shape": (3, 4)}), ((3, 1), {"shape": (3, 4)}),
        ((3, 1, 5), {"shape": (2, 3, 4, 5)}),
        ((3, 4), {"shape": (3, 4)}), ((1,), {"shape": (7,)}),
    ),
    bad_samples=[
        bad(
            "broadcast_to: x does not broadcast to [2, 4]: x f32[2,3]; need extents that are equal or 1, "
            "counted from the last axis",
            (2, 3), shape=(2, 4),
        ),
    ],
)  # fmt: skip


def _detach_shape(x: Spec) -> Spec:
    return Spec(x.shape, x.dtype)


detach: OpSpec = op(
    "detach", inputs="x", doc="y = x (a view), through which no gradient flows back", dtypes="f32|f64|f16|bf16",
    shape=_detach_shape, view=lambda layout_shape, strides: (0, list(strides)), vjp=lambda: [None],
    no_gradient_to={"x": "cut on purpose"}, reference=lambda x: x,
    no_samples="the identity, whose gradient is cut on purpose",
    bad_samples=[bad("detach: dtype i32 is not taken: x i32[2]; need f32 or f64 or f16 or bf16", ("i32", (2,)))],
)  # fmt: skip


# ---- copies ----------------------------------------------------------------------------------------------


def _copy_shape(x: Spec) -> Spec:
    return Spec(x.shape, x.dtype)


def _copy_samples(rng: np.random.Generator) -> list[Sample]:
    samples = [
        Sample((draw(rng, s),)) for s in ((), (1,), (7,), (5, 33), (2, 3, 4, 5), (2, 3, 2, 3, 2, 3), (65, 67), LARGE)
    ]
    samples.append(Sample((np.array([np.inf, -np.inf, np.nan, 1.0, -0.0], np.float32),)))
    for kind in (np.int32, np.uint8, np.int64):
        samples += [Sample((rng.integers(0, 100, s).astype(kind),)) for s in ((), (5, 33), (2, 3, 4), (65, 67))]
    for half in (f16, bf16):
        samples += [Sample((draw(rng, s).astype(half.numpy),)) for s in ((), (7,), (5, 33), (2, 3, 4, 5), (65, 67))]
    return samples


copy: OpSpec = op(
    "copy", inputs="x", doc="y = x, row-major and in memory of its own", dtypes="f32|i32|u8|i64|f16|bf16",
    shape=_copy_shape, vjp=lambda g: [g], reference=lambda x: np.array(x, order="C"), exact=True, samples=_copy_samples,
    bad_samples=[
        bad("copy: dtype f64 is not taken: x f64[2]; need f32 or i32 or u8 or i64 or f16 or bf16", ("f64", (2,))),
    ],
)  # fmt: skip


def _concat_shape(x: list[Spec], axis: int) -> Spec:
    need(len(x) > 0, "nothing to join", "at least one value")
    first = x[0]
    need(0 <= axis < first.ndim, f"axis {axis} does not exist", f"an axis from 0 to {first.ndim - 1}")
    for spec in x[1:]:
        alike = spec.ndim == first.ndim and all(
            i == axis or a == b for i, (a, b) in enumerate(zip(spec.shape, first.shape, strict=True))
        )
        need(alike, f"shapes differ outside axis {axis}", "equal extents along the other axes")
    return Spec((*first.shape[:axis], sum(s.shape[axis] for s in x), *first.shape[axis + 1 :]))


def _pieces(g: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    pieces, start = [], 0
    for size in sizes:
        starts = [start if i == axis else 0 for i in range(g.ndim)]
        stops = [start + size if i == axis else n for i, n in enumerate(g.shape)]
        pieces.append(slice_op(g, starts=starts, stops=stops, steps=[1] * g.ndim))
        start += size
    return pieces


_concat: OpSpec = op(
    "concat", inputs="| x", attrs="axis:int", doc="The values one after the other along an axis.", dtypes="f32",
    shape=_concat_shape, vjp=lambda g, x, axis: [_pieces(g, [v.shape[axis] for v in x], axis)],
    reference=lambda x, axis: np.concatenate(x, axis), exact=True,
    samples=lambda rng: [
        Sample(tuple(draw(rng, s) for s in shapes), {"axis": axis})
        for axis, shapes in (
            (0, [(3,), (1,), (5,)]), (0, [(2, 7), (3, 7)]), (1, [(3, 4), (3, 1), (3, 9)]), (0, [(4, 5)]),
            (1, [(2, 3, 5), (2, 1, 5)]), (2, [(2, 3, 1), (2, 3, 1), (2, 3, 2)]), (1, [(301, 400), (301, 351)]),
        )
    ],
    bad_samples=[
        bad(
            "concat: shapes differ outside axis 0: x0 f32[2,3], x1 f32[2,4]; need equal extents along the other axes",
            (2, 3), (2, 4), axis=0,
        ),
        bad("concat: axis 2 does not exist: x0 f32[2,3]; need an axis from 0 to 1", (2, 3), axis=2),
    ],
)  # fmt: skip


def _padded(extents: Shape, before: Shape, after: Shape, interior: Shape) -> Shape:
    return tuple(
        a + (n + (n - 1) * i if n else 0) + b for n, a, b, i in zip(extents, before, after, interior, strict=True)
    )


def _pad_shape(x: Spec, before: Shape, after: Shape, interior: Shape) -> Spec:
    sides = f"before {list(before)}, after {list(after)}, interior {list(interior)}"
    need(len(before) == len(after) == len(interior) == x.ndim, f"{sides} are not {x.ndim} each", f"{x.ndim} of each")
    need(min((*before, *after, *interior), default=0) >= 0, f"{sides} are not all >= 0", "whole numbers >= 0")
    return Spec(_padded(x.shape, before, after, interior))


def _pad_inside(g_shape: Shape, x_shape: Shape, before: Shape, interior: Shape) -> tuple[builtins.slice, ...]:
    return tuple(
        builtins.slice(a, a + (n - 1) * (i + 1) + 1 if n else a, i + 1)
        for n, a, i in zip(x_shape, before, interior, strict=True)
    )


def _pad_reference(x: np.ndarray, before: Shape, after: Shape, interior: Shape, value: float) -> np.ndarray:
    y = np.full(_padded(x.shape, before, after, interior), value, x.dtype)
    y[_pad_inside(y.shape, x.shape, before, interior)] = x
    return y


def _pad_back(g: Value, x: Value, before: Shape, interior: Shape) -> Value:
    inside = _pad_inside(g.shape, x.shape, before, interior)
    return slice_op(g, starts=[s.start for s in inside], stops=[s.stop for s in inside], steps=[s.step for s in inside])


pad_op: OpSpec = op(
    "pad", inputs="x", attrs="before:ints after:ints interior:ints value:float=0",
    doc="x with `value` before, after and between its elements along each axis", dtypes="f32", shape=_pad_shape,
    vjp=lambda g, x, before, interior: [_pad_back(g, x, before, interior)], reference=_pad_reference, exact=True,
    samples=lambda rng: [
        Sample((draw(rng, shape),), {"before": a, "after": b, "interior": i, "value": v})
        for shape, a, b, i, v in (
            ((5,), (2,), (3,), (0,), 0.0), ((4, 5), (1, 0), (0, 2), (0, 0), 1.5), ((4, 5), (0, 1), (0, 0), (1, 2), 0.0),
            ((2, 3, 4), (0, 1, 2), (1, 0, 3), (2, 0, 1), -1.0), ((1, 1), (0, 0), (0, 0), (3, 3), 0.0),
            ((300, 400), (1, 2), (3, 4), (0, 0), 0.5), ((200, 150), (0, 0), (1, 1), (1, 1), 0.0),
        )
    ],
    bad_samples=[
        bad(
            "pad: before [1], after [0], interior [0] are not 2 each: x f32[2,3]; need 2 of each",
            (2, 3), before=(1,), after=(0,), interior=(0,),
        ),
        bad(
            "pad: before [-1], after [0], interior [0] are not all >= 0: x f32[2]; need whole numbers >= 0",
            (2,), before=(-1,), after=(0,), interior=(0,),
        ),
    ],
)  # fmt: skip


# ---- public functions ------------------------------------------------------------------------------------


def shape_error(name: str, values: Value | Sequence[Value], seen: str, wanted: str) -> ShapeError:
    shown = ", ".join(map(describe, [values] if isinstance(values, Value) else values))
    return ShapeError(f"{name}: {seen}: {shown}; need {wanted}; at {user_location()}")


def axis_of(name: str, x: Value, axis: int, ndim: int) -> int:
    try:
        return normal_axis(axis, ndim)
    except Reject as reject:
        raise shape_error(name, x, reject.seen, reject.need) from None


def reshape(x: Any, shape: int | Sequence[int]) -> Value:
    """x under another shape; one extent may be -1: it is inferred."""
    x = as_value(x)
    extents = [int(shape)] if isinstance(shape, (int, np.integer)) else [int(e) for e in shape]
    if extents.count(-1) == 1:
        rest = product([e for e in extents if e != -1])
        if rest == 0 or x.size % rest:
            raise shape_error(
                "reshape", x, f"{x.size} elements do not fill shape {extents}", f"a multiple of {rest} elements"
            )
        extents[extents.index(-1)] = x.size // rest
    return x if tuple(extents) == x.shape else _reshape(x, shape=extents)


def permute(x: Any, axes: Sequence[int]) -> Value:
    """The axes in the order given."""
    x = as_value(x)
    n = len(x.shape)
    return _permute(x, axes=tuple([a if type(a) is int and 0 <= a < n else axis_of("permute", x, a, n) for a in axes]))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Value:
    """The axes in the order given; reversed when none is given (NumPy's transpose)."""
    x = as_value(x)
    return permute(x, range(x.ndim)[::-1] if axes is None else axes)


def flatten(x: Any, start: int = 1) -> Value:
    """One axis in place of all axes from `start` on (the batch axis stays)."""
    x = as_value(x)
    need_plain("flatten", start=start)
    if x.ndim <= start:
        return x if x.ndim == start + 1 else reshape(x, (*x.shape, 1)) if x.ndim == start else x
    return reshape(x, (*x.shape[:start], product(x.shape[start:])))


def squeeze(x: Any, axes: int | Sequence[int] | None = None) -> Value:
    """x without the given axes of extent 1 (all such axes when none is given)."""
    x = as_value(x)
    if axes is None:
        gone = {i for i, e in enumerate(x.shape) if e == 1}
    else:
        gone = {axis_of("squeeze", x, a, x.ndim) for a in (axes if isinstance(axes, Sequence) else [axes])}
        for a in gone:
            if x.shape[a] != 1:
                raise shape_error("squeeze", x, f"axis {a} has extent {x.shape[a]}", "extent 1")
    return reshape(x, [e for i, e in enumerate(x.shape) if i not in gone])


def expand_dims(x: Any, axis: int) -> Value:
    """x with a new axis of extent 1 at `axis` of the result."""
    x = as_value(x)
    at = axis_of("expand_dims", x, axis, x.ndim + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def broadcast_to(x: Any, shape: Sequence[int]) -> Value:
    """x repeated to `shape` without copying."""
    x = as_value(x)
    return x if tuple(shape) == x.shape else _broadcast_to(x, shape=shape)


def contiguous(x: Any) -> Value:
    """A dense copy of x."""
    return copy(x)


def repeat(x: Any, reps: Sequence[int]) -> Value:
    """x tiled reps[i] times along axis i (as in ggml and numpy.tile)."""
    x = as_value(x)
    times = [int(r) for r in reps]
    if len(times) < x.ndim or min(times, default=1) < 1:
        raise shape_error("repeat", x, f"reps {times} are not usable", f"at least {x.ndim} whole numbers >= 1")
    shape = [1] * (len(times) - x.ndim) + list(x.shape)
    x = reshape(x, shape)
    for i, r in enumerate(times):
        if r > 1:  # (before, 1, extent, after) -> (before, r, extent, after)
            outer, inner = product(shape[:i]), product(shape[i + 1 :])
            tiled = broadcast_to(reshape(x, (outer, 1, shape[i], inner)), (outer, r, shape[i], inner))
            shape[i] *= r
            x = reshape(tiled, shape)
    return x


def concat(values: Sequence[Any], axis: int = 0) -> Value:
    """The values one after the other along an axis."""
    given = [as_value(v) for v in values]
    if not given:
        raise GraphError(f"concat: nothing to join; need at least one value; at {user_location()}")
    return given[0] if len(given) == 1 else _concat(*given, axis=axis_of("concat", given[0], axis, given[0].ndim))


def stack(values: Sequence[Any], axis: int = 0) -> Value:
    """The values side by side along a new axis."""
    return concat([expand_dims(v, axis) for v in values], axis)


def split(x: Any, sizes: int | Sequence[int], axis: int = 0) -> list[Value]:
    """Pieces along an axis: of the given sizes, or that many equal ones."""
    x = as_value(x)
    at = axis_of("split", x, axis, x.ndim)
    extent = x.shape[at]
    if isinstance(sizes, (int, np.integer)):
        if sizes < 1 or extent % sizes:
            seen = f"axis {at} does not split into {sizes} equal pieces"
            raise shape_error("split", x, seen, f"a divisor of {extent}")
        sizes = [extent // sizes] * sizes
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise shape_error("split", x, f"sizes {list(sizes)} do not add up to axis {at}", f"a sum of {extent}")
    return _pieces(x, sizes, at)


define_operators(reshape=reshape, transpose=transpose, permute=permute, detach=detach)
