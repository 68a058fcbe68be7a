"""Writing files so that each is either complete or as it was before, and several of a folder change at one moment.

A file is written under a temporary name beside its place and moved there. Several files of a folder (`together`) are
written so, and then a commit file, `.gradloom.commit`, names all the moves. The change is made when that file appears.
Then the files are moved and the commit file is removed. Whoever opens the folder next finishes what was cut off: a
writer, or a reader (`read_together`), which otherwise reads the new files under their temporary names. The commit file
holds the checksums of all files: what it names is moved only as it was written, and over what it was to replace.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..base.errors import FileError
from .lock import PATIENCE, locked, reason_of, try_lock
from .targets import check_target, is_stream, open_file_of

T = TypeVar("T")
COMMIT = ".gradloom.commit"
_PART = ".gradloom.part."  # then eight characters, a dot, and the end of the name that the file is to have
_PART_NAME = re.compile(re.escape(_PART) + r"[a-z0-9_]{8}\..+", re.S)
_NAME_LENGTH = 100  # of the final name, in a temporary one
_COMMIT_BYTES = 1 << 16
_READS = 100  # of files that change while they are read


@dataclass
class _Change:
    """The files that a `together` block has written so far: name in the folder -> temporary file, open and locked."""

    folder: Path
    parts: dict[str, tuple[Path, int]] = field(default_factory=dict)


_change: ContextVar[_Change | None] = ContextVar("_change", default=None)
_one_change = threading.RLock()  # threads of this process change folders one after the other


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], needed_bytes: int | None = None) -> Iterator[Path]:
    """Yield the path of a new temporary file beside `path`; it takes the place of `path` when the block ends well (in a
    block of `together`: when that one ends well).

    Whatever goes wrong in the block (a full disk, Ctrl-C), the temporary file is removed and `path` stays as it was.
    An OSError becomes a FileError; so does a `path` that is no regular file (a device, a named pipe), which stays.
    """
    check_target(path)
    target = Path(os.path.realpath(path))  # through a symbolic link: the link stays
    change = _change.get()
    if change is not None and Path(os.path.realpath(Path(path).parent)) != change.folder:
        change = None
    if change is None:
        _finish(target.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=_PART, suffix=f".{target.name[-_NAME_LENGTH:]}", dir=target.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {reason_of(error)}{_hint(error)}") from None
    part = Path(name)
    keep = False
    try:
        try_lock(handle)  # who finds the file unlocked knows that its writer is gone
        yield part
        _sync(part)
        os.chmod(part, _mode(target))
        if change is not None:
            change.parts[Path(path).name] = part, handle
            keep = True
        else:
            os.replace(part, target)
            _sync(target.parent)
    except OSError as error:
        need = "" if needed_bytes is None else f" ({needed_bytes} bytes needed)"
        kept = "the file of that name is as it was" if target.exists() else "no part of it is left behind"
        raise FileError(f"{path}: cannot be written{need}: {reason_of(error)}; {kept}{_hint(error)}") from None
    finally:
        if not keep:
            _discard(part, handle)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], needed_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Yield a binary file to write; its content becomes `path` when the block ends well (see atomic_path).

    A device, a named pipe or an open file of a process (/dev/stdout) is written to as it is.
    """
    if not is_stream(path):
        with atomic_path(path, needed_bytes) as part, open(part, "wb") as file:
            yield file
        return
    try:
        own = re.fullmatch(rf"/proc/{os.getpid()}/fd/(\d+)", open_file_of(path) or "")
        with os.fdopen(os.dup(int(own[1])), "wb") if own else open(path, "ab") as file:
            yield file
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {reason_of(error)}") from None


@contextlib.contextmanager
def together(folder: str | os.PathLike[str]) -> Iterator[None]:
    """The files that the block writes in this folder (by atomic_path) take their places all at once, when it ends well.

    When it does not, all stay as they were. A process that is killed at any moment, or a power cut, leaves for
    load_arrays and read_together all of the old or all of the new ones. The folder is made where there is none.
    FileError when it cannot be written, or when another process has claimed it.
    """
    home = Path(os.path.realpath(folder))
    with _one_change, _owned(folder, home):
        change = _Change(home)
        token = _change.set(change)
        try:
            yield
            _commit(change)
        except OSError as error:
            late = (home / COMMIT).exists()  # the change is made, and a move has failed
            done = "; its new files are complete, and take their places when it is opened next" * late
            raise FileError(f"{folder}: cannot be written: {reason_of(error)}{done}{_hint(error)}") from None
        finally:
            _change.reset(token)
            for part, handle in change.parts.values():
                _discard(None if (home / COMMIT).exists() else part, handle)


@contextlib.contextmanager
def claim(path: str | os.PathLike[str], is_folder: bool) -> Iterator[None]:
    """Inside, no other run writes this folder or file: FileError at once when one does. It is for a whole run.

    Temporary files of writers that were killed are removed. The folder (of the file) is made where there is none.
    """
    if not is_folder and Path(path).parent.is_dir():
        check_target(path)
    place = Path(os.path.realpath(path))
    if is_folder:
        with _owned(path, place, again=False):
            _remove_abandoned(place, "*")
            yield
        return
    with locked(path, place, False):
        _remove_abandoned(place.parent, place.name[-_NAME_LENGTH:])
        yield


@contextlib.contextmanager
def _owned(
    shown: str | os.PathLike[str], folder: Path, again: bool = True, patience: float = PATIENCE
) -> Iterator[None]:
    """Under the lock of a folder, with no change of it left unfinished."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise FileError(f"{shown}: is no folder; need the name of a folder to write")
    with locked(shown, folder, True, again, patience):
        try:
            _resume(folder)
        except OSError as error:
            raise FileError(f"{shown}: cannot be written: {reason_of(error)}{_hint(error)}") from None
        yield


# ---- a change of several files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Move:
    """What the commit file says of one file: its temporary name, the SHA-256 of its bytes, and of those that it
    replaces (None: there was no such file)."""

    part: str
    new: str
    old: str | None


def _commit(change: _Change) -> None:
    """Make the change: it is done at the moment at which the commit file has its name."""
    if not change.parts:
        return
    moves = {}
    for name, (part, _) in change.parts.items():
        _sync(part.parent)
        moves[name] = _Move(part.name, str(_digest(part)), _digest(Path(os.path.realpath(change.folder / name))))
    text = json.dumps({name: vars(move) for name, move in moves.items()})
    handle, name = tempfile.mkstemp(prefix=_PART, suffix=COMMIT, dir=change.folder)
    try:
        try_lock(handle)
        with open(handle, "wb", closefd=False) as file:  # os.write may write a part
            file.write(text.encode())
        os.chmod(name, _mode(change.folder / COMMIT))
        os.fsync(handle)
        os.replace(name, change.folder / COMMIT)
    finally:
        _discard(Path(name), handle)
    _sync(change.folder)
    _carry_out(change.folder, moves)


def _carry_out(folder: Path, moves: dict[str, _Move]) -> None:
    """Make the moves; under the folder's lock."""
    for name, move in moves.items():
        target = Path(os.path.realpath(folder / name))
        with contextlib.suppress(FileNotFoundError):  # it was moved before
            os.replace(target.parent / move.part, target)
        _sync(target.parent)
    (folder / COMMIT).unlink(missing_ok=True)
    _sync(folder)


def _resume(folder: Path) -> None:
    """Carry out the change that the commit file names, as far as it was cut off; under the folder's lock. Where
    somebody has put other files in the place of those that it replaces, theirs count, and the change is dropped."""
    moves = _moves(folder)
    if moves is None:
        return
    if _is_void(folder, moves):
        for name, move in moves.items():
            part = Path(os.path.realpath(folder / name)).parent / move.part
            if _digest(part) == move.new:
                part.unlink()
        moves = {}
    _carry_out(folder, moves)


def _is_void(folder: Path, moves: dict[str, _Move]) -> bool:
    """Whether a file is neither the old nor the new one of this change. FileError when a new one is lost."""
    for name, move in moves.items():
        target = Path(os.path.realpath(folder / name))
        has_part = _digest(target.parent / move.part) == move.new  # first: it may be moved at this moment
        now = _digest(target)
        if now not in (move.old, move.new):
            return True
        if not has_part and now != move.new:
            raise _damaged(folder, f"{move.part} is not there as it was written")
    return False


def _damaged(folder: Path, why: str) -> FileError:
    return FileError(
        f"{folder / COMMIT}: is damaged: {why}; need it as it was written, or removed: then the old files count"
    )


def _digest(path: Path) -> str | None:
    """SHA-256 of a regular file; None where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            return None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    with open(handle, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def _moves(folder: Path) -> dict[str, _Move] | None:
    """What the folder's commit file says. None where there is no such file."""
    path = folder / COMMIT
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            text = file.read(_COMMIT_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {reason_of(error)}") from None
    try:
        moves = {name: _Move(**move) for name, move in json.loads(text).items()}
        if not moves or not all(_is_move(name, move) for name, move in moves.items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise _damaged(folder, "it names no moves") from None
    return moves


def _is_move(name: str, move: _Move) -> bool:
    texts = (name, move.part, move.new, *([] if move.old is None else [move.old]))
    if not all(isinstance(one, str) and one == os.path.basename(one) and "\0" not in one for one in texts):
        return False
    is_part = _PART_NAME.fullmatch(move.part) and move.part.endswith(f".{name[-_NAME_LENGTH:]}")
    return name not in ("", ".", "..") and bool(is_part)


def _finish(folder: Path) -> None:
    """Carry out a change that was cut off, where that is possible: not when another process is at it."""
    if os.path.exists(folder / COMMIT):
        home = Path(os.path.realpath(folder))
        with contextlib.suppress(FileError), _one_change, _owned(folder, home, patience=0):
            pass


def _remove_abandoned(folder: Path, ending: str) -> None:
    """Remove the temporary files of writers that were killed: those that nobody holds locked."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # a folder that cannot be listed
        names = os.listdir(folder)
    for part in (folder / name for name in names):
        if not _PART_NAME.fullmatch(part.name) or (ending != "*" and not part.name.endswith(f".{ending}")):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(part, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(handle).st_mode) and try_lock(handle):
                    part.unlink()
            finally:
                os.close(handle)


def _discard(part: Path | None, handle: int) -> None:
    """Close a temporary file, and remove it where it was not moved."""
    with contextlib.suppress(OSError):
        if part is not None:
            part.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.close(handle)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_together(folder: str | os.PathLike[str], names: Sequence[str], read: Callable[..., T]) -> T:
    """What `read` makes of the paths of these files of a folder, all of one change, also while another process writes.

    A change that was cut off is finished first; where it cannot be (a folder that is read-only), the paths are those of
    the new files' temporary names.
    """
    home = Path(folder)
    for _ in range(_READS):
        paths = _current(home, names)
        seen = [_identity(path) for path in paths]
        error: FileError | OSError | None = None
        try:
            content = read(*paths)
        except (FileError, OSError) as failed:
            error = failed
        now = _current(home, names)
        if [_identity(path) for path in now] == seen and (error is None or now == paths):
            if error is not None:
                raise error
            return content
    raise FileError(f"{folder}: changes while it is read; need it at rest")


def _current(folder: Path, names: Sequence[str]) -> list[Path]:
    """Where the content of these files is."""
    _finish(folder)
    while True:
        moves = _moves(folder) or {}
        try:
            if _is_void(folder, moves):
                moves = {}
            break
        except (FileError, OSError):
            if moves == (_moves(folder) or {}):  # else a writer was at it
                raise
    paths = []
    for name in names:
        path = folder / name
        part = Path(os.path.realpath(path)).parent / moves[name].part if name in moves else path
        paths.append(part if part.exists() else path)
    return paths


def _identity(path: Path) -> tuple[int, ...] | None:
    """What tells a file and its content from others; a move keeps it. None where there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


# ---- small things ----------------------------------------------------------------------------------------------------


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
