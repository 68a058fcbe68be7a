"""SGD, AdamW, Adam. An optimiser adds one update node to the graph; its numbers are settings, evaluated per step.

Each number may be a function of the step (optimiser steps done, from 0) and the epoch (from 0): a schedule.

Given parameters, an optimiser keeps its state itself and steps in a loop of yours; without them, the trainer (fit) that
it is given to keeps it, and one optimiser may serve several. Both states are of one class and make the same nodes.
"""

from __future__ import annotations

import difflib
import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool, one_line
from ..base.errors import GraphError, SettingError
from ..graph.leaves import Parameter, constant, setting, stored_value
from ..graph.stored import Stored
from ..graph.value import Value
from .schedules import Memory
from .state import Gradients, OptimizerState, need_gradients

Schedule = float | Callable[[int, int], float]
Parameters = Iterable[Parameter] | None


class Settings(MutableMapping[str, Schedule]):
    """The settings of an optimiser by name, each checked as it is set; SettingError for a name that there is not.

    constants  those that no schedule changes, as a step's program reads them: "opt.lr" -> number
    schedules  the others: "lr" -> function
    """

    def __init__(self, optimizer: Optimizer, values: Mapping[str, Schedule]) -> None:
        self._optimizer, self._values = optimizer, dict(values)
        self.constants: dict[str, float] = {}
        self.schedules: dict[str, Callable[[int, int], float]] = {}
        for name, value in values.items():
            self[name] = value

    def __getitem__(self, name: str) -> Schedule:
        return self._values[name]

    def __setitem__(self, name: str, value: Schedule) -> None:
        who = type(self._optimizer).__name__
        if name not in self._values:
            raise SettingError(f"{who}: {name} is not a setting{_nearest(name, self._values)}")
        if callable(value):
            self.schedules[name] = value
            self.constants.pop(f"opt.{name}", None)
        else:
            self.constants[f"opt.{name}"] = self._optimizer.check(name, value)
            self.schedules.pop(name, None)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        raise SettingError(f"{type(self._optimizer).__name__}: {name} cannot be removed; need a number or a schedule")

    def __ior__(self, other: Mapping[str, Schedule]) -> Settings:
        self.update(other)
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def _nearest(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else f"; need one of {', '.join(sorted(known))}"


class _Made(ABCMeta):
    """Notes when an optimiser is made: from then on it takes no attribute that it does not have."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made._is_made = True
        return made


class Optimizer(metaclass=_Made):
    """Base: named settings, and per-parameter state that lives between steps.

    parameters: what `step` trains, such as model.parameters(); SettingError for anything but trainable parameters.
    A setting is an attribute, too: opt.lr is opt.settings["lr"], to read and to set; SettingError for a value out of
    range, and for an attribute that there is not.
    """

    _is_made = False

    state_names: tuple[str, ...] = ()
    decoupled_weight_decay: bool = True
    couples: bool = False  # weight decay is part of the gradient

    def __init__(self, parameters: Parameters = None, **settings: Schedule) -> None:
        self.settings = Settings(self, settings)
        self.state: OptimizerState | None = None
        if parameters is not None:
            self.state = OptimizerState(self, self._usable(parameters))

    def __getattr__(self, name: str) -> Any:
        found = vars(self).get("settings", {})
        if name not in found:
            raise AttributeError(f"{type(self).__name__} has no {name}{_nearest(name, found)}")
        return found[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("settings", {}):
            self.settings[name] = value
        elif self._is_made and name == "settings" and value is not self.settings:
            raise SettingError(f"{type(self).__name__}: settings cannot be replaced; need settings.update(...)")
        elif self._is_made and name not in vars(self) and not hasattr(type(self), name):
            raise SettingError(f"{type(self).__name__}: {name} is not a setting{_nearest(name, self.settings)}")
        else:
            super().__setattr__(name, value)

    def _usable(self, parameters: Any) -> list[Parameter]:
        who = f"{type(self).__name__}: parameters"
        if isinstance(parameters, (Value, Mapping, str)) or not isinstance(parameters, Iterable):
            seen = f"{parameters!r}" if isinstance(parameters, (int, float)) else f"a {type(parameters).__name__}"
            raise SettingError(f"{who}: got {seen}; need a list of parameters, such as model.parameters(); lr is lr=")
        found: dict[Stored, Parameter] = {}
        for i, p in enumerate(parameters):
            if not isinstance(p, Parameter):
                raise SettingError(f"{who}[{i}]: got {type(p).__name__}; need parameters, such as model.parameters()")
            if not p.trainable:
                raise SettingError(f"{who}[{i}]: {p.name} is not trainable; need parameters that are")
            found.setdefault(p.stored, p)
        if not found:
            raise SettingError(f"{who}: there are none; need at least one")
        return list(found.values())

    def check(self, name: str, value: float) -> float:
        """The value, or SettingError: rates and decays are at least 0, betas and momentum lie in [0, 1)."""
        high = 1.0 if name in ("beta1", "beta2", "momentum") else math.inf
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value < high:
            need = "0 <= value < 1" if high == 1 else "a finite number of at least 0"
            raise SettingError(f"{type(self).__name__}: {name}={one_line(value)} is not usable; need {need}")
        if name == "weight_decay" and value and not self.decoupled_weight_decay and not self.couples:
            who = type(self).__name__
            raise SettingError(
                f"{who}: weight_decay={value!r} for one that was made without; need {who}(weight_decay=...)"
            )
        return float(value)

    def at(self, step: int, epoch: int, memories: Mapping[str, Memory] | None = None) -> dict[str, float]:
        """The settings of one step, as "opt.lr" -> number; `step` counts from 0. memories: what plateaus have seen."""
        found = {**self.settings.constants, "opt.t": step + 1}
        for name in self.settings.schedules:
            found[f"opt.{name}"] = self.one(name, step, epoch, memories)
        return found

    def one(self, name: str, step: int, epoch: int, memories: Mapping[str, Memory] | None = None) -> float:
        """One setting of one step; see `at`."""
        schedule = self.settings.schedules.get(name)
        if schedule is None:
            return self.settings.constants[f"opt.{name}"]
        seen = memories.get(name) if memories else None
        value = schedule(step, epoch) if seen is None else schedule.recall(seen, step, epoch)  # type: ignore[attr-defined]
        return self.check(name, value)

    def make_state(self, parameters: Sequence[Parameter]) -> dict[str, list[Parameter]]:
        """State name -> one zeroed array per parameter."""
        return {
            name: [stored_value(Stored(f"{p.stored.name}.{name}", np.broadcast_to(0.0, p.shape))) for p in parameters]
            for name in self.state_names
        }

    def _couple(self, weight_decay: Schedule, decoupled: bool) -> None:
        decoupled = as_bool(f"{type(self).__name__}: decoupled_weight_decay", decoupled)
        self.decoupled_weight_decay = decoupled
        self.couples = not decoupled and (callable(weight_decay) or bool(weight_decay))

    def _decayed(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value
    ) -> tuple[list[Value], Sequence[Value], Value]:
        """(the settings, the gradients, what they are to be divided by) of the update op; coupled weight decay is added
        to the gradients, which are divided for that. A batch of weight 0 has gradient 0."""
        scalars = {name: setting(f"opt.{name}") for name in self.settings}
        if self.couples:
            decay, none = scalars["weight_decay"], weight == 0.0
            share = ops.where(none, 0.0, 1.0 / ops.where(none, 1.0, weight))
            grads = [g * share + p * decay for p, g in zip(parameters, grads, strict=True)]
            scalars["weight_decay"], weight = constant(0.0), constant(1.0)
        return list(scalars.values()), grads, weight

    @abstractmethod
    def update(
        self, parameters: Sequence[Value], grads: Sequence[Value], weight: Value, state: dict[str, list[Parameter]]
    ) -> tuple[Value, ...]:
        """Update nodes for all parameters at once. grads are sums; they are divided by `weight` (a scalar) here."""

    # ---- in a loop of one's own ----------------------------------------------------------------------------

    def step(self, grads: Gradients | None = None) -> None:
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

    def accumulate(self, grads: Gradients, weight: Any = None) -> None:
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
        self._couple(weight_decay, decoupled_weight_decay)
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
        scalars, grads, weight = self._decayed(parameters, grads, weight)
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
        scalars, grads, weight = self._decayed(parameters, grads, weight)
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
        self._couple(weight_decay, decoupled_weight_decay)
        super().__init__(parameters, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
