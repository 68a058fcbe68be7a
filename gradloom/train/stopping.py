"""Ending a training early, and in order: EarlyStopping, and the listeners of epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import SettingError, TrainError
from ..base.interrupts import StopTraining
from ..graph.stored import Stored, copies, replace

if TYPE_CHECKING:
    from .result import EpochResult
    from .trainer import Trainer

Listeners = Callable[..., Any] | Sequence[Callable[..., Any]] | None


class EarlyStopping:
    """For on_epoch: end the training when the loss has not improved for `patience` epochs.

    The loss is that of validation, or of training where there is no validation. It improves when it is less than the
    best so far by more than min_delta. restore_best: at the end, however it comes, the model gets back the weights (and
    running statistics) that it had after the best epoch. patience 0 is as 1: the first epoch that is no better ends it.

        stop = gl.train.EarlyStopping(patience=5)
        gl.fit(model, data, val_split=0.1, epochs=1000, on_epoch=stop)
        stop.best_epoch, stop.best_loss, stop.stopped

    In a loop of your own: stop.begin(trainer), stop(result) after each epoch, stop.end(). SettingError for numbers out
    of range.
    """

    def __init__(self, patience: int = 0, min_delta: float = 0.0, restore_best: bool = False) -> None:
        if not isinstance(patience, (int, np.integer)) or isinstance(patience, bool) or patience < 0:
            raise SettingError(f"EarlyStopping: patience={patience!r} is not usable; need a whole number of at least 0")
        if not isinstance(min_delta, (int, float, np.number)) or not 0 <= min_delta < math.inf:
            raise SettingError(f"EarlyStopping: min_delta={min_delta!r} is not usable; need a number of at least 0")
        self.patience, self.min_delta = int(patience), float(min_delta)
        self.restore_best = as_bool("EarlyStopping: restore_best", restore_best)
        self._trainer: Trainer | None = None
        self._forget()

    def _forget(self) -> None:
        self.best_loss, self.best_epoch, self.stopped = math.inf, 0, False
        self._waited = 0
        self._best: dict[Stored, np.ndarray] = {}

    def begin(self, trainer: Trainer) -> None:
        """A training begins: `fit` calls this."""
        self._forget()
        self._trainer = trainer
        trainer.train_state.register("early stopping", self._memory)

    def _memory(self) -> dict[str, Any]:
        """What it remembers from epoch to epoch, for the state of the run."""
        best = {f"best.{i}": array for i, array in enumerate(self._best.values())}
        return {"loss": self.best_loss, "epoch": self.best_epoch, "waited": self._waited, **best}

    def __call__(self, result: EpochResult) -> None:
        """An epoch has ended; StopTraining when there were enough without improvement."""
        loss = monitored(result)
        if loss < self.best_loss - self.min_delta:
            self.best_loss, self.best_epoch, self._waited = loss, result.epoch, 0
            if self.restore_best:
                self._keep()
            return
        self._waited += 1
        if self._waited >= max(1, self.patience):
            self.stopped = True
            raise StopTraining(f"no better loss than {self.best_loss:.6g} of epoch {self.best_epoch}")

    def _keep(self) -> None:
        if self._trainer is None:
            raise TrainError(
                "EarlyStopping: restore_best needs to know what is trained; give it to on_epoch itself (or in a list), "
                "or call begin(trainer)"
            )
        written = self._trainer.written()
        self._best = dict(zip(written, copies(written), strict=True))

    def end(self) -> None:
        """The training has ended: `fit` calls this."""
        replace(self._best)
        self._best, self._trainer = {}, None

    def __repr__(self) -> str:
        kept = ", restore_best=True" if self.restore_best else ""
        return f"EarlyStopping(patience={self.patience}, min_delta={self.min_delta:g}{kept})"


def monitored(result: EpochResult) -> float:
    """The loss that judges an epoch: of validation, else of training."""
    return float((result.train if result.val is None else result.val).loss)


class Listening:
    """The listeners of epochs: one, several or none. Those with begin(trainer) and end() are told of both."""

    def __init__(self, listeners: Listeners) -> None:
        several: Iterable[Any] = listeners if isinstance(listeners, (list, tuple)) else [listeners]
        self._listeners = [each for each in several if each is not None]
        for each in self._listeners:
            if not callable(each):
                raise SettingError(
                    f"on_epoch: got {type(each).__name__}; need a function of an EpochResult, or several"
                )

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def begin(self, trainer: Trainer) -> None:
        for each in self._listeners:
            if hasattr(each, "begin"):
                each.begin(trainer)

    def __call__(self, result: EpochResult) -> None:
        """Each listener in turn; StopTraining, if any of them raises it, when all have heard."""
        stops = [self._tell(each, result) for each in self._listeners]
        for stop in stops:
            if stop is not None:
                raise stop

    @staticmethod
    def _tell(listener: Callable[..., Any], result: EpochResult) -> StopTraining | None:
        try:
            listener(result)
        except StopTraining as stop:
            return stop
        return None

    def end(self) -> None:
        for each in self._listeners:
            if hasattr(each, "end"):
                each.end()
