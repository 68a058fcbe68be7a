"""A change of several files of a folder: the commit file that makes it, and who carries it out.

The new files have temporary names in the same folder. A commit file, `.gradloom.commit`, names all the moves. The
change is made when that file appears. Then the files are moved and the commit file is removed. The commit file holds
the checksums of all files: a file is moved only with the bytes that were written, and only over the file it replaces.

Entries of the folder that are symbolic links are never followed: to write one is refused (see atomic.together), and a
move replaces the link itself.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..base.errors import FileError
from ..base.reasons import unreadable
from .inside import Folder
from .lock import name_within, try_lock
from .targets import kind_of

COMMIT = ".gradloom.commit"
PART = ".gradloom.part."  # before a temporary name: eight characters, a dot, and the name of the file that it becomes
_PART_NAME = re.compile(rf"{re.escape(PART)}[a-z0-9_]{{8}}\.(.+)", re.S)
_COMMIT_BYTES = 1 << 16


@dataclass(frozen=True)
class Move:
    """Entry of the commit file: a file's temporary name, the SHA-256 of its bytes, and of those that it
    replaces (None: there was no such file)."""

    part: str
    new: str
    old: str | None


Moves = dict[str, Move]  # by the names of the files in the folder


def real(path: str | os.PathLike[str]) -> Path:
    """Where a path leads, through all links."""
    return Path(os.path.realpath(path))


def make_part(target: Path) -> tuple[int, Path]:
    """(open file, path) of a new temporary file next to its target, locked: an unlocked one is abandoned by its
    writer."""
    handle, name = tempfile.mkstemp(prefix=PART, suffix=f".{name_within(target.name)}", dir=target.parent)
    try:
        try_lock(handle)
    except BaseException:
        discard(Path(name), handle)
        raise
    return handle, Path(name)


def make_part_inside(folder: Folder, name: str) -> tuple[int, str]:
    """(open file, name) of a new temporary file in an open folder, likewise."""
    while True:
        part = f"{PART}{os.urandom(4).hex()}.{name_within(name)}"
        try:
            handle = folder.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        try:
            try_lock(handle)
        except BaseException:
            folder.unlink(part)
            os.close(handle)
            raise
        return handle, part


def is_part_of(name: str, target: str | None) -> bool:
    """Whether this is a temporary name of the file of that name; None: of any."""
    found = _PART_NAME.fullmatch(name)
    return found is not None and (target is None or found[1] == name_within(target))


# ---- making a change -------------------------------------------------------------------------------------------------


def commit(folder: Path, parts: Mapping[str, Path]) -> None:
    """Make the change, of name -> temporary file: it is done at the moment at which the commit file has its name."""
    moves = {}
    for name, part in parts.items():
        sync(part.parent)
        moves[name] = Move(part.name, str(digest(part)), digest(folder / name))
    handle, made = make_part(folder / COMMIT)
    try:
        with open(handle, "wb", closefd=False) as file:  # os.write may write a part
            file.write(json.dumps({name: vars(move) for name, move in moves.items()}).encode())
        os.chmod(made, mode_for(folder / COMMIT))
        os.fsync(handle)
        os.replace(made, folder / COMMIT)
    finally:
        discard(made, handle)
    sync(folder)
    _carry_out(folder, moves)


def _carry_out(folder: Path, moves: Moves) -> None:
    """Make the moves; under the folder's lock."""
    for name, move in moves.items():
        with contextlib.suppress(FileNotFoundError):  # it was moved before
            os.replace(folder / move.part, folder / name)
    sync(folder)
    (folder / COMMIT).unlink(missing_ok=True)
    sync(folder)


def resume(folder: Path) -> None:
    """Finish an interrupted change that the commit file names; under the folder's lock. If the files to be replaced
    were changed since, they are kept, and the change is dropped."""
    moves = moves_of(folder)
    if moves is None:
        return
    if is_void(folder, moves):
        for move in moves.values():
            part = folder / move.part
            if digest(part) == move.new:
                part.unlink()
        moves = {}
    _carry_out(folder, moves)


# ---- contents of a commit file ---------------------------------------------------------------------------------------


def moves_of(folder: Path) -> Moves | None:
    """Contents of the folder's commit file; None if there is no such file. FileError if gradloom did not write it, or
    if another user could write it who may not replace these files himself."""
    path = folder / COMMIT
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _no_commit(path, stat.S_IFLNK) from None
        raise FileError(f"{path}: {unreadable(error)}") from None
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise _no_commit(path, state.st_mode)
        with open(handle, "rb", closefd=False) as file:
            text = file.read(_COMMIT_BYTES)
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    finally:
        os.close(handle)
    try:
        moves = {name: Move(**move) for name, move in json.loads(text).items()}
        if not moves or not all(_is_move(name, move) for name, move in moves.items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise _damaged(folder, "it names no moves", "the files stay as they are, which may be old and new") from None
    _check_owners(folder, state.st_uid, moves)
    return moves


def _is_move(name: str, move: Move) -> bool:
    texts = (name, move.part, move.new, *([] if move.old is None else [move.old]))
    if not all(isinstance(one, str) and one == os.path.basename(one) and "\0" not in one for one in texts):
        return False
    return name not in ("", ".", "..") and _PART_NAME.fullmatch(move.part) is not None


def _check_owners(folder: Path, owner: int, moves: Moves) -> None:
    """FileError unless commit file and new files are this user's, root's, or of the owner of the file that is replaced:
    in a world-writable folder (/tmp), no user can replace files of another by leaving a change there."""
    for name, move in moves.items():
        target = folder / name
        replaced = _user_of(target)
        if replaced is None:  # the owner of the new file may give it that name
            continue
        for seen, file in ((owner, folder / COMMIT), (_user_of(folder / move.part), folder / move.part)):
            if seen not in (None, 0, os.geteuid(), replaced):
                why = f"is of user {seen}, and is to replace {target} of user {replaced}"
                raise FileError(f"{file}: {why}; need it removed, or this folder opened by the user who made it")


def _user_of(path: Path) -> int | None:
    try:
        return os.lstat(path).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_void(folder: Path, moves: Moves) -> bool:
    """Whether a file is neither the old nor the new one of this change. FileError when a new one is lost."""
    lost, moved = "", False
    for name, move in moves.items():
        has_part = digest(folder / move.part) == move.new  # first: it may be moved at this moment
        now = digest(folder / name)
        if now not in (move.old, move.new):
            return True
        moved = moved or (not has_part and now == move.new != move.old)
        if not has_part and now != move.new:
            lost = lost or move.part
    if lost:
        without = "the files stay as they are, some of them new" if moved else "the old files count"
        raise _damaged(folder, f"{lost} is not there as it was written", without)
    return False


def _damaged(folder: Path, why: str, without: str) -> FileError:
    return FileError(f"{folder / COMMIT}: is damaged: {why}; need it as it was written, or removed: then {without}")


def _no_commit(path: Path, mode: int) -> FileError:
    return FileError(f"{path}: is {kind_of(mode)}, which gradloom does not make of that name; need it removed")


# ---- files under temporary names -------------------------------------------------------------------------------------


def digest(path: Path) -> str | None:
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
        return digest_of(file)


def digest_of(file: BinaryIO) -> str:
    """SHA-256 of an open file, from its position."""
    seen = hashlib.sha256()
    while block := file.read(1 << 20):
        seen.update(block)
    return seen.hexdigest()


def mode_for(target: Path) -> int:
    """The mode of the file that is replaced, or what open() would give a new one."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        return mode_of_new()


def mode_of_new() -> int:
    """What open() would give a new file."""
    return 0o666 & ~_mask()


def _mask() -> int:
    """The process's umask, from /proc: changing it for a moment would affect other threads."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text(errors="replace")
        return int(status.split("\nUmask:")[1].split()[0], 8)
    mask = os.umask(0)
    os.umask(mask)
    return mask


def discard(part: Path | None, handle: int) -> None:
    """Close a temporary file, and remove it where it was not moved."""
    with contextlib.suppress(OSError):
        if part is not None:
            part.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.close(handle)


def sync(path: Path) -> None:
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
