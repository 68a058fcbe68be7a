"""Places to write: what may be replaced by a new file, and what is read and must not be."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from ..base.errors import FileError
from .lock import reason_of


def check_target(path: str | os.PathLike[str], streams: bool = False) -> None:
    """FileError unless `path` is a regular file or can become one. To be asked before any work is done.

    streams: what is written there goes through atomic_write, so that devices, named pipes and open files of a process
    will do as well.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise FileError(f"{path}: the folder {folder} does not exist; create it or choose another place") from None
        if os.fspath(path).endswith(os.sep):
            raise FileError(f"{path}: is the name of a folder; need the name of a file to write") from None
        return
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {reason_of(error)}; choose another place") from None
    if stat.S_ISDIR(mode):
        raise FileError(f"{path}: is a folder; need the name of a file to write")
    if streams and is_stream(path):
        return
    if not stat.S_ISREG(mode) or open_file_of(path) is not None:
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        seen = kinds.get(stat.S_IFMT(mode), "an open file of a process" if stat.S_ISREG(mode) else "no regular file")
        raise FileError(f"{path}: is {seen}, which cannot be replaced; need the name of a regular file, or a new one")


def is_stream(path: str | os.PathLike[str]) -> bool:
    """A device of characters, a pipe, or an open file of a process: bytes can be written to it one after the other."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and open_file_of(path) is not None)


def open_file_of(path: str | os.PathLike[str]) -> str | None:
    """/proc/PID/fd/N of a name such as /dev/stdout: what it leads to is not replaced by a file of another name."""
    here = os.fspath(path)
    for _ in range(40):
        folder = os.path.realpath(os.path.dirname(here) or ".")
        if re.fullmatch(r"/proc/\d+(/task/\d+)?/fd", folder):
            return f"{folder}/{os.path.basename(here)}"
        if not os.path.islink(here):
            return None
        here = os.path.join(os.path.dirname(here), os.readlink(here))
    return None


def refuse_input(path: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """FileError when writing `path` would replace a file that is read: one of these, or of a folder among them, also by
    another name (a link, another spelling). To be asked before any work is done, and again before writing."""
    for given in inputs:
        reads = [Path(given)]
        with contextlib.suppress(OSError):  # no folder
            reads = sorted(Path(given).iterdir())
        for read in reads:
            with contextlib.suppress(OSError):  # one of them does not exist
                if os.path.samefile(path, read):
                    raise FileError(f"{path}: is the same file as {read}, which is read; need another one to write")
