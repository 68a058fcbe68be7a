"""Ending a training early, and in order: EarlyStopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, nearest
from ..base.errors import DataError, SettingError, TrainError
from ..base.habits import KeywordHints
from ..base.interrupts import StopTraining
from ..base.schema import Schema, anything, array, flag, mapping, number, optional, shown_name, table, whole
from ..graph.stored import copies, replace
from ..step.state import matching, need_schema
from .callbacks import Callback
from .metrics import Metric
from .scores import HIGHER, score_metric

if TYPE_CHECKING:
    from .result import EpochResult, Evaluation
    from .split import Split
    from .trainer import Trainer

_KEPT = "weights."  # before the name of an array of the best epoch
_FIELDS: dict[str, Schema] = {
    "best": number(finite=False), "best_epoch": whole(), "best_step": optional(whole()), "waited": whole(),
    "stopped": flag,
}  # fmt: skip
_WEIGHTS: dict[str, Schema] = {r"weights\..+": array()}
STATE = table(_FIELDS, _WEIGHTS)
_STATE_OF_SUBCLASS = table(_FIELDS, _WEIGHTS | {".*": anything})
_HIGHER = ("accuracy", "acc", "auc", "f1", "precision", "recall", "r2")  # how names end of what is to be large


class EarlyStopping(Callback, KeywordHints):
    """For callbacks= or on_epoch=: end the training when a number has not improved for `patience` epochs.

    monitor       the number's name, as EpochResult.numbers() has it: "val_loss", "loss", "val_accuracy", "clean.loss",
                  the name of a metric, ...; when not given the loss of validation, or of training without validation
    mode          "min" or "max": the number improves when it is less, or more, than the best so far by more than
                  min_delta; "auto": "max" for names that end in accuracy, acc, auc, f1, precision, recall or r2
    patience      0 is as 1: the first epoch that is no better ends the training. Where validation is measured inside of
                  epochs, too (eval_every="200steps"), and the number is one of validation, patience counts evaluations
    restore_best  at the end, however it comes, the model gets back the weights (and running statistics) that it had
                  at its best

        stop = gl.train.EarlyStopping(patience=5)
        gl.fit(model, data, val_split=0.1, epochs=1000, callbacks=[stop])
        stop.best_epoch, stop.best, stop.stopped    # and stop.best_step, the optimiser step of the best evaluation

    In a loop of your own: stop.begin(trainer), stop(result) after each epoch, stop.end(). SettingError for
    numbers out of range, and for a monitor that names nothing that is measured.
    """

    def __init__(
        self,
        patience: int = 0,
        min_delta: float = 0.0,
        restore_best: bool = False,
        *,
        monitor: str | None = None,
        mode: str = "auto",
    ) -> None:
        if not isinstance(patience, (int, np.integer)) or isinstance(patience, bool) or patience < 0:
            raise SettingError(
                setting="patience", seen=patience, need="a whole number of at least 0", place="EarlyStopping"
            )
        if not isinstance(min_delta, (int, float, np.number)) or not 0 <= min_delta < math.inf:
            raise SettingError(
                setting="min_delta", seen=min_delta, need="a number of at least 0", place="EarlyStopping"
            )
        if monitor is not None and not (isinstance(monitor, str) and monitor):
            raise SettingError(setting="monitor", seen=monitor, need="a name such as 'val_loss'", place="EarlyStopping")
        if mode not in ("min", "max", "auto"):
            raise SettingError(setting="mode", seen=mode, need="min, max or auto", place="EarlyStopping")
        self.patience, self.min_delta = int(patience), float(min_delta)
        self.restore_best = as_bool("restore_best", restore_best, "EarlyStopping")
        self.monitor = monitor
        self.mode = mode if mode != "auto" else "max" if (monitor or "").lower().endswith(_HIGHER) else "min"
        self._trainer: Trainer | None = None
        self._evaluates = False  # the loop has validation sets
        self._forget()

    def _forget(self) -> None:
        self.best, self.best_epoch, self.stopped = math.inf if self.mode == "min" else -math.inf, 0, False
        self.best_step: int | None = None
        self._waited = 0
        self._weights: dict[str, np.ndarray] = {}  # of the best epoch, by name
        self.restored: tuple[int, int | None] | None = None  # epoch and step whose weights the model has got back

    def begin(self, loop: Any) -> None:
        """A training begins. loop: a Loop, or the Trainer in a loop of your own."""
        self._forget()
        self._trainer = getattr(loop, "trainer", loop)
        self._evaluates = bool(getattr(loop, "evaluator", False))
        if loop is self._trainer and loop is not None:
            loop.train_state.register("early stopping", self.state, self._loading, schema=mapping(anything))

    def state(self) -> dict[str, Any]:
        """What it remembers from epoch to epoch; weights.NAME: arrays of the best epoch."""
        weights = {f"{_KEPT}{name}": array for name, array in self._weights.items()}
        return {
            "best": self.best, "best_epoch": self.best_epoch, "best_step": self.best_step, "waited": self._waited,
            "stopped": self.stopped, **weights,
        }  # fmt: skip

    def check_state(self, values: Mapping[str, Any]) -> None:
        """TrainError where these are not what `state` gives. A subclass may have further values."""
        schema = STATE if type(self).state is EarlyStopping.state else _STATE_OF_SUBCLASS
        need_schema(schema, values, "load: early stopping")
        if self._trainer is not None:
            model = self._trainer.train_state.arrays("model")
            known = {f"{_KEPT}{name}": stored for name, stored in model.items() if f"{_KEPT}{name}" in values}
            matching("early stopping", {name: values[name] for name in known}, known)

    def _loading(self, values: Mapping[str, Any]) -> Callable[[], None]:
        self.check_state(values)
        return partial(self.load_state, values)

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Take back what `state` gave; TrainError as for check_state."""
        self.check_state(values)
        self.best, self.best_epoch = float(values["best"]), int(values["best_epoch"])
        self.best_step = values["best_step"]
        self._waited, self.stopped = int(values["waited"]), bool(values["stopped"])
        self._weights = {name.removeprefix(_KEPT): a for name, a in values.items() if name.startswith(_KEPT)}

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """The validation sets were measured; StopTraining when there were enough evaluations without improvement."""
        numbers = evaluation.numbers()
        name = "val_loss" if self.monitor is None else self.monitor
        if name in numbers:
            self._observe(numbers[name], evaluation.epoch, evaluation.step)

    def on_epoch(self, result: EpochResult) -> None:
        """An epoch has ended; StopTraining when there were enough without improvement."""
        evaluated = [one.numbers() for one in result.evaluations]
        if any((self.monitor or "val_loss") in numbers for numbers in evaluated):
            return  # on_evaluation has seen it
        if self._evaluates and not evaluated and self.monitor not in result.numbers():
            return  # this epoch was not evaluated
        self._observe(self._number(result), result.epoch)

    def _observe(self, number: float, epoch: int, step: int | None = None) -> None:
        gained = self.best - number if self.mode == "min" else number - self.best
        if gained > self.min_delta:
            self.best, self.best_epoch, self.best_step, self._waited = number, epoch, step, 0
            if self.restore_best:
                self._keep()
            return
        self._waited += 1
        if self._waited >= max(1, self.patience):
            self.stopped = True
            raise StopTraining(f"no better {self.monitor or 'loss'} than {self.best:.6g} of epoch {self.best_epoch}")

    def __call__(self, result: EpochResult) -> None:
        """The same as on_epoch: it may stand where a function of an EpochResult does."""
        self.on_epoch(result)

    def _number(self, result: EpochResult) -> float:
        if self.monitor is None:
            return monitored(result)
        numbers = result.numbers()
        if self.monitor not in numbers:
            hint = nearest(self.monitor, numbers, f"must be one of {', '.join(numbers)}")
            raise SettingError(f"{{monitor}} is not measured{hint}", monitor=self.monitor, place="EarlyStopping")
        return numbers[self.monitor]

    def _keep(self) -> None:
        if self._trainer is None:
            raise TrainError(
                "EarlyStopping: restore_best needs to know what is trained; give it to callbacks, or call "
                "begin(trainer)"
            )
        written = set(self._trainer.written())
        named = {name: s for name, s in self._trainer.train_state.arrays("model").items() if s in written}
        self._weights = dict(zip(named, copies(named.values()), strict=True))

    def end(self, history: list[EpochResult] | None = None) -> None:
        """The training has ended."""
        if self._trainer is not None and self._weights:
            named = self._trainer.train_state.arrays("model")
            unknown = [name for name in self._weights if name not in named]
            if unknown:
                raise TrainError(f"EarlyStopping: {shown_name(unknown[0])} is not in this model; need the same model")
            replace({named[name]: array for name, array in self._weights.items()})
            self.restored = self.best_epoch, self.best_step
        self._weights, self._trainer = {}, None

    def __repr__(self) -> str:
        kept = ", restore_best=True" if self.restore_best else ""
        watched = "" if self.monitor is None else f", monitor={self.monitor!r}, mode={self.mode!r}"
        return f"EarlyStopping(patience={self.patience}, min_delta={self.min_delta:g}{kept}{watched})"


class _ScoreStopping(EarlyStopping):
    """EarlyStopping at one of scores.SCORES, which is nan only where it is not defined for the rows."""

    def _observe(self, number: float, epoch: int, step: int | None = None) -> None:
        if math.isnan(number):
            need = "two classes" if self.monitor == "val_roc_auc" else "targets that differ"
            text = f"{self.monitor} is not defined for the validation rows; use rows with {need}, or another {{metric}}"
            raise DataError(text, metric=...)
        super()._observe(number, epoch, step)


def stopping_at(
    score: str | None, patience: int, loss: str, units: Callable[[np.ndarray], np.ndarray], monitor: str | None = None
) -> tuple[list[EarlyStopping], dict[str, Metric] | None]:
    """(callbacks, metrics) for gl.fit: a training that keeps its best weights, and ends after so many evaluations
    without a better score of the validation rows; patience 0: it does not. score: one of scores.SCORES; None: what
    monitor names. loss, units: as of score_metric."""
    if not patience:
        return [], None
    if score is None:
        return [EarlyStopping(patience, restore_best=True, monitor=monitor)], None
    mode = "max" if score in HIGHER else "min"
    stops = _ScoreStopping(patience, restore_best=True, monitor=f"val_{score}", mode=mode)
    return [stops], None if score == "accuracy" else {score: score_metric(score, loss, units)}


def monitored(result: EpochResult) -> float:
    """The loss that judges an epoch: of validation, else of training."""
    return float((result.train if result.val is None else result.val).loss)


def restored(callbacks: Iterable[Callback], split: Split | None) -> tuple[int, int | None] | None:
    """Epoch and step of the weights that an EarlyStopping of these has given back at the end; None: they are the last
    ones. split: of a training with ranks, where rank 0 alone tells its callbacks."""
    given = [each.restored for each in callbacks if isinstance(each, EarlyStopping) and each.restored]
    found = given[-1] if given else None
    return found if split is None else split.ranks.gather(found)[0]
