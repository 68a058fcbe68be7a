"""OpSpec: all that gradloom knows about an op, as a literal of `declare.op` states it; and the registry of all ops.

The rules of an op (shape, composition, vjp, reference, view, cost) are plain functions whose parameters are called by
name: the op's inputs, outputs and attributes, `g` or `g_<output>` for incoming gradients. A rule asks for what it
needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.dtypes import DType
from ..base.errors import DTypeError, GradloomError, GraphError
from .declaration import (
    Attr,
    BadSample,
    IdRange,
    Reject,
    Rule,
    Sample,
    Slot,
    Spec,
    canonical,
    wanted,
)
from .numbers import constant_array, in_expression
from .scope import current_scope, user_location
from .stored import addressable
from .streams import next_stream
from .value import Node, Value, describe, recording

MAX_RANK = 6
INFERRED = 4096  # at most so many results of its shape rule are kept by an op
RULES = ("shape", "composition", "vjp", "reference", "view", "cost", "ids")

REGISTRY: dict[str, OpSpec] = {}  # every op by its name: the leaves, and what ops/ adds


@dataclass(eq=False, repr=False, kw_only=True)
class OpSpec:
    """One op. Calling it makes a node and returns its output, or a tuple of them.

    name, family      of the op, and of the file that declares it
    doc               first line: the formula; then where it comes from
    inputs, outputs   names; "b?" is optional; names after "|" repeat as groups ("| w g m v")
    attrs             "axes:ints keepdims:bool=False act:none/relu window:int?" ("?": None unless given)
    dtypes            {input: dtypes that it may have}; in a declaration "f32 ids:i32 table:f32|f16|quantised", where a
                      word without a name stands for all other inputs and "any" puts no bound
    shape             rule: Spec of the output, or several; raises Reject
    composition       rule: the outputs, made of public ops; for a backward or fused op. Shape, reference and vjp follow
                      from it where they are not stated
    vjp               rule: one gradient (f32, of public ops) per declared input; or no_gradient="why not". `needed`
                      is the set of inputs whose gradients are looked at
    no_gradient_to    {input: why}: inputs that may get None for a gradient; None for any other is an error
    reference         NumPy definition, float64 in, float64 out; a tuple for several outputs. Beside a composition it
                      is an independent check
    may_overwrite     {output: inputs whose buffer it may take}; in a declaration also the inputs of the first output
    view              rule (shape, strides of the first input, attributes) -> (offset, strides) in elements or None:
                      the output needs no kernel
    dense             inputs that must be row-major without gaps (the planner copies where they are not)
    unit              inputs of which one of the last two axes must have stride 1 (matrices, transposed or not)
    updates           "w=w m=m": outputs that are written to the storage of an input
    cost              rule: (flops, bytes); by default one flop per output element, all bytes once
    ids               rule: the IdRange of the input that holds row numbers; None where it holds none
    exact             a kernel gives the very bits of the reference in f32
    tolerance         relative error that a kernel may make in f32: of each element of an elementwise op, of the largest
                      number of the output of any other
    elementwise       each element of the output is made from one element of each input
    samples           rng -> samples that every test is generated from; no_samples="why there are none"
    bad_samples       calls that the op refuses, with their messages
    leaf              has no kernel: its bytes come from outside
    guard             may stop the run; every update comes after it
    foldable          False: never folded to a constant nor merged with its twin (random ops, updates)
    """

    name: str
    family: str
    doc: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attrs: tuple[Attr, ...]
    dtypes: Mapping[str, tuple[DType, ...]]
    shape: Rule
    composition: Rule | None = None
    vjp: Rule | None = None
    no_gradient: str | None = None
    no_gradient_to: Mapping[str, str] = field(default_factory=dict)
    reference: Rule | None = None
    may_overwrite: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    view: Rule | None = None
    dense: frozenset[str] = frozenset()
    unit: frozenset[str] = frozenset()
    updates: Mapping[str, str] = field(default_factory=dict)  # output -> input
    cost: Callable[..., tuple[float, float]] | None = None
    ids: Rule | None = None
    exact: bool = False
    tolerance: float = 4e-6
    elementwise: bool = False
    samples: Callable[[np.random.Generator], Sequence[Sample]] | None = None
    no_samples: str | None = None
    bad_samples: Sequence[BadSample] = ()
    leaf: bool = False
    guard: bool = False
    foldable: bool = True
    fixed_inputs: int = field(init=False)
    fixed_outputs: int = field(init=False)
    group_size: int = field(init=False)
    stream: str | None = field(init=False)  # the attribute that holds the stream of a random op
    wants: dict[str, tuple[str, ...]] = field(init=False)  # the names that each rule is called with

    def __post_init__(self) -> None:
        self.__doc__ = self.doc
        self.fixed_inputs = sum(not s.repeated for s in self.inputs)
        self.fixed_outputs = sum(not s.repeated for s in self.outputs)
        self.group_size = len(self.inputs) - self.fixed_inputs
        self.stream = next((a.name for a in self.attrs if a.kind == "stream"), None)
        self.wants = {rule: wanted(getattr(self, rule)) for rule in RULES}
        self.inferred: dict[Hashable, tuple[Spec, ...]] = {}
        self.by_value = all(attr.kind != "object" for attr in self.attrs)

    # ---- calling -------------------------------------------------------------------------------------

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """op(inputs..., attributes...): attributes by name, or in order after all inputs (unless inputs repeat).

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
        if active is not None:
            recorded = active.record(self, inputs, attrs)
            if recorded is not NotImplemented:
                return recorded
        outputs = self.node(inputs, attrs).outputs
        return outputs[0] if len(outputs) == 1 and not self.outputs[0].repeated else outputs

    def node(self, inputs: Sequence[Any], attrs: Mapping[str, Any], name: str = "", where: str | None = None) -> Node:
        """Make a node: inputs become values, attributes canonical, shapes are inferred. Errors name the user's line."""
        values = [x if x is None or isinstance(x, Value) else _constant(x) for x in inputs]
        values += [None] * (self.fixed_inputs - len(values))
        try:
            known = self.canonical_attrs(attrs)
            specs = self.infer(values, known)
        except Reject as reject:
            raise self._error(reject, values, name, where) from None
        return Node(self, values, known, [(s.shape, s.dtype) for s in specs], name, where)

    def canonical_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        known = {}
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
            raise Reject(f"{sorted(unknown)[0]} is not an attribute", f"one of: {names}", GraphError)
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
        made = self.call("shape", self.bind_inputs(specs) | dict(attrs))
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

    # ---- rules, called by name -----------------------------------------------------------------------

    def call(self, rule: str, scope: Mapping[str, Any]) -> Any:
        """Call a rule with what it asks for out of scope."""
        return getattr(self, rule)(**{n: scope[n] for n in self.wants[rule]})

    def pull(self, node: Node, received: Sequence[Value | None], depends: Collection[Value]) -> list[Value | None]:
        """Gradients of the node's inputs (flat), given those of its outputs: its vjp, called by name.

        `g` is the gradient of the first output, unless the op has an input called g; then only g_<output> names it.
        `needed` are the names of the inputs that are in `depends`: the gradients of others are not looked at.
        """
        bound = self.bind_outputs(received)
        scope = {"g": bound[self.outputs[0].name]} | {f"g_{name}": g for name, g in bound.items()}
        scope |= dict(node.attrs) | self.bind_inputs(node.inputs) | self.bind_outputs(node.outputs)
        if "needed" in self.wants["vjp"]:
            scope["needed"] = {self.slot(self.inputs, i).name for i, v in enumerate(node.inputs) if v in depends}
        return self.flatten(self.inputs, self.call("vjp", scope))

    def id_range(self, node: Node) -> IdRange | None:
        """Which row numbers the node may read; None of an op that reads none."""
        return None if self.ids is None else self.call("ids", node.attrs | self.bind_inputs(node.inputs))

    def bind_inputs(self, values: Sequence[Any]) -> dict[str, Any]:
        return self._bind(self.inputs, values)

    def bind_outputs(self, values: Sequence[Any]) -> dict[str, Any]:
        return self._bind(self.outputs, values)

    @staticmethod
    def _bind(slots: tuple[Slot, ...], values: Sequence[Any]) -> dict[str, Any]:
        """name -> value; name -> list of values for the repeated ones."""
        bound: dict[str, Any] = {s.name: v for s, v in zip(slots, values, strict=False)}
        if slots and slots[-1].repeated:
            fixed = sum(not s.repeated for s in slots)
            group = len(slots) - fixed
            for i, slot in enumerate(slots[fixed:]):
                bound[slot.name] = list(values[fixed + i :: group])
        return bound

    def named_inputs(self, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """(name, value) flat; repeated ones are numbered: w0 g0 w1 g1."""
        return self._named(self.inputs, values)

    def named_outputs(self, values: Sequence[Any]) -> list[tuple[str, Any]]:
        return self._named(self.outputs, values)

    @staticmethod
    def _named(slots: tuple[Slot, ...], values: Sequence[Any]) -> list[tuple[str, Any]]:
        fixed = [s for s in slots if not s.repeated]
        repeated = slots[len(fixed) :]
        names = [s.name for s in fixed[: len(values)]]
        names += [
            f"{repeated[k % len(repeated)].name}{k // len(repeated)}" if repeated else "unexpected"
            for k in range(len(values) - len(names))
        ]
        return list(zip(names, values, strict=True))

    def flatten(self, slots: tuple[Slot, ...], per_name: Sequence[Any]) -> list[Any]:
        """One entry per declared name (lists for repeated names) -> one entry per value, in tape order."""
        fixed = sum(not s.repeated for s in slots)
        flat = list(per_name[:fixed])
        for group in zip(*per_name[fixed:], strict=True):
            flat.extend(group)
        return flat

    def slot(self, slots: tuple[Slot, ...], position: int) -> Slot:
        """The declaration that a flat position belongs to."""
        fixed = self.fixed_inputs if slots is self.inputs else self.fixed_outputs
        return slots[position] if position < fixed else slots[fixed + (position - fixed) % (len(slots) - fixed)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.name,)  # copies of a graph share its ops

    def __repr__(self) -> str:
        return f"op({self.name})"


def _registered(name: str) -> OpSpec:
    return REGISTRY[name]


def _constant(data: Any) -> Value:
    """A number or array that stands among the inputs of an op."""
    return REGISTRY["constant"].node((), {"data": constant_array(in_expression(data))}).outputs[0]
