"""Layers of torch.nn as layers of gl.nn: a line for each class in LAYERS. No line here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activations import ELU, GLU, Hardsigmoid, Hardswish, Identity, LeakyReLU, LogSoftmax, Mish, PReLU, Softplus
from .attention import MultiheadAttention
from .convs import Conv1d, ConvTranspose1d, ConvTranspose2d
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
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    Unflatten,
)
from .module import Module
from .recurrent import GRU, LSTM, RNN
from .torch_settings import Unsupported, altered, need
from .transformer import TransformerDecoderLayer, TransformerEncoderLayer


def _linear(m: Any) -> Module:
    return Linear(m.in_features, m.out_features, bias=m.bias is not None)


def _conv(kind: Any, rank: int) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        how = {name: getattr(m, name) for name in ("stride", "dilation")}
        how["padding"] = 0 if m.padding == "valid" else m.padding
        if m.transposed:
            how["output_padding"] = m.output_padding
        else:
            how["padding_mode"] = m.padding_mode
        if rank == 1:
            how = {name: value if isinstance(value, (str, int)) else value[0] for name, value in how.items()}
        kernel = m.kernel_size[0] if rank == 1 else m.kernel_size
        made: Module = kind(m.in_channels, m.out_channels, kernel, **how, groups=m.groups, bias=m.bias is not None)
        return made

    return make


def _batch_norm(m: Any) -> Module:
    need(affine=(m.affine, True), track_running_stats=(m.track_running_stats, True))
    if m.momentum is None:
        raise Unsupported("momentum=None (a cumulative average); need a number")
    return BatchNorm(m.num_features, m.eps, m.momentum)


def _instance_norm(m: Any) -> Module:
    need(track_running_stats=(m.track_running_stats, False))
    return InstanceNorm(m.num_features, m.eps, m.affine)


def _layer_norm(m: Any) -> Module:
    need(elementwise_affine=(m.elementwise_affine, True), bias=(m.bias is not None, True))
    _one_axis(m)
    return LayerNorm(m.normalized_shape[0], m.eps)


def _one_axis(m: Any) -> None:
    if len(m.normalized_shape) != 1:
        raise Unsupported(f"normalized_shape={tuple(m.normalized_shape)}; need one axis")


def _group_norm(m: Any) -> Module:
    need(bias=(not m.affine or m.bias is not None, True))
    return GroupNorm(m.num_groups, m.num_channels, m.eps, m.affine)


def _rms_norm(m: Any) -> Module:
    need(elementwise_affine=(m.elementwise_affine, True))
    _one_axis(m)
    return RMSNorm(m.normalized_shape[0], float(np.finfo(np.float32).eps) if m.eps is None else m.eps)


def _max_pool(m: Any) -> Module:
    if np.any(np.asarray(m.dilation) != 1):
        raise Unsupported(f"dilation={m.dilation}; need dilation=1")
    need(return_indices=(m.return_indices, False), ceil_mode=(m.ceil_mode, False))
    return MaxPool2d(m.kernel_size, m.stride, m.padding)


def _avg_pool(m: Any) -> Module:
    has_padding = bool(np.any(np.asarray(m.padding)))
    need(ceil_mode=(m.ceil_mode, False), divisor_override=(m.divisor_override, None))
    need(count_include_pad=(m.count_include_pad or not has_padding, True))
    return AvgPool2d(m.kernel_size, m.stride, m.padding)


def _adaptive(kind: Any, rank: int = 2) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        size = m.output_size
        if size is None or (not isinstance(size, int) and None in size):
            raise Unsupported(f"output_size={size}; need whole numbers")
        need(return_indices=(getattr(m, "return_indices", False), False))
        made: Module = kind(size if rank == 2 or isinstance(size, int) else size[0])
        return made

    return make


def _upsample(m: Any) -> Module:
    if m.mode not in ("nearest", "bilinear"):
        raise Unsupported(f"mode={m.mode!r}; need 'nearest' or 'bilinear'")
    if m.recompute_scale_factor:
        raise Unsupported("recompute_scale_factor=True; need None")
    return Upsample(m.size, m.scale_factor if m.size is None else None, m.mode, bool(m.align_corners))


def _embedding(m: Any) -> Module:
    need(padding_idx=(m.padding_idx, None), max_norm=(m.max_norm, None))
    need(scale_grad_by_freq=(m.scale_grad_by_freq, False))
    return Embedding(m.num_embeddings, m.embedding_dim)


def _flatten(m: Any) -> Module:
    need(start_dim=(m.start_dim, 1), end_dim=(m.end_dim, -1))
    return Flatten()


def _softplus(m: Any) -> Module:
    if m.threshold < 20:  # from 20 on torch's line x differs by less than 3e-9
        raise Unsupported(f"threshold={m.threshold!r:.40}; need threshold=20 or more")
    return Softplus(m.beta)


def _attention(m: Any) -> MultiheadAttention:
    need(batch_first=(m.batch_first, True), add_zero_attn=(m.add_zero_attn, False))
    need(kdim=(m.kdim, m.embed_dim), vdim=(m.vdim, m.embed_dim), add_bias_kv=(m.bias_k is not None, False))
    return MultiheadAttention(m.embed_dim, m.num_heads, bias=m.in_proj_bias is not None, dropout=m.dropout)


def _recurrent(kind: Any) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        dropout = m.dropout if m.num_layers > 1 else 0.0  # between layers
        how = {name: getattr(m, name) for name in ("num_layers", "bias", "batch_first", "bidirectional")}
        if kind is RNN:
            how["nonlinearity"] = m.nonlinearity
        if kind is LSTM:
            how["proj_size"] = m.proj_size
        return kind(m.input_size, m.hidden_size, dropout=dropout, **how)

    return make


_FUNCTIONS = {"relu": "relu", "gelu": "gelu", "ReLU": "relu", "GELU": "gelu", "silu": "silu", "SiLU": "silu",
              "tanh": "tanh", "Tanh": "tanh", "sigmoid": "sigmoid", "Sigmoid": "sigmoid"}  # fmt: skip


_PARTS = {"linear": "Linear", "norm": "LayerNorm", "dropout": "Dropout", "self_attn": "MultiheadAttention",
          "multihead_attn": "MultiheadAttention"}  # fmt: skip


def _check_parts(m: Any) -> list[Any]:
    """Unsupported for a part of a transformer layer that its class did not make, or with other settings than the
    others; the attentions."""
    attentions = []
    for name, one in m.named_children():
        want = _PARTS.get(name.rstrip("123"))
        if want is None:  # the activation
            changed = one._forward_hooks or one._forward_pre_hooks or "forward" in vars(one)
            need(**{f"{name} changed": (bool(changed), False)})
            continue
        if type(one).__name__ != want:
            raise Unsupported(f"{name}={type(one).__name__}; need {want}")
        for inner in one.modules():
            fault = altered(inner, "Linear" if inner is not one else want)
            if fault:
                raise Unsupported(f"{name} with {fault}")
        need(**{f"{name}.training": (one.training, m.training)})
        if want == "MultiheadAttention":
            _attention(one)
            attentions.append(one)
            need(**{f"{name}.num_heads": (one.num_heads, m.self_attn.num_heads)})
            need(**{f"{name}.bias": (one.in_proj_bias is not None, True)})
        elif want == "LayerNorm":
            _layer_norm(one)
            need(**{f"{name}.eps": (one.eps, m.norm1.eps)})
        elif want == "Linear":
            need(**{f"{name}.bias": (one.bias is not None, True)})
    return attentions


def _activation(m: Any) -> str:
    function = m.activation
    kind = function if hasattr(function, "__name__") else type(function)
    name, home = kind.__name__, kind.__module__ or "torch"
    is_known = name in _FUNCTIONS and home.partition(".")[0] == "torch"
    if not is_known or getattr(function, "approximate", "none") != "none":
        raise Unsupported(
            f"activation={name:.40}; must be one of {', '.join(sorted(set(_FUNCTIONS.values())))} of torch"
        )
    return _FUNCTIONS[name]


def _transformer(kind: Any) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        attentions = _check_parts(m)
        name = _activation(m)
        dropouts = [one.p for part, one in m.named_children() if part.startswith("dropout")]
        rates = {*dropouts, *(one.dropout for one in attentions)}
        if len(rates) > 1:
            raise Unsupported(f"dropout rates {sorted(rates)}; need one rate")
        width, hidden = m.linear1.in_features, m.linear1.out_features
        return kind(width, m.self_attn.num_heads, hidden, m.dropout.p, name, m.norm1.eps, m.norm_first)

    return make


# Class of torch.nn -> our layer of the same settings; Unsupported for settings that ours does not have
LAYERS: dict[str, Callable[[Any], Module]] = {
    "Linear": _linear,
    "Conv1d": _conv(Conv1d, 1),
    "Conv2d": _conv(Conv2d, 2),
    "ConvTranspose1d": _conv(ConvTranspose1d, 1),
    "ConvTranspose2d": _conv(ConvTranspose2d, 2),
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "InstanceNorm1d": _instance_norm,
    "InstanceNorm2d": _instance_norm,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    "GroupNorm": _group_norm,
    "MaxPool2d": _max_pool,
    "AvgPool2d": _avg_pool,
    "AdaptiveAvgPool1d": _adaptive(AdaptiveAvgPool1d, 1),
    "AdaptiveMaxPool1d": _adaptive(AdaptiveMaxPool1d, 1),
    "AdaptiveAvgPool2d": _adaptive(AdaptiveAvgPool2d),
    "AdaptiveMaxPool2d": _adaptive(AdaptiveMaxPool2d),
    "Upsample": _upsample,
    "Embedding": _embedding,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _transformer(TransformerEncoderLayer),
    "TransformerDecoderLayer": _transformer(TransformerDecoderLayer),
    "RNN": _recurrent(RNN),
    "LSTM": _recurrent(LSTM),
    "GRU": _recurrent(GRU),
    "Dropout": lambda m: Dropout(m.p),
    "Dropout1d": lambda m: Dropout2d(m.p),
    "Dropout2d": lambda m: Dropout2d(m.p),
    "Flatten": _flatten,
    "Unflatten": lambda m: Unflatten(m.dim, tuple(m.unflattened_size)),
    "Identity": lambda m: Identity(),
    "ReLU": lambda m: ReLU(),
    "GELU": lambda m: GELU(m.approximate),
    "SiLU": lambda m: SiLU(),
    "Sigmoid": lambda m: Sigmoid(),
    "Tanh": lambda m: Tanh(),
    "Mish": lambda m: Mish(),
    "Hardswish": lambda m: Hardswish(),
    "Hardsigmoid": lambda m: Hardsigmoid(),
    "LeakyReLU": lambda m: LeakyReLU(m.negative_slope),
    "PReLU": lambda m: PReLU(m.num_parameters, m.init),
    "ELU": lambda m: ELU(m.alpha),
    "Softplus": _softplus,
    "GLU": lambda m: GLU(m.dim),
    "Softmax": lambda m: Softmax(_axis(m)),
    "LogSoftmax": lambda m: LogSoftmax(_axis(m)),
}


def _axis(m: Any) -> int:
    if m.dim is None:
        raise Unsupported("dim=None; need an axis")
    return int(m.dim)
