"""Regular files, opened for reading: a named pipe would wait for its writer, and a device has no end."""

from __future__ import annotations

import os
import stat
from io import FileIO

from ..base.errors import FileError
from .targets import kind_of


def open_regular(path: str | os.PathLike[str], need: str = "need a regular file") -> FileIO:
    """The regular file that a path leads to, open for reading, without a buffer.

    Raises FileError for anything else: a folder, a named pipe, a device, a socket; nothing is opened then, and nothing
    waits. OSError where the file cannot be opened.
    """
    _need_regular(path, os.stat(path).st_mode, need)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        _need_regular(path, os.fstat(handle).st_mode, need)
        return open(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def _need_regular(path: str | os.PathLike[str], mode: int, need: str) -> None:
    if not stat.S_ISREG(mode):
        raise FileError(f"{path}: is {kind_of(mode)}; {need}")
