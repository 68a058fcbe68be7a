"""Writing a file so that it is either complete or as it was before."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..base.errors import FileError


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], needed_bytes: int | None = None) -> Iterator[Path]:
    """Yield the path of a new temporary file beside `path`; it takes the place of `path` when the block ends well.

    Whatever goes wrong in the block (a full disk, Ctrl-C), the temporary file is removed and `path` stays as it was.
    An OSError becomes a FileError.
    """
    target = Path(os.path.realpath(path))  # through a symbolic link: the link stays
    if target.is_dir():
        raise FileError(f"{path}: is a folder; need the name of a file to write")
    if not target.parent.is_dir():
        raise FileError(f"{path}: the folder {target.parent} does not exist; create it or choose another place")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {_reason(error)}{_hint(error)}") from None
    part = Path(name)
    try:
        os.close(handle)
        yield part
        _sync(part)
        os.chmod(part, _mode(target))
        os.replace(part, target)
        _sync(target.parent)
    except OSError as error:
        need = "" if needed_bytes is None else f" ({needed_bytes} bytes needed)"
        kept = "the file of that name is as it was" if target.exists() else "no part of it is left behind"
        raise FileError(f"{path}: cannot be written{need}: {_reason(error)}; {kept}{_hint(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], needed_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Yield a binary file to write; its content becomes `path` when the block ends well (see atomic_path)."""
    with atomic_path(path, needed_bytes) as part, open(part, "wb") as file:
        yield file


def refuse_input(path: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """FileError when writing `path` would replace a file that is read: one of these, or of a folder among them, also by
    another name (a link, another spelling). To be asked before any work is done, and again before writing."""
    for given in inputs:
        for read in sorted(Path(given).iterdir()) if os.path.isdir(given) else [Path(given)]:
            with contextlib.suppress(OSError):  # one of them does not exist
                if os.path.samefile(path, read):
                    raise FileError(f"{path}: is the same file as {read}, which is read; need another one to write")


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Make a folder and try to write in it, so that a long run does not find out at its end; FileError when not."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"{folder}: cannot be written: {_reason(error)}; choose another folder") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return "; free some space or choose another place"
    return "; choose another place" if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) else ""


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, or what open() would give a new one."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _sync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, survive a power cut."""
    folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not folder:  # some file systems cannot sync a folder; the file itself must not fail
            raise
    finally:
        os.close(handle)
