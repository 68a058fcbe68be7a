"""Regular files, opened for reading. Other kinds are rejected: a named pipe would wait for its writer, a
device has no end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

from ..base.errors import FileError
from ..base.reasons import unreadable
from .targets import kind_of, may


def open_regular(path: str | os.PathLike[str], need: str = "need a regular file") -> BufferedReader:
    """The regular file that a path leads to, open for reading.

    Raises FileError for anything else: a folder, a named pipe, a device, a socket; nothing is opened then, and nothing
    waits. OSError where the file cannot be opened.
    """
    _need_regular(path, os.stat(path).st_mode, need)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        _need_regular(path, os.fstat(handle).st_mode, need)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _need_regular(path: str | os.PathLike[str], mode: int, need: str) -> None:
    if not stat.S_ISREG(mode):
        raise FileError(f"{path}: is {kind_of(mode)}; {need}")


def odd(path: str | os.PathLike[str], is_folder: bool = False, writes: bool = False) -> str | None:
    """Why a path is no regular file that this user may read (writes: and write), or no folder that he may read and
    write: "is a named pipe". None where it is one, and where there is nothing of that name."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno == errno.ENOENT:
            return "is a symbolic link that leads nowhere" if os.path.islink(path) else None
        if error.errno == errno.ELOOP:
            return "is a symbolic link that leads in a circle"
        return f"{unreadable(error)}"
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(mode):
        return f"is {kind_of(mode)}"
    if not may(path, os.R_OK):
        return "cannot be read: permission denied"
    if (is_folder or writes) and not may(path, os.W_OK | (os.X_OK if is_folder else 0)):
        return "cannot be written: permission denied"
    return None
