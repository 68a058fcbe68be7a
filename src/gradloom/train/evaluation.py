"""Evaluations: measuring the validation sets of a training, at the end of epochs and inside of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import SettingError, TrainError
from ..base.interval import Interval, as_interval
from ..base.structures import Structure
from ..data.dataset import Dataset, generator
from ..runs.state import shown
from .batches import CompiledBatch
from .callbacks import Callback
from .duration import Work, work
from .epoch import Listener, run_part
from .metrics import Measures
from .result import MAIN, Evaluation, Result
from .source import RowSource
from .trainer import Trainer

_SUBSET = 3  # the stream of random numbers that draws the rows of a subset


class EvaluatedSet(ABC):
    """A validation set."""

    @property
    @abstractmethod
    def rows(self) -> int | str:
        """The rows that are measured, for the run identity."""

    @property
    def contents(self) -> list[Any]:
        """Of a data set of its own: see RowSource.contents."""
        return []

    @abstractmethod
    def prepare(self, batch_size: int, micro_batch_size: int, measures: Measures) -> list[CompiledBatch]:
        """Compile the micro-batches, and give them; nothing runs."""

    @abstractmethod
    def measure(
        self, result: Result, batch_size: int, micro_batch_size: int, on_progress: Listener | None, each: bool
    ) -> None:
        """Measure the rows. on_progress, each: as of run_part."""

    @abstractmethod
    def work(self, batch_size: int, micro_batch_size: int, measures: Measures) -> Work:
        """The programs of an evaluation, which are compiled."""


@dataclass(frozen=True)
class RowsSet(EvaluatedSet):
    """Rows of a data set, by their positions in the order of its source."""

    trainer: Trainer
    data: Dataset
    first: int
    last: int
    order: np.ndarray | None  # None: the order is that of the pass

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def source(self) -> RowSource:
        return self.trainer.source(self.data)

    @property
    def contents(self) -> list[Any]:
        return [] if self.order is None else self.source.contents

    def prepare(self, batch_size: int, micro_batch_size: int, measures: Measures) -> list[CompiledBatch]:
        return self.trainer.prepare(
            self.source, self.first, self.last, batch_size=batch_size, micro_batch_size=micro_batch_size,
            backward=False, measures=measures,
        )  # fmt: skip

    def measure(
        self, result: Result, batch_size: int, micro_batch_size: int, on_progress: Listener | None, each: bool
    ) -> None:
        if self.order is not None:
            self.source.arrange(self.order)
        run_part(
            self.trainer, self.source, self.first, self.last, result, training=False, batch_size=batch_size,
            micro_batch_size=micro_batch_size, on_progress=on_progress, each=each,
        )  # fmt: skip

    def work(self, batch_size: int, micro_batch_size: int, measures: Measures) -> Work:
        return work(
            self.trainer, self.source, self.first, self.last, batch_size, micro_batch_size, backward=False,
            measures=measures,
        )  # fmt: skip


class Evaluator:
    """Measures the validation sets of a training, every so often.

    val_rows  of the data that the loop trains on, which come after the training rows in the order of a pass: the set
              "val"; none when it is empty
    sets      further ones by name
    every     "200steps": after every 200th optimiser step, and at the end of each epoch; "2epochs": at the end of every
              second epoch, and of the last one
    rows      maximum number of rows of each set, the same rows each time
    batch_size  rows that a BatchLoss couples: the training's; other losses do not depend on it

    SettingError for every, rows and metrics that would have no effect: nothing is measured, in training neither.
    """

    def __init__(
        self,
        trainer: Trainer,
        data: Dataset,
        train_rows: np.ndarray,
        val_rows: np.ndarray,
        sets: Mapping[str, Dataset | EvaluatedSet] | None = None,
        *,
        every: str | Interval = "1epoch",
        rows: int | None = None,
        seed: int = 0,
        measures: Measures,
        batch_size: int,
    ) -> None:
        self.trainer, self.measures, self.batch_size = trainer, measures, batch_size
        interval = as_interval("eval_every", every, "steps", "epochs")
        self.steps, self._epochs = interval.steps, interval.epochs or 1
        most = None if rows is None else as_whole("eval_rows", rows, 1)
        self._sets: dict[str, EvaluatedSet] = {}
        self._val_rows = val_rows
        if len(val_rows):
            first = len(train_rows)  # val_rows are in a random order already
            last = first + min(len(val_rows), most or len(val_rows))
            self._sets[MAIN] = RowsSet(trainer, data, first, last, None)
        for i, (name, one) in enumerate((sets or {}).items()):
            if isinstance(one, EvaluatedSet):
                self._sets[name] = one
                continue
            order = np.arange(one.n)
            if most is not None and most < one.n:
                order = generator(seed, _SUBSET, i).permutation(order)
                order[:most].sort()
            self._sets[name] = RowsSet(trainer, one, 0, min(one.n, most or one.n), order)
        if not self._sets:
            _refuse_without_effect(every, interval, rows, measures)

    def __bool__(self) -> bool:
        """There is something to measure."""
        return bool(self._sets)

    @property
    def names(self) -> list[str]:
        return list(self._sets)

    @property
    def measured(self) -> list[str]:
        """Names of the numbers of each evaluation, uncertainties aside; see Evaluation.numbers."""
        each = [*self.trainer.objective.measured, *(name for name, _ in self.measures.metrics)]
        prefixes = [*["val_"] * bool(self), *(f"{name}." for name in self._sets if name != MAIN)]
        return [prefix + name for prefix in prefixes for name in each]

    def labels(self, name: str) -> tuple[Structure | None, np.ndarray | None]:
        """(labels, weights) of the rows of a set that are measured."""
        one = self._sets[name]
        assert isinstance(one, RowsSet)
        rows = self._val_rows[: one.last - one.first] if one.order is None else one.order[one.first : one.last]
        weights = one.data.weights
        return one.data.rows_of_labels(rows), None if weights is None else weights[rows]

    @property
    def every(self) -> str:
        """How often."""
        return f"{self._epochs} epochs" if self.steps is None else f"{self.steps} steps"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that affect the measured numbers, for the run identity."""
        rows = {name: one.rows for name, one in self._sets.items()}
        metrics = [name if one.score is None else f"{name}: {one.score}" for name, one in self.measures.metrics]
        return {"every": self.every, "rows": rows, "metrics": metrics}

    @property
    def contents(self) -> list[Any]:
        """Of the further data sets: see RowSource.contents."""
        return [each for one in self._sets.values() for each in one.contents]

    def count(self, first: int, last: int, per_epoch: int) -> int:
        """How many evaluations of all sets steps first + 1 to `last` of a run of `last` steps have, in epochs of
        `per_epoch` steps."""
        begun, ended = first // per_epoch, -(-last // per_epoch)
        at_ends = ended // self._epochs - begun // self._epochs + (ended % self._epochs > 0)
        if self.steps is None:
            return at_ends
        both = math.lcm(self.steps, per_epoch)
        inside = last // self.steps - first // self.steps - (last // both - first // both)
        return at_ends + inside - (last % self.steps == 0 and last % per_epoch > 0)

    def work(self, micro_batch_size: int) -> list[Work]:
        """The programs of an evaluation of each set, which are compiled."""
        return [one.work(self.batch_size, micro_batch_size, self.measures) for one in self._sets.values()]

    def due(self, steps: int) -> bool:
        """An evaluation inside of an epoch is due after `steps` steps."""
        return bool(self._sets) and self.steps is not None and steps > 0 and steps % self.steps == 0

    def due_at_end(self, epoch: int, is_last: bool) -> bool:
        """An evaluation is due at the end of this epoch, counted from 1."""
        return bool(self._sets) and (is_last or epoch % self._epochs == 0)

    def check_repeated(self, made: Sequence[Evaluation], steps: int, callback: Callback | None) -> None:
        """TrainError where a run of `steps` steps does not make one of these evaluations: it belongs to the end of a
        shorter run, and `callback` has received it and remembers it."""
        extra = [one for one in made if one.step < steps and not self.due_at_end(one.epoch, False)]
        if self.steps is None and extra and callback is not None:
            raise TrainError(
                f"cannot be resumed: {shown(callback)} has received the evaluation of epoch {extra[0].epoch}, which "
                f"was made because the run ended there (one every {self.every}); requires its length as it was "
                f"({extra[0].step} steps), or --overwrite (overwrite=True) to start anew"
            )

    def prepare(self, micro_batch_size: int) -> list[CompiledBatch]:
        """Compile the micro-batches of all sets, and give them; nothing runs."""
        sets, measures = self._sets.values(), self.measures
        return [step for one in sets for step in one.prepare(self.batch_size, micro_batch_size, measures)]

    def measure(
        self,
        results: dict[str, Result],
        micro_batch_size: int,
        on_progress: Listener | None = None,
        each: bool = False,
    ) -> None:
        """Measure all sets with the present weights: one Result after the other joins `results`. on_progress, each: as
        of run_part."""
        for name, one in self._sets.items():
            results[name] = Result(self.measures)
            one.measure(results[name], self.batch_size, micro_batch_size, on_progress, each)
            results[name].settle()


def _refuse_without_effect(every: str | Interval, interval: Interval, rows: int | None, measures: Measures) -> None:
    """SettingError for options of evaluations, where there is nothing to evaluate."""
    unmeasured = ", ".join(name for name, metric in measures.metrics if not metric.train)
    name, more = "", ""
    seen: Any = ...
    if interval != Interval(1, "epochs"):
        name, seen = "eval_every", every
    elif rows is not None:
        name, seen = "eval_rows", rows
    elif unmeasured:
        name, more = "metrics", f": {unmeasured} (or gl.train.Metric(function, train=True))"
    if name:
        text = f"{{{name}}} requires validation rows: {{val}}, or {{val_split}} or {{folds}} above 0{more}"
        raise SettingError(text, {name: seen, "val": ..., "val_split": ..., "folds": ...})
