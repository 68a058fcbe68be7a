"""Snapshot and restore of module attributes, object by object."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import pickle
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import DataError
from ..base.schema import anything, array, items, one_of, shown, shown_name, text, wrong
from ..graph.leaves import Parameter
from ..graph.opspec import OpSpec
from ..graph.value import Value
from ..nn.module import Module
from ..parallel.communicator import checksum
from .generators import state_of

LARGEST = 1 << 24  # bytes of an array that a checkpoint holds, and of a fingerprint

_PLAIN = (type(None), bool, int, float, str)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, np.ufunc, functools.partial)

# A code represents a value: a plain value itself; other values as lists whose first element is one of these.
TUPLE, AT, SAME = "tuple", "at", "same"  # [TUPLE, codes]; [AT, key of a holder]; [SAME, place of a leaf]


def code_of_value(value: Any, name: str) -> None:
    """Schema: a code as a checkpoint holds it."""
    if type(value) is not list:
        if not (type(value) in _PLAIN or isinstance(value, (np.number, np.bool_))):
            raise wrong(name, value, "a plain value or the code of one")
        return
    items(anything, 2)(value, name)
    word, what = value
    one_of(TUPLE, AT, SAME)(word, name)
    items(code_of_value)(what, name) if word == TUPLE else text(what, name)


def holder_content(value: Any, name: str) -> None:
    """Schema: the content of a holder, (name of its type, content). Dicts and objects have different keys, which can be
    keys: a holder of a list, dict or array as a key is no such."""
    items(anything, 2, (tuple, list))(value, name)
    kind, content = value
    text(kind, name)
    if kind == "ndarray":
        array()(content, name)
        return
    items(code_of_value)(content, name)
    if kind == "list":
        return
    keys = content[::2]
    if len(content) % 2 or len({repr(key) for key in keys}) < len(keys):
        raise DataError(f"{shown_name(name)}: {shown(content)} has no value for each key, or a key twice")
    for key in keys if kind != "dict" else ():
        if type(key) is not str:
            raise wrong(name, key, "the name of an attribute")


class Leaf:
    """In a code: an object that was not at this place when the run began, and cannot be saved."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Held(NamedTuple):
    """A holder: an object that can be filled in place."""

    value: Any  # list, dict, array, or an object with attributes
    root: str  # the first attribute that leads here
    content: Any  # [code, ...]; of dicts and objects [name, code, name, code, ...]; of an array a copy


class Snapshot:
    """The present values of attributes. Lists, dicts, arrays and objects with attributes are holders, each once however
    it is reached; other objects are leaves.

    roots: attribute -> value.
    begun: the snapshot of when the run began; None for that one itself. A holder that existed then keeps its key,
    the first place from which it was reached.
    """

    def __init__(self, roots: Mapping[str, Any], begun: Snapshot | None = None) -> None:
        self.begun = begun
        self.holders: dict[str, Held] = {}  # by key
        self.shared: dict[str, str] = {}  # further places of holders -> key
        self.leaves: dict[str, tuple[Any, str | None]] = {}  # place -> object, its fingerprint
        self.generators: dict[str, Any] = {}  # place -> random generator
        self.touched: set[str] = set()  # attributes with leaves that have changed in place since the run began
        self._keys: dict[int, str] = {}
        self._todo: list[tuple[str, Any, str]] = []
        self.codes = {}
        for name, value in roots.items():
            self.codes[name] = self._code(value, name, name)
            self._fill()
        for key, held in {} if begun is None else begun.holders.items():  # also those that no attribute leads to now
            self._code(held.value, key, held.root)
            self._fill()

    def changed(self, key: str) -> bool:
        """Whether this holder is new, or its content differs from that of the begin of the run."""
        assert self.begun is not None
        return key not in self.begun.holders or not same(self.holders[key].content, self.begun.holders[key].content)

    def _fill(self) -> None:
        while self._todo:
            key, value, root = self._todo.pop()
            self.holders[key] = Held(value, root, self._content(value, key, root))

    def _content(self, value: Any, key: str, root: str) -> Any:
        if isinstance(value, np.ndarray):
            return np.array(value)
        if isinstance(value, list):
            return [self._code(one, f"{key}[{i}]", root) for i, one in enumerate(value)]
        content = []
        for i, (name, one) in enumerate((value if isinstance(value, dict) else vars(value)).items()):
            is_plain = type(name) in _PLAIN
            content.append(name if is_plain else self._code(name, f"{key}#{i}", root))
            content.append(self._code(one, f"{key}[{name!r}]" if is_plain else f"{key}[#{i}]", root))
        return content

    def _code(self, value: Any, place: str, root: str) -> Any:
        if type(value) in _PLAIN or isinstance(value, (np.number, np.bool_)):
            return value
        if type(value) is tuple:
            return [TUPLE, [self._code(one, f"{place}[{i}]", root) for i, one in enumerate(value)]]
        if is_array(value) or type(value) in (list, dict) or has_attributes(value):
            key = self._keys.get(id(value))
            if key is None:
                key = self._key_of(value, place)
                if key is None:
                    return Leaf(value)
                self._keys[id(value)] = key
                self._todo.append((key, value, root))
            if key != place:
                self.shared[place] = key
            return [AT, key]
        return self._leaf(value, place, root)

    def _key_of(self, value: Any, place: str) -> str | None:
        if self.begun is None:
            return place
        key = self.begun._keys.get(id(value))
        if key is None:
            return None if has_attributes(value) else f"new {len(self._keys)}"
        is_other = isinstance(value, np.ndarray) and not _fits(value, self.begun.holders[key].content)
        return None if is_other else key

    def _leaf(self, value: Any, place: str, root: str) -> Any:
        is_generator = state_of(value) is not None
        begun = self if self.begun is None else self.begun
        print_ = None if is_generator else fingerprint(value)
        self.leaves[place] = value, print_
        before, print_before = begun.leaves.get(place, (None, None))
        is_same = before is value
        if is_same and print_ != print_before:
            self.touched.add(root)
        if not is_same and print_ is not None and type(before) is type(value):
            is_same = print_ == print_before
        if is_generator and (is_same or place == root):
            self.generators[place] = value
        return [SAME, place] if is_same else Leaf(value)


class Filling:
    """Restores values from codes, of this process or of another one, in the objects of this process.

    begun: of this process. contents: of holders, by their keys, with the name of a type each. KeyError for a code that
    names no holder.
    """

    def __init__(self, begun: Snapshot, contents: Mapping[str, tuple[str, Any]]) -> None:
        self._begun, self._contents = begun, contents
        self._objects: dict[str, Any] = {}
        for key, (kind, content) in contents.items():
            mine = self._mine(key)
            if mine is not None and type(mine.value).__name__ == kind:
                if kind == "ndarray" and not _fits(content, mine.content):
                    raise KeyError(key)
                self._objects[key] = mine.value
            elif kind in ("list", "dict", "ndarray"):
                self._objects[key] = {} if kind == "dict" else [] if kind == "list" else np.array(content)
            else:
                raise KeyError(key)
        for key, (kind, content) in contents.items():
            if kind != "ndarray":
                found = [self.value(code) for code in content]
            if kind not in ("list", "ndarray") and not all(map(_is_hashable, found[::2])):
                raise KeyError(key)

    def _mine(self, key: str) -> Held | None:
        return self._begun.holders.get(self._begun.shared.get(key, key))

    def value(self, code: Any) -> Any:
        """The value of a code."""
        if type(code) is not list:
            return code
        word, what = code
        if word == TUPLE:
            return tuple(self.value(one) for one in what)
        if word == SAME:
            return self._begun.leaves[what][0]
        if what in self._objects:
            return self._objects[what]
        mine = self._mine(what)
        if mine is None:
            raise KeyError(what)
        return mine.value

    def fill(self, keys: Iterable[str]) -> None:
        """Fill these holders in place."""
        for key in keys:
            value, content = self._objects[key], self._contents[key][1]
            if isinstance(value, np.ndarray):
                if _fits(value, content):
                    value[...] = content
            elif isinstance(value, list):
                value[:] = [self.value(code) for code in content]
            else:
                held = value if isinstance(value, dict) else vars(value)
                several = [self.value(code) for code in content]
                held.clear()
                held.update(zip(several[::2], several[1::2], strict=True))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _fits(array: np.ndarray, other: np.ndarray) -> bool:
    return array.shape == other.shape and array.dtype == other.dtype


def walk(codes: Iterable[Any]) -> Iterator[Any]:
    """The codes of holders and leaves among these, inside of tuples, too."""
    for code in codes:
        if type(code) is list:
            if code[0] == TUPLE:
                yield from walk(code[1])
            else:
                yield code
        elif isinstance(code, Leaf):
            yield code


def same(one: Any, other: Any) -> bool:
    """Whether two codes, or two contents of holders, are equal, to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, Leaf):
        return one.value is other.value
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)  # -0.0, nan


def escaped(name: str) -> str:
    """The name of an attribute without a dot."""
    return name.replace("%", "%25").replace(".", "%2E")


def unescaped(name: str) -> str:
    return name.replace("%2E", ".").replace("%25", "%")


# ---- kinds of objects ------------------------------------------------------------------------------------------------


def is_array(value: Any) -> bool:
    """An array that a checkpoint holds: of numbers, not too large, and one that can be written to."""
    is_plain = type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.fields is None
    return is_plain and value.flags.writeable and value.nbytes <= LARGEST


def has_attributes(value: Any) -> bool:
    """An object that is its attributes: of a class of the user's own, all of whose bases are written in Python, without
    slots."""
    kind = type(value)
    if kind is types.SimpleNamespace:
        return True
    if isinstance(value, (Module, *_FUNCTIONS)) or _is_ours(kind) or type(getattr(value, "__dict__", None)) is not dict:
        return False
    library = kind.__module__.partition(".")[0]
    if library in sys.stdlib_module_names and (kind.__module__, kind.__name__) != ("argparse", "Namespace"):
        return False
    bases = [vars(base) for base in kind.__mro__ if base is not object]
    return not any(base.get("__slots__") or isinstance(base.get("__new__"), types.BuiltinMethodType) for base in bases)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "gradloom"


_CONTAINERS = (dict, list, set, frozenset, collections.deque)


def fingerprint(value: Any) -> str | None:
    """A text that detects a change in place, within this process: of a large array a checksum, of other objects that of
    their pickle; None where that is larger than LARGEST or fails."""
    if isinstance(value, (Module, Parameter, Value, OpSpec, types.ModuleType, *_FUNCTIONS)) or _is_ours(type(value)):
        return None
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.size else b""
        return f"{value.dtype}{value.shape} {zlib.crc32(data)}"
    if type(value).__module__ == "itertools":
        return repr(value)
    sink = _Sink()
    try:
        _Pickler(sink, 5).dump(value)
        return sink.digest.hexdigest()
    except Exception:  # of any kind: it is the objects' own code
        with contextlib.suppress(Exception):
            return repr(value) if isinstance(value, _CONTAINERS) and sink.size <= LARGEST else None
    return None


class _Sink:
    """A file that keeps a checksum."""

    def __init__(self) -> None:
        self.digest, self.size = hashlib.blake2b(digest_size=8), 0

    def write(self, data: Any) -> None:
        self.size += memoryview(data).nbytes
        if self.size > LARGEST:
            raise BufferError("too large")
        self.digest.update(data)


class _Pickler(pickle.Pickler):
    """Layers, parameters, values of graphs and functions count by their identity."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, (Module, Value, types.FunctionType, types.ModuleType)) or _is_ours(type(value)):
            return id(value)
        return None


def described(value: Any, above: tuple[Any, ...] = ()) -> str | None:
    """Layers, parameters and functions, and containers of such, as a text that is the same in another process; None for
    other objects. above: the containers on the way to it."""
    if isinstance(value, Module):
        return type(value).__name__
    if isinstance(value, Parameter):
        return "a parameter"
    if isinstance(value, OpSpec):
        return value.name
    if isinstance(value, _FUNCTIONS):
        return _function(value, above)
    if type(value) in _PLAIN or isinstance(value, (np.number, np.bool_)):
        return repr(value)
    if type(value) in (tuple, list, dict) or has_attributes(value):
        if any(one is value for one in above):
            return None
        if not _parts(value):
            return repr(value)
        texts = [described(one, (*above, value)) for one in _parts(value)]
        known = [text for text in texts if text is not None]
        return f"{type(value).__name__}({', '.join(known)})" if len(known) == len(texts) else None
    return None


def _parts(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return list(value)
    return [one for pair in (value if isinstance(value, dict) else vars(value)).items() for one in pair]


def _function(value: Any, above: tuple[Any, ...]) -> str:
    """A named function by its name; a lambda or local function by its code and the values that it holds, too."""
    if isinstance(value, functools.partial):
        name, held = "partial", [value.func, *value.args, *(one for pair in value.keywords.items() for one in pair)]
    else:
        name = getattr(value, "__qualname__", value.__name__)
        if isinstance(value, types.MethodType) or "<" not in name:
            return name
        code = getattr(value, "__code__", None)
        held = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        held += getattr(value, "__defaults__", None) or ()
        name = f"{name} {_of_code(code)}" if code is not None else name
    above = (*above, value)
    texts = [None if any(one is each for each in above) else described(one, above) for one in held]
    known = [text or f"object {id(one):x}" for text, one in zip(texts, held, strict=True)]
    return f"{name}({', '.join(known)})" if known else name


def _of_code(code: types.CodeType) -> str:
    constants = [_of_code(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return checksum(code.co_code, repr(code.co_names), *constants)[:6]


def holds_values(value: Any, above: tuple[Any, ...] = ()) -> bool:
    """Whether it is a value of a graph, left there by forward, or a list, dict or object that holds one."""
    if type(value) in (tuple, list, dict) or has_attributes(value):
        deeper = not any(one is value for one in above)
        return deeper and any(holds_values(one, (*above, value)) for one in _parts(value))
    return isinstance(value, Value)
