"""Metadata values of GGUF files: read without copies, decoded when they are asked for, and made to be written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from ..base.errors import FileError

# kinds of metadata values, by their number in the file
VALUE_KINDS = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
VALUE_IDS = {name: number for number, name in enumerate(VALUE_KINDS)}
NUMBERS: dict[str, np.dtype] = {
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
NESTING = 4  # arrays inside arrays
read_u32 = struct.Struct("<I").unpack_from
read_u64 = struct.Struct("<Q").unpack_from


class Field:
    """One metadata value: its kind, for arrays the kind and number of the items, and its bytes as they are in the file.

    `value` decodes them when it is first asked for: a number, bool or str; an array of numbers as a read-only NumPy
    array; an array of strings as a list of str; an array of arrays as a list of those. FileError for bytes that are not
    UTF-8.
    """

    __slots__ = ("_value", "count", "item", "kind", "raw", "where")

    def __init__(self, kind: str, raw: Any, item: str | None = None, count: int = 1, where: str = "") -> None:
        self.kind, self.raw, self.item, self.count, self.where = kind, raw, item, count, where

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
        values = np.frombuffer(self.raw, NUMBERS[str(self.item)], self.count, 12)
        values = values.astype(bool) if self.item == "bool" else values.copy()
        values.flags.writeable = False
        return values

    def _strings(self) -> Iterator[bytes]:
        raw, read, at = bytes(self.raw), read_u64, 12  # slices of bytes are quicker to make
        for _ in range(self.count):
            end = at + 8 + read(raw, at)[0]
            yield raw[at + 8 : end]
            at = end

    def _arrays(self) -> Iterator[Field]:
        at = 12
        for _ in range(self.count):
            inner, at = read_array(self.raw, at, 0, _checked, self.where)
            yield inner

    def _texts(self, strings: Iterable[bytes]) -> list[str]:
        texts: list[str] = []
        try:
            texts.extend(map(bytes.decode, strings))
        except UnicodeDecodeError as error:
            item = f" item {len(texts)}" if self.kind == "array" else ""
            raise FileError(
                f"{self.where or 'string'}{item} is no UTF-8 text ({error.reason} at its byte {error.start})"
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
            return Field(kind, struct.pack("<IQ", VALUE_IDS[item], len(parts)) + b"".join(parts), item, len(parts))
        if item not in NUMBERS:
            raise FileError(f"metadata array of {item!r}: is not known; must be one of string, {', '.join(NUMBERS)}")
        data = _numbers(item, value)
        return Field(kind, struct.pack("<IQ", VALUE_IDS[item], len(data)) + data.tobytes(), item, len(data))
    if kind not in NUMBERS:
        raise FileError(f"metadata kind {kind!r} is not known; must be one of {', '.join(VALUE_KINDS)}")
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
    want = NUMBERS[kind]
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
    value = np.frombuffer(raw, NUMBERS[kind], 1)[0]
    return bool(value) if kind == "bool" else value.item()


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


def _checked(message: str, at: int) -> NoReturn:
    raise AssertionError(message)  # these bytes have been checked before


def read_array(data: Any, at: int, depth: int, fail: Callable[[str, int], Any], where: str) -> tuple[Field, int]:
    """(the array whose item kind stands at `at`, its end). All lengths are checked against the bytes there are."""
    begin, end = at, len(data)
    if end - at < 12:
        fail(f"{where} ends in the head of an array", at)
    (number,), (count,) = read_u32(data, at), read_u64(data, at + 4)
    if number >= len(VALUE_KINDS):
        fail(f"{where} is an array of kind {number}; need 0 to {len(VALUE_KINDS) - 1}", at)
    item = VALUE_KINDS[number]
    at += 12
    least = {"string": 8, "array": 12}.get(item) or NUMBERS[item].itemsize
    if count * least > end - at:
        fail(f"{where} has {count} items of kind {item}, which {end - at} bytes cannot hold", begin)
    if item == "string":
        at = _end_of_strings(data, at, count, fail, where)
    elif item == "array":
        if depth + 1 >= NESTING:
            fail(f"{where} holds arrays in arrays, {depth + 2} deep; need at most {NESTING}", begin)
        for _ in range(count):
            _, at = read_array(data, at, depth + 1, fail, where)
    else:
        at += count * least
        if item == "bool" and count and np.frombuffer(data, np.uint8, count, at - count).max() > 1:
            fail(f"{where} holds a bool that is neither 0 nor 1", begin)
    return Field("array", data[begin:at], item, count, where), at


def _end_of_strings(data: Any, at: int, count: int, fail: Callable[[str, int], Any], where: str) -> int:
    """The end of `count` strings that begin at `at`. A vocabulary has 10^5: the loop without checks comes first."""
    begin, end, read = at, len(data), read_u64
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
