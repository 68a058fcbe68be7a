"""save_gguf and load_gguf: arrays with a type per tensor and metadata, for ggml's own loaders and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..base.arguments import need_path, what_is
from ..base.arrays import as_array
from ..base.dtypes import QUANTISED
from ..base.errors import FileError, SettingError
from ..base.habits import hinted, value_hint
from ..base.patterns import matched
from ..files import need_finite, open_gguf, write_gguf
from ..files.gguf_fields import NUMBERS, Field, field
from ..files.gguf_types import PLAIN, show_name
from ..nn.module import Module
from ..parallel.join import is_writer
from ..run import quantize

TYPES = (*PLAIN, *(kind.name for kind in QUANTISED))  # that can be written
_QUANTISED = tuple(kind.name for kind in QUANTISED)
_ARCHITECTURE = "general.architecture"


@hinted
def save_gguf(
    what: Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    types: str | Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write the arrays of a network, or a dict of arrays, as the tensors of a .gguf file (whole or not at all).

    types     the type of all tensors, or pattern of names -> type: {"fc*.weight": "q8_0", "*": "f32"} (* ? [abc], the
              first that matches counts). Types are f32 f16 bf16 f64 i8 i16 i32 i64 and q8_0 q6_k q5_k q5_1 q5_0 q4_k
              q4_1 q4_0 q3_k q2_k, rounded as by ggml without an importance matrix. By default each array keeps its
              dtype.
    metadata  key -> value: a str, bool, int (u32, or i32, u64, i64 where the value requires it) or float (f32, or f64
              beyond its range), a list of these (ints as i32, i64 or u64), or a NumPy scalar or array, whose dtype is
              kept

    Shapes are stored in ggml's order (`ne`, the reverse of NumPy's); shape () as [1]. The file has
    general.architecture ("gradloom" by default), and general.quantization_version if a tensor is quantised.
    `load_gguf` reads it; `gl.load(net, path)` reads it into a network.
    Among ranks of mpiexec that train together, rank 0 alone writes.

    Raises FileError for names of more than 63 bytes, more than 4 axes, rows that are not a multiple of a type's block,
    numbers that are not finite or beyond the type's range; SettingError for unknown types, and patterns that match no
    name.
    """
    need_path(path, "save_gguf", "path", "that of a .gguf file")
    if not isinstance(what, (Module, Mapping)):
        raise SettingError(f"save_gguf: got {what_is(what)}; need a network or a dict of arrays")
    if not os.fspath(path).endswith(".gguf"):
        raise SettingError(f"save_gguf: {path}: requires the ending .gguf; gl.save writes .safetensors files")
    arrays = what.state_dict() if isinstance(what, Module) else {n: as_array(str(n), a) for n, a in what.items()}
    for name in arrays:
        if not isinstance(name, str) or not name:
            raise FileError(f"{path}: array name {name!r:.60} is not usable; need a text")
    kinds = _kinds(types, list(arrays))
    fields = _fields(path, metadata or {})
    if set(kinds.values()) & set(_QUANTISED):
        fields.setdefault("general.quantization_version", field("u32", 2))
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise FileError(f"{path}: tensor {show_name(name)} is {array.dtype}; need numbers")
    need_finite(path, arrays)
    if is_writer():
        tensors = {name: _tensor(path, name, array, kinds.get(name)) for name, array in arrays.items()}
        write_gguf(path, fields, tensors, finite=True)


@hinted
def load_gguf(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, metadata) of a .gguf file of any program.

    Arrays have NumPy's order of axes, the reverse of ggml's `ne`; quantised tensors are decoded to f32, others keep
    their dtype. They are copies. Metadata values are str, bool, int, float, NumPy arrays, and lists of str. Raises
    FileError for a damaged file, and for types that cannot be decoded.
    """
    need_path(path, "load_gguf", "path", "that of a .gguf file")
    file = open_gguf(path)
    return {name: file.decoded(name) for name in file.tensors}, dict(file.metadata)


def _kinds(types: str | Mapping[str, str] | None, names: list[str]) -> dict[str, str]:
    """The requested type of each name that has one."""
    rules = {"*": types} if isinstance(types, str) else dict(types or {})
    for pattern, kind in rules.items():
        if not isinstance(kind, str) or kind not in TYPES:
            text = f"{{types}}: {kind!r:.40} cannot be written; must be one of {' '.join(TYPES)}"
            raise SettingError(text + value_hint("type", kind, TYPES), setting="types", place="save_gguf")
        if pattern != "*":
            matched("types", [pattern], names, place="save_gguf")
    chosen = {name: next((rules[p] for p in rules if fnmatchcase(name, p)), None) for name in names}
    return {name: kind for name, kind in chosen.items() if kind is not None}


def _tensor(path: Any, name: str, array: np.ndarray, kind: str | None) -> Any:
    """An array for write_gguf, or (type, shape, function that returns the bytes)."""
    array = array.reshape(array.shape or (1,))
    if kind is None or kind == array.dtype.name:
        return array
    where = f"{path}: tensor {show_name(name)} is {array.dtype}"
    if kind not in PLAIN or PLAIN[kind].kind not in "iu":
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise FileError(f"{where}; {kind} holds floating-point numbers: give it a type of its own in types")
        if kind == "f64":
            return array.astype(np.float64)
        return kind, array.shape, lambda: [quantize(_as_f32(array), kind)]
    whole = array.astype(PLAIN[kind])
    if not np.array_equal(whole, array):
        raise FileError(f"{where}, with numbers that {kind} does not hold")
    return whole


def _as_f32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _fields(path: Any, metadata: Mapping[str, Any]) -> dict[str, Field]:
    fields = {_ARCHITECTURE: field("string", "gradloom")}
    for key, value in metadata.items():
        if not isinstance(key, str) or not key:
            raise FileError(f"{path}: metadata key {key!r:.60} is not usable; need a text")
        try:
            fields[key] = _field(value)
        except (FileError, OverflowError, TypeError) as error:
            raise FileError(f"{path}: metadata {show_name(key)}: {error}") from None
    return fields


_OF_DTYPE = {dtype: kind for kind, dtype in NUMBERS.items() if kind != "bool"}


def _field(value: Any) -> Field:
    """A metadata value with the kind that its type implies."""
    if isinstance(value, str):
        return field("string", value)
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "bool" if value.dtype == bool else _OF_DTYPE.get(value.dtype.newbyteorder("<"))
        if kind is None or value.ndim > 1:
            raise FileError(f"is an array of {value.dtype}{list(value.shape)}; need one axis and a type of GGUF files")
        return field("array", value, item=kind) if value.ndim else field(kind, value)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(one, str) for one in value):
            return field("array", value, item="string")
        return _field(_as_numbers(value))
    if isinstance(value, bool):
        return field("bool", value)
    if isinstance(value, float):
        return field("f64" if _beyond_f32(value) else "f32", value)
    if isinstance(value, int):
        limits = (("u32", 0, 1 << 32), ("i32", -(1 << 31), 1 << 31), ("u64", 0, 1 << 64), ("i64", -(1 << 63), 1 << 63))
        kind = next((name for name, least, end in limits if least <= value < end), None)
        if kind is not None:
            return field(kind, value)
    raise FileError(f"is {what_is(value)}; need a text, a number, a bool, or a list of one of these")


def _as_numbers(values: list[Any] | tuple[Any, ...]) -> np.ndarray:
    if all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        for dtype in (np.int32, np.int64, np.uint64):
            limits = np.iinfo(dtype)
            if all(limits.min <= one <= limits.max for one in values):
                return np.array(values, dtype)
        raise FileError("is a list of whole numbers beyond 64 bits, or of both signs beyond 63; need smaller ones")
    array = np.array(values)
    return array if array.dtype.kind != "f" or _beyond_f32(array) else array.astype(np.float32)


def _beyond_f32(value: Any) -> bool:
    finite = np.abs(np.asarray(value, np.float64))
    return bool((finite[np.isfinite(finite)] > np.finfo(np.float32).max).any())
