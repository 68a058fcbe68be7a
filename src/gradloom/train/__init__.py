"""fit, epoch, evaluate, predict, dp_train; the trainer beneath them; results with uncertainties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name
from ..base.interrupts import StopTraining
from ..runs.log_files import read_metrics
from ..runs.own_loop import Checkpoint
from ..runs.saver import Saver
from .averaged_weights import AveragedWeights
from .batch_loss import BatchLoss
from .callbacks import BatchResult, Callback
from .dp_train import DPResult, dp_train
from .epoch import Progress, epoch
from .fit import evaluate, fit, predict
from .history import History
from .log import Log
from .loop import Loop
from .metric import Metric
from .rate_finder import RateCurve, find_rate
from .result import EpochResult, Evaluation, Result
from .stopping import EarlyStopping
from .trainer import Trainer

__all__ = [
    "AveragedWeights",
    "BatchLoss",
    "BatchResult",
    "Callback",
    "Checkpoint",
    "DPResult",
    "EarlyStopping",
    "EpochResult",
    "Evaluation",
    "History",
    "Log",
    "Loop",
    "Metric",
    "Model",
    "Progress",
    "RateCurve",
    "Result",
    "Saver",
    "StopTraining",
    "Trainer",
    "dp_train",
    "epoch",
    "evaluate",
    "find_rate",
    "fit",
    "predict",
    "read_metrics",
]

if TYPE_CHECKING:
    from ..tables.model import Model
else:

    def __getattr__(name: str) -> Any:
        if name == "Model":  # tables/ is above this package
            from ..tables.model import Model

            return Model
        raise missing_name(__name__, name)
