"""Optimisers: they only build update nodes and say what their settings are."""

from .optimizer import SGD, Adam, AdamW, Optimizer, Schedule

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "Schedule"]
