"""Module: a tree of parameters, and `forward`, which builds graph nodes from them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..base import locks
from ..base.arguments import as_bool, what_is
from ..base.errors import DTypeError, GraphError, ShapeError
from ..base.habits import AttributeHints, KeywordHints
from ..graph.leaves import Parameter, stored_value
from ..graph.numbers import addressable
from ..graph.scope import enter_scope, leave_scope
from ..graph.stored import Role, Stored, copies, replace
from .devices import OnDevice
from .initial import Init
from .loading import arrays_for
from .philox import Key
from .room import need_room
from .shown import Shown


class _Call:
    """A forward under way: the modules from the outermost to the innermost, and how often each has been called."""

    __slots__ = ("counts", "modules")

    def __init__(self, outermost: Module) -> None:
        self.modules = [outermost]
        self.counts: dict[Module, int] = {}


_call: ContextVar[_Call | None] = ContextVar("gradloom_call", default=None)

Outline = dict[tuple["Module", str], Hashable]
_Path = tuple[str, Parameter, "Init | None"]

# The path of a module below another, from the upper one down: (attributes, list, tuple or dict; key; the object there).
_Links = tuple[tuple[Any, Any, Any], ...]

_OWN = ("_inits", "_unassigned", "_paths_below", "torch_names")  # attributes that are no part of the tree
_NOT_OUTLINED = {*_OWN, "_training", "_drawn_at", "_paths_at"}  # nor part of what forward reads; see `training`
_changes = object()  # replaced after each change to any tree of modules: cached properties of a tree end then

_mode: ContextVar[bool | None] = ContextVar("gradloom_mode", default=None)  # that of all modules, where one is set


@contextlib.contextmanager
def mode(training: bool) -> Iterator[None]:
    """Inside, in this thread alone, all modules are in this mode, whatever `train` and `eval` have set."""
    token = _mode.set(training)
    try:
        yield
    finally:
        _mode.reset(token)


class Module(OnDevice, Shown, KeywordHints, AttributeHints):
    """Base of all layers and models.

    Call `super().__init__()`, assign modules and parameters (`self.parameter(...)`, `gl.parameter(...)`) to attributes
    in __init__, and write `forward(x)`. Lists, tuples and dicts of modules and parameters count, too, also inside one
    another. Parameters are called by their path: "0.weight", "encoder.fc1.bias", "blocks.0.scale"; one that is reached
    by several paths counts once, under the first. Those of `self.parameter` are initialised from an explicit seed: by
    `init(seed)`, by the first `fit` (its seed), or by seed 0 when the module is called before either; values assigned
    or loaded before stay. Until then, reading one is a GraphError. Those of `gl.parameter` keep their numbers.
    """

    _training = True
    _drawn_at: object = None  # _changes when all parameters of the tree were last seen to be drawn
    _paths_at: object = None
    torch_names: tuple[str, ...] = ()  # of the layers of a Sequential, in the torch.nn.Module that from_torch converted

    def __init__(self) -> None:
        mine = vars(self)  # called twice, it forgets nothing
        self._inits: dict[Stored, Init] = mine.get("_inits", {})
        self._unassigned: set[Stored] = mine.get("_unassigned", set())  # made by `parameter`, not seen in the tree yet
        self._paths_below: dict[Module, tuple[str, _Links]] = mine.get("_paths_below", {})

    @property
    def training(self) -> bool:
        """Whether this module is in training mode: as `train` and `eval` have set it."""
        mode = _mode.get()
        return self._training if mode is None else mode

    @training.setter
    def training(self, training: bool) -> None:
        self._training = as_bool("training", training)

    # ---- declaring -------------------------------------------------------------------------------------

    def parameter(self, shape: tuple[int, ...], init: Init, trainable: bool = True) -> Parameter:
        """A parameter (or, not trainable, a buffer such as running statistics); assign it to an attribute."""
        global _changes
        self._check_made()
        if not addressable(shape, 4):
            raise ShapeError(f"{type(self).__name__}: a parameter of shape {list(shape)}; need fewer than 2^63 bytes")
        role: Role = "trained" if as_bool("trainable", trainable, "parameter") else "state"
        value = stored_value(Stored.uninitialised("", shape, role))
        self._inits[value.stored] = init
        self._unassigned.add(value.stored)
        _changes = object()
        return value

    def draw_with(self, parameter: Parameter, init: Init) -> None:
        """A parameter that this module has declared begins with what `init` draws."""
        self._inits[parameter.stored] = init

    def __setattr__(self, name: str, value: Any) -> None:
        global _changes
        if name not in _OWN:
            held = [(path, one) for path, one, _ in _inside(name, value, ())] if isinstance(value, _HOLDERS) else []
            if held:
                self._check_made()
            for path, one in held:
                if isinstance(one, Parameter):
                    self._unassigned.discard(one.stored)
                    if not one.stored.name:
                        one.stored.name = one.node.name = path
            before = self.__dict__.get(name)
            if held or _holds(before):
                _changes = object()
                if isinstance(before, Parameter) and not held and value is not None:
                    raise DTypeError(
                        f"{type(self).__name__}.{name} is a parameter, and {what_is(value)} is none; "
                        f"use {name}.assign(...) for its numbers, or gl.parameter(...)"
                    )
        object.__setattr__(self, name, value)

    def _check_made(self) -> None:
        if "_inits" not in vars(self):
            raise GraphError(
                f"{type(self).__name__}.__init__ did not call super().__init__(); need it before modules and "
                "parameters are assigned"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_drawn_at": None, "_paths_at": None, "_paths_below": {}}  # a copy looks for itself

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise GraphError(f"{type(self).__name__} has no forward; need a method forward(self, x)")

    # ---- the tree --------------------------------------------------------------------------------------

    def _below(self) -> Iterator[tuple[str, Any, _Links]]:
        """(path, module or parameter, holders) of the contents of attributes, in the order of assignment."""
        mine = vars(self)
        for name, value in mine.items():
            if type(value) in _NUMBERS or name in _OWN:
                continue
            if isinstance(value, (Module, Parameter)):
                yield name, value, ((mine, name, value),)
            elif isinstance(value, _HOLDERS):
                yield from _inside(name, value, ((mine, name, value),))

    def children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the direct children, in the order of assignment; one in a list is called "name.0"."""
        return ((name, held) for name, held, _ in self._below() if isinstance(held, Module))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        seen: dict[Module, None] = {}
        todo = [self]
        while todo:
            module = todo.pop()
            if module not in seen:
                seen[module] = None
                todo += reversed([child for _, child in module.children()])
        return iter(seen)

    def named_stored(self) -> Iterator[tuple[str, Parameter, Init | None]]:
        """(path, parameter or buffer, its initialisation if it has one), each once.

        GraphError for a parameter that was made and not assigned, and for two parameters of one path.
        """
        seen: set[Stored] = set()
        taken: set[str] = set()
        for name, parameter, init in self._all_paths():
            if parameter.stored not in seen:
                if name in taken:
                    raise GraphError(
                        f"{type(self).__name__}: two parameters are called {name}; need keys of dicts that make "
                        "different paths"
                    )
                taken.add(name)
                seen.add(parameter.stored)
                yield name, parameter, init

    def _all_paths(self) -> list[_Path]:
        """Of each module its own parameters, then those of its children. No module is entered below itself."""
        paths: list[_Path] = []
        todo: list[tuple[str, Module, frozenset[Module]]] = [("", self, frozenset((self,)))]
        while todo:
            prefix, module, above = todo.pop()
            module._check_made()
            children, first = [], len(paths)
            for name, held, _ in module._below():
                if isinstance(held, Parameter):
                    paths.append((prefix + name, held, module._inits.get(held.stored)))
                elif held not in above:
                    children.append((f"{prefix}{name}.", held))
            if module._unassigned:
                module._unassigned -= {held.stored for _, held, _ in paths[first:]}
            if module._unassigned:
                need = "need self.name = self.parameter(...)"
                raise GraphError(f"{type(module).__name__}: a parameter was made, not assigned; {need}")
            todo += [(path, child, above | {child}) for path, child in reversed(children)]
        return paths

    def outline(self) -> Outline:
        """(module, attribute) -> its identity: two equal outlines build equal graphs.

        Of each module in the tree its mode and its attributes: numbers, strings, None, and tuples, lists, sets and
        dicts of such by their contents; a parameter by its array and whether it is trainable; a module, an array or any
        other object by its identity.
        """
        outline: Outline = {}
        todo = [self]
        while todo:
            module = todo.pop()
            if (module, "training") not in outline:
                outline[module, "training"] = module.training
                for name, value in vars(module).items():
                    if name not in _NOT_OUTLINED:
                        outline[module, name] = _token(value, (), todo)
        return outline

    def named_parameters(self) -> dict[str, Parameter]:
        """Dotted name -> trainable parameter."""
        return {n: p for n, p, _ in self.named_stored() if p.trainable}

    def named_buffers(self) -> dict[str, Parameter]:
        """Dotted name -> stored array that no optimiser touches."""
        return {n: p for n, p, _ in self.named_stored() if not p.trainable}

    def parameters(self) -> list[Parameter]:
        return list(self.named_parameters().values())

    def parameter_count(self) -> int:
        return sum(p.size for p in self.parameters())

    # ---- state -----------------------------------------------------------------------------------------

    def init(self, seed: int = 0) -> Module:
        """Draw all parameters anew, parameter i from its own stream (seed, i); those of gl.parameter stay."""
        return self._draw(seed, lambda parameter: True)

    def ensure_init(self, seed: int = 0) -> None:
        """`init(seed)` for parameters that were never drawn, assigned or loaded."""
        now = _changes
        self._draw(seed, lambda parameter: not parameter.stored.initialised)
        for module in self.modules():
            module._drawn_at = now

    def _draw(self, seed: int, wanted: Callable[[Parameter], bool]) -> Module:
        with locks.building:  # of two threads that use a new model one draws all parameters
            stored = list(self.named_stored())
            need_room(type(self).__name__, [p for _, p, init in stored if init is not None and wanted(p)])
            for i, (name, parameter, init) in enumerate(stored):
                parameter.stored.name = parameter.node.name = name
                if init is not None and wanted(parameter):
                    key: Any = Key(seed % (1 << 64), i)
                    rng = np.random.Generator(np.random.Philox(key))
                    parameter.assign(init(rng, parameter.shape))
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Dotted name -> copy of every parameter and buffer."""
        self.ensure_init()
        named = {name: p.stored for name, p, _ in self.named_stored()}
        return dict(zip(named, copies(named.values()), strict=True))

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign all parameters and buffers; `arrays` may be a state dict of torch.nn (docs/interchange.md).

        A parameter that the model holds at several places may have several names there, with equal arrays. GraphError
        names missing and unknown arrays, ShapeError those of another shape; then nothing is changed.
        """
        list(self.named_stored())  # the names are checked
        paths = {name: p for name, p, _ in self._all_paths()}
        replace(arrays_for(self, arrays, paths))

    def take_torch_names(self, arrays: dict[str, Any], path: str) -> None:
        """Replace names of torch.nn, which begin with `path`, by those of this layer's own arrays."""

    def train(self, mode: bool = True) -> Module:
        """Dropout drops, batch norm takes the batch's statistics. Takes effect where a graph is built next: for a
        Trainer, in its next pass or step."""
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
                return self.forward_there(*args, **kwargs)
            except RecursionError:
                what = f"forward passes Python's limit of {sys.getrecursionlimit()} nested calls"
                need = "need modules in fewer levels, and none that contains itself"
                raise GraphError(f"{type(self).__name__}: {what}; {need}") from None
            finally:
                _call.reset(token)
        modules = call.modules
        if self._drawn_at is not _changes:
            modules[0].ensure_init()
            if self._drawn_at is not _changes:  # a module from elsewhere
                self.ensure_init()
        name = modules[-1]._path_to(self) or type(self).__name__
        outer = enter_scope(name)
        modules.append(self)
        try:
            return self.forward_there(*args, **kwargs)
        finally:
            modules.pop()
            leave_scope(outer)

    def call_number(self) -> int | None:
        """In forward: how often the outermost module has called this one before; None in the outermost itself."""
        call = _call.get()
        if call is None or len(call.modules) < 2:
            return None
        number = call.counts[self] = call.counts.get(self, -1) + 1
        return number

    def _path_to(self, module: Module) -> str:
        """The path from this module to one below it, "" for a module from elsewhere."""
        cached = self._paths_below.get(module) if self._paths_at is _changes else None
        if cached is None or not _is_unchanged(cached[1]):  # a list or dict may have changed unnoticed
            self._paths_below, self._paths_at = self._modules_below((self,)), _changes
            cached = self._paths_below.get(module)
        return "" if cached is None else cached[0]

    def _modules_below(self, above: tuple[Module, ...]) -> dict[Module, tuple[str, _Links]]:
        """Each module below: its path, and the holders that must stay unchanged for the path to stay. A direct child is
        named so, others after the first child that has them."""
        children: dict[Module, tuple[str, _Links]] = {}
        for name, held, links in self._below():
            if isinstance(held, Module):
                children.setdefault(held, (name, links))
        below = dict(children)
        for child, (name, links) in children.items():
            if child not in above:
                for module, (further, more) in child._modules_below((*above, child)).items():
                    below.setdefault(module, (f"{name}.{further}", (*links, *more)))
        return below


_HOLDERS = (Module, Parameter, list, tuple, dict)  # types that can be or hold a part of the tree
_NUMBERS = frozenset({int, float, bool, str, type(None)})  # types that cannot: most attributes


def _is_unchanged(links: _Links) -> bool:
    """Whether each of these holders still has the same object."""
    try:
        return all(holder[key] is held for holder, key, held in links)
    except (IndexError, KeyError):
        return False


def _inside(name: str, value: Any, links: _Links) -> Iterator[tuple[str, Any, _Links]]:
    """(path, module or parameter, holders) of a value, or of the contents of a list, tuple or dict."""
    if isinstance(value, (Module, Parameter)):
        yield name, value, links
    elif isinstance(value, (list, tuple, dict)) and not any(holder is value for holder, _, _ in links):
        for key, held in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(held, _HOLDERS):
                yield from _inside(f"{name}.{key}", held, (*links, (value, key, held)))


def _holds(value: Any) -> bool:
    """Whether a tree of modules changes with this attribute."""
    return isinstance(value, _HOLDERS) and any(True for _ in _inside("", value, ()))


class _Same:
    """Represents an object by its identity, and keeps it alive, so that no other object gets the same one."""

    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def _token(value: Any, above: tuple[Any, ...], modules: list[Module]) -> Hashable:
    """The identity of an attribute's value in an outline. above: the containers on the way to it; modules that it
    holds are appended to `modules`."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)  # distinguishes -0.0 from 0.0, and matches nan
    if isinstance(value, Parameter):
        return _Same(value.stored), value.stored.role
    if isinstance(value, Module):
        modules.append(value)
        return _Same(value)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, (tuple, list, dict, set, frozenset)) and not any(one is value for one in above):
        above = (*above, value)
        if isinstance(value, dict):
            return kind, tuple((_token(k, above, modules), _token(held, above, modules)) for k, held in value.items())
        tokens = (_token(held, above, modules) for held in value)
        return kind, frozenset(tokens) if isinstance(value, (set, frozenset)) else tuple(tokens)
    return _Same(value)


def set_by_forward(before: Outline, after: Outline) -> set[tuple[Module, str]]:
    """The attributes of modules that were there before which differ after a forward, but for those that hold modules
    and parameters."""
    changed = {at for at in {**before, **after} if before.get(at) != after.get(at) and (at[0], "training") in before}
    return {at for at in changed if not (_structural(before.get(at)) or _structural(after.get(at)))}


def _structural(token: Hashable) -> bool:
    if isinstance(token, _Same):
        return isinstance(token.held, (Module, Stored))
    return isinstance(token, (tuple, frozenset)) and any(_structural(part) for part in token)
