"""The definition: walks the graph and applies each op's NumPy reference, in float64 by default."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..base.arrays import check_whole
from ..base.errors import BackendError, DataError, GuardTripped, IndexOutOfRange, NotFinite, UserOpError
from ..base.settings import Switches
from ..graph.composition import as_real, by_reference
from ..graph.graph import reachable, storage_leaf, update_target
from ..graph.stored import arrays_locked, dequantised
from ..graph.value import Node, Value
from ..plan.bytecode import KernelNeeds
from ..plan.plan import Plan
from ..transform.program import Program
from .backend import Buffer
from .cost import cost_table
from .executable import Executable, called
from .feeds import SETTING_DEFAULTS, as_array, check_names, leaves


def evaluate(
    values: Sequence[Value],
    feeds: Mapping[str, Any] | None = None,
    overrides: Mapping[Value, np.ndarray] | None = None,
    precision: str = "f64",
    timed: Callable[[Node, int], None] | None = None,
) -> dict[Value, np.ndarray]:
    """Every value that `values` need, computed by the references.

    feeds: inputs and settings by name. overrides: contents to use instead of those of some values (parameters).
    precision: "f64" or "f32", the arithmetic of float values. timed: called with each computed node and its
    nanoseconds."""
    feeds = feeds or {}
    overrides = overrides or {}
    nodes = reachable(values)
    inputs, settings = leaves(nodes, "input"), leaves(nodes, "setting")
    check_names(feeds, inputs, settings)
    real = np.dtype(np.float64 if precision == "f64" else np.float32)
    known: dict[Value, np.ndarray] = {}
    stored = [n.outputs[0] for n in nodes if n.op.name == "parameter"]
    with arrays_locked([v.node.attrs["stored"] for v in stored]):  # all of one moment
        known.update((v, as_real(np.asarray(leaf_data(v, feeds)), v.dtype, real, copy=True)) for v in stored)
    for node in nodes:
        if node.op.leaf:
            value = node.outputs[0]
            if value not in known:
                known[value] = as_real(leaf_data(value, feeds), value.dtype, real)
        else:
            arrays = [None if v is None else known[v] for v in node.inputs]
            begun = time.perf_counter_ns()
            results = by_reference(node, arrays)
            if timed is not None:
                timed(node, time.perf_counter_ns() - begun)
            known.update((v, as_real(r, v.dtype, real)) for v, r in zip(node.outputs, results, strict=True))
        for value in node.outputs:
            if value in overrides:
                known[value] = as_real(np.asarray(overrides[value]), value.dtype, real)
    return known


def leaf_data(value: Value, feeds: Mapping[str, Any]) -> Any:
    """The numbers of an input, setting, constant or stored array."""
    node = value.node
    if node.op.name == "constant":
        return node.attrs["data"]
    if node.op.name == "parameter":
        stored = node.attrs["stored"]
        data = stored.read()
        return dequantised(data, stored.dtype, stored.shape) if stored.dtype.is_quantised else data
    key = node.attrs["key"]
    if node.op.name == "setting":
        return np.asarray(feeds.get(key, SETTING_DEFAULTS.get(key)))
    if value.dtype.is_float:
        as_array(key, feeds[key], value.shape, value.dtype)  # for its checks; the full precision is kept
        return np.asarray(feeds[key])
    return as_array(key, feeds[key], value.shape, value.dtype)


class NumpyBackend:
    """The references: no kernels, no plan, no memory of its own."""

    name: ClassVar[str] = "numpy"
    planned: ClassVar[bool] = False
    piece_bytes: ClassVar[int] = 0

    def __init__(self, switches: Switches) -> None:
        self.switches = switches

    def available(self) -> tuple[bool, str]:
        return True, "float64 references"

    def signatures(self) -> None:
        return None

    def needs(self, node: Node, args: np.ndarray) -> KernelNeeds:
        return KernelNeeds()

    def allocate(self, bytes: int) -> Buffer:
        raise BackendError("numpy: the references take memory as they run; need backend='cpu' for an arena")

    def load(self, program: Program, plan: Plan | None, arena: Buffer | None = None) -> NumpyExecutable:
        return NumpyExecutable(program, None, self.switches)


class NumpyExecutable(Executable):
    """A program run by the references, step by step."""

    def __init__(self, program: Program, plan: None, switches: Switches) -> None:
        super().__init__(program, plan, switches)
        self._steps_run = 0
        self._stopping = False
        self._updates = [v for n in program.nodes if n.op.updates for v in n.outputs if update_target(v) is not None]
        self._fed: dict[str, Any] = {}
        self._times: dict[Node, list[int]] | None = None  # while profiled: ns of each run of a node

    @property
    def steps_run(self) -> int:
        return self._steps_run

    def checked_inputs(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Names are checked, and ids of i64 that are converted to i32: floats keep the precision that they have."""
        check_names(feeds, self.inputs, {})
        for key in self.narrow_inputs:
            check_whole(f"run: {key}", np.asarray(feeds[key]), np.int32)
        return dict(feeds)

    def copy_in(self, given: Mapping[str, Any]) -> None:
        self._fed = dict(given)

    def stop(self) -> None:
        self._stopping = True

    def collect_times(self, on: bool = True) -> None:
        self._times = {} if on else None

    def timings(self) -> list[tuple[str, int, int]]:
        return [(f"{n.title} {n.label}", min(ns), sum(ns)) for n, ns in (self._times or {}).items()]

    def timed_nodes(self) -> list[tuple[str, Node]]:
        return [("", node) for node in self._times or {}]

    def report(self) -> str:
        """The timings as a table: microseconds, GB/s and GFLOP/s of each node at its fastest."""
        timed = zip(self._times or {}, self.timings(), strict=True)
        return cost_table("numpy, float64", [(node, least, what) for node, (what, least, _) in timed])

    def _timed(self, node: Node, nanoseconds: int) -> None:
        if self._times is not None:
            self._times.setdefault(node, []).append(nanoseconds)

    def run_steps(self, steps: int, settings: Mapping[str, Any], deadline: float) -> tuple[int, list[np.ndarray]]:
        self._stopping, begun = False, time.monotonic()
        rows = {k: np.broadcast_to(np.asarray(v), (steps,)) for k, v in settings.items() if k in self.settings}
        columns: list[list[np.ndarray]] = [[] for _ in self.program.outputs]
        for i in range(steps):
            feeds = self._fed | {k: v[i] for k, v in rows.items()}
            try:
                known = self._evaluated(i, feeds)
            except (GuardTripped, NotFinite, IndexOutOfRange, UserOpError) as failed:
                failed.steps_done = i
                failed.outputs = [np.stack(column) for column in columns] if i else []
                raise
            for column, value in zip(columns, self.program.outputs, strict=True):
                column.append(known[value].copy())
            for value in self._updates:
                stored = storage_leaf(value).node.attrs["stored"]
                stored.write(known[value])
            self._steps_run += 1
            if self._stopping or (deadline and time.monotonic() - begun >= deadline):
                break
        return i + 1, [np.stack(column) for column in columns]

    def _evaluated(self, done: int, feeds: Mapping[str, Any]) -> Mapping[Value, np.ndarray]:
        """All values of a step, after `done` steps."""
        try:
            known = evaluate([*self.program.outputs, *self.program.effects], feeds, timed=self._timed)
        except DataError as error:
            raise IndexOutOfRange(done, str(error)) from None
        self._judge(done, known)
        return known

    def fed(self) -> dict[str, Any]:
        """The inputs that were fed last."""
        return dict(self._fed)

    def _judge(self, done: int, known: Mapping[Value, np.ndarray]) -> None:
        """The errors of the native core, in the same order: with check 2 numbers that are not finite; the guards."""
        for node in self.program.nodes:
            if self.switches.check >= 2 and not node.op.leaf:
                for value in node.outputs:
                    bad = np.flatnonzero(~_finite(known[value])) if value.dtype.is_float else np.empty(0)
                    if len(bad):
                        what = f"a number that is not finite, at element {bad[0]}"
                        raise NotFinite(done, f"{called(node)} produced {what}", node, int(bad[0]))
            if node.op.guard:
                loss, _, *gradients = (known[v] for v in node.inputs if v is not None)
                squares = np.asarray([sum(float(np.sum(np.square(g))) for g in gradients), known[node.outputs[0]] ** 2])
                if not _finite(loss) or not _finite(squares).all():
                    raise GuardTripped(done, f"guard {node.label}: the loss or a gradient is not finite")


def _finite(array: np.ndarray) -> np.ndarray:
    """Which numbers are finite in f32, the dtype of training."""
    with np.errstate(over="ignore"):
        return np.isfinite(array.astype(np.float32))
