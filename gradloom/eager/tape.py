"""The tape: what is computed inside of it has gradients.

The loss is not computed when it is taken down, nor are its gradients when they are asked for: an optimiser's step runs
forward, backward and update as one program (`Gradients.commit`), found by the structure of the loss.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base import locks
from ..base.dtypes import f32, f64
from ..base.errors import GradientError, GraphError, NonFiniteError, SettingError
from ..graph.grad import gradients
from ..graph.graph import reachable
from ..graph.opspec import Parameter, setting
from ..graph.opspec import input as graph_input
from ..graph.stored import Stored, before_read, before_write, trainable_changes
from ..graph.value import Node, Value, describe, graph_mode, recording
from .cache import Cache, cache_of
from .program import Program, slot_name
from .trace import Tensor, Trace

Build = Callable[[list[Value], Value], Sequence[Value]]
WEIGHT = "gradients.weight"  # the setting that gradients are divided by

_local = threading.local()


@dataclass(frozen=True, eq=False)
class _Slopes:
    """The gradient graph of a loss: built once for a structure."""

    loss: Value  # a scalar
    keys: tuple[Stored | int, ...]  # a parameter's array, or which of the watched tensors
    parameters: tuple[Parameter | None, ...]
    symbols: tuple[Value, ...]  # the gradients
    reads: tuple[Parameter, ...]
    at: Mapping[Stored | int, int]
    count: int  # of the parameters


class GradTape:
    """Takes down what is computed while it is open; see gl.grad_tape."""

    def __init__(self, seed: int | None = None, step: int | None = None) -> None:
        for name, given in (("seed", seed), ("step", step)):
            if given is not None and (not isinstance(given, (int, np.integer)) or isinstance(given, bool)):
                raise SettingError(f"grad_tape: {name}={given!r} is not usable; need a whole number")
        self._random = (None if seed is None else int(seed), None if step is None else int(step))
        self._trace: Trace | None = None
        self._outer: Any = None
        self._watched: dict[Value, None] = {}
        self.nodes: set[Node] | None = None  # of a tape inside of another one: what was taken down since it was opened

    def __enter__(self) -> GradTape:
        if self._trace is not None:
            raise GraphError("grad_tape: it was opened before; need a new tape for each `with`")
        self._outer = outer = recording.get()
        if outer is None:
            _settle_closed()
            self._trace = Trace(object(), *self._random)
        else:
            if self._random != (None, None):
                raise SettingError("grad_tape: a tape inside of another one draws as that one; give it no seed or step")
            self._trace = outer.follow()
            self.nodes = set()
            self._trace.inner.append(self)
        recording.set(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._trace is not None
        recording.set(self._outer)
        if self.nodes is None:
            closed = getattr(_local, "closed", None)
            if closed is None:
                closed = _local.closed = []
            closed.append((weakref.ref(self), self._trace))
        else:
            self._trace.inner.remove(self)
        self._outer = None

    def watch(self, *tensors: Tensor | Parameter) -> None:
        """Ask for gradients of these tensors, too. Trainable parameters need not be watched.

        GradientError for what has no gradient: whole numbers, quantised values.
        """
        for x in tensors:
            if not isinstance(x, (Tensor, Parameter)):
                raise GradientError(f"watch: got {type(x).__name__}; need a tensor (gl.tensor) or a parameter")
            if x.dtype not in (f32, f64):
                raise GradientError(f"watch: {describe(x)} has no gradient; need a tensor of f32")
            self._watched[x] = None

    def backward(self, loss: Tensor) -> Gradients:
        """The gradients of a loss (of all its elements, added up) for every trainable parameter that it reaches and for
        every watched tensor.

        Nothing is computed yet; it may be called inside of the tape and after it, and more than once. GradientError
        where an op on the way has none, when the tape has not taken the loss down, and when a parameter that the loss
        reads has changed since.
        """
        if not isinstance(loss, Tensor):
            raise GradientError(f"backward: got {type(loss).__name__}; need a tensor that this tape has taken down")
        with locks.building:
            return self._backward(loss)

    def _backward(self, loss: Tensor) -> Gradients:
        trace = loss.trace
        if trace is None or self._trace is None or trace.family is not self._trace.family:
            raise GradientError(
                f"backward: {describe(loss)} was computed outside of this tape; compute it inside of `with "
                "gl.grad_tape() as tape`"
            )
        if trace.changed:
            raise GradientError(
                f"backward: {trace.changed} has changed since the loss was computed; call backward before parameters "
                "change, or compute the loss again"
            )
        slopes = self._slopes(trace, loss)
        if trace.turns:
            for p in slopes.reads:
                if p.stored.version != trace.reads[p]:
                    raise GradientError(f"backward: {p.name} has changed since the tape read it; need a new loss")
        return Gradients(self, trace, slopes)

    def _slopes(self, trace: Trace, loss: Tensor) -> _Slopes:
        assert loss.symbol is not None
        watched: tuple[Value | None, ...] = ()
        if self._watched:
            watched = tuple([self._symbol(trace, x) for x in self._watched])
        outside: tuple[Node, ...] = ()
        if self.nodes is not None:
            outside = tuple(n for n in reachable([loss.symbol]) if not n.op.leaf and n not in self.nodes)
        stale = tuple(trace.stale)
        key = (loss.symbol, watched, outside, stale, trainable_changes())
        slopes = trace.cache.gradient(key, lambda: self._build(trace, loss.symbol, watched))
        if self.nodes is not None or trace.inner:
            for tape in trace.inner:
                if tape is not self:
                    tape.nodes.update(reachable(slopes.symbols))
        return slopes

    @staticmethod
    def _symbol(trace: Trace, x: Value) -> Value | None:
        if isinstance(x, Parameter):
            return x
        assert isinstance(x, Tensor)
        return x.symbol if x.trace is trace else trace.adopted.get(x)

    def _build(self, trace: Trace, loss: Value, watched: Sequence[Value | None]) -> _Slopes:
        within = self.nodes
        nodes = reachable([loss])
        through = nodes if within is None else [n for n in nodes if n in within]
        seen = {v for n in through for v in n.inputs if v is not None} | {loss}
        reads = [n.outputs[0] for n in nodes if n.op.name == "parameter"]
        trained = [p for p in reads if isinstance(p, Parameter) and p.trainable and p in seen]
        stale = {v: changed for v, changed in trace.stale.items() if v.dtype.is_float}
        if stale:
            past = gradients(loss, list(stale), through=within)
            for changed, g in zip(stale.values(), past, strict=True):
                if g is not None:
                    raise GradientError(
                        f"backward: the loss depends on a tensor that was computed before {changed} changed; "
                        "compute it again, or detach it"
                    )
        if not trained and not watched:
            raise GradientError(
                f"backward: the loss {loss.node.label} depends on no trainable parameter and no tensor is watched; "
                "need at least one (tape.watch)"
            )
        asked = [v for v in watched if v is not None]
        found = gradients(loss, [*trained, *asked], through=within)
        total: dict[Stored | int, tuple[Parameter | None, Value]] = {}
        for p, g in zip(trained, found, strict=False):
            if g is not None:  # two leaves may stand for one array
                before = total.get(p.stored)
                with graph_mode():
                    total[p.stored] = (p, g if before is None else ops.add(before[1], g))
        slopes = iter(found[len(trained) :])
        for i, v in enumerate(watched):
            g = None if v is None else next(slopes)
            if g is not None:
                total[i] = (None, g)
        with graph_mode():
            scalar = loss if loss.shape == () else ops.sum(loss)
        keys = tuple(total)
        return _Slopes(
            scalar, keys, tuple(p for p, _ in total.values()), tuple(g for _, g in total.values()),
            tuple(p for p in reads if isinstance(p, Parameter)), {k: i for i, k in enumerate(keys)},
            sum(isinstance(k, Stored) for k in keys),
        )  # fmt: skip


def _updates(
    build: Build, loss: Value, divisor: Value | None, grads: Sequence[Value]
) -> tuple[Value, tuple[Value, ...]]:
    """The guard and the updates behind it; without a divisor that is computed it is a setting."""
    with graph_mode():
        weight = setting(WEIGHT) if divisor is None else divisor
        return ops.guard(loss, weight, *grads), tuple(build(list(grads), weight))


def grad_tape(seed: int | None = None, step: int | None = None) -> GradTape:
    """`with gl.grad_tape() as tape:` what is computed inside has gradients: `tape.backward(loss)`.

    seed, step: of the masks that dropout draws; by default those of gl.seed and of a counter. Tapes nest: gradients of
    an inner tape flow through what was computed while it was open, and are themselves taken down by the outer one.
    """
    return GradTape(seed, step)


def _settle_closed() -> None:
    """What is still wanted of tapes that nobody can ask any more is computed, so that they hold nothing."""
    closed = getattr(_local, "closed", None)
    if closed:
        kept = []
        for tape, trace in closed:
            if trace.over and trace.successor is not None:
                trace = trace.follow()
            if trace.over:
                continue
            if tape() is None:
                trace.compute()
                trace.release("")
            else:
                kept.append((tape, trace))
        _local.closed = kept


class no_grad(ContextDecorator):
    """`with gl.no_grad():` or `@gl.no_grad()`: what is computed inside is a constant to the tape that is open."""

    def __init__(self) -> None:
        self._paused: list[Trace | None] = []

    def __enter__(self) -> no_grad:
        active = recording.get()
        trace = None if active is None else active.follow()
        if trace is not None:
            trace.paused += 1
        self._paused.append(trace)
        return self

    def __exit__(self, *_: object) -> None:
        trace = self._paused.pop()
        if trace is not None:
            trace.follow().paused -= 1


class Gradients(Mapping[Value, "Tensor | None"]):
    """Gradients by parameter and by watched tensor; `grads[p]` is a Tensor, None where the loss does not depend on p.

    They are lazy: an optimiser computes them in the program of its update. The first look at one computes all. Each is
    the gradient of the loss divided by `weight`: 1, or what clipping made of it (a number or a scalar tensor).
    """

    def __init__(self, tape: GradTape, trace: Trace, slopes: _Slopes) -> None:
        self._tape, self._trace, self._slopes = tape, trace, slopes
        self._weight: Any = 1
        self._made: dict[int, weakref.ref[Tensor]] = {}
        self._held: list[Tensor] | None = None
        self._whole: list[Tensor] = []  # the gradients before any clipping and the loss, where they are kept
        trace.slopes.append(weakref.ref(self))

    # ---- the mapping -----------------------------------------------------------------------------------------

    def __getitem__(self, x: Value) -> Tensor | None:
        i = self._slopes.at.get(self._key(x))
        with locks.building:
            return None if i is None else self._tensor(i)

    def _key(self, x: Value) -> Stored | int:
        for i, known in enumerate(self._tape._watched):
            if known is x:
                return i
        if isinstance(x, Parameter):
            return x.stored
        seen = describe(x) if isinstance(x, Value) else type(x).__name__
        raise GradientError(f"gradients: {seen} was not watched; need a parameter or a tensor given to tape.watch")

    def _tensor(self, i: int) -> Tensor:
        if self._held is not None:
            return self._held[i]
        if self._is_whole and self._whole:
            return self._whole[i]
        made = self._made.get(i)
        found = made() if made is not None else None
        if found is None:
            if self._trace.over:
                raise GradientError(
                    f"gradients: {self._trace.changed or 'the tape'} has changed since; ask for them before the step"
                )
            found = self._trace.wrap(self._slopes.symbols[i])
            if not self._is_whole:
                found = self._trace.record(ops.div, (found, self._weight), {})
            self._made[i] = weakref.ref(found)
        return found

    def __contains__(self, x: object) -> bool:
        if x.__class__ is Parameter and not self._tape._watched:
            return x.stored in self._slopes.at
        return isinstance(x, Value) and (x in self._tape._watched or isinstance(x, Parameter)) and (
            self._key(x) in self._slopes.at
        )  # fmt: skip

    def __iter__(self) -> Iterator[Value]:
        watched = list(self._tape._watched)
        for key, p in zip(self._slopes.keys, self._slopes.parameters, strict=True):
            yield watched[key] if isinstance(key, int) else p  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._slopes.keys)

    def __repr__(self) -> str:
        return f"Gradients of {len(self)}: {', '.join(x.name or describe(x) for x in self)}"

    def hold(self, alive: Sequence[Tensor]) -> list[Tensor]:
        """Those gradients that are not alive yet, when some are: from now on all are kept."""
        mine = [t for r in self._made.values() if (t := r()) is not None]
        known = {id(t) for t in alive}
        if self._held is not None or not any(id(t) in known for t in mine):
            return []
        self._held = [self._tensor(i) for i in range(len(self))]
        if self._is_whole:
            self._keep_whole()
        return [t for t in (*self._held, *self._whole) if id(t) not in known]

    def _keep_whole(self) -> None:
        held = self._held if self._is_whole else None
        made = held or [self._trace.wrap(g) for g in self._slopes.symbols]
        self._whole = [*made, self._trace.wrap(self._slopes.loss)]

    @property
    def _is_whole(self) -> bool:
        return isinstance(self._weight, (int, float)) and self._weight == 1

    @property
    def weight(self) -> Any:
        """What gradients are divided by."""
        return self._weight

    @weight.setter
    def weight(self, weight: Any) -> None:
        with locks.building:
            if isinstance(weight, Value) and not isinstance(weight, Tensor):  # of a graph: a constant, a setting
                weight = self._trace.take(weight)
            self._weight = weight
            self._made, self._held = {}, None

    # ---- updates ---------------------------------------------------------------------------------------------

    def commit(
        self, key: Hashable, parameters: Sequence[Parameter], build: Build, settings: Mapping[str, float]
    ) -> None:
        """Run ONE program: all that is alive on the tape, the guard over loss and gradients, and the updates.

        key: stands for `parameters` and `build`; hashable. parameters: those to update, each with a gradient;
        where they are not all, the other gradients are kept for another commit. build(grads, weight) makes the update
        nodes from one gradient (a graph value) per parameter, to be divided by the scalar `weight`; it is called only
        when this structure was not seen before under this key. settings: of the nodes that build made, by name. Raises
        NonFiniteError, naming the first bad node, when the loss or a gradient is not finite: then nothing is written.
        """
        trace = self._trace
        with locks.building:
            computed = self._whole and all(t.data is not None for t in self._whole)
            if trace.over and not computed:
                raise GradientError(
                    f"step: {trace.changed or 'the tape'} has changed since backward; need a new loss and its backward"
                )
            if not self._whole and len(parameters) < self._slopes.count:
                self._keep_whole()  # another optimiser may want the others
            if computed:
                trace.compute()
                program, alive, slots = self._of_computed(key, parameters, build)
            else:
                alive, slots = trace.alive(), trace.slots
                program = self._of_all(key, parameters, build, alive)
            if not isinstance(self._weight, Tensor) or WEIGHT in program.names:
                settings = {**settings, WEIGHT: float(self._weight)}
            updated = program.writes - trace.writes  # beside what the model itself updates
            trace.settle(program.writes)
            try:
                trace.run(program, [(t, t.symbol) for t in alive], slots, settings)
            except NonFiniteError as error:
                trace.drop_effects()
                raise NonFiniteError(f"step: {error}; nothing was written") from None
            except BaseException:
                trace.drop_effects()
                raise
            changed = trace.reader(updated)
            if changed is None:
                trace.remember(alive)
            else:
                trace.release(changed)

    def _of_all(self, key: Hashable, parameters: Sequence[Parameter], build: Build, alive: Sequence[Tensor]) -> Program:
        """The program from the inputs of the tape to the updates."""
        trace, slopes, weight = self._trace, self._slopes, self._weight
        outputs, effects = tuple(dict.fromkeys([t.symbol for t in alive])), tuple(trace.effects)
        lazy = isinstance(weight, Tensor) and weight.data is None and weight.trace is trace
        divisor: Value | None = weight.symbol if lazy else None

        def make() -> Program:
            grads = [slopes.symbols[i] for i in self._places(parameters)]
            guard, updates = _updates(build, slopes.loss, divisor, grads)
            return Program((*outputs, guard), (*effects, *updates))

        return trace.cache.program((key, slopes, outputs, effects, divisor), make)

    def _of_computed(
        self, key: Hashable, parameters: Sequence[Parameter], build: Build
    ) -> tuple[Program, list[Tensor], list[np.ndarray]]:
        """The program from gradients that were looked at to the updates."""
        trace, slopes = self._trace, self._slopes

        def make() -> Program:
            places = self._places(parameters)
            with graph_mode():
                given = [graph_input(slot_name(i), t.shape, t.dtype) for i, t in enumerate(self._whole)]
            guard, updates = _updates(build, given[-1], None, [given[i] for i in places])
            return Program((guard,), updates)

        program = trace.cache.program((key, slopes, "computed"), make)
        return program, [], [t.computed() for t in self._whole]

    def _places(self, parameters: Sequence[Parameter]) -> list[int]:
        at = self._slopes.at
        missing = next((p for p in parameters if p.stored not in at), None)
        if missing is not None:
            raise GradientError(f"step: the loss does not depend on {missing.name}; need parameters with a gradient")
        return [at[p.stored] for p in parameters]

    @staticmethod
    def run_updates(
        key: tuple[Any, ...],
        build: Callable[[], tuple[Sequence[Value], Sequence[Value]]],
        settings: Mapping[str, float],
    ) -> list[np.ndarray]:
        """Run ONE program that belongs to no tape: build() -> (outputs, updates), called only when `key` is new.

        key: its first member owns the program; the program goes when the owner does. Answers the outputs. Raises
        NonFiniteError when a guard among them trips: then nothing is written.
        """
        with locks.building:
            name = (id(key[0]), *key[1:])
            cache = _homes.get(name)
            if cache is None or key not in cache.programs:
                with graph_mode():
                    outputs, updates = build()
                leaves = [n.outputs[0] for n in reachable((*outputs, *updates)) if n.op.name == "parameter"]
                cache = _homes[name] = cache_of(next((p for p in leaves if isinstance(p, Parameter)), None))
            program = cache.program(key, lambda: Program(outputs, updates))
            before_read(program.executable.plan.bytecode.stored)
            before_write(program.executable.writes)
            return program.run((), settings)


_homes: weakref.WeakValueDictionary[tuple[Any, ...], Cache] = weakref.WeakValueDictionary()
