"""update(self, p, g, ...): the rule of a user-defined optimiser, written for one parameter and called by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import ops
from ..base.arguments import what_is
from ..base.dtypes import f32
from ..base.errors import SettingError, ShapeError
from ..graph.leaves import Parameter
from ..graph.value import Value, describe
from .rule import UpdateInputs, UpdateRule

Each = Callable[..., Mapping[str, Value]]
WHOLE = ["given"]  # the parameters of an update of all parameters at once
OWN = ("p", "g", "step")


def each_of(update: Callable[..., Any]) -> bool:
    """Whether an update is written for one parameter. One that takes `*args` passes on what a base class takes."""
    parameters = [*inspect.signature(update).parameters.values()]
    passes_on = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return not passes_on and [p.name for p in parameters[1:]] != WHOLE


def check_each(rule: UpdateRule, update: Each) -> None:
    """SettingError where an update has parameters that are neither p, g, step, state nor settings of its class."""
    who, names = type(rule).__name__, rule.state_names
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise SettingError(f"{who}: state_names is {names!r:.60}; must be a tuple of names such as ('m',)")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SettingError(f"{who}: state_names has {name!r} twice; must have each name once")
        if name in (*OWN, *rule.names):
            raise SettingError(f"{who}: state_names has {name!r}, which is {_meaning(name)}; need another name")
    known = [*OWN, *rule.state_names, *rule.names]
    for p in [*inspect.signature(update).parameters.values()][1:]:
        if p.name not in known or p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            state = f"state {', '.join(rule.state_names) or '(state_names is empty)'}"
            settings = f"settings {', '.join(rule.names) or '(declare them as lr: float = 1e-3)'}"
            raise SettingError(
                f"{who}.update: parameter {p} is not known; must be among p, g, step; {state}; {settings}"
            )


def _meaning(name: str) -> str:
    return {"p": "the parameter", "g": "the gradient", "step": "the number of the step"}.get(name, "a setting")


def wants(update: Each) -> list[str]:
    """The names that an update is called with."""
    return [*inspect.signature(update).parameters][1:]


def updated_each(rule: UpdateRule, update: Each, given: UpdateInputs) -> Sequence[Value]:
    """The update nodes of all parameters of a step. ShapeError, SettingError for values that cannot be assigned."""
    asked = wants(update)
    common: dict[str, Any] = {name: rule.scalar(name) for name in rule.names if name in asked}
    if "step" in asked:
        common["step"] = given.step
    arrays = {name: iter(kept) for name, kept in given.state.items()}
    pairs: list[Value] = []
    for p, g in zip(given.parameters, given.mean_gradients(), strict=True):
        g = g + p * rule.scalar("weight_decay") if rule.couples else g
        state = {name: next(arrays[name]) for name in rule.layout_of(p.shape, p.stored.each)}
        scope = {**dict.fromkeys(rule.state_names), **state, **common, "p": p, "g": g}
        made = update(rule, **{name: scope[name] for name in asked})
        pairs += _assigned(f"{type(rule).__name__}.update", made, {"p": p, **state})
    return ops.assign(*pairs) if pairs else ()


def _assigned(who: str, made: Any, targets: Mapping[str, Parameter]) -> list[Value]:
    """The arrays and their new values in turn."""
    names = ", ".join(targets)
    if not isinstance(made, Mapping):
        raise SettingError(f"{who} returned {what_is(made)}; must return a dict with the new {names}")
    if unknown := [name for name in made if name not in targets]:
        raise SettingError(f"{who} returned {unknown[0]!r}; must return a dict with the new {names}")
    pairs: list[Value] = []
    for name, target in targets.items():
        if name not in made:
            raise SettingError(f"{who} returned no {name!r}; must return a dict with the new {names}")
        value = made[name]
        called = targets["p"].name or "a parameter"
        if not isinstance(value, Value):
            raise SettingError(f"{who}: {name} of {called} is {what_is(value)}; must be a value of gl.ops")
        if value.recorder is not None:
            need = "a value of gl.ops computed from the parameters of update"
            raise SettingError(f"{who}: {name} of {called} is an eager tensor; must be {need}")
        if value.shape != target.shape or value.dtype is not f32:
            raise ShapeError(f"{who}: {name} of {called} is {describe(value)}; must be {describe(target)}")
        pairs += [target, value]
    return pairs
