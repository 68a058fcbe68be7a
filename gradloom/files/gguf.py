"""GGUF model files (versions 2 and 3, little-endian): mapped when read, whole or not at all when written.

    head        b"GGUF", version u32, tensors u64, keys u64
    keys        name, value kind u32, value; a string is its length u64 and its bytes; an array its item kind u32,
                count u64 and items
    tensors     name, axes u32, sizes u64 each (fastest axis first), type u32, offset u64 from the start of the data
    data        begins at the next multiple of `general.alignment` (32); so does each tensor in it

Nothing that the file says is believed: each count, length, offset and product is held against the bytes that there
are before it is used, so that no file makes the reader allocate more than a small multiple of its own bytes. Weights
are never copied: what `GGUF.bytes` returns lies in the mapped file. Format: ggml's docs/gguf.md.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from ..base.errors import FileError
from .atomic import atomic_path

# ggml's types: name, number in the file, elements per block, bytes per block
_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}
_TYPE_IDS = {name: number for number, (name, _, _) in _TYPES.items()}
KINDS: dict[str, tuple[int, int]] = {name: (block, size) for name, block, size in _TYPES.values()}  # elements, bytes

# kinds that are plain arrays of NumPy's own (and ml_dtypes') types
PLAIN: dict[str, np.dtype] = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype("<f8"),
    "i8": np.dtype("i1"),
    "i16": np.dtype("<i2"),
    "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"),
}

NO_WEIGHTS = ("f64", "i8", "i16", "i32", "i64")  # kinds that no weight has: llama.cpp computes with none of them

# kinds of metadata values, by their number in the file
_VALUES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
_VALUE_IDS = {name: number for number, name in enumerate(_VALUES)}
_NUMBERS: dict[str, np.dtype] = {
    "u8": np.dtype("u1"),
    "i8": np.dtype("i1"),
    "u16": np.dtype("<u2"),
    "i16": np.dtype("<i2"),
    "u32": np.dtype("<u4"),
    "i32": np.dtype("<i4"),
    "f32": np.dtype("<f4"),
    "bool": np.dtype("u1"),
    "u64": np.dtype("<u8"),
    "i64": np.dtype("<i8"),
    "f64": np.dtype("<f8"),
}

ALIGNMENT = 32  # unless general.alignment says otherwise
NAME_BYTES = 65535  # the longest key or tensor name that is read
TENSOR_NAME_BYTES = 63  # written: ggml's GGML_MAX_NAME, less its terminator
AXES = 4  # ggml's GGML_MAX_DIMS
NESTING = 4  # arrays inside arrays
_PIECE = 1 << 20  # elements that are converted at a time
_KEY_BYTES = 13  # the smallest record of a key: an empty name, its kind, one byte
_TENSOR_BYTES = 24  # the smallest record of a tensor: an empty name and no axes

_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from


def kind_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; the last axis (ggml's first) must be whole blocks, which FileError says when it is not."""
    block, size = KINDS[kind]
    if block > 1 and (not shape or shape[-1] % block):
        raise FileError(f"{kind}{list(shape)}: rows are stored in blocks of {block}; need a multiple of it")
    return math.prod(shape) // block * size


# -- metadata values ---------------------------------------------------------------------------------------------------


class Field:
    """One metadata value: its kind, for arrays the kind and number of the items, and its bytes as they are in the file.

    `value` decodes them when it is first asked for: a number, bool or str; an array of numbers as a read-only NumPy
    array; an array of strings as a list of str; an array of arrays as a list of those. FileError for bytes that are not
    UTF-8.
    """

    __slots__ = ("_value", "_where", "count", "item", "kind", "raw")

    def __init__(self, kind: str, raw: Any, item: str | None = None, count: int = 1, where: str = "") -> None:
        self.kind, self.raw, self.item, self.count, self._where = kind, raw, item, count, where

    @property
    def value(self) -> Any:
        try:
            return self._value  # type: ignore[has-type]
        except AttributeError:
            self._value = self._decode()
            return self._value

    def _decode(self) -> Any:
        if self.kind == "string":
            return self._texts([bytes(self.raw[8:])])[0]
        if self.kind != "array":
            return _scalar(self.kind, self.raw)
        if self.item == "string":
            return self._texts(self._strings())
        if self.item == "array":
            return [inner.value for inner in self._arrays()]
        values = np.frombuffer(self.raw, _NUMBERS[str(self.item)], self.count, 12)
        values = values.astype(bool) if self.item == "bool" else values.copy()
        values.flags.writeable = False
        return values

    def _strings(self) -> Iterator[bytes]:
        raw, read, at = bytes(self.raw), _u64, 12  # slices of bytes are quicker to make
        for _ in range(self.count):
            end = at + 8 + read(raw, at)[0]
            yield raw[at + 8 : end]
            at = end

    def _arrays(self) -> Iterator[Field]:
        at = 12
        for _ in range(self.count):
            inner, at = _array(self.raw, at, 0, _checked, self._where)
            yield inner

    def _texts(self, strings: Iterable[bytes]) -> list[str]:
        texts: list[str] = []
        try:
            texts.extend(map(bytes.decode, strings))
        except UnicodeDecodeError as error:
            item = f" item {len(texts)}" if self.kind == "array" else ""
            raise FileError(
                f"{self._where or 'string'}{item} is no UTF-8 text ({error.reason} at its byte {error.start})"
            ) from None
        return texts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field):
            return NotImplemented
        return self.kind == other.kind and bytes(self.raw) == bytes(other.raw)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = f"{self.item}[{self.count}]" if self.kind == "array" else self.kind
        return f"Field({kind})" if self.kind == "array" else f"Field({kind} {self.value!r})"


def field(kind: str, value: Any, item: str | None = None) -> Field:
    """A metadata value to write: field("u32", 7), field("string", "llama"), field("array", scores, item="f32").

    FileError when the value does not fit its kind.
    """
    if kind == "string":
        return Field(kind, _string(value))
    if kind == "array":
        if item == "string":
            parts = [_string(v) for v in value]
            return Field(kind, struct.pack("<IQ", _VALUE_IDS[item], len(parts)) + b"".join(parts), item, len(parts))
        if item not in _NUMBERS:
            raise FileError(f"metadata array of {item!r}: is not known; need one of string, {', '.join(_NUMBERS)}")
        data = _numbers(item, value)
        return Field(kind, struct.pack("<IQ", _VALUE_IDS[item], len(data)) + data.tobytes(), item, len(data))
    if kind not in _NUMBERS:
        raise FileError(f"metadata kind {kind!r} is not known; need one of {', '.join(_VALUES)}")
    return Field(kind, _numbers(kind, [value]).tobytes())


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise FileError(f"metadata value {value!r:.60} is {type(value).__name__}; need a text")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise FileError(f"metadata value {value!r:.60} is no UTF-8 text ({error.reason})") from None
    return struct.pack("<Q", len(data)) + data


def _numbers(kind: str, values: Any) -> np.ndarray:
    """A 1-d array in the file's own form; FileError where a value would change."""
    given = np.asarray(values)
    if given.ndim != 1:
        raise FileError(f"metadata of kind {kind} has {given.ndim} axes; need one")
    want = _NUMBERS[kind]
    if kind == "bool":
        fits = given.dtype == bool or given.size == 0
    elif want.kind == "f":
        fits = given.dtype.kind in "fiu" or given.size == 0
    elif given.size == 0:
        fits = True
    else:
        limits = np.iinfo(want)
        fits = given.dtype.kind in "iu" and limits.min <= int(given.min()) and int(given.max()) <= limits.max
    if not fits:
        raise FileError(f"metadata {given.tolist()!r:.60}: does not fit {kind}")
    with np.errstate(over="ignore"):
        return given.astype(want)


def _scalar(kind: str, raw: Any) -> Any:
    value = np.frombuffer(raw, _NUMBERS[kind], 1)[0]
    return bool(value) if kind == "bool" else value.item()


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its ggml type in lower case, NumPy's shape (ggml's reversed), first byte in it, bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class Metadata(Mapping[str, Any]):
    """key -> decoded value; large arrays are decoded when they are first asked for."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].value

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Metadata({dict(self._fields)!r})"


class GGUF:
    """A GGUF file that is open: see open_gguf.

    path        as given
    version     2 or 3
    size        bytes of the file
    alignment   of the tensors
    fields      key -> Field, in the file's order: for writing them again exactly
    metadata    key -> value
    tensors     name -> Tensor, in the file's order
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
        parser = _Parser(str(path), memoryview(self._map), self.size)
        self.version, self.alignment = parser.version, parser.alignment
        self.fields: dict[str, Field] = parser.fields
        self.metadata = Metadata(self.fields)
        self.tensors: dict[str, Tensor] = parser.tensors

    def bytes(self, name: str) -> np.ndarray:
        """The bytes of a tensor, u8 [n], read-only, in the mapped file."""
        tensor = self.tensor(name)
        return np.frombuffer(self._map, np.uint8, tensor.bytes, tensor.offset)

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
        from gguf import GGMLQuantizationType, dequantize

        try:
            with np.errstate(all="ignore"):  # blocks may hold infinite scales
                values = dequantize(np.ascontiguousarray(rows), GGMLQuantizationType[tensor.kind.upper()])
        except (KeyError, NotImplementedError):
            raise FileError(
                f"{self.path}: tensor {_show(name)} is {tensor.kind}, which cannot be dequantised"
            ) from None
        return np.asarray(values, np.float32).reshape(-1, length)

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
                f"{self.path}: tensor {_show(name)} is {kind}, a type that no weight has; need f32, f16, bf16 or a "
                "quantised one"
            )

    def tensor(self, name: str) -> Tensor:
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
    """Map a GGUF file and check all that its head says; FileError (one line, with the byte) for no whole file."""
    return GGUF(path)


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        # a pipe of that name must not make us wait for its writer
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise FileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
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


def _checked(message: str, at: int) -> NoReturn:
    raise AssertionError(message)  # these bytes have been checked before


def _array(data: Any, at: int, depth: int, fail: Callable[[str, int], Any], where: str) -> tuple[Field, int]:
    """(the array whose item kind stands at `at`, its end). All lengths are checked against the bytes there are."""
    begin, end = at, len(data)
    if end - at < 12:
        fail(f"{where} ends in the head of an array", at)
    (number,), (count,) = _u32(data, at), _u64(data, at + 4)
    if number >= len(_VALUES):
        fail(f"{where} is an array of kind {number}; need 0 to {len(_VALUES) - 1}", at)
    item = _VALUES[number]
    at += 12
    least = {"string": 8, "array": 12}.get(item) or _NUMBERS[item].itemsize
    if count * least > end - at:
        fail(f"{where} has {count} items of kind {item}, which {end - at} bytes cannot hold", begin)
    if item == "string":
        at = _strings(data, at, count, fail, where)
    elif item == "array":
        if depth + 1 >= NESTING:
            fail(f"{where} holds arrays in arrays, {depth + 2} deep; need at most {NESTING}", begin)
        for _ in range(count):
            _, at = _array(data, at, depth + 1, fail, where)
    else:
        at += count * least
        if item == "bool" and count and np.frombuffer(data, np.uint8, count, at - count).max() > 1:
            fail(f"{where} holds a bool that is neither 0 nor 1", begin)
    return Field("array", data[begin:at], item, count, where), at


def _strings(data: Any, at: int, count: int, fail: Callable[[str, int], Any], where: str) -> int:
    """The end of `count` strings that begin at `at`. A vocabulary has 10^5 of them: the quick way first."""
    begin, end, read = at, len(data), _u64
    try:
        for _ in range(count):
            at += 8 + read(data, at)[0]
        if at <= end:
            return at
    except (struct.error, OverflowError, IndexError):  # beyond the end
        pass
    at = begin
    for i in range(count):
        if end - at < 8:
            fail(f"{where} ends before its string {i} of {count}", at)
        (size,) = read(data, at)
        at += 8 + size
        if at > end:
            fail(f"{where} item {i} has {size} bytes, of which {end - at + size} are there", at - 8 - size)
    raise AssertionError("one of the strings lies beyond the end")


class _Parser:
    """Reads the head of a file from a memoryview of all of it."""

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
        (size,) = _u64(self.data, self._take(8, f"the name of {what}"))
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
        shown = _show(key)
        if key in self.fields:
            self.fail(f"key {shown} appears twice", begin)
        where = f"{self.path}: key {shown}"
        number = _u32(self.data, self._take(4, f"the kind of key {shown}"))[0]
        if number >= len(_VALUES):
            self.fail(f"key {shown} has a value of kind {number}", self.at - 4, f"need 0 to {len(_VALUES) - 1}")
        kind = _VALUES[number]
        if kind == "array":
            found, self.at = _array(self.data, self.at, 0, lambda text, at: self.fail(text, at), f"key {shown}")
            found._where = where
        elif kind == "string":
            begin = self._take(8, f"key {shown}")
            (size,) = _u64(self.data, begin)
            self._take(size, f"the text of key {shown}")
            found = Field(kind, self.data[begin : self.at], where=where)
        else:
            size = _NUMBERS[kind].itemsize
            begin = self._take(size, f"key {shown}")
            if kind == "bool" and self.data[begin] > 1:
                self.fail(f"key {shown} is a bool of value {self.data[begin]}", begin, "need 0 or 1")
            found = Field(kind, self.data[begin : self.at], where=where)
        self.fields[key] = found

    def _alignment(self) -> int:
        found = self.fields.get("general.alignment")
        if found is None:
            return ALIGNMENT
        alignment = found.value if found.kind == "u32" else 0
        if alignment & (alignment - 1) or not alignment:
            shown = repr(found.value) if found.kind != "array" else "an array"
            raise FileError(
                f"{self.path}: general.alignment is {shown} of kind {found.kind}; need a power of two of kind u32"
            )
        return alignment

    def _tensors(self, count: int) -> dict[str, Tensor]:
        seen: dict[str, tuple[str, tuple[int, ...], int, int, int]] = {}
        for index in range(count):
            begin = self.at
            name = self._name(f"tensor {index} of {count}")
            shown = _show(name)
            if name in seen:
                self.fail(f"tensor {shown} appears twice", begin)
            seen[name] = (*self._tensor(shown), begin)
        start = -(-self.at // self.alignment) * self.alignment
        tensors = {}
        for name, (kind, shape, offset, size, begin) in seen.items():
            if start + offset + size > self.size:
                self.fail(
                    f"tensor {_show(name)} ({kind}{list(shape)}) ends at byte {start + offset + size} of {self.size}",
                    begin,
                    "the file is cut or damaged",
                )
            tensors[name] = Tensor(name, kind, shape, start + offset, size)
        before: Tensor | None = None
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if before is not None and tensor.offset < before.offset + before.bytes:
                end = before.offset + before.bytes
                self.fail(
                    f"tensor {_show(tensor.name)} begins inside {_show(before.name)}, which ends at byte {end}",
                    tensor.offset,
                )
            before = tensor
        return tensors

    def _tensor(self, shown: str) -> tuple[str, tuple[int, ...], int, int]:
        """(kind, shape, offset from the start of the data, bytes) of the tensor whose name has been read."""
        what = f"the record of tensor {shown}"
        begin = self.at
        (axes,) = _u32(self.data, self._take(4, what))
        if axes > AXES:
            self.fail(f"tensor {shown} has {axes} axes", begin, f"need at most {AXES}")
        at = self._take(8 * axes, what)
        sizes = struct.unpack_from(f"<{axes}Q", self.data, at)
        shape = tuple(reversed(sizes))
        elements = math.prod(sizes)  # of any length: nothing wraps
        if any(not 0 < n < 1 << 63 for n in sizes) or elements >= 1 << 63:
            self.fail(f"tensor {shown} has shape {list(shape)}", at, "need sizes of at least 1, below 2^63 in all")
        (number,) = _u32(self.data, self._take(4, what))
        if number not in _TYPES:
            self.fail(f"tensor {shown} has type {number}, which is not known", self.at - 4, _NEED_TYPE)
        kind, block, size = _TYPES[number]
        if block > 1 and (not sizes or sizes[0] % block):
            self.fail(f"tensor {shown} is {kind}{list(shape)}", at, f"need rows that are multiples of {block}")
        (offset,) = _u64(self.data, self._take(8, what))
        if offset % self.alignment:
            self.fail(f"tensor {shown} lies at offset {offset}", self.at - 8, f"need a multiple of {self.alignment}")
        return kind, shape, offset, elements // block * size


# -- writing -----------------------------------------------------------------------------------------------------------

# what a tensor to write may be: an array of a plain type, or (kind, shape, its bytes or a function that gives pieces)
Source = np.ndarray | tuple[str, tuple[int, ...], Any]


def write_gguf(path: str | os.PathLike[str], fields: Mapping[str, Field], tensors: Mapping[str, Source]) -> int:
    """Write a GGUF file, version 3; whole or not at all. Returns its bytes.

    `fields` are written as they are, in their order; those of an open file give the same bytes again. A tensor is an
    array of a plain type, or (kind, shape in NumPy's order, source): `source` is what the buffer protocol takes (a
    mapped file's bytes), or a function without arguments that gives an iterable of those, called when the tensor's
    turn comes, so that a piece at a time is in memory. FileError: a name, shape or type that the format does not take;
    a disk too small.
    """
    alignment = ALIGNMENT
    if "general.alignment" in fields:
        found = fields["general.alignment"]
        alignment = found.value if found.kind == "u32" else 0
        if not alignment or alignment & (alignment - 1):
            raise FileError(f"{path}: general.alignment is {found!r}; need a power of two of kind u32")
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)))
    for key, value in fields.items():
        head += _name_bytes(path, "key", key, NAME_BYTES)
        head += struct.pack("<I", _VALUE_IDS[value.kind])
        head += value.raw
    offset = 0
    sources: list[tuple[str, int, Any]] = []
    for name, given in tensors.items():
        kind, shape, source = _source(path, name, given)
        shown = f"{path}: tensor {_show(name)}"
        if len(shape) > AXES:
            raise FileError(f"{shown} has {len(shape)} axes; a .gguf file takes {AXES}")
        if not all(shape):
            raise FileError(f"{shown} of shape {list(shape)} is empty; a .gguf file needs elements")
        try:
            size = kind_bytes(kind, shape)
        except FileError as error:
            raise FileError(f"{shown} is {error}") from None
        head += _name_bytes(path, "tensor", name, TENSOR_NAME_BYTES)
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), _TYPE_IDS[kind], offset)
        sources.append((name, size, source))
        offset = _padded(offset + size, alignment)
    if sources:
        head += bytes(_padded(len(head), alignment) - len(head))
    total = len(head) + offset
    with atomic_path(path, total) as part:
        if shutil.disk_usage(part.parent).free < total:  # said before hours of work, not after
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(part, "wb") as file:
            file.write(head)
            for name, size, source in sources:
                written = 0
                for piece in source() if callable(source) else [source]:
                    written += file.write(memoryview(piece))
                assert written == size, f"tensor {name!r} has {written} bytes; its kind and shape say {size}"
                file.write(bytes(_padded(size, alignment) - size))
    return total


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _name_bytes(path: str | os.PathLike[str], what: str, name: str, most: int) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > most:
        raise FileError(f"{path}: {what} {_show(name)} has {len(data)} bytes; a .gguf file takes {most}")
    return struct.pack("<Q", len(data)) + data


def _source(path: str | os.PathLike[str], name: str, given: Source) -> tuple[str, tuple[int, ...], Any]:
    """(kind, shape, source of its bytes)."""
    if isinstance(given, tuple):
        kind, shape, source = given
        if kind not in KINDS:
            raise FileError(f"{path}: tensor {_show(name)} is of type {kind!r}; need one of {' '.join(KINDS)}")
        return kind, tuple(shape), source
    array = np.asarray(given)
    kinds = {plain.name: kind for kind, plain in PLAIN.items()}
    if array.dtype.name not in kinds:
        raise FileError(f"{path}: tensor {_show(name)} is {array.dtype}; a .gguf file holds {' '.join(kinds)}")
    kind = kinds[array.dtype.name]
    return kind, array.shape, lambda: [np.require(array, PLAIN[kind], "C").reshape(-1).view(np.uint8).data]


_NEED_TYPE = f"need one of ggml's {len(_TYPES)} types, 0 to {max(_TYPES)}"


def _show(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
