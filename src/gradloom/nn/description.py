"""Models of our layers as plain data: constructors and their arguments, without code, and back.

    {"net": {"layer": "Sequential", "layers": [{"layer": "Linear", "n_in": 4, ...}, {"same": "0"}]},
     "tied": [{"at": "2.weight", "to": "0.weight"}], "trainable": [{"name": "0.bias", "value": false}]}

"same": a module that stands at an earlier place, too. "tied": a parameter that an earlier layer holds, too.
"trainable": differences from the constructor. "eval": a layer that is not in training mode. An argument that is
None is left out. A description is only returned if a model built from it has the same layers, arguments, modes and
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..base.described import Described
from ..base.errors import DataError, GradloomError, GraphError, one_line
from ..graph.leaves import Parameter
from ..graph.value import describe
from ..ops.resize import MODES
from .activations import ELU, GLU, Hardsigmoid, Hardswish, Identity, LeakyReLU, LogSoftmax, Mish, PReLU, Softplus
from .attention import MultiheadAttention
from .containers import ModuleDict, ModuleList, Residual
from .convs import Conv1d, ConvTranspose1d, ConvTranspose2d
from .ensemble import AVERAGES, Ensemble, MemberLinear, Periodic
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
    ACTIVATIONS,
    APPROXIMATIONS,
    GELU,
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    Held,
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
from .padded import PADDING_MODES
from .recurrent import GRU, LSTM, NONLINEARITIES, RNN
from .shown import own_parameters
from .transformer import PositionalEncoding, TransformerDecoderLayer, TransformerEncoderLayer

MOST_LAYERS, DEEPEST = 1 << 12, 50

Shapes = Mapping[str, tuple[int, ...]]  # of arrays by their names


def _pair(least: int) -> Callable[[Described, str], tuple[int, int]]:
    def read(described: Described, key: str) -> tuple[int, int]:
        pair = described.wholes(key, least)
        if len(pair) != 2:
            raise DataError(f"{key} has {len(pair)} numbers; need 2")
        return pair[0], pair[1]

    return read


def _padding(of_images: bool) -> Callable[[Described, str], Any]:
    def read(described: Described, key: str) -> Any:
        if described.is_text(key):
            return described.text(key, ("same",))
        return _pair(0)(described, key) if of_images else described.whole(key, 0)

    return read


def _size(described: Described, key: str) -> int:
    return described.whole(key, 1)


def _whole(described: Described, key: str) -> int:
    return described.whole(key, -(1 << 31))


def _count(described: Described, key: str) -> int:
    return described.whole(key, 0)


def _activation(described: Described, key: str) -> str:
    return described.text(key, tuple(ACTIVATIONS))


def _padding_mode(described: Described, key: str) -> str:
    return described.text(key, PADDING_MODES)


def _conv(extent: Callable[[Described, str], Any], **padding: Callable[[Described, str], Any]) -> dict[str, Any]:
    """The arguments of a convolution: kernel, stride and dilation are read as `extent`."""
    return {
        "channels_in": _size, "channels_out": _size, "kernel": extent, "stride": extent, **padding, "dilation": extent,
        "activation": _activation, "bias": _flag, "groups": _size,
    }  # fmt: skip


_number, _flag = Described.number, Described.flag
_PAIRS = ("kernel", "stride", "padding", "output_padding", "dilation", "size", "output_size")
_OF_ROWS = (Conv1d, ConvTranspose1d, AdaptiveAvgPool1d, AdaptiveMaxPool1d)
_POOL = {"kernel": _pair(1), "stride": _pair(1), "padding": _pair(0)}

_RECURRENT: dict[str, Callable[[Described, str], Any]] = {
    "input_size": _size, "hidden_size": _size, "num_layers": _size, "bias": _flag, "batch_first": _flag,
    "dropout": _number, "bidirectional": _flag,
}  # fmt: skip
_TRANSFORMER: dict[str, Callable[[Described, str], Any]] = {
    "features": _size, "heads": _size, "hidden": _size, "dropout": _number, "activation": _activation, "eps": _number,
    "norm_first": _flag, "causal": _flag,
}  # fmt: skip

# Layer -> its arguments, in the constructor's order, with the reader of each from a description
_LAYERS: dict[type[Module], dict[str, Callable[[Described, str], Any]]] = {
    Linear: {"n_in": _size, "n_out": _size, "activation": _activation, "bias": _flag},
    Conv2d: _conv(_pair(1), padding=_padding(of_images=True)) | {"padding_mode": _padding_mode},
    Conv1d: _conv(_size, padding=_padding(of_images=False)) | {"padding_mode": _padding_mode},
    ConvTranspose2d: _conv(_pair(1), padding=_pair(0), output_padding=_pair(0)),
    ConvTranspose1d: _conv(_size, padding=_count, output_padding=_count),
    MaxPool2d: _POOL,
    AvgPool2d: _POOL,
    BatchNorm: {"channels": _size, "eps": _number, "momentum": _number},
    LayerNorm: {"features": _size, "eps": _number},
    RMSNorm: {"features": _size, "eps": _number},
    GroupNorm: {"groups": _size, "channels": _size, "eps": _number, "affine": _flag},
    InstanceNorm: {"channels": _size, "eps": _number, "affine": _flag},
    AdaptiveAvgPool1d: {"output_size": _size},
    AdaptiveMaxPool1d: {"output_size": _size},
    AdaptiveAvgPool2d: {"output_size": _pair(1)},
    AdaptiveMaxPool2d: {"output_size": _pair(1)},
    Upsample: {
        "size": _pair(1), "scale_factor": lambda s, k: s.numbers(k, positive=True),
        "mode": lambda s, k: s.text(k, MODES), "align_corners": _flag,
    },
    Dropout: {"rate": _number},
    Dropout2d: {"rate": _number},
    HiddenDropout: {"rate": _number},
    Unflatten: {"dim": lambda s, k: s.whole(k, 0), "unflattened_size": lambda s, k: s.wholes(k, 1)},
    Permute: {"dims": lambda s, k: s.wholes(k, 0)},
    Embedding: {"count": _size, "features": _size},
    MemberLinear: {
        "members": _size, "n_in": _size, "n_out": _size, "activation": _activation,
    },
    Periodic: {
        "n_in": _size, "columns": lambda s, k: s.wholes(k, 0), "frequencies": _size, "width": _size, "scale": _number,
        "members": _size,
    },
    Ensemble: {
        "average": lambda s, k: s.text(k, AVERAGES), "dropout": _number, "shortcut": _size,
        "heads": lambda s, k: s.wholes(k, 1),
    },
    MultiheadAttention: {
        "features": _size, "heads": _size, "kv_heads": _size, "bias": _flag, "dropout": _number, "causal": _flag,
        "window": _size, "softcap": _number,
    },
    RNN: _RECURRENT | {"nonlinearity": lambda s, k: s.text(k, tuple(NONLINEARITIES))},
    LSTM: _RECURRENT | {"proj_size": _size},
    GRU: _RECURRENT,
    TransformerEncoderLayer: _TRANSFORMER,
    TransformerDecoderLayer: _TRANSFORMER,
    PositionalEncoding: {"features": _size},
    LeakyReLU: {"slope": _number},
    PReLU: {"count": _size, "init": _number},
    ELU: {"alpha": _number},
    Softplus: {"beta": _number},
    GELU: {"approximate": lambda s, k: s.text(k, APPROXIMATIONS)},
    Softmax: {"axis": _whole},
    LogSoftmax: {"axis": _whole},
    GLU: {"axis": _whole},
    **{one: {} for one in (Sequential, ModuleList, ModuleDict, Residual, Standardize, Flatten, Identity)},
    **{one: {} for one in (ReLU, SiLU, Sigmoid, Tanh, Mish, Hardswish, Hardsigmoid)},
}  # fmt: skip
_NAMES = {one.__name__: one for one in _LAYERS}


# ---- from a model to its description ---------------------------------------------------------------------------------


def described(net: Module) -> dict[str, Any]:
    """The description of a model of our layers, as JSON holds it; GraphError, with the reason, for any other."""
    places = _places(net)
    made: dict[str, Any] = {"net": _layer(net, "", places, 0)}
    shapes = {name: p.shape for name, p, _ in net.named_stored()}
    tied = [{"at": at, "to": to} for at, to in _ties(net)]
    made |= {"tied": tied} if tied else {}
    plain = {name: p.trainable for name, p, _ in _built(made, shapes).named_stored()}
    mine = {name: p.trainable for name, p, _ in net.named_stored()}
    changed = [{"name": name, "value": value} for name, value in mine.items() if plain.get(name, value) != value]
    made |= {"trainable": changed} if changed else {}
    facts, again = _facts(net), _facts(_built(made, shapes))
    for place in [*facts, *again]:
        if facts.get(place) != again.get(place):
            what = f"{place or 'the model'} is {facts.get(place, 'not there')}"
            raise GraphError(f"{what}; its constructor makes {again.get(place, 'none')}")
    return made


def _built(made: dict[str, Any], shapes: Shapes) -> Module:
    try:
        return build(Described(made, "the description"), shapes)
    except GradloomError as error:
        raise GraphError(str(error)) from None


def _layer(module: Module, path: str, places: dict[Module, str], depth: int) -> dict[str, Any]:
    what, kind, first = path or "the model", type(module), places[module]
    if first != path:
        if f".{path}.".startswith(f".{first}." if first else "."):
            raise GraphError(f"{what} is {first or 'the model'} again, which contains it")
        return {"same": first}
    if _NAMES.get(kind.__name__) is not kind:
        raise GraphError(f"{what} is a {kind.__name__}, a class of its own and no layer of gradloom")
    if "forward" in vars(module):
        raise GraphError(f"{what} has a forward of its own")
    if depth > DEEPEST or len(places) > MOST_LAYERS:
        raise GraphError(f"{len(places):,} layers, or {depth} inside one another, are too many")
    made = {"layer": kind.__name__, **_arguments(module, what)}
    if isinstance(module, Held):
        inside = ((f"{path}.{name}".lstrip("."), one) for name, one in _inside(module))
        made["layers"] = [_layer(one, place, places, depth + 1) for place, one in inside]
    if isinstance(module, ModuleDict):
        made["names"] = list(module.layers)
    return made | ({} if module.training else {"eval": True})


def _inside(module: Held) -> list[tuple[str, Module]]:
    """(name, module) of those that a container was given."""
    pairs = module.layers.items() if isinstance(module.layers, dict) else enumerate(module.layers)
    return [(str(name), one) for name, one in pairs]


def _arguments(module: Module, what: str) -> dict[str, Any]:
    """The arguments of a layer as JSON holds them: a number for both axes as a pair, None left out."""
    made: dict[str, Any] = {}
    for name, value in module.arguments().items():
        if value is None:
            continue
        if name in _PAIRS and not isinstance(module, _OF_ROWS) and value != "same":
            numbers = [value, value] if isinstance(value, Integral) else list(value)
            if not all(isinstance(n, Integral) and not isinstance(n, bool) for n in numbers):
                raise GraphError(f"{what}: {name} is {one_line(value)}; need whole numbers")
            made[name] = [int(n) for n in numbers]
        elif isinstance(value, list) or name in ("dims", "unflattened_size"):  # of whole numbers
            made[name] = list(value)
        elif name == "scale_factor":
            made[name] = [float(value)] * 2 if isinstance(value, Real) else [float(one) for one in value]
        elif isinstance(value, (bool, np.bool_)):
            made[name] = bool(value)
        elif isinstance(value, (str, Integral)):
            made[name] = str(value) if isinstance(value, str) else int(value)
        elif isinstance(value, Real):
            made[name] = float(value)
        else:
            raise GraphError(f"{what}: {name} is {one_line(value)}; need a number or a text")
    return made


def _places(net: Module) -> dict[Module, str]:
    """Each module of the tree -> the first path to it, the upper ones first."""
    places: dict[Module, str] = {}
    todo = [(net, "")]
    while todo:
        module, path = todo.pop()
        if module not in places:
            places[module] = path
            todo += [(one, f"{path}.{name}".lstrip(".")) for name, one in reversed(list(module.children()))]
    return places


def _held(net: Module) -> dict[str, Parameter]:
    """The path of each attribute that is a parameter -> the parameter."""
    return {
        f"{path}.{name}".lstrip("."): held for one, path in _places(net).items() for name, held in own_parameters(one)
    }


def _ties(net: Module) -> list[tuple[str, str]]:
    """(a further path to a parameter, the first one)."""
    first: dict[object, str] = {}
    return [
        (path, first[held.stored]) for path, held in _held(net).items() if first.setdefault(held.stored, path) != path
    ]


def _facts(net: Module) -> dict[str, str]:
    """Path -> its contents: layers with arguments, modes and children, arrays with types and shapes."""
    facts = {}
    places = _places(net)
    for module, path in places.items():
        children = ", ".join(f"{name}: {places[one]}" for name, one in module.children())
        mode = "training" if module.training else "eval"
        facts[path] = f"{type(module).__name__}({_arguments(module, path)}; {mode}; {children})"
    ties = dict(_ties(net))
    for path, held in _held(net).items():
        facts[path] = ties.get(path, f"{describe(held)}{' trainable' * held.trainable}")
    return facts


# ---- and back --------------------------------------------------------------------------------------------------------


def build(described: Described, shapes: Shapes) -> Module:
    """The model of a description, whose arrays must be those of `shapes`; nothing is drawn or filled yet.

    DataError, ShapeError or SettingError for a description that `described` does not make, before memory is taken.
    """
    ties = {}
    for tie in described.parts("tied") if described.has("tied") else []:
        at = tie.text("at")
        ties[at] = tie.text("to")
        tie.end()
    net = _Builder(shapes, ties).layer(described.part("net"), "", 0)
    held = _held(net) if ties else {}
    modules = {path: one for one, path in _places(net).items()} if ties else {}
    for at, to in ties.items():
        if at not in held or to not in held or at == to:
            raise DataError(f"tied: {at!r:.60} to {to!r:.60}; need two parameters of the model")
        path, _, name = at.rpartition(".")
        held[at] = held[to]
        setattr(modules[path], name, held[to])
    named = {name: p for name, p, _ in net.named_stored()}
    for one in described.parts("trainable") if described.has("trainable") else []:
        name = one.text("name")
        if name not in named:
            raise DataError(f"trainable: there is no array {name!r:.60}")
        named[name].trainable = one.flag("value")
        one.end()
    described.end()
    for name, parameter in named.items():
        _check_array(name, parameter, shapes)
    further = next((name for name in shapes if name not in named), None)
    if further is not None:
        raise DataError(f"array {further!r:.60} is of no layer; need the {len(named)} arrays of this model")
    return net


def _check_array(name: str, parameter: Parameter, shapes: Shapes) -> None:
    if name not in shapes:
        raise DataError(f"array {name!r:.60} is missing among {', '.join(sorted(shapes)):.120}")
    if tuple(shapes[name]) != parameter.shape:
        raise DataError(f"{name} has shape {list(shapes[name])}; need {list(parameter.shape)}")


class _Builder:
    """Makes layers, each of which must find its arrays before the next one is made. ties: a parameter's path -> the
    path of the one that replaces it."""

    def __init__(self, shapes: Shapes, ties: Mapping[str, str]) -> None:
        self.shapes, self.ties, self.made = shapes, ties, dict[str, Module]()

    def layer(self, described: Described, path: str, depth: int) -> Module:
        if described.has("same"):
            first = described.text("same")
            described.end()
            if first not in self.made:
                raise DataError(f"{path}: there is no layer {first!r:.60} before it")
            return self.made[first]
        if depth > DEEPEST or len(self.made) >= MOST_LAYERS:
            raise DataError(f"more than {MOST_LAYERS:,} layers, or {DEEPEST} inside one another")
        kind = _NAMES[described.text("layer", tuple(_NAMES))]
        given = {name: read(described, name) for name, read in _LAYERS[kind].items() if described.has(name)}
        is_eval = described.has("eval") and described.flag("eval")
        layers: list[Any] = []
        is_container = issubclass(kind, Held)
        if is_container:
            parts = described.parts("layers")
            names = described.texts("names") if kind is ModuleDict else [str(i) for i in range(len(parts))]
            if len(names) != len(parts):
                raise DataError(f"{path}: {len(parts)} layers, {len(names)} names; need one for each")
            inside = zip(names, parts, strict=True)
            layers = [self.layer(one, f"{path}.{name}".lstrip("."), depth + 1) for name, one in inside]
            if kind is ModuleDict:
                layers = [dict(zip(names, layers, strict=True))]
            elif kind is ModuleList:
                layers = [layers]
        elif kind is Standardize:
            mean, std = (self._shape(f"{path}.{name}".lstrip(".")) for name in ("mean", "scale"))
            layers = [np.zeros(mean, np.float32), np.ones(std, np.float32)]
        module = self._made(kind, layers, given, path)
        described.end()
        for name, parameter in _held(module).items() if not is_container else ():
            place = f"{path}.{name}".lstrip(".")
            if place not in self.ties:
                _check_array(place, parameter, self.shapes)
        if is_eval:
            module.training = False
            of_user = {one for _, one in _inside(module)} if isinstance(module, Held) else set()
            for _, one in module.children():
                if one not in of_user:  # of a layer's own making
                    one.eval()
        self.made[path] = module
        return module

    def _made(self, kind: type[Module], layers: list[Any], given: dict[str, Any], path: str) -> Module:
        try:
            return kind(*layers, **given)
        except TypeError:
            raise DataError(f"{path}: a {kind.__name__} needs more than {', '.join(given) or 'nothing'}") from None

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.shapes:
            raise DataError(f"array {name!r:.60} is missing among {', '.join(sorted(self.shapes)):.120}")
        return self.shapes[name]
