"""The tape: values computed inside it have gradients.

Recording a loss computes nothing, and neither does `backward`: an optimiser's step runs forward, backward and update as
one program (gradients.py), which is cached by the structure of the loss.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import ContextDecorator
from typing import Any

import numpy as np

from .. import ops
from ..base import locks
from ..base.dtypes import f32, f64
from ..base.errors import GradientError, GraphError, SettingError
from ..base.habits import AttributeHints, hinted
from ..graph.grad import gradients
from ..graph.graph import reachable
from ..graph.leaves import Parameter
from ..graph.stored import Stored, trainable_changes
from ..graph.value import Node, Value, describe, graph_mode, recording
from .gradients import Gradients, Slopes
from .options import checked
from .tensors import Tensor
from .trace import Trace

_local = threading.local()


class GradTape(AttributeHints):
    """Records operations while it is open; see gl.grad_tape."""

    def __init__(
        self,
        seed: int | None = None,
        step: int | None = None,
        precision: str | None = None,
        flush: bool | None = None,
        device: str | None = None,
    ) -> None:
        for name, given in (("seed", seed), ("step", step)):
            if given is not None and (not isinstance(given, (int, np.integer)) or isinstance(given, bool)):
                raise SettingError(setting=name, seen=given, need="a whole number", place="grad_tape")
        self._random = (None if seed is None else int(seed), None if step is None else int(step))
        self._options = checked(precision, flush, device)
        self._asked = [k for k, v in (("precision", precision), ("flush", flush), ("device", device)) if v is not None]
        self._trace: Trace | None = None
        self._outer: Any = None
        self._watched: dict[Value, None] = {}
        self.nodes: set[Node] | None = None  # of a nested tape: the nodes recorded since it was opened

    def __repr__(self) -> str:
        seed, step = self._random
        return f"GradTape(seed={seed}, step={step})"

    def __enter__(self) -> GradTape:
        if self._trace is not None:
            raise GraphError("grad_tape: it was opened before; need a new tape for each `with`")
        locks.refuse_in_user_code("a tape is opened")
        self._outer = outer = recording.get()
        if outer is None:
            _settle_closed()
            self._trace = Trace(object(), *self._random, self._options)
        else:
            if self._random != (None, None):
                raise SettingError("grad_tape: a tape inside of another one draws as that one; give it no seed or step")
            theirs = outer.follow().options
            for name in self._asked:
                if getattr(self._options, name) != getattr(theirs, name):
                    raise SettingError(
                        "grad_tape: a tape inside of another one computes as that one; "
                        f"give the {name} to the outer one"
                    )
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
        """Request gradients of these tensors as well. Trainable parameters need not be watched.

        GradientError for values without a gradient: whole numbers, quantised values.
        """
        for x in tensors:
            if not isinstance(x, (Tensor, Parameter)):
                raise GradientError(f"watch: got {type(x).__name__}; need a tensor (gl.tensor) or a parameter")
            if x.dtype not in (f32, f64):
                raise GradientError(f"watch: {describe(x)} has no gradient; need a tensor of f32")
            self._watched[x] = None

    def backward(self, loss: Value) -> Gradients:
        """The gradients of a loss (of all its elements, added up) for every trainable parameter that it reaches and for
        every watched tensor.

        Nothing is computed yet; it may be called inside of the tape and after it, and more than once. GradientError
        where an op on the way has none, when the tape has not recorded the loss, and when a parameter that the loss
        reads has changed since.
        """
        if not isinstance(loss, Tensor):
            raise GradientError(f"backward: got {type(loss).__name__}; need a tensor that this tape has recorded")
        locks.refuse_in_user_code("a gradient is computed")
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
        if trace.written:
            for p in slopes.reads:
                if p.stored.version != trace.reads[p]:
                    raise GradientError(f"backward: {p.name} has changed since the tape read it; need a new loss")
        return Gradients(self._watched, trace, slopes)

    def _slopes(self, trace: Trace, loss: Tensor) -> Slopes:
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

    def _build(self, trace: Trace, loss: Value, watched: Sequence[Value | None]) -> Slopes:
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
        grads = gradients(loss, [*trained, *asked], through=within)
        total: dict[Stored | int, tuple[Parameter | None, Value]] = {}
        for p, g in zip(trained, grads, strict=False):
            if g is not None:  # two leaves may stand for one array
                before = total.get(p.stored)
                with graph_mode():
                    total[p.stored] = (p, g if before is None else ops.add(before[1], g))
        slopes = iter(grads[len(trained) :])
        for i, v in enumerate(watched):
            g = None if v is None else next(slopes)
            if g is not None:
                total[i] = (None, g)
        with graph_mode():
            scalar = loss if loss.shape == () else ops.sum(loss)
        keys = tuple(total)
        return Slopes(
            scalar, keys, tuple(p for p, _ in total.values()), tuple(g for _, g in total.values()),
            tuple(p for p in reads if isinstance(p, Parameter)), {k: i for i, k in enumerate(keys)},
            sum(isinstance(k, Stored) for k in keys),
        )  # fmt: skip


@hinted
def grad_tape(
    seed: int | None = None,
    step: int | None = None,
    precision: str | None = None,
    flush: bool | None = None,
    device: str | None = None,
) -> GradTape:
    """`with gl.grad_tape() as tape:` values computed inside have gradients: `tape.backward(loss)`.

    seed, step: of the masks that dropout draws; by default those of gl.seed and of a counter. precision: "bf16" rounds
    the operands of products to bf16, forward and backward; flush: denormal numbers are 0; both as in gl.compile.
    device: "cpu" (when not given), "gpu", "gpu:1": where forward, backward and updates are computed, and where
    parameters and moments stay between the steps (docs/devices.md). Tapes nest: gradients of an inner tape flow through
    the operations recorded while it was open, and are themselves recorded by the outer one; precision, flush and device
    are those of the outer one.

    SettingError for invalid values; BackendError where the device is absent.
    """
    return GradTape(seed, step, precision, flush, device)


def _settle_closed() -> None:
    """Compute the tensors that are alive of tapes which are gone, so that their traces can be freed."""
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
    """`with gl.no_grad():` or `@gl.no_grad()`: values computed inside are constants to the open tape."""

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
