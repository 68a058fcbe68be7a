"""Pooling of images [N, C, H, W], and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.dtypes import i32, u8
from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import Sample, Spec, bad, draw, need
from .elementwise import add, cast, equal, where
from .indexing import slice as slice_of
from .layout import product
from .padding import pad
from .windows import Pair, inside, need_images, out_extent, out_extents, padded, pair_of, window


def _max_pool(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> tuple[np.ndarray, np.ndarray]:
    out = tuple(out_extent(*a) for a in zip(x.shape[2:], kernel, stride, padding, strict=True))
    xp = padded(x, padding, -np.inf)
    inside = padded(np.ones_like(x), padding)
    windows, valid = [], []
    for ky, kx in np.ndindex(*kernel):
        windows.append(window(xp, ky, kx, stride, (1, 1), (out[0], out[1])))
        valid.append(window(inside, ky, kx, stride, (1, 1), (out[0], out[1])))
    all_windows, all_valid = np.stack(windows), np.stack(valid) > 0
    index = np.argmax(all_windows, 0)
    lost = ~np.take_along_axis(all_valid, index[None], 0)[0]  # only -inf inside: the first element that is no padding
    index = np.where(lost, np.argmax(all_valid, 0), index)
    return np.take_along_axis(all_windows, index[None], 0)[0], index.astype(np.uint8)


def _max_pool_back(
    g: np.ndarray, index: np.ndarray, height: int, width: int, kernel: Pair, stride: Pair, padding: Pair
) -> np.ndarray:
    dx = np.zeros((*g.shape[:2], height + 2 * padding[0], width + 2 * padding[1]), g.dtype)
    for ky, kx in np.ndindex(*kernel):
        part = np.where(index == ky * kernel[1] + kx, g, 0)
        window(dx, ky, kx, stride, (1, 1), (g.shape[2], g.shape[3]))[...] += part
    return inside(dx, padding, height, width)


def _avg_pool(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    out = tuple(out_extent(*a) for a in zip(x.shape[2:], kernel, stride, padding, strict=True))
    xp = padded(x, padding)
    y = np.zeros((*x.shape[:2], *out), x.dtype)
    for ky, kx in np.ndindex(*kernel):
        y += window(xp, ky, kx, stride, (1, 1), (out[0], out[1]))
    return y / y.dtype.type(product(kernel))


def _avg_pool_back(g: np.ndarray, height: int, width: int, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    dx = np.zeros((*g.shape[:2], height + 2 * padding[0], width + 2 * padding[1]), g.dtype)
    for ky, kx in np.ndindex(*kernel):
        window(dx, ky, kx, stride, (1, 1), (g.shape[2], g.shape[3]))[...] += g / g.dtype.type(product(kernel))
    return inside(dx, padding, height, width)


# ---- pooling ---------------------------------------------------------------------------------------------

POOL = "kernel:ints stride:ints padding:ints=0,0"


def _pool_shape(x: Spec, kernel: Shape, stride: Shape, padding: Shape) -> Spec:
    need_images(x)
    out = out_extents(x, kernel, stride, padding)
    half = all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
    need(half, f"padding {list(padding)} is more than half of the kernel {list(kernel)}", "padding <= kernel / 2")
    return Spec((*x.shape[:2], *out))


def max_pool_shape(x: Spec, kernel: Shape, stride: Shape, padding: Shape) -> list[Spec]:
    y = _pool_shape(x, kernel, stride, padding)
    need(product(kernel) <= 256, f"kernel {list(kernel)} has {product(kernel)} positions", "at most 256")
    return [y, Spec(y.shape, u8)]


def _pool_back_shape(g: Spec, height: int, width: int, kernel: Shape, stride: Shape, padding: Shape) -> Spec:
    need_images(g, "g")
    x = Spec((*g.shape[:2], height, width))
    forward = _pool_shape(x, kernel, stride, padding)
    need(g.shape == forward.shape, "g is no gradient of this pool", f"g of shape {list(forward.shape)}")
    return x


def max_pool_back_shape(
    g: Spec, index: Spec, height: int, width: int, kernel: Shape, stride: Shape, padding: Shape
) -> Spec:
    need(index.shape == g.shape, "shapes differ", "g and index of one shape")
    return _pool_back_shape(g, height, width, kernel, stride, padding)


def _picked(x: Value, index: Value, kernel: Pair, stride: Pair, padding: Pair) -> Value:
    """The elements of x at the positions that a max pool chose: the transpose of max_pool2d_back."""
    wide = pad(x, [(0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])]) if any(padding) else x
    position = cast(index, i32)
    total = None
    for ky, kx in np.ndindex(*kernel):
        stops = [ky + (index.shape[2] - 1) * stride[0] + 1, kx + (index.shape[3] - 1) * stride[1] + 1]
        window = slice_of(wide, [0, 0, ky, kx], [*wide.shape[:2], *stops], [1, 1, *stride])
        at = np.full((1,), ky * kernel[1] + kx, np.int32)
        part = where(equal(position, at), window, 0.0)
        total = part if total is None else add(total, part)
    assert total is not None
    return total


POOLS: tuple[tuple[Shape, Pair, Pair, Pair], ...] = (
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0)), ((2, 3, 8, 8), (2, 2), (2, 2), (0, 0)),
    ((2, 3, 7, 9), (2, 2), (2, 2), (0, 0)),
    ((2, 2, 9, 8), (3, 3), (2, 2), (1, 1)), ((1, 2, 7, 12), (3, 2), (1, 3), (1, 0)),
    ((3, 1, 5, 33), (2, 4), (1, 1), (0, 2)),
    ((2, 2, 6, 6), (2, 2), (3, 3), (0, 0)), ((20, 8, 28, 28), (2, 2), (2, 2), (0, 0)),
    ((8, 16, 28, 28), (3, 3), (2, 2), (1, 1)),
)  # fmt: skip


def _pool(kernel: Pair, stride: Pair, padding: Pair) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding}


def _spread(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers no two of which are close: finite differences cannot swap them."""
    n = product(shape)
    return np.asarray(rng.permutation(n).reshape(shape) / n * 4 - 2, np.float32)


def _max_pool_samples(rng: np.random.Generator) -> list[Sample]:
    samples = [Sample((_spread(rng, x),), _pool(k, s, p)) for x, k, s, p in POOLS]
    ties = rng.integers(-1, 2, (2, 3, 9, 8)).astype(np.float32)
    edges = np.array(
        [[[[np.nan, 1, 2, np.inf], [3, np.nan, -np.inf, 5], [-np.inf, -np.inf, 1, 2], [-np.inf, -np.inf, 3, np.nan]]]],
        np.float32,
    )
    return [*samples, Sample((ties,), _pool((3, 3), (2, 2), (1, 1))), Sample((ties,), _pool((2, 2), (2, 2), (0, 0))),
            Sample((edges,), _pool((2, 2), (2, 2), (0, 0)))]  # fmt: skip


def _max_pool_back_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for x, k, s, p in POOLS:
        _, index = _max_pool(_spread(rng, x), k, s, p)
        samples.append(Sample((draw(rng, index.shape), index), {"height": x[2], "width": x[3]} | _pool(k, s, p)))
    return samples


def _avg_pool_back_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for x, k, s, p in POOLS:
        out = tuple(out_extent(*a) for a in zip(x[2:], k, s, p, strict=True))
        samples.append(Sample((draw(rng, (*x[:2], *out)),), {"height": x[2], "width": x[3]} | _pool(k, s, p)))
    return samples


def _bad_pool(name: str) -> list:
    square = {"kernel": (3, 3), "stride": (1, 1)}
    return [
        bad(f"{name}: x is no batch of images: x f32[4,4]; need x of shape [N, C, H, W]", (4, 4), **square),
        bad(
            f"{name}: padding [2, 2] is more than half of the kernel [3, 3]: x f32[1,1,4,4]; "
            "need padding <= kernel / 2",
            (1, 1, 4, 4), **square, padding=(2, 2),
        ),
    ]  # fmt: skip


max_pool2d_op: OpSpec = op(
    "max_pool2d", inputs="x", outputs="y index?", attrs=POOL, dense="x",
    doc="y = largest of each window, index (u8) = its position in the window; the first of equal ones, NaN is largest",
    dtypes="f32", shape=max_pool_shape,
    vjp=lambda g_y, x, index, kernel, stride, padding: [
        max_pool2d_back(
            g_y, index, height=x.shape[2], width=x.shape[3], kernel=kernel, stride=stride, padding=padding
        )
    ],
    reference=_max_pool, exact=True, samples=_max_pool_samples, bad_samples=_bad_pool("max_pool2d"),
    cost=lambda x, y, kernel: (float(y.size * product(kernel)), 4.0 * (x.size + y.size)),
)  # fmt: skip
max_pool2d_back: OpSpec = op(
    "max_pool2d_back", inputs="g index", outputs="dx", attrs=f"height:int width:int {POOL}", dense="g index",
    doc="dx of max_pool2d: each g goes to the element that was picked", dtypes="f32 index:u8",
    shape=max_pool_back_shape,
    vjp=lambda g_dx, index, kernel, stride, padding: [_picked(g_dx, index, kernel, stride, padding), None],
    no_gradient_to={"index": "a position has no slope"}, reference=_max_pool_back, samples=_max_pool_back_samples,
    bad_samples=[
        bad(
            "max_pool2d_back: g is no gradient of this pool: g f32[1,1,2,2], index u8[1,1,2,2]; "
            "need g of shape [1, 1, 4, 4]",
            (1, 1, 2, 2), ("u8", (1, 1, 2, 2)), height=8, width=8, kernel=(2, 2), stride=(2, 2),
        ),
    ],
)  # fmt: skip
_avg_pool2d: OpSpec = op(
    "avg_pool2d", inputs="x", attrs=POOL, dense="x", doc="y = mean of each window; padding counts as zeros",
    dtypes="f32", shape=_pool_shape,
    vjp=lambda g, x, kernel, stride, padding: [
        avg_pool2d_back(g, height=x.shape[2], width=x.shape[3], kernel=kernel, stride=stride, padding=padding)
    ],
    reference=_avg_pool, bad_samples=_bad_pool("avg_pool2d"),
    cost=lambda x, y, kernel: (float(y.size * product(kernel)), 4.0 * (x.size + y.size)),
    samples=lambda rng: [Sample((draw(rng, x),), _pool(k, s, p)) for x, k, s, p in POOLS],
)  # fmt: skip
avg_pool2d_back: OpSpec = op(
    "avg_pool2d_back", inputs="g", outputs="dx", attrs=f"height:int width:int {POOL}", dense="g",
    doc="dx of avg_pool2d: each g is shared by its window", dtypes="f32", shape=_pool_back_shape,
    vjp=lambda g_dx, kernel, stride, padding: [_avg_pool2d(g_dx, kernel=kernel, stride=stride, padding=padding)],
    reference=_avg_pool_back, samples=_avg_pool_back_samples,
    bad_samples=[
        bad(
            "avg_pool2d_back: g is no gradient of this pool: g f32[1,1,2,2]; need g of shape [1, 1, 4, 4]",
            (1, 1, 2, 2), height=8, width=8, kernel=(2, 2), stride=(2, 2),
        ),
    ],
)  # fmt: skip


def max_pool2d(
    x: Any, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0
) -> Value:
    """Largest of each window; the stride is the kernel where not given."""
    y, _ = max_pool2d_op(
        x,
        kernel=pair_of("kernel", kernel),
        stride=pair_of("stride", kernel if stride is None else stride),
        padding=pair_of("padding", padding),
    )
    return y


def avg_pool2d(
    x: Any, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0
) -> Value:
    """Mean of each window, padding included; the stride is the kernel where not given."""
    return _avg_pool2d(
        x,
        kernel=pair_of("kernel", kernel),
        stride=pair_of("stride", kernel if stride is None else stride),
        padding=pair_of("padding", padding),
    )
