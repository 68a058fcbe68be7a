"""Cut a recorded graph at the values that are computed already, so that each iteration of a loop has the same graph."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ..graph.value import Node, Value
from .cache import Cache, slot_number
from .tensors import Numbers, Tensor


def cut_at(
    computed: Mapping[Value, Tensor], wanted: Sequence[Value], slots: Sequence[Numbers], cache: Cache
) -> tuple[dict[Value, Value], list[Numbers]]:
    """(value -> its twin in the graph whose inputs are the computed values, the arrays of those inputs).

    The twins are interned: a loop that looks in each iteration asks for the same twins each time, so the program of
    its first iteration serves all. slots: the arrays of the inputs of the graph that is cut.
    """
    known: dict[Value, Numbers] = {}
    needed: set[Node] = set()
    waiting = list(wanted)
    while waiting:
        value = waiting.pop()
        tensor = computed.get(value)
        if tensor is not None and tensor.data is not None:
            known[value] = tensor.data
        elif value.node not in needed:
            needed.add(value.node)
            waiting.extend(v for v in value.node.inputs if v is not None)
    twins: dict[Value, Value] = {}
    used: dict[Hashable, int] = {}
    arrays: list[Numbers] = []

    def feed(value: Value, array: Numbers) -> None:
        twins[value] = cache.input(len(arrays), array.shape, value.dtype)
        arrays.append(array)

    for value, array in known.items():
        feed(value, array)
    for node in sorted(needed, key=lambda n: n.id):
        if node.op.name == "input":
            feed(node.outputs[0], slots[slot_number(node.attrs["key"])])
        elif node.op.leaf:
            twins[node.outputs[0]] = node.outputs[0]
        else:
            inputs = [None if v is None else twins[v] for v in node.inputs]
            for old, new in zip(node.outputs, cache.node(node.op, inputs, node.attrs, used).outputs, strict=True):
                twins.setdefault(old, new)
    return twins, arrays
