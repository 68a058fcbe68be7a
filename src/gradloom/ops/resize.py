"""Images in another size: adaptive pools and interpolation, as compositions of other ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.errors import SettingError
from ..graph.leaves import as_value, constant
from ..graph.scope import user_location
from ..graph.value import Value
from .elementwise import add, mul
from .index import get_rows
from .layout import broadcast_to, concat, permute, product, reshape, shape_error
from .pool import avg_pool2d, max_pool2d
from .reduce import max as max_over
from .reduce import mean as mean_over
from .windows import pair_of

MODES = ("nearest", "bilinear")
_MOST_POSITIONS = 256  # of a window of max_pool2d


def adaptive_avg_pool2d(x: Any, output_size: int | Sequence[int]) -> Value:
    """Means of regions: x [N, C, H, W] -> [N, C, *output_size]; a number stands for both extents, 1 takes the mean of
    the image.

    Of OH rows, row i is the mean of input rows floor(i H / OH) to ceil((i + 1) H / OH) - 1, and columns likewise.
    Raises ShapeError for x of another rank, and for an output size below 1.
    """
    x, size = _images("adaptive_avg_pool2d", x, output_size)
    if x.shape[2] % size[0] == 0 and x.shape[3] % size[1] == 0:
        kernel = (x.shape[2] // size[0], x.shape[3] // size[1])
        return mean_over(x, (2, 3), keepdims=True) if size == (1, 1) else avg_pool2d(x, kernel)
    return _regions(_regions(x, 2, size[0], mean_over), 3, size[1], mean_over)


def adaptive_max_pool2d(x: Any, output_size: int | Sequence[int]) -> Value:
    """The largest element of each region: x [N, C, H, W] -> [N, C, *output_size]; regions as of adaptive_avg_pool2d.

    The first of equal elements gets the gradient where all regions are of one size of at most 256 elements; otherwise
    equal ones share it. Raises ShapeError for x of another rank, and for an output size below 1.
    """
    x, size = _images("adaptive_max_pool2d", x, output_size)
    kernel = (x.shape[2] // size[0], x.shape[3] // size[1])
    divides = x.shape[2] % size[0] == 0 and x.shape[3] % size[1] == 0
    if divides and product(kernel) <= _MOST_POSITIONS:
        return max_pool2d(x, kernel)
    return _regions(_regions(x, 2, size[0], max_over), 3, size[1], max_over)


def _images(name: str, x: Any, output_size: int | Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    x, size = as_value(x), pair_of("output_size", output_size)
    if x.ndim != 4 or not x.size:
        raise shape_error(name, x, "x is no batch of images", "x of shape [N, C, H, W], not empty")
    if len(size) != 2 or min(size) < 1:
        raise shape_error(name, x, f"output size {list(size)} is not usable", "two whole numbers >= 1")
    return x, size


def _regions(x: Value, axis: int, count: int, reduction: Callable[..., Value]) -> Value:
    """`count` regions along an axis, each of which a reduction makes one."""
    extent = x.shape[axis]
    if count == 1:
        return reduction(x, axis, keepdims=True)
    if count == extent:
        return x
    parts = []
    for i in range(count):
        index = [slice(None)] * axis + [slice(i * extent // count, -(-(i + 1) * extent // count))]
        parts.append(reduction(x[tuple(index)], axis, keepdims=True))
    return concat(parts, axis)


def interpolate(
    x: Any,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Value:
    """Images in another size, as in PyTorch: x [N, C, H, W] -> [N, C, OH, OW].

    size           OH and OW; a number stands for both
    scale_factor   in place of size: OH = floor(H * scale_factor), and OW likewise
    mode           "nearest": pixel i is input pixel floor(i * scale), scale = H / OH or 1 / scale_factor. "bilinear":
                   it is at (i + 1/2) * scale - 1/2, between two pixels along each axis
    align_corners  with "bilinear": it is at i * (H - 1) / (OH - 1), so that the corners of both images meet

    Raises ShapeError for x of another rank and for sizes below 1, SettingError unless exactly one of size and
    scale_factor is given, for another mode, and for align_corners with "nearest".
    """
    x = as_value(x)
    if x.ndim != 4 or not x.size:
        raise shape_error("interpolate", x, "x is no batch of images", "x of shape [N, C, H, W], not empty")
    check_interpolation("interpolate", size, scale_factor, mode, align_corners)
    extents = x.shape[2:]
    if size is not None:
        sizes = pair_of("size", size)
        scales = [extent / out if out else 0.0 for extent, out in zip(extents, sizes, strict=False)]
    else:
        factors = _factors(scale_factor)
        sizes = tuple(math.floor(extent * factor) for extent, factor in zip(extents, factors, strict=True))
        scales = [1 / factor for factor in factors]
    if len(sizes) != 2 or min(sizes) < 1:
        raise shape_error("interpolate", x, f"output size {list(sizes)} is not usable", "two whole numbers >= 1")
    for axis, out, scale in zip((2, 3), sizes, scales, strict=True):
        if mode == "nearest":
            x = _nearest(x, axis, out, scale)
        elif x.shape[axis] != out or not (align_corners or scale == 1):
            x = _linear(x, axis, out, scale, align_corners)
    return x


def check_interpolation(place: str, size: Any, scale_factor: Any, mode: Any, align_corners: Any) -> None:
    """SettingError for settings of interpolate that are not possible together."""
    if (size is None) == (scale_factor is None):
        seen = "neither size nor scale_factor" if size is None else "size and scale_factor"
        raise SettingError(f"{place}: got {seen}; requires exactly one of them; at {user_location()}")
    if mode not in MODES:
        raise SettingError(setting="mode", seen=mode, need=f"one of {', '.join(MODES)}", place=place)
    if mode == "nearest" and align_corners:
        raise SettingError(f'{place}: align_corners=True has no effect with mode "nearest"; need mode="bilinear"')
    if scale_factor is not None:
        factors = _factors(scale_factor)
        if len(factors) != 2 or not all(0 < factor < math.inf for factor in factors):
            raise SettingError(setting="scale_factor", seen=scale_factor, need="one or two numbers > 0", place=place)


def _factors(given: Any) -> tuple[float, ...]:
    try:
        return tuple(float(f) for f in given) if isinstance(given, Sequence) else (float(given), float(given))
    except (TypeError, ValueError):
        return ()


def _nearest(x: Value, axis: int, out: int, scale: float) -> Value:
    extent = x.shape[axis]
    if out == extent and scale == 1:
        return x
    if out % extent == 0 and scale * (out // extent) == 1:  # each pixel several times
        before, times = product(x.shape[:axis]), out // extent
        wide = broadcast_to(reshape(x, (before * extent, 1, product(x.shape[axis + 1 :]))),
                            (before * extent, times, product(x.shape[axis + 1 :])))  # fmt: skip
        return reshape(wide, (*x.shape[:axis], out, *x.shape[axis + 1 :]))
    ids = np.minimum(np.floor(np.arange(out) * scale), extent - 1)
    return _from_rows(get_rows(_as_rows(x, axis), constant(ids.astype(np.int32))), x, axis)


def _linear(x: Value, axis: int, out: int, scale: float, align_corners: bool) -> Value:
    extent, i = x.shape[axis], np.arange(out)
    if align_corners:
        at = i * ((extent - 1) / (out - 1)) if out > 1 else np.zeros(1)
    else:
        at = np.maximum((i + 0.5) * scale - 0.5, 0.0)
    low = np.minimum(np.floor(at), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    share = np.clip(at - low, 0.0, 1.0)[:, None].astype(np.float32)
    rows = _as_rows(x, axis)
    first, second = (get_rows(rows, constant(ids.astype(np.int32))) for ids in (low, high))
    return _from_rows(add(mul(first, constant(1 - share)), mul(second, constant(share))), x, axis)


def _as_rows(x: Value, axis: int) -> Value:
    """[extent of the axis, all other elements]."""
    return reshape(permute(x, (axis, *(a for a in range(x.ndim) if a != axis))), (x.shape[axis], -1))


def _from_rows(rows: Value, x: Value, axis: int) -> Value:
    """The inverse of _as_rows for another number of rows: axes in the order of x."""
    others = [a for a in range(x.ndim) if a != axis]
    wide = reshape(rows, (rows.shape[0], *(x.shape[a] for a in others)))
    return permute(wide, [1 + others.index(a) if a != axis else 0 for a in range(x.ndim)])
