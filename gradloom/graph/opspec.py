"""OpSpec: all that gradloom knows about an op, in one literal; the registry refuses gaps.

The rules of an op (shape, composition, vjp, reference, view, cost) are plain functions whose parameters are called by
name: the op's inputs, outputs and attributes, `g` or `g_<output>` for incoming gradients. A rule asks for what it
needs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ..base.arguments import as_bool
from ..base.arrays import as_array
from ..base.dtypes import DType, dtype, f32, i32, u8
from ..base.dtypes import dtype as as_dtype
from ..base.errors import DTypeError, GradloomError, GraphError, ShapeError
from .stored import Role, Stored, addressable
from .value import Node, Shape, Value, describe, recording

MAX_RANK = 6
RULES = ("shape", "vjp", "reference", "view", "cost")


@dataclass(eq=False, repr=False, kw_only=True)
class OpSpec:
    """One op. Calling it makes a node and returns its output, or a tuple of them.

    name, family      of the op, and of the file that declares it
    doc               first line: the formula; then where it comes from
    inputs, outputs   names; "b?" is optional; names after "|" repeat as groups ("| w g m v")
    attrs             "axes:ints keepdims:bool=False act:none/relu"
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
    shape: Rule
    composition: Composition | None = None
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
    samples: Callable[[np.random.Generator], Sequence[Sample]] | None = None
    no_samples: str | None = None
    bad_samples: Sequence[BadSample] = ()
    leaf: bool = False
    guard: bool = False
    foldable: bool = True
    fixed_inputs: int = field(init=False)
    fixed_outputs: int = field(init=False)
    group_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.__doc__ = self.doc
        self.fixed_inputs = sum(not s.repeated for s in self.inputs)
        self.fixed_outputs = sum(not s.repeated for s in self.outputs)
        self.group_size = len(self.inputs) - self.fixed_inputs
        self._wants = {rule: wanted(getattr(self, rule)) for rule in RULES}

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
            if value is inspect.Parameter.empty:
                raise Reject(f"{attr.name} is missing", f"{attr.name} of kind {attr.kind}", GraphError)
            known[attr.name] = canonical(attr.kind, value, attr.name)
        unknown = set(attrs) - set(known)
        if unknown:
            names = ", ".join(known) or "none"
            raise Reject(f"{sorted(unknown)[0]} is not an attribute", f"one of: {names}", GraphError)
        return known

    def infer(self, values: Sequence[Value | None], attrs: Mapping[str, Any]) -> list[Spec]:
        """Shapes and dtypes of the outputs, by the op's rule."""
        given, least = len(values), self.fixed_inputs
        if given < least or (given > least and (not self.group_size or (given - least) % self.group_size)):
            need = f"{least}" + (f" and groups of {self.group_size}" if self.group_size else "")
            raise Reject(f"{given} inputs", f"{need} inputs", GraphError)
        for slot, value in zip(self.inputs, values[:least], strict=False):
            if value is None and not slot.optional:
                raise Reject(f"input {slot.name} is missing", slot.name, GraphError)
        specs = [None if v is None else Spec(v.shape, v.dtype) for v in values]
        made = self.call("shape", self.bind_inputs(specs) | dict(attrs))
        outputs = [made] if isinstance(made, Spec) else list(made)
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
        return getattr(self, rule)(**{n: scope[n] for n in self._wants[rule]})

    def pull(self, node: Node, received: Sequence[Value | None], depends: Collection[Value]) -> list[Value | None]:
        """Gradients of the node's inputs (flat), given those of its outputs: its vjp, called by name.

        `g` is the gradient of the first output, unless the op has an input called g; then only g_<output> names it.
        `needed` are the names of the inputs that are in `depends`: the gradients of others are not looked at.
        """
        bound = self.bind_outputs(received)
        scope = {"g": bound[self.outputs[0].name]} | {f"g_{name}": g for name, g in bound.items()}
        scope |= dict(node.attrs) | self.bind_inputs(node.inputs) | self.bind_outputs(node.outputs)
        if "needed" in self._wants["vjp"]:
            scope["needed"] = {self.slot(self.inputs, i).name for i, v in enumerate(node.inputs) if v in depends}
        return self.flatten(self.inputs, self.call("vjp", scope))

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


def op(
    name: str,
    *,
    inputs: str,
    outputs: str = "y",
    attrs: str = "",
    shape: Rule | None = None,
    composition: Rule | None = None,
    vjp: Rule | None = None,
    no_gradient: str | None = None,
    no_gradient_to: Mapping[str, str] = MappingProxyType({}),
    reference: Rule | None = None,
    may_overwrite: str | Mapping[str, str] = "",
    dense: str = "",
    unit: str = "",
    updates: str = "",
    **fields: Any,
) -> OpSpec:
    """Declare an op: the fields of OpSpec, names written as one text. AssertionError where the declaration has gaps."""
    slots, results, known = parsed_slots(inputs), parsed_slots(outputs), parsed_attrs(attrs)
    made = None
    if composition is not None:
        made = Composition(composition, slots, results, known)
        shape, reference = shape or made.shape(), reference or made.reference()
        if vjp is None and no_gradient is None:
            vjp = made.vjp(no_gradient_to)
    if shape is None:
        raise AssertionError(f"op {name} needs: a shape rule or a composition")
    spec = OpSpec(
        name=name,
        family=sys._getframe(1).f_globals["__name__"].rpartition(".")[2],
        inputs=slots,
        outputs=results,
        attrs=known,
        shape=shape,
        composition=made,
        vjp=vjp,
        no_gradient=no_gradient,
        no_gradient_to=no_gradient_to,
        reference=reference,
        may_overwrite=parsed_overwrites(may_overwrite, results),
        dense=frozenset(dense.split()),
        unit=frozenset(unit.split()),
        updates=dict(pair.split("=") for pair in updates.split()),
        **fields,
    )
    _refuse_gaps(spec)
    REGISTRY[name] = spec
    return spec


def _refuse_gaps(spec: OpSpec) -> None:
    gaps = []
    if spec.name in REGISTRY:
        gaps.append("the name is taken")
    if (spec.vjp is None) == (spec.no_gradient is None):
        gaps.append("exactly one of vjp and no_gradient")
    if spec.reference is None and not spec.leaf:
        gaps.append("a reference or a composition")
    if (spec.samples is None) == (spec.no_samples is None):
        gaps.append("exactly one of samples and no_samples")
    known = {s.name for s in spec.inputs} | {s.name for s in spec.outputs} | {a.name for a in spec.attrs}
    known |= {"g", "needed"} | {f"g_{s.name}" for s in spec.outputs} | {"strides", "layout_shape"}
    wants_of = spec._wants | {"composition": spec.composition.wants if spec.composition else ()}
    for rule, wants in wants_of.items():
        gaps += [f"{rule} asks for {w!r}, which is not declared" for w in wants if w not in known]
    inputs, outputs = {s.name for s in spec.inputs}, {s.name for s in spec.outputs}
    both = (inputs & outputs) - set(spec.updates)
    if both:
        gaps.append(f"different names of inputs and outputs, not {', '.join(sorted(both))}")
    for out, names in spec.may_overwrite.items():
        if out not in outputs or not set(names) <= inputs:
            gaps.append(f"may_overwrite names {out}: {names}")
    if (
        not set(spec.updates) <= outputs
        or not set(spec.updates.values()) <= inputs
        or not spec.dense | spec.unit <= inputs
    ):
        gaps.append("updates, dense or unit name an unknown input or output")
    if not set(spec.no_gradient_to) <= inputs or (spec.no_gradient_to and spec.vjp is None):
        gaps.append("no_gradient_to of inputs, beside a vjp")
    if gaps:
        raise AssertionError(f"op {spec.name} needs: {'; '.join(gaps)}")


# ---- values from Python data -----------------------------------------------------------------------------


def as_value(x: Any) -> Value:
    """A value as it is; a number or array becomes a constant (f32 for floats and for one whole number, i32 for integer
    arrays, u8 for bools).

    Inside of a tape they become an input of what is taken down.
    """
    if isinstance(x, Value):
        return x
    active = recording.get()
    return constant(in_expression(x)) if active is None else active.value(x)


def kind_of(data: Any) -> DType:
    """The dtype that a user's numbers get: f32 for floats, i32 for whole numbers, u8 for bools; bytes stay bytes.

    One whole number of Python counts as a float; a NumPy one, as a scalar or in an array of any shape, is a whole
    number. In an expression (x * n) each counts as a float: see as_value.
    """
    array = np.asarray(data)
    if array.dtype.kind == "b":
        return u8
    if array.dtype.kind in "iu" and (array.ndim > 0 or isinstance(data, (np.ndarray, np.generic))):
        return i32 if array.dtype.itemsize > 1 else dtype(array.dtype)
    return f32


def in_expression(data: Any) -> Any:
    """Numbers as they count beside values in an expression: one whole number, also of NumPy, is a float."""
    if isinstance(data, (np.integer, np.ndarray)) and data.ndim == 0 and data.dtype.kind in "iu":
        return int(data)
    return data


def constant(data: Any, kind: str | DType | None = None, name: str = "") -> Value:
    """A constant node holding `data` (copied): f32 for floats, i32 for whole numbers of NumPy and lists of them, u8 for
    bools, unless `kind` says which; one whole number of Python is a float.

    Raises ShapeError for rows of different lengths, DTypeError for what holds no numbers, is masked, or does not fit.
    """
    try:
        array = as_array(f"constant {name}".rstrip(), data)
    except ValueError:
        raise ShapeError(f"constant {name}: rows differ in length; need a rectangular array") from None
    if kind is None:
        kind = kind_of(data)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise DTypeError(f"constant: got {array.dtype} data; need numbers")
    if dtype(kind).is_quantised:
        raise DTypeError(f"constant {name}: numbers do not become {dtype(kind).name}; need Stored.map of its bytes")
    stored = converted("constant", array, dtype(kind))
    stored.setflags(write=False)
    return _CONSTANT.node((), {"data": stored}, name).outputs[0]


def converted(name: str, array: np.ndarray, kind: DType) -> np.ndarray:
    """A copy as `kind`; DTypeError for whole numbers beyond a whole-number dtype, which NumPy would wrap in silence."""
    made = np.array(array, kind.numpy, order="C")
    if array.dtype.kind in "iu" and array.dtype != made.dtype and not kind.is_float and (made != array).any():
        info = np.iinfo(made.dtype)
        raise DTypeError(
            f"{name}: it holds {array.min()}..{array.max()}; need numbers of {kind.name} ({info.min}..{info.max})"
        )
    return made


_CONSTANT = op(
    "constant", inputs="", attrs="data:object", leaf=True, foldable=False,
    doc="An array known when the graph is built.",
    shape=lambda data: Spec(data.shape, dtype(data.dtype)),
    no_gradient="a constant has no gradient", no_samples="a leaf: its bytes come from the graph",
)  # fmt: skip
_INPUT = op(
    "input", inputs="", attrs="key:object extents:ints kind:dtype", leaf=True, foldable=False,
    doc="An array that the caller feeds.",
    shape=lambda extents, kind: Spec(extents, kind),
    no_gradient="an input has no gradient of its own; ask for it with gl.gradients", no_samples="a leaf",
)  # fmt: skip
_PARAMETER = op(
    "parameter", inputs="", attrs="stored:object", leaf=True, foldable=False,
    doc="An array that outlives the run and that update ops may write.",
    shape=lambda stored: Spec(stored.shape, stored.dtype),
    no_gradient="a parameter is where gradients end", no_samples="a leaf",
)  # fmt: skip
_SETTING = op(
    "setting", inputs="", attrs="key:object kind:dtype=f32", leaf=True, foldable=False,
    doc="A scalar from the settings table (learning rate, step, seed), evaluated ahead of the call.",
    shape=lambda kind: Spec((), kind),
    no_gradient="a setting is not differentiated", no_samples="a leaf",
)  # fmt: skip


def input(name: str, shape: Sequence[int] = (), dtype: str | DType = "f32") -> Value:
    """A value that the caller feeds by name. shape: NumPy order, slowest axis first."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"input: name {name!r} is not usable; need a non-empty string")
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(not isinstance(e, (int, np.integer)) or e < 0 for e in extents):
        raise ShapeError(f"input {name}: shape {list(extents)} is not usable; need whole numbers >= 0")
    if isinstance(dtype, (str, DType)) and as_dtype(dtype).is_quantised:
        raise DTypeError(f"input {name}: {as_dtype(dtype).name} cannot be fed; need a plain dtype, or Stored.map")
    return _INPUT.node((), {"key": name, "extents": extents, "kind": dtype}, name).outputs[0]


def setting(key: str, kind: str | DType = "f32") -> Value:
    """A run-time scalar of shape () out of the settings table."""
    return _SETTING.node((), {"key": key, "kind": kind}, key).outputs[0]


class Parameter(Value):
    """A value whose array outlives the run. `numpy()` copies it out, `assign` replaces it; `trainable` may be set:
    one that is not trainable is frozen, which no optimiser touches.

    `programs` is where gradloom.eager keeps what it compiled: it goes when the parameter goes.
    """

    __slots__ = ("programs", "stored")

    def __init__(self, node: Node, index: int, shape: Shape, dtype: DType) -> None:
        super().__init__(node, index, shape, dtype)
        self.stored: Stored = node.attrs["stored"]
        self.programs: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return stored_value, (self.stored,)  # a copy, also in another process, is a leaf of its own

    @property
    def trainable(self) -> bool:
        return self.stored.role == "trained"

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self.stored.set_trainable(as_bool("trainable", trainable))

    def numpy(self) -> np.ndarray:
        """A copy of the current contents; quantised ones as f32."""
        return self.stored.numpy()

    def assign(self, data: Any) -> None:
        """Replace the contents; ShapeError or DTypeError when they do not fit."""
        self.stored.assign(data)


def parameter(data: Any, name: str = "", dtype: str | DType = "f32", trainable: bool = True) -> Parameter:
    """A trainable array, initialised with `data` (copied)."""
    role: Role = "trained" if as_bool("parameter: trainable", trainable) else "state"
    return stored_value(Stored(name, data, dtype, role))


def stored_value(stored: Stored) -> Parameter:
    """The leaf that reads (and, under an update, writes) a stored array."""
    node = _PARAMETER.node((), {"stored": stored}, stored.name)
    value = Parameter(node, 0, node.outputs[0].shape, node.outputs[0].dtype)
    node.outputs = (value,)
    return value


def named(value: Value, name: str) -> Value:
    """The same value under a name of its own (messages, listings, gradients by name)."""
    value.node.name = name
    return value
