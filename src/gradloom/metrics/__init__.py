"""Metrics of gl.fit and gl.evaluate, by name or with options: metrics=["f1", gl.metrics.TopK(k=3)]."""

from __future__ import annotations

from typing import Any

from ..base.habits import missing_name
from .counts import F1, BinaryAccuracy, FBeta, IoU, Precision, Recall, confusion_matrix
from .labels import Perplexity, TopK
from .numbers import MAE, MAPE, R2, RMSE
from .ranking import ECE, ROCAUC, AveragePrecision
from .score import Score, named

__all__ = [
    "ECE",
    "F1",
    "MAE",
    "MAPE",
    "R2",
    "RMSE",
    "ROCAUC",
    "AveragePrecision",
    "BinaryAccuracy",
    "FBeta",
    "IoU",
    "Perplexity",
    "Precision",
    "Recall",
    "Score",
    "TopK",
    "confusion_matrix",
    "named",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
