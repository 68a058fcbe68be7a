"""Named arrays in one file: .safetensors or .gguf, chosen by the suffix.

Shapes are NumPy's; in a GGUF file they are stored reversed, as ggml's `ne`. What is loaded equals what was saved, in
dtype, shape and bytes. A truncated or corrupted file is a FileError, whatever its bytes are.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..base.errors import FileError
from .atomic import atomic_path

_BF16 = np.dtype(ml_dtypes.bfloat16)
_SAFETENSORS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_GGUF = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8")
_GGUF_NAME_BYTES = 63  # ggml's GGML_MAX_NAME, less its terminator
_SCALARS = "gradloom.scalars"  # names of the arrays of shape (), which GGUF has no way to say


def save_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays, and a mapping of texts, into one .safetensors or .gguf file; whole or not at all."""
    kind = _kind(path)
    allowed = _SAFETENSORS if kind == ".safetensors" else _GGUF
    ready: dict[str, np.ndarray] = {}
    for name, value in arrays.items():
        if not isinstance(name, str) or not name:
            raise FileError(f"{path}: array name {name!r} is not usable; need a text")
        array = np.asarray(value)
        if array.dtype.name not in allowed:
            raise FileError(f"{path}: array {name!r} is {array.dtype}; a {kind} file holds {' '.join(allowed)}")
        # little-endian and dense, as in the file
        ready[name] = np.require(array, dtype=array.dtype.newbyteorder("<"), requirements="C").reshape(array.shape)
    texts = dict(metadata or {})
    for key, text in texts.items():
        if not isinstance(key, str) or not key or not isinstance(text, str):
            raise FileError(f"{path}: metadata {key!r} is {type(text).__name__}; need texts")
    (_save_safetensors if kind == ".safetensors" else _save_gguf)(path, ready, texts)


def load_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays, metadata) of a .safetensors or .gguf file; the arrays are copies that do not need the file any more."""
    kind = _kind(path)
    _check_file(path)
    return _load_safetensors(path) if kind == ".safetensors" else _load_gguf(path)


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
        raise FileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    if os.path.isdir(path):
        raise FileError(f"{path}: is a folder; need a file")
    if size == 0:
        raise FileError(f"{path}: is empty (0 bytes)")
    return size


def _bytes_of(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(a.nbytes for a in arrays.values())


def _save_safetensors(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    from safetensors import SafetensorError, TensorSpec, serialize_file

    if "__metadata__" in arrays:
        raise FileError(f"{path}: array name '__metadata__' is taken by the format; need another name")
    specs = {
        name: TensorSpec(dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in arrays.items()
    }
    # one entry, whose text is in order: the package writes several entries in an order of its own
    entry = {"gradloom": json.dumps(metadata)} if metadata else None
    with atomic_path(path, _bytes_of(arrays)) as part:
        try:
            serialize_file(specs, part, metadata=entry)
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))
            raise OSError(int(found[1]) if found else errno.EIO, _strerror(found, error)) from None


def _strerror(found: re.Match[str] | None, error: Exception) -> str:
    return os.strerror(int(found[1])) if found else str(error)


def _load_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    arrays: dict[str, np.ndarray] = {}
    try:
        with safe_open(os.fspath(path), framework="np", backend="pread") as file:
            metadata = file.metadata() or {}
            late = []
            for name in file.keys():  # noqa: SIM118 - not a dict
                if file.get_slice(name).get_dtype() == "BF16":  # which the package does not hand to NumPy
                    late.append(name)
                else:
                    arrays[name] = np.array(file.get_tensor(name))
        if late:
            arrays.update(_read_bf16(path, late))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise FileError(f"{path}: is no whole safetensors file ({_one_line(error)}); write it again") from None
    if set(metadata) == {"gradloom"}:
        try:
            inner = json.loads(metadata["gradloom"])
        except ValueError:
            inner = None
        if not isinstance(inner, dict) or not all(isinstance(v, str) for v in inner.values()):
            raise FileError(f"{path}: its metadata is damaged; write it again")
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
    from gguf import GGMLQuantizationType, GGUFWriter

    for name, array in arrays.items():
        if len(name.encode()) > _GGUF_NAME_BYTES:
            raise FileError(f"{path}: array name {name!r} has {len(name.encode())} bytes; a .gguf file takes 63")
        if array.ndim > 4:
            raise FileError(f"{path}: array {name!r} has {array.ndim} axes; a .gguf file takes 4")
        if array.size == 0:
            raise FileError(
                f"{path}: array {name!r} of shape {list(array.shape)} is empty; a .gguf file needs elements"
            )
    with atomic_path(path, _bytes_of(arrays)) as part:
        writer = GGUFWriter(part, metadata.get("general.architecture", "gradloom"))
        try:
            for key, text in metadata.items():
                if key != "general.architecture":
                    if not text:
                        raise FileError(f"{path}: metadata {key!r} is an empty text, which a .gguf file cannot hold")
                    writer.add_string(key, text)
            scalars = [name for name, a in arrays.items() if a.ndim == 0]
            if scalars:
                writer.add_string(_SCALARS, json.dumps(scalars))
            for name, a in arrays.items():
                kind = GGMLQuantizationType.BF16 if a.dtype == _BF16 else None
                writer.add_tensor_info(name, a.shape or (1,), a.dtype, a.nbytes, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            assert writer.fout is not None
            file = writer.fout[0]
            writer.write_padding(file, file.tell())
            for a in arrays.values():
                file.write(a.reshape(-1).view(np.uint8).data)  # ndarray.tofile would not say why it failed
                writer.write_padding(file, a.nbytes)
            writer.flush()
        finally:
            writer.close()


def _load_gguf(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

    with open(path, "rb") as file:
        head = file.read(24)
    size = os.stat(path).st_size
    if len(head) < 24 or head[:4] != b"GGUF":
        raise FileError(f"{path}: starts with {head[:4]!r} and has {size} bytes; a .gguf file starts with b'GGUF'")
    tensors, keys = struct.unpack("<QQ", head[8:24])
    if tensors * 24 + keys * 13 > size:  # the smallest records that the format allows
        raise FileError(f"{path}: its head counts {tensors} arrays and {keys} keys, which {size} bytes cannot hold")
    arrays: dict[str, np.ndarray] = {}
    metadata: dict[str, str] = {}
    try:
        with np.errstate(all="ignore"):
            reader = GGUFReader(path)
        for key, field in reader.fields.items():
            if field.types[:1] == [GGUFValueType.STRING]:
                metadata[key] = field.contents()
        scalars = json.loads(metadata.pop(_SCALARS, "[]"))
        for tensor in reader.tensors:
            data = tensor.data
            if tensor.data_offset + tensor.n_bytes > size:
                raise ValueError(f"array {tensor.name!r} ends at byte {tensor.data_offset + tensor.n_bytes}")
            if tensor.tensor_type == GGMLQuantizationType.BF16:
                data = np.ascontiguousarray(data).view(_BF16)
            elif data.dtype == np.uint8:
                kind = tensor.tensor_type.name
                raise FileError(
                    f"{path}: array {tensor.name!r} is quantised ({kind}); need f32 f16 bf16 f64 or integers"
                )
            data = np.array(data)  # a copy: the file may change or go away
            arrays[tensor.name] = data.reshape(()) if tensor.name in scalars else data
    except FileError:
        raise
    except Exception as error:  # the package raises whatever its slicing of bad bytes happens to end in
        raise FileError(
            f"{path}: is no whole .gguf file of {size} bytes ({_one_line(error)}); write it again"
        ) from None
    if metadata.get("general.architecture") == "gradloom":
        del metadata["general.architecture"]
    return arrays, metadata


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
