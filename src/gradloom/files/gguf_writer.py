"""Writing GGUF files, version 3, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.arrays import place_in
from ..base.errors import FileError
from .atomic import atomic_path
from .gguf_fields import VALUE_IDS, Field
from .gguf_types import (
    ALIGNMENT,
    AXES,
    KINDS,
    NAME_BYTES,
    PLAIN,
    TENSOR_NAME_BYTES,
    TYPE_IDS,
    first_not_finite,
    kind_bytes,
    show_name,
)

# what a tensor to write may be: an array of a plain type, or (kind, shape, its bytes or a function that gives pieces)
Source = np.ndarray | tuple[str, tuple[int, ...], Any]


def write_gguf(
    path: str | os.PathLike[str], fields: Mapping[str, Field], tensors: Mapping[str, Source], *, finite: bool = False
) -> int:
    """Write a GGUF file, version 3; whole or not at all. Returns its bytes.

    `fields` are written as they are, in their order; those of an open file give the same bytes again. A tensor is an
    array of a plain type, or (kind, shape in NumPy's order, source): `source` has the buffer protocol (a mapped file's
    bytes), or is a function without arguments that returns an iterable of those, called when that tensor is written,
    so that one piece at a time is in memory. finite: pieces are whole blocks, and a number or scale that is
    not finite is a FileError that names tensor and place. FileError: a name, shape or type that the format does not
    take; a disk too small.
    """
    alignment = ALIGNMENT
    if "general.alignment" in fields:
        field = fields["general.alignment"]
        alignment = field.value if field.kind == "u32" else 0
        if not alignment or alignment & (alignment - 1):
            raise FileError(f"{path}: general.alignment is {field!r}; need a power of two of kind u32")
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)))
    for key, value in fields.items():
        head += _name_bytes(path, "key", key, NAME_BYTES)
        head += struct.pack("<I", VALUE_IDS[value.kind])
        head += value.raw
    offset = 0
    sources: list[tuple[str, str, tuple[int, ...], int, Any]] = []
    for name, given in tensors.items():
        kind, shape, source = _source(path, name, given)
        shown = f"{path}: tensor {show_name(name)}"
        if len(shape) > AXES:
            raise FileError(f"{shown} has {len(shape)} axes; a .gguf file takes {AXES}")
        if not all(shape):
            raise FileError(f"{shown} of shape {list(shape)} is empty; a .gguf file needs elements")
        try:
            size = kind_bytes(kind, shape)
        except FileError as error:
            raise FileError(f"{shown} is {error}") from None
        head += _name_bytes(path, "tensor", name, TENSOR_NAME_BYTES)
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), TYPE_IDS[kind], offset)
        sources.append((name, kind, shape, size, source))
        offset = _padded(offset + size, alignment)
    if sources:
        head += bytes(_padded(len(head), alignment) - len(head))
    total = len(head) + offset
    with atomic_path(path, total) as part:
        if shutil.disk_usage(part.parent).free < total:  # raised before hours of work, not after
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(part, "wb") as file:
            file.write(head)
            for name, kind, shape, size, source in sources:
                written = 0
                for piece in source() if callable(source) else [source]:
                    if finite:
                        _check_finite(path, name, kind, shape, written, piece)
                    written += file.write(memoryview(piece))
                assert written == size, f"tensor {name!r} has {written} bytes; its kind and shape require {size}"
                file.write(bytes(_padded(size, alignment) - size))
    return total


def _check_finite(
    path: str | os.PathLike[str], name: str, kind: str, shape: tuple[int, ...], before: int, piece: Any
) -> None:
    """FileError if a piece of a tensor, which follows `before` bytes of it, holds a non-finite number."""
    bad = first_not_finite(kind, np.frombuffer(piece, np.uint8))
    if bad is not None:
        block, size = KINDS[kind]
        where = place_in(shape, before // size * block + bad[0])
        raise FileError(f"{path}: tensor {show_name(name)} ({kind}) holds {bad[1]}{where}; need finite numbers")


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _name_bytes(path: str | os.PathLike[str], what: str, name: str, most: int) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > most:
        raise FileError(f"{path}: {what} {show_name(name)} has {len(data)} bytes; a .gguf file takes {most}")
    return struct.pack("<Q", len(data)) + data


def _source(path: str | os.PathLike[str], name: str, given: Source) -> tuple[str, tuple[int, ...], Any]:
    """(kind, shape, source of its bytes)."""
    if isinstance(given, tuple):
        kind, shape, source = given
        if kind not in KINDS:
            raise FileError(f"{path}: tensor {show_name(name)} is of type {kind!r}; must be one of {' '.join(KINDS)}")
        return kind, tuple(shape), source
    array = np.asarray(given)
    kinds = {plain.name: kind for kind, plain in PLAIN.items()}
    if array.dtype.name not in kinds:
        raise FileError(f"{path}: tensor {show_name(name)} is {array.dtype}; a .gguf file holds {' '.join(kinds)}")
    kind = kinds[array.dtype.name]
    return kind, array.shape, lambda: [np.require(array, PLAIN[kind], "C").reshape(-1).view(np.uint8).data]
