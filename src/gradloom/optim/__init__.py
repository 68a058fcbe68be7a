"""Optimisers: they only build update nodes and declare their settings. Schedules of settings; clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name
from . import schedules
from .clip import clip_grad_norm, clip_grad_value, clip_weight
from .matrix import Adafactor, Muon
from .optimizer import SGD, Adam, AdamW, Lion, Optimizer, RMSprop
from .rule import Schedule, UpdateInputs
from .state import OptimizerState

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "OptimizerState",
    "RMSprop",
    "Schedule",
    "UpdateInputs",
    "clip_grad_norm",
    "clip_grad_value",
    "clip_weight",
    "schedules",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
