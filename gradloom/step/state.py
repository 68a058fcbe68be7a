"""TrainState: everything that decides the rest of a run, by name.

Whoever keeps something from step to step registers it: a trainer its model, optimiser, window, rows and counters; what
else has memory, such as a listener of epochs, its own. Two runs of equal states go on equally.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..graph.leaves import Parameter
from ..graph.stored import Stored, copies
from ..optim.state import OptimizerState
from ..parallel.communicator import checksum

Part = Callable[[], Mapping[str, Any]]  # names -> Stored arrays and plain values: numbers, texts, dicts of such


class TrainState:
    """The parts of a run's state, each a function that gives it as it is now: names -> arrays (Stored) and values."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}

    def register(self, name: str, part: Part) -> None:
        """Add a part, or replace the one of this name."""
        self._parts[name] = part

    def entries(self, *parts: str) -> dict[str, Any]:
        """ "part.name" -> array or value, of all parts or of these."""
        return {f"{part}.{name}": value for part in parts or self._parts for name, value in self._parts[part]().items()}

    def arrays(self, *parts: str) -> dict[str, Stored]:
        """The arrays alone, each under the first name that it has."""
        named = {name: value for name, value in self.entries(*parts).items() if isinstance(value, Stored)}
        first = {stored: name for name, stored in reversed(named.items())}
        return {name: stored for name, stored in named.items() if first[stored] == name}

    def collect(self, *parts: str) -> dict[str, Any]:
        """The same as `entries`, with copies of the arrays, all of one moment."""
        entries = self.entries(*parts)
        arrays = [value for value in entries.values() if isinstance(value, Stored)]
        copied = dict(zip(arrays, copies(arrays), strict=True))
        return {name: copied[v] if isinstance(v, Stored) else v for name, v in entries.items()}

    def digest(self, *parts: str) -> str:
        """A checksum of it, the same for equal states, in another process, too."""
        entries = self.entries(*parts)
        return checksum(*(f"{name} {_bits(entries[name])}" for name in sorted(entries)))


def _bits(value: Any) -> str:
    return checksum(value.numpy() if isinstance(value, Stored) else value)


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """What differs first between two collected states, by name; None when they are equal. Arrays are equal when their
    bits are."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            return f"{name} is in the {'second' if name not in one else 'first'} alone"
        a, b = one[name], other[name]
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            if type(a) is not type(b) or a != b:
                return f"{name}: {a!r} against {b!r}"
        elif checksum(a) != checksum(b):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"{name}: {a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
            return f"{name}: {int((a != b).sum())} of {a.size} numbers differ"
    return None


def of_optimizer(state: OptimizerState) -> dict[str, Any]:
    """The part of an optimiser: counts, settings, what plateaus have seen, and the arrays of each parameter."""
    optimizer = state.optimizer
    kept: dict[str, Any] = {
        "kind": type(optimizer).__name__,
        "steps": state.steps,
        "epoch": state.epoch,
        "settings": dict(sorted(optimizer.settings.constants.items())),
        "schedules": {name: shown(schedule) for name, schedule in sorted(optimizer.settings.schedules.items())},
        **({} if optimizer.placing is None else {"groups": [state.group_of(p) for p in state.parameters]}),
        "plateaus": {name: dict(memory) for name, memory in sorted(state.memories.items())},
    }
    for i, p in enumerate(state.parameters):
        kept |= {f"{name}.{i}": moment.stored for name, moment in state.moments.get(p.stored, {}).items()}
    return kept


def of_window(state: OptimizerState) -> dict[str, Any]:
    """The part of an open accumulation window: the sums of its parameters, their weight, the bound of their norm."""
    window = state.window
    numbers = [i for i, p in enumerate(state.parameters) if p.stored in window.parameters]
    kept: dict[str, Any] = {"weighted": window.weighted, "max_norm": window.max_norm}
    kept |= {f"sum.{i}": state.sums[state.parameters[i].stored].stored for i in numbers}
    return kept | ({"weight": state.weight.stored} if window.parameters else {})


def of_parameters(named: Mapping[str, Parameter], written: Iterable[Stored] = ()) -> dict[str, Any]:
    """The part of a model: its parameters and buffers by name; what else steps write of it by number. What is frozen
    (a tensor of a model file) is no part: nothing changes it."""
    kept: dict[str, Any] = {name: p.stored for name, p in named.items() if p.stored.role != "frozen"}
    mine = set(kept.values())
    rest = [stored for stored in written if stored not in mine]
    return kept | {f"written.{i}": stored for i, stored in enumerate(rest)}


def shown(schedule: Any) -> str:
    """A schedule as text that is the same in another process."""
    text = getattr(schedule, "__qualname__", None) or repr(schedule)
    return type(schedule).__name__ if " at 0x" in text else text
