"""How much a compressed file may unpack to: known before anything is built of it."""

from __future__ import annotations

import os

from ...base.errors import FileError
from ...base.memory import memory

_RATIO = 20  # what text or numbers may shrink by, whatever the machine
_UNKNOWN = 4 << 30  # bytes of memory taken for free where the system does not say


def most_unpacked(packed: int, factor: int) -> int:
    """Bytes that `packed` bytes may unpack to: 20 times as many, or 1 / factor of the free memory if that is more.

    factor: bytes of memory that reading an unpacked byte may take.
    """
    there = memory()
    return max(_RATIO * packed, (_UNKNOWN if there is None else there.available) // factor)


def too_much(path: str | os.PathLike[str], packed: int, most: int) -> FileError:
    """The error for a file of `packed` bytes that unpacks to more than `most`."""
    why = f"{_RATIO} times its size, or as much as the free memory takes"
    return FileError(f"{path}: {packed:,} bytes that unpack to more than {most:,} ({why}); unpack it, or free memory")
