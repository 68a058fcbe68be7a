"""ModuleState: what the modules of a training hold beside their arrays: modes, numbers, texts, random generators."""

from __future__ import annotations

import contextlib
import copy
import random
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import TrainError
from ..graph.leaves import Parameter
from ..graph.opspec import OpSpec
from ..graph.value import Value
from ..nn.module import Module
from ..step.state import named

MODE = "training"  # stands for a module's mode among its attributes
_PLAIN = (type(None), bool, int, float, str)


class _Attribute(NamedTuple):
    token: Hashable  # of an outline: two equal ones build equal graphs
    value: Any


class ModuleState:
    """What the attributes of modules are, against what they were when the run began.

    Numbers, texts, None, and tuples, lists and dicts of such are saved where they have changed since then, modes as
    well, and random generators always. What has not changed is after a load as the script has made it. A layer or a
    function that has changed cannot be saved: a load is refused where these are not the same; of other objects that
    have changed a load gives the names, see `unsaved`.

    roots: a model, a loss; those that are no Module have no attributes.
    """

    def __init__(self, model: Any, loss: Any = None) -> None:
        self._roots = {prefix: one for prefix, one in (("", model), ("loss.", loss)) if isinstance(one, Module)}
        self.unsaved: list[str] = []  # what had changed and is not in the state that was loaded
        self.begin()

    def begin(self) -> None:
        """The run begins: later states tell what has changed since now."""
        self._built = {
            name: _Attribute(one.token, copy.deepcopy(one.value) if _is_plain(one.value) else one.value)
            for name, one in self._now().items()
        }

    def built(self) -> dict[str, Any]:
        """The modes and numbers of modules as the run began, of those that a layer's graph is built from."""
        plain = {name: one.value for name, one in self._built.items() if type(one.value) in (bool, int, float, str)}
        return {name: value for name, value in plain.items() if value is not True or _place(name)[1] != MODE}

    def _modules(self) -> dict[str, Module]:
        """Path, "" or with a dot at its end -> module; each once."""
        modules: dict[str, Module] = {}
        todo = list(self._roots.items())
        seen: set[Module] = set()
        while todo:
            path, module = todo.pop()
            if module not in seen:
                seen.add(module)
                modules[path] = module
                todo += [(f"{path}{name}.", child) for name, child in reversed(list(module.children()))]
        return modules

    def _now(self) -> dict[str, _Attribute]:
        """ "path.attribute" -> what it is, but for what lies outside of the graph: parameters, and values of graphs."""
        paths = {module: path for path, module in self._modules().items()}
        outline = {at: token for root in self._roots.values() for at, token in root.outline().items()}
        found = {}
        for (module, name), token in outline.items():
            value = module.training if name == MODE else vars(module)[name]
            if module in paths and not isinstance(value, Value):
                found[f"{paths[module]}{name}"] = _Attribute(token, value)
        return found

    # ---- the part of a state ---------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """What has changed since the run began, for the state of the run."""
        now = self._now()
        changed = {n: one.value for n, one in now.items() if n not in self._built or self._built[n].token != one.token}
        plain = {name: copy.deepcopy(value) for name, value in changed.items() if _is_plain(value)}
        texts = {name: _described(value) for name, value in changed.items() if name not in plain}
        other = sorted(name for name, text in texts.items() if text is None and not _holds_values(changed[name]))
        return {
            "values": plain,
            "layers": {name: text for name, text in texts.items() if text is not None},
            "unsaved": other,
            "gone": sorted(self._built.keys() - now.keys()),
            "generators": {name: state for name, one in now.items() if (state := state_of(one.value)) is not None},
        }  # fmt: skip

    def load(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Load for `part`. TrainError naming a layer, a function or a generator that is another one here."""
        if not values:  # of a checkpoint that was written before there was this part
            return lambda: None
        now, modules = self._now(), self._modules()
        for name, text in values["layers"].items():
            mine = _described(now[name].value) if name in now else None
            if mine != text:
                need = "a checkpoint holds no layers and functions; need them as they were changed"
                raise TrainError(
                    f"load: model: {name} was {text}, changed after the run began, and is {mine or 'missing'}: {need}"
                )
        unknown = [name for name in values["values"] if _place(name)[0] not in modules]
        unknown += values["generators"].keys() - now.keys()
        if unknown:
            raise TrainError(f"load: model: {named(unknown)} is in the state alone; need the state of the same model")
        takes = [load_generator(name, state, now[name].value) for name, state in values["generators"].items()]
        back = {n: one.value for n, one in self._built.items() if _is_plain(one.value) and n not in values["gone"]}
        wanted = {name: copy.deepcopy(value) for name, value in (back | values["values"]).items()}

        def load() -> None:
            tokens = {name: one.token for name, one in self._now().items()}
            for name, value in wanted.items():
                path, attribute = _place(name)
                if name in values["values"] or tokens.get(name) != self._built[name].token:
                    setattr(modules[path], attribute, value)
            for name in values["gone"]:
                path, attribute = _place(name)
                if path in modules and attribute in vars(modules[path]):
                    delattr(modules[path], attribute)
            for take in takes:
                take()
            self.unsaved = list(values["unsaved"])

        return load

    def warning(self) -> str | None:
        """One line about what the state that was loaded does not hold; None where it holds all."""
        if not self.unsaved:
            return None
        what = f"{named(self.unsaved)} had changed after the run began"
        return f"{what}, which no checkpoint holds: as the script makes it now; the same bits are not promised"


@contextlib.contextmanager
def attributes_kept(model: Any, loss: Any = None) -> Iterator[None]:
    """What the model's code sets of its own modules inside, numbers, texts and random generators, is as before
    afterwards."""
    state = ModuleState(model, loss)
    before = state.part()
    try:
        yield
    finally:
        state.load(before)()


# ---- values ----------------------------------------------------------------------------------------------------------


def _place(name: str) -> tuple[str, str]:
    """The path of a module, with its dot, and the attribute."""
    path, dot, attribute = name.rpartition(".")
    return path + dot, attribute


def _is_plain(value: Any) -> bool:
    """A checkpoint holds it as it is."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(one) for pair in value.items() for one in pair)
    return type(value) in _PLAIN or isinstance(value, (np.number, np.bool_))


def _described(value: Any) -> str | None:
    """What is made of layers, parameters and functions, as a text that is the same in another process; None for other
    objects."""
    if isinstance(value, Module):
        return type(value).__name__
    if isinstance(value, Parameter):
        return "a parameter"
    if isinstance(value, OpSpec):
        return value.name
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) and "<" not in value.__qualname__:
        return value.__qualname__
    if _is_plain(value):
        return repr(value)
    if type(value) in (tuple, list, dict):
        several = [one for pair in value.items() for one in pair] if isinstance(value, dict) else value
        texts = [_described(one) for one in several]
        known = [text for text in texts if text is not None]
        return f"{type(value).__name__}({', '.join(known)})" if len(known) == len(texts) else None
    return None


def _holds_values(value: Any) -> bool:
    """Values of a graph, which forward has left there, or such in lists and dicts."""
    if type(value) in (tuple, list, dict):
        return any(map(_holds_values, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Value)


def state_of(generator: Any) -> Any:
    """That of a random generator, Python's or NumPy's; None for other objects."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


def load_generator(name: str, state: Any, generator: Any) -> Callable[[], None]:
    """Load for `state_of`. TrainError for a generator of another kind."""
    mine, theirs = _kind(state_of(generator)), _kind(state)
    if mine != theirs:
        raise TrainError(f"load: {name}: a generator of {mine}, in the state {theirs}; need the same")

    def load() -> None:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        else:
            generator.bit_generator.state = state

    return load


def _kind(state: Any) -> str:
    if isinstance(state, Mapping):
        return str(state.get("bit_generator"))
    return "None" if state is None else "Python's random"
