"""Activations with settings or weights, and the identity."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..graph.value import Value
from .initial import filled
from .layers import activation_module, need_number, need_positive
from .module import Module


class LeakyReLU(Module):
    """x where x > 0, else slope * x: any shape. slope: a number, 0.01 by default; SettingError for another."""

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope = need_number("LeakyReLU", "slope", slope)

    def arguments(self) -> dict[str, Any]:
        return {"slope": self.slope}

    def forward(self, x: Value) -> Value:
        return ops.leaky_relu(x, slope=self.slope)


class PReLU(Module):
    """x where x > 0, else weight * x: x [N, C, ...] -> the same shape.

    count   1 (the default) for one slope, or C for one slope per channel (axis 1); weight [count]
    init    the number that the slopes begin with, 0.25 by default as in PyTorch

    Raises ShapeError for a count that is neither 1 nor C, SettingError for an init that is no number.
    """

    def __init__(self, count: int = 1, init: float = 0.25) -> None:
        super().__init__()
        need_positive("PReLU", count=count)
        self.beginning = need_number("PReLU", "init", init)
        self.weight = self.parameter((count,), filled(self.beginning))

    def arguments(self) -> dict[str, Any]:
        return {"count": self.weight.size, "init": self.beginning}

    def forward(self, x: Value) -> Value:
        return ops.prelu(x, self.weight)


class ELU(Module):
    """x where x > 0, else alpha * (e^x - 1): any shape. alpha: a number, 1 by default; SettingError for another."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = need_number("ELU", "alpha", alpha)

    def arguments(self) -> dict[str, Any]:
        return {"alpha": self.alpha}

    def forward(self, x: Value) -> Value:
        return ops.elu(x, alpha=self.alpha)


class Softplus(Module):
    """log(1 + e^(beta x)) / beta: any shape. beta: a number above 0, 1 by default; SettingError for another."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = need_number("Softplus", "beta", beta, positive=True)

    def arguments(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def forward(self, x: Value) -> Value:
        return ops.softplus(x, self.beta)


Mish = activation_module("Mish", ops.mish, "x * tanh(softplus(x))", __name__)
Hardswish = activation_module("Hardswish", ops.hardswish, "x * clamp(x / 6 + 1/2, 0, 1)", __name__)
Hardsigmoid = activation_module("Hardsigmoid", ops.hardsigmoid, "x / 6 + 1/2, held between 0 and 1", __name__)


class LogSoftmax(Module):
    """Logarithm of softmax along an axis, the last one by default; ShapeError where x has no such axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def arguments(self) -> dict[str, Any]:
        return {"axis": self.axis}

    def forward(self, x: Value) -> Value:
        return ops.log_softmax(x, self.axis)


class GLU(Module):
    """The first half along an axis times the sigmoid of the second: [..., 2n, ...] -> [..., n, ...].

    axis: the last one by default. Raises ShapeError where its extent is odd, or x has no such axis.
    """

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def arguments(self) -> dict[str, Any]:
        return {"axis": self.axis}

    def forward(self, x: Value) -> Value:
        return ops.glu(x, self.axis)


class Identity(Module):
    """x itself: it takes the place of a layer that is left out."""

    def forward(self, x: Value) -> Value:
        return x
