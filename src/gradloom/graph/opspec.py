"""OpSpec: an op that makes nodes; and the registry of all ops."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..base.arrays import as_array
from ..base.dtypes import f32
from ..base.errors import DTypeError, GradloomError, GraphError
from ..base.habits import keyword_hint
from .declaration import Declaration, Reject, Spec, canonical
from .numbers import addressable, constant_array, in_expression, kind_of
from .scope import current_scope, user_location
from .streams import next_stream
from .value import Node, Value, describe, recording

MAX_RANK = 6
INFERRED = 4096  # the number of shape rule results that an op caches

REGISTRY: dict[str, OpSpec] = {}  # every op by its name: the leaves, and what ops/ adds


class OpSpec(Declaration):
    """One op. Calling it makes a node and returns its output, or a tuple of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inferred: dict[Hashable, tuple[Spec, ...]] = {}
        self.by_value = all(attr.kind != "object" for attr in self.attrs)

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """op(inputs..., attributes...): attributes by name, or in order after all inputs (unless inputs repeat).

        Whole numbers are converted to f32 where an op takes only floats.

        With eager tensors, and while a tape is open, it is recorded instead: see gradloom.eager.
        """
        if not self.group_size and len(inputs) > self.fixed_inputs:
            names = [a.name for a in self.attrs if a.name not in attrs]
            attrs |= dict(zip(names, inputs[self.fixed_inputs :], strict=False))
            inputs = inputs[: self.fixed_inputs] + inputs[self.fixed_inputs + len(names) :]
        active = recording.get()
        if active is None:
            for x in inputs:
                if isinstance(x, Value) and x.recorder is not None:
                    active = x.recorder
                    break
        try:
            if active is not None:
                recorded = active.record(self, inputs, attrs)
                if recorded is not NotImplemented:
                    return recorded
            outputs = self.node(inputs, attrs).outputs
            return outputs[0] if len(outputs) == 1 and not self.outputs[0].repeated else outputs
        except DTypeError:
            promoted = self._promoted(inputs)
            if promoted is None:
                raise
        return self(*promoted, **attrs)

    def _promoted(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The inputs with whole numbers converted to f32 where the op takes only floats; None where there are none.

        Updates convert nothing. Ops that only move elements convert whole numbers only together with floats.
        """
        moves = self.family == "layout" and not any(map(_is_float, inputs))
        if self.updates or self.guard or moves or (len(inputs) > self.fixed_inputs and not self.group_size):
            return None
        promoted = list(inputs)
        for i, x in enumerate(inputs):
            taken = self.dtypes.get(self.slot(self.inputs, i).name, ())
            own = f32 if x is None else x.dtype if isinstance(x, Value) else kind_of(in_expression(x))
            is_whole = not own.is_float and not own.is_quantised
            if is_whole and f32 in taken and all(kind.is_float or kind.is_quantised for kind in taken):
                promoted[i] = (
                    REGISTRY["cast"](x, dtype=f32) if isinstance(x, Value) else as_array(self.name, x).astype(f32.numpy)
                )
        return None if all(a is b for a, b in zip(promoted, inputs, strict=True)) else promoted

    def node(self, inputs: Sequence[Any], attrs: Mapping[str, Any], name: str = "", where: str | None = None) -> Node:
        """Make a node: inputs become values, attributes canonical, shapes are inferred. Errors name the user's line."""
        values = [x if x is None or isinstance(x, Value) else _constant(x) for x in inputs]
        if len(values) < self.fixed_inputs:
            values += [None] * (self.fixed_inputs - len(values))
        try:
            known = self.canonical_attrs(attrs)
            specs = self.infer(values, known)
        except Reject as reject:
            raise self._error(reject, values, name, where) from None
        return Node(self, values, known, specs, name, where)

    def canonical_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for attr in self.attrs:
            value = attrs.get(attr.name, attr.default)
            if attr.name == self.stream and (value is None or value is inspect.Parameter.empty):
                value = next_stream()
            if value is inspect.Parameter.empty:
                raise Reject(f"{attr.name} is missing", f"{attr.name} of kind {attr.kind}", GraphError)
            absent = attr.optional and value is None
            known[attr.name] = None if absent else canonical(attr.kind, value, attr.name)
        if not attrs.keys() <= known.keys():
            names, unknown = ", ".join(known) or "none", attrs.keys() - known.keys()
            hint = keyword_hint(self.name, sorted(unknown)[0], [*known, *(slot.name for slot in self.inputs)])
            raise Reject(f"{sorted(unknown)[0]} is not an attribute", f"one of: {names}{hint}", GraphError)
        return known

    def infer(self, values: Sequence[Value | None], attrs: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Shapes and dtypes of the outputs, by the op's rule: a function of the shapes and dtypes of the inputs and of
        the attributes, which is called once for equal ones."""
        if not self.by_value:
            return self._infer(values, attrs)
        key = (*attrs.values(), *[None if v is None else (v.shape, v.dtype.name) for v in values])
        specs = self.inferred.get(key)
        if specs is None:
            specs = self._infer(values, attrs)
            if len(self.inferred) >= INFERRED:
                self.inferred.clear()
            self.inferred[key] = specs
        return specs

    def _infer(self, values: Sequence[Value | None], attrs: Mapping[str, Any]) -> tuple[Spec, ...]:
        given, least = len(values), self.fixed_inputs
        if given < least or (given > least and (not self.group_size or (given - least) % self.group_size)):
            need = f"{least}" + (f" and groups of {self.group_size}" if self.group_size else "")
            raise Reject(f"{given} inputs", f"{need} inputs", GraphError)
        for slot, value in zip(self.inputs, values[:least], strict=False):
            if value is None and not slot.optional:
                raise Reject(f"input {slot.name} is missing", slot.name, GraphError)
        specs = [None if v is None else Spec(v.shape, v.dtype) for v in values]
        for i, spec in enumerate(specs):
            taken = self.dtypes.get(self.slot(self.inputs, i).name)
            if spec is not None and taken is not None and spec.dtype not in taken:
                names = " or ".join(kind.name for kind in taken)
                raise Reject(f"dtype {spec.dtype.name} is not taken", names, DTypeError)
        made = self.call("shape", {**self.bind_inputs(specs), **attrs} if self.inputs else attrs)
        outputs = (made,) if isinstance(made, Spec) else tuple(made)
        for spec in outputs:
            if spec.ndim > MAX_RANK:
                raise Reject(f"the result has {spec.ndim} axes", f"at most {MAX_RANK}")
            if not addressable(spec.shape, spec.dtype.bytes):
                raise Reject(f"the result has shape {list(spec.shape)}", "fewer than 2^63 bytes")
        return outputs

    def _error(self, reject: Reject, values: Sequence[Value | None], name: str, where: str | None) -> GradloomError:
        shown = ", ".join(f"{n} {describe(v)}" for n, v in self.named_inputs(values) if v is not None)
        called = name or current_scope()
        place = f"node {called} at {where or user_location()}" if called else f"at {where or user_location()}"
        parts = [f"{self.name}: {reject.seen}" + (f": {shown}" if shown else ""), f"need {reject.need}", place]
        return reject.kind("; ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.name,)  # copies of a graph share its ops


def _is_float(x: Any) -> bool:
    return x.dtype.is_float if isinstance(x, Value) else isinstance(x, float)


def _registered(name: str) -> OpSpec:
    return REGISTRY[name]


def _constant(data: Any) -> Value:
    """A number or array among the inputs of an op."""
    return REGISTRY["constant"].node((), {"data": constant_array(in_expression(data))}).outputs[0]
