"""Modules: parameters with dotted names and the graph that they build."""

from .attention import MultiheadAttention
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

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "HiddenDropout",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "MultiheadAttention",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Standardize",
    "Tanh",
]
