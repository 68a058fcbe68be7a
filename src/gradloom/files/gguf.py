"""GGUF model files (versions 2 and 3, little-endian): mapped when read, whole or not at all when written.

    head        b"GGUF", version u32, tensors u64, keys u64
    keys        name, value kind u32, value; a string is its length u64 and its bytes; an array its item kind u32,
                count u64 and items
    tensors     name, axes u32, sizes u64 each (fastest axis first), type u32, offset u64 from the start of the data
    data        begins at the next multiple of `general.alignment` (32); so does each tensor in it

The file is untrusted input: each count, length, offset and product is checked against the bytes that are present
before it is used, so that no file makes the reader allocate more than a small multiple of its own bytes. Weights
are never copied: `GGUF.bytes` returns views of the mapped file. Format: ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from typing import Any

import numpy as np

from ..base.dtypes import QUANTISED
from ..base.errors import FileError
from ..base.extras import optional
from ..base.hooks import dequantizer
from ..base.reasons import reason_of, remedy_of
from .gguf_fields import Field, Metadata
from .gguf_head import Head, TensorInfo
from .gguf_types import NO_WEIGHTS, PLAIN, show_name

_PIECE = 1 << 20  # elements that are converted at a time
_QUANTISED = frozenset(kind.name for kind in QUANTISED)  # decoded by the core


class GGUF:
    """A GGUF file that is open: see open_gguf.

    path        as given
    version     2 or 3
    size        bytes of the file
    alignment   of the tensors
    fields      key -> Field, in the file's order: for writing them again exactly
    metadata    key -> value
    tensors     name -> TensorInfo, in the file's order
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._file = _open(path)
        state = os.fstat(self._file.fileno())
        self.size = state.st_size
        self._state = (state.st_size, state.st_mtime_ns)
        try:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # no room in the address space; emptied a moment ago
            raise FileError(f"{path}: cannot be mapped ({getattr(error, 'strerror', None) or error})") from None
        head = Head(str(path), memoryview(self._map), self.size)
        self.version, self.alignment = head.version, head.alignment
        self.fields: dict[str, Field] = head.fields
        self.metadata = Metadata(self.fields)
        self.tensors: dict[str, TensorInfo] = head.tensors

    def bytes(self, name: str) -> np.ndarray:
        """The bytes of a tensor, u8 [n], read-only, in the mapped file."""
        tensor = self.tensor(name)
        return np.frombuffer(self._map, np.uint8, tensor.bytes, tensor.offset)

    def release(self, name: str) -> None:
        """Release the memory pages of a tensor's bytes: the system reads them again at the next access."""
        if hasattr(mmap, "MADV_DONTNEED"):
            tensor = self.tensor(name)
            start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.bytes - start)

    def array(self, name: str) -> np.ndarray:
        """A tensor of a plain type (f32 f16 bf16 f64 i8 i16 i32 i64) in its shape, read-only, in the mapped file."""
        tensor = self.tensor(name)
        if tensor.kind not in PLAIN:
            raise FileError(f"{self.path}: array {name!r} is quantised ({tensor.kind}); need {' '.join(PLAIN)}")
        return self.bytes(name).view(PLAIN[tensor.kind]).reshape(tensor.shape)

    def floats(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows begin:end of a tensor as f32 [rows, row length], a copy; all axes but the last are counted as rows.

        Quantised types are dequantised by the gguf package; FileError for those that it cannot.
        """
        tensor = self.tensor(name)
        length = tensor.shape[-1] if tensor.shape else 1
        rows = self.bytes(name).reshape(math.prod(tensor.shape[:-1]), -1)[begin:end]
        if tensor.kind in PLAIN:
            with np.errstate(over="ignore"):  # an f64 beyond f32 is infinite
                return rows.view(PLAIN[tensor.kind]).astype(np.float32)
        gguf = optional("gguf", f"{self.path}: tensor {show_name(name)} ({tensor.kind})", "llm")
        try:
            with np.errstate(all="ignore"):  # blocks may hold infinite scales
                values = gguf.dequantize(np.ascontiguousarray(rows), gguf.GGMLQuantizationType[tensor.kind.upper()])
        except (KeyError, NotImplementedError):
            raise FileError(
                f"{self.path}: tensor {show_name(name)} is {tensor.kind}, which cannot be dequantised"
            ) from None
        return np.asarray(values, np.float32).reshape(-1, length)

    def decoded(self, name: str) -> np.ndarray:
        """A tensor in its shape, a copy: of a plain type as it is, of a quantised one as f32."""
        tensor = self.tensor(name)
        if tensor.kind in PLAIN:
            return np.array(self.array(name))
        if tensor.kind in _QUANTISED:
            return dequantizer(self.bytes(name), tensor.kind, tensor.shape)
        return self.floats(name).reshape(tensor.shape)

    def weights(self, name: str, out: np.ndarray) -> None:
        """A tensor of weights, as `floats`, into f32 [..., row length]; some rows at a time.

        FileError for a type that no weight has, or that cannot be dequantised.
        """
        self.check_weight(name)
        rows = out.reshape(-1, out.shape[-1] if out.shape else 1)
        step = max(1, _PIECE // rows.shape[1])
        for begin in range(0, len(rows), step):
            rows[begin : begin + step] = self.floats(name, begin, begin + step)

    def check_weight(self, name: str) -> None:
        """FileError for a tensor of a type that no weight has."""
        kind = self.tensor(name).kind
        if kind in NO_WEIGHTS:
            raise FileError(
                f"{self.path}: tensor {show_name(name)} is {kind}, a type that no weight has; need f32, f16, bf16 or a "
                "quantised one"
            )

    def tensor(self, name: str) -> TensorInfo:
        """FileError when the file has no tensor of that name."""
        if name not in self.tensors:
            raise FileError(f"{self.path}: has no tensor {name!r}; it has {len(self.tensors)} others")
        return self.tensors[name]

    def check(self) -> None:
        """FileError when the file that is mapped has another size or time of change than when it was opened."""
        state = os.fstat(self._file.fileno())
        if (state.st_size, state.st_mtime_ns) != self._state:
            size = f"{self.size} bytes then, {state.st_size} now" if state.st_size != self.size else "written to"
            raise FileError(f"{self.path}: has changed since it was opened ({size}); open it again")

    def __repr__(self) -> str:
        return f"GGUF({os.fspath(self.path)!r}, {len(self.fields)} keys, {len(self.tensors)} tensors)"


def open_gguf(path: str | os.PathLike[str]) -> GGUF:
    """Map a GGUF file and check its whole head; FileError (one line, with the byte) for no whole file."""
    return GGUF(path)


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        # a pipe of that name must not make us wait for its writer
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise FileError(f"{path}: {reason_of(error)}{remedy_of(error)}") from None
    except ValueError as error:  # a NUL in the name
        raise FileError(f"{os.fspath(path)!r}: cannot be read ({error})") from None
    state = os.fstat(handle)
    reason = ""
    if stat.S_ISDIR(state.st_mode):
        reason = "is a folder; need a file"
    elif not stat.S_ISREG(state.st_mode):
        reason = "is no regular file, which is what can be mapped; copy it into one"
    elif state.st_size == 0:
        reason = "is empty (0 bytes); need a .gguf file"
    if reason:
        os.close(handle)
        raise FileError(f"{path}: {reason}")
    return os.fdopen(handle, "rb", buffering=0)
