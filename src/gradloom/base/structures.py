"""Structures: a plain array, or several as a dict or a tuple. Keys are texts, or positions from 0, or None if plain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .arguments import what_is
from .errors import DataError, DTypeError, ShapeError

Key = str | int | None
Structure = Any  # an array or value, or a dict or tuple of such


def mapped(function: Callable[[Any], Any], structure: Structure) -> Any:
    """The same structure with function(leaf) in the place of each leaf; tuples, lists and dicts may be nested."""
    if isinstance(structure, dict):
        return {key: mapped(function, one) for key, one in structure.items()}
    if isinstance(structure, (tuple, list)):
        inside = [mapped(function, one) for one in structure]
        return type(structure)(*inside) if hasattr(structure, "_fields") else type(structure)(inside)
    return function(structure)


def mapped_by_key(function: Callable[[Key, Any], Any], structure: Structure) -> Any:
    """The same structure of one level with function(key, leaf) in the place of each leaf."""
    if isinstance(structure, dict):
        return {key: function(key, one) for key, one in structure.items()}
    if isinstance(structure, tuple):
        return tuple(function(key, one) for key, one in enumerate(structure))
    return function(None, structure)


def is_plain(structure: Structure) -> bool:
    """Whether it is one array or value."""
    return not isinstance(structure, (dict, tuple))


def leaves(structure: Structure) -> list[Any]:
    """The arrays or values in order; none of None."""
    return list(by_key(structure).values())


def by_key(structure: Structure) -> dict[Key, Any]:
    """Key -> array or value; empty for None."""
    if structure is None:
        return {}
    if isinstance(structure, dict):
        return dict(structure)
    return dict(enumerate(structure)) if isinstance(structure, tuple) else {None: structure}


def at(structure: Structure, key: Key) -> Any:
    """The leaf at this key; None where there is none."""
    return by_key(structure).get(key)


def place(name: str, key: Key) -> str:
    """How messages name a leaf: data, data 'u', data[0]."""
    return name if key is None else f"{name} {key!r}" if isinstance(key, str) else f"{name}[{key}]"


def leaf_name(name: str, key: Key) -> str:
    """The name of a leaf among others: data, data.u, data[0]."""
    return name if key is None else f"{name}.{key}" if isinstance(key, str) else f"{name}[{key}]"


def output_name(key: Key) -> str:
    """The name of the numbers of an output: its key, or output_1 of the first position."""
    return f"output_{key + 1}" if isinstance(key, int) else str(key)


def named(name: str, structure: Structure) -> dict[str, Any]:
    """The leaves by leaf_name."""
    return {leaf_name(name, key): leaf for key, leaf in by_key(structure).items()}


def of_named(name: str, found: Mapping[str, Any]) -> Structure:
    """The structure that `named` took apart, among other names; None if it is not there."""
    if name in found:
        return found[name]
    texts = {n.removeprefix(f"{name}."): leaf for n, leaf in found.items() if n.startswith(f"{name}.")}
    positions = [leaf for n, leaf in found.items() if n.startswith(f"{name}[")]
    return texts or tuple(positions) or None


def listed(keys: Iterable[Key]) -> str:
    """How messages list keys: "u, v", "[0], [1]", "none"."""
    return ", ".join(key if isinstance(key, str) else f"[{key}]" for key in keys) or "none"


def as_several(name: str, what: object) -> Structure | None:
    """A dict of arrays, sorted by key, or a tuple of arrays; None for one array: also for a tuple of numbers or lists,
    which is one array.

    DataError for keys that are not usable, ShapeError for none and for structures inside, DTypeError for None inside.
    """
    if isinstance(what, Mapping):
        for key in what:
            if not isinstance(key, str) or not key or not key.isprintable() or "." in key:
                raise DataError(f"{name}: the key {key!r:.60}; must be a text without dots, such as 'u'")
        made: Any = {key: what[key] for key in sorted(what)}
    elif isinstance(what, tuple) and any(_is_array(one) for one in what):
        made = tuple(what)
    else:
        return None
    if not made:
        raise ShapeError(f"{name}: an empty {type(what).__name__}; need at least one array")
    for key, one in by_key(made).items():
        if one is None:
            raise DTypeError(f"{place(name, key)}: None; need an array")
        if isinstance(one, Mapping) or (isinstance(one, tuple) and any(_is_array(each) for each in one)):
            raise ShapeError(f"{place(name, key)}: {what_is(one)}; need an array: structures cannot be nested")
    return made


def _is_array(one: object) -> bool:
    return isinstance(one, Mapping) or bool(getattr(one, "shape", None))


def check_rows(name: str, structure: Structure, rows: int | None = None, of: str = "") -> int:
    """The number of rows of all arrays. ShapeError where one has others than the first one, or than `rows`, which `of`
    has."""
    for key, array in by_key(structure).items():
        if rows is None:
            rows, of = len(array), f"as {place(name, key)}"
        elif len(array) != rows:
            raise ShapeError(f"{place(name, key)}: {len(array)} rows; need {rows}, {of}")
    assert rows is not None
    return rows
