"""The definition: walks the graph and applies each op's NumPy reference, in float64 unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import DataError, GuardTripped, IndexOutOfRange, NotFinite
from ..graph.composition import as_real, by_reference
from ..graph.graph import mapped_checks, reachable, storage_leaf, update_target, written
from ..graph.stored import dequantised, held
from ..graph.value import Value
from ..transform.program import Program
from .cpu_backend import called
from .feeds import SETTING_DEFAULTS, as_array, check_names, leaves


def evaluate(
    values: Sequence[Value],
    feeds: Mapping[str, Any] | None = None,
    overrides: Mapping[Value, np.ndarray] | None = None,
    precision: str = "f64",
) -> dict[Value, np.ndarray]:
    """Every value that `values` need, computed by the references.

    feeds: inputs and settings by name. overrides: contents to use instead of those of some values (parameters).
    precision: "f64" or "f32", what float values are computed in.
    """
    feeds = feeds or {}
    overrides = overrides or {}
    nodes = reachable(values)
    inputs, settings = leaves(nodes, "input"), leaves(nodes, "setting")
    check_names(feeds, inputs, settings)
    real = np.dtype(np.float64 if precision == "f64" else np.float32)
    known: dict[Value, np.ndarray] = {}
    stored = [n.outputs[0] for n in nodes if n.op.name == "parameter"]
    with held([v.node.attrs["stored"] for v in stored]):  # all of one moment
        known.update((v, as_real(np.asarray(_leaf_data(v, feeds)), v.dtype, real, copy=True)) for v in stored)
    for node in nodes:
        if node.op.leaf:
            value = node.outputs[0]
            if value not in known:
                known[value] = as_real(_leaf_data(value, feeds), value.dtype, real)
        else:
            arrays = [None if v is None else known[v] for v in node.inputs]
            results = by_reference(node, arrays)
            known.update((v, as_real(r, v.dtype, real)) for v, r in zip(node.outputs, results, strict=True))
        for value in node.outputs:
            if value in overrides:
                known[value] = as_real(np.asarray(overrides[value]), value.dtype, real)
    return known


def _leaf_data(value: Value, feeds: Mapping[str, Any]) -> Any:
    node = value.node
    if node.op.name == "constant":
        return node.attrs["data"]
    if node.op.name == "parameter":
        stored = node.attrs["stored"]
        return dequantised(stored.array, stored.dtype, stored.shape) if stored.dtype.is_quantised else stored.array
    key = node.attrs["key"]
    if node.op.name == "setting":
        return np.asarray(feeds.get(key, SETTING_DEFAULTS.get(key)))
    if value.dtype.is_float:
        as_array(key, feeds[key], value.shape, value.dtype)  # for its checks; the full precision is kept
        return np.asarray(feeds[key])
    return as_array(key, feeds[key], value.shape, value.dtype)


class NumpyExecutable:
    """A program run by the references; the same face as the CPU executable."""

    def __init__(self, program: Program, precision: str = "f64", check: int = 0) -> None:
        self.program = program
        self.precision = precision
        self.check = check
        nodes = program.nodes
        self.inputs, self.settings = leaves(nodes, "input"), leaves(nodes, "setting")

        self._checks = mapped_checks(nodes)
        self._updates = [v for n in nodes if n.op.updates for v in n.outputs if update_target(v) is not None]
        self.record_bytes = sum(v.bytes for v in program.outputs)
        self._fed: dict[str, Any] = {}

    def __call__(self, **feeds: Any) -> list[np.ndarray]:
        if self.settings:
            check_names(feeds, self.inputs, self.settings)
        for key, value in self.settings.items():
            as_array(key, feeds.get(key, SETTING_DEFAULTS.get(key)), (), value.dtype)  # for its checks
        settings = {k: v for k, v in feeds.items() if k in self.settings}
        inputs = {k: v for k, v in feeds.items() if k not in self.settings}
        return [r[0] for r in self.run_many(1, settings, feeds=inputs)[1]]

    def feed(self, feeds: Mapping[str, Any]) -> None:
        check_names(feeds, self.inputs, {})
        self._fed = dict(feeds)

    def run_many(
        self,
        steps: int,
        settings: Mapping[str, Any],
        deadline: float = 0.0,
        feeds: Mapping[str, Any] | None = None,
    ) -> tuple[int, list[np.ndarray]]:
        """So many steps, one after the other; see CpuExecutable.run_many."""
        stored = [n.attrs["stored"] for n in self.program.nodes if n.op.name == "parameter"]
        with held(stored, written(self.program.nodes)):
            if feeds is not None:
                self.feed(feeds)
            return self._run(steps, settings)

    def _run(self, steps: int, settings: Mapping[str, Any]) -> tuple[int, list[np.ndarray]]:
        for check in self._checks:
            check()
        rows = {k: np.broadcast_to(np.asarray(v), (steps,)) for k, v in settings.items() if k in self.settings}
        found: list[list[np.ndarray]] = [[] for _ in self.program.outputs]
        for i in range(steps):
            feeds = self._fed | {k: v[i] for k, v in rows.items()}
            try:
                known = evaluate([*self.program.outputs, *self.program.effects], feeds, precision=self.precision)
            except DataError as error:
                raise IndexOutOfRange(i, str(error)) from None
            self._judge(i, known)
            for column, value in zip(found, self.program.outputs, strict=True):
                column.append(known[value].copy())
            for value in self._updates:
                stored = storage_leaf(value).node.attrs["stored"]
                stored.write(known[value])
        return steps, [np.stack(column) for column in found]

    def fed(self) -> dict[str, Any]:
        """The inputs that were fed last."""
        return dict(self._fed)

    def _judge(self, done: int, known: Mapping[Value, np.ndarray]) -> None:
        """What the native core refuses, in the same order: with check 2 a number that is not finite; the guards."""
        for node in self.program.nodes:
            if self.check >= 2 and not node.op.leaf:
                for value in node.outputs:
                    bad = np.flatnonzero(~_finite(known[value])) if value.dtype.is_float else np.empty(0)
                    if len(bad):
                        what = f"a number that is not finite, at element {bad[0]}"
                        raise NotFinite(done, f"{called(node)} produced {what}", node, int(bad[0]))
            if node.op.guard:
                loss, _, *gradients = (known[v] for v in node.inputs if v is not None)
                squares = sum(float(np.sum(np.square(g))) for g in gradients)
                if not _finite(loss) or not _finite(np.asarray(squares)):
                    raise GuardTripped(done, f"guard {node.label}: the loss or a gradient is not finite")


def _finite(array: np.ndarray) -> np.ndarray:
    """Which numbers are finite in f32, which is what is trained in."""
    with np.errstate(over="ignore"):
        return np.isfinite(array.astype(np.float32))
