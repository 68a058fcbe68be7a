"""Tensor and Trace: what is computed eagerly is taken down first, and computed when somebody looks.

A trace takes down ops as nodes of the same graph that everything else uses. Its nodes are interned: an op, its
attributes and its inputs lead to the node that they made the first time, so a structure seen before costs one look-up
per op, and its program is found by the identity of its values. What varies from time to time goes in through numbered
inputs: arrays, and numbers that stand in expressions. Parameters are leaves as they are.

    tensor, numbers   ->  input 0, 1, ... in the order of their first use
    op(inputs)        ->  Tensor(symbol), symbol = an output of the interned node
    a look            ->  ONE program for all tensors of the trace that are alive and not yet computed
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from .. import ops
from ..base import locks
from ..base.arrays import as_array
from ..base.dtypes import DType, f32
from ..base.dtypes import dtype as as_dtype
from ..base.errors import DTypeError, GradientError, GradloomError, GraphError, NonFiniteError, SettingError, ShapeError
from ..graph.graph import reachable, storage_leaf, update_target
from ..graph.leaves import Parameter, stored_value
from ..graph.leaves import constant as graph_constant
from ..graph.leaves import input as graph_input
from ..graph.numbers import converted, in_expression, kind_of
from ..graph.opspec import OpSpec
from ..graph.stored import Stored, before_read, keep_promise, promise_write, tell_before_writes
from ..graph.value import Node, Shape, Value, describe, graph_mode, recording, user_location
from ..step.step import guard, random_settings
from .cache import Cache, cache_of, common
from .program import Program, slot_name, slot_number

PENDING = 128  # nodes that wait outside of all tapes, at most, when a batch begins
PENDING_MOST = 1024  # and anywhere
LARGE_RECORD = 4096  # bytes of a run's outputs from which on small ones are copied out of it


# ---- tensors ---------------------------------------------------------------------------------------------


class _Outside:
    """Takes down what happens to tensors outside of all tapes: where those came from that are not computed yet (one
    program computes it all), else in the thread's ambient trace."""

    def record(self, op: OpSpec, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        for x in inputs:
            if x.__class__ is Tensor and x.data is None and x.trace.family is not None:
                found = x.trace.record(op, inputs, attrs)
                if x.trace.count > PENDING_MOST:
                    x.trace.look()
                return found
        return ambient().record(op, inputs, attrs)

    def value(self, data: Any) -> Value:
        return _numbers(in_expression(data))

    def follow(self) -> Trace:
        return ambient()


class Tensor(Value):
    """A value that is computed when it is looked at: by numpy(), float(), int(), bool(), item(), print.

    Arithmetic and gl.ops work on it as on any Value. It never changes.
    """

    __slots__ = ("data", "error", "symbol", "trace")
    recorder = _Outside()

    trace: Any  # the Trace that took it down; None: it was given
    symbol: Any  # the Value that it is called there
    data: np.ndarray | None  # None: not yet computed
    error: GradloomError  # why it cannot be

    @property
    def node(self) -> Node:  # type: ignore[override]
        return self._named().node

    @property
    def index(self) -> int:  # type: ignore[override]
        return self._named().index

    def _named(self) -> Value:
        return self.symbol if self.symbol is not None else current().adopt(self)

    def computed(self) -> np.ndarray:
        """The numbers, computed now if they are not yet: not a copy."""
        if self.data is None:
            if self.dtype.is_quantised:
                raise DTypeError(f"tensor: {describe(self)} is not read out; need a cast to f32")
            if not hasattr(self, "error"):
                self.trace.look()
        if self.data is None:
            if hasattr(self, "error"):
                raise self.error
            raise GraphError(f"tensor: {describe(self)} was not looked at before {self.trace.changed} changed")
        return self.data

    def numpy(self) -> np.ndarray:
        """A copy of the numbers."""
        return self.computed().copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:  # type: ignore[override]
        return np.array(self.computed(), dtype)

    def item(self) -> Any:
        """The one number that it holds; ShapeError when there are several."""
        if self.size != 1:
            raise ShapeError(f"item: {describe(self)} holds {self.size} numbers; need one")
        return self.computed().item()

    def tolist(self) -> Any:
        return self.computed().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec else str(self), spec)

    def __repr__(self) -> str:
        shown = np.array2string(self.computed(), precision=6, threshold=20, separator=", ", prefix="tensor(")
        return f"tensor({shown}, {describe(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _given, (self.numpy(), self.dtype)

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: object) -> Tensor:
        return self

    def carry(self, *updates: Value) -> None:
        """Nothing to do: a trace carries out the updates that it takes down."""

    def detach(self) -> Tensor:
        """The same numbers, through which no gradient flows back."""
        return ops.detach(self) if self.dtype.is_float else self


_F32 = np.dtype(np.float32)


_new = object.__new__


def tensor(data: Any, dtype: str | DType | None = None) -> Tensor:
    """A tensor of these numbers (copied): f32 for floats, i32 for whole numbers of NumPy and lists of them, u8 for
    bools, unless `dtype` says which; one whole number of Python is a float. A value of a graph is that value, so that
    one function serves eager loops and graphs; inside of a tape tensors and parameters are themselves, too, and keep
    their gradients.

    Raises ShapeError for rows of different lengths, DTypeError for what holds no numbers or does not fit, and for
    masked arrays.
    """
    taped = recording.get()
    if isinstance(data, Value) and (taped is not None or not isinstance(data, (Tensor, Parameter))):
        if isinstance(data, Parameter):
            data = taped.follow().take(data)  # type: ignore[union-attr]
        return cast("Tensor", data if dtype is None or as_dtype(dtype) is data.dtype else ops.cast(data, dtype))
    trace = getattr(_local, "trace", None)
    if trace is not None and trace.count > PENDING:
        trace.look()
    if isinstance(data, Tensor):
        data = data.computed()
    elif isinstance(data, Parameter):
        data = data.numpy()
    return _numbers(data, dtype)


def _holds_values(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and any(isinstance(x, Value) or _holds_values(x) for x in data)


def _numbers(data: Any, dtype: str | DType | None = None) -> Tensor:
    if dtype is None:  # the usual cases first
        if data.__class__ is np.ndarray and data.dtype is _F32:
            return _given(data.copy(), f32)
        if data.__class__ is float:
            return _given(np.array(data, np.float32), f32)
    if isinstance(data, (list, tuple)) and recording.get() is not None and _holds_values(data):
        raise GradientError(
            "tensor: a list of tensors inside of a tape would lose their gradients; need ops.stack or ops.concat, or "
            f"their numbers: t.numpy(); at {user_location()}"
        )
    try:
        array = as_array("tensor", data)
    except ValueError:
        raise ShapeError("tensor: rows differ in length; need a rectangular array") from None
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise DTypeError(f"tensor: got {array.dtype} data; need numbers")
    kind = kind_of(data) if dtype is None else as_dtype(dtype)
    if kind.is_quantised:
        raise DTypeError(f"tensor: numbers do not become {kind.name}; need Stored.map of its bytes")
    return _given(converted("tensor", array, kind), kind)


def _given(array: np.ndarray, kind: DType) -> Tensor:
    made = _new(Tensor)
    made.trace = made.symbol = None
    made.data, made.shape, made.dtype = array, array.shape, kind
    return made


def _frozen(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Attributes as a key; the two zeros differ."""
    found = []
    for name, x in attrs.items():
        kind = x.__class__
        found.append((name, tuple(x) if kind is list else repr(x) if kind is float and not x else x))
    return tuple(found)


def _same(node: Node) -> Node:
    return node


# ---- random numbers --------------------------------------------------------------------------------------

_seed = 0
_steps = itertools.count(1)


def seed(n: int) -> None:
    """Begin anew with what is drawn eagerly: dropout's masks depend on this seed and on how many traces drew before.

    A tape that was opened with a seed and a step of its own draws by these. SettingError unless n is a whole number.
    """
    global _seed, _steps
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
        raise SettingError(f"seed: {n!r} is not usable; need a whole number")
    _seed, _steps = int(n) % (1 << 63), itertools.count(1)


# ---- traces ----------------------------------------------------------------------------------------------


class Trace:
    """What a tape (or a thread, outside of all tapes) has taken down. See the top of this file."""

    __slots__ = (
        "__weakref__", "adopted", "asked", "cache", "changed", "count", "drawn", "effects", "family", "imported",
        "inner", "known", "latest", "nodes", "over", "paused", "pending", "pinned", "reads", "slopes", "slots", "stale",
        "streams", "successor", "turns", "writes",
    )  # fmt: skip

    def __init__(self, family: object = None, seed: int | None = None, step: int | None = None) -> None:
        self.family = family  # of a tape: shared by the traces that follow one another in it
        self.asked = (seed, step)  # of random ops; None: by gl.seed and its counter
        self.drawn: dict[str, float] = {}  # the settings of random ops, once some are run
        self.over = False  # let go; what is taken down from then on belongs to the successor
        self.successor: Trace | None = None
        self.changed = ""  # the parameter whose change ended it
        self.count = 0  # nodes
        self.slots: list[np.ndarray] = []  # what goes in
        self.adopted: dict[Tensor, Value] = {}  # tensors from elsewhere, and their inputs here
        self.stale: dict[Value, str] = {}  # inputs that stand for tensors of this tape from before a change
        self.pending: list[weakref.ref[Tensor]] = []
        self.known: weakref.WeakValueDictionary[Value, Tensor] | None = None  # symbol -> tensor that is computed
        self.latest: list[Tensor] = []  # computed by the last look
        self.reads: dict[Parameter, int] = {}  # -> version when it was first read
        self.cache: Cache = common  # that of the first parameter which is read
        self.nodes = common.nodes
        self.slopes: list[weakref.ref[Any]] = []  # the Gradients that were asked for
        self.effects: list[Value] = []  # updates to carry out
        self.writes: set[Stored] = set()  # what they write
        self.turns: dict[Stored, int] = {}  # how often this trace has written an array
        self.pinned: list[Tensor] = []
        self.streams: dict[Any, int] = {}  # of random ops: how often each was used
        self.imported: dict[Value, Value] = {}  # graph values -> their interned twins
        self.inner: list[Any] = []  # tapes opened inside of the outermost
        self.paused = 0  # no_grad

    # ---- taking down -----------------------------------------------------------------------------------------

    def record(self, op: OpSpec, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """What the op gives: a Tensor, or a tuple of them; of an update op the parameters that it writes."""
        with locks.building:
            return self.follow()._record(op, inputs, attrs) if self.over else self._record(op, inputs, attrs)

    def _record(self, op: OpSpec, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        values: list[Value | None] = []
        for x in inputs:
            kind = x.__class__
            if kind is Tensor:
                values.append(x.symbol if x.trace is self else self.adopt(x))
            elif kind is Parameter:
                values.append(x if x in self.reads and not self.writes and not self.turns else self._read(x))
            elif x is None:
                values.append(None)
            else:
                found = self._take(x, inputs)
                if found is None:
                    return NotImplemented
                values.append(found)
        node = self._node(op, values, attrs)
        if op.updates:
            return self._carry_out(node)
        self.count += 1
        if len(node.outputs) == 1 and not op.outputs[0].repeated:
            made: Any = self.wrap(node.outputs[0])
        else:
            made = tuple([self.wrap(v) for v in node.outputs])
        if self.family is None and self.count > PENDING_MOST:
            self.look()
        return made

    def _node(self, op: OpSpec, values: Sequence[Value | None], attrs: Mapping[str, Any]) -> Node:
        if not op.foldable and "stream" in attrs:  # the same place of a model, used twice, draws twice
            number = self.streams[attrs["stream"]] = self.streams.get(attrs["stream"], -1) + 1
            if number:
                attrs = {**attrs, "stream": (attrs["stream"] + number * 0x9E3779B97F4A7C15) % (1 << 62)}
        node = self._interned(op, values, attrs)
        for tape in self.inner:
            tape.nodes.add(node)
        return node

    def _interned(self, op: OpSpec, values: Sequence[Value | None], attrs: Mapping[str, Any]) -> Node:
        key = (op, _frozen(attrs) if attrs else (), *values)
        try:
            held = self.nodes.get(key)
        except TypeError:  # an attribute of an unusual kind
            key = (op, _frozen(op.canonical_attrs(attrs)), *values)
            held = self.nodes.get(key)
        node = held() if held is not None else None
        if node is None:
            node = self.cache.intern(key, lambda: op.node(values, attrs))
        return node

    def wrap(self, symbol: Value) -> Tensor:
        """A tensor that stands for the value, to be computed when it is looked at."""
        if self.paused and symbol.dtype.is_float:
            symbol = self._node(ops.detach, (symbol,), {}).outputs[0]
        made = _new(Tensor)
        made.trace, made.symbol, made.data = self, symbol, None
        made.shape, made.dtype = symbol.shape, symbol.dtype
        self.pending.append(weakref.ref(made))
        return made

    def follow(self) -> Trace:
        """The trace that goes on after this one was let go."""
        if self.family is None:
            return ambient()
        last = self
        while last.over:
            if last.successor is None:
                seed, step = last.asked
                last.successor = Trace(last.family, seed, None if step is None else step + 1)
                last.successor.inner, last.successor.paused = last.inner, last.paused
            last = last.successor
        if last is not self:
            self.successor = last
        return last

    def value(self, data: Any) -> Value:
        """Numbers in an expression are inputs: another number is the same structure."""
        return _numbers(in_expression(data))

    def adopt(self, x: Tensor) -> Value:
        """The input that stands here for a tensor from elsewhere."""
        if self.over:
            return self.follow().adopt(x)
        found = self.adopted.get(x)
        if found is None:
            found = self.adopted[x] = self.slot(x.computed(), x.dtype)
            trace, symbol = x.trace, x.symbol
            if trace is not None and trace.family is self.family is not None:
                self.stale.update({} if symbol.node.op is ops.detach else {found: trace.changed})
        return found

    def slot(self, array: np.ndarray, kind: DType) -> Value:
        self.slots.append(array)
        return self._leaf(len(self.slots) - 1, array.shape, kind)

    def _leaf(self, k: int, shape: Shape, kind: DType) -> Value:
        return self.cache.intern((k, shape, kind), lambda: graph_input(slot_name(k), shape, kind).node).outputs[0]

    def _read(self, parameter: Parameter) -> Parameter:
        """The leaf that stands for what the parameter holds now."""
        stored = parameter.stored
        if stored in self.writes:
            self.compute()
        if self.cache is common:
            self.cache = cache_of(parameter)
            self.nodes = self.cache.nodes
        leaf = parameter
        if stored in self.turns:  # what follows from it is not what followed from what it held before
            key = ("turn", parameter, self.turns[stored])
            leaf = self.cache.intern(key, lambda: stored_value(stored).node).outputs[0]  # type: ignore[assignment]
        if leaf not in self.reads:
            before_read((stored,))
            if not self.reads:
                _live[id(self)] = weakref.ref(self)
            self.reads[leaf] = stored.version
        return leaf

    def _take(self, x: Any, inputs: Sequence[Any]) -> Value | None:
        """A number, an array or a value of a graph; None for a value of a graph that stands among its like."""
        if not isinstance(x, Value):
            given = _numbers(in_expression(x))
            assert given.data is not None
            return self.slot(given.data, given.dtype)
        if self.writes or self.turns:
            self.imported.clear()
        found = self.imported.get(x)
        if found is not None:
            return found
        fed = next((n for n in reachable([x]) if n.op.name == "input"), None)
        if fed is not None:
            if not any(isinstance(v, Tensor) for v in inputs):
                return None
            raise GraphError(
                f"tensor: it meets {x.node.label} of a graph that is fed with {fed.attrs['key']!r}; need tensors only "
                f"(gl.tensor) or graph values only (gl.input); at {user_location()}"
            )
        return self._import(x)

    def take(self, x: Value) -> Tensor:
        """A graph value as a tensor of this trace."""
        with locks.building:
            symbol = self._take(x, (x,))
            if symbol is None:
                raise GraphError(f"tensor: {x.node.label} of a graph is fed by name; need a tensor or a number")
            return self.wrap(symbol)

    def _import(self, x: Value) -> Value:
        """The interned twin of a graph value that is made of parameters, constants and settings."""
        for node in reachable([x], effects=True):
            if all(v in self.imported for v in node.outputs):
                continue
            if node.op.name == "parameter":
                made = self._read(node.outputs[0]).node  # type: ignore[arg-type]
            elif node.op.name == "constant":
                data = node.attrs["data"]
                self.imported[node.outputs[0]] = self.slot(data, node.outputs[0].dtype)
                continue
            elif node.op.name == "setting":
                key, kind = node.attrs["key"], node.outputs[0].dtype
                made = self.cache.intern(("setting", key, kind), partial(_same, node))
            else:
                made = self._node(node.op, [None if v is None else self.imported[v] for v in node.inputs], node.attrs)
                if node.op.updates:
                    self._carry_out(made)
            self.imported.update(zip(node.outputs, made.outputs, strict=True))
        return self.imported[x]

    def _carry_out(self, node: Node) -> Any:
        """Take down an update: it is carried out with the next program, once.

        Other traces that read what it writes are computed now, and those that come to read it will have it carried out
        first. So no two traces ever wait for each other.
        """
        targets = [update_target(v) for v in node.outputs]
        leaves = [None if t is None else storage_leaf(t) for t in targets]
        for leaf, value in zip(leaves, node.outputs, strict=True):
            if leaf is not None:
                stored = leaf.node.attrs["stored"]
                for other in others(self):
                    other.overtaken((stored,))
                self.effects.append(value)
                self.writes.add(stored)
                promise_write(stored, self.compute)
        return leaves[0] if len(leaves) == 1 and not node.op.outputs[0].repeated else tuple(leaves)

    # ---- computing -------------------------------------------------------------------------------------------

    def alive(self) -> list[Tensor]:
        """The tensors that somebody may still look at and that are not computed; pending holds them alone then."""
        found = [
            t
            for r in self.pending
            if (t := r()) is not None and t.data is None and not t.dtype.is_quantised and not hasattr(t, "error")
        ]
        self.pending = [weakref.ref(t) for t in found]
        return found

    def look(self) -> None:
        """Compute what is alive; outside of all tapes that is all that was needed of it."""
        with locks.building:
            self.compute()
            if self.family is None:
                self.release("")

    def compute(self) -> None:
        """Run one program for all that is alive, and for the updates that are due.

        Where that fails each is computed alone: one that cannot be computed does not stand in the way of others.
        """
        with locks.building:
            alive = self.alive()
            for held in self.slopes:  # who looks at one gradient looks at the others, too
                slopes = held()
                if slopes is not None:
                    alive += slopes.hold(alive)
            if not alive and not self.effects:
                return
            try:
                self._compute_guarded(alive)
            except GradloomError:
                self.drop_effects()
                for t in alive:
                    self._compute_alone(t)
            self.remember([t for t in alive if t.data is not None])

    def _compute_alone(self, t: Tensor) -> None:
        try:
            self._compute([t])
        except GradloomError as error:
            t.error = error

    def _compute_guarded(self, alive: Sequence[Tensor]) -> None:
        try:
            self._compute(alive)
        except NonFiniteError:  # the guard before the updates: they are left out
            if not self.effects:
                raise
            self.drop_effects()
            self._compute(alive)

    def remember(self, computed: Sequence[Tensor]) -> None:
        """These need not be computed again for a look at what depends on them: for as long as somebody holds them, and
        until the next look in any case, so that a loop that looks computes one turn at a time."""
        if self.known is None:
            self.known = weakref.WeakValueDictionary()
        self.known.update((t.symbol, t) for t in computed)
        self.latest = list(computed)

    def _compute(self, alive: Sequence[Tensor]) -> None:
        symbols: Sequence[Value] = [t.symbol for t in alive]
        effects, slots = tuple(self.effects), self.slots
        if self.known:
            found, slots = self._piece((*symbols, *effects))
            symbols, effects = [found[v] for v in symbols], tuple(found[v] for v in effects)
        outputs = tuple(dict.fromkeys(symbols))
        program = self.cache.program((outputs, effects), lambda: self._look(outputs, effects))
        if effects:
            self.settle(program.writes)
        self.run(program, zip(alive, symbols, strict=True), slots, {})

    @staticmethod
    def _look(outputs: tuple[Value, ...], effects: tuple[Value, ...]) -> Program:
        if effects:
            with graph_mode():
                written = [v for u in effects for v in u.node.inputs if v is not None and not isinstance(v, Parameter)]
                zero, one = graph_constant(0.0), graph_constant(1.0)
                floats = [v for v in dict.fromkeys(written) if v.dtype is f32]
                outputs = (*outputs, guard(zero, one, floats))
        return Program(outputs, effects)

    def _piece(self, wanted: Sequence[Value]) -> tuple[dict[Value, Value], list[np.ndarray]]:
        """The wanted values as they follow from those that are computed already: what they are called in a structure of
        its own, which is the same for every turn of a loop, and what goes in."""
        assert self.known is not None
        known: dict[Value, np.ndarray] = {}
        needed: set[Node] = set()
        todo = list(wanted)
        while todo:
            value = todo.pop()
            computed = self.known.get(value)
            if computed is not None and computed.data is not None:
                known[value] = computed.data
            elif value.node not in needed:
                needed.add(value.node)
                todo.extend(v for v in value.node.inputs if v is not None)
        named: dict[Value, Value] = {}
        slots: list[np.ndarray] = []

        def slot(value: Value, array: np.ndarray) -> None:
            slots.append(array)
            named[value] = self._leaf(len(slots) - 1, array.shape, value.dtype)

        for value, array in known.items():
            slot(value, array)
        for node in sorted(needed, key=lambda n: n.id):
            if node.op.name == "input":
                slot(node.outputs[0], self.slots[slot_number(node.attrs["key"])])
            elif node.op.leaf:
                named[node.outputs[0]] = node.outputs[0]
            else:
                values = [None if v is None else named[v] for v in node.inputs]
                for old, new in zip(node.outputs, self._interned(node.op, values, node.attrs).outputs, strict=True):
                    named.setdefault(old, new)
        return named, slots

    def settle(self, stored: Collection[Stored]) -> None:
        """Before this trace writes these arrays: what is outstanding elsewhere is done first."""
        for one in self.writes:
            keep_promise(one)
        before_read(stored)
        for other in others(self):
            other.overtaken(stored)

    def run(
        self,
        program: Program,
        alive: Iterable[tuple[Tensor, Value]],
        slots: Sequence[np.ndarray],
        settings: Mapping[str, float],
    ) -> None:
        """Run the program for these tensors, each with its output; the updates that were due are done then."""
        if program.draws:
            settings = {**self._draws(), **settings}
        found = dict(zip(program.outputs, program.run(slots, settings), strict=True))
        total = program.executable.record_bytes
        alive = list(alive)
        for t, output in alive:
            array = found[output]
            t.data = array.copy() if total > LARGE_RECORD and 2 * array.nbytes < total else array
        if self.effects:
            for stored in self.writes:
                self.turns[stored] = self.turns.get(stored, 0) + 1
            self._pin([t for t, _ in alive])
            self.effects.clear()
            self.writes.clear()

    def _pin(self, alive: Sequence[Tensor]) -> None:
        """What was computed from the arrays that this trace has just written cannot be computed again: it is kept."""
        computed = [*alive, *([] if self.known is None else self.known.values())]
        leaves = (n for n in reachable([t.symbol for t in computed]) if n.op.name == "parameter")
        if any(n.attrs["stored"] in self.writes for n in leaves):
            self.pinned += computed

    def _draws(self) -> dict[str, float]:
        """The settings of random ops: one step for all that this trace draws."""
        if not self.drawn:
            seed, step = self.asked
            self.drawn = random_settings(_seed if seed is None else seed, next(_steps) if step is None else step)
        return self.drawn

    def drop_effects(self) -> None:
        for stored in self.writes:
            keep_promise(stored)
        self.effects.clear()
        self.writes.clear()

    # ---- ends ------------------------------------------------------------------------------------------------

    def overtaken(self, stored: Container[Stored]) -> None:
        """These arrays are about to be written: compute what was to read them."""
        hit = self.reader(stored)
        if hit is not None and not self.over:
            self.compute()
            self.release(hit)

    def reader(self, stored: Container[Stored]) -> str | None:
        """The name of a parameter among these arrays that this trace reads."""
        return next((p.name or "a parameter" for p in list(self.reads) if p.stored in stored), None)

    def release(self, changed: str) -> None:
        """Let go of what was taken down: all that somebody may look at is computed."""
        _live.pop(id(self), None)
        self.over, self.changed = True, changed
        self.slots, self.pending, self.slopes, self.latest = [], [], [], []
        self.adopted, self.imported, self.reads = {}, {}, {}
        self.known, self.pinned = None, []


_live: dict[int, weakref.ref[Trace]] = {}  # the traces that read parameters
_local = threading.local()


def others(mine: Trace | None = None) -> list[Trace]:
    """The other traces that read parameters."""
    if len(_live) <= (mine is not None and id(mine) in _live):
        return []
    found = [(k, r()) for k, r in list(_live.items())]
    for k, trace in found:
        if trace is None:
            _live.pop(k, None)
    return [t for _, t in found if t is not None and t is not mine]


def _awaited(stored: Iterable[Stored]) -> bool:
    """Whether a trace reads these arrays."""
    if not _live:
        return False
    listed = set(stored)
    return any(trace.reader(listed) is not None for trace in others())


def _before_write(stored: Iterable[Stored]) -> None:
    if _live:
        with locks.building:
            listed = set(stored)
            for trace in others():
                trace.overtaken(listed)


tell_before_writes(_before_write, _awaited)


def ambient() -> Trace:
    """The trace of this thread outside of all tapes."""
    trace = getattr(_local, "trace", None)
    if trace is None or trace.over:
        trace = _local.trace = Trace()
    return trace


def current() -> Any:
    """What takes down now: the trace of the open tape, else the ambient one."""
    active = recording.get()
    return ambient() if active is None else active
