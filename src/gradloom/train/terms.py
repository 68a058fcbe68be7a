"""Terms: a scalar loss as a sum of weighted means, each a pair (sum, weight) that adds up over micro-batches.

factor * mean(x)                          x [rows, ...]: weight rows, or the sum of the data's row weights
factor * cross_entropy(logits, labels)    the weight that the op gives: labels that count
factor * sum(a) / sum(b)                  a and b [rows, ...]: weight sum(b), which no parameter may reach
a scalar that reads no batch              a penalty: counts in full in each step in which a row counts
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..base.errors import DataError, ShapeError
from ..base.structures import Structure, leaves
from ..graph.graph import reachable
from ..graph.leaves import Parameter, constant
from ..graph.value import Node, Value, describe

Factor = "float | Value"
_LOSS_OPS = ("cross_entropy_sum", "linear_cross_entropy")  # outputs: loss, weight, ...
_NEED = "need one value per row, a mean over rows (ops.mean), or a pair (sum, weight)"


@dataclass(frozen=True)
class Term:
    """One weighted mean.

    kind    "rows" (the mean of roots[0]), "op" (a loss op of these inputs), "ratio" (sum(roots[0]) / sum(roots[1])) or
            "penalty" (roots[0], a scalar)
    roots   its inputs, with rows along the first axis
    node    the loss op of kind "op"
    """

    kind: str
    roots: tuple[Value | None, ...]
    factor: Any
    node: Node | None = None

    def with_roots(self, roots: Sequence[Value | None]) -> Term:
        """The same mean of other rows."""
        return Term(self.kind, tuple(roots), self.factor, self.node)


@dataclass(frozen=True)
class Batch:
    """The weights of a term. rows: of the batch; weights: of these rows, f32 [rows]; labels: the ids of the batch,
    one value or several; all_count: none of them is ignored."""

    rows: int
    weights: Value | None = None
    labels: Structure | None = None
    all_count: bool = False


Pair = tuple[Hashable, Value, "Value | None"]  # (equal for equal weights, sum f32[], weight f32[])


def terms_of(loss: Value, rows: int, called: str) -> list[Term]:
    """The terms of a scalar, or of one value per row. called: the loss, for messages. ShapeError where a weight is not
    known."""
    if loss.shape == (rows,):
        return [Term("rows", (loss,), 1.0)]
    if loss.shape:
        raise ShapeError(f"{called}: {describe(loss)} of a batch of {rows} rows; {_NEED}; node {loss.node.label}")
    return _Splitter(loss, rows, called).split(loss, 1.0)


class _Splitter:
    """Takes the scalar apart, from its last node to its means."""

    def __init__(self, loss: Value, rows: int, called: str) -> None:
        self.rows, self.called = rows, called
        self.fed: set[Node] = set()  # what depends on the batch
        self.trained: set[Node] = set()  # what depends on parameters
        for node in reachable([loss]):
            above = [v.node for v in node.inputs if v is not None]
            if node.op.name in ("input", "take_batch") or any(n in self.fed for n in above):
                self.fed.add(node)
            leaf = node.outputs[0]
            if (isinstance(leaf, Parameter) and leaf.trainable) or any(n in self.trained for n in above):
                self.trained.add(node)

    def split(self, v: Value, factor: Any) -> list[Term]:
        node, name = v.node, v.node.op.name
        if node not in self.fed:
            return [Term("penalty", (v,), factor)]
        first, second = (*node.inputs, None)[:2]
        assert first is not None
        if name in ("add", "sub") and second is not None:
            return self.split(first, factor) + self.split(second, factor if name == "add" else _times(factor, -1.0))
        if name == "neg":
            return self.split(first, _times(factor, -1.0))
        if name == "scale" and not node.attrs["bias"]:
            return self._scaled(first, factor, node.attrs["factor"])
        if name == "mul" and second is not None:
            for x, other in ((first, second), (second, first)):
                if other.node not in self.fed and not other.shape:
                    return self._scaled(x, factor, _number(other))
        if name == "div" and second is not None:
            return self._divided(v, first, second, factor)
        if name == "reshape" and not first.shape:
            return self.split(first, factor)
        if name == "mean" and self._has_rows(first):
            return [Term("rows", (first,), factor)]
        raise self._unknown(v)

    def _scaled(self, x: Value, factor: Any, by: Any) -> list[Term]:
        """A sum / its number of elements is a mean; anything else times a number is that thing scaled."""
        if isinstance(by, float) and x.node.op.name == "sum":
            (summed,) = x.node.inputs
            if summed is not None and self._has_rows(summed) and math.isclose(by * summed.size, 1.0, rel_tol=1e-6):
                return [Term("rows", (summed,), factor)]
        return self.split(x, _times(factor, by))

    def _divided(self, v: Value, x: Value, by: Value, factor: Any) -> list[Term]:
        if x.node is by.node and x.node.op.name in _LOSS_OPS and (x.index, by.index) == (0, 1):
            return [Term("op", x.node.inputs, factor, x.node)]
        if by.node not in self.fed:
            number = _number(by)
            return self._scaled(x, factor, 1.0 / number if isinstance(number, float) and number else _inverse(by))
        x, above_by = _unscaled(x)
        by, below_by = _unscaled(by)
        above, below = self._summed(x), self._summed(by)
        if above is None or below is None or by.node in self.trained or not below_by:
            raise self._unknown(v)
        return [Term("ratio", (above, below), _times(factor, above_by / below_by))]

    def _summed(self, x: Value) -> Value | None:
        """What x is the sum of, over all its elements."""
        summed = x.node.inputs[0] if x.node.op.name == "sum" else None
        return summed if summed is not None and self._has_rows(summed) else None

    def _has_rows(self, x: Value) -> bool:
        return x.ndim > 0 and x.shape[0] % self.rows == 0

    def _unknown(self, v: Value) -> ShapeError:
        return ShapeError(
            f"{self.called}: the weight of a scalar is not known ({v.node.op.name} {v.node.label}); {_NEED}"
        )


def pairs_of(terms: Sequence[Term], batch: Batch, called: str) -> list[Pair]:
    """The terms as pairs, those of equal weights added up. DataError where row weights would have no effect."""
    found: dict[Hashable, tuple[Value, Value | None]] = {}
    for term in terms:
        key, total, weight = _pair(term, batch, called)
        total = total if term.factor == 1.0 and isinstance(term.factor, float) else ops.mul(total, term.factor)
        found[key] = (total if key not in found else ops.add(found[key][0], total), weight)
    return [(key, total, weight) for key, (total, weight) in found.items()]


def _pair(term: Term, batch: Batch, called: str) -> Pair:
    if term.kind == "penalty":
        assert term.roots[0] is not None
        return "penalty", term.roots[0], None
    x = term.roots[0]
    assert x is not None
    if term.kind == "rows":
        per_row = x.size / batch.rows
        if batch.weights is None:
            return "rows", _over(ops.sum(x), per_row), constant(float(batch.rows))
        if x.shape[0] != batch.rows:
            raise DataError(f"{called}: row weights of {batch.rows} rows do not fit {describe(x)}; {_NEED}")
        if batch.weights.node in reachable([x]):
            raise DataError(
                f"{called}: the values {describe(x)} depend on the row weights, which their mean applies again; "
                f"need values without them, or ops.sum(values * weights) / ops.sum(weights); node {x.node.label}"
            )
        wide = ops.reshape(batch.weights, (batch.rows, *(1,) * (x.ndim - 1)))
        return "rows", _over(ops.sum(x * wide), per_row), ops.sum(batch.weights)
    if term.kind == "ratio":
        _check_weights_used(batch, term.roots, called)
        below = term.roots[1]
        assert below is not None
        return "rows" if below is batch.weights else ("ratio", below), ops.sum(x), ops.sum(below)
    assert term.node is not None
    slots = dict(zip(term.node.op.input_names, term.roots, strict=False))
    labels, weights = slots["labels"], slots.get("weights")
    _check_weights_used(batch, term.roots, called)
    assert labels is not None
    total, weight, *_ = term.node.op(*term.roots, **term.node.attrs)  # type: ignore[operator]
    if labels.dtype.is_float or (batch.all_count and any(_base(labels) is _base(one) for one in leaves(batch.labels))):
        per_row = labels.shape[0] / batch.rows  # each label counts: the weight is the rows'
        if weights is None:
            return "rows", _over(total, per_row), constant(float(batch.rows))
        if weights is batch.weights:
            return "rows", total, ops.sum(weights)
    return ("op", labels, weights), total, weight


def _check_weights_used(batch: Batch, roots: Sequence[Value | None], called: str) -> None:
    """DataError for row weights of the data that these values do not depend on."""
    if batch.weights is None:
        return
    if batch.weights.node not in reachable([v for v in roots if v is not None]):
        raise DataError(
            f"{called}: there are row weights (of the data, or class_weight=), and this mean reads none; need "
            'ops.cross_entropy(logits, labels, weights), with weights = gl.input("weights", (n,)) in a graph; or one '
            "value per row"
        )


def _base(x: Value) -> Value:
    """What a chain of views and casts reads."""
    while (x.node.op.view is not None or x.node.op.name == "cast") and x.node.inputs[0] is not None:
        x = x.node.inputs[0]
    return x


def combined(pairs: Sequence[Pair], rows: int) -> tuple[Value, Value, bool]:
    """(sum, weight, whether it adds up over micro-batches): the sum of these means. It adds up where all weights are
    equal; else it is right for one micro-batch, and its weight is the rows."""
    means = [(key, total, weight) for key, total, weight in pairs if weight is not None]
    penalties = [total for _, total, weight in pairs if weight is None]
    keys = {key for key, _, _ in means}
    weight = means[0][2] if len(keys) == 1 else constant(float(rows))
    assert weight is not None
    parts = []
    for _, total, own in means:
        if len(keys) > 1:
            assert own is not None
            some = ops.where(ops.greater(own, 0.0), own, 1.0)  # no row counts: the sum is 0
            total = ops.mul(ops.div(total, some), weight)
        parts.append(total)
    parts += [ops.mul(penalty, weight) for penalty in penalties]
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return total, weight, len(keys) <= 1


def _unscaled(x: Value) -> tuple[Value, float]:
    """What a scalar is a multiple of, and the number that multiplies it."""
    node = x.node
    if node.op.name == "scale" and not node.attrs["bias"] and node.inputs[0] is not None:
        inner, by = _unscaled(node.inputs[0])
        return inner, by * node.attrs["factor"]
    if node.op.name == "mul":
        for scalar, factor in (node.inputs, node.inputs[::-1]):
            if scalar is not None and factor is not None and factor.node.op.name == "constant":
                inner, by = _unscaled(scalar)
                return inner, by * float(_number(factor))
    return x, 1.0


def _times(factor: Any, by: Any) -> Any:
    if isinstance(factor, float) and isinstance(by, float):
        return factor * by
    return by if isinstance(factor, float) and factor == 1.0 else ops.mul(factor, by)


def _over(total: Value, count: float) -> Value:
    return total if count == 1.0 else ops.scale(total, factor=1.0 / count)


def _inverse(x: Value) -> Value:
    return ops.div(1.0, x)


def _number(x: Value) -> Any:
    """A constant as its number, anything else as it is."""
    return float(x.node.attrs["data"]) if x.node.op.name == "constant" else x
