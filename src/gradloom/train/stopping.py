"""EarlyStopping: end a training when a number stops improving."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, nearest
from ..base.errors import SettingError, TrainError
from ..base.habits import KeywordHints
from ..base.interrupts import StopTraining
from ..base.messages import log
from ..base.schema import Schema, anything, array, flag, mapping, number, optional, shown_name, table, whole
from ..graph.stored import copies, replace
from ..runs.state import matching, need_schema
from .callbacks import Callback
from .metric import UNCERTAINTY, Metric

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator
    from .result import EpochResult, Evaluation
    from .trainer import Trainer

_KEPT = "weights."  # before the name of an array of the best epoch
_FIELDS: dict[str, Schema] = {
    "best": number(finite=False), "best_epoch": whole(), "best_step": optional(whole()), "waited": whole(),
    "stopped": flag,
}  # fmt: skip
_WEIGHTS: dict[str, Schema] = {r"weights\..+": array()}
STATE = table(_FIELDS, _WEIGHTS)
_STATE_OF_SUBCLASS = table(_FIELDS, _WEIGHTS | {".*": anything})
# Endings of names of numbers that are to be maximised, and minimised
_HIGHER = ("accuracy", "acc", "auc", "f1", "precision", "recall", "r2")
_LOWER = ("loss", "error", "mse", "rmse", "mae", "mape", "nll", "perplexity")


class EarlyStopping(Callback, KeywordHints):
    """For callbacks= or on_epoch=: end the training when a number has not improved for `patience` epochs.

    monitor       the number's name, as EpochResult.numbers() has it: "val_loss", "loss", "val_accuracy", "clean.loss",
                  the name of a metric, ...; when not given the loss of validation, or of training without validation
    mode          "min" or "max": the number improves when it is less, or more, than the best so far by more than
                  min_delta; "auto": as the metric of gl.metrics has it, else "max" for names that end in accuracy, acc,
                  auc, f1, precision, recall or r2, else "min", which is logged for a metric of another name
    patience      0 is as 1: the first epoch that is no better ends the training. Where validation is measured inside of
                  epochs, too (eval_every="200steps"), and the number is one of validation, patience counts evaluations
    restore_best  at the end, also after an interruption, restore the weights (and running statistics) of the best
                  evaluation

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
        self._is_auto = mode == "auto"
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
        """A training begins. loop: a Loop, or the Trainer in a loop of your own. SettingError for a monitor that the
        Loop does not measure."""
        if self.monitor is not None and hasattr(loop, "evaluator"):
            metrics = dict(loop.measures.metrics) | dict(loop.evaluator.measures.metrics)
            names = [*loop.trainer.objective.measured, *(name for name, _ in loop.measures.metrics)]
            if not loop.evaluator and self.monitor.startswith("val_") and self.monitor not in names:
                text = "{monitor} requires validation rows: {val_split} above 0, or {val}"
                settings = {"monitor": self.monitor, "val_split": ..., "val": ...}
                raise SettingError(text, settings, place="EarlyStopping")
            self._check_monitor([*names, *loop.evaluator.measured])
            if self._is_auto:
                self._direct(metrics)
        self._forget()
        self._trainer = getattr(loop, "trainer", loop)
        self._evaluates = bool(getattr(loop, "evaluator", False))
        if loop is self._trainer and loop is not None:
            loop.train_state.register("early stopping", self.state, self._loading, schema=mapping(anything))

    def _direct(self, metrics: Mapping[str, Metric]) -> None:
        """Set the mode of "auto" by the metric that is monitored; one line reports a mode that is assumed."""
        assert self.monitor is not None
        parts = {name for name in metrics if self.monitor.endswith(name)}
        score = metrics[max(parts, key=len)].score if parts else None
        if score is not None:
            self.mode = "max" if score.higher else "min"
        elif parts and not self.monitor.lower().endswith((*_HIGHER, *_LOWER)):
            text = f"EarlyStopping: monitor={self.monitor!r} is assumed to improve when it falls"
            log.info(f"{text}; mode='max' or mode='min' states the direction")

    def state(self) -> dict[str, Any]:
        """Its state from epoch to epoch; weights.NAME: arrays of the best epoch."""
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

    def copied_bytes(self, weights: int, state: int) -> int:
        """Of the best weights, of new ones, and of those in a checkpoint that is being written."""
        return 3 * weights * self.restore_best

    def _loading(self, values: Mapping[str, Any]) -> Callable[[], None]:
        self.check_state(values)
        return partial(self.load_state, values)

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`; TrainError as for check_state."""
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
        """The same as on_epoch: usable as a function of an EpochResult."""
        self.on_epoch(result)

    def _number(self, result: EpochResult) -> float:
        if self.monitor is None:
            return monitored(result)
        numbers = result.numbers()
        if self.monitor not in numbers:
            self._check_monitor([name for name in numbers if not name.endswith(UNCERTAINTY)])
            text = f"{{monitor}} is not known for epoch {result.epoch}"
            raise SettingError(text, monitor=self.monitor, place="EarlyStopping")
        return numbers[self.monitor]

    def _check_monitor(self, names: list[str]) -> None:
        """SettingError unless the monitor is one of the names, or the uncertainty of one."""
        assert self.monitor is not None
        if self.monitor.removesuffix(UNCERTAINTY) not in names:
            hint = nearest(self.monitor, names, f"requires one of {', '.join(names)}")
            raise SettingError(f"{{monitor}} is not measured{hint}", monitor=self.monitor, place="EarlyStopping")

    def _keep(self) -> None:
        if self._trainer is None:
            raise TrainError(
                "EarlyStopping: restore_best requires the trained parameters; give it to callbacks, or call "
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


def monitored(result: EpochResult) -> float:
    """The loss that judges an epoch: of validation, else of training."""
    return float((result.train if result.val is None else result.val).loss)


def restored(callbacks: Iterable[Callback], ranks: Communicator | None) -> tuple[int, int | None] | None:
    """Epoch and step of the weights that an EarlyStopping of these has restored at the end; None: the last ones.
    ranks: those that train together, where rank 0 alone calls its callbacks."""
    given = [each.restored for each in callbacks if isinstance(each, EarlyStopping) and each.restored]
    found = given[-1] if given else None
    return found if ranks is None else ranks.gather(found)[0]
