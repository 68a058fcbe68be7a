"""What an op's declaration consists of: inputs, outputs, attributes, rules, the specs that shape rules see, samples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.dtypes import QUANTISED, DType, dtype, f32
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
class Spec:
    """Shape and dtype of a value, as shape rules see and return them."""

    shape: tuple[int, ...]
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

    count None: 0..t for token t, the place along the input's last axis. noun: what the numbers are, for messages.
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
    """What to test an op with: inputs (arrays in declared order, None for an absent one, groups flat), attributes."""

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
