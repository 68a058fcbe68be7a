"""The head of a GGUF file, parsed as untrusted input: all values are checked against the file's bytes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import NoReturn

from ..base.errors import FileError
from .gguf_fields import NUMBERS, VALUE_KINDS, Field, read_array, read_u32, read_u64
from .gguf_types import ALIGNMENT, AXES, NAME_BYTES, NEED_TYPE, TYPES, show_name

_KEY_BYTES = 13  # the smallest record of a key: an empty name, its kind, one byte
_TENSOR_BYTES = 24  # the smallest record of a tensor: an empty name and no axes


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: its ggml type in lower case, NumPy's shape (ggml's reversed), first byte in it, bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class Head:
    """version, alignment, fields and tensors, read from a memoryview of the whole file."""

    def __init__(self, path: str, data: memoryview, size: int) -> None:
        self.path, self.data, self.size = path, data, size
        self.at = 0
        tensors, keys = self._head()
        self.fields: dict[str, Field] = {}
        for index in range(keys):
            self._key(index, keys)
        self.alignment = self._alignment()
        self.tensors = self._tensors(tensors)

    def fail(self, message: str, at: int | None = None, need: str = "") -> NoReturn:
        raise FileError(f"{self.path}: {message} (byte {self.at if at is None else at}){need and '; ' + need}")

    def _head(self) -> tuple[int, int]:
        head = bytes(self.data[:24])
        if head[:4] != b"GGUF":
            raise FileError(
                f"{self.path}: starts with {head[:4]!r} and has {self.size} bytes; a .gguf file starts with b'GGUF'"
            )
        if len(head) < 24:
            self.fail(f"ends inside its head of 24 bytes, after {self.size}", self.size, "copy or download it again")
        version, tensors, keys = struct.unpack("<IQQ", head[4:])
        if version & 0xFFFF == 0 and version:
            self.fail("is big-endian", 4, "need a little-endian file: convert it where it was made")
        if version not in (2, 3):
            self.fail(f"has GGUF version {version}", 4, "need 2 or 3: convert the model again with a current tool")
        if tensors * _TENSOR_BYTES + keys * _KEY_BYTES > self.size - 24:
            self.fail(f"its head counts {tensors} tensors and {keys} keys, which {self.size} bytes cannot hold", 8)
        self.version = version
        self.at = 24
        return tensors, keys

    def _take(self, size: int, what: str) -> int:
        """Step over `size` bytes that must be there; where they begin."""
        at = self.at
        if size > self.size - at:
            self.fail(
                f"ends in {what}, which has {size} bytes of which {self.size - at} are there",
                at,
                "the file is cut or damaged",
            )
        self.at = at + size
        return at

    def _name(self, what: str) -> str:
        (size,) = read_u64(self.data, self._take(8, f"the name of {what}"))
        if size > NAME_BYTES:
            self.fail(f"the name of {what} has {size} bytes", self.at - 8, f"need at most {NAME_BYTES}")
        at = self._take(size, f"the name of {what}")
        try:
            return str(self.data[at : self.at], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"the name of {what} is no UTF-8 text", at)

    def _key(self, index: int, count: int) -> None:
        begin = self.at
        key = self._name(f"key {index} of {count}")
        shown = show_name(key)
        if key in self.fields:
            self.fail(f"key {shown} appears twice", begin)
        where = f"{self.path}: key {shown}"
        number = read_u32(self.data, self._take(4, f"the kind of key {shown}"))[0]
        if number >= len(VALUE_KINDS):
            self.fail(f"key {shown} has a value of kind {number}", self.at - 4, f"need 0 to {len(VALUE_KINDS) - 1}")
        kind = VALUE_KINDS[number]
        if kind == "array":
            field, self.at = read_array(self.data, self.at, 0, lambda text, at: self.fail(text, at), f"key {shown}")
            field.where = where
        elif kind == "string":
            begin = self._take(8, f"key {shown}")
            (size,) = read_u64(self.data, begin)
            self._take(size, f"the text of key {shown}")
            field = Field(kind, self.data[begin : self.at], where=where)
        else:
            size = NUMBERS[kind].itemsize
            begin = self._take(size, f"key {shown}")
            if kind == "bool" and self.data[begin] > 1:
                self.fail(f"key {shown} is a bool of value {self.data[begin]}", begin, "need 0 or 1")
            field = Field(kind, self.data[begin : self.at], where=where)
        self.fields[key] = field

    def _alignment(self) -> int:
        field = self.fields.get("general.alignment")
        if field is None:
            return ALIGNMENT
        alignment = field.value if field.kind == "u32" else 0
        if alignment & (alignment - 1) or not alignment:
            shown = repr(field.value) if field.kind != "array" else "an array"
            raise FileError(
                f"{self.path}: general.alignment is {shown} of kind {field.kind}; need a power of two of kind u32"
            )
        return alignment

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        seen: dict[str, tuple[str, tuple[int, ...], int, int, int]] = {}
        for index in range(count):
            begin = self.at
            name = self._name(f"tensor {index} of {count}")
            shown = show_name(name)
            if name in seen:
                self.fail(f"tensor {shown} appears twice", begin)
            seen[name] = (*self._tensor(shown), begin)
        start = -(-self.at // self.alignment) * self.alignment
        tensors = {}
        for name, (kind, shape, offset, size, begin) in seen.items():
            end = start + offset + size
            if end > self.size:
                self.fail(
                    f"tensor {show_name(name)} ({kind}{list(shape)}) ends at byte {end} of {self.size}",
                    begin,
                    "the file is cut or damaged",
                )
            tensors[name] = TensorInfo(name, kind, shape, start + offset, size)
        before: TensorInfo | None = None
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if before is not None and tensor.offset < before.offset + before.bytes:
                end = before.offset + before.bytes
                self.fail(
                    f"tensor {show_name(tensor.name)} begins inside {show_name(before.name)}, which ends at byte {end}",
                    tensor.offset,
                )
            before = tensor
        return tensors

    def _tensor(self, shown: str) -> tuple[str, tuple[int, ...], int, int]:
        """(kind, shape, offset from the start of the data, bytes) of the tensor whose name has been read."""
        what = f"the record of tensor {shown}"
        begin = self.at
        (axes,) = read_u32(self.data, self._take(4, what))
        if axes > AXES:
            self.fail(f"tensor {shown} has {axes} axes", begin, f"need at most {AXES}")
        at = self._take(8 * axes, what)
        sizes = struct.unpack_from(f"<{axes}Q", self.data, at)
        shape = tuple(reversed(sizes))
        elements = math.prod(sizes)  # of any length: nothing wraps
        if any(not 0 < n < 1 << 63 for n in sizes) or elements >= 1 << 63:
            self.fail(f"tensor {shown} has shape {list(shape)}", at, "need sizes of at least 1, below 2^63 in all")
        (number,) = read_u32(self.data, self._take(4, what))
        if number not in TYPES:
            self.fail(f"tensor {shown} has type {number}, which is not known", self.at - 4, NEED_TYPE)
        kind, block, size = TYPES[number]
        if block > 1 and (not sizes or sizes[0] % block):
            self.fail(f"tensor {shown} is {kind}{list(shape)}", at, f"need rows that are multiples of {block}")
        (offset,) = read_u64(self.data, self._take(8, what))
        if offset % self.alignment:
            self.fail(f"tensor {shown} lies at offset {offset}", self.at - 8, f"need a multiple of {self.alignment}")
        return kind, shape, offset, elements // block * size
