"""Modules: parameters with dotted names and the graph that they build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name
from .activations import ELU, GLU, Hardsigmoid, Hardswish, Identity, LeakyReLU, LogSoftmax, Mish, PReLU, Softplus
from .attention import MultiheadAttention
from .containers import ModuleDict, ModuleList, Residual
from .convs import Conv1d, ConvTranspose1d, ConvTranspose2d
from .ensemble import Ensemble, MemberLinear, Periodic
from .images import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    Dropout2d,
    GroupNorm,
    InstanceNorm,
    Upsample,
)
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
    Permute,
    ReLU,
    RMSNorm,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Standardize,
    Tanh,
    Unflatten,
)
from .module import Module
from .recurrent import GRU, LSTM, RNN
from .stacked import stacked
from .transformer import PositionalEncoding, TransformerDecoderLayer, TransformerEncoderLayer

if TYPE_CHECKING:
    from .torch_modules import from_torch, torch_state_dict

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Dropout2d",
    "Embedding",
    "Ensemble",
    "Flatten",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "HiddenDropout",
    "Identity",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool2d",
    "MemberLinear",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "PReLU",
    "Periodic",
    "Permute",
    "PositionalEncoding",
    "RMSNorm",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Standardize",
    "Tanh",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "Unflatten",
    "Upsample",
    "from_torch",
    "stacked",
    "torch_state_dict",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in ("from_torch", "torch_state_dict"):
            from . import torch_modules as module

            globals().update(from_torch=module.from_torch, torch_state_dict=module.torch_state_dict)
            return globals()[name]
        raise missing_name(__name__, name)
