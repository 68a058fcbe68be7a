"""Convolutions of rows, and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import ops
from ..base.arguments import as_bool, as_whole
from ..graph.value import Value
from .initial import uniform
from .layers import activation_function, activation_name, need_groups, need_positive, pair, short_pair
from .module import Module
from .padded import checked_mode, padded


class Conv1d(Module):
    """Cross-correlation over [N, channels_in, L] -> [N, channels_out, OL]: weight [channels_out, channels_in / groups,
    kernel], bias [channels_out]. OL = (L + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1.

    kernel, stride, dilation   whole numbers; stride and dilation 1 by default
    padding                    zeros on both sides, 0 by default, or "same": as long as the input (stride 1)
    activation                 by name, None by default; applied to the result
    groups                     divide both channels, 1 by default; channels of one group see those of the same one only
    padding_mode               values of the padding: "zeros" (the default), or "reflect", "replicate" or "circular" of
                               gl.ops.pad

    Initialisation as in PyTorch: U(-b, b) with b = 1/sqrt(channels_in / groups * kernel). Raises ShapeError for other
    sizes, SettingError for another padding_mode.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int,
        stride: int = 1,
        padding: int | str = 0,
        dilation: int = 1,
        activation: str | None = None,
        bias: bool = True,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__()
        need_groups("Conv1d", channels_in, channels_out, groups)
        self.padding_mode = checked_mode("Conv1d", padding_mode)
        need_positive("Conv1d", kernel=kernel, stride=stride, dilation=dilation)
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = padding if isinstance(padding, str) else as_whole("padding", padding, 0, "Conv1d")
        self.act = activation_function(activation)
        bound = 1 / math.sqrt(channels_in // groups * kernel)
        self.weight = self.parameter((channels_out, channels_in // groups, kernel), uniform(bound))
        self.bias = self.parameter((channels_out,), uniform(bound)) if as_bool("bias", bias, "Conv1d") else None

    def arguments(self) -> dict[str, Any]:
        channels_out, channels_in, kernel = self.weight.shape
        return {
            "channels_in": channels_in * self.groups, "channels_out": channels_out, "kernel": kernel,
            "stride": self.stride, "padding": self.padding, "dilation": self.dilation,
            "activation": activation_name(self.act), "bias": self.bias is not None, "groups": self.groups,
            "padding_mode": None if self.padding_mode == "zeros" else self.padding_mode,
        }  # fmt: skip

    def forward(self, x: Value) -> Value:
        padding = self.padding
        if self.padding_mode != "zeros":
            sides = padding if isinstance(padding, str) else (padding,)
            how = ((self.stride,), sides, (self.dilation,), self.padding_mode)
            x, padding = padded("Conv1d", x, self.weight.shape[2:], *how), 0
        return self.act(ops.conv1d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups))


class ConvTranspose1d(Module):
    """Transposed convolution over [N, channels_in, L] -> [N, channels_out, OL]: weight [channels_in, channels_out /
    groups, kernel], bias [channels_out]. OL = (L - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding
    + 1.

    Arguments as of Conv1d, without padding="same"; output_padding: more positions at the end, below the stride, 0 by
    default. Initialisation as in PyTorch: U(-b, b) with b = 1/sqrt(channels_out / groups * kernel). Raises ShapeError
    for other sizes.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        dilation: int = 1,
        activation: str | None = None,
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        super().__init__()
        need_groups("ConvTranspose1d", channels_in, channels_out, groups)
        need_positive("ConvTranspose1d", kernel=kernel, stride=stride, dilation=dilation)
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = as_whole("padding", padding, 0, "ConvTranspose1d")
        self.output_padding = as_whole("output_padding", output_padding, 0, "ConvTranspose1d")
        self.act = activation_function(activation)
        bound = 1 / math.sqrt(channels_out // groups * kernel)
        self.weight = self.parameter((channels_in, channels_out // groups, kernel), uniform(bound))
        has_bias = as_bool("bias", bias, "ConvTranspose1d")
        self.bias = self.parameter((channels_out,), uniform(bound)) if has_bias else None

    def arguments(self) -> dict[str, Any]:
        channels_in, channels_out, kernel = self.weight.shape
        return {
            "channels_in": channels_in, "channels_out": channels_out * self.groups, "kernel": kernel,
            "stride": self.stride, "padding": self.padding, "output_padding": self.output_padding,
            "dilation": self.dilation, "activation": activation_name(self.act), "bias": self.bias is not None,
            "groups": self.groups,
        }  # fmt: skip

    def forward(self, x: Value) -> Value:
        how = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return self.act(ops.conv_transpose1d(x, self.weight, self.bias, *how))


class ConvTranspose2d(Module):
    """Transposed convolution over [N, channels_in, H, W] -> [N, channels_out, OH, OW]: weight [channels_in,
    channels_out / groups, kh, kw], bias [channels_out]. OH = (H - 1) * stride - 2 * padding + dilation * (kh - 1) +
    output_padding + 1, and OW likewise.

    Arguments as of Conv2d, without padding="same"; output_padding: more rows and columns at the end, a number or a
    pair, below the stride, 0 by default. Initialisation as in PyTorch: U(-b, b) with b = 1/sqrt(channels_out / groups *
    kh * kw). Raises ShapeError for other sizes.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        activation: str | None = None,
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        super().__init__()
        need_groups("ConvTranspose2d", channels_in, channels_out, groups)
        kernel = pair(kernel)
        need_positive("ConvTranspose2d", kernel=min(kernel))
        self.stride, self.padding, self.output_padding, self.dilation = stride, padding, output_padding, dilation
        self.groups, self.act = groups, activation_function(activation)
        bound = 1 / math.sqrt(channels_out // groups * math.prod(kernel))
        self.weight = self.parameter((channels_in, channels_out // groups, *kernel), uniform(bound))
        has_bias = as_bool("bias", bias, "ConvTranspose2d")
        self.bias = self.parameter((channels_out,), uniform(bound)) if has_bias else None

    def arguments(self) -> dict[str, Any]:
        channels_in, channels_out = self.weight.shape[:2]
        return {
            "channels_in": channels_in, "channels_out": channels_out * self.groups,
            "kernel": short_pair(self.weight.shape[2:]), "stride": short_pair(self.stride),
            "padding": short_pair(self.padding), "output_padding": short_pair(self.output_padding),
            "dilation": short_pair(self.dilation), "activation": activation_name(self.act),
            "bias": self.bias is not None, "groups": self.groups,
        }  # fmt: skip

    def forward(self, x: Value) -> Value:
        how = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return self.act(ops.conv_transpose2d(x, self.weight, self.bias, *how))
