"""SGD, AdamW, Adam. An optimiser adds one update node to the graph; its numbers are settings, evaluated per step.

Each number may be a function of the step (optimiser steps done, from 0) and the epoch (from 0): a schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from .. import ops
from ..base.errors import SettingError
from ..graph.opspec import Parameter, setting, stored_value
from ..graph.stored import Stored
from ..graph.value import Value

Schedule = float | Callable[[int, int], float]


class Optimizer(ABC):
    """Base: named settings, and per-parameter state that lives between steps."""

    state_names: tuple[str, ...] = ()

    def __init__(self, **settings: Schedule) -> None:
        self.settings = settings
        for name, value in settings.items():
            if not callable(value):
                self.check(name, value)

    def check(self, name: str, value: float) -> float:
        """The value, or SettingError: rates and decays are at least 0, betas and momentum lie in [0, 1)."""
        high = 1.0 if name in ("beta1", "beta2", "momentum") else math.inf
        if not isinstance(value, (int, float, np.number)) or not 0 <= value < high:
            need = "0 <= value < 1" if high == 1 else "a finite number of at least 0"
            raise SettingError(f"{type(self).__name__}: {name}={value!r} is not usable; need {need}")
        return float(value)

    def at(self, step: int, epoch: int) -> dict[str, float]:
        """The settings of one step, as "opt.lr" -> number; `step` counts from 0."""
        found = {
            f"opt.{name}": self.check(name, value(step, epoch) if callable(value) else value)
            for name, value in self.settings.items()
        }
        found["opt.t"] = step + 1
        return found

    @property
    def constant(self) -> bool:
        """No setting is a schedule."""
        return not any(callable(v) for v in self.settings.values())

    def make_state(self, parameters: Sequence[Parameter]) -> dict[str, list[Parameter]]:
        """State name -> one zeroed array per parameter."""
        return {
            name: [stored_value(Stored(f"{p.stored.name}.{name}", np.broadcast_to(0.0, p.shape))) for p in parameters]
            for name in self.state_names
        }

    @abstractmethod
    def update(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value, state: dict[str, list[Parameter]]
    ) -> tuple[Value, ...]:
        """Update nodes for all parameters at once. grads are sums; they are divided by `weight` (a scalar) here."""


class SGD(Optimizer):
    """w <- w(1 - lr*wd) - lr*m with m = momentum*m + g; without momentum m is g. ggml's SGD, PyTorch's momentum."""

    def __init__(self, *, lr: Schedule = 1e-3, momentum: Schedule = 0.0, weight_decay: Schedule = 0.0) -> None:
        super().__init__(lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.state_names = ("m",) if callable(momentum) or momentum else ()

    def update(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value, state: dict[str, list[Parameter]]
    ) -> tuple[Value, ...]:
        m: Sequence[Value | None] = state["m"] if self.state_names else [None] * len(parameters)
        groups = [v for group in zip(parameters, grads, m, strict=True) for v in group]
        scalars = [setting(f"opt.{name}") for name in self.settings]
        return ops.sgd(*scalars, weight, *groups)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected from t = 1."""

    state_names = ("m", "v")

    def __init__(
        self,
        *,
        lr: Schedule = 1e-3,
        beta1: Schedule = 0.9,
        beta2: Schedule = 0.999,
        eps: Schedule = 1e-8,
        weight_decay: Schedule = 0.0,
    ) -> None:
        super().__init__(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)

    def update(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value, state: dict[str, list[Parameter]]
    ) -> tuple[Value, ...]:
        groups = [v for group in zip(parameters, grads, state["m"], state["v"], strict=True) for v in group]
        scalars = [setting(f"opt.{name}") for name in self.settings]
        return ops.adamw(*scalars, setting("opt.t"), weight, *groups)


class Adam(AdamW):
    """Adam (Kingma and Ba, arXiv 1412.6980): AdamW without weight decay."""

    def __init__(
        self, *, lr: Schedule = 1e-3, beta1: Schedule = 0.9, beta2: Schedule = 0.999, eps: Schedule = 1e-8
    ) -> None:
        super().__init__(lr=lr, beta1=beta1, beta2=beta2, eps=eps)
