"""Norms of groups and of single images, pools and images in another size, dropout of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool
from ..base.errors import ShapeError
from ..graph.value import Value, describe
from ..ops.resize import check_interpolation
from .initial import filled
from .layers import Dropout, need_positive, short_pair
from .module import Module


class GroupNorm(Module):
    """Normalises each group of channels of each row: x [N, C, ...] -> the same shape, then * weight + bias.

    groups     that divide channels: 1 for all channels together
    channels   C, the extent of axis 1
    eps        added to the variance (biased), 1e-5 by default
    affine     weight [C], 1 at first, and bias [C], 0 at first; False: neither

    Raises ShapeError when groups do not divide channels, and for x with other channels.
    Wu and He, "Group Normalization" (arXiv 1803.08494).
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        need_positive("GroupNorm", groups=groups, channels=channels)
        if channels % groups:
            raise ShapeError(f"GroupNorm: groups={groups}, channels={channels}; need a divisor of the channels")
        self.groups, self.channels, self.eps = groups, channels, eps
        has_weights = as_bool("affine", affine, "GroupNorm")
        self.weight = self.parameter((channels,), filled(1.0)) if has_weights else None
        self.bias = self.parameter((channels,), filled(0.0)) if has_weights else None

    def arguments(self) -> dict[str, Any]:
        affine = self.weight is not None
        return {"groups": self.groups, "channels": self.channels, "eps": self.eps, "affine": affine}

    def forward(self, x: Value) -> Value:
        _need_channels("GroupNorm", x, self.channels)
        return ops.group_norm(x, self.groups, self.weight, self.bias, self.eps)


class InstanceNorm(Module):
    """Normalises each channel of each row over all further axes: x [N, C, L] or [N, C, H, W] -> the same shape.

    channels   C, the extent of axis 1
    eps        added to the variance (biased), 1e-5 by default
    affine     then * weight + bias, [C] each, 1 and 0 at first; False (the default, as in PyTorch): neither

    Raises ShapeError for x with other channels, or with a single value per channel.
    Ulyanov et al., "Instance Normalization" (arXiv 1607.08022).
    """

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__()
        need_positive("InstanceNorm", channels=channels)
        self.channels, self.eps = channels, eps
        has_weights = as_bool("affine", affine, "InstanceNorm")
        self.weight = self.parameter((channels,), filled(1.0)) if has_weights else None
        self.bias = self.parameter((channels,), filled(0.0)) if has_weights else None

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.channels, "eps": self.eps, "affine": self.weight is not None}

    def forward(self, x: Value) -> Value:
        _need_channels("InstanceNorm", x, self.channels)
        if x.size <= x.shape[0] * self.channels:
            raise ShapeError(f"InstanceNorm: {describe(x)} has one value per channel; need at least 2")
        return ops.group_norm(x, self.channels, self.weight, self.bias, self.eps)


def _need_channels(place: str, x: Value, channels: int) -> None:
    if x.ndim < 2 or x.shape[1] != channels:
        raise ShapeError(f"{place}: got {describe(x)}; need [N, {channels}, ...]")


class _AdaptivePool2d(Module):
    """A pool whose windows follow from the output's size."""

    def __init__(self, output_size: int | Sequence[int]) -> None:
        super().__init__()
        extents = (output_size,) if isinstance(output_size, (int, np.integer)) else tuple(output_size)
        if len(extents) not in (1, 2):
            raise ShapeError(f"{type(self).__name__}: output_size={output_size!r}; need a whole number or a pair")
        for extent in extents:
            need_positive(type(self).__name__, output_size=extent)
        self.output_size = short_pair(extents)

    def arguments(self) -> dict[str, Any]:
        return {"output_size": self.output_size}


class AdaptiveAvgPool2d(_AdaptivePool2d):
    """Means of regions of images: [N, C, H, W] -> [N, C, *output_size].

    output_size: a whole number or a pair. 1 is the global average pool: the mean of each channel, [N, C, 1, 1].
    Of OH rows, row i covers input rows floor(i H / OH) to ceil((i + 1) H / OH) - 1. ShapeError for other sizes.
    """

    def forward(self, x: Value) -> Value:
        return ops.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveMaxPool2d(_AdaptivePool2d):
    """The largest element of each region of images: [N, C, H, W] -> [N, C, *output_size].

    output_size: a whole number or a pair. 1 is the global maximum pool. Regions as of AdaptiveAvgPool2d. Which of equal
    elements gets the gradient: gl.ops.adaptive_max_pool2d. ShapeError for other sizes.
    """

    def forward(self, x: Value) -> Value:
        return ops.adaptive_max_pool2d(x, self.output_size)


class _AdaptivePool1d(Module):
    """A pool of sequences whose windows follow from the output's length: the pool of images of one row."""

    pool = staticmethod(ops.adaptive_avg_pool2d)

    def __init__(self, output_size: int) -> None:
        super().__init__()
        need_positive(type(self).__name__, output_size=output_size)
        self.output_size = int(output_size)

    def arguments(self) -> dict[str, Any]:
        return {"output_size": self.output_size}

    def forward(self, x: Value) -> Value:
        if x.ndim != 3:
            raise ShapeError(f"{type(self).__name__}: got {describe(x)}; need [N, C, L]")
        n, channels, length = x.shape
        y = self.pool(ops.reshape(x, (n, channels, 1, length)), (1, self.output_size))
        return ops.reshape(y, (n, channels, self.output_size))


class AdaptiveAvgPool1d(_AdaptivePool1d):
    """Means of regions of sequences: [N, C, L] -> [N, C, output_size].

    output_size: a whole number; 1 is the mean of each channel, [N, C, 1]. Region i covers positions
    floor(i L / output_size) to ceil((i + 1) L / output_size) - 1. ShapeError for other sizes.
    """


class AdaptiveMaxPool1d(_AdaptivePool1d):
    """The largest element of each region of sequences: [N, C, L] -> [N, C, output_size].

    output_size: a whole number. Regions as of AdaptiveAvgPool1d. Which of equal elements gets the gradient:
    gl.ops.adaptive_max_pool2d. ShapeError for other sizes.
    """

    pool = staticmethod(ops.adaptive_max_pool2d)


class Upsample(Module):
    """Images in another size, larger or smaller: [N, C, H, W] -> [N, C, OH, OW].

    size           OH and OW: a whole number or a pair
    scale_factor   in place of size: OH = floor(H * scale_factor); a number or a pair
    mode           "nearest" (the default) or "bilinear"
    align_corners  with "bilinear": the corners of both images meet; False by default

    The formulas are those of gl.ops.interpolate, and of PyTorch. Raises SettingError unless exactly one of size and
    scale_factor is given, for another mode, and for align_corners with "nearest"; ShapeError for sizes below 1.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        self.align_corners = as_bool("align_corners", align_corners, "Upsample")
        check_interpolation("Upsample", size, scale_factor, mode, self.align_corners)
        self.size, self.scale_factor, self.mode = short_pair(size), short_pair(scale_factor), mode

    def arguments(self) -> dict[str, Any]:
        return {
            "size": self.size, "scale_factor": self.scale_factor, "mode": self.mode,
            "align_corners": self.align_corners,
        }  # fmt: skip

    def forward(self, x: Value) -> Value:
        return ops.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)


class Dropout2d(Dropout):
    """In training, each channel of each image is 0 with probability `rate` and otherwise scaled by 1/(1-rate); in eval,
    nothing. x [N, C, ...] -> the same shape; rate: 0.5 by default, SettingError unless at least 0 and below 1."""

    def forward(self, x: Value) -> Value:
        if not self.training or self.rate == 0:
            return x
        if x.ndim < 3:
            raise ShapeError(f"Dropout2d: got {describe(x)}; need [N, C, ...]")
        ones = ops.broadcast_to(1.0, (*x.shape[:2], *(1,) * (x.ndim - 2)))
        return x * ops.dropout(ones, self.rate)
