"""Loss: a named loss with options, as a pair (sum, weight) whose parts add up over batches of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np

from .. import ops
from ..base.arguments import in_f32
from ..base.errors import DataError, SettingError, ShapeError
from ..base.habits import KeywordHints, value_hint
from ..graph.leaves import as_value
from ..graph.scope import user_location
from ..graph.value import Value, describe
from ..ops.loss import IGNORED, Pair, weighted

Kind = Literal["classes", "binary", "numbers", "rows"]
_KNOWN: dict[str, type[Loss]] = {}


@dataclass(frozen=True, repr=False)
class Loss(KeywordHints):
    """A loss of gl.fit(loss=), gl.Trainer and gl.evaluate, which also take its name: "huber" is losses.Huber().

    loss(outputs, labels, weights) is the weighted mean, a scalar value, for loops and graphs of your own;
    loss.pair(outputs, labels, weights) is (sum, weight), of which several batches add up.

    weights: f32 [rows], one per row, or None. The mean divides by the sum of the weights of all elements that count
    (of all rows that count, where the loss is one number per row). In whole-number labels -100 marks one that does not
    count.

    name        of the loss
    kind        outputs: "classes" (logits or log-probabilities of exclusive classes along the last axis), "binary" (a
                logit per label), "numbers" (predicted numbers), "rows" (anything else)
    has_labels  it reads labels
    outputs     number of outputs of the model; several are a tuple, list or dict, or one value [rows, number, ...]
    """

    name: ClassVar[str] = ""
    kind: ClassVar[Kind] = "numbers"
    has_labels: ClassVar[bool] = True
    outputs: ClassVar[int] = 1

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if name:
            cls.name = name
            _KNOWN[name] = cls

    def __call__(self, outputs: Any, labels: Any = None, weights: Any = None) -> Value:
        """The weighted mean, f32 []."""
        if labels is None and self.has_labels:
            raise DataError(f"{self.name}: no labels; need (outputs, labels)")
        return ops.div(*self.pair(outputs, labels, weights))

    def __repr__(self) -> str:
        """The name, with the options that are not their defaults: the same text in each process."""
        options = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return self.name + (f"({', '.join(options)})" if options else "")

    def pair(self, outputs: Any, labels: Any = None, weights: Any = None) -> Pair:
        """(sum f32 [], weight f32 [])."""
        raise NotImplementedError

    def check_labels(self, labels: np.ndarray) -> None:
        """DataError for labels of a data set that are out of range."""

    def is_exclusive(self, outputs: Sequence[int], labels: Sequence[int]) -> bool:
        """Whether outputs of this shape are of exclusive classes, where labels have this shape."""
        return self.kind == "classes"

    @property
    def takes_label_weights(self) -> bool:
        """Labels of a sequence may have a weight each, f32 [rows, positions]."""
        return self.kind == "classes"


def named(name: str) -> Loss:
    """The loss of this name, with its default options. SettingError for an unknown name."""
    if name not in _KNOWN:
        hint = value_hint("loss", name, _KNOWN)
        known = ", ".join(_KNOWN)
        raise SettingError(f"loss: {name!r} is not known; must be one of {known}, or a function{hint}")
    return _KNOWN[name]()


# ---- options -------------------------------------------------------------------------------------------------------


def check_number(place: str, name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """The value as a float. SettingError unless it is a finite number above `above`, or of at least `least`, also in
    float32."""
    is_number = isinstance(value, (int, float, np.floating, np.integer)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(in_f32(value)) or not in_f32(value) > above or not value >= least:
        bound = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
        raise SettingError(setting=name, seen=value, need=f"a finite number{bound}", place=place)
    return float(value)


def check_share(place: str, name: str, value: Any, need: str = "above 0 and below 1") -> float:
    """The value as a float. SettingError unless it is a number above 0 and below 1, in float32, too."""
    is_number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not is_number or not 0 < in_f32(value) < 1:
        raise SettingError(setting=name, seen=value, need=need, place=place)
    return float(value)


def one_or_several(value: Any, check: Callable[[Any], float]) -> float | tuple[float, ...]:
    """check(value), or that of each of several in a tuple, list or array: in a tuple, which is compared and printed as
    other options are."""
    several = isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return tuple(map(check, value)) if several else check(value)


def settle(options: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass: numbers as Python's floats, so that equal options have equal texts."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


# ---- outputs and labels --------------------------------------------------------------------------------------------


def parts_of(name: str, outputs: Any, count: int) -> list[Value]:
    """The `count` outputs of a model: a tuple, list or dict of them, or one value [rows, count, ...]. ShapeError."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if not isinstance(outputs, (tuple, list)):
        value = as_value(outputs)
        if value.ndim < 2 or value.shape[1] != count:
            seen = describe(value)
            need = f"{count} outputs, or one of shape [rows, {count}, ...]"
            raise ShapeError(f"{name}: the outputs are {seen}; need {need}; at {user_location()}")
        outputs = [value[:, i] for i in range(count)]
    if len(outputs) != count:
        raise ShapeError(f"{name}: {len(outputs)} outputs; need {count}; at {user_location()}")
    return [as_value(one) for one in outputs]


def as_targets(name: str, outputs: Any, labels: Any) -> tuple[Value, Value, Value | None]:
    """(outputs, targets f32 of their shape, u8 of their shape: 1 where a label is ignored) of one output per label.

    labels: whole numbers, of which -100 is ignored, or f32, where the last is None; labels [...] fit outputs
    [..., 1]. Outputs of ignored labels are 0. ShapeError where shapes differ.
    """
    x, y = as_value(outputs), as_value(labels)
    if x.shape == (*y.shape, 1):
        y = ops.reshape(y, x.shape)
    if x.shape != y.shape:
        shown = f"outputs {describe(x)}, labels {describe(y)}"
        raise ShapeError(f"{name}: shapes differ: {shown}; need one output per label; at {user_location()}")
    if y.dtype.is_float:
        return x, ops.cast(y, "f32"), None
    ids = ops.cast(y, "i32")
    ignored = ops.equal(ids, np.array([IGNORED], np.int32))
    return ops.where(ignored, 0.0, x), ops.where(ignored, 0.0, ops.cast(ids, "f32")), ignored


def row_pair(name: str, rows: Value, weights: Any, counted: Value | None = None) -> Pair:
    """(sum, weight) of one loss per label, f32 [...], first axis rows, each of weight 1 times its row's. counted: f32
    [...], 0 for a label that does not count."""
    return weighted(name, rows, weights, None if counted is None else ops.equal(counted, 0.0))


def check_values(name: str, labels: np.ndarray, usable: np.ndarray, need: str) -> None:
    """DataError that names the first label of a row that counts and is not usable (bool of the labels' shape)."""
    if labels.dtype.kind == "i":
        usable = usable | (labels == IGNORED)
    bad = np.flatnonzero(~usable)
    if bad.size:
        at = int(bad[0])
        row = at * len(labels) // labels.size
        raise DataError(f"{name}: label {labels.flat[at]:g} in row {row}; need {need}")


def one_of(labels: np.ndarray, values: Iterable[float]) -> np.ndarray:
    """Where labels have one of these values, bool of their shape."""
    return np.isin(labels, np.array(list(values), labels.dtype))
