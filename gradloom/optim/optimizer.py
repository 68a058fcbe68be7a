"""SGD, AdamW, Adam. An optimiser adds one update node to the graph; its numbers are settings, evaluated per step.

Each number may be a function of the step (optimiser steps done, from 0) and the epoch (from 0): a schedule.

Given parameters, an optimiser keeps its state itself and steps in a loop of yours; without them, the trainer (fit) that
it is given to keeps it, and one optimiser may serve several. Both states are of one class and make the same nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import GraphError, SettingError
from ..graph.leaves import Parameter, setting
from ..graph.stored import Stored
from ..graph.value import Value
from .rule import Schedule, UpdateRule
from .state import GradientSource, OptimizerState, need_gradients

Parameters = Iterable[Parameter] | None


class Optimizer(UpdateRule):
    """An update rule, and the state of the parameters that it was given.

    parameters: what `step` trains, such as model.parameters(); SettingError for anything but trainable parameters.
    A setting is an attribute, too: opt.lr is opt.settings["lr"], to read and to set; SettingError for a value out of
    range, and for an attribute that there is not.
    """

    def __init__(self, parameters: Parameters = None, **settings: Schedule) -> None:
        super().__init__(**settings)
        self.state: OptimizerState | None = None
        if parameters is not None:
            self.state = OptimizerState(self, self._usable(parameters))

    def _usable(self, parameters: Any) -> list[Parameter]:
        who = f"{type(self).__name__}: parameters"
        if isinstance(parameters, (Value, Mapping, str)) or not isinstance(parameters, Iterable):
            seen = f"{parameters!r}" if isinstance(parameters, (int, float)) else f"a {type(parameters).__name__}"
            raise SettingError(f"{who}: got {seen}; need a list of parameters, such as model.parameters(); lr is lr=")
        usable: dict[Stored, Parameter] = {}
        for i, p in enumerate(parameters):
            if not isinstance(p, Parameter):
                raise SettingError(f"{who}[{i}]: got {type(p).__name__}; need parameters, such as model.parameters()")
            if not p.trainable:
                raise SettingError(f"{who}[{i}]: {p.name} is not trainable; need parameters that are")
            usable.setdefault(p.stored, p)
        if not usable:
            raise SettingError(f"{who}: there are none; need at least one")
        return list(usable.values())

    # ---- in a loop of one's own ----------------------------------------------------------------------------

    def step(self, grads: GradientSource | None = None) -> None:
        """One step with these gradients, or with what `accumulate` has added up since the last step.

        Parameters without a gradient stay as they are, moments included. NonFiniteError leaves everything as it was;
        GradientError when there is nothing to step with.
        """
        state = self._kept("step")
        if grads is None:
            state.window.runner("step").apply_window(state)
        else:
            need_gradients("step", grads)
            grads.apply(state)

    def accumulate(self, grads: GradientSource, weight: Any = None) -> None:
        """Add gradients to the sums that `step()` applies, in place.

        Without weight, what is applied is the plain sum, as PyTorch adds gradients up. With it (a number or a scalar:
        the rows that a summed loss covers, or 1 for means of equal batches) the sum of gradients is divided by the sum
        of weights, once. SettingError for a number that is not finite or is below 0; GradientError when some of a
        window's gradients come with a weight and some without.
        """
        state = self._kept("accumulate")
        need_gradients("accumulate", grads)
        grads.add_to(state, weight)

    def zero_grad(self) -> None:
        """Drop what was accumulated; the gradients of a tape are new objects each time and need none of it."""
        self._kept("zero_grad").window.clear()

    def clip(self, max_norm: float) -> float:
        """Clip what was accumulated: see clip_grad_norm."""
        state = self._kept("clip_grad_norm")
        return state.window.runner("clip_grad_norm").clip_window(state, max_norm)

    def observe(self, loss: float) -> None:
        """An epoch has ended with this loss: for Plateau schedules."""
        self._kept("observe").observe(loss)

    @property
    def epoch(self) -> int:
        """Passes over the data, for schedules by epoch: add 1 after each in a loop of your own."""
        return self._kept("epoch").epoch

    @epoch.setter
    def epoch(self, passes: int) -> None:
        self._kept("epoch").epoch = passes

    @property
    def steps(self) -> int:
        """Steps done."""
        return self._kept("steps").steps

    def state_dict(self) -> dict[str, np.ndarray]:
        """Moments, counts and what schedules remember; see OptimizerState.state_dict."""
        return self._kept("state_dict").state_dict()

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on where state_dict was taken; see OptimizerState.load_state_dict."""
        self._kept("load_state_dict").load_state_dict(arrays)

    def _kept(self, what: str) -> OptimizerState:
        if self.state is None:
            name = type(self).__name__
            raise GraphError(
                f"{name}.{what}: it was made without parameters; need {name}(model.parameters(), lr=...) for a loop of "
                "your own (a trainer keeps the state of one without: trainer.optimizer_state)"
            )
        return self.state

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        count = "" if self.state is None else f"{len(self.state.parameters)} parameters, "
        return f"{type(self).__name__}({count}{shown})"


class SGD(Optimizer):
    """w <- w(1 - lr*wd) - lr*m with m = momentum*m + g; without momentum m is g. ggml's SGD, PyTorch's momentum.

    weight_decay is decoupled from the gradient, as ggml's is. PyTorch's torch.optim.SGD couples it: with
    decoupled_weight_decay=False g is g + wd*w and nothing else decays; without momentum both are the same step.
    """

    def __init__(
        self,
        parameters: Parameters = None,
        *,
        lr: Schedule = 1e-3,
        momentum: Schedule = 0.0,
        weight_decay: Schedule = 0.0,
        decoupled_weight_decay: bool = True,
    ) -> None:
        self.state_names = ("m",) if callable(momentum) or momentum else ()
        self.set_decay(weight_decay, decoupled_weight_decay)
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def check(self, name: str, value: float) -> float:
        """As ever; momentum needs its array from the start."""
        number = super().check(name, value)
        if name == "momentum" and number and not self.state_names:
            raise SettingError(f"SGD: momentum={value!r} for one that was made without; need SGD(momentum=...)")
        return number

    def update(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value, state: dict[str, list[Parameter]]
    ) -> tuple[Value, ...]:
        m: Sequence[Value | None] = state["m"] if self.state_names else [None] * len(parameters)
        scalars, grads, weight = self.decayed(parameters, grads, weight)
        groups = [v for group in zip(parameters, grads, m, strict=True) for v in group]
        return ops.sgd(*scalars, weight, *groups)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected from t = 1.

    torch.optim.AdamW, but for the default of weight_decay, which is 0.01 there and 0 here.
    """

    state_names = ("m", "v")

    def __init__(
        self,
        parameters: Parameters = None,
        *,
        lr: Schedule = 1e-3,
        beta1: Schedule = 0.9,
        beta2: Schedule = 0.999,
        eps: Schedule = 1e-8,
        weight_decay: Schedule = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)

    def update(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value, state: dict[str, list[Parameter]]
    ) -> tuple[Value, ...]:
        scalars, grads, weight = self.decayed(parameters, grads, weight)
        groups = [v for group in zip(parameters, grads, state["m"], state["v"], strict=True) for v in group]
        return ops.adamw(*scalars, setting("opt.t"), weight, *groups)


class Adam(AdamW):
    """Adam (Kingma and Ba, arXiv 1412.6980). weight_decay is coupled, as torch.optim.Adam's is: g is g + wd*w.

    With decoupled_weight_decay=True it is AdamW.
    """

    def __init__(
        self,
        parameters: Parameters = None,
        *,
        lr: Schedule = 1e-3,
        beta1: Schedule = 0.9,
        beta2: Schedule = 0.999,
        eps: Schedule = 1e-8,
        weight_decay: Schedule = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        self.set_decay(weight_decay, decoupled_weight_decay)
        super().__init__(parameters, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
