"""Losses of predicted numbers, and of outputs that are losses themselves. y: target, x: output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool
from ..base.errors import SettingError, ShapeError
from ..graph.leaves import as_value, named
from ..graph.scope import user_location
from ..graph.value import Value, describe
from ..ops.loss import Pair, mean_pair, sum_pair, weighted
from .loss import Loss, as_targets, check_number, check_share, check_values, one_or_several, parts_of, settle


class _OfElements(Loss):
    """A loss per element of outputs and targets of one shape (targets [...] fit outputs [..., 1]); the mean is that
    over all elements, rows weighted, as PyTorch's reduction="mean" without weights. Whole-number targets of -100 do not
    count."""

    def values(self, x: Value, y: Value) -> Value:
        """The loss of each element, f32 of the shape of x and y."""
        raise NotImplementedError

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        x, y, ignored = as_targets(self.name, outputs, labels)
        return weighted(self.name, self.values(x, y), weights, ignored)


class MSE(_OfElements, name="mse"):
    """(x - y)^2; torch.nn.functional.mse_loss."""

    def values(self, x: Value, y: Value) -> Value:
        return ops.sqr(x - y)


class L1(_OfElements, name="l1"):
    """|x - y|, the mean absolute error; torch.nn.functional.l1_loss. Its slope at 0 is 0."""

    def values(self, x: Value, y: Value) -> Value:
        return ops.abs(x - y)


@dataclass(frozen=True, repr=False)
class Huber(_OfElements, name="huber"):
    """(x - y)^2 / 2 where |x - y| <= delta, else delta (|x - y| - delta / 2); torch.nn.functional.huber_loss.

    delta  error at which the loss becomes linear, above 0
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        settle(self, delta=check_number("Huber", "delta", self.delta, above=0))

    def values(self, x: Value, y: Value) -> Value:
        error = x - y
        near = ops.clamp(error, min=-self.delta, max=self.delta)
        return near * (error - ops.scale(near, factor=0.5))


@dataclass(frozen=True, repr=False)
class SmoothL1(_OfElements, name="smooth_l1"):
    """(x - y)^2 / (2 beta) where |x - y| <= beta, else |x - y| - beta / 2; torch.nn.functional.smooth_l1_loss.

    beta  error at which the loss becomes linear, above 0 (for 0 use L1)
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        settle(self, beta=check_number("SmoothL1", "beta", self.beta, above=0))

    def values(self, x: Value, y: Value) -> Value:
        return ops.scale(Huber(self.beta).values(x, y), factor=1 / self.beta)


@dataclass(frozen=True, repr=False)
class Quantile(Loss, name="quantile"):
    """q (y - x) where x <= y, else (1 - q) (x - y), the pinball loss, whose least mean is at the quantile q of the
    targets (Koenker and Bassett 1978; sklearn.metrics.mean_pinball_loss).

    q  quantile, above 0 and below 1; or several, in a tuple: then outputs are [..., number of quantiles] for targets
       [...], and the mean is that over targets and quantiles
    """

    q: float | tuple[float, ...] = 0.5

    def __post_init__(self) -> None:
        settle(self, q=one_or_several(self.q, lambda q: check_share("Quantile", "q", q)))
        if self.q == ():
            raise SettingError(setting="q", seen=self.q, need="at least one quantile", place="Quantile")

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        if not isinstance(self.q, tuple):
            x, y, ignored = as_targets(self.name, outputs, labels)
            above, below = (ops.scale(y - x, factor=q) for q in (self.q, self.q - 1))
            return weighted(self.name, ops.maximum(above, below), weights, ignored)
        x, y = as_value(outputs), as_value(labels)
        y = y if y.ndim == x.ndim else ops.reshape(y, (*y.shape, 1))
        if x.shape != (*y.shape[:-1], len(self.q)) or y.shape[-1] != 1:
            seen = f"outputs {describe(x)}, labels {describe(as_value(labels))}"
            need = f"outputs [..., {len(self.q)}] for labels [...]"
            raise ShapeError(f"quantile: shapes do not fit: {seen}; need {need}; at {user_location()}")
        x, y, ignored = as_targets(self.name, x, ops.broadcast_to(y, x.shape))
        q = np.array(self.q)
        error = y - x
        each = ops.maximum(error * q.astype("f4"), error * (q - 1).astype("f4"))
        return weighted(self.name, each, weights, ignored)


@dataclass(frozen=True, repr=False)
class PoissonNLL(_OfElements, name="poisson_nll"):
    """e^x - y x: the negative log-likelihood of counts y at the rate e^x, without log y!;
    torch.nn.functional.poisson_nll_loss.

    log_input  the outputs are logarithms of rates; False: rates, of which the loss is x - y log(x + 1e-8)
    full       adds Stirling's approximation of log y!, y log y - y + log(2 pi y) / 2, where y > 1
    """

    log_input: bool = True
    full: bool = False

    def __post_init__(self) -> None:
        as_bool("log_input", self.log_input, "PoissonNLL")
        as_bool("full", self.full, "PoissonNLL")

    def values(self, x: Value, y: Value) -> Value:
        if self.log_input:
            found = named(ops.exp(x), "poisson_nll rate") - y * x  # infinite above x = 88
        else:
            found = x - y * ops.log(ops.scale(x, factor=1.0, bias=1e-8))
        if not self.full:
            return found
        some = ops.maximum(y, 1.0)
        log = ops.log(some)
        stirling = some * log - some + ops.scale(log, factor=0.5, bias=0.5 * math.log(2 * math.pi))
        return found + ops.where(ops.greater(y, 1.0), stirling, 0.0)

    def check_labels(self, labels: np.ndarray) -> None:
        check_values(self.name, labels, labels >= 0, "counts of at least 0")


@dataclass(frozen=True, repr=False)
class GaussianNLL(Loss, name="gaussian_nll"):
    """(log v + (m - y)^2 / v) / 2, the negative log-likelihood of targets y at the mean m and the variance v;
    torch.nn.functional.gaussian_nll_loss. Outputs: (m, v), both of the targets' shape.

    eps   least variance that is used, above 0; the slope of a smaller v is that at eps
    full  adds log(2 pi) / 2
    """

    outputs = 2
    eps: float = 1e-6
    full: bool = False

    def __post_init__(self) -> None:
        settle(self, eps=check_number("GaussianNLL", "eps", self.eps, above=0))
        as_bool("full", self.full, "GaussianNLL")

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        mean, variance = parts_of(self.name, outputs, 2)
        mean, y, ignored = as_targets(self.name, mean, labels)
        variance, _, _ = as_targets(self.name, variance, labels)
        v = ops.detach(ops.maximum(variance, self.eps)) + (variance - ops.detach(variance))
        bias = 0.5 * math.log(2 * math.pi) if self.full else 0.0
        each = ops.scale(ops.log(v) + ops.sqr(mean - y) / v, factor=0.5, bias=bias)
        return weighted(self.name, each, weights, ignored)


class Mean(Loss, name="mean"):
    """The outputs are the loss: their mean. The data have no labels."""

    kind = "rows"
    has_labels = False

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        return mean_pair(outputs, labels, weights)


class Sum(Loss, name="sum"):
    """The outputs are the loss: their sum, not divided. The data have no labels."""

    kind = "rows"
    has_labels = False

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        return sum_pair(outputs, labels, weights)
