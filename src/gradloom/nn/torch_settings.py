"""Checks that a module of torch.nn computes as its class does. No line here imports torch."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

CONTAINERS = ("Sequential", "TransformerEncoder")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "parametrizations")
_CALLS = ("forward", "_call_impl", "_wrapped_call_impl", "_slow_forward")


class Unsupported(Exception):
    """A setting of a layer that ours does not have."""


def need(**settings: tuple[Any, Any]) -> None:
    """Unsupported for the first setting that differs: name -> (its value, the one that ours has)."""
    for name, (value, need) in settings.items():
        if value is not need and value != need:
            raise Unsupported(f"{name}={value!r:.40}; need {name}={need!r}")


def known_class(theirs: Any, classes: Container[str]) -> str | None:
    """The class of torch.nn whose forward this module has; None for a forward that is not known."""
    for kind in type(theirs).__mro__:
        name = str(kind.__name__)
        if kind.__module__.startswith("torch.nn.modules.") and (name in classes or name in CONTAINERS):
            return name if getattr(kind, "forward", None) is type(theirs).forward else None
    return None


CONTAINERS = ("Sequential", "TransformerEncoder")


def altered(theirs: Any, kind: str) -> str:
    """The hooks or methods by which a module differs from its class of this name in torch.nn; "" for none.

    Hooks, and methods that a call runs, replaced on the object or by a class that is derived from that of torch.
    """
    if any(getattr(theirs, name, None) for name in _HOOKS):
        return "hooks or parametrizations; need them removed"
    classes = type(theirs).__mro__
    at = next(i for i, one in enumerate(classes) if one.__name__ == kind and one.__module__.startswith("torch.nn."))
    steps = {name for one in classes[at:] for name in vars(one) if _is_step(one, name)}
    mine = next((name for name in vars(theirs) if name in steps), None)
    if mine is not None:
        return f"a {mine} of its own, set on the object, whose steps are not known; need it removed"
    derived = next((name for one in classes[:at] for name in vars(one) if name in steps), None)
    if derived is not None:
        return f"a {derived} of its own, whose steps are not known; need that of torch.nn.{kind}"
    return ""


def _is_step(kind: Any, name: str) -> bool:
    """Whether a method of a class of torch.nn computes: forward, the call, and private ones of a layer."""
    if name in _CALLS or name == "__call__":
        return True
    is_private = name.startswith("_") and not name.startswith("__") and not name.endswith("_parameters")
    return is_private and kind.__module__ != "torch.nn.modules.module" and callable(vars(kind)[name])
