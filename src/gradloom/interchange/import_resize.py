"""Resize and Upsample of ONNX: along each axis an element, or the weighted sum of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .. import ops
from ..graph.value import Value
from .import_nodes import OnnxNode, Operand, axes_of, check_size, known, value_of, whole_numbers

Positions = Callable[[np.ndarray, np.float32, int, int], np.ndarray]


def _half_pixel(i: np.ndarray, scale: np.float32, extent: int, out: int) -> np.ndarray:
    return (i + np.float32(0.5)) / scale - np.float32(0.5)


def _half_pixel_symmetric(i: np.ndarray, scale: np.float32, extent: int, out: int) -> np.ndarray:
    center = np.float32(extent / 2)
    return center * (1 - np.float32(out) / (scale * np.float32(extent))) + _half_pixel(i, scale, extent, out)


# Where output element i lies in the input, by coordinate_transformation_mode
_POSITIONS: Mapping[bytes, Positions] = {
    b"half_pixel": _half_pixel,
    b"half_pixel_symmetric": _half_pixel_symmetric,
    b"pytorch_half_pixel": lambda i, scale, extent, out: _half_pixel(i, scale, extent, out) if out > 1 else 0 * i,
    b"align_corners": lambda i, scale, extent, out: i * np.float32((extent - 1) / max(out - 1, 1)),
    b"asymmetric": lambda i, scale, extent, out: i / scale,
}
_ROUNDING: Mapping[bytes, Callable[[np.ndarray], np.ndarray]] = {
    b"round_prefer_floor": lambda at: np.ceil(at - np.float32(0.5)),
    b"round_prefer_ceil": lambda at: np.floor(at + np.float32(0.5)),
    b"floor": np.floor,
    b"ceil": np.ceil,
}


def resize(node: OnnxNode, x: Operand, roi: Operand = None, scales: Operand = None, sizes: Operand = None) -> Value:
    """x in another size. roi is read by a mode that is an error."""
    node.need(antialias=0, exclude_outside=0, keep_aspect_ratio_policy=b"stretch")
    if node.version < 11:  # (x, scales)
        roi, scales = None, roi
    return _resized(node, value_of(x), scales, sizes, b"asymmetric" if node.version < 11 else b"half_pixel")


def upsample(node: OnnxNode, x: Operand, scales: Operand) -> Value:
    return _resized(node, value_of(x), scales, None, b"asymmetric")


def _resized(node: OnnxNode, x: Value, scales: Operand, sizes: Operand, default: bytes) -> Value:
    kind, mode = node.get("mode", b"nearest"), node.get("coordinate_transformation_mode", default)
    rounding = node.get("nearest_mode", b"round_prefer_floor" if default == b"half_pixel" else b"floor")
    for name, seen, names in (
        ("mode", kind, (b"nearest", b"linear")),
        ("coordinate_transformation_mode", mode, _POSITIONS),
        ("nearest_mode", rounding, _ROUNDING),
    ):
        if seen not in names:
            text = ", ".join(one.decode() for one in names)
            raise node.fault(f"{name}={seen.decode('utf-8', 'replace')!r:.60}; must be among {text}")
    axes = axes_of(node, x, None) or list(range(x.ndim))
    outs, factors = _extents(node, [x.shape[axis] for axis in axes], scales, sizes)
    if len(outs) != len(axes):
        raise node.fault(f"{len(outs)} sizes or scales; need {len(axes)}, one for each axis")
    shape = list(x.shape)
    for axis, out in zip(axes, outs, strict=True):
        shape[axis] = out
    check_size(node, shape)
    if not x.size or 0 in shape:
        raise node.fault(f"shape {list(x.shape)} to {shape}; need extents of at least 1")
    for axis, out, scale in zip(axes, outs, factors, strict=True):
        extent = x.shape[axis]
        if out == extent and scale == 1:
            continue
        at = _POSITIONS[mode](np.arange(out, dtype=np.float32), np.float32(scale), extent, out)
        x = _nearest(x, axis, _ROUNDING[rounding](at)) if kind == b"nearest" else _linear(x, axis, at)
    return x


def _extents(
    node: OnnxNode, extents: Sequence[int], scales: Operand, sizes: Operand
) -> tuple[list[int], Sequence[np.float32]]:
    """The extents of the result, and by how much each is larger. An empty array is an absent one."""
    if sizes is not None and known(node, sizes, "sizes").size:
        outs = whole_numbers(node, sizes, "sizes")
        return outs, [np.float32(out / extent) if extent else np.float32(1)
                      for out, extent in zip(outs, extents, strict=False)]  # fmt: skip
    factors = node.get("scales", []) if scales is None else known(node, scales, "scales").reshape(-1)[:64]
    if not all(0 < factor < math.inf for factor in factors):
        raise node.fault(f"scales {list(map(float, factors))!s:.60}; need numbers > 0")
    found = [np.float32(factor) for factor in factors]
    return [math.floor(float(np.float32(n) * factor)) for n, factor in zip(extents, found, strict=False)], found


def _nearest(x: Value, axis: int, at: np.ndarray) -> Value:
    return ops.take(x, np.clip(at, 0, x.shape[axis] - 1).astype(np.int32), axis)


def _linear(x: Value, axis: int, at: np.ndarray) -> Value:
    last = x.shape[axis] - 1
    at = np.clip(at, 0, last)
    low = np.minimum(np.floor(at), last)
    wide = [1] * x.ndim
    wide[axis] = len(at)
    share = (at - low).astype(np.float32).reshape(wide)
    first, second = (_nearest(x, axis, ids) for ids in (low, low + 1))
    return ops.add(ops.mul(first, 1 - share), ops.mul(second, share))
