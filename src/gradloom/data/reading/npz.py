"""Reading .npz files: each head is held against the bytes of the file before it is believed."""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from ...base.errors import DataError, FileError, GradloomError
from ...base.reasons import is_of_system, unreadable
from .unpacked import most_unpacked, too_much

_LOCAL_HEAD = 30  # bytes of the head of a member, without its name and extra field
_MEMORY = 4  # bytes of memory that reading a byte of an array may take


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; their headers are checked against the size of the data before use."""
    arrays: dict[str, np.ndarray] = {}
    try:
        size = path.stat().st_size
        if size == 0:
            raise FileError(f"{path}: is empty (0 bytes); need an .npz file")
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about Python text
            if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                raise DataError(f"{path}: holds one array without a name; need np.savez(path, x=..., y=...)")
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                most = most_unpacked(size, _MEMORY)
                if sum(member.file_size for member in members) > most:
                    raise too_much(path, size, most)
                for member in members:
                    key = member.filename.removesuffix(".npy")
                    if key in arrays or key == member.filename:
                        what = "is there twice" if key in arrays else "is no array (.npy)"
                        raise DataError(f"{path}: {member.filename!r:.60} {what}; need what np.savez(path, ...) writes")
                    with archive.open(member) as stream:
                        arrays[key] = _read_npy(path, key, cast(BinaryIO, stream), member.file_size)
    except (GradloomError, MemoryError):
        raise
    except OSError as error:
        if is_of_system(error):
            raise FileError(f"{path}: {unreadable(error)}") from None
        raise FileError(f"{path}: is truncated or damaged ({_one_line(error)}); write it again") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, ValueError) as error:
        raise FileError(
            f"{path}: is truncated or damaged, or no .npz file ({_one_line(error)}); write it again"
        ) from None
    except Exception as error:  # NumPy parses the head of each array as Python text: damage can end anywhere
        raise FileError(f"{path}: is damaged ({_one_line(error)}); write it again") from None
    if not arrays:
        raise DataError(f"{path}: holds no arrays; need x and y")
    return arrays


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or as "" that of an .npy file, mapped: they are read from the disk as they are used.

    DataError for compressed arrays, and for those in Fortran order or in a foreign byte order; FileError for a file
    that is damaged or cannot be read."""
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                return {"": _map_npy(path, "the array", file, 0, size)}
            arrays = {}
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    key = member.filename.removesuffix(".npy")
                    if member.compress_type != zipfile.ZIP_STORED:
                        raise DataError(f"{path}: {key!r:.60} is compressed; need np.savez, not np.savez_compressed")
                    file.seek(member.header_offset)
                    head = file.read(_LOCAL_HEAD)
                    start = member.header_offset + _LOCAL_HEAD + sum(struct.unpack("<HH", head[26:30]))
                    arrays[key] = _map_npy(path, f"{key!r:.60}", file, start, member.file_size)
            return arrays
    except GradloomError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, SyntaxError) as error:
        text = f"{path}: is damaged, or no .npy or .npz file ({_one_line(error)}); write it again"
        raise FileError(text) from None


def _map_npy(path: Path, what: str, file: BinaryIO, start: int, size: int) -> np.ndarray:
    file.seek(start)
    shape, fortran, kind, at = _head_of(path, what, file)
    need = _need(path, what, shape, kind, start + size - at)
    if fortran and len(shape) > 1:
        raise DataError(f"{path}: {what} is in Fortran order; save numpy.ascontiguousarray(x)")
    if not kind.isnative:
        raise DataError(f"{path}: {what} has the byte order of another machine; save x.astype({kind.name!r})")
    if not need:
        return np.empty(shape, kind)
    return np.memmap(path, kind, "r", at, shape)


def _read_npy(path: Path, key: str, file: BinaryIO, size: int) -> np.ndarray:
    """The array of a member of `size` bytes, in native byte order and in C order, no wider than f64."""
    shape, fortran, kind, begin = _head_of(path, f"{key!r:.60}", file)
    need = _need(path, f"{key!r:.60}", shape, kind, size - begin)
    held = np.empty(need, np.uint8)
    at = 0
    while at < need:
        piece = file.read(min(need - at, 1 << 20))
        if not piece:
            raise EOFError(f"{key!r:.60} ends after {at} of {need} bytes")
        held[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    array = held.view(kind).reshape(shape, order="F" if fortran else "C")
    if kind.kind == "f" and kind.itemsize > 8:
        array = array.astype(np.float64)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(shape)


def _head_of(path: Path, what: str, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """(shape, whether it is in Fortran order, dtype, place of the first number) of the array that begins here."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        seen = ".".join(map(str, version))
        raise DataError(f"{path}: {what} is written in version {seen} of .npy; need 1.0 or 2.0")
    read_head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read_head(file)
    if kind.hasobject:
        raise DataError(f"{path}: some array holds Python objects; save numbers or texts")
    return shape, fortran, kind, file.tell()


def _need(path: Path, what: str, shape: tuple[int, ...], kind: np.dtype[Any], have: int) -> int:
    """The bytes of an array; FileError where it has others."""
    need = math.prod(shape) * kind.itemsize
    if need != have or any(n < 0 for n in shape) or kind.itemsize == 0:
        seen = f"{kind!s:.60} of shape {list(shape)!s:.60}"
        raise FileError(f"{path}: {what} has {have} bytes; its head needs {need} ({seen}); write it again")
    return need


def keys_of(arrays: dict[str, np.ndarray]) -> str:
    """The first arrays with their shapes, for messages."""
    return ", ".join(f"{k} {list(v.shape)}" for k, v in list(arrays.items())[:6]) + (", ..." if len(arrays) > 6 else "")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
