"""The training recipe of tables and images: defaults, network, optimiser, early stopping.

`gradloom fit` and the scikit-learn estimators share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .. import nn
from ..base.defaults import LEAST_VALIDATED, VALIDATED
from ..base.errors import DataError, SettingError
from ..data.dataset import Dataset, split_rows
from ..data.encoding.preprocess import Preprocess
from ..data.encoding.target import MIXED
from ..optim.optimizer import Optimizer
from ..train.fit import fit
from ..train.history import History
from ..train.metric import Metric
from ..train.result import MAIN
from ..train.stopping import EarlyStopping
from .convolutional import DROPOUT, channels_for, convolutional
from .perceptron import OPTIMIZERS, TABLE, need_room, network, optimizer_for
from .scores import HIGHER, SCORES, is_defined, score_metric
from .target_loss import TargetLoss, unpacked
from .target_scores import is_defined_for_some, mean_metric

MEMBERS = 8  # networks of an ensemble
PATIENCE = 15  # evaluations without improvement

_default: Any = None  # chosen by Recipe.decided


@dataclass(frozen=True)
class Recipe:
    """The settings of a training that depend on the data. None: the default, chosen by `decided`.

    hidden      widths of the hidden layers; of images the channels of the convolutions
    dropout     share of the hidden layers' outputs that a step leaves out; of images of those of the last block
    ensemble    number of networks that are trained and averaged
    val_split   share of the rows for validation
    folds       parts of the rows, each of which validates the networks that do not train on it; 0: none
    lr          learning rate of the first step
    loss        "cross_entropy", "mse", or of a regression "l1" or "huber"; of several targets that of the numbers
    patience    evaluations without improvement until training ends; 0: it does not end early
    metric      the score to improve, one of scores.SCORES; None: the loss, or `monitor`
    monitor     the number to improve, as for EarlyStopping
    """

    hidden: list[int] = _default
    dropout: float = _default
    ensemble: int = _default
    val_split: float = _default
    folds: int = _default
    epochs: int = _default
    batch_size: int = _default
    lr: float = _default
    optimizer: str = "adamw"
    loss: str = _default
    patience: int = _default
    metric: str | None = None
    monitor: str | None = None
    seed: int = 0

    @classmethod
    def of(cls, settings: Any) -> Recipe:
        """From attributes of these names."""
        return cls(**{one.name: getattr(settings, one.name) for one in fields(cls)})

    def with_validation(self) -> Recipe:
        """Choose between folds and a validation split, before the rows are read. val_split None: a share where there
        are enough rows. SettingError for settings of early stopping that exclude each other."""
        if self.metric is not None and self.monitor is not None:
            both = {"metric": self.metric, "monitor": self.monitor}
            raise SettingError("{metric} and {monitor} are mutually exclusive", both)
        for name, watched in (("metric", self.metric), ("monitor", self.monitor)):
            if watched is not None and self.patience == 0:
                raise SettingError(f"{{{name}}} requires {{patience}} > 0", {name: watched, "patience": ...})
        if self.val_split is not None:
            return replace(self, folds=self.folds or 0)
        is_ensemble = self.hidden != [] and self.ensemble != 1
        return replace(self, val_split=0.0) if self.folds or (self.folds is None and is_ensemble) else self

    def decided(self, preprocess: Preprocess, rows: int, has_val: bool = False) -> Recipe:
        """With defaults for data of this kind and number of rows. has_val: there are separate validation rows.

        SettingError for settings that cannot be combined, or have no effect."""
        images, shape = preprocess.kind != "columns", preprocess.image_shape
        hidden = channels_for(shape, rows) if shape else [500] if images else [128, 128]
        hidden = hidden if self.hidden is None else self.hidden
        if self.dropout and not hidden:
            raise SettingError("{dropout} requires at least one {hidden} layer", dropout=self.dropout, hidden=...)
        if (images or not hidden) and (self.ensemble or 1) > 1:
            need = "a table: one network learns images" if hidden else "at least one {hidden} layer"
            raise SettingError(f"{{ensemble}} requires {need}", ensemble=self.ensemble, hidden=...)
        members = 1 if images or not hidden else self.ensemble or MEMBERS
        folds = self._folds(rows, members)
        split = self.val_split
        if split is None:
            split = VALIDATED if rows >= LEAST_VALIDATED and not folds else 0.0
        validates = bool(has_val or split or folds)
        self._check_stopping(preprocess.task, validates)
        loss = self._decided_loss(preprocess)
        stops = validates and (not images or self.metric is not None)
        dropout = (DROPOUT if shape else 0.0 if images else 0.1) if hidden else 0.0
        made = replace(
            self,
            hidden=hidden,
            dropout=dropout if self.dropout is None else self.dropout,
            ensemble=members,
            val_split=split,
            folds=folds,
            lr=self.lr or (TABLE if self.optimizer == "adamw" and not images else OPTIMIZERS[self.optimizer])["lr"],
            loss=loss,
            patience=self.patience if self.patience is not None else PATIENCE if stops else 0,
        )
        trained = made.trained(rows)
        batch_size = min(self.batch_size or batch_size_for(trained, preprocess), trained)
        return replace(made, epochs=self.epochs or _epochs_for(trained, preprocess), batch_size=batch_size)

    def _decided_loss(self, preprocess: Preprocess) -> str:
        """The name of the loss; of several targets that of the numbers among them."""
        loss = self.loss or ("cross_entropy" if preprocess.task == "classification" else "mse")
        if loss == "cross_entropy" and preprocess.task == "regression":
            raise SettingError("{loss} requires {task} classification; use mse for a regression", loss=loss, task=...)
        if preprocess.kind == "images" and loss != "cross_entropy":
            raise SettingError("{loss}: images of a folder have classes; use cross_entropy", loss=loss)
        if loss in ("l1", "huber") and preprocess.task == "classification":
            text = "{loss} requires {task} regression; use cross_entropy or mse for classes"
            raise SettingError(text, loss=loss, task=...)
        if preprocess.targets and loss == "mse" and preprocess.task == "classification":
            raise SettingError("{loss}: mse of classes requires a single {target}", loss=loss, target=...)
        if preprocess.task == MIXED and loss == "cross_entropy":
            text = "{loss} requires targets that are all classes; with numbers among them it must be mse, l1 or huber"
            raise SettingError(text, loss=loss)
        return loss

    def _folds(self, rows: int, members: int) -> int:
        if self.folds is None:
            return members if rows >= LEAST_VALIDATED and members > 1 else 0
        most = min(members, rows)
        if self.folds and not 2 <= self.folds <= most:
            counts = f"there are {members} networks and {rows} training rows"
            need = f"0, or from 2 to {most}: {counts}" if most > 1 else "0: there is one network, or one row"
            raise SettingError(setting="folds", seen=self.folds, need=need)
        return self.folds

    def _check_stopping(self, task: str, validates: bool) -> None:
        if self.metric is not None and not validates:
            text = "{metric} requires validation rows: {folds} or {val_split} above 0"
            raise SettingError(text, metric=self.metric, folds=..., val_split=...)
        if self.metric is not None and task == MIXED:
            text = "{metric} requires targets that are all classes, or all numbers; omit it: the loss decides"
            raise SettingError(text, metric=self.metric)
        if self.metric is not None and self.metric not in SCORES[task]:
            raise SettingError(
                setting="metric", seen=self.metric, need=f"one of {', '.join(SCORES[task])} for a {task}"
            )
        if self.monitor is not None and self.patience is None and not validates:
            raise SettingError("{monitor} requires {patience}, or validation rows", monitor=self.monitor, patience=...)

    def trained(self, rows: int) -> int:
        """The number of these rows that are trained on."""
        return len(split_rows(rows, self.val_split, self.seed)[0]) if self.val_split and not self.folds else rows

    def network(self, preprocess: Preprocess) -> nn.Sequential:
        """The network; SettingError if the free memory is too small to train it."""
        if preprocess.image_shape is not None:
            return convolutional(preprocess, self.hidden, self.dropout)
        need_room(preprocess, self.hidden, self.ensemble)
        return network(preprocess, self.hidden, self.dropout, self.ensemble, self.loss)

    def steps(self, rows: int) -> int:
        """Optimiser steps for this number of rows."""
        return self.epochs * -(-self.trained(rows) // self.batch_size)

    def optimizer_for(
        self, net: nn.Module, preprocess: Preprocess, rows: int, groups: Sequence[dict[str, Any]] = ()
    ) -> Optimizer:
        """The optimiser of `net` for this number of rows. groups: as for gl.optim."""
        return optimizer_for(net, self.optimizer, self.lr, self.steps(rows), groups, preprocess.kind != "columns")

    def stopping(self, preprocess: Preprocess) -> tuple[list[EarlyStopping], dict[str, Metric] | None]:
        """(callbacks, metrics) for gl.fit: early stopping that restores the best weights; none with patience 0."""
        if not self.patience:
            return [], None
        if self.metric is None:
            return [EarlyStopping(self.patience, restore_best=True, monitor=self.monitor)], None
        mode = "max" if self.metric in HIGHER else "min"
        name = f"mean_{self.metric}" if preprocess.targets else self.metric
        stops = _ScoreStopping(self.patience, restore_best=True, monitor=f"val_{name}", mode=mode)
        stops.preprocess = preprocess
        if preprocess.targets:
            return [stops], {name: mean_metric(self.metric, preprocess)}
        if self.metric == "accuracy":  # which gl.fit measures
            return [stops], None
        return [stops], {self.metric: score_metric(self.metric, self.loss, preprocess.outputs_to_targets)}

    def loss_of(self, preprocess: Preprocess, class_weight: Sequence[float] | None = None) -> str | TargetLoss:
        """The loss of a network for this table. class_weight: of several targets, see `balanced`."""
        numbers = "mse" if self.loss == "cross_entropy" else self.loss
        return TargetLoss(preprocess, numbers, class_weight) if preprocess.targets else self.loss

    def fit(self, net: nn.Module, data: Dataset, loss: str | TargetLoss | None = None, **options: Any) -> History:
        """Train with these settings. loss: as of loss_of, None: the name; options: as for gl.fit."""
        return fit(
            net, data, loss=loss or self.loss, epochs=self.epochs, batch_size=self.batch_size, val_split=self.val_split,
            folds=self.folds, seed=self.seed, **options,
        )  # fmt: skip


def batch_size_for(rows: int, preprocess: Preprocess) -> int:
    """The default batch size, which may exceed the number of rows."""
    is_perceptron = preprocess.kind == "array" and preprocess.image_shape is None
    return 32 if rows < 5000 else 500 if is_perceptron else 128


def _epochs_for(rows: int, preprocess: Preprocess) -> int:
    if preprocess.image_shape is not None:
        return 100 if rows < 1000 else 50 if rows < 5000 else 20 if rows < 20000 else 10
    if preprocess.kind != "columns":
        return 100 if rows < 1000 else 10 if rows >= 20000 else 50
    return 100 if rows < 1000 else 50 if rows < 5000 else 30 if rows < 20000 else 12 if rows < 100000 else 4


class _ScoreStopping(EarlyStopping):
    """EarlyStopping on one of scores.SCORES; DataError at the start where the validation rows do not define it, of
    several targets for none of them."""

    preprocess: Preprocess

    def begin(self, loop: Any) -> None:
        name = (self.monitor or "").removeprefix("val_").removeprefix("mean_")
        labels, weights = loop.evaluator.labels(MAIN)
        cells = unpacked(labels, self.preprocess) if self.preprocess.targets else None
        if not (is_defined(name, labels, weights) if cells is None else is_defined_for_some(name, cells, weights)):
            known = next(names for names in SCORES.values() if name in names)
            others = ", ".join(other for other in known if other != name)
            need = "two classes" if name == "roc_auc" else "targets that differ"
            text = f"{{metric}} is not defined for the validation rows; use rows with {need}, or one of {others}"
            raise DataError(text, metric=name)
        super().begin(loop)
