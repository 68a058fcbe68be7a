"""Metric: a number that is measured in addition to the loss, a function or an object of gl.metrics.

A metric is a function (outputs, labels, weights). It builds nodes in the program of the evaluation, or is called with
the NumPy arrays of all rows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..base.arguments import as_bool, as_whole, what_is
from ..base.errors import DataError, SettingError
from ..base.structures import Key, by_key, listed, output_name, place
from ..losses import Loss
from ..metrics.score import Score
from ..metrics.score import named as score_named

UNCERTAINTY = "_unc"  # how the name of an uncertainty ends: loss, loss_unc
_TAKEN = (  # names of other numbers of results and of log lines
    "loss", "accuracy", "grad_norm", "grad_norm_mean", "skipped", "lr", "epoch", "step", "seconds", "epoch_seconds",
    "kind", "time", "rows", "tokens", "rows_per_second", "tokens_per_second", "memory_bytes", "memory_peak_bytes",
)  # fmt: skip


class Metric:
    """A number measured in addition to the loss: gl.fit(metrics={"margin": Metric(function)}), or the function alone.
    Of one of several outputs, metrics={"value": ["mae"]} or {"value": "mae"}: it gets that output and its label, and
    is "value_mae".

    function  (outputs, labels), or (outputs, labels, weights) with the row weights of the data, None where there are
              none. By default it gets values of a graph and gives a value per row, f32 [rows], or a pair
              (sum, weight) of scalars. Values per row are weighted here by the data's row weights, and rows that count
              for nothing (weight 0, or labels that are all -100) are left out. Or a name or an object of gl.metrics
    whole     the function gets NumPy arrays of all rows that count (outputs f32 [rows, ...] in the model's structure,
              labels, weights f32 [rows] or None) and returns a number that is no sum over batches, as AUC or F1; or
              two arrays f64 [rows], whose sums are divided: then a bootstrap resamples these, without further calls.
              True for an object of gl.metrics that needs it
    train     it is measured in training, too, by the step's own program, with dropout as it is there
    uncertainty  "formula": of values per row the standard error of their weighted mean (see standard_error), of pairs
              the same over micro-batches; "bootstrap": the standard deviation over `samples` resamplings of the rows
              (of micro-batches for pairs), drawn from `seed`. None: "formula" where there is one, which of `whole` is
              that of two arrays

    SettingError for arguments out of range.
    """

    def __init__(
        self,
        function: Callable[..., Any] | str,
        *,
        whole: bool = False,
        train: bool = False,
        uncertainty: str | None = None,
        samples: int = 200,
        seed: int = 0,
    ) -> None:
        self.scale = 1.0  # of the number and its uncertainty: a unit
        if isinstance(function, str):
            function = score_named(function)
        if not callable(function):
            text = f"Metric: {what_is(function)} must be a name, or a function (outputs, labels, weights)"
            raise SettingError(text)
        self.function = function
        self.whole, self.train = as_bool("whole", whole, "Metric"), as_bool("train", train, "Metric")
        if isinstance(function, Score):
            if self.whole and not function.whole:
                text = "Metric: {whole} cannot be combined with {metric}, which is a mean over rows"
                raise SettingError(text, whole=True, metric=function.key)
            if getattr(function, "average", "") is None:
                text = "Metric: {average} of {metric} gives an array; use an average, or label= for one class"
                raise SettingError(text, average=None, metric=function.key)
            self.whole = function.whole
        self.samples, self.seed = as_whole("samples", samples, 2, "Metric"), as_whole("seed", seed, 0, "Metric")
        if uncertainty not in (None, "formula", "bootstrap"):
            raise SettingError(setting="uncertainty", seen=uncertainty, need="formula or bootstrap", place="Metric")
        if self.whole and uncertainty == "formula":
            text = "{uncertainty} cannot be combined with {whole}; use 'bootstrap' or None"
            raise SettingError(text, uncertainty=uncertainty, whole=True, place="Metric")
        if self.whole and self.train:
            text = "{train} and {whole} are mutually exclusive: all outputs of training would be kept"
            raise SettingError(text, train=True, whole=True, place="Metric")
        self.uncertainty = uncertainty or "formula"
        self._count = _positional(function)
        self.in_training: Metric | None = None  # the metric of training rows under this name, where it is another
        self.output: Key = None  # the key of the output, of several, that the function gets

    @property
    def of_training(self) -> Metric | None:
        """The metric of training rows; None where there is none."""
        return self if self.train else self.in_training

    def of_output(self, key: Key) -> Metric:
        """The same metric of one of several outputs and its label."""
        made = copy.copy(self)
        made.output = key
        return made

    def __call__(self, outputs: Any, labels: Any, weights: Any) -> Any:
        """Call the function with the arguments that it takes."""
        if self.output is not None:
            outputs = self._of_output("output", outputs)
            labels = None if labels is None else self._of_output("label", labels)
        if isinstance(self.function, Score):
            return self.function.measured(outputs, labels, weights)
        return self.function(*(outputs, labels, weights)[: self._count])

    def _of_output(self, what: str, structure: Any) -> Any:
        found = by_key(tuple(structure) if isinstance(structure, list) else structure)
        if self.output not in found:
            raise DataError(f"metrics: there is no {place(what, self.output)}; there are {listed(found)}")
        return found[self.output]

    def of_loss(self, loss: Loss | None) -> Metric:
        """The metric of a model that is trained with this loss; None: a function."""
        if not isinstance(self.function, Score):
            return self
        made = copy.copy(self)
        made.function = self.function.of_loss(loss)
        return made

    def reported(self, value: float, spread: float) -> tuple[float, float]:
        """(value, uncertainty) in results, from those of the mean or the number that was measured."""
        if isinstance(self.function, Score):
            value, spread = self.function.reported(value, spread)
        return value * self.scale, spread * self.scale

    @property
    def score(self) -> Score | None:
        """The object of gl.metrics that it measures; None: a function."""
        return self.function if isinstance(self.function, Score) else None

    @property
    def takes_weights(self) -> bool:
        """The function gets the row weights."""
        return self._count == 3


_One = Metric | Score | Callable[..., Any] | str
_Several = Mapping[str, _One] | Sequence[_One]
Metrics = Mapping[str, _One | _Several] | Mapping[int, _Several] | Sequence[_One]


def _positional(function: Callable[..., Any]) -> int:
    """How many of (outputs, labels, weights) the function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return 2
    kinds = [p.kind for p in parameters]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in plain and (p.default is p.empty or p.name == "weights")]
    if not 1 <= len(needed) <= 3:
        raise SettingError(f"Metric: the function takes {len(needed)} arguments; need (outputs, labels, weights)")
    return len(needed)


def usable_name(name: object) -> bool:
    """Whether a measured number can have this name: history and monitors must distinguish it from others."""
    if not isinstance(name, str) or not name or not name.isprintable() or "." in name or name in _TAKEN:
        return False
    return not name.endswith(UNCERTAINTY) and not name.startswith("val_")


def checked_metrics(
    metrics: Metrics | None, losses: Mapping[Key, Loss | None] | None = None
) -> tuple[tuple[str, Metric], ...]:
    """Names and metrics of a training with these losses by output (None: a function); SettingError for a name of
    another number, or that history and monitors cannot distinguish."""
    named = []
    for name, one in _each(metrics, losses or {}):
        if not usable_name(name):
            raise SettingError(f"{{metrics}}: the name {name!r} is reserved or invalid; use another", setting="metrics")
        metric = _as_metric(one)
        named.append((name, metric.of_loss((losses or {}).get(metric.output))))
    return tuple(named)


def _each(metrics: Metrics | None, outputs: Container[Key]) -> Iterator[tuple[Any, Any]]:
    """Names and metrics; of an output NAME those of its own dict or list, or the one of gl.metrics, as NAME_name.
    outputs: those with a loss of their own."""
    for name, one in _items(metrics):
        if name in outputs and (isinstance(one, (str, Score)) or (isinstance(one, Metric) and one.score is not None)):
            one = [one]
        if isinstance(one, (Mapping, list, tuple)):
            for own, metric in _items(one):
                yield f"{output_name(name)}_{own}", _as_metric(metric).of_output(name)
        else:
            yield name, one


def _as_metric(one: Any) -> Metric:
    return one if isinstance(one, Metric) else Metric(one)


def _items(metrics: Any) -> Iterable[tuple[Any, Any]]:
    """Names and metrics of a dict, or of a list of names and objects of gl.metrics."""
    if isinstance(metrics, Mapping):
        return metrics.items()
    if metrics is not None and not isinstance(metrics, (list, tuple)):
        text = f"{{metrics}} is {what_is(metrics)}; must be a list of names, such as ['f1'], or a dict of functions"
        raise SettingError(text, setting="metrics")
    found: dict[str, Any] = {}
    for one in metrics or ():
        one = score_named(one) if isinstance(one, str) else one
        score = one.function if isinstance(one, Metric) else one
        if not isinstance(score, Score):
            text = f"{{metrics}}: {what_is(score)} has no name; use a dict, such as {{'margin': function}}"
            raise SettingError(text, setting="metrics")
        if score.key in found:
            text = f"{{metrics}}: two metrics are called {score.key!r}; use a dict, with a name for each"
            raise SettingError(text, setting="metrics")
        found[score.key] = one
    return found.items()
