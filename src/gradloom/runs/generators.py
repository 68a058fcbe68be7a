"""The state of random generators, of Python and NumPy, in a checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..base.errors import DataError, TrainError
from ..base.schema import Schema, anything, array, items, number, one_of, optional, shown_name, table, whole

_U32, _U64, _U128 = whole(0, 2**32 - 1), whole(0, 2**64 - 1), whole(0, 2**128 - 1)
_HALF = {"has_uint32": whole(0, 1), "uinteger": _U32}
_MT = {"bit_generator": one_of("MT19937"), "state": table({"key": array("uint32", shape=(624,)), "pos": whole(0, 624)})}
_PCG: dict[str, Schema] = {"state": table({"state": _U128, "inc": _U128}), **_HALF}
# NumPy itself checks neither positions nor types: a position beyond the key would read foreign memory.
_BITS: dict[str, Schema] = {
    "MT19937": table(_MT),
    "PCG64": table({"bit_generator": one_of("PCG64"), **_PCG}),
    "PCG64DXSM": table({"bit_generator": one_of("PCG64DXSM"), **_PCG}),
    "SFC64": table({
        "bit_generator": one_of("SFC64"), "state": table({"state": array("uint64", shape=(4,))}), **_HALF,
    }),
    "Philox": table({
        "bit_generator": one_of("Philox"),
        "state": table({"counter": array("uint64", shape=(4,)), "key": array("uint64", shape=(2,))}),
        "buffer": array("uint64", shape=(4,)), "buffer_pos": whole(0, 4), **_HALF,
    }),
    "RandomState": table({**_MT, "has_gauss": whole(0, 1), "gauss": number()}),
}  # fmt: skip


def _python(value: Any, name: str) -> None:
    """(3, 624 numbers and a position, a number or None): random.Random.getstate()."""
    items(anything, 3, (tuple,))(value, name)
    one_of(3)(value[0], f"{name}[0]")
    items(_U32, 625, (tuple,))(value[1], f"{name}[1]")
    whole(1, 624)(value[1][-1], f"{name}[1][624]")
    optional(number(-math.inf))(value[2], f"{name}[2]")


def generator_state(value: Any, name: str) -> None:
    """Schema: the state of a random generator."""
    if isinstance(value, tuple):
        return _python(value, name)
    kind = kind_of(value)
    if kind not in _BITS:
        raise DataError(f"{shown_name(name)} is of {shown_name(kind)}; need {', '.join(_BITS)} or Python's random")
    _BITS[kind](value, name)


def state_of(generator: Any) -> Any:
    """That of a random generator, Python's or NumPy's; None for other objects."""
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


def load_generator(name: str, state: Any, generator: Any) -> Callable[[], None]:
    """Load for `state_of`. TrainError for a generator of another kind."""
    mine, theirs = kind_of(state_of(generator)), kind_of(state)
    if mine != theirs:
        need = f"a generator of {mine}, in the state {shown_name(theirs)}; need the same"
        raise TrainError(f"load: {shown_name(name)}: {need}")

    def load() -> None:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state

    return load


def kind_of(state: Any) -> str:
    """Of a state: the name of NumPy's bit generator, "RandomState", "Python's random"."""
    if isinstance(state, Mapping):
        return "RandomState" if "has_gauss" in state else str(state.get("bit_generator"))
    return "None" if state is None else "Python's random"
