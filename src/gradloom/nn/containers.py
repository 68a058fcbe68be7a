"""Containers of modules: lists and dicts without a forward of their own, and residual connections."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from ..base.arguments import what_is
from ..base.errors import GraphError, ShapeError
from ..graph.value import Value, describe
from .layers import Held, Sequential
from .module import Module


class ModuleList(Held):
    """Modules in a list, for the forward of another module; parameters are called 0.weight, 1.bias, ... in it.

    A list as an attribute has the same effect, under the same names. Raises GraphError for anything but modules.

        self.blocks = gl.nn.ModuleList(Block() for _ in range(4))
    """

    layers: list[Module]

    def __init__(self, layers: Iterable[Module] = ()) -> None:
        super().__init__()
        self.layers = [_module("ModuleList", layer) for layer in layers]

    def append(self, layer: Module) -> ModuleList:
        """Add a module at the end; returns the list."""
        self.layers = [*self.layers, _module("ModuleList", layer)]
        return self

    def extend(self, layers: Iterable[Module]) -> ModuleList:
        """Add modules at the end; returns the list."""
        self.layers = [*self.layers, *(_module("ModuleList", layer) for layer in layers)]
        return self

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, i: int) -> Any:
        return self.layers[i]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)


class ModuleDict(Held):
    """Modules by name, for the forward of another module; parameters are called name.weight, ... in it.

    A dict as an attribute has the same effect, under the same names. Raises GraphError for anything but modules, and
    for a name that is no text, is empty or holds a dot.

        self.heads = gl.nn.ModuleDict({"a": gl.nn.Linear(8, 3)})
    """

    layers: dict[str, Module]

    def __init__(self, layers: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.layers = {}
        for name, layer in (layers or {}).items():
            self[name] = layer

    def __setitem__(self, name: str, layer: Module) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise GraphError(f"ModuleDict: got the name {name!r:.60}; need a text without a dot")
        self.layers = {**self.layers, name: _module("ModuleDict", layer)}

    def __getitem__(self, name: str) -> Any:
        return self.layers[name]

    def __contains__(self, name: object) -> bool:
        return name in self.layers

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self.layers.keys()

    def values(self) -> ValuesView[Module]:
        """The modules."""
        return self.layers.values()

    def items(self) -> ItemsView[str, Module]:
        """Pairs of name and module."""
        return self.layers.items()


class Residual(Sequential):
    """x + the modules one after the other, of x; parameters are called as in Sequential.

    Raises ShapeError where the result has another shape than x: it is not broadcast.

        gl.nn.Residual(gl.nn.LayerNorm(64), gl.nn.Linear(64, 64, activation="gelu"))
    """

    def forward(self, x: Value) -> Value:
        y = super().forward(x)
        if y.shape != x.shape:
            raise ShapeError(f"Residual: the modules make {describe(y)} of {describe(x)}; need the same shape")
        return x + y


def _module(place: str, layer: object) -> Module:
    if not isinstance(layer, Module):
        raise GraphError(f"{place}: got {what_is(layer)}; need modules")
    return layer
