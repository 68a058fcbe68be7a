"""idx files, the format of MNIST: u8 0, u8 0, type code, number of axes, axis lengths (big-endian u32), elements."""

from __future__ import annotations

import gzip
import math
import os
import re
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ..base.errors import DataError, FileError
from ..base.reasons import reason_of, remedy_of
from .reading.unpacked import most_unpacked, too_much

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MEMORY = 4  # bytes of memory that reading a byte may take
_PARTS = {
    "training images": re.compile(r"train.*(images|idx3)"),
    "training labels": re.compile(r"train.*(labels|idx1)"),
    "test images": re.compile(r"(t10k|test).*(images|idx3)"),
    "test labels": re.compile(r"(t10k|test).*(labels|idx1)"),
}


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of an idx file, gzip-compressed (.gz) or not; FileError unless its data match its header."""
    try:
        with open(path, "rb") as raw:
            if os.fstat(raw.fileno()).st_size == 0:
                raise FileError(f"{path}: is empty (0 bytes); need an idx file")
            packed = str(path).endswith(".gz")
            with cast(BinaryIO, gzip.open(raw)) if packed else raw as file:
                return _read(path, file, os.fstat(raw.fileno()).st_size, packed)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise FileError(f"{path}: is damaged ({error}); fetch it again") from None
        raise FileError(f"{path}: {reason_of(error)}{remedy_of(error)}") from None
    except (EOFError, zlib.error) as error:
        raise FileError(f"{path}: is truncated or damaged ({error}); fetch it again") from None


def _read(path: str | os.PathLike[str], file: BinaryIO, size: int, packed: bool) -> np.ndarray:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or not 1 <= head[3] <= 8:
        raise FileError(f"{path}: starts with bytes {head.hex(' ')}; an idx file starts with 00 00, a type, 1..8 axes")
    axes = file.read(4 * head[3])
    if len(axes) < 4 * head[3]:
        raise FileError(f"{path}: is truncated: its head has {4 + len(axes)} bytes; need {4 + 4 * head[3]}")
    shape = struct.unpack(f">{head[3]}I", axes)
    kind = np.dtype(_TYPES[head[2]])
    need = math.prod(shape) * kind.itemsize
    if need == 0:
        raise FileError(f"{path}: holds no element ({' x '.join(map(str, shape))} {kind.name}); need at least 1")
    if packed and need > (most := most_unpacked(size, _MEMORY)):
        raise too_much(path, size, most)
    body = _read_at_most(file, need + 1)
    if len(body) != need:
        what = f"is truncated: {len(body)} bytes of elements" if len(body) < need else f"has more than {need} bytes"
        raise FileError(f"{path}: {what}; its head needs {need} ({' x '.join(map(str, shape))} {kind.name})")
    array = np.frombuffer(body, kind).reshape(shape)
    return array.astype(kind.newbyteorder("="), copy=False)


def _read_at_most(file: BinaryIO, size: int) -> bytes:
    """Up to size bytes, in pieces: a wrong size in the header allocates nothing."""
    pieces, left = [], size
    while left > 0:
        piece = file.read(min(left, 1 << 24))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def find_idx(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """The idx files of a folder by part: training images, training labels, test images, test labels (some may lack)."""
    files: dict[str, Path] = {}
    for path in sorted(Path(folder).iterdir()):
        for part, pattern in _PARTS.items():
            if pattern.search(path.name.lower()) and path.is_file():
                if part in files and files[part].name not in (path.name + ".gz", path.name.removesuffix(".gz")):
                    raise DataError(f"{folder}: both {files[part].name} and {path.name} look like {part}; keep one")
                files.setdefault(part, path)
    return files


def read_idx_folder(folder: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of find_idx, checked against each other; training images and labels are there, tests maybe."""
    files = find_idx(folder)
    for part in ("training images", "training labels"):
        if part not in files:
            names = ", ".join(sorted(p.name for p in Path(folder).iterdir())[:8]) or "nothing"
            example = f"train-{part.split()[1]}-idx{3 if part.endswith('images') else 1}-ubyte"
            wanted = f"need a file such as {example}, .gz or not, or a folder of images for each class"
            raise DataError(f"{folder}: no {part} among {names}; {wanted}")
    if ("test images" in files) != ("test labels" in files):
        have, lack = ("images", "labels") if "test images" in files else ("labels", "images")
        raise DataError(f"{folder}: {files[f'test {have}'].name} without test {lack}; need both or neither")
    arrays = {part: read_idx(path) for part, path in files.items()}
    for part in ("training", "test"):
        if f"{part} images" not in arrays:
            continue
        images, labels = arrays[f"{part} images"], arrays[f"{part} labels"]
        if images.ndim < 2:
            raise DataError(f"{files[f'{part} images']}: {images.ndim} axis; need images, 2 axes or more")
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise DataError(
                f"{files[f'{part} labels']}: {labels.dtype} of {labels.ndim} axes; need a list of class ids"
            )
        if len(images) != len(labels):
            name = files[f"{part} labels"]
            raise DataError(f"{name}: {len(labels)} labels for {len(images)} {part} images; need one for each")
        if len(images) == 0:
            raise DataError(f"{files[f'{part} images']}: 0 images; need at least 1")
    if "test images" in arrays and arrays["test images"].shape[1:] != arrays["training images"].shape[1:]:
        seen, need = arrays["test images"].shape[1:], arrays["training images"].shape[1:]
        raise DataError(f"{files['test images']}: images of {list(seen)}; need {list(need)} as the training images")
    return arrays
