"""Networks of torch.nn as networks of gl.nn, and state dicts of both. No line here imports torch.

A layer is converted by the entry of its class in LAYERS, which makes ours and names its arrays; `_Converter` walks the
containers, and keeps shared layers, shared arrays and modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.arguments import listed, what_is
from ..base.dlpack import array_of
from ..base.errors import DTypeError, GraphError, SettingError, ShapeError
from ..base.habits import hinted
from ..graph.leaves import Parameter
from ..graph.stored import replace
from .activations import ELU, GLU, Hardsigmoid, Hardswish, Identity, LeakyReLU, LogSoftmax, Mish, PReLU, Softplus
from .attention import MultiheadAttention
from .convs import Conv1d, ConvTranspose1d, ConvTranspose2d
from .images import AdaptiveAvgPool2d, AdaptiveMaxPool2d, Dropout2d, GroupNorm, InstanceNorm, Upsample
from .layers import (
    COUNTER,
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
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
    Unflatten,
)
from .module import Module
from .recurrent import GRU, LSTM, RNN
from .torch_names import packed_names
from .transformer import TransformerDecoderLayer, TransformerEncoderLayer


class _Unsupported(Exception):
    """A setting of a layer that ours does not have."""


def _need(**settings: tuple[Any, Any]) -> None:
    """_Unsupported for the first setting that differs: name -> (its value, the one that ours has)."""
    for name, (value, need) in settings.items():
        if value is not need and value != need:
            raise _Unsupported(f"{name}={value!r:.40}; need {name}={need!r}")


def _linear(m: Any) -> Module:
    return Linear(m.in_features, m.out_features, bias=m.bias is not None)


def _conv(kind: Any, rank: int) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        _need(padding_mode=(m.padding_mode, "zeros"))
        how = {name: getattr(m, name) for name in ("stride", "dilation")}
        how["padding"] = 0 if m.padding == "valid" else m.padding
        if m.transposed:
            how["output_padding"] = m.output_padding
        if rank == 1:
            how = {name: value if isinstance(value, (str, int)) else value[0] for name, value in how.items()}
        kernel = m.kernel_size[0] if rank == 1 else m.kernel_size
        made: Module = kind(m.in_channels, m.out_channels, kernel, **how, groups=m.groups, bias=m.bias is not None)
        return made

    return make


def _batch_norm(m: Any) -> Module:
    _need(affine=(m.affine, True), track_running_stats=(m.track_running_stats, True))
    if m.momentum is None:
        raise _Unsupported("momentum=None (a cumulative average); need a number")
    return BatchNorm(m.num_features, m.eps, m.momentum)


def _instance_norm(m: Any) -> Module:
    _need(track_running_stats=(m.track_running_stats, False))
    return InstanceNorm(m.num_features, m.eps, m.affine)


def _layer_norm(m: Any) -> Module:
    _need(elementwise_affine=(m.elementwise_affine, True), bias=(m.bias is not None, True))
    _need(normalized_shape=(len(m.normalized_shape), 1))
    return LayerNorm(m.normalized_shape[0], m.eps)


def _rms_norm(m: Any) -> Module:
    _need(elementwise_affine=(m.elementwise_affine, True), normalized_shape=(len(m.normalized_shape), 1))
    return RMSNorm(m.normalized_shape[0], float(np.finfo(np.float32).eps) if m.eps is None else m.eps)


def _max_pool(m: Any) -> Module:
    _need(
        dilation=(_all_one(m.dilation), True), return_indices=(m.return_indices, False), ceil_mode=(m.ceil_mode, False)
    )
    return MaxPool2d(m.kernel_size, m.stride, m.padding)


def _avg_pool(m: Any) -> Module:
    has_padding = bool(np.any(np.asarray(m.padding)))
    _need(ceil_mode=(m.ceil_mode, False), divisor_override=(m.divisor_override, None))
    _need(count_include_pad=(m.count_include_pad or not has_padding, True))
    return AvgPool2d(m.kernel_size, m.stride, m.padding)


def _all_one(value: Any) -> bool:
    return bool(np.all(np.asarray(value) == 1))


def _adaptive(kind: Any) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        size = m.output_size
        if size is None or (not isinstance(size, int) and None in size):
            raise _Unsupported(f"output_size={size}; need whole numbers")
        _need(return_indices=(getattr(m, "return_indices", False), False))
        return kind(size)

    return make


def _upsample(m: Any) -> Module:
    if m.mode not in ("nearest", "bilinear"):
        raise _Unsupported(f"mode={m.mode!r}; need 'nearest' or 'bilinear'")
    if m.recompute_scale_factor:
        raise _Unsupported("recompute_scale_factor=True; need None")
    return Upsample(m.size, m.scale_factor if m.size is None else None, m.mode, bool(m.align_corners))


def _embedding(m: Any) -> Module:
    _need(padding_idx=(m.padding_idx, None), max_norm=(m.max_norm, None))
    _need(scale_grad_by_freq=(m.scale_grad_by_freq, False))
    return Embedding(m.num_embeddings, m.embedding_dim)


def _flatten(m: Any) -> Module:
    _need(start_dim=(m.start_dim, 1), end_dim=(m.end_dim, -1))
    return Flatten()


def _attention(m: Any) -> MultiheadAttention:
    _need(batch_first=(m.batch_first, True), add_zero_attn=(m.add_zero_attn, False))
    _need(kdim=(m.kdim, m.embed_dim), vdim=(m.vdim, m.embed_dim), add_bias_kv=(m.bias_k is not None, False))
    return MultiheadAttention(m.embed_dim, m.num_heads, bias=m.in_proj_bias is not None, dropout=m.dropout)


def _recurrent(kind: Any) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        _need(proj_size=(m.proj_size, 0))
        dropout = m.dropout if m.num_layers > 1 else 0.0  # between layers
        how = {name: getattr(m, name) for name in ("num_layers", "bias", "batch_first", "bidirectional")}
        if kind is RNN:
            how["nonlinearity"] = m.nonlinearity
        return kind(m.input_size, m.hidden_size, dropout=dropout, **how)

    return make


_FUNCTIONS = {"relu": "relu", "gelu": "gelu", "ReLU": "relu", "GELU": "gelu", "silu": "silu", "SiLU": "silu",
              "tanh": "tanh", "Tanh": "tanh", "sigmoid": "sigmoid", "Sigmoid": "sigmoid"}  # fmt: skip


def _transformer(kind: Any) -> Callable[[Any], Module]:
    def make(m: Any) -> Module:
        _attention(m.self_attn)
        _need(bias=(m.linear1.bias is not None, True), eps=(m.norm1.eps, m.norm2.eps))
        function = m.activation
        name = getattr(function, "__name__", type(function).__name__)
        if name not in _FUNCTIONS or getattr(function, "approximate", "none") != "none":
            raise _Unsupported(f"activation={name}; must be one of {', '.join(sorted(set(_FUNCTIONS.values())))}")
        rates = {m.dropout.p, m.dropout1.p, m.dropout2.p, m.self_attn.dropout}
        if len(rates) > 1:
            raise _Unsupported(f"dropout rates {sorted(rates)}; need one rate")
        width, hidden = m.linear1.in_features, m.linear1.out_features
        return kind(width, m.self_attn.num_heads, hidden, m.dropout.p, _FUNCTIONS[name], m.norm1.eps, m.norm_first)

    return make


# Class of torch.nn -> our layer of the same settings; _Unsupported for settings that ours does not have
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
    "GroupNorm": lambda m: GroupNorm(m.num_groups, m.num_channels, m.eps, m.affine),
    "MaxPool2d": _max_pool,
    "AvgPool2d": _avg_pool,
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
    "Softplus": lambda m: Softplus(m.beta),
    "GLU": lambda m: GLU(m.dim),
    "Softmax": lambda m: Softmax(_axis(m)),
    "LogSoftmax": lambda m: LogSoftmax(_axis(m)),
}


def _axis(m: Any) -> int:
    if m.dim is None:
        raise _Unsupported("dim=None; need an axis")
    return int(m.dim)


class _Converter:
    """Our modules for those of a tree of torch.nn. arrays: name in torch -> (our parameters whose arrays, one after
    the other, are its contents; the tensor)."""

    def __init__(self) -> None:
        self.made: dict[int, Module] = {}  # by the id of the module in torch
        self.first: dict[int, Parameter] = {}  # by the id of the tensor in torch
        self.arrays: dict[str, tuple[list[Parameter], Any]] = {}

    def module(self, theirs: Any, path: str) -> Module:
        """Our module for one at a path; the same one again where it is shared."""
        if id(theirs) not in self.made:
            self.made[id(theirs)] = self._convert(theirs, path)
        made = self.made[id(theirs)]
        self._name(theirs, made, path)
        return made

    def _convert(self, theirs: Any, path: str) -> Module:
        kind = _known_class(theirs)
        what = f"{path or 'the module'} ({type(theirs).__name__})"
        if kind is None and type(theirs).__module__.startswith("torch.nn.modules."):
            raise GraphError(
                f"from_torch: {what} is not supported: gl.nn has no such layer; use another, or write a gl.nn.Module"
            )
        if kind is None:
            raise GraphError(
                f"from_torch: {what} has a forward of its own, whose steps are not known; write a gl.nn.Module with "
                "this forward and convert its layers one by one"
            )
        hooks = ("_forward_hooks", "_forward_pre_hooks", "parametrizations")
        if any(getattr(theirs, name, None) for name in hooks):
            raise GraphError(f"from_torch: {what} has hooks or parametrizations; need them removed")
        if kind == "Sequential":
            made: Module = Sequential(*(self.module(one, _below(path, name)) for name, one in _children(theirs)))
        elif kind == "TransformerEncoder":
            norm = [] if theirs.norm is None else [self.module(theirs.norm, _below(path, "norm"))]
            layers = theirs.layers.named_children()
            made = Sequential(*(self.module(one, _below(path, f"layers.{name}")) for name, one in layers), *norm)
        else:
            try:
                made = LAYERS[kind](theirs)
            except _Unsupported as fault:
                raise GraphError(f"from_torch: {what} has {fault}, which gl.nn's layer requires") from None
            made.train(theirs.training)
        made.training = theirs.training
        return made

    def _name(self, theirs: Any, made: Module, path: str) -> None:
        """Record the arrays of a layer of ours under their names in torch; join those that torch shares."""
        if isinstance(made, Sequential):
            return
        mine = {name: p for name, p, _ in made.named_stored()}
        for name, tensor in (*theirs.named_parameters(), *theirs.named_buffers()):
            if name.rpartition(".")[2] == COUNTER:
                continue
            names = packed_names(name, made)
            parts = [mine[one] for one in names]
            shared = self.first.get(id(tensor))
            if shared is not None and len(parts) == 1 and shared is not parts[0]:
                owner = made
                *above, last = names[0].split(".")
                for one in above:
                    owner = getattr(owner, one)
                setattr(owner, last, shared)
                parts = [shared]
            elif len(parts) == 1:
                self.first[id(tensor)] = parts[0]
            self.arrays[_below(path, name)] = parts, tensor


def _known_class(theirs: Any) -> str | None:
    """The class of torch.nn whose forward this module has; None for a forward that is not known."""
    for kind in type(theirs).__mro__:
        name = str(kind.__name__)
        if kind.__module__.startswith("torch.nn.modules.") and (name in LAYERS or name in _CONTAINERS):
            return name if getattr(kind, "forward", None) is type(theirs).forward else None
    return None


_CONTAINERS = ("Sequential", "TransformerEncoder")


def _children(theirs: Any) -> Iterator[tuple[str, Any]]:
    """All places of a Sequential, also of a module that it holds twice."""
    named = theirs.named_modules(remove_duplicate=False)
    return ((name, one) for name, one in named if name and "." not in name)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _split(tensor: Any, parts: Sequence[Parameter], name: str) -> dict[Any, np.ndarray]:
    """The contents of our arrays: a tensor, cut along its first axis where several of ours are packed in it."""
    array = array_of(f"from_torch: {name}", tensor)
    if array.dtype == np.float64:
        raise DTypeError(f"from_torch: {name} is float64; need float32 or halves: module.float()")
    pieces = np.split(array, np.cumsum([p.shape[0] for p in parts])[:-1]) if len(parts) > 1 else [array]
    return {p.stored: piece for p, piece in zip(parts, pieces, strict=True)}


def _need_module(place: str, module: Any) -> None:
    names = {kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    if "torch" not in names or not hasattr(module, "named_parameters"):
        raise SettingError(f"{place}: got {what_is(module)}; need a torch.nn.Module")


@hinted
def from_torch(module: Any) -> Module:
    """The network of gl.nn that computes what a network of torch.nn computes, with its weights (copied as f32).

    module: layers of torch.nn that gl.nn has, in Sequential and TransformerEncoder at any depth. Running statistics,
    modes (train, eval), `requires_grad` and shared layers and weights are kept. Attention and transformer layers must
    have batch_first=True. A TransformerEncoder becomes a Sequential.

    Raises GraphError, naming the module, for a class with a forward of its own and for settings that gl.nn does not
    have; DTypeError for float64 weights; SettingError for an object that is no torch.nn.Module.
    """
    _need_module("from_torch", module)
    converter = _Converter()
    net = converter.module(module, "")
    contents: dict[Any, np.ndarray] = {}
    buffers = {id(tensor) for tensor in module.buffers()}
    for name, (parts, tensor) in converter.arrays.items():
        contents |= _split(tensor, parts, name)
        if id(tensor) not in buffers:
            for p in parts:
                p.trainable = bool(tensor.requires_grad)
    replace(contents)
    for name, p, _ in net.named_stored():
        p.stored.name = p.node.name = name
    return net


@hinted
def torch_state_dict(net: Module, module: Any) -> dict[str, Any]:
    """The weights of a network as a state dict that `module.load_state_dict` takes: name in torch -> torch.Tensor.

    net: a network of gl.nn. module: the torch.nn.Module that will load them: one that `from_torch` can convert, whose
    network has the structure of `net`, or any other whose attributes have the names of those of `net`. The numbers of
    batches that torch's batch norms count are those of `module`.

    Raises GraphError that lists the arrays that are missing and those that `module` does not have, ShapeError for
    arrays of other shapes, SettingError for other types of arguments.
    """
    if not isinstance(net, Module):
        raise SettingError(f"torch_state_dict: got {what_is(net)}; need a gl.nn.Module")
    _need_module("torch_state_dict", module)
    theirs = dict(module.state_dict())
    names = _names_in(net, module)
    state = net.state_dict()
    arrays: dict[str, np.ndarray] = {}
    for name, ours in names.items():
        if all(one in state for one in ours):
            arrays[name] = np.concatenate([state[one] for one in ours]) if len(ours) > 1 else state[ours[0]]
    counters = {name for name in theirs if name.rpartition(".")[2] == COUNTER}
    used = {one for ours in names.values() for one in ours}
    missing = [name for name in theirs if name not in arrays and name not in counters]
    extra = [name for name in arrays if name not in theirs] + sorted(set(state) - used)
    if missing or extra:
        faults = [f"missing {listed(missing)}"] * bool(missing) + [f"unknown {listed(extra)}"] * bool(extra)
        raise GraphError(f"torch_state_dict: {'; '.join(faults)}; need the {len(theirs)} arrays of the torch module")
    wrong = [f"{n} has shape {list(a.shape)}; need {list(theirs[n].shape)}" for n, a in arrays.items()
             if a.shape != tuple(theirs[n].shape)]  # fmt: skip
    if wrong:
        raise ShapeError(f"torch_state_dict: {listed(wrong, '; ')}")
    new = {name: theirs[name].new_tensor(a.astype(np.float32)) for name, a in arrays.items()}
    return {name: new.get(name, theirs[name]) for name in theirs}


def _names_in(net: Module, module: Any) -> Mapping[str, list[str]]:
    """Name in torch -> names of ours, which are packed there one after the other."""
    try:
        converter = _Converter()
        twin = converter.module(module, "")
    except GraphError:  # a forward of the user's own: the names are the same
        return by_own_structure(net)
    names = {p.stored: name for name, p, _ in twin.named_stored()}
    return {name: [names[p.stored] for p in parts] for name, (parts, _) in converter.arrays.items()}


def by_own_structure(net: Module) -> dict[str, list[str]]:
    """Name in torch -> our names, where all attributes are called alike: attention alone packs its projections."""
    names: dict[str, list[str]] = {}
    packed: set[str] = set()
    todo = [("", net)]
    for path, module in todo:
        todo += [(_below(path, name), one) for name, one in module.children()]
        if isinstance(module, MultiheadAttention):
            kinds = ["weight"] + ["bias"] * (module.out.bias is not None)
            for theirs in [f"in_proj_{kind}" for kind in kinds] + [f"out_proj.{kind}" for kind in kinds]:
                names[_below(path, theirs)] = [_below(path, one) for one in packed_names(theirs, module)]
                packed |= set(names[_below(path, theirs)])
    return {name: [name] for name, _, _ in net.named_stored() if name not in packed} | names
