"""The same expressions with other leaves: another batch, other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..base.errors import GradloomError, ShapeError
from ..graph.graph import reachable
from ..graph.opspec import REGISTRY
from ..graph.value import Node, Value, describe, same_values
from .program import copy_node


def substitute(value: Value, replacements: Mapping[Value, Value]) -> Value:
    """The same expression with some of its values replaced by others of the same shape; its updates and marked losses
    come along."""
    return _substituted([value], replacements)[0]


def _substituted(values: Sequence[Value], replacements: Mapping[Value, Value]) -> list[Value]:
    new: dict[Value, Value] = {}
    copies: list[tuple[Node, Node]] = []
    for node in reachable(values, effects=True):
        made = copy_node(node, [None if v is None else new[v] for v in node.inputs], new)
        if made is not node:
            copies.append((node, made))
        for old, own in zip(node.outputs, made.outputs, strict=True):
            new[old] = replacements.get(old, own)
    for node, made in copies:
        made.effects = tuple(new[v] for v in node.effects)
        made.losses = node.losses
    return [new[v] for v in values]


def with_batch(values: Sequence[Value], leaves: Mapping[Value, Value]) -> list[Value]:
    """The same expressions with inputs replaced by others with the same or another number of rows.

    leaves: input [rows, ...] -> the batch, of the same dtype and the same shape but for the first axis. Where the
    number of rows differs, all shapes are inferred again. Raises ShapeError when a batch does not fit, and when a value
    does not have its rows along the first axis (a mean over rows, the statistics of a batch): numbers of rows may be
    written into such a graph.
    """
    (before,) = {leaf.shape[:1] for leaf in leaves}
    (now,) = {batch.shape[:1] for batch in leaves.values()}
    for leaf, batch in leaves.items():
        if leaf.shape[1:] != batch.shape[1:] or not leaf.ndim or not batch.ndim or leaf.dtype != batch.dtype:
            raise ShapeError(f"step: the batch is {describe(batch)}; the graph's input {leaf.name} is {describe(leaf)}")
    if before == now:
        return _substituted(values, leaves)
    return _resized(values, leaves, *before, *now)


def _resized(values: Sequence[Value], leaves: Mapping[Value, Value], before: int, now: int) -> list[Value]:
    """The expressions for another number of rows."""
    new: dict[Value, Value] = dict(leaves)
    replaced = {leaf.node for leaf in leaves}
    copies: list[tuple[Node, Node]] = []
    for node in reachable(values, effects=True):
        inputs = [None if v is None else new[v] for v in node.inputs]
        if node in replaced or same_values(inputs, node.inputs):
            new.update((v, new.get(v, v)) for v in node.outputs)
            continue
        attrs, first = dict(node.attrs), inputs[0]
        if node.op.name in ("reshape", "broadcast_to") and attrs["shape"] and attrs["shape"][0] * now % before == 0:
            attrs["shape"] = (attrs["shape"][0] * now // before, *attrs["shape"][1:])
        if node.op.name == "slice" and first is not None and first.shape[0] * before == attrs["stops"][0] * now:
            attrs["stops"] = (first.shape[0], *attrs["stops"][1:])
        try:
            made = REGISTRY[node.op.name].node(inputs, attrs, node.name, node.where)
            for old, own in zip(node.outputs, made.outputs, strict=True):
                if not old.shape or own.shape != (old.shape[0] * now // before, *old.shape[1:]):
                    raise ShapeError(f"{node.op.name} {node.label} gives {describe(old)}, which mixes rows")
        except GradloomError as error:
            raise ShapeError(
                f"step: the graph was made for {before} rows and cannot take {now}: {error}; need a function of the "
                "batch, or batches of one size"
            ) from None
        new.update(zip(node.outputs, made.outputs, strict=True))
        copies.append((node, made))
    for node, made in copies:
        made.effects = tuple(new[v] for v in node.effects)
        made.losses = node.losses
    return [new[v] for v in values]
