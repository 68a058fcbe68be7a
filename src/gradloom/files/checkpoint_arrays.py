"""The arrays of a checkpoint, read from a file of safetensors in one pass: its bytes are hashed as they are read."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..base.described import LONGEST, Described, parse_object
from ..base.errors import DataError

DTYPES = {
    "I64": np.int64, "F64": np.float64, "F32": np.float32, "I32": np.int32, "BF16": ml_dtypes.bfloat16,
    "F16": np.float16, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_MOST_AXES = 32


def read_arrays(file: BinaryIO, size: int) -> tuple[dict[str, np.ndarray], str]:
    """(arrays by name, SHA-256 of the whole file) of an open file of this size.

    The arrays must cover the file without gaps, as gradloom writes it. Nothing is allocated beyond the bytes that the
    file has. DataError for anything else; OSError.
    """
    if os.fstat(file.fileno()).st_size != size:
        raise DataError(f"it has {os.fstat(file.fileno()).st_size} bytes; need {size}")
    seen = hashlib.sha256()
    start = _read(file, 8, seen)
    length = struct.unpack("<Q", start)[0]
    if length > min(size - 8, 4 * LONGEST):
        raise DataError(f"its header has {length} bytes of {size}")
    try:
        head = parse_object(_read(file, length, seen).decode(), "its header")
    except UnicodeDecodeError:
        raise DataError("its header is no text of UTF-8") from None
    if "__metadata__" in head:
        raise DataError("its header has metadata, which a checkpoint has not")
    arrays: dict[str, np.ndarray] = {}
    for name, begin, end, array in sorted(_declared(head), key=lambda one: one[1:3]):
        if begin != file.tell() - 8 - length or end > size - 8 - length:
            raise DataError(f"array {name!r:.60} is at bytes {begin} to {end}, which leaves a gap or has no room")
        kind, shape = array
        try:
            made = np.empty(shape, kind)
        except ValueError:  # of no elements, with axes that no array has
            raise DataError(f"array {name!r:.60} has shape {str(shape)[:60]}, which no array has") from None
        view = made.reshape(-1).view(np.uint8).data
        if file.readinto(view) != len(view):  # type: ignore[attr-defined]
            raise DataError("it ends inside of an array")
        if made.dtype == np.bool_ and made.size and int(made.view(np.uint8).max()) > 1:
            raise DataError(f"array {name!r:.60} holds other bytes than 0 and 1; need BOOL")
        seen.update(view)
        arrays[name] = made
    if file.tell() != size:
        raise DataError(f"{size - file.tell()} bytes after its arrays")
    return arrays, seen.hexdigest()


def _declared(head: dict[str, Any]) -> list[tuple[str, int, int, tuple[Any, tuple[int, ...]]]]:
    """(name, begin, end, (dtype, shape)) of each array that the header names."""
    found = []
    for name, value in head.items():
        fields = Described(value, "an array")
        kind = np.dtype(DTYPES[fields.text("dtype", tuple(DTYPES))])
        shape, offsets = fields.wholes("shape", 0), fields.wholes("data_offsets", 0)
        fields.end()
        if len(shape) > _MOST_AXES or len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * kind.itemsize:
            raise DataError(f"array {name!r:.60} has other bytes than {kind.name}{str(shape)[:60]} needs")
        found.append((name, offsets[0], offsets[1], (kind, tuple(shape))))
    return found


def _read(file: BinaryIO, size: int, seen: Any) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise DataError("it ends inside of its header")
    seen.update(data)
    return data
