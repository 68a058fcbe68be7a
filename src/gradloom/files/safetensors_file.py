"""Safetensors files, mapped: their head is checked as untrusted input, and tensors are read where they are stored.

    head        length u64, then that many bytes of JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}}
    data        follows; tensors without gaps or overlaps, to the end of the file

Format: the safetensors package's README.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..base.described import parse_object
from ..base.errors import DataError, FileError, one_line
from ..base.reasons import reason_of, remedy_of
from .gguf_types import show_name
from .regular import open_regular

# dtype -> its bits. Those of fewer than 8 bits are stored in whole bytes
_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
_MOST_AXES = 8


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file: dtype (as in the file), shape, first byte in the file, bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class SafetensorsFile:
    """A safetensors file that is open and mapped.

    path, size; tensors: name -> StoredTensor, in the order of their bytes. Raises FileError (one line) for a file that
    is not whole.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        try:
            self._file = open_regular(path, "need a safetensors file")
        except OSError as error:
            raise FileError(f"{path}: {reason_of(error)}{remedy_of(error)}") from None
        except ValueError as error:  # a NUL in the name
            raise FileError(f"{os.fspath(path)!r}: cannot be read ({error})") from None
        state = os.fstat(self._file.fileno())
        self.size = state.st_size
        self._state = (state.st_size, state.st_mtime_ns)
        if self.size < 8:
            self._fail(f"has {self.size} bytes; a safetensors file has at least 8: copy or download it again")
        try:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            self._fail(f"cannot be mapped ({getattr(error, 'strerror', None) or error})")
        self.tensors = self._head()

    def _fail(self, message: str) -> NoReturn:
        raise FileError(f"{self.path}: {message}")

    def _head(self) -> dict[str, StoredTensor]:
        (length,) = struct.unpack("<Q", self._map[:8])
        if self._map[:8] == b"version ":
            self._fail("is a pointer of Git LFS, not the file; fetch it with git lfs pull")
        if length > self.size - 8:
            self._fail(f"its head has {length} bytes, of which {self.size - 8} are there; copy or download it again")
        try:
            head = parse_object(self._map[8 : 8 + length].decode(), "the head")
        except (DataError, UnicodeDecodeError) as error:
            self._fail(f"is no safetensors file ({one_line(str(error))}); copy or download it again")
        head.pop("__metadata__", None)
        tensors = {name: self._tensor(name, entry, 8 + length) for name, entry in head.items()}
        ordered = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].bytes))
        at, before = 8 + length, ""
        for name, tensor in ordered:
            if tensor.offset != at:
                seen = f"tensor {show_name(name)} begins at byte {tensor.offset}"
                self._fail(f"{seen}; need {at}, the end of {show_name(before) if before else 'the head'}")
            at, before = at + tensor.bytes, name
        if at != self.size:
            seen = f"the tensors end at byte {at} of {self.size}"
            self._fail(f"{seen}; {'the file is cut: copy or download it again' if at > self.size else 'need no more'}")
        return dict(ordered)

    def _tensor(self, name: str, entry: Any, start: int) -> StoredTensor:
        """start: of the data, in bytes."""
        shown = f"tensor {show_name(name)}"
        known = isinstance(entry, dict) and {"dtype", "shape", "data_offsets"} <= set(entry)
        if not known:
            self._fail(f"{shown} is {one_line(entry)}; need dtype, shape and data_offsets")
        kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(kind, str) or kind not in _BITS:
            self._fail(f"{shown} is of dtype {one_line(kind)}; must be one of {' '.join(_BITS)}")
        if not _are_counts(shape) or len(shape) > _MOST_AXES:
            self._fail(f"{shown} has shape {one_line(shape)}; need at most {_MOST_AXES} sizes")
        if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(f"{shown} has data_offsets {one_line(offsets)}; need a begin and an end")
        size, bits = offsets[1] - offsets[0], math.prod(shape) * _BITS[kind]
        if 8 * size != bits:
            self._fail(f"{shown} has {size} bytes; {kind}{shape} takes {bits / 8:.16g}")
        return StoredTensor(kind, tuple(shape), start + offsets[0], size)

    def bytes(self, name: str) -> np.ndarray:
        """The bytes of a tensor, u8 [n], read-only, in the mapped file."""
        tensor = self.tensors[name]
        return np.frombuffer(self._map, np.uint8, tensor.bytes, tensor.offset)

    def release(self, name: str) -> None:
        """Release the memory pages of a tensor's bytes: the system reads them again at the next access."""
        if hasattr(mmap, "MADV_DONTNEED"):
            tensor = self.tensors[name]
            start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.bytes - start)

    def check(self) -> None:
        """FileError when the mapped file has another size or time of change than when it was opened."""
        state = os.fstat(self._file.fileno())
        if (state.st_size, state.st_mtime_ns) != self._state:
            size = f"{self.size} bytes then, {state.st_size} now" if state.st_size != self.size else "written to"
            self._fail(f"has changed since it was opened ({size}); open it again")


def _are_counts(values: Any) -> bool:
    """A list of whole numbers from 0 on, below 2^63."""
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in values)
