"""Windows that slide over images [N, C, H, W]: their extents, and NumPy's loops over the positions inside of one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DTypeError
from ..graph.scope import user_location
from ..graph.value import Shape
from .common import Spec, need

Pair = tuple[int, int]


def out_extent(size: int, k: int, s: int, p: int, d: int = 1) -> int:
    return (size + 2 * p - d * (k - 1) - 1) // s + 1


def need_pairs(least: dict[str, int], **pairs: Shape) -> None:
    for name, pair in pairs.items():
        low = least.get(name, 1)
        need(len(pair) == 2 and min(pair) >= low, f"{name} {list(pair)} is not usable", f"two whole numbers >= {low}")


def out_extents(x: Spec, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape = (1, 1)) -> Pair:
    need_pairs({"padding": 0}, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    height, width = (out_extent(*a) for a in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True))
    need(
        height > 0 and width > 0,
        f"kernel {list(kernel)} does not fit into the padded image",
        "a smaller kernel or more padding",
    )
    return height, width


def need_images(x: Spec, name: str = "x") -> None:
    need(x.ndim == 4, f"{name} is no batch of images", f"{name} of shape [N, C, H, W]")


def padded(x: np.ndarray, p: Pair, value: float = 0.0) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])), constant_values=value)


def window(x: np.ndarray, ky: int, kx: int, s: Pair, d: Pair, out: Pair) -> np.ndarray:
    """The element of each window at (ky, kx): a view [N, C, OH, OW] of the padded x."""
    y, c = ky * d[0], kx * d[1]
    return x[:, :, y : y + (out[0] - 1) * s[0] + 1 : s[0], c : c + (out[1] - 1) * s[1] + 1 : s[1]]


def inside(x: np.ndarray, p: Pair, height: int, width: int) -> np.ndarray:
    return np.ascontiguousarray(x[:, :, p[0] : p[0] + height, p[1] : p[1] + width])


def pair_of(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """The argument of this name as (rows, columns); DTypeError unless it is a whole number or a pair of them."""
    try:
        return (int(value), int(value)) if isinstance(value, (int, np.integer)) else tuple(int(v) for v in value)
    except (TypeError, ValueError):
        raise DTypeError(f"{name} is {what_is(value)}; need a whole number or a pair; at {user_location()}") from None
