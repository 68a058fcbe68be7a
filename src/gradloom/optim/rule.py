"""UpdateRule: the update node of an optimiser, and the settings that the node reads.

Each setting is a number or a schedule: a function of the step (optimiser steps done, from 0) and the epoch (from 0).
"""

from __future__ import annotations

import inspect
import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import ops
from ..base.arguments import f32_hint, in_f32, nearest, what_is
from ..base.errors import SettingError, ShapeError
from ..base.habits import missing_attribute
from ..graph.declaration import Spec
from ..graph.leaves import Parameter, constant, setting, stored_value
from ..graph.stored import Stored, zeros
from ..graph.value import Value
from .schedules import Memory
from .step_counts import STEP

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Declares to type checkers that class attributes are arguments, as in a dataclass."""
        return lambda cls: cls


Schedule = float | Callable[[int, int], float]


def is_used(setting: Schedule) -> bool:
    """A setting that is not 0 for good."""
    return callable(setting) or bool(setting)


class RuleSettings(MutableMapping[str, Schedule]):
    """The settings of an optimiser by name, each checked as it is set; SettingError for a name that there is not.

    constants  those that no schedule changes, as a step's program reads them: "opt.lr" -> number
    schedules  the others: "lr" -> function

    Those of a parameter group are called after its patterns: "head.*.lr".
    """

    def __init__(self, rule: UpdateRule, values: Mapping[str, Schedule]) -> None:
        self._rule, self._values = rule, dict(values)
        self._rules = {name: (rule, name) for name in values}  # its rule, and its name there
        self.constants: dict[str, float] = {}
        self.schedules: dict[str, Callable[[int, int], float]] = {}
        for name, value in values.items():
            self[name] = value

    def __getitem__(self, name: str) -> Schedule:
        return self._values[name]

    def __setitem__(self, name: str, value: Schedule) -> None:
        who = type(self._rule).__name__
        if name not in self._values:
            raise SettingError(f"{{{name}}} is not a setting{_hint(name, self._values)}", setting=name, place=who)
        if callable(value):
            _check_schedule(f"{who}: {name}", value)
            self.schedules[name] = value
            self.constants.pop(f"opt.{name}", None)
        else:
            self.constants[f"opt.{name}"] = self.checked(name, value)
            self.schedules.pop(name, None)
        self._values[name] = value

    def checked(self, name: str, value: float) -> float:
        """The value of a setting, or SettingError: see UpdateRule.check."""
        rule, own_name = self._rules[name]
        return rule.check(own_name, value)

    def add(self, name: str, value: Schedule, rule: UpdateRule, own_name: str) -> None:
        """A setting of a group, whose rule calls it own_name."""
        self._rules[name], self._values[name] = (rule, own_name), value
        self[name] = value

    def __delitem__(self, name: str) -> None:
        text = f"{{{name}}} cannot be removed; set a number or a schedule"
        raise SettingError(text, setting=name, place=type(self._rule).__name__)

    def __ior__(self, other: Mapping[str, Schedule]) -> RuleSettings:
        self.update(other)
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def _check_schedule(what: str, schedule: Callable[..., float]) -> None:
    """SettingError for a function that does not take (step, epoch)."""
    try:
        inspect.signature(schedule).bind(0, 0)
    except TypeError as error:
        raise SettingError(f"{what}: the function is called with (step, epoch): {error}") from None
    except ValueError:  # not written in Python
        pass


def _hint(name: Any, known: Iterable[str]) -> str:
    return nearest(name, known, f"must be one of {', '.join(sorted(known))}")


@dataclass(frozen=True)
class UpdateInputs:
    """The inputs of an update rule in an optimiser step.

    parameters  those that it updates
    grads       the sums of their gradients, of their shapes
    weight      f32[], the divisor of the sums
    state       name -> the arrays that the rule keeps, of each parameter that has one
    counter     the setting that holds the number of these parameters' step, from 1
    """

    parameters: Sequence[Parameter]
    grads: Sequence[Value]
    weight: Value
    state: Mapping[str, Sequence[Parameter]]
    counter: str = STEP

    @property
    def step(self) -> Value:
        """The number of these parameters' step, from 1, as a node."""
        return setting(self.counter)

    def interleaved(self, *names: str) -> list[Value | None]:
        """w, g and the arrays of these names (None for one that is not kept), parameter after parameter."""
        none = [None] * len(self.parameters)
        columns = [self.state.get(name, none) for name in names]
        return [value for each in zip(self.parameters, self.grads, *columns, strict=True) for value in each]

    def mean_gradients(self) -> Iterator[Value]:
        """grads / weight, for rules that are no update op; a batch of weight 0 has gradient 0. One at a time: a step's
        program keeps the order in which its nodes are made, and so need not hold all of them."""
        none = self.weight == 0.0
        share = ops.where(none, 0.0, 1.0 / ops.where(none, 1.0, self.weight))
        for g in self.grads:
            yield g * share


class _Made(ABCMeta):
    """Notes when a rule is made: from then on it takes no attribute that it does not have."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__abstractmethods__:
            text = "it has no update; need def update(self, p, g, ...), which returns the new values by name"
            raise SettingError(f"{cls.__name__}: {text} (docs/optimizers.md)")
        made = super().__call__(*args, **kwargs)
        made._is_made = True
        return made


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class UpdateRule(metaclass=_Made):
    """Base of the optimisers: named settings, and which arrays the rule keeps of each parameter.

    declared   the arguments of the class: name -> default
    arguments  those that it was given, but for parameters, groups and no_decay
    names      of its settings
    without    those that are 0 and stay 0, because the state they need was not created
    keys       of a group's rule: name of a setting -> its name in the optimiser's table, "" for one that is always 0

    A setting is also an attribute: opt.lr is opt.settings["lr"], to read and to set; SettingError for a value out of
    range, and for an attribute that there is not.
    """

    declared: ClassVar[Mapping[str, Any]] = {}
    arguments: Mapping[str, Any]
    _is_made = False
    placing: Any = None  # which group a parameter is in: Groups, where there are some
    keys: Mapping[str, str] = {}

    state_names: tuple[str, ...] = ()
    nonnegative: tuple[str, ...] = ()  # states that are averages of squares
    decoupled_weight_decay = True
    counts_steps = False  # it reads the number of a parameter's step
    couples = False  # weight decay is part of the gradient
    without: tuple[str, ...] = ()

    def __init__(self, settings: Mapping[str, Schedule]) -> None:
        self.names = tuple(settings)
        self.settings = RuleSettings(self, settings)

    def take_part(self, settings: RuleSettings, keys: Mapping[str, str], own: Mapping[str, Schedule]) -> None:
        """Be the rule of a group: its own settings join the table of the optimiser, under these keys."""
        vars(self).update(settings=settings, keys=keys)
        for name, value in own.items():
            settings.add(keys[name], value, self, name)

    def __getattr__(self, name: str) -> Any:
        settings = vars(self).get("settings", {})
        if name not in vars(self).get("names", ()):
            raise missing_attribute(self, name, settings)
        key = self.keys.get(name, name)
        return settings[key] if key else 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("names", ()):
            if self.keys and not self.keys.get(name):
                own = ", ".join(k for k, key in self.keys.items() if key)
                text = f"{{{name}}} is not a setting of this group, which has {own}"
                raise SettingError(text, setting=name, place=type(self).__name__)
            self.settings[self.keys.get(name, name)] = value
        elif self._is_made and name in ("settings", "groups") and value is not vars(self)[name]:
            need = "settings.update(...)" if name == "settings" else "another optimiser, or groups[0].lr = ..."
            raise SettingError(f"{{{name}}} cannot be replaced; use {need}", setting=name, place=type(self).__name__)
        elif self._is_made and name not in vars(self) and not hasattr(type(self), name):
            text = f"{{{name}}} is not a setting{_hint(name, self.settings)}"
            raise SettingError(text, setting=name, place=type(self).__name__)
        else:
            super().__setattr__(name, value)

    def check(self, name: str, value: float) -> float:
        """The value, or SettingError: rates and decays are at least 0, betas, alpha and momentum in [0, 1)."""
        high = 1.0 if name in ("beta1", "beta2", "alpha", "momentum") else math.inf
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_number or not (value >= 0 and in_f32(value) < high):
            need = "at least 0 and below 1" if high == 1 else "a finite number of at least 0"
            need += f32_hint(value)
            raise SettingError(setting=name, seen=value, need=need, place=type(self).__name__)
        if value and name in self.without:
            who = type(self).__name__
            text = f"{{{name}}} requires an optimizer that was created with it: {who}({name}=...)"
            raise SettingError(text, setting=name, seen=value, place=who)
        return float(value)

    def at(self, step: int, epoch: int, memories: Mapping[str, Memory] | None = None) -> dict[str, float]:
        """The settings of one step, as "opt.lr" -> number; `step` counts from 0. memories: what plateaus have seen."""
        numbers = {**self.settings.constants, STEP: step + 1}
        for name in self.settings.schedules:
            numbers[f"opt.{name}"] = self.scheduled(name, step, epoch, memories)
        return numbers

    def scheduled(self, name: str, step: int, epoch: int, memories: Mapping[str, Memory] | None = None) -> float:
        """A setting with a schedule at one step; see `at`."""
        schedule = self.settings.schedules[name]
        seen = memories.get(name) if memories else None
        value = schedule(step, epoch) if seen is None else schedule.recall(seen, step, epoch)  # type: ignore[attr-defined]
        return self.settings.checked(name, value)

    def shapes_of(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The state of the rule for a parameter of this shape: name -> shape."""
        return dict.fromkeys(self.state_names, shape)

    def layout_of(self, shape: tuple[int, ...], each: tuple[int, ...]) -> Mapping[str, Spec]:
        """The same with dtypes: name -> shape and dtype. each: the shape of one array of a stack, or its own."""
        shapes = self.shapes_of(shape)
        self._check_shapes(shapes)
        return {name: Spec(tuple(own)) for name, own in shapes.items()}

    def _check_shapes(self, shapes: Any) -> None:
        """SettingError, ShapeError for what `shapes_of` of a class of the user's must not return."""
        who, known = f"{type(self).__name__}.shapes_of", ", ".join(self.state_names) or "(none)"
        if not isinstance(shapes, Mapping):
            raise SettingError(f"{who} returned {what_is(shapes)}; must return a dict: name of a state -> shape")
        for name, own in shapes.items():
            if name not in self.state_names:
                raise SettingError(f"{who} returned {name!r}; must be among state_names: {known}")
            if not isinstance(own, (tuple, list)) or not all(type(n) is int and n >= 0 for n in own):
                raise ShapeError(f"{who}: {name} has shape {own!r:.60}; must be a tuple of whole numbers of at least 0")

    def make_state(self, parameters: Sequence[Parameter]) -> dict[str, list[Parameter]]:
        """State name -> one zeroed array per parameter that keeps it."""
        made: dict[str, list[Parameter]] = {name: [] for name in self.state_names}
        for p in parameters:
            for name, spec in self.layout_of(p.shape, p.stored.each).items():
                made[name].append(stored_value(Stored(f"{p.stored.name}.{name}", zeros(spec.shape), spec.dtype)))
        return made

    def scalar(self, name: str) -> Value:
        """A setting as the update op reads it, f32[]."""
        key = self.keys.get(name, name)
        return setting(f"opt.{key}") if key else constant(0.0)

    def decayed(self, given: UpdateInputs) -> tuple[list[Value], UpdateInputs]:
        """The settings and the inputs of the step, as an update op takes them; coupled weight decay is added to the
        gradients, which are divided for that. A batch of weight 0 has gradient 0."""
        scalars = {name: self.scalar(name) for name in self.names}
        if self.couples:
            decay = scalars["weight_decay"]
            pairs = zip(given.parameters, given.mean_gradients(), strict=True)
            given = replace(given, grads=[g + p * decay for p, g in pairs], weight=constant(1.0))
            scalars["weight_decay"] = constant(0.0)
        return list(scalars.values()), given

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """update(self, given: UpdateInputs): update nodes for all parameters of a step at once. A user's class may have
        update(self, p, g, ...) instead, which type checkers accept because of this signature."""
