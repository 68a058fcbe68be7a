"""Watch: values and gradients of a program at some of its steps, computed by a program of its own.

A watched step runs twice: first a program that ends in the watched values, with the same inputs and settings, then the
program itself, which is the same with and without watching. Arrays that the first one writes (running statistics,
caches) are restored. So no bit of a run changes, and other steps cost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..base.arguments import as_whole, nearest, what_is
from ..base.dtypes import f32
from ..base.errors import GraphError, GuardTripped, IndexOutOfRange, NotFinite, SettingError
from ..base.interval import as_interval
from ..base.terminal import in_one_line
from ..graph.grad import gradients
from ..graph.graph import reachable
from ..graph.leaves import constant
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Value, builds_graphs, describe
from .compile import compile as compile_program
from .executable import Executable
from .show import print_value, silent

KINDS = ("norm", "histogram", "values")
GRADIENT = "grad:"  # before a pattern: gradients of the values
BINS = 64  # of a histogram
OnValues = Callable[[int, Mapping[str, Any]], object]


class Watch:
    """The watched values of a program. `close()` ends it.

    names    of the values
    records  (step, {name: value}) of each watched step so far, unless they go to on_values; latest: the last one
    run      the program that computes them: run.plan is its proved plan
    """

    def __init__(
        self, program: Executable, run: Any, names: Sequence[str], what: str, every: int, on_values: OnValues | None,
        clock: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        """clock: the number of the next step, from 1; by default the steps of the program since now are counted."""
        self.run, self.names, self.what, self.every = run, tuple(names), what, every
        self.records: list[tuple[int, Mapping[str, Any]]] = []
        self._program, self._on_values, self._clock = program, on_values, clock
        self._first = program.steps_run
        program.watches = (*program.watches, self)

    def __repr__(self) -> str:
        return f"Watch({self.what} of {len(self.names)} values every {self.every} steps)"

    @property
    def latest(self) -> Mapping[str, Any]:
        """The values of the last watched step; {} before it."""
        return self.records[-1][1] if self.records else {}

    def close(self) -> None:
        """Watch no further step."""
        self._program.watches = tuple(each for each in self._program.watches if each is not self)

    # ---- called by the program ---------------------------------------------------------------------------------

    def number(self) -> int:
        """The number of the next step."""
        return self._program.steps_run - self._first + 1 if self._clock is None else self._clock()

    def ahead(self, number: int) -> int:
        """How many steps, from the one of this number on, come before the next watched one."""
        return -number % self.every

    def observe(self, number: int, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Compute the values of the step of this number. A step that fails has none: the program itself reports it."""
        feeds = {key: inputs[key] for key in self.run.inputs}
        used = {key: settings[key] for key in self.run.settings}
        with contextlib.suppress(GuardTripped, NotFinite, IndexOutOfRange), self.run.held(), self.run.restored():
            _, outputs = self.run.run_many(1, used, feeds=feeds)
            found = {name: shown(self.what, array[0]) for name, array in zip(self.names, outputs, strict=True)}
            if self._on_values is None:
                self.records.append((number, found))
            else:
                self._on_values(number, found)


def shown(what: str, array: np.ndarray) -> Any:
    """A watched value: a float, a dict with counts and edges of a histogram, or the array."""
    if what == "norm":
        return float(array)
    return histogram(array) if what == "histogram" else array


def histogram(array: np.ndarray) -> dict[str, Any]:
    """counts of BINS equal bins between the least and the largest finite number, their edges, and how many numbers are
    not finite."""
    numbers = array.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    counts, edges = np.histogram(finite, BINS) if finite.size else (np.zeros(0, np.int64), np.zeros(0))
    return {"counts": counts.tolist(), "edges": edges.tolist(), "not_finite": int(numbers.size - finite.size)}


def watch(executable: Executable, patterns: Any, every: Any, what: Any, on_values: OnValues | None) -> Watch:
    """See Executable.watch."""
    origin = executable.origin
    if origin is None:
        raise SettingError("watch: this program was not made by gl.compile; use gl.compile")
    check_what(what, "watch")
    steps = as_every(every, "watch")
    roots = [*origin.outputs, *origin.updates]
    loss = next((v for v in origin.outputs[:1] if v.shape == () and v.dtype is f32), None)
    found = targets(patterns, roots, loss, place="watch")
    with silent():
        run = compile_program(outputs_of(found, what), **origin.options)
    return Watch(executable, run, [*found], what, steps, on_values)


@builds_graphs
def print_shown(executable: Executable, nodes: Sequence[Node]) -> None:
    """Print the values that these nodes of gl.ops.show mark, before each step of a program."""
    origin = executable.origin
    assert origin is not None
    for every in dict.fromkeys(node.attrs["every"] for node in nodes):
        own = [node for node in nodes if node.attrs["every"] == every]
        with silent():
            run = compile_program([_readable(node.inputs[0]) for node in own], **origin.options)
        names = [node.name or "show" for node in own]

        def on_values(number: int, values: Mapping[str, Any], names: Sequence[str] = names) -> None:
            for name, array in zip(names, values.values(), strict=True):
                print_value(name, array)

        keys = [str(k) for k in range(len(own))]
        Watch(executable, run, keys, "values", every, on_values, _clock(executable, every))


def _clock(executable: Executable, every: int) -> Callable[[], int]:
    """The number of the next call, so that the first one is a multiple of `every`."""
    first = executable.steps_run
    return lambda: executable.steps_run - first + every


def _readable(value: Value | None) -> Value:
    assert value is not None
    return REGISTRY["cast"](value, dtype="f32") if value.dtype.name in ("bf16", "f16") else value


def check_what(what: Any, place: str = "", setting: str = "what") -> None:
    """SettingError for another kind than KINDS."""
    if what not in KINDS:
        raise SettingError(setting=setting, seen=what, need=" or ".join(map(repr, KINDS)), place=place)


def as_every(every: Any, place: str = "", setting: str = "every") -> int:
    """The number of steps of "10steps" or 10."""
    if isinstance(every, str):
        return int(as_interval(setting, every, "steps", place=place).number)
    return as_whole(setting, every, 1, place)


@builds_graphs
def outputs_of(values: Mapping[str, Value], what: str) -> list[Value]:
    """The outputs of a program that watches these values: of "norm" f32[] each, else the values in f32."""
    made = [value if value.dtype is f32 else REGISTRY["cast"](value, dtype="f32") for value in values.values()]
    return [REGISTRY["grad_norm"](constant(1.0), value) for value in made] if what == "norm" else made


# ---- names -----------------------------------------------------------------------------------------------------------


def known_values(roots: Sequence[Value]) -> dict[str, Value]:
    """The values that patterns can match, by name.

    An input or parameter by its own name; a node that was named; a module by its path: the value that was computed last
    inside of it, its output. Of a module that is called several times that of the last call. Gradients, updates and
    frozen arrays (mapped weights, data sets) are left out.
    """
    computed: dict[str, Value] = {}
    leaves: dict[str, Value] = {}
    nodes = reachable(roots)
    rows = {value for node in nodes if node.op.name == "take_batch" for value in node.inputs}
    for node in nodes:
        value, op = node.outputs[0], node.op
        if not value.dtype.is_float or value.dtype.is_quantised or value in rows:
            continue
        if op.name == "parameter":
            if node.attrs["stored"].role != "frozen":
                leaves.setdefault(node.attrs["stored"].name, value)
        elif op.name == "input":
            leaves.setdefault(str(node.attrs["key"]), value)
        elif not (op.leaf or op.updates or op.guard) and node.name and not _is_gradient(node):
            parts = node.name.split(".")
            computed.update({".".join(parts[: i + 1]): value for i in range(len(parts))})
    return {**computed, **{name: value for name, value in leaves.items() if name}}


def _is_gradient(node: Node) -> bool:
    """Whether the node belongs to a gradient: it is named after its node, "NAME.grad"."""
    return "grad" in node.name.split(".")[1:]


@builds_graphs
def targets(
    patterns: Any, roots: Sequence[Value], loss: Value | None, weight: Value | None = None, place: str = "",
    setting: str = "patterns",
) -> dict[str, Value]:  # fmt: skip
    """The values that patterns or nodes name, by their names; "grad:NAME" their gradients.

    roots: outputs and updates of the program. loss: gradients are its own, divided by the weight. SettingError, with
    near names, for a pattern that matches nothing; GraphError for a value of another program."""
    given = list(patterns) if isinstance(patterns, (list, tuple)) else [patterns]
    names, found, wanted = known_values(roots), dict[str, Value](), dict[str, Value]()
    nodes = set(reachable(roots))
    for one in given:
        if isinstance(one, (Value, Node)):
            value = one.outputs[0] if isinstance(one, Node) else one
            if value.node not in nodes:
                raise GraphError(f"watch: {value.node.label} ({describe(value)}) is not a part of this program")
            name = value.node.name or f"{value.node.op.name}#{value.node.id}"
            found[name if found.get(name, value) is value else f"{name}#{value.node.id}"] = value
        elif isinstance(one, str) and one.removeprefix(GRADIENT):
            pattern = one.removeprefix(GRADIENT)
            hits = {name: value for name, value in names.items() if fnmatchcase(name, pattern)}
            if not hits:
                hint = nearest(pattern, names, f"names: {', '.join([*names][:8]) or 'none'}")
                text = f"{{{setting}}}: {one!r} matches no module, node, input or parameter{hint}"
                raise SettingError(in_one_line(text), setting=setting, place=place)
            (wanted if one != pattern else found).update(hits)
        else:
            need = "a pattern of names, such as 'blk.*', a node, or several"
            seen = one if isinstance(one, str) else what_is(one)
            raise SettingError(setting=setting, seen=seen, need=need, place=place)
    if not given:
        raise SettingError(setting=setting, seen=patterns, need="at least one pattern or node", place=place)
    return {**found, **_gradients(wanted, loss, weight, setting, place)}


def _gradients(
    wanted: Mapping[str, Value], loss: Value | None, weight: Value | None, setting: str, place: str
) -> dict[str, Value]:
    """The gradients of the loss by these values, by "grad:NAME", as far as it depends on them."""
    if not wanted:
        return {}
    if loss is None:
        text = f"{{{setting}}}: {GRADIENT} requires a program whose first output is a loss, f32[]"
        raise SettingError(text, setting=setting, place=place)
    able = {name: v for name, v in wanted.items() if v.dtype is f32}
    made = dict(zip(able, gradients(loss, list(able.values())), strict=True))
    found = {GRADIENT + name: g if weight is None else g / weight for name, g in made.items() if g is not None}
    if not found:
        name = in_one_line(next(iter(wanted)), 80)
        text = f"{{{setting}}}: {GRADIENT}{name} has no gradient: the loss does not depend on it"
        raise SettingError(text, setting=setting, place=place)
    return found
