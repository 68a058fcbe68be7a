"""Checks of the saved state of an optimiser, before anything of it is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import what_is
from ..base.arrays import as_array
from ..base.errors import DTypeError, GradientError, GraphError, SettingError, ShapeError
from ..graph.declaration import Spec
from .schedules import Memory

Named = tuple[str, tuple[int, ...]]  # a parameter's name, as far as it has one, and its shape

MEMORY = ("rate", "best", "bad", "cooling")  # of a Plateau, in the order of its array


class KnownParameter(NamedTuple):
    """A parameter that an optimiser counts."""

    name: str  # of its array
    shape: tuple[int, ...]
    shown: str  # in messages
    keeps: Mapping[str, Spec]  # what its rule keeps of it: name -> shape and dtype

    @property
    def named(self) -> Named:
        return self.name, self.shape


@dataclass(frozen=True)
class Kept:
    """The layout of an optimiser's state, which a loaded state must match.

    kind, kinds  of the optimiser; the names of all that it keeps of any parameter
    nonnegative  those of kinds whose elements are at least 0
    parameters   that it counts so far; is_closed: no other may join
    plateaus     the settings that a Plateau gives
    layout_of    name and shape of a parameter that is not known yet -> its state
    """

    kind: str
    kinds: tuple[str, ...]
    nonnegative: frozenset[str]
    parameters: Sequence[KnownParameter]
    is_closed: bool
    plateaus: tuple[str, ...]
    layout_of: Callable[[str, tuple[int, ...]], Mapping[str, Spec]]


@dataclass(frozen=True)
class SavedState:
    """A state that fits: counts; what plateaus have seen; "m.3" -> array; steps missed by number; all parameters."""

    steps: int
    epoch: int
    memories: dict[str, Memory]
    moments: dict[str, np.ndarray]
    missed: dict[int, int]
    parameters: list[Named]


def checked(arrays: Mapping[str, np.ndarray], kept: Kept) -> SavedState:
    """The state that `OptimizerState.state_dict` gave; GraphError, ShapeError, DTypeError or SettingError for one that
    does not fit."""
    given = {name: as_array(f"load: {name}", array) for name, array in arrays.items()}
    steps, epoch = (checked_count(given, name) for name in ("steps", "epoch"))
    memories = {name: checked_memory(given, name) for name in kept.plateaus}
    expected = _checked_about(given.pop("optimizer", None), kept)
    moments = {name: array for name, array in given.items() if name not in ("steps", "epoch")}
    missed = checked_missed(moments, steps)
    moments = {name: array for name, array in moments.items() if not name.startswith(("plateau.", "missed."))}
    extra = [n for n in given if n.startswith("plateau.") and n.removeprefix("plateau.") not in memories]
    for name, array in moments.items():
        kind, _, number = name.rpartition(".")
        if kind not in kept.kinds or not number.isdecimal():
            extra.append(name)
        elif int(number) < len(kept.parameters):
            p = kept.parameters[int(number)]
            if kind in p.keeps:
                check_fit(name, array, p.keeps[kind], p.shown)
            else:
                extra.append(name)
        elif kept.is_closed:
            extra.append(name)
        if kind in kept.nonnegative and array.dtype.kind == "f" and (array < 0).any():
            raise SettingError(f"load: {name} holds {array.min():g}; an average of squares must be at least 0")
    if extra:
        kinds = ", ".join(kept.kinds) or "no moments"
        raise GraphError(
            f"load: {', '.join(sorted(extra))}: not of this {kept.kind}, which keeps {kinds} of "
            f"{len(kept.parameters)} parameters; need the file of the same optimiser"
        )
    _check_whole(moments, expected, kept)
    return SavedState(steps, epoch, memories, moments, missed, expected)


def _checked_about(array: np.ndarray | None, kept: Kept) -> list[Named]:
    """The names and shapes in the state's entry "optimizer"; GraphError for another optimiser's."""
    if array is None:
        return []
    try:
        about = json.loads(array.astype(np.uint8).tobytes())
        kind, keeps = str(about["kind"]), tuple(map(str, about["keeps"]))
        expected = [(str(name), tuple(map(int, shape))) for name, shape in about["parameters"]]
    except (ValueError, TypeError, KeyError):
        seen = f"{array.dtype}{list(array.shape)}"
        raise GraphError(
            f"load: optimizer is {seen} without kind and parameters; need the state that gl.save wrote"
        ) from None
    if kind != kept.kind:
        raise GraphError(f"load: the state is of {kind}, this optimiser is {kept.kind}; the kinds must be equal")
    if keeps != kept.kinds:
        saved, mine = (", ".join(names) or "no moments" for names in (keeps, kept.kinds))
        raise GraphError(f"load: the state is of {kind} that keeps {saved}, this one keeps {mine}; need the same")
    count = len(kept.parameters)
    for i, (saved_one, p) in enumerate(zip(expected, kept.parameters, strict=False)):
        check_same(i, saved_one, p.named)
    if kept.is_closed and len(expected) != count:
        i = min(len(expected), count)
        where, one = ("state", expected[i]) if len(expected) > count else ("optimiser", kept.parameters[i].named)
        raise GraphError(
            f"load: the state is of {len(expected)} parameters, this optimiser has {count}; parameter {i}, "
            f"{shown_name(one)}, is in the {where} alone; need the same parameters in the same order"
        )
    return expected


def _check_whole(moments: Mapping[str, np.ndarray], expected: Sequence[Named], kept: Kept) -> None:
    """GraphError where a parameter has some of this optimiser's arrays and not all."""
    for name in moments:
        number = int(name.rpartition(".")[2])
        if number < len(kept.parameters):
            kinds = tuple(kept.parameters[number].keeps)
        else:
            kinds = tuple(kept.layout_of(*expected[number])) if number < len(expected) else kept.kinds
        missing = [f"{kind}.{number}" for kind in kinds if f"{kind}.{number}" not in moments]
        if missing:
            raise GraphError(
                f"load: {name} without {missing[0]}: {kept.kind} keeps "
                f"{', '.join(kinds)} of each parameter; need the state of the same optimiser"
            )


def check_fit(name: str, array: np.ndarray, spec: Spec, whose: str) -> None:
    """DTypeError or ShapeError unless this is an array of f32 numbers (or of codes, u8) of this shape; whose: the
    parameter's name."""
    if array.dtype.kind != "f" if spec.dtype.is_float else array.dtype != spec.dtype.numpy:
        raise DTypeError(f"load: {name} is {array.dtype}; need {spec.dtype.name}")
    if array.shape != spec.shape:
        raise ShapeError(f"load: {name} has shape {list(array.shape)}; need {list(spec.shape)}, that of {whose}")


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
            raise SettingError(f"load: {name} is {count} of {steps} steps; must be <= {steps}")
        counts[int(number)] = count
    return counts


def checked_memory(given: Mapping[str, np.ndarray], name: str) -> Memory:
    """The state of a Plateau, f64[4]; GraphError or SettingError."""
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
