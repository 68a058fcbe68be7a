"""Program: outputs and updates that were compiled, and the shortest way to run them again."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from ..base.dtypes import DType
from ..base.errors import GuardTripped, NonFiniteError, NotFinite, SettingError
from ..graph.value import Value
from ..run.executable import compile as compile_program
from ..run.executable import compile_checked
from .cache import counts

_FORMATS = {"f32": "f4x", "i32": "i4x", "i64": "q"}  # settings: words of 8 bytes


def slot_name(k: int) -> str:
    """The name of a trace's k-th input."""
    return f"input{k}"


def slot_number(name: str) -> int:
    return int(name.removeprefix("input"))


class Program:
    """Outputs and updates of a trace, compiled."""

    __slots__ = ("draws", "executable", "names", "outputs", "pack", "row", "slots", "specs", "updates", "writes")

    def __init__(self, outputs: Sequence[Value], updates: Sequence[Value] = ()) -> None:
        self.outputs, self.updates = tuple(outputs), tuple(updates)
        self.executable = compile_program(self.outputs, self.updates)
        self.slots = [(slot_number(k), place) for k, place in self.executable.fed().items()]
        kinds: list[tuple[str, DType]] = [
            (k, self.executable.settings[k].dtype) for k in self.executable.settings_words
        ]  # in the order of their words
        self.names = [k for k, _ in kinds]
        self.row = np.zeros((1, len(kinds)), np.int64) if kinds else None
        self.pack = struct.Struct("=" + "".join(_FORMATS[kind.name] for _, kind in kinds))
        self.specs: list[tuple[int, tuple[int, ...], np.dtype]] = []
        at = 0
        for spec in self.executable.outputs:
            self.specs.append((at, spec.shape, spec.dtype.numpy))
            at += spec.bytes
        self.draws = "seed" in self.names
        self.writes = frozenset(self.executable.writes)
        counts.compiled += 1

    def run(self, slots: Sequence[np.ndarray], settings: Mapping[str, float]) -> list[np.ndarray]:
        """The outputs. NonFiniteError, naming the first bad node, when a guard trips: then nothing is written."""
        counts.native_calls += 1
        for k, place in self.slots:
            place[...] = slots[k]
        if self.row is not None:
            try:
                self.pack.pack_into(self.row.data, 0, *[settings[k] for k in self.names])
            except (OverflowError, struct.error):
                listed = ", ".join(f"{k}={settings[k]!r}" for k in self.names)
                raise SettingError(f"step: among {listed} is one beyond f32; need numbers that fit") from None
        try:
            _, record = self.executable.run_rows(1, self.row)
        except (GuardTripped, NotFinite):
            raise NonFiniteError(self._cause(settings)) from None
        return [np.ndarray(shape, kind, record, at) for at, shape, kind in self.specs]

    def _cause(self, settings: Mapping[str, float]) -> str:
        """Run again, unshared and checked, to name the first node that is not finite."""
        checked = compile_checked(self.outputs, self.updates)
        fed = {k: v for k, v in self.executable.fed().items() if k in checked.inputs}
        for name, array in fed.items():
            if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
                at = np.argwhere(~np.isfinite(array))[0].tolist()
                return f"a tensor that goes in ({name}, {array.dtype}{list(array.shape)}) is not finite at {at}"
        checked.feed(fed)
        try:
            checked.run_rows(1, checked.settings_rows(1, settings) if checked.settings else None)
        except NotFinite as found:
            return str(found)
        except GuardTripped:
            return "the squared norm of the gradients overflows f32"
        raise AssertionError("a step that tripped its guard passes it when run again")
