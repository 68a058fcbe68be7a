"""ModuleState: attributes of modules in checkpoints: modes, numbers, texts, random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..base.errors import TrainError
from ..base.schema import different_texts, mapping, shown, shown_name, table, text
from ..graph.value import Value
from ..nn.devices import ASSIGNED
from ..nn.module import Module
from .attributes import (
    Filling,
    Leaf,
    Snapshot,
    code_of_value,
    described,
    escaped,
    holder_content,
    holds_values,
    same,
    unescaped,
    walk,
)  # fmt: skip
from .generators import generator_state, load_generator, state_of
from .state import named

MODE = "training"  # the name of a module's mode among its attributes
MODULES = table({
    "attributes": mapping(code_of_value), "holders": mapping(holder_content), "layers": mapping(text),
    "unsaved": different_texts, "gone": different_texts, "shared": mapping(text), "parted": different_texts,
    "generators": mapping(generator_state),
})  # fmt: skip


class ModuleState:
    """Changes of the attributes of modules since the run began.

    Numbers, texts, None, arrays, and tuples, lists, dicts and attributes of objects with such are saved where they have
    changed since then, modes as well, and random generators always. A load fills the existing lists, dicts, arrays and
    objects in place, so that all references see the values. Unchanged attributes keep the values of the script. A
    layer or a function that has changed cannot be saved: a load is refused where these differ; other objects that have
    changed are named by `unsaved`.

    roots: a model, a loss; those that are no Module have no attributes.
    """

    def __init__(self, model: Any, loss: Any = None) -> None:
        self._roots = {prefix: one for prefix, one in (("", model), ("loss.", loss)) if isinstance(one, Module)}
        self.unsaved: list[str] = []  # names that had changed and are not in the loaded state, nor in an earlier one
        self.parted: list[str] = []  # names that share an object here and did not in the loaded run, or vice versa
        self.begin()

    def begin(self) -> None:
        """The run begins: later states hold the changes since this call."""
        self._begun = Snapshot(self._now())

    def built(self) -> dict[str, Any]:
        """Modes, numbers and texts at the begin of the run: a layer's graph is built from them."""
        plain = {name: code for name, code in self._begun.codes.items() if type(code) in (bool, int, float, str)}
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

    def _now(self) -> dict[str, Any]:
        """ "path.attribute" -> value, without parameters and values of graphs."""
        paths = {module: path for path, module in self._modules().items()}
        found = {}
        for module, name in dict.fromkeys(at for root in self._roots.values() for at in root.outline()):
            if name == ASSIGNED:
                continue
            value = module.training if name == MODE else vars(module)[name]
            if module in paths and not isinstance(value, Value):
                found[f"{paths[module]}{escaped(name)}"] = value
        return found

    # ---- the part of a state ---------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Part of the state of a run: the changes since the run began."""
        values = self._now()
        now, begun = Snapshot(values, self._begun), self._begun.codes
        codes = {n: code for n, code in now.codes.items() if n not in begun or not same(code, begun[n])}
        held = {key: one for key, one in now.holders.items() if now.changed(key)}
        lost: set[str] = set()  # holders with leaves that no checkpoint holds, and new ones with such holders

        def is_lost(codes: Any) -> bool:
            return any(isinstance(c, Leaf) or (c[1] in lost and c[1] not in self._begun.holders) for c in walk(codes))

        while more := {k for k in held.keys() - lost if type(held[k].content) is list and is_lost(held[k].content)}:
            lost |= more
        names = {name for name, code in codes.items() if is_lost([code])} | {held[key].root for key in lost}
        texts = {name: described(values.get(name)) for name in sorted(names)}
        other = {n for n in names if texts[n] is None and not holds_values(values.get(n))} | now.touched
        return {
            "attributes": {name: code for name, code in codes.items() if name not in names},
            "holders": {k: (type(one.value).__name__, one.content) for k, one in held.items() if k not in lost},
            "layers": {name: text for name, text in texts.items() if text is not None},
            "unsaved": sorted(other.union(self.unsaved)),
            "gone": sorted(begun.keys() - now.codes.keys()),
            "shared": dict(self._begun.shared),
            "parted": list(self.parted),
            "generators": {place: state_of(one) for place, one in now.generators.items()},
        }  # fmt: skip

    def load(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Load for `part`. TrainError naming a layer, a function or a generator that is another one here."""
        given, modules = self._now(), self._modules()
        for name, theirs in values["layers"].items():
            mine = (described(given[name]) or f"an object of {type(given[name]).__name__}") if name in given else None
            if mine != theirs:
                need = "a checkpoint holds no layers and functions; need them as they were changed"
                was = f"{shown_name(name)} was {shown_name(theirs)}, changed after the run began"
                raise TrainError(f"load: model: {was}, and is {mine or 'missing'}: {need}")
        codes, held = values["attributes"], values["holders"]
        generators = Snapshot(given, self._begun).generators
        unknown = [name for name in codes if _place(name)[0] not in modules]
        unknown += values["generators"].keys() - generators.keys()
        begun = {key: (type(one.value).__name__, one.content) for key, one in self._begun.holders.items()}
        try:
            filling = Filling(self._begun, begun | held)
            wanted = {name: filling.value(code) for name, code in codes.items()}
        except KeyError as error:
            unknown.append(str(error.args[0]))
        if unknown:
            raise TrainError(f"load: model: {named(unknown)} is in the state alone; need the state of the same model")
        for name, value in wanted.items():
            _check_attribute(name, value, given, modules[_place(name)[0]])
        takes = [load_generator(name, state, generators[name]) for name, state in values["generators"].items()]
        shared = values["shared"]
        parted = {p for p in shared.keys() | self._begun.shared if shared.get(p) != self._begun.shared.get(p)}
        left = {*values["layers"], *values["unsaved"], *values["gone"]}  # as they are

        def load() -> None:
            now = Snapshot(self._now(), self._begun)
            back = [key for key, one in now.holders.items() if key in begun and now.changed(key)]
            filling.fill(key for key in back if key not in held and now.holders[key].root not in left)
            filling.fill(held)
            for name, code in self._begun.codes.items():
                if name not in wanted and name not in left and not same(now.codes.get(name, Leaf(None)), code):
                    wanted[name] = filling.value(code)
            for name, value in wanted.items():
                path, attribute = _place(name)
                setattr(modules[path], attribute, value)
            for name in values["gone"]:
                path, attribute = _place(name)
                if name in self._begun.codes and path in modules and attribute in vars(modules[path]):
                    delattr(modules[path], attribute)
            for take in takes:
                take()
            self.unsaved = list(values["unsaved"])
            self.parted = sorted(parted.union(values["parted"]))

        return load

    def warning(self) -> str | None:
        """One line that names objects missing from the loaded state; None if it is complete."""
        lines = []
        if self.unsaved:
            what = f"{named(self.unsaved)} had changed after the run began"
            lines.append(f"{what}, which no checkpoint holds: as the script makes it now")
        if self.parted:
            lines.append(f"{named(self.parted)}: which attributes are one object differs from the run that was saved")
        return f"{'; '.join(lines)}; the same bits are not promised" if lines else None


@contextlib.contextmanager
def attributes_kept(model: Any, loss: Any = None) -> Iterator[None]:
    """Restore at the end the attributes of modules, numbers, texts and random generators, that a model's code sets
    inside."""
    state = ModuleState(model, loss)
    before = state.part()
    try:
        yield
    finally:
        state.load(before)()


# ---- values ----------------------------------------------------------------------------------------------------------


def _check_attribute(name: str, value: Any, given: Mapping[str, Any], module: Module) -> None:
    """TrainError unless this attribute of a module may have this value: it is no method, parameter or layer, the mode
    is a bool, and attributes of gradloom's own layers keep their kind."""
    attribute = _place(name)[1]
    if attribute == MODE and type(value) is bool:
        return
    of_class = getattr(type(module), attribute, None)
    is_odd = not attribute or attribute.startswith("__") or callable(of_class) or hasattr(of_class, "__get__")
    if attribute == MODE or is_odd or (name not in given and attribute in vars(module)):
        raise TrainError(f"load: model: {shown_name(name)} is {shown(value)}, which is no attribute to load")
    if type(module).__module__.partition(".")[0] != "gradloom":
        return
    if name not in given or _kind(given[name]) != _kind(value):
        seen = shown(given[name]) if name in given else "missing"
        raise TrainError(f"load: model: {shown_name(name)} is {shown(value)} in the state and {seen} here")


def _kind(value: Any) -> type:
    """Numbers are of one kind."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return float if is_number else type(value)


def _place(name: str) -> tuple[str, str]:
    """The path of a module, with its dot, and the attribute."""
    path, dot, attribute = name.rpartition(".")
    return path + dot, unescaped(attribute)
