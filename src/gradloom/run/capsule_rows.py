"""The rows of one step instead of a whole data set, in the programs of its capsule.

A training gathers its batch by `take_batch(data, order, position)`. Where nothing else reads the arrays of the data
set, their order and the position, the capsule holds the rows of the step alone, in their order, from position 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..base.aligned import aligned_empty
from ..graph.leaves import stored_value
from ..graph.stored import Stored
from ..graph.value import Node, Value
from ..transform.program import Program, make, rebuild

GATHER, POSITION = "take_batch", "position"


def gathers_alone(program: Program) -> bool:
    """Whether arrays, order and position of a data set are read by nothing but take_batch, with one order for all."""
    read: set[Node] = set()
    orders = set()
    for node in program.nodes:
        if node.op.name == GATHER:
            sources = [v.node for v in node.inputs if v is not None]
            if [one.op.name for one in sources] != ["parameter", "parameter", "setting"]:
                return False
            if sources[2].attrs["key"] != POSITION:
                return False
            read.update(sources)
            orders.add(sources[1].attrs["stored"])
    stored = {node.attrs["stored"] for node in read if node.op.name == "parameter"}
    for node in program.nodes:
        for value in node.inputs if node.op.name != GATHER else ():
            source = None if value is None else value.node
            if source in read or (source is not None and source.attrs.get("stored") in stored):
                return False
            if source is not None and source.op.name == "setting" and source.attrs["key"] == POSITION:
                return False
    outputs = {value.node for value in (*program.outputs, *program.effects)}
    return len(orders) == 1 and not outputs & read


class RowCut:
    """Programs on the rows of a step; arrays that several programs share are cut once."""

    def __init__(self) -> None:
        self._made: dict[Stored, Stored] = {}

    def of(self, program: Program, start: int, stop: int) -> Program:
        """The program on rows start..stop of the order; see gathers_alone."""

        def replace(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
            if node.op.name != GATHER:
                return None
            data, order, position = node.inputs
            assert data is not None and order is not None
            rows = order.node.attrs["stored"].read()[start:stop]
            own = [
                self._leaf(data.node.attrs["stored"], lambda whole: whole[rows]),
                self._leaf(order.node.attrs["stored"], lambda whole: np.arange(stop - start, dtype=whole.dtype)),
            ]
            return make(GATHER, [*own, position], node.attrs, node).outputs

        return rebuild(program, replace)

    def _leaf(self, stored: Stored, cut: Callable[[np.ndarray], np.ndarray]) -> Value:
        if stored not in self._made:
            rows = cut(stored.read())
            array = aligned_empty(rows.shape, rows.dtype)
            array[...] = rows
            self._made[stored] = Stored.wrap(stored.name, array, "frozen")
        return stored_value(self._made[stored])
