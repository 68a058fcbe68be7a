"""Limit on the unpacked size of compressed files."""

from __future__ import annotations

import os

from ...base.errors import FileError
from ...base.memory import memory

_RATIO = 20  # compression of text or numbers that is always accepted
_UNKNOWN = 4 << 30  # bytes of free memory that are assumed where the system does not report it


def most_unpacked(packed: int, factor: int) -> int:
    """Limit in bytes for a file of `packed` bytes: 20 times its size, or 1 / factor of the free memory if that is more.

    factor: bytes of memory per unpacked byte during reading.
    """
    there = memory()
    return max(_RATIO * packed, (_UNKNOWN if there is None else there.available) // factor)


def too_much(path: str | os.PathLike[str], packed: int, most: int) -> FileError:
    """The error for a file of `packed` bytes that unpacks to more than `most`."""
    why = f"{_RATIO} times its size, or as much as the free memory takes"
    return FileError(f"{path}: {packed:,} bytes that unpack to more than {most:,} ({why}); unpack it, or free memory")
