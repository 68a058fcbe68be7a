"""Declaration: everything that gradloom knows about an op, as a literal of `declare.op` states it, and its parts:
inputs, outputs, attributes, rules, the specs that shape rules see, samples.

The rules of an op (shape, composition, vjp, reference, view, cost, ids) are plain functions whose parameters are called
by name: the op's inputs, outputs and attributes, `g` or `g_<output>` for incoming gradients. A rule asks for the values
it needs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.dtypes import QUANTISED, DType, Shaped, dtype, f32
from ..base.errors import DataError, GradloomError, GraphError, ShapeError

Rule = Callable[..., Any]


def wanted(rule: Rule | None) -> tuple[str, ...]:
    """The names that a rule is called with: those of its parameters, or those that `called_with` gave it."""
    if rule is None:
        return ()
    code = rule.__code__
    return getattr(rule, "wants", code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def called_with(names: Sequence[str], rule: Rule) -> Rule:
    """The rule, to be called with these names."""
    rule.wants = tuple(names)  # type: ignore[attr-defined]
    return rule


@dataclass(frozen=True)
class Spec(Shaped):
    """Shape and dtype of a value, as shape rules see and return them."""

    shape: tuple[int, ...]
    dtype: DType = f32


class Reject(Exception):
    """Raised by a shape rule: the fault, and the requirement."""

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
    """A declared attribute. Kinds: int float bool ints dtype object stream, or choices as `none/relu`.

    optional: it may be None, which is then its default.
    """

    name: str
    kind: str
    default: Any = inspect.Parameter.empty  # a stream has none: None stands for the next one of the build
    optional: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.kind.split("/")) if "/" in self.kind else ()


@dataclass(frozen=True)
class IdRange:
    """Which whole numbers one input of an op may hold: 0..count - 1, and `ignored` where there is one.

    count None: 0..t for token t, the place along the input's last axis. noun: the name of the numbers, for messages.
    """

    input: str
    count: int | None
    ignored: int | None = None
    noun: str = ""

    def __str__(self) -> str:
        numbers = "0..t for token t" if self.count is None else f"0..{self.count - 1}"
        also = "" if self.ignored is None else f", or {self.ignored} for a row to ignore"
        return f"{self.noun and f'a {self.noun} of '}{numbers}{also}"

    def check(self, name: str, ids: np.ndarray) -> None:
        """DataError, in the words of the op called `name`, for the first number that is not among these."""
        most = np.arange(ids.shape[-1]) if self.count is None else self.count - 1
        wrong = (ids < 0) | (ids > most)
        if self.ignored is not None:
            wrong &= ids != self.ignored
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(f"{name}: id {int(ids.flat[at])} at position {at} is out of range; need {self}")


@dataclass(frozen=True)
class Sample:
    """Test input of an op: inputs (arrays in declared order, None for an absent one, groups flat), attributes."""

    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadSample:
    """Inputs that an op must refuse, with the exact beginning of the message that they get."""

    inputs: tuple[Any, ...]
    message: str
    attrs: dict[str, Any] = field(default_factory=dict)


def parsed_slots(text: str) -> tuple[Slot, ...]:
    """The inputs or outputs of "x bias?" or, with repeated groups, "lr weight | w g m?"."""
    fixed, _, repeated = text.partition("|")
    slots = [Slot(w.rstrip("?"), w.endswith("?")) for w in fixed.split()]
    return tuple(slots + [Slot(w.rstrip("?"), w.endswith("?"), True) for w in repeated.split()])


def parsed_attrs(text: str) -> tuple[Attr, ...]:
    """The attributes of "axes:ints keepdims:bool=False window:int?"; "?" is optional."""
    attrs = []
    for word in text.split():
        match = re.fullmatch(r"(\w+):([\w/]+)(\?)?(?:=(.*))?", word)
        if match is None:
            raise AssertionError(f"attribute {word!r} is not name:kind or name:kind=default")
        name, kind, optional, default = match.groups()
        value = inspect.Parameter.empty if default is None else canonical(kind, _literal(kind, default), name)
        attrs.append(Attr(name, kind, None, True) if optional else Attr(name, kind, value))
    return tuple(attrs)


def _literal(kind: str, text: str) -> Any:
    if kind == "bool":
        return {"True": True, "False": False}[text]
    if kind == "ints":
        return tuple(int(t) for t in text.split(",") if t)
    return text


def canonical(kind: str, value: Any, name: str) -> Any:
    """The attribute in its canonical Python form; Reject when it cannot be read as its kind."""
    if kind == "object":
        return value
    try:
        if kind in ("int", "stream"):
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
        number = "int" if kind == "stream" else kind
        raise Reject(f"{name}={value!r} is not usable", f"{name} of kind {number}", GraphError) from None
    if "/" in kind and value not in kind.split("/"):
        raise Reject(f"{name}={value!r} is not a choice", f"one of {kind.replace('/', ', ')}", GraphError)
    return value


def _within_64_bits(value: int) -> int:
    """The value; OverflowError where the tape's words of 64 bits do not hold it."""
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError
    return value


def parsed_dtypes(text: str, inputs: tuple[Slot, ...]) -> dict[str, tuple[DType, ...]]:
    """{input: dtypes that it may have} of "f32 ids:i32 table:f32|f16|quantised": a word without a name stands for all
    inputs that are not named; "any" puts no bound, and the input is not listed."""
    named = dict(word.split(":") for word in text.split() if ":" in word)
    others = [word for word in text.split() if ":" not in word]
    unknown = set(named) - {s.name for s in inputs}
    if unknown or len(others) > 1:
        raise AssertionError(f"dtypes {text!r} are not one word for all inputs and input:dtype|dtype for some")
    taken = {s.name: named.get(s.name, others[0] if others else "") for s in inputs}
    return {name: _dtypes(words) for name, words in taken.items() if words != "any"}


def _dtypes(words: str) -> tuple[DType, ...]:
    kinds = [QUANTISED if word == "quantised" else (dtype(word),) for word in words.split("|")]
    return tuple(kind for group in kinds for kind in group)


def parsed_overwrites(text: str | Mapping[str, str], outputs: tuple[Slot, ...]) -> dict[str, tuple[str, ...]]:
    """{output: inputs whose buffer it may take}; a text means the first output."""
    if isinstance(text, str):
        text = {outputs[0].name: text} if text else {}
    return {out: tuple(names.split()) for out, names in text.items()}


RULES = ("shape", "composition", "vjp", "reference", "view", "cost", "ids")


@dataclass(eq=False, repr=False, kw_only=True)
class Declaration:
    """Declaration of an op: data, and rules that are called by name.

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
    reference         NumPy definition, float64 in, float64 out; a tuple for several outputs. With a composition it
                      is an independent check. `rounded` states whether the operands are bf16 (see rounds): for an op
                      that multiplies values it has computed itself, and rounds these as well
    may_overwrite     {output: inputs whose buffer it may take}; in a declaration also the inputs of the first output
    view              rule (shape, strides of the first input, attributes) -> (offset, strides) in elements or None:
                      the output needs no kernel
    dense             inputs that must be row-major without gaps (the planner copies where they are not)
    unit              inputs of which one of the last two axes must have stride 1 (matrices, transposed or not)
    rounds            inputs that precision="bf16" rounds to bf16: the operands of a product, the values that a gated
                      unit keeps for its gradient, and that of which only the sign is read. Where the first of them is
                      bf16, the kernel rounds the others, and so does the reference (graph/composition.py: by_reference)
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
    written           stands in graphs that are written to files alone (ONNX): nothing executes it, it has no kernel
    guard             may stop the run; every update comes after it
    python            computed by the Python function in the attribute `call` (graph/calls.py); it may raise, so every
                      update comes after it
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
    rounds: tuple[str, ...] = ()
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
    written: bool = False
    guard: bool = False
    python: bool = False
    foldable: bool = True
    fixed_inputs: int = field(init=False)
    fixed_outputs: int = field(init=False)
    group_size: int = field(init=False)
    input_names: tuple[str, ...] = field(init=False)
    output_names: tuple[str, ...] = field(init=False)
    stream: str | None = field(init=False)  # the attribute that holds the stream of a random op
    wants: dict[str, tuple[str, ...]] = field(init=False)  # the names that each rule is called with

    def __post_init__(self) -> None:
        self.__doc__ = self.doc
        self.fixed_inputs = sum(not s.repeated for s in self.inputs)
        self.fixed_outputs = sum(not s.repeated for s in self.outputs)
        self.group_size = len(self.inputs) - self.fixed_inputs
        self.input_names = tuple(s.name for s in self.inputs)
        self.output_names = tuple(s.name for s in self.outputs)
        self.stream = next((a.name for a in self.attrs if a.kind == "stream"), None)
        self.wants = {rule: wanted(getattr(self, rule)) for rule in RULES}

    # ---- rules, called by name -----------------------------------------------------------------------

    def call(self, rule: str, scope: Mapping[str, Any]) -> Any:
        """Call a rule with the values that it asks for, taken from scope."""
        return getattr(self, rule)(**{n: scope[n] for n in self.wants[rule]})

    def id_range(self, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> IdRange | None:
        """Which row numbers a node of these inputs and attributes may read; None of an op that reads none."""
        return None if self.ids is None else self.call("ids", {**attrs, **self.bind_inputs(inputs)})

    def bind_inputs(self, values: Sequence[Any]) -> dict[str, Any]:
        """name -> value; name -> list of values for the repeated ones."""
        return _bound(self.input_names, self.fixed_inputs, values)

    def bind_outputs(self, values: Sequence[Any]) -> dict[str, Any]:
        """Likewise."""
        return _bound(self.output_names, self.fixed_outputs, values)

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

    def __repr__(self) -> str:
        return f"op({self.name})"


def _bound(names: tuple[str, ...], fixed: int, values: Sequence[Any]) -> dict[str, Any]:
    """name -> value of the first `fixed` names; of the others, which repeat in groups, name -> list of values."""
    bound: dict[str, Any] = dict(zip(names, values, strict=False))
    for i, name in enumerate(names[fixed:], fixed):
        bound[name] = list(values[i :: len(names) - fixed])
    return bound
