"""OpSpec: all that gradloom knows about an op, in one literal, and the registry that refuses gaps.

The rules of an op (shape, vjp, reference, view, cost) are plain functions whose parameters are called by name: the
op's inputs, outputs and attributes, `g` or `g_<output>` for incoming gradients. A rule asks for what it needs.
"""

from __future__ import annotations

import inspect
import re
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

REGISTRY: dict[str, OpSpec] = {}
MAX_RANK = 6


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of a value, as shape rules see and return them."""

    shape: Shape
    dtype: DType = f32

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def bytes(self) -> int:
        return self.dtype.bytes_of(self.size)


class Reject(Exception):
    """Raised by a shape rule: what is wrong, and what would be right."""

    def __init__(self, seen: str, need: str, kind: type[GradloomError] = ShapeError) -> None:
        super().__init__(seen)
        self.seen, self.need, self.kind = seen, need, kind


@dataclass(frozen=True)
class Slot:
    """A declared input or output: `x`, `x?` (optional), or one of a repeated group after `|`."""

    name: str
    optional: bool = False
    repeated: bool = False


@dataclass(frozen=True)
class Attr:
    """A declared attribute. Kinds: int float bool ints dtype object, or choices as `none/relu`."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.kind.split("/")) if "/" in self.kind else ()


@dataclass(frozen=True)
class Sample:
    """What to test an op with: inputs (arrays in declared order, None for an absent one, groups flat), attributes."""

    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadSample:
    """Inputs that an op must refuse, with the exact beginning of the message that they get."""

    inputs: tuple[Any, ...]
    message: str
    attrs: dict[str, Any] = field(default_factory=dict)


def _slots(text: str) -> tuple[Slot, ...]:
    fixed, _, repeated = text.partition("|")
    slots = [Slot(w.rstrip("?"), w.endswith("?")) for w in fixed.split()]
    return tuple(slots + [Slot(w.rstrip("?"), w.endswith("?"), True) for w in repeated.split()])


def _attrs(text: str) -> tuple[Attr, ...]:
    """Parse "axes:ints keepdims:bool=False"."""
    found = []
    for word in text.split():
        match = re.fullmatch(r"(\w+):([\w/]+)(?:=(.*))?", word)
        if match is None:
            raise AssertionError(f"attribute {word!r} is not name:kind or name:kind=default")
        name, kind, default = match.groups()
        value = inspect.Parameter.empty if default is None else _coerce(kind, _literal(kind, default), name)
        found.append(Attr(name, kind, value))
    return tuple(found)


def _literal(kind: str, text: str) -> Any:
    if kind == "bool":
        return {"True": True, "False": False}[text]
    if kind == "ints":
        return tuple(int(t) for t in text.split(",") if t)
    return text


def _coerce(kind: str, value: Any, name: str) -> Any:
    """The attribute in its canonical Python form; Reject when it cannot be read as its kind."""
    try:
        if kind == "int":
            if isinstance(value, bool) or (int(value) != value and not isinstance(value, str)):
                raise ValueError
            return _within_64_bits(int(value))
        if kind == "float":
            return float(value)
        if kind == "bool":
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError
            return bool(value)
        if kind == "ints":
            return tuple(_within_64_bits(int(v)) for v in value)
        if kind == "dtype":
            return dtype(value)
    except (TypeError, ValueError, OverflowError):
        raise Reject(f"{name}={value!r} is not usable", f"{name} of kind {kind}", GraphError) from None
    if "/" in kind and value not in kind.split("/"):
        raise Reject(f"{name}={value!r} is not a choice", f"one of {kind.replace('/', ', ')}", GraphError)
    return value


def _within_64_bits(value: int) -> int:
    """The value; OverflowError where the tape's words of 64 bits do not hold it."""
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError
    return value


def _wanted(rule: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names of a rule's parameters, or those that it says it wants."""
    if rule is None:
        return ()
    code = rule.__code__
    return getattr(rule, "wants", code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


class OpSpec:
    """One op. Calling it makes a node and returns its output, or a tuple of them. See `op` for the fields."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.name = name
        self.doc: str = fields["doc"]
        self.inputs = _slots(fields["inputs"])
        self.outputs = _slots(fields["outputs"])
        self.attrs = _attrs(fields["attrs"])
        self.shape: Callable[..., Any] = fields["shape"]
        self.vjp: Callable[..., Any] | None = fields["vjp"]
        self.no_gradient: str | None = fields["no_gradient"]
        self.no_gradient_to: Mapping[str, str] = fields["no_gradient_to"]
        self.reference: Callable[..., Any] | None = fields["reference"]
        self.view: Callable[..., Any] | None = fields["view"]
        self.cost: Callable[..., tuple[float, float]] | None = fields["cost"]
        self.samples: Callable[[np.random.Generator], Sequence[Sample]] | None = fields["samples"]
        self.bad_samples: Sequence[BadSample] = fields["bad_samples"]
        self.no_samples: str | None = fields["no_samples"]
        self.leaf: bool = fields["leaf"]
        self.guard: bool = fields["guard"]
        self.foldable: bool = fields["foldable"]
        self.may_overwrite: dict[str, tuple[str, ...]] = _overwrites(fields["may_overwrite"], self.outputs)
        self.dense = frozenset(fields["dense"].split())
        self.unit = frozenset(fields["unit"].split())
        self.updates: dict[str, str] = dict(p.split("=") for p in fields["updates"].split())  # output -> input
        self._wants = {rule: _wanted(getattr(self, rule)) for rule in ("shape", "vjp", "reference", "view", "cost")}
        self.fixed_inputs = sum(not s.repeated for s in self.inputs)
        self.fixed_outputs = sum(not s.repeated for s in self.outputs)
        self.group_size = len(self.inputs) - self.fixed_inputs
        self.__doc__ = self.doc

    # ---- calling -------------------------------------------------------------------------------------

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """op(inputs..., attributes...): attributes by name, or in order after all inputs (unless inputs repeat).

        Inside of a tape, and with eager tensors, it is taken down instead: see gradloom.eager.
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
            found = active.record(self, inputs, attrs)
            if found is not NotImplemented:
                return found
        outputs = self.node(inputs, attrs).outputs
        return outputs[0] if len(outputs) == 1 and not self.outputs[0].repeated else outputs

    def node(self, inputs: Sequence[Any], attrs: Mapping[str, Any], name: str = "", where: str | None = None) -> Node:
        """Make a node: inputs become values, attributes canonical, shapes are inferred. Errors name the user's line."""
        values = [x if x is None or isinstance(x, Value) else constant(in_expression(x)) for x in inputs]
        values += [None] * (self.fixed_inputs - len(values))
        try:
            canonical = self.canonical_attrs(attrs)
            specs = self.infer(values, canonical)
        except Reject as reject:
            raise self._error(reject, values, name, where) from None
        return Node(self, values, canonical, [(s.shape, s.dtype) for s in specs], name, where)

    def canonical_attrs(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        canonical = {}
        for attr in self.attrs:
            value = attrs.get(attr.name, attr.default)
            if value is inspect.Parameter.empty:
                raise Reject(f"{attr.name} is missing", f"{attr.name} of kind {attr.kind}", GraphError)
            canonical[attr.name] = _coerce(attr.kind, value, attr.name)
        unknown = set(attrs) - set(canonical)
        if unknown:
            known = ", ".join(canonical) or "none"
            raise Reject(f"{sorted(unknown)[0]} is not an attribute", f"one of: {known}", GraphError)
        return canonical

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
        found = self.call("shape", self.bind_inputs(specs) | dict(attrs))
        found = [found] if isinstance(found, Spec) else list(found)
        for spec in found:
            if spec.ndim > MAX_RANK:
                raise Reject(f"the result has {spec.ndim} axes", f"at most {MAX_RANK}")
            if not addressable(spec.shape, spec.dtype.bytes):
                raise Reject(f"the result has shape {list(spec.shape)}", "fewer than 2^63 bytes")
        return found

    def _error(self, reject: Reject, values: Sequence[Value | None], name: str, where: str | None) -> GradloomError:
        from .value import current_scope, user_location

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


def _overwrites(text: str | Mapping[str, str], outputs: tuple[Slot, ...]) -> dict[str, tuple[str, ...]]:
    if isinstance(text, str):
        text = {outputs[0].name: text} if text else {}
    return {out: tuple(names.split()) for out, names in text.items()}


def op(
    name: str,
    *,
    inputs: str,
    outputs: str = "y",
    attrs: str = "",
    doc: str,
    shape: Callable[..., Any],
    vjp: Callable[..., Any] | None = None,
    no_gradient: str | None = None,
    no_gradient_to: Mapping[str, str] = MappingProxyType({}),
    reference: Callable[..., Any] | None = None,
    may_overwrite: str | Mapping[str, str] = "",
    view: Callable[..., Any] | None = None,
    dense: str = "",
    unit: str = "",
    updates: str = "",
    cost: Callable[..., tuple[float, float]] | None = None,
    samples: Callable[[np.random.Generator], Sequence[Sample]] | None = None,
    bad_samples: Sequence[BadSample] = (),
    no_samples: str | None = None,
    leaf: bool = False,
    guard: bool = False,
    foldable: bool = True,
) -> OpSpec:
    """Declare an op.

    inputs, outputs   names; "b?" is optional; names after "|" repeat as groups ("| w g m v")
    attrs             "axes:ints keepdims:bool=False act:none/relu"
    doc               first line: the formula; then where it comes from
    shape             rule: Spec of the output, or several; raises Reject
    vjp               rule: one gradient (f32, of public ops) per declared input; or no_gradient="why not". `needed`
                      is the set of inputs whose gradients are looked at
    no_gradient_to    {input: why}: inputs that may get None for a gradient; None for any other is an error
    reference         NumPy definition, float64 in, float64 out; a tuple for several outputs
    may_overwrite     inputs whose buffer the (first) output may take, or {output: inputs}
    view              rule (shape, strides of the first input, attributes) -> (offset, strides) in elements or None:
                      the output needs no kernel
    dense             inputs that must be row-major without gaps (the planner copies where they are not)
    unit              inputs of which one of the last two axes must have stride 1 (matrices, transposed or not)
    updates           "w=w m=m": outputs that are written to the storage of an input
    cost              rule: (flops, bytes); by default one flop per output element, all bytes once
    samples           rng -> samples that every test is generated from; no_samples="why there are none"
    leaf              has no kernel: its bytes come from outside
    guard             may stop the run; every update comes after it
    foldable          False: never folded to a constant nor merged with its twin (random ops, updates)
    """
    fields = {k: v for k, v in locals().items() if k != "name"}
    spec = OpSpec(name, **fields)
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
        gaps.append("a reference")
    if (spec.samples is None) == (spec.no_samples is None):
        gaps.append("exactly one of samples and no_samples")
    known = {s.name for s in spec.inputs} | {s.name for s in spec.outputs} | {a.name for a in spec.attrs}
    known |= {"g", "needed"} | {f"g_{s.name}" for s in spec.outputs} | {"strides", "layout_shape"}
    for rule, wants in spec._wants.items():
        gaps += [f"{rule} asks for {w!r}, which is not declared" for w in wants if w not in known]
    inputs, outputs = {s.name for s in spec.inputs}, {s.name for s in spec.outputs}
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
