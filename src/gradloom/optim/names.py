"""Optimisers by name: "adamw", "sgd", "lion", ..., as in settings files and commands."""

from __future__ import annotations

from typing import Any

from ..base.arguments import nearest, what_is
from ..base.errors import SettingError
from .optimizer import Optimizer


def optimizer_names() -> dict[str, Any]:
    """name -> class: those of gl.optim, in lower case."""
    from .. import optim

    classes = {name.lower(): getattr(optim, name) for name in optim.__all__}
    return {
        name: one
        for name, one in classes.items()
        if isinstance(one, type) and issubclass(one, Optimizer) and one is not Optimizer
    }


def optimizer_named(name: str) -> Any:
    """The class of an optimiser; SettingError for a name that is none, with the nearest."""
    if not isinstance(name, str):
        text = f"{{optimizer}} is {what_is(name)}; must be one of gl.optim, such as AdamW(lr=1e-3), or its name"
        raise SettingError(text, setting="optimizer")
    names = optimizer_names()
    if name.lower() not in names:
        need = f"one of {', '.join(sorted(names))}{nearest(name.lower(), names)}"
        raise SettingError(setting="optimizer", seen=name, need=need)
    return names[name.lower()]


def optimizer_hint(given: object) -> str:
    """The call that makes the optimiser which a name or a class stands for; AdamW(lr=1e-3) for anything else."""
    name = given.__name__ if isinstance(given, type) else str(given)
    made = optimizer_names().get(name.lower())
    return f"gl.optim.{'AdamW' if made is None else made.__name__}(lr=1e-3)"
