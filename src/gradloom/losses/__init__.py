"""Losses of gl.fit, by name or with options: loss="huber", loss=gl.losses.Huber(delta=2.0)."""

from __future__ import annotations

from typing import Any

from ..base.habits import missing_name
from .classes import BCE, KL, NLL, CrossEntropy, Focal, Hinge
from .loss import Loss, named
from .numbers import L1, MSE, GaussianNLL, Huber, Mean, PoissonNLL, Quantile, SmoothL1, Sum
from .vectors import Cosine, Triplet

__all__ = [
    "BCE",
    "KL",
    "L1",
    "MSE",
    "NLL",
    "Cosine",
    "CrossEntropy",
    "Focal",
    "GaussianNLL",
    "Hinge",
    "Huber",
    "Loss",
    "Mean",
    "PoissonNLL",
    "Quantile",
    "SmoothL1",
    "Sum",
    "Triplet",
    "named",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
