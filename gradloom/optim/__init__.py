"""Optimisers: they only build update nodes and say what their settings are."""

from .optimizer import SGD, Adam, AdamW, Optimizer, Schedule
from .state import OptimizerState

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "OptimizerState", "Schedule"]
