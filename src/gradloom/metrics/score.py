"""Score: a named metric with options. Most are functions of the arrays of all rows: no means over batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, IndexOutOfRange, SettingError, ShapeError
from ..base.habits import KeywordHints, value_hint
from ..graph.value import Value
from ..losses import Focal, Loss
from ..ops.loss import IGNORED

_KNOWN: dict[str, type[Score]] = {}


@dataclass(frozen=True, repr=False)
class Score(KeywordHints):
    """A metric of gl.fit(metrics=) and gl.evaluate(metrics=), which also take its name: "f1" is metrics.F1().

    score(outputs, labels, weights) of arrays is a number, where `whole` is True: outputs f32 [rows, ...] of the model,
    labels as those of the data, weights f64 [rows] or None. Else it gets values of a graph and returns nodes (see
    gl.train.Metric).

    gl.train.Metric(score, uncertainty="bootstrap") adds the uncertainty of a bootstrap.

    name    of the metric
    whole   it is computed from the arrays of all rows
    higher  larger is better
    """

    name: ClassVar[str] = ""
    whole: ClassVar[bool] = True
    higher: ClassVar[bool] = True

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if name:
            cls.name = name
            _KNOWN[name] = cls

    def __repr__(self) -> str:
        """The name, with the options that are not their defaults: the same text in each process."""
        options = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return self.name + (f"({', '.join(options)})" if options else "")

    def __call__(self, outputs: Any, labels: Any, weights: Any = None) -> Any:
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Name of the number in results, where metrics are a list."""
        return self.name

    def of_loss(self, loss: Loss | None) -> Score:
        """The same metric of a model that is trained with this loss; None: a function. SettingError where there is
        none."""
        return self

    def measured(self, outputs: Any, labels: Any, weights: Any) -> Any:
        """The number that `reported` converts; or two arrays f64 [rows], the ratio of whose sums it is."""
        return self(outputs, labels, weights)

    def reported(self, value: float, spread: float) -> tuple[float, float]:
        """(value, uncertainty) of the metric from those of the mean that was measured."""
        return value, spread


def named(name: str) -> Score:
    """The metric of this name, with its default options. SettingError for an unknown name."""
    if name not in _KNOWN:
        hint = value_hint("metrics", name, _KNOWN)
        if isinstance(name, str) and (k := name.removeprefix("top_")).isdecimal() and name != k:
            hint = f"; use gl.metrics.TopK(k={k})"
        raise SettingError(f"{{metrics}}: {name!r} is not known; must be one of {', '.join(_KNOWN)}{hint}", metrics=...)
    return _KNOWN[name]()


# ---- outputs, labels and weights -----------------------------------------------------------------------------------


def _as_code(score: Score) -> str:
    """The metric in Python: its name, or a call with its options."""
    text = repr(score)
    return repr(text) if text == score.name else f"gl.metrics.{text.replace(score.name, type(score).__name__, 1)}"


def _one_output(score: Score, outputs: Any, labels: Any) -> None:
    """ShapeError for several outputs, DataError without labels."""
    several = isinstance(outputs, (tuple, list)) and any(np.ndim(one) and not isinstance(one, list) for one in outputs)
    if isinstance(outputs, Mapping) or several:
        hint = f"for one of several outputs use metrics={{output: [{_as_code(score)}]}}"
        raise ShapeError(f"{score.key}: {len(outputs)} outputs; need one array of outputs; {hint}")
    if labels is None:
        raise DataError(f"{score.key}: the data have no labels; need labels")


def as_node(score: Score, outputs: Any, labels: Any) -> Value:
    """The outputs as a value of a graph. ShapeError, DataError for several outputs, for arrays, and without labels."""
    _one_output(score, outputs, labels)
    if not isinstance(outputs, Value):
        need = f"values of a graph; gl.evaluate(..., metrics=[{_as_code(score)}]) measures it on data"
        raise DataError(f"{score.key}: the outputs are {what_is(outputs)}; need {need}")
    return outputs


def arrays_of(score: Score, outputs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """(outputs, labels) as arrays of numbers. ShapeError, DataError for others, and without labels."""
    _one_output(score, outputs, labels)
    x, y = np.asarray(outputs), np.asarray(labels)
    if x.dtype.kind not in "fiu" or y.dtype.kind not in "fiub":
        raise ShapeError(f"{score.key}: outputs {_seen(x)}, labels {_seen(y)}; need arrays of numbers")
    return x, y


def weights_of(name: str, weights: Any, rows: int) -> np.ndarray:
    """Weights of rows, f64 [rows]; 1 where there are none. ShapeError, DataError for others than finite numbers of at
    least 0."""
    each = np.ones(rows) if weights is None else np.asarray(weights, np.float64)
    if each.shape != (rows,):
        raise ShapeError(f"{name}: weights {_seen(each)}; need a weight per row of outputs, {rows}")
    bad = np.flatnonzero(~(np.isfinite(each) & (each >= 0)))
    if bad.size:
        raise DataError(f"{name}: weight {each[bad[0]]:g} in row {bad[0]}; need finite numbers of at least 0")
    return each


# ---- outputs and labels of classes -------------------------------------------------------------------------------


class Labelled(NamedTuple):
    """Labels that count, with their outputs.

    exclusive classes   outputs f64 [n, classes], true ids i64 [n], weights f64 [n]
    yes-or-no labels    outputs f64 [n, labels] (logits), true bool [n, labels], weights f64 [n, labels]
    """

    outputs: np.ndarray
    true: np.ndarray
    weights: np.ndarray

    @property
    def is_exclusive(self) -> bool:
        return self.true.ndim == 1

    @property
    def predicted(self) -> np.ndarray:
        """Ids of the first largest output, i64 [n]; or outputs above 0, bool [n, labels]."""
        return self.outputs.argmax(axis=1) if self.is_exclusive else self.outputs > 0

    @property
    def probabilities(self) -> np.ndarray:
        """f64 of the outputs' shape: softmax, or 1 / (1 + e^-x)."""
        x = self.outputs
        if not self.is_exclusive:
            small = np.exp(-np.abs(x))
            return np.where(x >= 0, 1 / (1 + small), small / (1 + small))
        with np.errstate(invalid="ignore"):  # nan where an output is infinite
            shares = np.exp(x - x.max(axis=1, keepdims=True))
            return shares / shares.sum(axis=1, keepdims=True)

    @property
    def hits(self) -> np.ndarray:
        """Which classes are true, bool [n, classes or labels]."""
        return self.true[:, None] == np.arange(self.outputs.shape[1]) if self.is_exclusive else self.true

    @property
    def wide_weights(self) -> np.ndarray:
        """Weights of each label, f64 [n, classes or labels]."""
        return np.broadcast_to(self.weights[:, None], self.outputs.shape) if self.is_exclusive else self.weights


@dataclass(frozen=True, repr=False)
class ClassScore(Score):
    """A metric of classes. Outputs are logits, of exclusive classes [..., classes] (with ids [...], or label rows), or
    one per yes-or-no label [...], [..., 1] (with labels of 0 and 1 of that shape). Labels of -100 and of weight 0 do
    not count.

    sigmoid  the outputs are logits of yes-or-no labels; False: of exclusive classes; None: as the loss of the training
             has it (bce, hinge: True; cross_entropy, nll, kl: False), else True where labels have the outputs' shape
    """

    sigmoid: bool | None = None

    def of_loss(self, loss: Loss | None) -> Score:
        if self.sigmoid is not None or loss is None or isinstance(loss, Focal):
            return self
        if loss.kind == "numbers" or not loss.has_labels or loss.outputs > 1:
            raise SettingError(f"{{metrics}}: {self.key!r} requires a loss of classes; not {loss.name}", metrics=...)
        return replace(self, sigmoid=loss.kind == "binary")

    def labelled(self, outputs: Any, labels: Any, weights: Any) -> Labelled:
        """The labels that count. ShapeError, DataError where outputs and labels do not fit together."""
        x, y = arrays_of(self, outputs, labels)
        if not x.ndim or y.shape[:1] != x.shape[:1]:
            seen = f"outputs {_seen(x)}, labels {_seen(y)}"
            raise ShapeError(f"{self.key}: {seen}; need a label per row of outputs")
        each = weights_of(self.key, weights, len(x))
        fits = x.shape in (y.shape, (*y.shape, 1))
        is_sigmoid = fits if self.sigmoid is None else self.sigmoid
        if is_sigmoid and not fits:
            raise ShapeError(f"{self.key}: outputs {_seen(x)}, labels {_seen(y)}; need one output per label")
        return self._yes_or_no(x, y, each) if is_sigmoid else self._exclusive(x, y, each)

    def _yes_or_no(self, x: np.ndarray, y: np.ndarray, each: np.ndarray) -> Labelled:
        columns = 1 if y.ndim < 2 else y.shape[-1]
        counted = y != IGNORED if y.dtype.kind == "i" else np.ones(y.shape, bool)
        wide = np.reshape(each, (-1, *(1,) * (y.ndim - 1))) * counted
        kept = wide.reshape(-1, columns)
        rows = kept.any(axis=1)
        return Labelled(
            x.reshape(-1, columns)[rows].astype(np.float64), (y > 0.5).reshape(-1, columns)[rows], kept[rows]
        )

    def _exclusive(self, x: np.ndarray, y: np.ndarray, each: np.ndarray) -> Labelled:
        if x.ndim < 2 or y.shape not in (x.shape[:-1], x.shape):
            need = "outputs [..., classes] with ids [...] or label rows [..., classes]"
            raise ShapeError(f"{self.key}: outputs {_seen(x)}, labels {_seen(y)}; need {need}")
        ids = (y.argmax(axis=-1) if y.shape == x.shape else y).reshape(-1).astype(np.int64)
        wide = np.repeat(each, len(ids) // max(len(x), 1))
        rows = (ids != IGNORED) & (wide > 0)
        ids = ids[rows]
        classes = x.shape[-1]
        if ids.size and not 0 <= ids.min() <= ids.max() < classes:
            bad = int(ids[(ids < 0) | (ids >= classes)][0])
            raise IndexOutOfRange(0, f"{self.key}: label {bad}; need 0..{classes - 1}, or {IGNORED} to ignore a row")
        return Labelled(x.reshape(-1, classes)[rows].astype(np.float64), ids, wide[rows])


def _seen(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"
