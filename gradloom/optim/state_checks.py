"""What the saved state of an optimiser must be, before anything of it is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DTypeError, GradientError, GraphError, SettingError, ShapeError
from .schedules import Memory

Named = tuple[str, tuple[int, ...]]  # a parameter's name, as far as it has one, and its shape

MEMORY = ("rate", "best", "bad", "cooling")  # of a Plateau, in the order of its array


def check_fit(name: str, array: np.ndarray, shape: tuple[int, ...], whose: str) -> None:
    """DTypeError or ShapeError unless this is an array of f32 numbers of this shape; whose: the parameter's name."""
    if array.dtype.kind != "f":
        raise DTypeError(f"load: {name} is {array.dtype}; need f32")
    if array.shape != shape:
        raise ShapeError(f"load: {name} has shape {list(array.shape)}; need {list(shape)}, that of {whose}")


def checked_count(given: Mapping[str, np.ndarray], name: str) -> int:
    """A count of the state, i64[]; GraphError or SettingError."""
    array = given.get(name)
    if array is None:
        raise GraphError(f"load: no {name!r} among {len(given)} arrays; need the state of an optimiser")
    if array.size != 1 or array.dtype.kind not in "iu" or int(array.reshape(())) < 0:
        raise SettingError(f"load: {name} is {array.dtype}{list(array.shape)}; need a count, i64[]")
    return int(array.reshape(()))


def checked_missed(given: Mapping[str, np.ndarray], steps: int) -> dict[int, int]:
    """The counts "missed.3" by number, each of a parameter that has moments, and at most `steps`; GraphError or
    SettingError."""
    counts: dict[int, int] = {}
    for name in given:
        if not name.startswith("missed."):
            continue
        number, count = name.removeprefix("missed."), checked_count(given, name)
        if not number.isdecimal() or not any(n.endswith(f".{number}") and n != name for n in given):
            raise GraphError(f"load: {name}: there are no moments of this parameter; need the state of an optimiser")
        if count > steps:
            raise SettingError(f"load: {name} is {count} of {steps} steps; need at most as many")
        counts[int(number)] = count
    return counts


def checked_memory(given: Mapping[str, np.ndarray], name: str) -> Memory:
    """What a Plateau has seen, f64[4]; GraphError or SettingError."""
    array = given.get(f"plateau.{name}")
    if array is None:
        raise GraphError(f"load: no 'plateau.{name}'; need the state of an optimiser with a Plateau for {name}")
    if array.shape != (len(MEMORY),) or array.dtype.kind != "f" or np.isnan(array).any():
        raise SettingError(f"load: plateau.{name} is {array.dtype}{list(array.shape)}; need f64[{len(MEMORY)}]")
    return dict(zip(MEMORY, array.astype(np.float64).tolist(), strict=True))


def check_same(i: int, saved: Named, mine: Named) -> None:
    """GraphError unless parameter i of a state is the one of this optimiser, by shape and, where both have one, name.

    A module names its parameters when it is first initialised: "0.weight" was "weight" before.
    """
    name, other = f".{saved[0]}", f".{mine[0]}"
    alike = "." in (name, other) or name.endswith(other) or other.endswith(name)
    if not alike or saved[1] != mine[1]:
        raise GraphError(
            f"load: parameter {i} is {shown_name(saved)} in the state and {shown_name(mine)} in this optimiser; need "
            "the same parameters in the same order"
        )


def shown_name(one: Named) -> str:
    """Name and shape, for messages."""
    name, shape = one
    return f"{name or '(no name)'} {list(shape)}"


def need_gradients(who: str, grads: Any) -> None:
    """GradientError unless these are the gradients of a tape."""
    if isinstance(grads, type) or not hasattr(grads, "add_to"):
        raise GradientError(f"{who}: got {what_is(grads)}; need the gradients that tape.backward(loss) gave")


def are_ordered(column: list[Any]) -> bool:
    """Floats without NaN, so that the least and the largest speak for all."""
    return all(type(x) is float and x == x for x in column)
