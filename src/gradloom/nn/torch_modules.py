"""Networks of torch.nn as networks of gl.nn, and state dicts of both. No line here imports torch.

A layer is converted by the entry of its class in LAYERS (torch_layers.py); `_Converter` walks the containers, names the
arrays, and keeps shared layers, shared arrays and modes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.arguments import listed, what_is
from ..base.dlpack import array_of
from ..base.errors import DTypeError, GraphError, SettingError, ShapeError
from ..base.habits import hinted
from ..graph.leaves import Parameter
from ..graph.stored import replace
from .attention import MultiheadAttention
from .layers import COUNTER, Sequential
from .module import Module
from .torch_layers import LAYERS, Unsupported
from .torch_names import packed_names
from .torch_settings import CONTAINERS, altered, known_class


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
        kind = known_class(theirs, LAYERS)
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
        fault = altered(theirs, kind)
        if fault:
            raise GraphError(f"from_torch: {what} has {fault}")
        if kind in CONTAINERS:
            made: Module = self._container(theirs, kind, path, what)
        else:
            try:
                made = LAYERS[kind](theirs)
            except Unsupported as fault:
                raise GraphError(f"from_torch: {what} has {fault}, which gl.nn's layer requires") from None
            made.train(theirs.training)
        made.training = theirs.training
        return made

    def _container(self, theirs: Any, kind: str, path: str, what: str) -> Sequential:
        if kind == "Sequential":
            parts = list(_children(theirs))
        else:
            parts = [(f"layers.{name}", one) for name, one in theirs.layers.named_children()]
            parts += [] if theirs.norm is None else [("norm", theirs.norm)]
        names = tuple(name for name, _ in parts)
        moved = [name for i, name in enumerate(names) if name != str(i) and name.isdigit() and int(name) < len(names)]
        if moved:
            at = names.index(moved[0])
            raise GraphError(f"from_torch: {what} has layer {moved[0]} at place {at}; need the order of their numbers")
        made = Sequential(*(self.module(one, _below(path, name)) for name, one in parts))
        if names != tuple(map(str, range(len(names)))):
            made.torch_names = names
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
            if not all(one in mine for one in names):
                what = f"{path or 'the module'} ({type(theirs).__name__})"
                raise GraphError(f"from_torch: {what} has an array {name!r:.60} that its layer does not know")
            if getattr(tensor, "_backward_hooks", None):
                raise GraphError(f"from_torch: {_below(path, name)} has hooks; need them removed")
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
