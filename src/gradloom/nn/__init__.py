"""Modules: parameters with dotted names and the graph that they build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name
from .attention import MultiheadAttention
from .ensemble import Ensemble, MemberLinear, Periodic
from .layers import (
    GELU,
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    HiddenDropout,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
    RMSNorm,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Standardize,
    Tanh,
)
from .module import Module
from .stacked import stacked

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Ensemble",
    "Flatten",
    "HiddenDropout",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "MemberLinear",
    "Module",
    "MultiheadAttention",
    "Periodic",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Standardize",
    "Tanh",
    "stacked",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
