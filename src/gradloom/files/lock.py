"""One writer per output: a file lock (flock) that lives as long as its process."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without flock: nothing is locked
    fcntl = None  # type: ignore[assignment]

from ..base.errors import FileError
from ..base.locks import Lock
from ..base.reasons import reason_of, unwritten
from .targets import kind_of

_guard = Lock()  # of this table; the collector may let go of a lock in the middle of a call
_held: dict[Path, int] = {}  # lock file -> its open descriptor, of the outputs that this process has claimed
PATIENCE = 0.3  # seconds in which a reader that finishes a change, or a run that ends, lets go
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # by the file system: nothing is locked
_OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENXIO)  # why one cannot be opened
_NAME_BYTES = 100  # of an output's name, within the name of another file


def lock_file(output: Path, is_folder: bool) -> Path:
    """The lock of an output: in a folder, or next to a file."""
    return output / ".gradloom.lock" if is_folder else output.parent / f".gradloom.{name_within(output.name)}.lock"


def is_lock_of_file(name: str) -> bool:
    """Whether this is the name of the lock of a single file."""
    return re.fullmatch(r"\.gradloom\.(.+)\.lock", name, re.S) is not None


def name_within(name: str) -> str:
    """What stands for the name of an output within that of another file: itself, or a digest of one that is long (a
    name may have 255 bytes)."""
    data = os.fsencode(name)
    return name if len(data) <= _NAME_BYTES else hashlib.sha256(data).hexdigest()[:32]


@contextlib.contextmanager
def locked(
    shown: str | os.PathLike[str], output: Path, is_folder: bool, again: bool = False, patience: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock of an output (an absolute path without links; `shown` is its name in messages).

    FileError when another run holds it for more than `patience` seconds. again: where this process holds it already, it
    is only renewed (see `renew`). A folder is made where there is none, and goes away at the end if it is empty. The
    lock file is removed at the end; one that a killed process left behind is no obstacle.
    """
    path = lock_file(output, is_folder)
    if again and renew(shown, output, is_folder):
        yield
        return
    with _guard:
        if path in _held:
            raise FileError(_taken(shown, str(os.getpid())))
        missing: list[Path] = []
        try:
            missing = _missing_folders(path.parent)
            _held[path] = _acquire(shown, path, patience)
        except OSError as error:
            _remove_folders(missing)
            raise FileError(f"{shown}: {unwritten(error)}") from None
        except BaseException:
            _remove_folders(missing)
            raise
    try:
        yield
    finally:
        with _guard:
            handle = _held.pop(path, None)
            if handle is not None:  # else this is a child of the process that has locked it
                with contextlib.suppress(OSError):
                    if _is_same(handle, path):  # else it was removed, and it may be another run's by now
                        path.unlink()  # while it is locked: who has opened it meanwhile finds out, and opens the next
                os.close(handle)
                _remove_folders(missing)


def renew(shown: str | os.PathLike[str], output: Path, is_folder: bool) -> bool:
    """Whether this process holds the lock of an output. If the lock file was removed, as with the whole
    folder, it is locked anew, and the folder is created again; FileError when another run was there first."""
    path = lock_file(output, is_folder)
    with _guard:
        handle = _held.get(path)
        if handle is not None and not _is_same(handle, path):
            try:
                _held[path] = _acquire(shown, path, PATIENCE)
            except OSError as error:
                raise FileError(f"{shown}: {unwritten(error)}") from None
            os.close(handle)
    return handle is not None


def _acquire(shown: str | os.PathLike[str], path: Path, patience: float) -> int:
    """The open and locked lock file; FileError when another process holds it."""
    until = time.monotonic() + patience
    while True:
        refused: Exception | None = None
        if not _made(path.parent):
            continue
        try:
            handle = _open(shown, path)
        except FileNotFoundError as error:  # the run that made the folder has just removed it
            refused = error
        else:
            try:
                if not try_lock(handle):
                    holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
                    refused = FileError(_taken(shown, holder))
                elif _is_same(handle, path):  # else its holder has just removed it
                    with contextlib.suppress(OSError):  # a full disk: the pid is for the message only
                        os.ftruncate(handle, 0)
                        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        if refused is not None:
            if time.monotonic() >= until:
                raise refused
            time.sleep(0.01)


def _made(folder: Path) -> bool:
    """Make a folder with its parents. False where it was there, and another process has just removed it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        try:
            mode = os.lstat(folder).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(mode):
            raise
    return True


def _open(shown: str | os.PathLike[str], path: Path) -> int:
    """The open lock file. FileError where something else has its name: no regular file, one that has another name as
    well (the pid would be written into that), one of another user."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in _OF_THE_FILE or not os.path.lexists(path):
            raise
        state = os.lstat(path)
        kind = kind_of(state.st_mode)
        if stat.S_ISREG(state.st_mode):
            kind = f"a file of user {state.st_uid} that cannot be opened ({reason_of(error)})"
        raise _in_the_way(shown, path, kind) from None
    state = os.fstat(handle)
    if stat.S_ISREG(state.st_mode) and state.st_nlink <= 1:  # 0: its holder has just removed it
        return handle
    os.close(handle)
    kind = "a file with another name (a hard link)" if stat.S_ISREG(state.st_mode) else kind_of(state.st_mode)
    raise _in_the_way(shown, path, kind)


def _in_the_way(shown: str | os.PathLike[str], path: Path, kind: str) -> FileError:
    return FileError(f"{path}: is {kind}, where the lock of {shown} has to be; need it removed, or another place")


def is_locked(output: Path, is_folder: bool) -> bool:
    """Whether a run holds the lock of an output at this moment; nothing is made or changed."""
    with contextlib.suppress(OSError):
        handle = os.open(
            lock_file(output, is_folder), os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK
        )
        try:
            return stat.S_ISREG(os.fstat(handle).st_mode) and fcntl is not None and not try_lock(handle)
        finally:
            os.close(handle)
    return False


def remove_left_lock(path: Path) -> None:
    """Remove the lock file of a run that was killed; one that is held stays."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode) and try_lock(handle) and _is_same(handle, path):
                path.unlink()
        finally:
            os.close(handle)


def try_lock(handle: int) -> bool:
    """Lock an open file, unless another process or descriptor holds its lock; True where files cannot be locked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _taken(shown: str | os.PathLike[str], holder: str) -> str:
    who = f" (process {holder})" if holder.isdigit() else ""
    return f"{shown}: another run{who} is writing there; need another place, or to wait until that run has ended"


def _missing_folders(folder: Path) -> list[Path]:
    """The folders on the way that do not exist yet, the innermost first."""
    missing = []
    while not os.path.exists(folder) and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    return missing


def _remove_folders(folders: list[Path]) -> None:
    """Those that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _forget() -> None:
    """In a child of this process: it has no claim, and holds no lock beyond its parent's end."""
    for handle in _held.values():
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
