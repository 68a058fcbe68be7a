"""The layers. Each builds nodes from public ops; initialisation as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool, as_share, in_f32
from ..base.arrays import as_array
from ..base.errors import GraphError, SettingError, ShapeError
from ..base.habits import value_hint
from ..graph.value import Value, describe
from ..ops.layout import axis_of
from .initial import filled, normal, uniform
from .module import Module
from .padded import checked_mode, padded

ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": ops.relu,
    "gelu": ops.gelu,
    "gelu_tanh": ops.gelu_tanh,
    "silu": ops.silu,
    "sigmoid": ops.sigmoid,
    "tanh": ops.tanh,
    "elu": ops.elu,
    "leaky_relu": ops.leaky_relu,
    "softplus": ops.softplus,
}


def activation_function(name: str | None) -> Callable[[Value], Value]:
    """The activation of this name; None: none. SettingError for one that is not known."""
    if name is None:
        return _same
    if not isinstance(name, str) or name not in ACTIVATIONS:
        same = next((known for known, function in ACTIVATIONS.items() if function is name), name)
        hint = value_hint("activation", same, ACTIVATIONS)
        raise SettingError(f"activation: {name!r} is not known; must be one of {', '.join(ACTIVATIONS)}{hint}")
    return ACTIVATIONS[name]


def _same(x: Value) -> Value:
    return x


def activation_name(function: Callable[[Value], Value]) -> str | None:
    """The name that makes this activation; one that no name makes is a "function"."""
    if function is _same:
        return None
    return next((name for name, known in ACTIVATIONS.items() if known is function), "function")


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, (int, np.integer)) else (int(value[0]), int(value[1]))


def short_pair(value: Any) -> Any:
    """A pair of equal numbers as the one number; anything else as it is."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return value
    return value[0] if len(set(value)) == 1 else tuple(value)


def need_positive(layer: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ShapeError(f"{layer}: {name}={size!r} is not usable; need a whole number of at least 1")


def need_number(layer: str, name: str, value: float, positive: bool = False) -> float:
    """The value as a float; SettingError unless it is a finite number, above 0 where `positive`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(in_f32(value))
    if not is_number or (positive and not in_f32(value) > 0):
        need = "a number above 0" if positive else "a finite number"
        raise SettingError(setting=name, seen=value, need=need, place=layer)
    return float(value)


def need_groups(layer: str, channels_in: int, channels_out: int, groups: int) -> None:
    """ShapeError unless these are whole numbers of at least 1 and the groups divide both channels."""
    need_positive(layer, channels_in=channels_in, channels_out=channels_out, groups=groups)
    if channels_in % groups or channels_out % groups:
        seen = f"groups={groups}, channels_in={channels_in}, channels_out={channels_out}"
        raise ShapeError(f"{layer}: {seen}; need groups to divide both channels")


APPROXIMATIONS = ("none", "tanh")  # of GELU


class Linear(Module):
    """y = activation(x @ weight.T + bias): x [..., n_in] -> [..., n_out], weight [n_out, n_in], bias [n_out].

    Initialisation as in PyTorch: both U(-1/sqrt(n_in), 1/sqrt(n_in)).
    """

    def __init__(self, n_in: int, n_out: int, activation: str | None = None, bias: bool = True) -> None:
        super().__init__()
        need_positive("Linear", n_in=n_in, n_out=n_out)
        self.n_in, self.n_out, self.activation = n_in, n_out, activation
        self.act = activation_function(activation)
        bound = 1 / math.sqrt(n_in)
        self.weight = self.parameter((n_out, n_in), uniform(bound))
        self.bias = self.parameter((n_out,), uniform(bound)) if as_bool("bias", bias, "Linear") else None

    def arguments(self) -> dict[str, Any]:
        n_out, n_in = self.weight.shape
        has_bias = self.bias is not None
        return {"n_in": n_in, "n_out": n_out, "activation": activation_name(self.act), "bias": has_bias}

    def forward(self, x: Value) -> Value:
        y = ops.matmul(x, self.weight, transpose_y=True)
        return self.act(y if self.bias is None else y + self.bias)


class Conv2d(Module):
    """Cross-correlation over [N, channels_in, H, W] -> [N, channels_out, OH, OW]: weight [channels_out, channels_in /
    groups, kh, kw], bias [channels_out].

    padding: a number, a pair or "same". padding_mode: values of the padding: "zeros", or "reflect", "replicate" or
    "circular" of gl.ops.pad. groups: divide both channels, 1 by default; channels of one group see those of the same
    one only (channels_in groups: depthwise). ShapeError where they do not divide, SettingError for another mode.

    Initialisation as in PyTorch: U(-b, b) with b = 1/sqrt(channels_in / groups * kh * kw).
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        activation: str | None = None,
        bias: bool = True,
        groups: int = 1,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__()
        need_groups("Conv2d", channels_in, channels_out, groups)
        self.padding_mode = checked_mode("Conv2d", padding_mode)
        self.kernel, self.stride, self.padding, self.dilation = pair(kernel), stride, padding, dilation
        self.groups, self.act = groups, activation_function(activation)
        bound = 1 / math.sqrt(channels_in // groups * math.prod(self.kernel))
        self.weight = self.parameter((channels_out, channels_in // groups, *self.kernel), uniform(bound))
        self.bias = self.parameter((channels_out,), uniform(bound)) if as_bool("bias", bias, "Conv2d") else None

    def arguments(self) -> dict[str, Any]:
        channels_out, channels_in = self.weight.shape[:2]
        return {
            "channels_in": channels_in * self.groups, "channels_out": channels_out,
            "kernel": short_pair(self.weight.shape[2:]), "stride": short_pair(self.stride),
            "padding": short_pair(self.padding), "dilation": short_pair(self.dilation),
            "activation": activation_name(self.act), "bias": self.bias is not None, "groups": self.groups,
            "padding_mode": None if self.padding_mode == "zeros" else self.padding_mode,
        }  # fmt: skip

    def forward(self, x: Value) -> Value:
        padding = self.padding
        if self.padding_mode != "zeros":
            sides = padding if isinstance(padding, str) else pair(padding)
            how = (pair(self.stride), sides, pair(self.dilation), self.padding_mode)
            x, padding = padded("Conv2d", x, self.kernel, *how), 0
        return self.act(ops.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups))


class _Pool2d(Module):
    """A window over [N, C, H, W]; stride defaults to the window."""

    def __init__(
        self, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def arguments(self) -> dict[str, Any]:
        return {
            "kernel": short_pair(self.kernel),
            "stride": short_pair(self.stride),
            "padding": short_pair(self.padding),
        }


class MaxPool2d(_Pool2d):
    """Largest element of each window over [N, C, H, W]; stride defaults to the window."""

    def forward(self, x: Value) -> Value:
        return ops.max_pool2d(x, self.kernel, self.stride, self.padding)


class AvgPool2d(_Pool2d):
    """Mean of each window over [N, C, H, W]; padding counts as zeros (PyTorch's count_include_pad=True)."""

    def forward(self, x: Value) -> Value:
        return ops.avg_pool2d(x, self.kernel, self.stride, self.padding)


class Flatten(Module):
    """[N, a, b, ...] -> [N, a*b*...]."""

    def forward(self, x: Value) -> Value:
        return ops.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


class Unflatten(Module):
    """Axis `dim` as several of `unflattened_size`: [N, a*b] -> [N, a, b] for dim 1 or -1; ShapeError if they differ."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise SettingError(setting="dim", seen=dim, need="a whole number", place="Unflatten")
        self.dim, self.sizes = dim, tuple(unflattened_size)
        need_positive("Unflatten", **{f"unflattened_size[{i}]": size for i, size in enumerate(self.sizes)})

    def arguments(self) -> dict[str, Any]:
        return {"dim": self.dim, "unflattened_size": self.sizes}

    def forward(self, x: Value) -> Value:
        axis = axis_of("Unflatten", x, self.dim, x.ndim)
        return ops.reshape(x, (*x.shape[:axis], *self.sizes, *x.shape[axis + 1 :]))


class Permute(Module):
    """The axes in another order, the first one included: (0, 3, 1, 2) takes [N, H, W, C] to [N, C, H, W]."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)
        if sorted(self.dims) != list(range(len(self.dims))):
            raise SettingError(setting="dims", seen=self.dims, need="each axis once, as (0, 3, 1, 2)", place="Permute")

    def arguments(self) -> dict[str, Any]:
        return {"dims": self.dims}

    def forward(self, x: Value) -> Value:
        return ops.permute(x, self.dims)


COUNTER = "num_batches_tracked"  # of a batch norm in torch.nn: no array of ours


class BatchNorm(Module):
    """Normalises each channel (axis 1) over all other axes: [N, C] or [N, C, H, W].

    Training takes the batch's mean and biased variance and updates running_mean and running_var (unbiased, as in
    PyTorch) by `momentum`; eval takes the running ones.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        need_positive("BatchNorm", channels=channels)
        self.eps, self.momentum = eps, momentum
        self.weight = self.parameter((channels,), filled(1.0))
        self.bias = self.parameter((channels,), filled(0.0))
        self.running_mean = self.parameter((channels,), filled(0.0), trainable=False)
        self.running_var = self.parameter((channels,), filled(1.0), trainable=False)

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.weight.size, "eps": self.eps, "momentum": self.momentum}

    def take_torch_names(self, arrays: dict[str, Any], path: str) -> None:
        arrays.pop(path + COUNTER, None)

    def forward(self, x: Value) -> Value:
        if not self.training:
            return ops.batch_norm_eval(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps)
        if self.call_number():
            raise GraphError("BatchNorm: one module at two places of a model mixes their statistics; need one for each")
        count = x.size // x.shape[1]
        if count < 2:
            raise ShapeError(
                f"BatchNorm: {describe(x)} has {count} value per channel; need at least 2 to train: "
                "choose a batch size that leaves no single row"
            )
        y, mean, var = ops.batch_norm(x, self.weight, self.bias, self.eps)
        keep, take = 1 - self.momentum, self.momentum
        mean = ops.scale(self.running_mean, factor=keep) + ops.scale(mean, factor=take)
        var = ops.scale(self.running_var, factor=keep) + ops.scale(var, factor=take * count / (count - 1))
        y.carry(ops.assign(self.running_mean, mean)[0], ops.assign(self.running_var, var)[0])
        return y


class LayerNorm(Module):
    """Normalises the last axis, of length `features`; weight and bias of that length."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        need_positive("LayerNorm", features=features)
        self.eps = eps
        self.weight = self.parameter((features,), filled(1.0))
        self.bias = self.parameter((features,), filled(0.0))

    def arguments(self) -> dict[str, Any]:
        return {"features": self.weight.size, "eps": self.eps}

    def forward(self, x: Value) -> Value:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        need_positive("RMSNorm", features=features)
        self.eps = eps
        self.weight = self.parameter((features,), filled(1.0))

    def arguments(self) -> dict[str, Any]:
        return {"features": self.weight.size, "eps": self.eps}

    def forward(self, x: Value) -> Value:
        return ops.rms_norm(x, self.weight, self.eps)


class Dropout(Module):
    """In training, each element is 0 with probability `rate` and otherwise scaled by 1/(1-rate); in eval, nothing."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        as_share("rate", rate, "Dropout")
        self.rate = rate

    def arguments(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def forward(self, x: Value) -> Value:
        if not self.training or self.rate == 0:
            return x
        return ops.dropout(x, self.rate)


class Embedding(Module):
    """ids [...] of whole numbers -> rows of weight [count, features]: [..., features]. N(0, 1) as in PyTorch."""

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        need_positive("Embedding", count=count, features=features)
        self.weight = self.parameter((count, features), normal())

    def arguments(self) -> dict[str, Any]:
        count, features = self.weight.shape
        return {"count": count, "features": features}

    def forward(self, ids: Value) -> Value:
        return ops.embedding(self.weight, ids)


class Standardize(Module):
    """(x - mean) / std, element by element, with fixed mean and std: data in their own units go in.

    x [N, ...] with mean and std of a shape that broadcasts against it.
    """

    def __init__(self, mean: object, std: object) -> None:
        super().__init__()
        mean_array = as_array("Standardize: mean", mean).astype(np.float32)
        std_array = as_array("Standardize: std", std).astype(np.float32)
        if not np.all(std_array > 0):
            raise SettingError("Standardize: std holds values that are not positive; need std > 0")
        self.mean = self.parameter(mean_array.shape, filled(mean_array), trainable=False)
        self.scale = self.parameter(std_array.shape, filled(1 / std_array), trainable=False)

    def forward(self, x: Value) -> Value:
        return (x - self.mean) * self.scale


def activation_module(name: str, function: Callable[[Value], Value], doc: str, module: str = __name__) -> type[Module]:
    """A layer without settings, of a function of one value."""

    def forward(self: Module, x: Value) -> Value:
        return function(x)

    return type(name, (Module,), {"__module__": module, "__doc__": doc, "forward": forward})


ReLU = activation_module("ReLU", ops.relu, "max(x, 0)")


class GELU(Module):
    """x * Phi(x), by erf, or with approximate="tanh" by tanh: any shape. approximate: "none" (the default) or "tanh";
    SettingError for another."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in APPROXIMATIONS:
            raise SettingError(setting="approximate", seen=approximate, need="'none' or 'tanh'", place="GELU")
        self.approximate = approximate

    def arguments(self) -> dict[str, Any]:
        return {"approximate": self.approximate} if self.approximate != "none" else {}

    def forward(self, x: Value) -> Value:
        return ops.gelu(x) if self.approximate == "none" else ops.gelu_tanh(x)


SiLU = activation_module("SiLU", ops.silu, "x * sigmoid(x)")
Sigmoid = activation_module("Sigmoid", ops.sigmoid, "1 / (1 + exp(-x))")
Tanh = activation_module("Tanh", ops.tanh, "tanh(x)")


class Softmax(Module):
    """Softmax along an axis, the last one by default; ShapeError where x has no such axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def arguments(self) -> dict[str, Any]:
        return {"axis": self.axis}

    def forward(self, x: Value) -> Value:
        return ops.softmax(x, self.axis)


class Held(Module):
    """Base of modules that hold others in `layers`, which are called by their positions or keys alone."""

    layers: Any

    def _below(self) -> Iterator[tuple[str, Any, Any]]:
        for name, held, links in super()._below():
            yield name.removeprefix("layers."), held, links


class Sequential(Held):
    """Modules one after the other; parameters are called 0.weight, 2.bias, ... after their positions."""

    def __init__(self, *layers: Module) -> None:
        super().__init__()
        for layer in layers:
            if not isinstance(layer, Module):
                many = "; use Sequential(*layers)" if isinstance(layer, (list, tuple)) else ""
                raise GraphError(f"Sequential: got {type(layer).__name__}; need modules{many}")
        self.layers = list(layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, i: int) -> Any:
        return self.layers[i]

    def forward(self, x: Value) -> Value:
        for layer in self.layers:
            x = layer(x)
        return x


class HiddenDropout(Sequential):
    """Modules one after the other, with dropout of `rate` after each Linear but the last module: in training alone.
    Parameters are called as in Sequential."""

    def __init__(self, *layers: Module, rate: float) -> None:
        super().__init__(*layers)
        self.dropout = Dropout(rate)

    def arguments(self) -> dict[str, Any]:
        return {"rate": self.dropout.rate}

    def forward(self, x: Value) -> Value:
        *before, last = self.layers
        for layer in before:
            x = layer(x)
            x = self.dropout(x) if isinstance(layer, Linear) else x
        return last(x)
