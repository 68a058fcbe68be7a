"""The file of a capsule: a zip archive of capsule.json and arrays/N.npy, none of them compressed.

A file is untrusted: names, sizes and headers are checked before anything is allocated. Members that are not compressed
have no more bytes than the file.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import numpy as np

from ..base.aligned import aligned_empty
from ..base.described import parse_object
from ..base.errors import DataError, FileError
from ..base.reasons import unreadable
from .atomic import atomic_write
from .regular import open_regular

HEAD = "capsule.json"
LONGEST = 1 << 26  # characters of capsule.json
_MEMBER = re.compile(r"arrays/(0|[1-9][0-9]{0,8})\.npy")
_HEADER = 10_000  # bytes of the header of an .npy file
_DATE = (1980, 1, 1, 0, 0, 0)


def write_capsule_file(path: str | os.PathLike[str], head: bytes, arrays: Sequence[np.ndarray]) -> None:
    """Write the archive, whole or not at all. FileError where it cannot be written."""
    needed = len(head) + sum(a.nbytes + 256 for a in arrays)
    with atomic_write(path, needed) as file:
        write_archive(file, head, arrays)


def write_archive(file: BinaryIO, head: bytes, arrays: Sequence[np.ndarray]) -> None:
    """Write the archive to an open file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr(zipfile.ZipInfo(HEAD, _DATE), head)
        for i, array in enumerate(arrays):
            info = zipfile.ZipInfo(f"arrays/{i}.npy", _DATE)
            with archive.open(info, "w", force_zip64=array.nbytes > 1 << 30) as member:
                np.lib.format.write_array(cast(Any, member), array, allow_pickle=False)


@contextmanager
def opened_capsule(
    path: str | os.PathLike[str],
) -> Iterator[tuple[Mapping[str, Any], Callable[[int, np.dtype, tuple[int, ...]], np.ndarray]]]:  # fmt: skip
    """(the JSON object, read(number, dtype, shape) for its arrays) of the file. FileError for one that is no capsule;
    inside the block a DataError becomes one, too."""
    try:
        with open_regular(path, "need a capsule") as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, os.fstat(file.fileno()).st_size)
            head = parse_object(_text(archive, members[HEAD]), HEAD, LONGEST)
            yield head, lambda number, kind, shape: _array(archive, members, number, kind, shape)
    except (DataError, zipfile.BadZipFile, NotImplementedError) as error:
        raise FileError(f"{path}: is not a capsule: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name. DataError for others than those of a capsule, and for sizes that the file cannot have."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in found or (info.filename != HEAD and not _MEMBER.fullmatch(info.filename)):
            raise DataError(f"member {info.filename!r:.60} is not known, or there twice")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise DataError(f"{info.filename} is compressed or encrypted; need members as they are")
        found[info.filename] = info
    if sum(info.file_size for info in found.values()) > size:
        raise DataError(f"its members have more bytes than the file, {size}")
    if HEAD not in found:
        raise DataError(f"has no {HEAD}")
    return found


def _text(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    if info.file_size > LONGEST:
        raise DataError(f"{HEAD} has {info.file_size} bytes; need at most {LONGEST}")
    with _member(archive, info) as member:
        try:
            return member.read(LONGEST + 1).decode()
        except UnicodeDecodeError:
            raise DataError(f"{HEAD} is no text of UTF-8") from None


@contextmanager
def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[Any]:
    try:
        with archive.open(info) as member:
            yield member
    except (EOFError, RuntimeError, ValueError, IndexError) as error:  # of a damaged local header
        if isinstance(error, DataError):
            raise
        raise DataError(f"{info.filename}: {' '.join(str(error).split()) or 'ends early'}") from None


def _array(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    number: int,
    kind: np.dtype,
    shape: tuple[int, ...],
) -> np.ndarray:
    """An array of exactly this dtype and shape, at the beginning of a cache line."""
    name = f"arrays/{number}.npy"
    info = members.get(name)
    if info is None:
        raise DataError(f"{name} is missing")
    with _member(archive, info) as member:
        start = _header(member, name, kind, shape)
        elements = 1
        for extent in shape:
            elements *= extent
        if info.file_size - start != elements * kind.itemsize:
            raise DataError(f"{name} has {info.file_size - start} bytes; {kind}{list(shape)} needs another number")
        array = aligned_empty(shape, kind)
        left = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        while len(left):
            count = member.readinto(left)
            if not count:
                raise DataError(f"{name} ends early")
            left = left[count:]
    return array


def _header(member: Any, name: str, kind: np.dtype, shape: tuple[int, ...]) -> int:
    """Bytes of the header of an .npy file. DataError unless it states this dtype and shape, in C order."""
    begin = member.read(_HEADER)
    file = io.BytesIO(begin)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("is of another version than 1.0")
        stated, fortran, found = np.lib.format.read_array_header_1_0(file, _HEADER)
    except DataError:
        raise
    except Exception as error:  # what literal_eval raises of a text that is no literal
        raise DataError(f"{name} is no .npy file: {' '.join(str(error).split())[:200]}") from None
    if (stated, fortran, found) != (shape, False, kind):
        raise DataError(f"{name} holds {str(found)[:40]}{list(stated)[:8]}; {HEAD} states {kind}{list(shape)}")
    header = len(begin) - len(file.read())
    member.seek(header)
    return header
