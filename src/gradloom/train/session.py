"""Graph: the ggml way to gradients: mark losses, backward, compile, reset, compute, read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import GradientError, GraphError
from ..graph.grad import gradients
from ..graph.graph import dot, listing, reachable
from ..graph.leaves import Parameter, setting, stored_value
from ..graph.stored import Stored, arrays_locked
from ..graph.value import Value
from ..run.compile import compile as compile_program


class Graph:
    """A graph with gradient accumulators.

        g = gl.Graph(loss); g.backward(); r = g.compile(threads=1)
        r.reset(); r(x=...); r.grad(w); r.grad_acc(w)

    outputs: the values to compute, one by one or in a list; those marked with gl.set_loss (or, when none is, all) are
    the losses, which add up. GraphError when there are none.
    """

    def __init__(self, *outputs: Value | Sequence[Value]) -> None:
        listed: list[Any] = [v for one in outputs for v in (one if isinstance(one, (list, tuple)) else [one])]
        if not listed:
            raise GraphError("Graph: no outputs; need at least one value")
        for v in listed:
            if not isinstance(v, Value):
                raise GraphError(f"Graph: got {type(v).__name__}; need values of a graph: Graph(a, b) or Graph([a, b])")
        self.outputs: tuple[Value, ...] = tuple(listed)
        marked = [v for n in reachable(self.outputs) for v in n.outputs if is_loss(v)]
        self.losses = marked or listed
        self.is_marked = bool(marked)
        self.parameters: list[Parameter] = []
        self.kept: dict[Value, Value | None] = {}
        self.has_backward = False

    def __repr__(self) -> str:
        done = ", with gradients" if self.has_backward else ""
        return f"Graph({len(reachable(self.outputs))} nodes, {len(self.outputs)} outputs{done})"

    def backward(self, keep: Sequence[Value] = ()) -> None:
        """Add gradient nodes and an accumulator for every trainable parameter. keep: further values whose gradients
        can be read after a run."""
        leaves = [v for n in reachable(self.outputs) for v in n.outputs if isinstance(v, Parameter) and v.trainable]
        self.parameters = list({v.stored: v for v in leaves}.values())
        wanted = [*self.parameters, *keep]
        self.kept = dict(zip(wanted, gradients(self.losses, wanted), strict=True))
        self.has_backward = True

    def compile(self, **options: Any) -> CompiledGraph:
        """Plan and load; the arguments are those of gl.compile."""
        return CompiledGraph(self, options)

    def as_pair(self) -> tuple[dict[str, Value], Value | tuple[Value, ...]]:
        """(inputs by name, outputs) for a trainer, which adds the loss. GraphError unless there is an input."""
        if self.has_backward:
            raise GraphError("Trainer: the graph has gradients (backward); need one without, which the trainer adds")
        inputs = {n.attrs["key"]: n.outputs[0] for n in reachable(self.outputs) if n.op.name == "input"}
        if not inputs:
            raise GraphError("Trainer: the graph has the inputs none; need one, the batch: labels go to loss=")
        return inputs, self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def dot(self) -> str:
        """The graph in Graphviz' language."""
        return dot(self.outputs)

    def __str__(self) -> str:
        return listing(self.outputs)


class CompiledGraph:
    """A compiled Graph: call it with its inputs; read gradients of the last call and accumulated ones."""

    def __init__(self, graph: Graph, options: dict[str, Any]) -> None:
        self.graph = graph
        self._kept = dict(graph.kept)
        self._backward = graph.has_backward
        self._reached = [(v, g) for v, g in self._kept.items() if g is not None]
        self._accumulators: dict[Value, Parameter] = {}
        pairs: list[Value] = []
        for p in graph.parameters:
            g = self._kept[p]
            if g is not None:
                self._accumulators[p] = stored_value(Stored(f"{p.name}.acc", np.zeros(p.shape)))
                pairs += [self._accumulators[p], g]
        updates = ops.accumulate(setting("keep"), *pairs) if pairs else ()
        self._run = compile_program([*graph.outputs, *[g for _, g in self._reached]], updates, **options)
        self._last = threading.local()  # .grads: of the last call of this thread

    @property
    def plan(self) -> Any:
        return self._run.plan

    def __repr__(self) -> str:
        return f"CompiledGraph({self.graph!r}, {self._run!r})"

    def reset(self) -> None:
        """Zero the accumulators; the next call's losses have gradient 1 as every call's."""
        stored = [array.stored for array in self._accumulators.values()]
        with arrays_locked((), stored):
            for one in stored:
                one.write(0)

    def __call__(self, **feeds: Any) -> list[np.ndarray]:
        """Compute the outputs and all gradients, and add the parameters' gradients to their accumulators."""
        if self._accumulators:
            feeds["keep"] = 1.0
        results = self._run(**feeds)
        count = len(self.graph.outputs)
        self._last.grads = {v: a for (v, _), a in zip(self._reached, results[count:], strict=True)}
        return results[:count]

    def grad(self, value: Value) -> np.ndarray | None:
        """The gradient of the losses with respect to `value` in the last call of this thread; None when no loss depends
        on it."""
        if not self._backward:
            raise GradientError(f"grad: {value.node.label} has no gradient; call Graph.backward() before compile()")
        if self._unreached(value):
            return None
        if value not in self._kept:
            raise GradientError(
                f"grad: the gradient of {value.node.label} was not kept; need Graph.backward(keep=[...]) with it"
            )
        grads = getattr(self._last, "grads", {})
        if value not in grads:
            raise GradientError(f"grad: {value.node.label} has no gradient yet; run the graph first")
        return grads[value]

    def _unreached(self, value: Value) -> bool:
        """No loss depends on it: a kept value without a gradient, or a trainable parameter from elsewhere."""
        if value in self._kept:
            return self._kept[value] is None
        known = {p.stored for p in self.graph.parameters}
        return isinstance(value, Parameter) and value.trainable and value.stored not in known

    def grad_acc(self, value: Value) -> np.ndarray | None:
        """The sum of a parameter's gradients since the last reset; None when no loss depends on it."""
        if self._backward and self._unreached(value):
            return None
        if value not in self._accumulators:
            raise GradientError(f"grad_acc: {value.node.label} has no accumulator; need a trainable parameter")
        return self._accumulators[value].numpy()


def set_loss(value: Value) -> Value:
    """Mark a value as a loss, for gl.Graph and for a trainer of the graph; several add up. Returns it.

    A trainer takes one value per row, f32 [rows], or a scalar that is a mean over rows, or a sum of such with factors;
    what reads no batch is a penalty. Each mean has a weight of its own. The loss is reported under the name of its
    node (gl.named), else as loss_1, loss_2, ...
    """
    value.node.losses = (*value.node.losses, value.index)
    return value


def is_loss(value: Value) -> bool:
    return value.index in value.node.losses
