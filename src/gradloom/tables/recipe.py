"""The training recipe of tables and images: defaults, network, optimiser, early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..base.errors import DataError
from ..train.metrics import Metric
from ..train.stopping import EarlyStopping
from .scores import HIGHER, score_metric


class _ScoreStopping(EarlyStopping):
    """EarlyStopping at one of scores.SCORES, which is nan only where it is not defined for the rows."""

    def _observe(self, number: float, epoch: int, step: int | None = None) -> None:
        if math.isnan(number):
            need = "two classes" if self.monitor == "val_roc_auc" else "targets that differ"
            raise DataError(
                f"{self.monitor}: is not defined for the validation rows; need rows of {need} among them, or another"
                " metric (--metric)"
            )
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
