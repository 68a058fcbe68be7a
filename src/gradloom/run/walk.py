"""Walk: a program run one instruction at a time, so that each value can be read before its bytes are given away.

Two walks of one program hold their steps side by side: the first node whose bits differ is where one of the plans is
wrong. A walk held against the references names the first kernel that is wrong.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.settings import Switches
from ..graph.composition import as_real, by_reference, is_rounded
from ..graph.graph import update_target, view_base
from ..graph.rounding import unrounded
from ..graph.value import Node, Value, describe
from ..plan.bytecode import ARENA, EACH_STEP, NO_SEGMENT, SEGMENT_NAMES
from ..transform.program import Program
from .backend import backend, plan_for
from .cpu_backend import STOP_DONE, CpuBackend, CpuExecutable, _core
from .executable import called
from .feeds import SETTING_DEFAULTS
from .numpy_backend import leaf_data
from .planned import PlannedExecutable


class Stepped(PlannedExecutable):
    """A compiled program that runs one instruction at a time: `begin`, then `run_step` for each step.

    The values of a plan that shares no bytes (reuse=False) are all there when it has run.
    """

    rows: np.ndarray | None = None  # the settings of the steps to come, as the bytecode reads them
    _settings: Mapping[str, Any] = {}

    @property
    def steps(self) -> tuple[Node, ...]:
        """The nodes in the order in which they run."""
        return self.plan.order.steps

    def begin(self, feeds: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Feed inputs and settings for the steps to come."""
        self.feed(feeds)
        self._settings = {k: settings.get(k, SETTING_DEFAULTS.get(k)) for k in self.settings}
        self.rows = self.settings_rows(1, self._settings) if self.settings else None

    @abc.abstractmethod
    def run_step(self, k: int) -> None:
        """Run instruction k alone. Raises the errors of a whole run."""

    @abc.abstractmethod
    def written(self, k: int) -> Iterator[tuple[Value, np.ndarray]]:
        """(value, its bytes) for each output of step k, which has just run; stored arrays as they are now."""

    def places(self, k: int) -> Iterator[tuple[Value, int, int]]:
        """(value, segment, byte) of what step k writes; nothing of outputs without memory or elements."""
        node, bytecode = self.steps[k], self.plan.bytecode
        first = int(bytecode.instructions[k]["arg_first"]) + len(node.inputs)
        for value, arg in zip(node.outputs, bytecode.args[first : first + len(node.outputs)], strict=True):
            if int(arg["segment"]) != NO_SEGMENT and value.size:
                yield value, int(arg["segment"]), int(arg["offset"])

    @abc.abstractmethod
    def outputs_now(self) -> list[np.ndarray]:
        """The outputs of the program, after its last step."""

    def run_all(self) -> list[dict[int, np.ndarray]]:
        """Run every step (after `begin`) and return its outputs. For a plan that shares no bytes: values in the
        arena is not copied."""
        written = []
        for k in range(len(self.steps)):
            self.run_step(k)
            written.append({v.index: a.copy() if update_target(v) is not None else a for v, a in self.written(k)})
        return written

    def leaf(self, value: Value) -> np.ndarray:
        """The numbers of an input, setting, constant or stored array."""
        return np.asarray(leaf_data(value, self.fed() | dict(self._settings)))


class Walk(Stepped, CpuExecutable):
    """A compiled program of the CPU in an arena of its own. Call it to run it whole, or run it step by step."""

    def __init__(self, program: Program, switches: Switches) -> None:
        cpu = CpuBackend(switches)
        super().__init__(program, plan_for(cpu, program, switches), switches, cpu.allocate(0))
        self._bytes, self._memory = self.arena.view(), self.segments()
        self._dead: dict[int, list[tuple[int, int, int]]] = {}  # instruction -> ranges that are free after it
        for at, segment, offset, size in self.plan.bytecode.dead:
            self._dead.setdefault(at, []).append((segment, offset, size))

    def run_step(self, k: int) -> None:
        """Bytes that are dead after an instruction are poisoned when the next one begins: until then `written` reads
        all that the instruction wrote, outputs that no instruction reads included."""
        bytecode = self.plan.bytecode
        for call in self.calls:
            if call.at == k:
                call.run(self.rows)
                return
        one = bytecode.instructions[k : k + 1].copy()
        args, attrs = (
            array[int(one[f"{what}_first"][0]) :][: int(one[f"{what}_count"][0])]
            for what, array in (("arg", bytecode.args), ("attr", bytecode.attrs))
        )
        kernel = bytecode.kernels[int(one["kernel"][0])]
        one["kernel"] = one["arg_first"] = one["attr_first"] = 0
        dead = [(EACH_STEP, *place) for place in self._dead.get(k - 1 if k else EACH_STEP, ())]
        native = _core.Program(self.isa, [kernel], one, args, attrs, self._memory, [], dead, ())
        done, stop, node, index, value = native.run(
            1, self.rows, None, self.switches.threads, 0.0, self.switches.poison, flush=self.switches.flush
        )
        if stop != STOP_DONE:
            raise self.failure(done, stop, node, index, value)

    def written(self, k: int) -> Iterator[tuple[Value, np.ndarray]]:
        stored = self.plan.bytecode.stored
        for value, segment, offset in self.places(k):
            place = self._bytes if segment == ARENA else _flat(stored[segment - len(SEGMENT_NAMES)].read())
            yield value, place[offset : offset + value.bytes].view(value.dtype.numpy).reshape(value.shape)

    def outputs_now(self) -> list[np.ndarray]:
        found = []
        for value, (segment, offset) in zip(self.program.outputs, self.plan.output_places, strict=True):
            place = self.bytes_of(segment, offset, value.bytes, self.rows)
            found.append(place.copy().view(value.dtype.numpy).reshape(value.shape))
        return found


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


# By the kind of a device: a walk over a program on the device of this name. The backend of the device registers itself.
walks: dict[str, Callable[[Program, Switches, str], Stepped]] = {}


def walk_on(program: Program, switches: Switches, device: str) -> Stepped:
    """A walk over a program on a device. BackendError where the device cannot compute here."""
    if device == "cpu":
        return Walk(program, switches)
    backend(device, switches)  # for its error; it registers the walk
    return walks[device.partition(":")[0]](program, switches, device)


# ---- two plans of one program --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Where two runs part: the node, which of its outputs, and by how much of the largest number there."""

    node: Node
    value: Value
    amount: float

    def __str__(self) -> str:
        return f"{called(self.node)} ({describe(self.value)}), by {self.amount:.3g} of its largest number"


def first_difference(walk: Stepped, values: Sequence[Mapping[int, np.ndarray]]) -> Difference | None:
    """Run `walk` step by step (after `begin`); the first output whose bits are not those of values[step][output]."""
    for k, node in enumerate(walk.steps):
        walk.run_step(k)
        for value, array in walk.written(k):
            wanted = values[k].get(value.index)
            if wanted is not None and array.tobytes() != wanted.tobytes():
                return Difference(node, value, distance(array, wanted))
    return None


def distance(array: np.ndarray, wanted: np.ndarray) -> float:
    """max |array - wanted| / max |wanted|; inf where one is finite and the other is not."""
    return _relative(array, wanted, lambda x: float(np.max(np.abs(x), initial=0.0)))


def away(array: np.ndarray, wanted: np.ndarray) -> float:
    """|array - wanted| / |wanted|, Euclidean norms; inf where one is finite and the other is not."""
    return _relative(array, wanted, lambda x: float(np.sqrt(np.sum(np.square(x)))))


def _relative(array: np.ndarray, wanted: np.ndarray, size: Callable[[np.ndarray], float]) -> float:
    have, want = np.asarray(array, np.float64), np.asarray(wanted, np.float64)
    finite = np.isfinite(want)
    if not want.size:
        return 0.0
    if not np.array_equal(np.isfinite(have), finite) or not np.array_equal(
        have[~finite], want[~finite], equal_nan=True
    ):
        return math.inf
    return size(have[finite] - want[finite]) / (size(want[finite]) or 1.0)


# ---- a program against its definition --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """An output held against the float64 references.

    own: the error of its kernel on the kernel's inputs, of the largest number. excess: that error in units of the
    tolerance, see `Definition.excess`. total: its distance from the whole
    program in float64, of Euclidean norms. spread: the distance of that from the program in float64 without roundings
    to bf16. A number between two bf16 values is rounded to either, and so are values computed from it: `total`
    is as large as `spread` in a correct program.
    """

    node: Node
    value: Value
    own: float
    total: float
    excess: float
    spread: float


def judge(walk: Stepped, values: Sequence[Mapping[int, np.ndarray]]) -> Iterator[Judged]:
    """Every output of a program that ran, held against the references, in the order of the steps.

    values[step][output]: outputs of the steps. Stored arrays must be as they were before the run. Float64 numbers are
    dropped after their last use, and weights are converted where they are used: the peak is about twice the memory of
    the plan (of a program that rounds, four times), and the largest weight.
    """
    last: dict[Value, int] = {}
    for k, node in enumerate(walk.steps):
        last.update((view_base(v), k) for v in node.inputs if v is not None)
    seen: dict[Value, np.ndarray] = {}  # values computed by the device
    exact: dict[Value, np.ndarray] = {}  # results in float64 from the same leaves
    whole: dict[Value, np.ndarray] = {}  # and without roundings to bf16
    rounds = any(is_rounded(node) or node.op.name == "round_bf16" for node in walk.steps)
    for k, node in enumerate(walk.steps):
        definition = Definition(node, walk.leaf, seen)
        total = free = definition.of(exact)
        if rounds:
            with unrounded(operands=True):
                free = definition.of(whole)
        for value, own, total_result, free_result in zip(node.outputs, definition.own, total, free, strict=True):
            got = values[k].get(value.index)
            if got is None:
                continue
            error, excess = distance(got, own), definition.excess(value, got, own)
            spread = away(free_result, total_result) if rounds else 0.0
            yield Judged(node, value, error, away(got, total_result), excess, spread)
            if k < last.get(value, -1):
                seen[value], exact[value], whole[value] = got, total_result, free_result
        for value in [v for v in seen if last[v] == k]:
            del seen[value], exact[value], whole[value]


TOLERANCE = 1e-4  # of the largest number of an output, and of its norm


class Definition:
    """Reference results for a node's inputs, and the tolerance between two results.

    leaf: the numbers of an input, setting, constant or stored array, as the kernel saw them. seen: values computed
    before the node."""

    def __init__(self, node: Node, leaf: Callable[[Value], np.ndarray], seen: Mapping[Value, np.ndarray]) -> None:
        self.node, self._leaf, self._seen = node, leaf, seen
        self._leaves: dict[Value, np.ndarray] = {}  # that were read

    @functools.cached_property
    def own(self) -> list[np.ndarray]:
        """The outputs in float64, for the inputs of the kernel."""
        return self.of(self._seen)

    def of(self, known: Mapping[Value, np.ndarray], real: type = np.float64) -> list[np.ndarray]:
        """The outputs, computed in `real` from the known values."""
        return self._apply(self.node, known, real)

    def excess(self, value: Value, got: np.ndarray, wanted: np.ndarray) -> float:
        """Distance of a result from another (a kernel's, or `own`), in units of the tolerance for f32 arithmetic and
        roundings to bf16 inside of a kernel; above 1: one of them is wrong. The greater of the values by the largest
        number and by the norm."""
        found = distance(got, wanted), away(got, wanted)
        if not value.dtype.is_float:
            return math.inf if max(found) else 0.0
        allowed = TOLERANCE, TOLERANCE
        if max(found) > TOLERANCE:
            allowed = self._allowed(value.index)
        return max(one / most if math.isfinite(one) else math.inf for one, most in zip(found, allowed, strict=True))

    def _allowed(self, index: int) -> tuple[float, float]:
        """Terms may cancel: four times the f32 error of the reference itself. A number between two bf16 values is
        rounded to either, one unit from the other; without that rounding it is half a unit from both. So the norm may
        differ by twice the rounding error, and a single number next to terms that cancel by more of the largest."""
        own = self.own[index]
        with unrounded(operands=False):
            bare, in_f32 = self.of(self._seen)[index], self.of(self._seen, np.float32)[index]
        noise = (4 * size(in_f32, bare) for size in (distance, away))
        of_largest, of_norm = (max(TOLERANCE, one) if math.isfinite(one) else TOLERANCE for one in noise)
        return of_largest + 4 * distance(bare, own), of_norm + 2 * away(bare, own)

    def _apply(self, node: Node, known: Mapping[Value, np.ndarray], real: type) -> list[np.ndarray]:
        def number(value: Value | None) -> np.ndarray | None:
            if value is None:
                return None
            if value in known:
                array = known[value]
            elif value.node.op.leaf:
                if value not in self._leaves:
                    self._leaves[value] = as_real(self._leaf(value), value.dtype, np.dtype(np.float64))
                array = self._leaves[value]
            else:
                array = self._apply(value.node, known, real)[value.index]
            return as_real(array, value.dtype, np.dtype(real))

        return by_reference(node, [number(v) for v in node.inputs])
