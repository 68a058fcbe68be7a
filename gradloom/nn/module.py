"""Module: a tree of parameters, and `forward`, which builds graph nodes from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from ..base import locks
from ..base.errors import DTypeError, GraphError, ShapeError
from ..graph.opspec import Parameter, stored_value
from ..graph.stored import Stored, copies, replace
from ..graph.value import _scope

Init = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class _Call:
    """A forward under way: the modules from the outermost to the innermost, and how often each has been called."""

    __slots__ = ("counts", "modules")

    def __init__(self, outermost: Module) -> None:
        self.modules = [outermost]
        self.counts: dict[Module, int] = {}


_call: ContextVar[_Call | None] = ContextVar("gradloom_call", default=None)

# Where a module lies below another: (list, dict or attributes; key in it; the module there), from the upper one down.
_Links = tuple[tuple[Any, Any, "Module"], ...]

_changes = object()  # another one after each change to any tree of modules: what was found in a tree holds until then

_mode: ContextVar[bool | None] = ContextVar("gradloom_mode", default=None)  # that of all modules, where one is set


@contextlib.contextmanager
def mode(training: bool) -> Iterator[None]:
    """Inside, in this thread alone, all modules are in this mode, whatever `train` and `eval` have set."""
    token = _mode.set(training)
    try:
        yield
    finally:
        _mode.reset(token)


def uniform(bound: float) -> Init:
    """U(-bound, bound)."""
    return partial(_uniform, bound)


def normal(std: float = 1.0) -> Init:
    """N(0, std^2)."""
    return partial(_normal, std)


def filled(value: float | np.ndarray) -> Init:
    """One number everywhere, or these numbers."""
    return partial(_filled, value)


# Functions of the module, so that models can be pickled.


def _uniform(bound: float, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-bound, bound, shape)


def _normal(std: float, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape) * std


def _filled(value: float | np.ndarray, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, value)


class Module:
    """Base of all layers and models.

    Assign modules (or lists or dicts of them) and `self.parameter(...)` to attributes in __init__, and write
    `forward(x)`. Parameters are called by their path: "0.weight", "encoder.fc1.bias"; one that is reached by several
    paths counts once, under the first. They are initialised from an explicit seed: by `init(seed)`, by the first `fit`
    (its seed), or by seed 0 when the module is called before either; what was assigned or loaded before stays.
    """

    _training = True
    _drawn_at: object = None  # _changes when all parameters of the tree were last seen to be drawn
    _paths_at: object = None

    def __init__(self) -> None:
        self._inits: dict[str, Init] = {}
        self._paths_below: dict[Module, tuple[str, _Links]] = {}

    @property
    def training(self) -> bool:
        """Whether this module is in training mode: as `train` and `eval` have set it."""
        mode = _mode.get()
        return self._training if mode is None else mode

    @training.setter
    def training(self, training: bool) -> None:
        self._training = training

    # ---- declaring -------------------------------------------------------------------------------------

    def parameter(self, shape: tuple[int, ...], init: Init, trainable: bool = True) -> Parameter:
        """A parameter (or, not trainable, a buffer such as running statistics); assign it to an attribute."""
        value = stored_value(Stored("", np.zeros(shape), "f32", trainable))
        self._inits[f"#{id(value)}"] = init  # renamed when it is assigned
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        global _changes
        if isinstance(value, Parameter) and f"#{id(value)}" in self._inits:
            self._inits[name] = self._inits.pop(f"#{id(value)}")
            value.stored.name = value.node.name = name
        if _holds(value) or _holds(self.__dict__.get(name)):
            _changes = object()
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_drawn_at": None, "_paths_at": None, "_paths_below": {}}  # a copy looks for itself

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError(f"{type(self).__name__} has no forward; need a method forward(self, x)")

    # ---- the tree --------------------------------------------------------------------------------------

    def children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the direct children, in the order of assignment."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}.{i}", m) for i, m in enumerate(value) if isinstance(m, Module))
            elif isinstance(value, dict):
                yield from ((f"{name}.{k}", m) for k, m in value.items() if isinstance(m, Module))

    def modules(self) -> Iterator[Module]:
        yield self
        for _, child in self.children():
            yield from child.modules()

    def _named_stored(self) -> Iterator[tuple[str, Parameter, Init]]:
        """(path, parameter or buffer, its initialisation), each once."""
        seen: set[Stored] = set()
        for name, parameter, init in self._paths(""):
            if parameter.stored not in seen:
                seen.add(parameter.stored)
                yield name, parameter, init

    def _paths(self, prefix: str) -> Iterator[tuple[str, Parameter, Init]]:
        for name, init in self._inits.items():
            if name.startswith("#"):
                raise GraphError(
                    f"{type(self).__name__}: a parameter was made, not assigned; need self.name = self.parameter(...)"
                )
            yield prefix + name, getattr(self, name), init
        for name, child in self.children():
            yield from child._paths(f"{prefix}{name}.")

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
        return self._draw(seed, lambda parameter: True)

    def ensure_init(self, seed: int = 0) -> None:
        """`init(seed)` for what has never been drawn, assigned or loaded."""
        now = _changes
        self._draw(seed, lambda parameter: parameter.stored.version == 0)
        for module in self.modules():
            module._drawn_at = now

    def _draw(self, seed: int, wanted: Callable[[Parameter], bool]) -> Module:
        with locks.building:  # of two threads that use a new model one draws all parameters
            for i, (name, parameter, init) in enumerate(self._named_stored()):
                parameter.stored.name = parameter.node.name = name
                if wanted(parameter):
                    rng = np.random.Generator(np.random.Philox(key=[seed % (1 << 64), i]))
                    parameter.assign(init(rng, parameter.shape))
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Dotted name -> copy of every parameter and buffer."""
        self.ensure_init()
        named = {name: p.stored for name, p, _ in self._named_stored()}
        return dict(zip(named, copies(named.values()), strict=True))

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign all parameters and buffers. GraphError names what is missing or left over; then nothing is changed."""
        mine = {name: p for name, p, _ in self._named_stored()}
        missing, extra = sorted(set(mine) - set(arrays)), sorted(set(arrays) - set(mine))
        if missing or extra:
            said = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(extra)}"] * bool(extra)
            raise GraphError(f"load: {'; '.join(said)}; need exactly the {len(mine)} arrays of this model")
        for name, parameter in mine.items():
            if tuple(np.shape(arrays[name])) != parameter.shape:
                seen = list(np.shape(arrays[name]))
                raise ShapeError(f"load: {name} has shape {seen}; need {list(parameter.shape)}")
            kind = np.asarray(arrays[name]).dtype
            if kind.kind not in "fiub" and kind.name != "bfloat16":
                raise DTypeError(f"load: {name} is {kind}; need numbers for {parameter.dtype.name}")
        replace({p.stored: np.asarray(arrays[name]).astype(p.dtype.numpy) for name, p in mine.items()})

    def train(self, mode: bool = True) -> Module:
        """Dropout drops, batch norm takes the batch's statistics. Takes effect where a graph is built next."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    # ---- building --------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`forward` with these inputs; its nodes are called after the module's place in the outermost one."""
        call = _call.get()
        if call is None:
            if self._drawn_at is not _changes:
                self.ensure_init()
            token = _call.set(_Call(self))
            try:
                return self.forward(*args, **kwargs)
            finally:
                _call.reset(token)
        modules = call.modules
        if self._drawn_at is not _changes:
            modules[0].ensure_init()
            if self._drawn_at is not _changes:  # a module from elsewhere
                self.ensure_init()
        name = modules[-1]._path_to(self) or type(self).__name__
        outer = _scope.get()
        named = _scope.set(f"{outer}.{name}" if outer else name)
        modules.append(self)
        try:
            return self.forward(*args, **kwargs)
        finally:
            modules.pop()
            _scope.reset(named)

    def call_number(self) -> int | None:
        """In forward: how often the outermost module has called this one before; None in the outermost itself."""
        call = _call.get()
        if call is None or len(call.modules) < 2:
            return None
        number = call.counts[self] = call.counts.get(self, -1) + 1
        return number

    def _path_to(self, module: Module) -> str:
        """The path from this module to one below it, "" for a module from elsewhere."""
        if self._paths_at is not _changes:
            self._paths_below.clear()
            self._paths_at = _changes
        found = self._paths_below.get(module)
        if found is not None:
            try:
                for holder, key, held in found[1]:
                    if holder[key] is not held:
                        break
                else:
                    return found[0]
            except (IndexError, KeyError):
                pass  # a list or dict was changed since
        name = self._search(module)
        links = self._links_to(module)
        if links:
            self._paths_below[module] = name, links
        return name

    def _search(self, module: Module) -> str:
        children = list(self.children())
        for name, child in children:
            if child is module:
                return name
        for name, child in children:
            below = child._search(module)
            if below:
                return f"{name}.{below}"
        return ""

    def _links_to(self, module: Module) -> _Links:
        """What must stay as it is for the path to stay; empty for a module from elsewhere."""
        below: list[tuple[Any, Any, Module]] = []
        for name, value in vars(self).items():
            if isinstance(value, Module):
                below.append((vars(self), name, value))
            elif isinstance(value, (list, tuple)):
                below += [(value, i, m) for i, m in enumerate(value) if isinstance(m, Module)]
            elif isinstance(value, dict):
                below += [(value, k, m) for k, m in value.items() if isinstance(m, Module)]
        for link in below:
            if link[2] is module:
                return (link,)
        for link in below:
            further = link[2]._links_to(module)
            if further:
                return (link, *further)
        return ()


def _holds(value: Any) -> bool:
    """Whether a tree of modules changes with this attribute."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(m, Module) for m in value)
    if isinstance(value, dict):
        return any(isinstance(m, Module) for m in value.values())
    return isinstance(value, (Module, Parameter))
