"""One writer per output: a file lock (flock) that lives as long as its process."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without flock: nothing is locked
    fcntl = None  # type: ignore[assignment]

from ..base.errors import FileError

_guard = threading.Lock()  # of this table
_held: dict[Path, int] = {}  # lock file -> its open descriptor, of the outputs that this process has claimed
PATIENCE = 0.3  # seconds in which a reader that finishes a change, or a run that ends, lets go
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # by the file system: nothing is locked


def lock_file(output: Path, is_folder: bool) -> Path:
    """The lock of an output: in a folder, or beside a file."""
    return output / ".gradloom.lock" if is_folder else output.parent / f".gradloom.{output.name[-100:]}.lock"


@contextlib.contextmanager
def locked(
    shown: str | os.PathLike[str], output: Path, is_folder: bool, again: bool = False, patience: float = PATIENCE
) -> Iterator[None]:
    """Hold the lock of an output (an absolute path without links; `shown` is its name in messages).

    FileError when another run holds it for more than `patience` seconds. again: nothing happens where this process
    holds it already. A folder is made where there is none, and goes away at the end if it is empty. The lock file is
    removed at the end; one that a killed process left behind is no obstacle.
    """
    path = lock_file(output, is_folder)
    if again and path in _held:
        yield
        return
    with _guard:
        missing: list[Path] = []
        try:
            missing = _missing_folders(path.parent)
            _held[path] = _acquire(shown, path, patience)
        except OSError as error:
            _remove_folders(missing)
            raise FileError(f"{shown}: cannot be written: {reason_of(error)}; choose another place") from None
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
                    path.unlink()  # while it is locked: who has opened it meanwhile finds out, and opens the next one
                os.close(handle)
                _remove_folders(missing)


def _acquire(shown: str | os.PathLike[str], path: Path, patience: float) -> int:
    """The open and locked lock file; FileError when another process, or another run of this one, holds it."""
    if path in _held:
        raise FileError(_taken(shown, str(os.getpid())))
    until = time.monotonic() + patience
    while True:
        refused: Exception | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o666)
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
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
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


def reason_of(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _forget() -> None:
    """In a child of this process: it has no claim, and holds no lock beyond its parent's end."""
    for handle in _held.values():
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
