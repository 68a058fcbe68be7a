"""fit, epoch, evaluate, predict; the trainer beneath them; results with uncertainties."""

from .epoch import Progress, epoch
from .fit import EpochResult, evaluate, fit, predict
from .result import Result
from .stopping import EarlyStopping, StopTraining
from .trainer import Trainer

__all__ = [
    "EarlyStopping",
    "EpochResult",
    "Progress",
    "Result",
    "StopTraining",
    "Trainer",
    "epoch",
    "evaluate",
    "fit",
    "predict",
]
