"""Modules: parameters with dotted names and the graph that they build."""

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
