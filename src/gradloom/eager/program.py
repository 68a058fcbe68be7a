"""EagerProgram: outputs and updates that were compiled, and the shortest way to run them again."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base import locks
from ..base.arrays import check_whole
from ..base.dtypes import DType
from ..base.errors import GuardTripped, NonFiniteError, NotFinite, SettingError
from ..graph.graph import reachable
from ..graph.leaves import Parameter
from ..graph.stored import before_read, before_write
from ..graph.value import Value, graph_mode
from ..run.backend import is_device
from ..run.compile import compile as compile_program
from ..run.diagnose import Place, first_bad, place_in
from .cache import Cache, cache_of, counts, slot_number
from .options import DEFAULTS, TapeOptions
from .tensors import Numbers

LARGE_RECORD = 4096  # bytes of a run's outputs from which on small ones are copied out of it
KEPT_BYTES = 4096  # of an output that stays on its device until it is read
_FORMATS = {"f32": "f4x", "i32": "i4x", "i64": "q"}  # settings: words of 8 bytes


class EagerProgram:
    """Outputs and updates of a trace, compiled."""

    __slots__ = (
        "draws",
        "executable",
        "keeps",
        "names",
        "options",
        "outputs",
        "pack",
        "row",
        "slots",
        "specs",
        "updates",
        "writes",
    )

    def __init__(
        self, outputs: Sequence[Value], updates: Sequence[Value] = (), options: TapeOptions = DEFAULTS
    ) -> None:
        self.outputs, self.updates = tuple(outputs), tuple(updates)
        self.options: dict[str, Any] = options._asdict()
        self.executable = compile_program(self.outputs, self.updates, **self.options)
        self.keeps = is_device(options.device)
        if self.keeps:
            self.executable.keep_outputs(KEPT_BYTES)
        self.slots = [(slot_number(k), place) for k, place in self.executable.fed().items()]
        kinds: list[tuple[str, DType]] = [
            (k, self.executable.settings[k].dtype) for k in self.executable.settings_words
        ]  # in the order of their words
        self.names = [k for k, _ in kinds]
        self.row = np.zeros((1, len(kinds)), np.int64) if kinds else None
        self.pack = struct.Struct("=" + "".join(_FORMATS[kind.name] for _, kind in kinds))
        starts = zip(self.executable.output_starts, self.executable.outputs, strict=True)
        self.specs = [(at, spec.shape, spec.dtype.numpy) for at, spec in starts]
        self.draws = "seed" in self.names
        self.writes = frozenset(self.executable.writes)
        counts.compiled += 1

    def run(self, slots: Sequence[Numbers], settings: Mapping[str, float]) -> list[Any]:
        """The outputs, large ones of a device as `Away`. NonFiniteError, naming the first bad node, when a guard trips:
        then nothing is written."""
        locks.refuse_in_user_code("a program runs")
        counts.native_calls += 1
        for key in self.executable.narrow_inputs:
            array = slots[slot_number(key)]
            check_whole("tensor", array if isinstance(array, np.ndarray) else array.numpy(), np.int32)
        if not self.keeps:
            for k, place in self.slots:
                place[...] = slots[k]
        if self.row is not None:
            try:
                self.pack.pack_into(self.row.data, 0, *[settings[k] for k in self.names])
            except (OverflowError, struct.error):
                listed = ", ".join(f"{k}={settings[k]!r}" for k in self.names)
                raise SettingError(f"step: among {listed} is one beyond f32; need numbers that fit") from None
        try:
            if self.keeps:
                given = {key: slots[slot_number(key)] for key in self.executable.inputs}
                values: list[Any] = self.executable.run_values(self.row, given)
                return values
            _, record = self.executable.run_rows(1, self.row)
        except (GuardTripped, NotFinite):
            cause = first_bad(
                self.executable, self.outputs, self.updates, settings, _of_input, settled=True, **self.options
            )
            raise NonFiniteError(cause) from None
        arrays = [np.ndarray(shape, kind, record, at) for at, shape, kind in self.specs]
        total = self.executable.record_bytes
        return arrays if total <= LARGE_RECORD else [a.copy() if 2 * a.nbytes < total else a for a in arrays]


def _of_input(name: str, array: np.ndarray, at: int) -> Place:
    return f"a tensor that goes in ({name}, {array.dtype}{list(array.shape)})", place_in(array.shape, at)


def run_alone(
    key: tuple[Any, ...],
    build: Callable[[], tuple[Sequence[Value], Sequence[Value]]],
    settings: Mapping[str, float],
    options: TapeOptions = DEFAULTS,
) -> list[np.ndarray]:
    """Run ONE program that belongs to no tape: build() -> (outputs, updates), called only when `key` is new.

    key: its first member owns the program; the program goes when the owner does. Answers the outputs. Raises
    NonFiniteError when a guard among them trips: then nothing is written.
    """
    with locks.building:
        key = (*key, options)
        name = (id(key[0]), *key[1:])
        cache = _homes.get(name)
        if cache is None or key not in cache.programs:
            with graph_mode():
                outputs, updates = build()
            leaves = [n.outputs[0] for n in reachable((*outputs, *updates)) if n.op.name == "parameter"]
            cache = _homes[name] = cache_of(next((p for p in leaves if isinstance(p, Parameter)), None))
        program = cache.program(key, lambda: EagerProgram(outputs, updates, options))
        before_read(program.executable.plan.bytecode.stored)
        before_write(program.executable.writes)
        return program.run((), settings)


_homes: weakref.WeakValueDictionary[tuple[Any, ...], Cache] = weakref.WeakValueDictionary()
