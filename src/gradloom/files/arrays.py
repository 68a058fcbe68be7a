"""Named arrays in one file: .safetensors or .gguf, chosen by the suffix.

Shapes are NumPy's; in a GGUF file they are stored reversed, as ggml's `ne`. Loaded arrays equal the saved ones in
dtype, shape and bytes. A truncated or corrupted file is a FileError, whatever its bytes are.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..base.arrays import as_array, not_finite
from ..base.described import LONGEST, parse_object
from ..base.errors import DataError, FileError
from ..base.reasons import is_of_system, reason_of, remedy_of, unreadable
from .atomic import atomic_path, read_together
from .gguf import open_gguf
from .gguf_fields import field
from .gguf_types import PLAIN
from .gguf_writer import write_gguf

_BF16 = np.dtype(ml_dtypes.bfloat16)
# NumPy's names -> those of the file, in the order in which the safetensors package lays arrays out
_SAFETENSORS = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16", "float16": "F16",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_READ = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
_GGUF = tuple(plain.name for plain in PLAIN.values())
_SCALARS = "gradloom.scalars"  # names of the arrays of shape (), which GGUF cannot represent


def save_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays, and a mapping of texts, into one .safetensors or .gguf file; whole or not at all."""
    kind = _kind(path)
    ready = _ready(path, arrays, _SAFETENSORS if kind == ".safetensors" else _GGUF, kind)
    texts = dict(metadata or {})
    for key, text in texts.items():
        if not isinstance(key, str) or not key or not isinstance(text, str):
            raise FileError(f"{path}: metadata {key!r} is {type(text).__name__}; need texts")
    if kind == ".gguf":
        _save_gguf(path, ready, texts)
        return
    size, pieces = _safetensors(path, ready, texts)
    with atomic_path(path, size) as part, open(part, "wb") as file:
        for piece in pieces:
            file.write(piece)


def safetensors_of(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> tuple[int, Iterator[Any]]:
    """(size, pieces) of the .safetensors file of these arrays: what save_arrays writes. path: for messages."""
    return _safetensors(path, _ready(path, arrays, _SAFETENSORS, ".safetensors"), {})


def _ready(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], allowed: Collection[str], kind: str
) -> dict[str, np.ndarray]:
    """The arrays, little-endian and dense; FileError for names and dtypes that a file of this kind cannot hold."""
    ready: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        if not isinstance(name, str) or not name:
            raise FileError(f"{path}: array name {name!r} is not usable; need a text")
        array = as_array(name, value)
        if array.dtype.name not in allowed:
            raise FileError(f"{path}: array {name!r} is {array.dtype}; a {kind} file holds {' '.join(allowed)}")
        ready[name] = np.require(array, dtype=array.dtype.newbyteorder("<"), requirements="C").reshape(array.shape)
    return ready


def load_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays, metadata) of a .safetensors or .gguf file; the arrays are copies that do not need the file any more."""
    kind = _kind(path)

    def load(place: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        _check_file(place)
        return _load_safetensors(place) if kind == ".safetensors" else _load_gguf(place)

    where = Path(path)
    return read_together(where.parent, [where.name], load)


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a .safetensors or .gguf file, without its arrays."""
    kind = _kind(path)

    def load(place: Path) -> dict[str, str]:
        _check_file(place)
        if kind == ".safetensors":
            return _load_safetensors(place, only_metadata=True)[1]
        file = open_gguf(place)
        return {key: file.metadata[key] for key, f in file.fields.items() if f.kind == "string"}

    where = Path(path)
    return read_together(where.parent, [where.name], load)


def need_finite(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """FileError that names the first array which holds NaN or infinite numbers: such a file is no good model."""
    seen = not_finite(arrays)
    if seen is not None:
        raise FileError(f"{path}: {seen}; need finite ones")


def _kind(path: str | os.PathLike[str]) -> str:
    kind = Path(path).suffix.lower()
    if kind not in (".safetensors", ".gguf"):
        raise FileError(f"{path}: suffix {kind or '(none)'} is not known; need .safetensors or .gguf")
    return kind


def _check_file(path: str | os.PathLike[str]) -> int:
    """Size of a file that exists and is not empty."""
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise FileError(f"{path}: {reason_of(error)}{remedy_of(error)}") from None
    if os.path.isdir(path):
        raise FileError(f"{path}: is a folder; need a file")
    if size == 0:
        raise FileError(f"{path}: is empty (0 bytes)")
    return size


def _safetensors(
    path: str | os.PathLike[str], arrays: dict[str, np.ndarray], metadata: dict[str, str]
) -> tuple[int, Iterator[Any]]:
    """(size, pieces) of the file, as the safetensors package would write it."""
    if "__metadata__" in arrays:
        raise FileError(f"{path}: array name '__metadata__' is taken by the format; need another name")
    order = list(_SAFETENSORS)
    names = sorted(arrays, key=lambda name: (order.index(arrays[name].dtype.name), name))
    # one entry, whose text is in order: the package writes several entries in an order of its own
    head: dict[str, Any] = {"__metadata__": {"gradloom": json.dumps(metadata)}} if metadata else {}
    if metadata and len(head["__metadata__"]["gradloom"]) > LONGEST:
        seen = len(head["__metadata__"]["gradloom"])
        raise FileError(f"{path}: {seen} characters of metadata; need at most {LONGEST}")
    end = 0
    for name in names:
        array, begin = arrays[name], end
        end += array.nbytes
        head[name] = {
            "dtype": _SAFETENSORS[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end],
        }  # fmt: skip
    try:
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise FileError(f"{path}: the name {error.object[error.start :]!r:.60} is no text of UTF-8") from None
    text += b" " * (-len(text) % 8)
    pieces = (arrays[name].reshape(-1).view(np.uint8).data for name in names)
    return 8 + len(text) + end, itertools.chain([struct.pack("<Q", len(text)) + text], pieces)


def _load_safetensors(
    path: str | os.PathLike[str], only_metadata: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    arrays: dict[str, np.ndarray] = {}
    try:
        with safe_open(os.fspath(path), framework="np", backend="pread") as file:
            metadata = file.metadata() or {}
            late = []
            for name in [] if only_metadata else file.keys():
                kind = file.get_slice(name).get_dtype()
                if kind not in _READ:
                    raise FileError(f"{path}: array {name!r:.60} is {kind}; must be one of {' '.join(_READ)}")
                if kind == "BF16":  # which the package does not hand to NumPy
                    late.append(name)
                else:
                    arrays[name] = np.array(file.get_tensor(name))
        if late:
            arrays.update(_read_bf16(path, late))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        if isinstance(error, OSError) and is_of_system(error):
            raise FileError(f"{path}: {unreadable(error)}") from None
        raise FileError(f"{path}: is no whole safetensors file ({_one_line(error)}); write it again") from None
    if set(metadata) == {"gradloom"}:
        try:
            inner = parse_object(metadata["gradloom"], "its metadata")
        except DataError as error:
            raise FileError(f"{path}: {_one_line(error)}; write it again") from None
        for key, value in inner.items():
            if not isinstance(value, str):
                raise FileError(f"{path}: its metadata {key!r:.60} is no text; write it again")
        metadata = inner
    return arrays, metadata


def _read_bf16(path: str | os.PathLike[str], names: list[str]) -> dict[str, np.ndarray]:
    """bf16 arrays of a file whose header the package has already checked."""
    arrays = {}
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        for name in names:
            begin, end = header[name]["data_offsets"]
            file.seek(8 + size + begin)
            arrays[name] = np.frombuffer(bytearray(file.read(end - begin)), _BF16).reshape(header[name]["shape"])
    return arrays


def _save_gguf(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    texts = {"general.architecture": "gradloom", **metadata}
    scalars = [name for name, a in arrays.items() if a.ndim == 0]
    if scalars:
        texts[_SCALARS] = json.dumps(scalars)
    ready = {name: a.reshape(a.shape or (1,)) for name, a in arrays.items()}
    write_gguf(path, {key: field("string", text) for key, text in texts.items()}, ready)


def _load_gguf(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    file = open_gguf(path)
    metadata: dict[str, str] = {key: file.metadata[key] for key, f in file.fields.items() if f.kind == "string"}
    scalars = _scalar_names(path, metadata.pop(_SCALARS, "[]"))
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in file.tensors.items():
        array = file.decoded(name)  # a copy: the file may change or go away
        arrays[name] = array.reshape(() if name in scalars and array.size == 1 else tensor.shape)
    if metadata.get("general.architecture") == "gradloom":
        del metadata["general.architecture"]
    return arrays, metadata


def _scalar_names(path: str | os.PathLike[str], text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list):
        raise FileError(f"{path}: key {_SCALARS!r} is {text!r:.60}; need a list of names")
    return names


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
