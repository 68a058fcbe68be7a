"""Trace: eager operations are recorded first and computed when a value is read.

A trace records ops as nodes of the same graph that everything else uses. Its nodes are interned: an op, its
attributes and its inputs lead to the node that they made the first time, so a structure seen before costs one look-up
per op, and its program is found by the identity of its values. What varies from time to time goes in through numbered
inputs: arrays, and numbers that stand in expressions. Parameters are leaves as they are.

    tensor, numbers   ->  input 0, 1, ... in the order of their first use
    op(inputs)        ->  Tensor(symbol), symbol = an output of the interned node
    a look            ->  ONE program for all tensors of the trace that are alive and not yet computed
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from typing import Any

from .. import ops
from ..base import locks
from ..base.dtypes import DType, f32
from ..base.errors import GradloomError, GraphError, NonFiniteError, SettingError
from ..graph.declaration import Declaration
from ..graph.graph import reachable, storage_leaf, update_target
from ..graph.leaves import Parameter, stored_value
from ..graph.leaves import constant as graph_constant
from ..graph.numbers import in_expression
from ..graph.scope import asked_device, user_location
from ..graph.stored import Stored, before_read, keep_promise, promise_write
from ..graph.streams import counted_stream
from ..graph.value import Node, Value, graph_mode, recording
from ..step.step import guard
from .cache import Cache, cache_of, common
from .cut import cut_at
from .draws import draw_settings
from .live import others, register, unregister
from .options import DEFAULTS, TapeOptions
from .program import EagerProgram
from .tensors import Numbers, Tensor, new_tensor, numbers

PENDING = 128  # nodes that wait outside of all tapes, at most, when a batch begins
PENDING_MOST = 1024  # and anywhere


class Trace:
    """The recording of a tape (or of a thread, outside all tapes). See the top of this file."""

    __slots__ = (
        "__weakref__", "adopted", "asked", "cache", "changed", "count", "counts", "drawn", "effects", "family",
        "imported", "inner", "known", "latest", "options", "over", "paused", "pending", "pinned", "reads", "slopes",
        "slots", "stale", "streams", "successor", "writes", "written",
    )  # fmt: skip

    def __init__(
        self, family: object = None, seed: int | None = None, step: int | None = None, options: TapeOptions = DEFAULTS
    ) -> None:
        self.family = family  # of a tape: shared by the traces that follow one another in it
        self.options = options  # of its programs
        self.asked = (seed, step)  # of random ops; None: gl.seed's, and the next count
        self.drawn: dict[str, float] = {}  # the settings of random ops, once some are run
        self.over = False  # ended: the successor records
        self.successor: Trace | None = None
        self.changed = ""  # the parameter whose change ended it
        self.count = 0  # nodes
        self.slots: list[Numbers] = []  # what goes in
        self.adopted: dict[Tensor, Value] = {}  # tensors from elsewhere, and their inputs here
        self.stale: dict[Value, str] = {}  # inputs that stand for tensors of this tape from before a change
        self.pending: list[weakref.ref[Tensor]] = []
        self.known: weakref.WeakValueDictionary[Value, Tensor] | None = None  # symbol -> tensor that is computed
        self.latest: list[Tensor] = []  # computed by the last look
        self.reads: dict[Parameter, int] = {}  # -> version when it was first read
        self.cache: Cache = common  # that of the first parameter which is read
        self.slopes: list[weakref.ref[Any]] = []  # the Gradients that were asked for
        self.effects: list[Value] = []  # updates to carry out
        self.writes: set[Stored] = set()  # arrays that they write
        self.written: dict[Stored, int] = {}  # how often this trace has written an array
        self.pinned: list[Tensor] = []
        self.counts: dict[str, int] = {}  # scope -> ordinal of its last random node
        self.streams: dict[Hashable, int] = {}  # streams that were given, calls of Python: how often each was used
        self.imported: dict[Value, Value] = {}  # graph values -> their interned twins
        self.inner: list[Any] = []  # tapes opened inside of the outermost
        self.paused = 0  # no_grad

    # ---- recording -------------------------------------------------------------------------------------------

    def record(self, op: Declaration, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """The outputs of the op: a Tensor, or a tuple of them; of an update op the parameters that it writes."""
        if locks.in_functions:
            locks.refuse_in_user_code(f"{op.name} of tensors")
        with locks.building:
            return self.follow()._record(op, inputs, attrs) if self.over else self._record(op, inputs, attrs)

    def _record(self, op: Declaration, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        values: list[Value | None] = []
        for x in inputs:
            kind = x.__class__
            if kind is Tensor:
                values.append(x.symbol if x.trace is self else self.adopt(x))
            elif kind is Parameter:
                values.append(x if x in self.reads and not self.writes and not self.written else self._read(x))
            elif x is None:
                values.append(None)
            else:
                symbol = self._take(x, inputs)
                if symbol is None:
                    return NotImplemented
                values.append(symbol)
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

    def _node(self, op: Declaration, values: Sequence[Value | None], attrs: Mapping[str, Any]) -> Node:
        if asked_device() is not None:
            raise SettingError(
                f"{op.name}: gl.device({asked_device()!r}) is for nodes of a graph, and this is computed eagerly; need "
                "gl.grad_tape(device=...), or a model that gl.compile, gl.fit or a Trainer builds"
            )
        if op.stream is not None:  # the same place of a model, used twice, draws twice
            attrs = {**attrs, op.stream: self._stream(attrs.get(op.stream))}
        node = self.cache.node(op, values, attrs, self.streams)
        for tape in self.inner:
            tape.nodes.add(node)
        return node

    def _stream(self, given: int | None) -> int:
        """The next stream of the scope; of a stream that is given itself the first time, then others."""
        if given is None:
            return counted_stream(self.counts)
        number = self.streams[given] = self.streams.get(given, -1) + 1
        return (given + number * 0x9E3779B97F4A7C15) % (1 << 62) if number else given

    def wrap(self, symbol: Value) -> Tensor:
        """A tensor that represents the value, computed when it is read."""
        if self.paused and symbol.dtype.is_float:
            symbol = self._node(ops.detach, (symbol,), {}).outputs[0]
        made = new_tensor(Tensor)
        made.trace, made.symbol, made.data, made.error = self, symbol, None, None
        made.shape, made.dtype = symbol.shape, symbol.dtype
        self.pending.append(weakref.ref(made))
        return made

    def follow(self) -> Trace:
        """The trace that continues after this one has ended."""
        if self.family is None:
            return ambient()
        last = self
        while last.over:
            if last.successor is None:
                seed, step = last.asked
                last.successor = Trace(last.family, seed, None if step is None else step + 1, last.options)
                last.successor.inner, last.successor.paused = last.inner, last.paused
            last = last.successor
        if last is not self:
            self.successor = last
        return last

    def value(self, data: Any) -> Value:
        """Numbers in an expression are inputs: another number is the same structure."""
        return numbers(in_expression(data))

    def adopt(self, x: Tensor) -> Value:
        """The input that represents a tensor of another trace."""
        if self.over:
            return self.follow().adopt(x)
        symbol = self.adopted.get(x)
        if symbol is None:
            symbol = self.adopted[x] = self.slot(x.wherever(), x.dtype)
            trace = x.trace
            if trace is not None and trace.family is self.family is not None and x.symbol.node.op is not ops.detach:
                self.stale[symbol] = trace.changed
        return symbol

    def slot(self, array: Numbers, kind: DType) -> Value:
        self.slots.append(array)
        return self.cache.input(len(self.slots) - 1, array.shape, kind)

    def _read(self, parameter: Parameter) -> Parameter:
        """The leaf that represents the current contents of the parameter."""
        stored = parameter.stored
        if stored in self.writes:
            self.compute()
        if self.cache is common:
            self.cache = cache_of(parameter)
        leaf = parameter
        if stored in self.written:  # values computed from its new contents differ from those computed before
            key = ("written", parameter, self.written[stored])
            leaf = self.cache.intern(key, lambda: stored_value(stored).node).outputs[0]  # type: ignore[assignment]
        if leaf not in self.reads:
            before_read((stored,))
            if not self.reads:
                register(self)
            self.reads[leaf] = stored.version
        return leaf

    def _take(self, x: Any, inputs: Sequence[Any]) -> Value | None:
        """The value that represents a number, an array or a graph value; None where all inputs belong to a graph."""
        if not isinstance(x, Value):
            given = numbers(in_expression(x))
            assert given.data is not None
            return self.slot(given.data, given.dtype)
        if self.writes or self.written:
            self.imported.clear()
        twin = self.imported.get(x)
        if twin is not None:
            return twin
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
                made = self.cache.setting(("setting", key, kind), node)
            else:
                made = self._node(node.op, [None if v is None else self.imported[v] for v in node.inputs], node.attrs)
                if node.op.updates:
                    self._carry_out(made)
            self.imported.update(zip(node.outputs, made.outputs, strict=True))
        return self.imported[x]

    def _carry_out(self, node: Node) -> Any:
        """Record an update: it is carried out with the next program, once. Other traces that read the arrays it writes
        are computed now, and later readers will execute it first. So no two traces ever wait for each other."""
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
        """The tensors that are still referenced and not computed; pending holds only these afterwards."""
        alive = [
            t
            for r in self.pending
            if (t := r()) is not None and t.data is None and not t.dtype.is_quantised and t.error is None
        ]
        self.pending = [weakref.ref(t) for t in alive]
        return alive

    def look(self) -> None:
        """Compute all live tensors; outside all tapes the recording is then complete."""
        with locks.building:
            self.compute()
            if self.family is None:
                self.release("")

    def compute(self, ends: bool = False) -> None:
        """Run one program for all that is alive, and for the updates that are due. ends: the trace is about to end;
        where one of several gradients was asked for, the others are computed too.

        Where that fails each is computed alone: one that cannot be computed does not stand in the way of others.
        """
        locks.refuse_in_user_code("a tensor is computed")
        with locks.building:
            alive = self.alive()
            for held in self.slopes:  # a caller that reads one gradient reads the others as well
                slopes = held()
                if slopes is not None:
                    alive += slopes.hold(alive, ends)
            if not alive and not self.effects:
                return
            try:
                self._compute_guarded(alive)
            except GradloomError:
                self.drop_effects()
                results = [self._compute_alone(t) for t in alive]
                for t, data in zip(alive, results, strict=True):
                    t.data = data  # not before: a function of gl.op reads none of them, in whatever order
            self.remember([t for t in alive if t.data is not None])

    def _compute_alone(self, t: Tensor) -> Numbers | None:
        """The numbers of this tensor, which it does not hold yet; None where they cannot be computed."""
        try:
            self._compute([t])
        except GradloomError as error:
            t.error = error
        t.data, data = None, t.data
        return data

    def _compute_guarded(self, alive: Sequence[Tensor]) -> None:
        try:
            self._compute(alive)
        except NonFiniteError:  # the guard before the updates: they are left out
            if not self.effects:
                raise
            self.drop_effects()
            self._compute(alive)

    def remember(self, computed: Sequence[Tensor]) -> None:
        """Keep these values for reads of tensors that depend on them: as long as they are referenced, and
        at least until the next read, so that a loop with reads computes one iteration at a time."""
        if self.known is None:
            self.known = weakref.WeakValueDictionary()
        self.known.update((t.symbol, t) for t in computed)
        self.latest = list(computed)

    def _compute(self, alive: Sequence[Tensor]) -> None:
        symbols: Sequence[Value] = [t.symbol for t in alive]
        effects, slots = tuple(self.effects), self.slots
        if self.known:
            twins, slots = cut_at(self.known, (*symbols, *effects), slots, self.cache)
            symbols, effects = [twins[v] for v in symbols], tuple(twins[v] for v in effects)
        outputs = tuple(dict.fromkeys(symbols))
        program = self.cache.program((outputs, effects, self.options), lambda: self._build(outputs, effects))
        if effects:
            self.settle(program.writes)
        self.run(program, zip(alive, symbols, strict=True), slots, {})

    def _build(self, outputs: tuple[Value, ...], effects: tuple[Value, ...]) -> EagerProgram:
        if effects:
            with graph_mode():
                written = [v for u in effects for v in u.node.inputs if v is not None and not isinstance(v, Parameter)]
                zero, one = graph_constant(0.0), graph_constant(1.0)
                floats = [v for v in dict.fromkeys(written) if v.dtype is f32]
                outputs = (*outputs, guard(zero, one, floats))
        return EagerProgram(outputs, effects, self.options)

    def settle(self, stored: Collection[Stored]) -> None:
        """Call before this trace writes these arrays: other traces compute their readers of the old values first."""
        for one in self.writes:
            keep_promise(one)
        before_read(stored)
        for other in others(self):
            other.overtaken(stored)

    def run(
        self,
        program: EagerProgram,
        alive: Iterable[tuple[Tensor, Value]],
        slots: Sequence[Numbers],
        settings: Mapping[str, float],
    ) -> None:
        """Run the program for these tensors, each with its output; the updates that were due are done then."""
        if program.draws:
            self.drawn = self.drawn or draw_settings(*self.asked)
            settings = {**self.drawn, **settings}
        arrays = dict(zip(program.outputs, program.run(slots, settings), strict=True))
        alive = list(alive)
        for t, output in alive:
            t.data = arrays[output]
        if self.effects:
            for stored in self.writes:
                self.written[stored] = self.written.get(stored, 0) + 1
            self._pin([t for t, _ in alive])
            self.effects.clear()
            self.writes.clear()

    def _pin(self, alive: Sequence[Tensor]) -> None:
        """Keep the tensors that were computed from arrays which this trace has just written: their inputs are gone."""
        computed = [*alive, *([] if self.known is None else self.known.values())]
        leaves = (n for n in reachable([t.symbol for t in computed]) if n.op.name == "parameter")
        if any(n.attrs["stored"] in self.writes for n in leaves):
            self.pinned += computed

    def drop_effects(self) -> None:
        for stored in self.writes:
            keep_promise(stored)
        self.effects.clear()
        self.writes.clear()

    # ---- ends ------------------------------------------------------------------------------------------------

    def overtaken(self, stored: Container[Stored]) -> None:
        """Compute the pending readers of these arrays: they are about to be written."""
        hit = self.reader(stored)
        if hit is not None and not self.over:
            self.compute(ends=True)
            self.release(hit)

    def reader(self, stored: Container[Stored]) -> str | None:
        """The name of a parameter among these arrays that this trace reads."""
        return next((p.name or "a parameter" for p in list(self.reads) if p.stored in stored), None)

    def release(self, changed: str) -> None:
        """End the trace and drop its recording. All live tensors have been computed."""
        unregister(self)
        self.over, self.changed = True, changed
        self.slots, self.pending, self.slopes, self.latest = [], [], [], []
        self.adopted, self.imported, self.reads, self.streams = {}, {}, {}, {}
        self.known, self.pinned = None, []


_local = threading.local()  # .trace: the ambient trace of a thread


def ambient() -> Trace:
    """The trace of this thread outside of all tapes."""
    trace = getattr(_local, "trace", None)
    if trace is None or trace.over:
        trace = _local.trace = Trace()
    return trace


def current() -> Any:
    """What records now: the trace of the open tape, else the ambient one."""
    active = recording.get()
    return ambient() if active is None else active


class Outside:
    """Records what happens to tensors outside of all tapes: in the trace of those that are not computed yet (one
    program computes it all), else in the thread's ambient trace."""

    def record(self, op: Declaration, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        for x in inputs:
            if x.__class__ is Tensor and x.data is None and x.trace.family is not None:
                made = x.trace.record(op, inputs, attrs)
                if x.trace.count > PENDING_MOST:
                    x.trace.look()
                return made
        return ambient().record(op, inputs, attrs)

    def value(self, data: Any) -> Value:
        return numbers(in_expression(data))

    def follow(self) -> Trace:
        return ambient()

    def adopt(self, x: Tensor) -> Value:
        return current().adopt(x)

    def make_room(self) -> None:
        trace = getattr(_local, "trace", None)
        if trace is not None and trace.count > PENDING and not locks.in_user_code():
            trace.look()


Tensor.recorder = Outside()
