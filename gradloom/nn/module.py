"""Module: a tree of parameters, and `forward`, which builds graph nodes from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..base.errors import GraphError, ShapeError
from ..graph.opspec import Parameter, stored_value
from ..graph.stored import Stored
from ..graph.value import Value, current_scope, scope

Init = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def uniform(bound: float) -> Init:
    """U(-bound, bound)."""
    return lambda rng, shape: rng.uniform(-bound, bound, shape)


def normal(std: float = 1.0) -> Init:
    """N(0, std^2)."""
    return lambda rng, shape: rng.standard_normal(shape) * std


def filled(value: float) -> Init:
    return lambda rng, shape: np.full(shape, value)


class Module:
    """Base of all layers and models.

    Assign modules and `self.parameter(...)` to attributes in __init__, and write `forward(x)`. Parameters are called by
    their path: "0.weight", "encoder.fc1.bias". They are initialised from an explicit seed: by `init(seed)`, by the first
    `fit` (its seed), or by seed 0 when the module is called before either.
    """

    training: bool = True

    def __init__(self) -> None:
        self._inits: dict[str, Init] = {}
        self._initialised = False

    # ---- declaring -------------------------------------------------------------------------------------

    def parameter(self, shape: tuple[int, ...], init: Init, trainable: bool = True) -> Parameter:
        """A parameter (or, not trainable, a buffer such as running statistics); assign it to an attribute."""
        value = stored_value(Stored("", np.zeros(shape), "f32", trainable))
        self._inits[f"#{id(value)}"] = init  # renamed when it is assigned
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter) and f"#{id(value)}" in self._inits:
            self._inits[name] = self._inits.pop(f"#{id(value)}")
            value.stored.name = value.node.name = name
        object.__setattr__(self, name, value)

    def forward(self, x: Value) -> Value:
        raise GraphError(f"{type(self).__name__} has no forward; need a method forward(self, x)")

    # ---- the tree --------------------------------------------------------------------------------------

    def children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the direct children, in the order of assignment."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}.{i}", m) for i, m in enumerate(value) if isinstance(m, Module))

    def modules(self) -> Iterator[Module]:
        yield self
        for _, child in self.children():
            yield from child.modules()

    def _named_stored(self, prefix: str = "") -> Iterator[tuple[str, Parameter, Init]]:
        for name, init in self._inits.items():
            yield prefix + name, getattr(self, name), init
        for name, child in self.children():
            yield from child._named_stored(f"{prefix}{name}.")

    def named_parameters(self) -> dict[str, Parameter]:
        """Dotted name -> trainable parameter."""
        return {n: p for n, p, _ in self._named_stored() if p.trainable}

    def named_buffers(self) -> dict[str, Parameter]:
        """Dotted name -> stored array that no optimiser touches."""
        return {n: p for n, p, _ in self._named_stored() if not p.trainable}

    def parameters(self) -> list[Parameter]:
        return list(self.named_parameters().values())

    def parameter_count(self) -> int:
        return sum(p.size for p in self.parameters())

    # ---- state -----------------------------------------------------------------------------------------

    def init(self, seed: int = 0) -> Module:
        """Draw all parameters anew: parameter i from its own stream (seed, i)."""
        for i, (name, parameter, init) in enumerate(self._named_stored()):
            parameter.stored.name = parameter.node.name = name
            rng = np.random.Generator(np.random.Philox(key=[seed % (1 << 64), i]))
            parameter.assign(init(rng, parameter.shape))
        for module in self.modules():
            module._initialised = True
        return self

    def ensure_init(self, seed: int = 0) -> None:
        """`init(seed)` unless that has happened; names the parameters by their path in either case."""
        if not all(m._initialised for m in self.modules() if m._inits):
            self.init(seed)
        for name, parameter, _ in self._named_stored():
            parameter.stored.name = parameter.node.name = name

    def state_dict(self) -> dict[str, np.ndarray]:
        """Dotted name -> copy of every parameter and buffer."""
        self.ensure_init()
        return {name: p.numpy() for name, p, _ in self._named_stored()}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign all parameters and buffers; GraphError names what is missing or left over, and then nothing is changed."""
        mine = {name: p for name, p, _ in self._named_stored()}
        missing, extra = sorted(set(mine) - set(arrays)), sorted(set(arrays) - set(mine))
        if missing or extra:
            said = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(extra)}"] * bool(extra)
            raise GraphError(f"load: {'; '.join(said)}; need exactly the {len(mine)} arrays of this model")
        for name, parameter in mine.items():
            if tuple(np.shape(arrays[name])) != parameter.shape:
                seen = list(np.shape(arrays[name]))
                raise ShapeError(f"load: {name} has shape {seen}; need {list(parameter.shape)}")
        for name, parameter in mine.items():
            parameter.assign(arrays[name])
        for module in self.modules():
            module._initialised = True

    def train(self, mode: bool = True) -> Module:
        """Dropout drops, batch norm takes the batch's statistics. Takes effect where a graph is built next."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    # ---- building --------------------------------------------------------------------------------------

    def __call__(self, x: Value) -> Value:
        if not current_scope():
            self.ensure_init()
            return self.forward(x)
        return self.forward(x)

    def call_child(self, name: str, child: Module, x: Value) -> Value:
        """Call a child so that its nodes are named after it."""
        with scope(name):
            return child(x)
