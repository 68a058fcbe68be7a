"""Folders whose entries are reached by name and never through links: the folder of a run, and the folders in it.

A folder is opened once, component by component, and its entries are opened, replaced and removed relative to the open
folder (openat). So neither a link that was there before nor one that takes a place meanwhile leads elsewhere. Where the
system has no such calls (Windows), each component is looked at before it is used: links that were there before are
rejected, an exchange at that very moment is not noticed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from ..base.errors import FileError
from .targets import kind_of

# Folders of a run. Folders of these names are never reached through a link; the one around them may be.
NEW, CLEAR, MOVE = ".gradloom.new", ".gradloom.clear", ".gradloom.move"
FOLDERS = (NEW, CLEAR, MOVE, "checkpoints", "tensorboard")
IN_THE_WAY = "need it removed, or another place"

_RELATIVE = {os.open, os.stat, os.unlink, os.mkdir, os.rename} <= os.supports_dir_fd and os.listdir in os.supports_fd
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_ENTER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _FLAGS


def in_the_way(path: Path, seen: str, is_folder: bool = False) -> FileError:
    """The error for an entry that is not what a run has under this name. seen: "is a symbolic link"."""
    return FileError(f"{path}: {seen}, where a {'folder' if is_folder else 'file'} of the run has to be; {IN_THE_WAY}")


class Folder:
    """An open folder. OSError as of the system's calls; FileError for entries that are links or of another kind.

    path: for messages
    """

    def __init__(self, path: Path, handle: int | None) -> None:
        self.path, self._handle = path, handle

    def names(self) -> list[str]:
        """Of its entries, sorted."""
        return sorted(os.listdir(self.path if self._handle is None else self._handle))

    def state(self, name: str) -> os.stat_result | None:
        """Of an entry itself, not of what a link leads to; None where there is none."""
        try:
            if self._handle is None:
                return os.lstat(self.path / name)
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """The descriptor of an entry. FileError for a link and for an existing entry that is no regular file: a pipe
        would block."""
        try:
            if self._handle is None:
                self._need_regular(name, self.state(name))
                handle = os.open(self.path / name, flags | _FLAGS | _NOFOLLOW, mode)
            else:
                handle = os.open(name, flags | _FLAGS | _NOFOLLOW, mode, dir_fd=self._handle)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EMLINK, errno.EOPNOTSUPP):
                self._need_regular(name, self.state(name))
            raise
        try:
            self._need_regular(name, os.fstat(handle))
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _need_regular(self, name: str, state: os.stat_result | None) -> None:
        if state is not None and not stat.S_ISREG(state.st_mode):
            raise in_the_way(self.path / name, f"is {kind_of(state.st_mode)}")

    def read(self, name: str) -> BufferedReader:
        """A regular file, open for reading."""
        return open(self.open(name, os.O_RDONLY), "rb")

    def check(self, name: str) -> os.stat_result | None:
        """The state of a regular file; None where there is none. FileError for anything else, and for a file that also
        has a name elsewhere (a hard link), which an append would change."""
        state = self.state(name)
        self._need_regular(name, state)
        return state

    def replace(self, name: str, new: str, to: Folder | None = None) -> None:
        """Rename an entry, optionally into another folder; an entry of the new name is replaced, a link itself."""
        to = to or self
        if self._handle is None or to._handle is None:
            os.replace(self.path / name, to.path / new)
        else:
            os.replace(name, new, src_dir_fd=self._handle, dst_dir_fd=to._handle)

    def has_folder(self, name: str) -> bool:
        """Whether an entry is a folder; a link to one is not."""
        state = self.state(name)
        return state is not None and stat.S_ISDIR(state.st_mode)

    def rmdir(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(self.path / name) if self._handle is None else os.rmdir(name, dir_fd=self._handle)

    def unlink(self, name: str, missing_ok: bool = True) -> None:
        """Remove an entry, a link itself."""
        try:
            os.unlink(self.path / name) if self._handle is None else os.unlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def chmod(self, handle: int, name: str, mode: int) -> None:
        """Set the mode of an open entry."""
        os.fchmod(handle, mode) if hasattr(os, "fchmod") else os.chmod(self.path / name, mode)

    def sync(self) -> None:
        """Make its entries survive a power cut, where the file system can."""
        with contextlib.suppress(OSError):
            if self._handle is not None:
                os.fsync(self._handle)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(path: str | os.PathLike[str], create: bool = False) -> Folder:
    """The folder of this path, open. Links are followed up to the folder of the run, and not for FOLDERS inside of it.

    create: it is made where there is none. FileError for a link or something else in the place of one of FOLDERS;
    OSError where there is no such folder.
    """
    root = Path(path)
    inner: list[str] = []
    while root.name in FOLDERS:
        inner.insert(0, root.name)
        root = root.parent
    if create:
        root.mkdir(parents=True, exist_ok=True)
    here = Folder(root, os.open(root, _ENTER) if _RELATIVE else None)
    for name in inner:
        with here as outer:
            here = _entered(outer, name, create)
    return here


def _entered(outer: Folder, name: str, create: bool) -> Folder:
    path = outer.path / name
    parent = outer._handle
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path) if parent is None else os.mkdir(name, dir_fd=parent)
    state = outer.state(name)
    if state is not None and not stat.S_ISDIR(state.st_mode):
        raise in_the_way(path, f"is {kind_of(state.st_mode)}", True)
    if parent is None:
        if state is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return Folder(path, None)
    try:
        return Folder(path, os.open(name, _ENTER | _NOFOLLOW, dir_fd=parent))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # it was exchanged at this moment
            raise in_the_way(path, "is no folder", True) from None
        raise


@contextlib.contextmanager
def opened_if_there(path: str | os.PathLike[str]) -> Iterator[Folder | None]:
    """Likewise; None where there is no such folder."""
    try:
        folder = opened(path)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    with folder:
        yield folder
