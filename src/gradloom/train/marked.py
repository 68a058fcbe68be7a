"""MarkedGraph: a gl.Graph whose losses are marked (gl.set_loss), as a model that brings its own losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.errors import DataError, GraphError
from ..base.structures import Structure, is_plain, listed
from ..graph.graph import reachable
from ..graph.leaves import constant
from ..graph.value import Value
from ..ops.layout import broadcast_to
from ..transform.substitute import with_batch
from .inputs import of_graph, rows_of
from .metric import usable_name
from .session import Graph
from .terms import Batch, Pair, Term, pairs_of, terms_of


class MarkedGraph:
    """The losses of a graph, each a sum of weighted means (see terms.py), for batches of any number of rows.

    labels, weights  the inputs of these names, where there are some
    inputs   all others by name: they get the data, and labels that are a dict
    outputs  those besides the losses, with rows along the first axis
    names    of the losses, that of the node where it has a usable one, else loss_1, loss_2, ...

    GraphError for other inputs, for a loss whose weight is not known, and for two losses of one name.
    """

    def __init__(self, graph: Graph) -> None:
        inputs = {n.attrs["key"]: n.outputs[0] for n in reachable(graph.outputs) if n.op.name == "input"}
        self.labels, self.weights = inputs.pop("labels", None), inputs.pop("weights", None)
        if not inputs:
            raise GraphError("Trainer: the graph has the inputs none; need one for the data besides labels, weights")
        self.inputs, rows = inputs, rows_of(inputs)
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

    def outputs_of(self, x: Structure) -> list[Value]:
        """The outputs for a batch. GraphError where the graph has none, or where they read labels."""
        if not self.outputs:
            raise GraphError("the graph has losses alone; need outputs, too: Graph(logits, loss)")
        read = {n.attrs["key"] for n in reachable(self.outputs) if n.op.name == "input"}
        if odd := read - self.inputs.keys():
            raise GraphError(f"the outputs read {', '.join(sorted(odd))}; need outputs of the data alone")
        of_data = self.inputs
        if len(of_data) > 1:  # some of which may get labels
            read |= x.keys() if isinstance(x, dict) else set()
            of_data = {name: leaf for name, leaf in of_data.items() if name in read}
        return with_batch(self.outputs, of_graph(of_data, x))

    def losses(
        self, x: Structure, labels: Structure | None, weights: Value | None, rows: int, all_count: bool
    ) -> tuple[list[Value], list[list[Pair]]]:
        """(outputs, the pairs of each loss) of a batch of n rows. all_count: no label of it is ignored.

        DataError for labels that no loss reads and for row weights that would have no effect, GraphError for labels
        that are missing.
        """
        leaves = self._leaves(x, labels)
        if self.weights is not None:
            leaves[self.weights] = broadcast_to(constant(1.0), (rows,)) if weights is None else weights
        roots = [root for terms in self.terms for term in terms for root in term.roots if root is not None]
        made: list[Any] = with_batch([*self.outputs, *roots], leaves)
        outputs, left = made[: len(self.outputs)], iter(made[len(self.outputs) :])
        batch = Batch(rows, weights, labels, all_count)
        return outputs, [
            pairs_of(_renewed(terms, left), batch, f"loss {n}") for n, terms in zip(self.names, self.terms, strict=True)
        ]

    def _leaves(self, x: Structure, labels: Structure | None) -> dict[Value, Value]:
        """The data and labels of each input."""
        inputs, given = dict(self.inputs), {}
        if isinstance(labels, dict):
            for key, label in labels.items():
                if key not in inputs:
                    raise GraphError(f"labels {key!r}: the graph has no such input; need {listed(inputs)}")
                given[inputs.pop(key)] = label
        elif labels is not None:
            if not is_plain(labels):
                raise GraphError("labels: a tuple; need a dict by the inputs of the graph")
            if self.labels is None:
                raise DataError(
                    "the data have labels, and the graph has no input 'labels'; need one, or data without labels"
                )
            given[self.labels] = labels
        if self.labels is not None and self.labels not in given:
            raise GraphError("the graph has an input 'labels', and the data have none; need data with labels")
        return of_graph(inputs, x) | given


def _renewed(terms: Sequence[Term], left: Any) -> list[Term]:
    return [term.with_roots([None if root is None else next(left) for root in term.roots]) for term in terms]
