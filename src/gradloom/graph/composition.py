"""Compositions: a fused or backward op, written once in simpler ops, and the rules derived from it.

    composition (values, attributes) -> values
        shape       build it on values of these shapes and read off the results
        reference   build it and apply each of its ops' references to arrays
        vjp         build it on the node's inputs and differentiate it
        fall-back   build it in place of the node, for a backend without its kernel (transform/expand.py)

An op that states a shape rule, a reference or a vjp of its own in addition to its composition uses that one: for
messages of its own, as an independent check, and where a fused backward op exists.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..base.dtypes import DType, bf16, dtype, f32
from .calls import computed
from .declaration import Attr, Rule, Slot, Spec, called_with, wanted
from .grad import gradients
from .graph import reachable
from .opspec import REGISTRY
from .rounding import to_bf16
from .scope import scope
from .value import Node, Value, builds_graphs


def as_results(made: Any) -> tuple[Any, ...]:
    """The result of a rule, as one entry per output."""
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


class Composition:
    """An op's composition, called by name as its other rules are, and the rules that follow from it."""

    def __init__(
        self, rule: Rule, inputs: tuple[Slot, ...], outputs: tuple[Slot, ...], attrs: tuple[Attr, ...]
    ) -> None:
        self.rule, self.wants = rule, wanted(rule)
        self.inputs, self.outputs, self.attrs = inputs, outputs, attrs

    def build(self, scope: Mapping[str, Any]) -> tuple[Value, ...]:
        """The results, one value per output, from inputs (values, None, or lists of them) and attributes by name."""
        return as_results(self.rule(**{name: scope[name] for name in self.wants}))

    def shape(self) -> Rule:
        """The shape rule that follows: specs in, specs out."""

        @builds_graphs
        def rule(**scope: Any) -> list[Spec]:
            placed = {s.name: _each(_placeholder, scope[s.name]) for s in self.inputs}
            return [Spec(v.shape, v.dtype) for v in self.build(scope | placed)]

        return called_with(self._names(), rule)

    def reference(self, name: str = "", ids: Rule | None = None) -> Rule:
        """The reference that follows: arrays in, arrays out, real numbers in the dtype of the real inputs.

        ids: the rule that gives the row numbers that the op called `name` takes; others are a DataError.
        """

        @builds_graphs
        def rule(**scope: Any) -> tuple[np.ndarray, ...]:
            among = None if ids is None else ids(**{n: scope[n] for n in wanted(ids)})
            if among is not None:
                among.check(name, scope[among.input])
            known: dict[Value, np.ndarray] = {}

            def placed(array: np.ndarray) -> Value:
                value = _placeholder(Spec(array.shape, f32 if array.dtype.kind == "f" else dtype(array.dtype)))
                known[value] = array
                return value

            results = self.build(scope | {s.name: _each(placed, scope[s.name]) for s in self.inputs})
            kinds = [array.dtype for array in known.values() if array.dtype.kind == "f"]
            real = np.result_type(*kinds) if kinds else np.dtype(np.float64)
            for node in reachable(results):
                if node.outputs[0] in known:
                    continue
                if node.op.name == "constant":
                    known[node.outputs[0]] = as_real(node.attrs["data"], node.outputs[0].dtype, real)
                else:
                    arrays = by_reference(node, [None if v is None else known[v] for v in node.inputs])
                    known |= {v: as_real(a, v.dtype, real) for v, a in zip(node.outputs, arrays, strict=True)}
            return tuple(known[v] for v in results)

        return called_with(self._names(), rule)

    def vjp(self, without: Container[str]) -> Rule:
        """The vjp that follows: a gradient for each needed input of real numbers that is not in `without`."""

        def rule(*, needed: Container[str], **scope: Any) -> list[Any]:
            names = [s.name for s in self.inputs if s.name in needed and s.name not in without]
            wrt = [v for name in names for v in _listed(scope[name]) if _has_slope(v)]

            def compose(*values: Value) -> tuple[Value, ...]:
                replacing = iter(values)  # by position: two inputs may be one value
                replaced = {n: _each(lambda v: next(replacing) if _has_slope(v) else v, scope[n]) for n in names}
                return self.build(scope | replaced)

            slopes = iter(pullback(compose, wrt, *(scope[f"g_{s.name}"] for s in self.outputs)))
            given = {n: _each(lambda v: next(slopes) if _has_slope(v) else None, scope[n]) for n in names}
            return [given.get(s.name, _each(lambda v: None, scope[s.name])) for s in self.inputs]

        return called_with([*self._names(), *(f"g_{s.name}" for s in self.outputs), "needed"], rule)

    def _names(self) -> list[str]:
        return [s.name for s in self.inputs] + [a.name for a in self.attrs]


def composed(node: Node, inputs: Sequence[Value | None], device: str | None = None) -> tuple[Value, ...]:
    """The outputs of a node from these inputs by its op's composition; the new nodes carry its name and its line, and
    are assigned to `device`, or to the device of the node."""
    with scope(node.name) if node.name else nullcontext():
        results = as_results(node.op.call("composition", node.attrs | node.op.bind_inputs(inputs)))
    given = {v.node for v in inputs if v is not None}
    todo = [v.node for v in results]
    while todo:
        made = todo.pop()
        if made not in given:
            given.add(made)
            made.where, made.device = node.where, device or node.device
            todo.extend(v.node for v in made.inputs if v is not None)
    return results


def _placeholder(spec: Spec) -> Value:
    attrs = {"key": "composition", "extents": spec.shape, "kind": spec.dtype}
    return REGISTRY["input"].node((), attrs, where="").outputs[0]


def _has_slope(value: Value | None) -> bool:
    return value is not None and value.dtype.is_float


def _listed(entry: Any) -> list[Any]:
    return entry if isinstance(entry, list) else [entry]


def _each(function: Callable[[Any], Any], entry: Any) -> Any:
    """The function of one entry, or of each in a list of a repeated input; of an absent one None."""
    if isinstance(entry, list):
        return [None if x is None else function(x) for x in entry]
    return None if entry is None else function(entry)


def by_reference(node: Node, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of a node by its op's reference, from one array per input; of a product with a first operand in bf16
    on operands that are all rounded to bf16."""
    if node.op.python:
        return computed(node, [a for a in arrays if a is not None])
    scope = node.attrs | node.op.bind_inputs(arrays)
    if node.op.rounds:
        scope |= node.op.bind_inputs(as_read(node, arrays)) | {"rounded": is_rounded(node)}
    with np.errstate(all="ignore"):
        results = as_results(node.op.call("reference", scope))
    arrays_out = [np.asarray(r) for r in results]
    for array, value in zip(arrays_out, node.outputs, strict=True):
        assert array.shape == value.shape, f"reference of {node.op.name}: {array.shape}, graph: {value!r}"
    return arrays_out


def is_rounded(node: Node) -> bool:
    """Whether a product's operands are rounded: the first of them is bf16."""
    kinds = (
        value.dtype
        for slot, value in zip(node.op.inputs, node.inputs, strict=False)
        if value is not None and slot.name in node.op.rounds
    )
    return next(kinds, None) is bf16


def as_read(node: Node, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """The arrays of a node's inputs as its kernel reads them: see Declaration.rounds."""
    kinds = {
        slot.name: value.dtype for slot, value in zip(node.op.inputs, node.inputs, strict=False) if value is not None
    }
    operands = [name for name in node.op.rounds if name in kinds]
    given = list(arrays)
    if is_rounded(node):
        for at, slot in enumerate(node.op.inputs):
            array = given[at]
            if slot.name in operands and kinds[slot.name] is not bf16 and array is not None:
                given[at] = to_bf16(array, operand=True)
    return given


def as_real(array: np.ndarray, kind: DType, real: np.dtype, copy: bool = False) -> np.ndarray:
    """The array of a value of dtype `kind`, its real numbers as `real`, whole numbers as they are."""
    return array.astype(real if kind.is_float or kind.is_quantised else kind.numpy, copy=copy)


def pullback(function: Rule, inputs: Sequence[Value], *seeds: Value | None) -> list[Value]:
    """Gradients of function(*inputs) with respect to its inputs; zeros for one that it does not depend on.

    function(*inputs) -> one value or several. seeds: the gradient of each, or None.
    """
    proxies = [REGISTRY["reshape"](v, shape=v.shape) for v in inputs]  # distinct even where two inputs are one value
    slopes = gradients(as_results(function(*proxies)), proxies, seeds)
    zero = REGISTRY["broadcast_to"]
    return [zero(0.0, shape=v.shape) if g is None else g for v, g in zip(inputs, slopes, strict=True)]
