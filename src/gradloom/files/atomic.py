"""Writing files so that each is either complete or as it was before, and several of a folder change at one moment.

A file is written under a temporary name next to its target and moved there. Several files of a folder (`together`) are
written so, and then a commit file names all the moves (commit.py). The next writer or reader (`read_together`) of the
folder finishes an interrupted change; a reader that cannot reads the new files under their temporary names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..base.errors import FileError
from ..base.locks import Lock
from ..base.reasons import unreadable, unwritten
from .commit import (
    COMMIT,
    commit,
    digest,
    discard,
    is_part_of,
    is_void,
    make_part,
    make_part_inside,
    mode_for,
    mode_of_new,
    moves_of,
    real,
    resume,
    sync,
)
from .inside import Folder, opened, opened_if_there
from .lock import PATIENCE, is_lock_of_file, lock_file, locked, remove_left_lock, renew, try_lock
from .targets import check_entry, check_target, is_stream, need_readable, open_file_of

T = TypeVar("T")
_READS = 100  # of files that change while they are read


@dataclass
class _Change:
    """The files that a `together` block has written so far: name in the folder -> temporary file, open and locked."""

    folder: Path
    parts: dict[str, tuple[Path, int]] = field(default_factory=dict)


_change: ContextVar[_Change | None] = ContextVar("_change", default=None)
_one_change = Lock()  # threads of this process change folders one after the other


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], needed_bytes: int | None = None) -> Iterator[Path]:
    """Yield the path of a new temporary file next to `path`; it replaces `path` when the block ends without an error
    (in a block of `together`: when that one does).

    Whatever goes wrong in the block (a full disk, Ctrl-C), the temporary file is removed and `path` stays as it was.
    An OSError becomes a FileError; so does a `path` that is no regular file (a device, a named pipe), which stays.
    """
    change = _change.get()
    if change is not None and real(Path(path).parent) != change.folder:
        change = None
    # Outside of `together` a symbolic link is followed, and stays: it is the path that the user has chosen.
    target = real(path) if change is None else change.folder / Path(path).name
    renew(path, target, False)
    if change is None:
        check_target(path)
        _finish_around(path, target)
    else:
        check_entry(path)
    try:
        handle, part = make_part(target)
    except OSError as error:
        raise FileError(f"{path}: {unwritten(error)}") from None
    keep = False
    try:
        yield part
        sync(part)
        os.chmod(part, mode_for(target))
        if change is not None:
            change.parts[Path(path).name] = part, handle
            keep = True
        else:
            os.replace(part, target)
            sync(target.parent)
    except OSError as error:
        raise _unwritten(path, needed_bytes, error, target.exists()) from None
    finally:
        if not keep:
            discard(part, handle)


def _unwritten(path: str | os.PathLike[str], needed_bytes: int | None, error: OSError, was_there: bool) -> FileError:
    need = "" if needed_bytes is None else f" ({needed_bytes} bytes needed)"
    kept = "the file of that name is as it was" if was_there else "no part of it is left behind"
    return FileError(f"{path}: {unwritten(error, f'; {kept}', need)}")


@contextlib.contextmanager
def atomic_inside(folder: Folder, name: str, needed_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Yield a binary file to write, which becomes an entry of an open folder when the block ends well.

    Whatever goes wrong in the block, the entry stays as it was. An OSError becomes a FileError; so does an entry that
    is no regular file: a link is not followed.
    """
    path = folder.path / name
    part: tuple[int, str] | None = None
    was_there = False
    try:
        old = folder.check(name)
        was_there = old is not None
        part = make_part_inside(folder, name)
        with open(part[0], "wb", closefd=False) as file:
            yield file
        os.fsync(part[0])
        folder.chmod(part[0], part[1], mode_of_new() if old is None else old.st_mode & 0o777)
        folder.replace(part[1], name)
        folder.sync()
    except OSError as error:
        raise _unwritten(path, needed_bytes, error, was_there) from None
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                folder.unlink(part[1])  # gone, where it has become the entry
            with contextlib.suppress(OSError):
                os.close(part[0])


def write_inside(path: Path, data: bytes) -> None:
    """Write a file into the folder of a run, or one of its folders, as atomic_inside does."""
    try:
        folder = opened(path.parent)
    except OSError as error:
        raise _unwritten(path, None, error, False) from None
    with folder, atomic_inside(folder, path.name) as file:
        file.write(data)


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
        raise FileError(f"{path}: {unwritten(error)}") from None


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file with these contents (see atomic_write)."""
    with atomic_write(path, len(data)) as file:
        file.write(data)


@contextlib.contextmanager
def together(folder: str | os.PathLike[str]) -> Iterator[None]:
    """The files that the block writes in this folder (by atomic_path) take their places all at once, when it ends well.

    When it does not, all stay as they were. A process that is killed at any moment, or a power cut, leaves for
    load_arrays and read_together all of the old or all of the new ones. The folder is made where there is none.
    FileError when it cannot be written, or when another process has claimed it.
    """
    home = real(folder)
    with _one_change, _owned(folder, home):
        change = _Change(home)
        token = _change.set(change)
        try:
            yield
            if change.parts:
                commit(home, {name: part for name, (part, _) in change.parts.items()})
        except OSError as error:
            late = (home / COMMIT).exists()  # the change is made, and a move has failed
            done = "; its new files are complete, and take their places when it is opened next" * late
            raise FileError(f"{folder}: {unwritten(error, done)}") from None
        finally:
            _change.reset(token)
            for part, handle in change.parts.values():
                discard(None if (home / COMMIT).exists() else part, handle)


@contextlib.contextmanager
def claim(
    path: str | os.PathLike[str], is_folder: bool, names: Sequence[str] = (), again: bool = False
) -> Iterator[None]:
    """Inside, no other run writes this file, or this folder; it is for a whole run. names: the files of the folder that
    the run will write together, which are claimed as well: another run may write one of them alone. again: a claim of
    this folder that this process has already will do.

    FileError at once when another run is at it, and for a file that cannot be replaced, such as a link in the folder.
    The folder (of the file) is created if it is missing, also if it is removed before the end. Temporary files of
    killed writers are removed.
    """
    if not is_folder and Path(path).parent.is_dir():
        check_target(path)
    place = real(path)
    with contextlib.ExitStack() as held:
        if is_folder:
            held.enter_context(_owned(path, place, again=again))
            _remove_left(place)
            _claim_files(Path(path), names, held)
        else:
            held.enter_context(locked(path, place, False))
            _finish_around(path, place)
            _remove_abandoned(place.parent, place.name)
        yield


def check_new_folder(path: str | os.PathLike[str]) -> None:
    """FileError unless new files can make up this whole folder: it is not there, or contains nothing but what a killed
    writer has left. To be asked before any work is done."""
    folder = Path(path)
    if not os.path.exists(folder):
        check_target(folder)
    elif not folder.is_dir():
        raise FileError(f"{path}: is a file; need the name of a new folder")
    elif found := sorted(_names_beside_left(folder)):
        need = "need a new folder or an empty one: choose another name, or remove it first"
        raise FileError(f"{path}: is a folder with files ({found[0]}); {need}")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, no other run writes this folder, which is empty: what a killed writer has left is removed. FileError as
    check_new_folder, and when another run is at it. The folder goes away at the end if it is new and still empty."""
    check_new_folder(path)
    home = real(path)
    with locked(path, home, True):
        check_new_folder(path)
        try:
            moved = [name for name in moves_of(home) or {} if os.path.lexists(home / name)]
            for name in [COMMIT, *moved]:
                (home / name).unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"{path}: {unwritten(error)}") from None
        _remove_left(home)
        yield


def _names_beside_left(folder: Path) -> list[str]:
    """Names in a folder, without those that a killed writer has left: also files of a change that is not finished."""
    try:
        names = os.listdir(folder)
        moves = moves_of(folder) or {}
        made = {name for name, move in moves.items() if move.old is None and digest(folder / name) == move.new}
    except OSError as error:
        raise FileError(f"{folder}: {unreadable(error)}") from None
    own = {COMMIT, lock_file(folder, True).name} | made
    return [name for name in names if not (name in own or is_part_of(name, None) or is_lock_of_file(name))]


def _claim_files(folder: Path, names: Sequence[str], held: contextlib.ExitStack) -> None:
    """Lock the files that a run will write in a folder, and make sure that it can."""
    for name in names:
        check_entry(folder / name)
        need_readable(folder / name)
    for name in sorted(names):
        held.enter_context(locked(folder / name, real(folder) / name, False))


@contextlib.contextmanager
def _owned(
    shown: str | os.PathLike[str], folder: Path, again: bool = True, patience: float = PATIENCE
) -> Iterator[None]:
    """Under the lock of a folder, with no change of it left unfinished."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise FileError(f"{shown}: is no folder; need the name of a folder to write")
    with locked(shown, folder, True, again, patience):
        try:
            resume(folder)
        except OSError as error:
            raise FileError(f"{shown}: {unwritten(error)}") from None
        yield


# ---- interrupted changes ---------------------------------------------------------------------------------------------


def _finish(folder: Path) -> None:
    """Carry out a change that was cut off, where that is possible: not when another process is at it."""
    if os.path.lexists(folder / COMMIT):
        home = real(folder)
        with contextlib.suppress(FileError), _one_change, _owned(folder, home, patience=0):
            _remove_left(home)


def _finish_around(path: str | os.PathLike[str], target: Path) -> None:
    """Before a single file is written: an older change, carried out later, must not replace the newer file."""
    for folder in {real(Path(path).parent), target.parent}:
        _finish(folder)


def _remove_left(folder: Path) -> None:
    """Remove what killed runs have left in a folder; under its lock."""
    _remove_abandoned(folder)
    for path in [folder / name for name in _names(folder) if is_lock_of_file(name)]:
        remove_left_lock(path)


def remove_parts(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed writers, in a folder without other writers now. A folder of a run that is a
    link is left alone."""
    _remove_abandoned(Path(folder))


def _remove_abandoned(path: Path, target: str | None = None) -> None:
    """Remove the temporary files of killed writers: those that are not locked, and no part of a committed change that
    is not carried out yet. target: of this file alone."""
    with contextlib.suppress(OSError, FileError), opened_if_there(path) as folder:
        if folder is None:
            return
        for name in filter(lambda name: is_part_of(name, target), folder.names()):
            with contextlib.suppress(OSError, FileError):  # a commit file that cannot be read: its parts are not known
                handle = folder.open(name, os.O_RDWR)
                try:
                    if not try_lock(handle):
                        continue
                    moves = moves_of(path) or {}  # its writer, which is gone, makes no commit file any more
                    if name not in {move.part for move in moves.values()}:
                        folder.unlink(name)
                finally:
                    os.close(handle)


def _names(folder: Path) -> list[str]:
    """Names in a folder; empty if it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


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
        moves = moves_of(folder) or {}
        try:
            if is_void(folder, moves):
                moves = {}
            break
        except (FileError, OSError):
            if moves == (moves_of(folder) or {}):  # else a writer was at it
                raise
    paths = []
    for name in names:
        path = folder / name
        part = folder / moves[name].part if name in moves else path
        paths.append(part if part.exists() else path)
    return paths


def _identity(path: Path) -> tuple[int, ...] | None:
    """Identity of a file and its content; a move keeps it. None if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
