"""MarkedGraph: a gl.Graph whose losses are marked (gl.set_loss), as a model that brings its own losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.errors import DataError, GraphError
from ..graph.graph import reachable
from ..graph.leaves import constant
from ..graph.value import Value
from ..ops.layout import broadcast_to
from ..transform.substitute import with_batch
from .metrics import usable_name
from .session import Graph
from .terms import Batch, Pair, Term, pairs_of, terms_of


class MarkedGraph:
    """The losses of a graph, each a sum of weighted means (see terms.py), for batches of any number of rows.

    leaf: the input that gets the data; labels, weights: the inputs of these names, where there are some. outputs: what
    the graph computes besides the losses, with rows along the first axis. names: of the losses, that of the node where
    it has a usable one, else loss_1, loss_2, ...

    GraphError for other inputs, for a loss whose weight is not known, and for two losses of one name.
    """

    def __init__(self, graph: Graph) -> None:
        inputs = {n.attrs["key"]: n.outputs[0] for n in reachable(graph.outputs) if n.op.name == "input"}
        self.labels, self.weights = inputs.pop("labels", None), inputs.pop("weights", None)
        if len(inputs) != 1:
            shown = ", ".join(inputs) or "none"
            raise GraphError(
                f"Trainer: the graph has the inputs {shown}; need one for the data besides labels, weights"
            )
        (self.leaf,) = inputs.values()
        if not self.leaf.ndim:
            raise GraphError(f"Trainer: the input {self.leaf.name} is a scalar; need rows along the first axis")
        rows = self.leaf.shape[0]
        self.names: list[str] = []
        self.terms: list[list[Term]] = []
        for i, loss in enumerate(graph.losses):
            name = loss.name if usable_name(loss.name) else f"loss_{i + 1}"
            if name in self.names:
                raise GraphError(f"Trainer: two losses are called {name}; need different names: gl.named(loss, name)")
            self.names.append(name)
            self.terms.append(terms_of(loss, rows, f"loss {name}"))
        marked = {id(loss) for loss in graph.losses}
        self.outputs = [v for v in graph.outputs if id(v) not in marked and v.shape[:1] == (rows,)]

    def __repr__(self) -> str:
        return f"marked losses {', '.join(self.names)}"

    def outputs_of(self, x: Value) -> list[Value]:
        """The outputs for a batch. GraphError where the graph has none, or where they read labels."""
        if not self.outputs:
            raise GraphError("the graph has losses alone; need outputs, too: Graph(logits, loss)")
        read = {n.attrs["key"] for n in reachable(self.outputs) if n.op.name == "input"} - {self.leaf.node.attrs["key"]}
        if read:
            raise GraphError(f"the outputs read {', '.join(sorted(read))}; need outputs of the data alone")
        return with_batch(self.outputs, {self.leaf: x})

    def losses(
        self, x: Value, labels: Value | None, weights: Value | None, all_count: bool
    ) -> tuple[list[Value], list[list[Pair]]]:
        """(outputs, the pairs of each loss) of a batch. all_count: no label of it is ignored.

        DataError for labels that no loss reads and for row weights that would have no effect, GraphError for labels
        that are missing.
        """
        if labels is not None and self.labels is None:
            raise DataError(
                "the data have labels, and the graph has no input 'labels'; need one, or data without labels"
            )
        leaves = {self.leaf: x}
        if self.labels is not None:
            if labels is None:
                raise GraphError("the graph has an input 'labels', and the data have none; need data with labels")
            leaves[self.labels] = labels
        if self.weights is not None:
            given = broadcast_to(constant(1.0), (x.shape[0],)) if weights is None else weights
            leaves[self.weights] = given
        roots = [root for terms in self.terms for term in terms for root in term.roots if root is not None]
        made: list[Any] = with_batch([*self.outputs, *roots], leaves)
        outputs, left = made[: len(self.outputs)], iter(made[len(self.outputs) :])
        batch = Batch(x.shape[0], weights, labels, all_count)
        return outputs, [
            pairs_of(_renewed(terms, left), batch, f"loss {n}") for n, terms in zip(self.names, self.terms, strict=True)
        ]


def _renewed(terms: Sequence[Term], left: Any) -> list[Term]:
    return [term.with_roots([None if root is None else next(left) for root in term.roots]) for term in terms]
