"""Optimizer; SGD, AdamW, Adam, Lion, RMSprop. An optimiser adds one update node to the graph; its numbers are settings,
evaluated for each step.

Each number may be a function of the step (optimiser steps done, from 0) and the epoch (from 0): a schedule.

Given parameters, an optimiser keeps its state itself and steps in a loop of yours; without them, the trainer (fit) that
it is given to keeps it, and one optimiser may serve several. Both states are of one class and make the same nodes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import ops
from ..base.arguments import as_bool, what_is
from ..base.errors import GradientError, GraphError, SettingError
from ..base.habits import AttributeHints, unexpected_keyword
from ..graph.declaration import Spec
from ..graph.leaves import Parameter
from ..graph.stored import Stored
from ..graph.value import Value
from .each import Each, check_each, each_of, updated_each, wants
from .groups import Groups, GroupSettings
from .moments import FULL_BITS, checked_bits, layout_8bit, names_8bit, updated_by_form
from .rule import Schedule, UpdateInputs, UpdateRule, is_used
from .state import OptimizerState
from .state_checks import need_gradients
from .window import GradientSource

Parameters = Iterable[Parameter] | Mapping[str, Parameter] | None


class Optimizer(UpdateRule, AttributeHints):
    """An update rule, and the state of the parameters that it was given.

    parameters: what `step` trains, such as model.parameters() or model.named_parameters(); SettingError for anything
    but trainable parameters.
    groups: settings for the parameters whose names match a pattern (* ? [abc], as file names), the first group that
    matches; any argument of the optimiser may be there, or "optimizer", another one without parameters:

        AdamW(groups=[{"match": "*.bias", "weight_decay": 0.0}, {"match": ["head.*", "neck.*"], "lr": schedule}])

    Names are those of the model, or the keys of named_parameters(). In place of a pattern, "norms_and_biases" means
    for all parameters of at most one axis, "not_2d" for all but matrices; of a stack (gl.nn.stacked, the layers of an
    nn.Ensemble) the shape of each of its arrays decides. SettingError for a pattern or word that matches nothing. A
    group's settings are called after it: opt.settings["head.*,neck.*.lr"], or opt.groups[1].lr.
    no_decay: "norms_and_biases", the parameters of at most one axis (biases, gains and biases of norms, but no
    embedding), which no weight_decay shrinks but that of a group that states it.
    A setting is also an attribute: opt.lr is opt.settings["lr"], to read and to set; SettingError for a value out of
    range, and for an attribute that there is not.

    A class declares its own arguments as `name: type = default`. A float is a setting: a number or a schedule, which
    may change from step to step and is read by its update nodes. Other types stay as they were given, as attributes.

    A class has its rule in update(self, p, g, ...), which returns the new values by name:

        class Lion(gl.optim.Optimizer):
            lr: float = 1e-4
            beta1: float = 0.9
            beta2: float = 0.99
            state_names = ("m",)  # arrays of each parameter's shape, zero at first

            def update(self, p, g, m, lr, beta1, beta2):
                return {"p": p - lr * ops.sgn(beta1 * m + (1 - beta1) * g), "m": beta2 * m + (1 - beta2) * g}

    p, g: a parameter and its mean gradient, after clipping, f32 values of the parameter's shape; the state and settings
    (f32[]) by their names; step: the number of the parameter's step, from 1. shapes_of(shape) may be overridden for
    state of other shapes. Wrong names and shapes are a SettingError or ShapeError. See docs/optimizers.md.
    """

    each: ClassVar[Each | None] = None  # the update of one parameter, where the class has such a one

    if TYPE_CHECKING:  # what type checkers know of the arguments of all optimisers
        parameters: Parameters = field(default=None, kw_only=False)
        groups: Sequence[Any] = ()  # given: settings; afterwards: the rules of the groups, in order
        no_decay: str = ""

    def __init_subclass__(cls) -> None:
        """Collect the arguments that a class declares."""
        super().__init_subclass__()
        written = vars(cls).get("update")
        if inspect.isfunction(written):
            cls.each = staticmethod(written) if each_of(written) else None
            if cls.each is not None:
                cls.update = _update_each  # type: ignore[assignment]
                cls.counts_steps = cls.counts_steps or "step" in wants(written)
        own = {name: vars(cls)[name] for name in inspect.get_annotations(cls) if name in vars(cls)}
        cls.declared = {**cls.declared, **{k: v for k, v in own.items() if isinstance(v, (float, int, str))}}
        for name in [name for name, default in own.items() if type(default) is float]:
            delattr(cls, name)  # an optimiser's settings have the value
        alone = {**cls.declared, "groups": (), "no_decay": ""}
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter("parameters", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)]
            + [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=v) for k, v in alone.items()]
        )

    def __init__(
        self,
        parameters: Parameters = None,
        *more: Any,
        groups: Sequence[GroupSettings] = (),
        no_decay: str = "",
        **given: Any,
    ) -> None:
        who = type(self).__name__
        if more:
            raise TypeError(f"{who}() takes the parameters and keywords; got {more[0]!r:.60}; use lr=, weight_decay=")
        for name in given:
            if name not in self.declared:
                raise unexpected_keyword(who, name, ["parameters", *self.declared, "groups", "no_decay"])
        values = {**self.declared, **given}
        for name, default in self.declared.items():
            if type(default) is not float:
                setattr(self, name, as_bool(name, values[name], who) if type(default) is bool else values[name])
        if not self.decoupled_weight_decay:
            self.couples = is_used(values["weight_decay"])
            self.without = () if self.couples else ("weight_decay",)
        self.prepare(values)
        for name, default in self.declared.items():
            kind, seen = type(default), getattr(self, name) if type(default) in (int, str) else None
            if (kind is int and (isinstance(seen, bool) or not isinstance(seen, (int, np.integer)))) or (
                kind is str and not isinstance(seen, str)
            ):
                need = "a whole number" if kind is int else "a text"
                raise SettingError(setting=name, seen=seen, need=need, place=who)
        super().__init__({name: values[name] for name, default in self.declared.items() if type(default) is float})
        if self.each is not None:
            check_each(self, self.each)
        self.arguments, self.no_decay = given, no_decay
        self.state: OptimizerState | None = None
        decayed = [one for one in groups if isinstance(one, Mapping) and "weight_decay" in one]
        if no_decay and "weight_decay" in self.without and not decayed:
            raise SettingError("{no_decay} requires {weight_decay}", no_decay=no_decay, weight_decay=..., place=who)
        if groups or no_decay:
            self.placing = Groups(self, given, groups, no_decay)
        self.groups = tuple(group.rule for group in self.placing.stated) if self.placing else ()
        if parameters is not None:
            usable = self._usable(parameters)
            self.state = OptimizerState(self, list(usable))
            self.state.place([(name, p) for p, name in usable.items()])

    def prepare(self, given: Mapping[str, Any]) -> None:
        """Properties that the arguments decide once: the arrays that the rule keeps, and whether they are updated
        together. given: all of them by name; those that are no settings are attributes already."""

    @property
    def flags(self) -> dict[str, Any]:
        """The arguments that are no settings: nesterov, centered, ... state_bits of 32 is none of them: states that are
        older than this argument are in f32."""
        own = {k: self.arguments.get(k, v) for k, v in self.declared.items() if type(v) is not float}
        if own.get("state_bits") == FULL_BITS:
            del own["state_bits"]
        return own | {"no_decay": self.no_decay}

    def _usable(self, parameters: Any) -> dict[Parameter, str]:
        """Parameters and their names."""
        who = type(self).__name__
        if isinstance(parameters, (Value, str)) or not isinstance(parameters, Iterable):
            seen = f"{parameters!r}" if isinstance(parameters, (int, float)) else what_is(parameters)
            text = f"{{parameters}} is {seen}; must be a list of parameters, such as model.parameters(); lr is lr="
            raise SettingError(text, setting="parameters", place=who)
        usable: dict[Stored, Parameter] = {}
        names: dict[Stored, str] = {}
        for i, p in parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters):
            if not isinstance(p, Parameter):
                text = f"{{parameters}}[{i!r}] is {what_is(p)}; must be parameters, such as model.parameters()"
                raise SettingError(text, setting="parameters", place=who)
            if not p.trainable:
                text = f"{{parameters}}[{i!r}]: {p.name} is not trainable; use trainable parameters"
                raise SettingError(text, setting="parameters", place=who)
            usable.setdefault(p.stored, p)
            names.setdefault(p.stored, i if isinstance(i, str) else p.stored.name)
        if not usable:
            raise SettingError("{parameters} is empty; must have at least one", setting="parameters", place=who)
        if self.placing and len(set(names.values())) < len(names):
            text = "{parameters}: several have the same name, which groups match; use model.named_parameters()"
            raise SettingError(text, setting="parameters", place=who)
        return {p: names[stored] for stored, p in usable.items()}

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

        Without weight, the plain sum is applied, as in PyTorch. With it (a number or a scalar:
        the rows that a summed loss covers, or 1 for means of equal batches) the sum of gradients is divided by the sum
        of weights, once. SettingError for a number that is not finite or is below 0; GradientError when some of a
        window's gradients come with a weight and some without.
        """
        state = self._kept("accumulate")
        need_gradients("accumulate", grads)
        grads.add_to(state, weight)

    def zero_grad(self) -> None:
        """Drop accumulated gradients; the gradients of a tape are new objects each time and need none of it."""
        self._kept("zero_grad").window.clear()

    def clip(self, max_norm: float) -> float:
        """Clip accumulated gradients: see clip_grad_norm."""
        state = self._kept("clip_grad_norm")
        return state.window.runner("clip_grad_norm").clip_window(state, max_norm)

    def clip_value(self, max_value: float) -> None:
        """Clip accumulated gradients: see clip_grad_value."""
        state = self._kept("clip_grad_value")
        state.window.runner("clip_grad_value")
        state.window.max_value = max_value

    def observe(self, loss: float) -> None:
        """An epoch has ended with this loss: for Plateau schedules."""
        self._kept("observe").observe(loss)

    def show_average(self, shown: bool = True) -> None:
        """Let the model hold the moving average of its weights (gl.fit's ema=), or with False those that are trained.

        After a fit it holds the average. GradientError where there is none.
        """
        average = self._kept("show_average").average
        if average is None:
            raise GradientError("show_average: there is no average; need gl.fit(..., optimizer=this, ema=0.999)")
        average.show(shown)

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
        """Restore the result of state_dict; see OptimizerState.load_state_dict."""
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
        flags = {name: value for name, value in self.flags.items() if value != self.declared.get(name, value)}
        shown = ", ".join(f"{name}={value!r}" for name, value in {**self.settings, **flags}.items())
        count = "" if self.state is None else f"{len(self.state.parameters)} parameters, "
        return f"{type(self).__name__}({count}{shown})"


def _update_each(rule: Optimizer, given: UpdateInputs) -> Sequence[Value]:
    """The update of a class whose own one is written for one parameter."""
    assert rule.each is not None
    return updated_each(rule, rule.each, given)


class SGD(Optimizer):
    """w <- w(1 - lr*wd) - lr*m with m = momentum*m + g; without momentum m is g. ggml's SGD, PyTorch's momentum.

    weight_decay is decoupled from the gradient, as ggml's is. PyTorch's torch.optim.SGD couples it: with
    decoupled_weight_decay=False g is g + wd*w and nothing else decays; without momentum both are the same step.
    nesterov: the step is g + momentum*m with the new m, as torch.optim.SGD's; SettingError without a momentum.
    """

    lr: Schedule = 1e-3
    momentum: Schedule = 0.0
    weight_decay: Schedule = 0.0
    decoupled_weight_decay: bool = True
    nesterov: bool = False

    def prepare(self, given: Mapping[str, Any]) -> None:
        if is_used(given["momentum"]):
            self.state_names = ("m",)
        else:
            self.without += ("momentum",)
        if self.nesterov and not self.state_names:
            text = "{nesterov} requires {momentum}, such as SGD(momentum=0.9, nesterov=True)"
            raise SettingError(text, nesterov=True, momentum=..., place="SGD")

    def update(self, given: UpdateInputs) -> Sequence[Value]:
        scalars, given = self.decayed(given)
        return (ops.sgd_nesterov if self.nesterov else ops.sgd)(*scalars, given.weight, *given.interleaved("m"))


class MomentOptimizer(Optimizer):
    """Base of optimisers whose moments may be kept in 8 bits.

    state_bits: 32, or 8: moments of parameters of 4096 elements and more (of a stack: of each array) are 8-bit codes
    with an f32 scale for each block of 256 elements, after Dettmers et al., 8-bit Optimizers via Block-wise
    Quantization, arXiv 2110.02861. Smaller ones (norms, biases) keep f32. SettingError for another number.
    """

    moments: ClassVar[tuple[str, ...]] = ()  # in f32 under these names, in 8 bits under those of names_8bit
    if TYPE_CHECKING:
        state_bits: int = FULL_BITS

    def prepare(self, given: Mapping[str, Any]) -> None:
        self.state_bits = checked_bits(self.state_bits, type(self).__name__)
        if self.state_bits != FULL_BITS:
            self.state_names = (*self.moments, *names_8bit(self.moments))
            self.nonnegative = (*self.nonnegative, *(f"{name}_scale" for name in self.moments))

    def layout_of(self, shape: tuple[int, ...], each: tuple[int, ...]) -> Mapping[str, Spec]:
        if self.state_bits == FULL_BITS:
            return super().layout_of(shape, each)
        return layout_8bit(self.moments, shape, each)

    def in_form(self, given: UpdateInputs, plain: Any, coded: Any, *scalars: Value) -> Sequence[Value]:
        """The nodes of the op `plain` for f32 moments, and of `coded` for each parameter with 8 bits."""
        if self.state_bits == FULL_BITS:
            return plain(*scalars, *given.interleaved(*self.moments))
        return updated_by_form(given, self.moments, partial(plain, *scalars), partial(coded, *scalars))


class AdamW(MomentOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected from t = 1, which
    counts the steps of each parameter, as torch.optim does.

    torch.optim.AdamW, but for the default of weight_decay, which is 0.01 there and 0 here.
    """

    lr: Schedule = 1e-3
    beta1: Schedule = 0.9
    beta2: Schedule = 0.999
    eps: Schedule = 1e-8
    weight_decay: Schedule = 0.0
    state_bits: int = FULL_BITS

    moments = state_names = ("m", "v")
    nonnegative = ("v",)
    counts_steps = True

    def update(self, given: UpdateInputs) -> Sequence[Value]:
        scalars, given = self.decayed(given)
        return self.in_form(given, ops.adamw, ops.adamw_8bit, *scalars, given.step, given.weight)


class Adam(AdamW):
    """Adam (Kingma and Ba, arXiv 1412.6980). weight_decay is coupled, as torch.optim.Adam's is: g is g + wd*w.

    With decoupled_weight_decay=True it is AdamW.
    """

    decoupled_weight_decay: bool = False


class Lion(MomentOptimizer):
    """w <- w(1 - lr*wd) - lr*sign(beta1*m + (1 - beta1)*g), then m <- beta2*m + (1 - beta2)*g.

    Chen et al., Symbolic discovery of optimization algorithms, arXiv 2302.06675. Every element moves by lr in a step,
    so the rate is to be 3 to 10 times smaller than AdamW's, and weight_decay larger by the same factor.
    """

    lr: Schedule = 1e-4
    beta1: Schedule = 0.9
    beta2: Schedule = 0.99
    weight_decay: Schedule = 0.0
    state_bits: int = FULL_BITS

    moments = state_names = ("m",)

    def update(self, given: UpdateInputs) -> Sequence[Value]:
        scalars, given = self.decayed(given)
        return self.in_form(given, ops.lion, ops.lion_8bit, *scalars, given.weight)


class RMSprop(Optimizer):
    """w <- w - lr*g / (sqrt(v) + eps) with v = alpha*v + (1 - alpha)*g^2: torch.optim.RMSprop (Hinton's lecture 6e).

    momentum: the quotient is added up in m = momentum*m + quotient, and m is the step. centered: v less the square of
    the mean gradient, a = alpha*a + (1 - alpha)*g, which makes it the variance (Graves, arXiv 1308.0850). weight_decay
    is coupled, as PyTorch's is: g is g + wd*w; with decoupled_weight_decay=True w <- w(1 - lr*wd) instead.
    """

    lr: Schedule = 1e-2
    alpha: Schedule = 0.99
    momentum: Schedule = 0.0
    eps: Schedule = 1e-8
    weight_decay: Schedule = 0.0
    centered: bool = False
    decoupled_weight_decay: bool = False

    nonnegative = ("v",)

    def prepare(self, given: Mapping[str, Any]) -> None:
        has_momentum = is_used(given["momentum"])
        self.state_names = ("v", *["a"] * self.centered, *["m"] * has_momentum)
        if not has_momentum:
            self.without += ("momentum",)

    def update(self, given: UpdateInputs) -> Sequence[Value]:
        scalars, given = self.decayed(given)
        return ops.rmsprop(*scalars, given.weight, *given.interleaved("v", "a", "m"))
