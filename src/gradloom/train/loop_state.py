"""LoopState: counts and results of a training, as parts of the state of its run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import TrainError
from ..data.dataset import Dataset
from ..runs.events import Subscriber
from ..runs.records import packed, unpacked
from ..runs.schemas import CALLBACKS, LOOP, TIMES
from ..runs.state import check_equal, register_draws
from .batches import CompiledBatch
from .callbacks import Callbacks
from .duration import Duration
from .epoch import Pass
from .evaluation import Evaluator
from .history import History
from .metrics import Measures
from .result import EpochResult, Evaluation, Result, under
from .stopping import monitored
from .trainer import Trainer


class LoopState:
    """What a Loop has done, and what decides how it continues.

    history   an EpochResult for each pass; before: validation before the first step; latest: Result of the last pass
    steps     optimiser steps, skipped ones included, of steps_total; rows: trained on; passes: begun
    predicted duration of the steps that this call of `run` began with; None: short or not predicted
    stopped   by StopTraining; restored: epoch and step of the weights that EarlyStopping restored
    has_rows  it trains on rows of a data set, which can be read again; False: on batches of an iterable
    """

    has_rows = True

    def __init__(
        self, trainer: Trainer, data: Dataset, train_rows: np.ndarray, val_rows: np.ndarray, evaluator: Evaluator,
        measures: Measures, subscribers: Sequence[Subscriber], callbacks: Callbacks, about: Mapping[str, Any] | None,
        *, batch_size: int, micro_batch_size: int, steps: int, seed: int,
    ) -> None:  # fmt: skip
        self.trainer, self.data, self.train_rows, self.val_rows = trainer, data, train_rows, val_rows
        self.evaluator, self.measures = evaluator, measures
        self.subscribers, self.callbacks, self.about = tuple(subscribers), callbacks, dict(about or {})
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size
        self._steps_total, self.seed = steps, seed
        self.history = History()
        self.before: Result | None = None
        self.latest = Result()
        self.steps = self.rows = self.passes = 0
        self.training_seconds = 0.0
        self.predicted: Duration | None = None
        self.stopped = False
        self.restored: tuple[int, int | None] | None = None
        self._first_pass = self._loaded_epochs = 0  # passes of an optimiser's own state; epochs of a state to load
        self._pass: Pass | None = None  # the open one
        trainer.train_state.register("loop", self._state, self._load, schema=LOOP)
        register_draws(trainer.train_state)
        trainer.train_state.register("time", self._times, self._load_times, schema=TIMES)
        if callbacks:
            trainer.train_state.register("callbacks", callbacks.state, self._load_callbacks, schema=CALLBACKS)

    def __repr__(self) -> str:
        return f"Loop({self.trainer!r}, {self.steps} of {self.steps_total} steps)"

    # ---- where it is -----------------------------------------------------------------------------------------

    @property
    def steps_total(self) -> int | None:
        """Optimiser steps in all; None where it is not known."""
        return self._known_total()

    @steps_total.setter
    def steps_total(self, steps: int) -> None:
        self._steps_total = steps

    def _known_total(self) -> int | None:
        return self._steps_total

    @property
    def is_unfinished(self) -> bool:
        """Passes are left after the open one."""
        return self.steps < self._steps_total

    @property
    def epoch(self) -> int:
        """The number of the open pass, or of the last one, as EpochResult counts it."""
        return self._first_pass + self.passes

    @property
    def open_pass(self) -> Pass | None:
        """The pass that has begun and is not closed."""
        return self._pass

    @property
    def is_between_passes(self) -> bool:
        """No pass is open."""
        return self._pass is None

    @property
    def is_in_segment(self) -> bool:
        """Optimiser steps of the open segment are left."""
        return self._pass is not None and self._pass.done < self._pass.segment

    @property
    def rows_left(self) -> int:
        """Rows of the open pass that are not trained on yet."""
        now = self._pass
        return 0 if now is None else max(now.rows - now.done * self.batch_size, 0)

    @property
    def kept(self) -> EpochResult | None:
        """Measured results of the present weights; None before the first step."""
        done = self.history
        return done.at(*self.restored) if self.restored else done.at_step(self.epoch, self.steps, self.latest)

    def rows_done(self, now: Pass) -> int:
        """Rows of a pass that are trained on."""
        return min(now.done * self.batch_size, now.rows)

    def order(self, number: int) -> np.ndarray:
        """The rows in the order of a pass, counted from 1: those that train, then those of validation."""
        return np.concatenate([self.data.order(self.seed, number, self.train_rows), self.val_rows])

    def best(self, inside: bool) -> Mapping[str, Any] | None:
        """Numbers of the present weights, where no earlier ones were better: by the loss of the last evaluation, or
        without validation of the last pass. inside: evaluations of the open pass count."""
        open_pass = self._pass.evaluations if inside and self._pass is not None else []
        made = [*(one for epoch in self.history for one in epoch.evaluations), *open_pass]
        if made:
            losses = [float(one.val.loss) for one in made if one.val is not None]
            is_best = made[-1].step == self.steps and losses[-1] == min(losses)
        else:
            losses = [monitored(epoch) for epoch in self.history]
            is_best = self.is_between_passes and bool(losses) and losses[-1] == min(losses)
        return (open_pass or self.history)[-1].numbers() if is_best else None

    def rows_of_pass(self, before: int) -> int:
        """The rows that a pass trains on which begins after `before` steps."""
        return min(len(self.train_rows), (self._steps_total - before) * self.batch_size)

    def programs(self, rows: int) -> list[CompiledBatch]:
        """Compile the steps of a pass over `rows` rows."""
        return self.trainer.prepare(
            self.trainer.source(self.data), 0, rows, batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size, measures=self.measures,
        )  # fmt: skip

    # ---- parts of the state of a run -------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        evaluations = [one for each in (*self.history, self._pass) if each is not None for one in each.evaluations]
        kept: dict[str, Any] = {
            "seed": self.seed, "steps": self.steps, "steps_total": self.steps_total or 0, "passes": self.passes,
            "first_pass": self._first_pass, "batch_size": self.batch_size, "micro_batch_size": self.micro_batch_size,
            "rows": self.rows, "stopped": self.stopped,
            "history": packed([epoch.state() for epoch in self.history]), "has_before": self.before is not None,
            "pass": None, "evaluations": packed([one.state() for one in evaluations]),
        }  # fmt: skip
        if self.before is not None:
            kept |= {f"before.{name}": value for name, value in self.before.state().items()}
        if self._pass is not None:
            now = self._pass
            kept["pass"] = {"number": now.number, "rows": now.rows, "before": now.before, "done": now.done}
            kept |= {f"train.{name}": value for name, value in now.train.state().items()}
        return kept

    def _load(self, values: Mapping[str, Any]) -> Callable[[], None]:
        mine = self._state()
        check_equal("loop", values, {name: mine[name] for name in ("seed", "batch_size", "micro_batch_size")})
        made = [Evaluation.of_state(one) for one in unpacked(values["evaluations"])]
        if not values["stopped"]:
            self._check_repeated(made, values)
        evaluations = iter(made)
        history = [
            EpochResult.of_state(epoch, tuple(itertools.islice(evaluations, epoch["evaluations"])), 0.0)
            for epoch in unpacked(values["history"])
        ]
        before = Result.of_state(under(values, "before.")) if values["has_before"] else None
        now, self._loaded_epochs = None, len(history)
        if values["pass"] is not None:
            train = Result.of_state(under(values, "train."), self.measures)
            now = Pass(**values["pass"], train=train, evaluations=list(evaluations))
            now.rows = self._rows_of_restored(now)

        def load() -> None:
            self.history[:], self.before, self._pass = history, before, now
            self.latest = now.train if now is not None else history[-1].train if history else Result()
            self.steps, self.passes, self._first_pass = values["steps"], values["passes"], values["first_pass"]
            self.rows, self.stopped = values["rows"], values["stopped"]

        return load

    def _rows_of_restored(self, now: Pass) -> int:
        """The rows of an open pass that was saved: there may be more steps in all than there were."""
        return self.rows_of_pass(now.before)

    def _check_repeated(self, made: Sequence[Evaluation], values: Mapping[str, Any]) -> None:
        """TrainError where a callback remembers an evaluation that this run does not make."""
        self.evaluator.check_repeated(made, self._steps_total, self.callbacks.remembers_evaluations())

    def _times(self) -> dict[str, Any]:
        """Seconds of training, of the open pass and of each epoch. They affect no result."""
        epochs = np.array([epoch.seconds for epoch in self.history], np.float64)
        return {"training": self.training_seconds, "pass": self._pass.seconds if self._pass else 0.0, "epochs": epochs}

    def _load_times(self, values: Mapping[str, Any]) -> Callable[[], None]:
        if len(values["epochs"]) != self._loaded_epochs:
            raise TrainError(f"load: time.epochs: {len(values['epochs'])}; requires {self._loaded_epochs}")

        def load() -> None:  # after the loop's own part
            self.training_seconds = values["training"]
            if self._pass is not None:
                self._pass.seconds = values["pass"]
            pairs = zip(self.history, values["epochs"].tolist(), strict=True)
            self.history[:] = [replace(epoch, seconds=seconds) for epoch, seconds in pairs]

        return load

    def _load_callbacks(self, values: Mapping[str, Any]) -> Callable[[], None]:
        self.callbacks.check_state(values)
        return lambda: self.callbacks.load_state(values) if self.trainer.is_root else None
