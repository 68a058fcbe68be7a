"""Calls of Python functions in a program of the CPU: the native core runs the instructions up to one, Python computes
it from and into the program's memory, and the native core runs the next ones.

The core has an instruction in its place that it never runs, so that instructions have the same numbers in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ..base.dtypes import f32
from ..graph.calls import computed
from ..graph.value import Node
from ..plan.bytecode import (
    ARENA,
    ARG_WRITE,
    MAX_PHASES,
    NO_SEGMENT,
    NODE_MASK,
    Bytecode,
    Form,
    record,
)
from .planned import PlannedExecutable

BytesOf = Callable[[int, int, int, "np.ndarray | None"], np.ndarray]
Native = tuple[list[tuple[str, str]], np.ndarray, np.ndarray]  # kernels, instructions, arguments
Place = tuple[int, int, int, "tuple[int, ...]", np.dtype, "tuple[int, ...]"]  # segment, offset, bytes; array there
_EMPTY: Form = (f32.code, (0,), (1,), 0)


def native_form(bytecode: Bytecode, calls: Sequence[int]) -> Native:
    """Kernels, instructions and arguments for the native core: at these instructions a copy of no elements."""
    if not calls:
        return bytecode.kernels, bytecode.instructions, bytecode.args
    instructions, kernels = bytecode.instructions.copy(), [*bytecode.kernels]
    args = np.concatenate(
        [bytecode.args, np.array([record(_EMPTY), record((*_EMPTY[:3], ARG_WRITE))], bytecode.args.dtype)]
    )
    args["segment"][-2:] = ARENA
    used = sorted({int(k) for i, k in enumerate(instructions["kernel"]) if i not in calls})
    kernels = [*(kernels[k] for k in used), ("copy", "f32")]
    place = {k: i for i, k in enumerate(used)}
    for i in range(len(instructions)):
        instructions["kernel"][i] = place.get(int(instructions["kernel"][i]), len(used))
    for i in calls:
        one = instructions[i : i + 1]
        one["kernel"], one["arg_first"], one["arg_count"], one["attr_count"] = len(used), len(bytecode.args), 2, 0
        one["phases"], one["parts"] = 1, (1,) * MAX_PHASES
    return kernels, instructions, args


class PlannedCall:
    """A call at its place in a plan. at: the number of its instruction. bytes_of: as CpuExecutable's."""

    def __init__(self, executable: PlannedExecutable, at: int, bytes_of: BytesOf) -> None:
        self.executable, self.at, self.bytes_of = executable, at, bytes_of
        bytecode = executable.plan.bytecode
        self.node: Node = executable.plan.order.steps[at]
        first = int(bytecode.instructions[at]["arg_first"])
        values = [v for v in (*self.node.inputs, *self.node.outputs) if v is not None]
        self._args = [_place(arg, v.dtype.numpy) for arg, v in zip(bytecode.args[first:], values, strict=False)]
        self._dead = [one[1:] for one in bytecode.dead if one[0] == at]
        self.least = self.total = self.runs = 0  # nanoseconds

    def run(self, row: np.ndarray | None) -> tuple[int, int] | None:
        """Compute it. row: the settings of the step. The (output, element) of the first number that is not finite,
        where the executable's switches ask for that. UserOpError as `computed`."""
        executable, begun = self.executable, time.perf_counter_ns()
        arrays = [self._array(place, row) for place in self._args]
        count = len(arrays) - len(self.node.outputs)
        results, bad = computed(self.node, arrays[:count]), None
        with np.errstate(over="ignore"):  # numbers beyond f32
            for array, result in zip(arrays[count:], results, strict=True):
                array[...] = result
        if executable.switches.check >= 2:
            bad = next(filter(None, map(_first_bad, range(len(results)), arrays[count:])), None)
        took = time.perf_counter_ns() - begun
        self.least, self.total = min(self.least, took) if self.runs else took, self.total + took
        self.runs += 1
        if executable.switches.poison:
            for segment, offset, size in self._dead:
                self.bytes_of(segment, offset, size, row)[...] = 0xFF
        return bad

    def forget_times(self) -> None:
        """Begin to measure anew."""
        self.least = self.total = self.runs = 0

    def _array(self, place: Place, row: np.ndarray | None) -> np.ndarray:
        """An argument where it is stored."""
        segment, offset, size, shape, kind, strides = place
        if segment == NO_SEGMENT or 0 in shape:
            return np.empty(shape, kind)
        return np.ndarray(shape, kind, self.bytes_of(segment, offset, size, row), 0, strides)

    @property
    def node_id(self) -> int:
        """The node in the bytecode."""
        return self.node.id & NODE_MASK


def _first_bad(i: int, array: np.ndarray) -> tuple[int, int] | None:
    """The (output, element) of its first number that is not finite."""
    if array.dtype.kind != "f":
        return None
    found = np.flatnonzero(~np.isfinite(array))
    return (i, int(found[0])) if found.size else None


def _place(arg: np.void, kind: np.dtype) -> Place:
    rank = int(arg["rank"])
    shape, strides = (tuple(arg[name][:rank].tolist()) for name in ("shape", "strides"))
    bytes_ = tuple(n * kind.itemsize for n in strides)
    return int(arg["segment"]), int(arg["offset"]), int(arg["bytes"]), shape, kind, bytes_
