"""Output paths: files that may be replaced, and inputs that must not be."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from ..base.errors import FileError
from ..base.reasons import unwritten

_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link", stat.S_IFSOCK: "a socket",
}  # fmt: skip

# endings of files; any other name without .gguf is that of a folder (Llama-3.2-1B-merged, merged.v2)
_FILES = frozenset([
    ".gguf", ".ggml", ".ggu", ".ggf", ".guf", ".gugf", ".gguff", ".safetensors", ".bin", ".pt", ".pth", ".ckpt",
    ".onnx", ".h5", ".keras", ".pkl", ".pickle", ".npz", ".npy", ".json", ".jsonl", ".csv", ".tsv", ".parquet",
    ".txt", ".md", ".log", ".toml", ".yaml", ".yml", ".zip", ".tar", ".gz", ".bz2", ".xz", ".zst", ".7z", ".run",
])  # fmt: skip


def names_folder(path: str | os.PathLike[str]) -> bool:
    """Whether an output of this name is a folder: its ending is none of a file (.gguf, .safetensors, .json)."""
    return Path(path).suffix.lower() not in _FILES


def kind_of(mode: int) -> str:
    """What a file of this mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def check_target(path: str | os.PathLike[str], streams: bool = False) -> None:
    """FileError unless `path` is a regular file that a new one may replace, or can become one. To be asked before any
    work is done.

    streams: the output goes through atomic_write, so that devices, named pipes and open files of a process
    are permitted, too.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        folder = Path(os.path.realpath(path)).parent
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{path}: {folder} is a file; need a folder there") from None
        if not folder.is_dir():
            raise FileError(f"{path}: the folder {folder} does not exist; create it or choose another place") from None
        if os.fspath(path).endswith(os.sep):
            raise FileError(f"{path}: is the name of a folder; need the name of a file to write") from None
        _need_replaceable(path)
        return
    except OSError as error:
        raise FileError(f"{path}: {unwritten(error)}") from None
    if stat.S_ISDIR(mode):
        raise FileError(f"{path}: is a folder; need the name of a file to write")
    if streams and is_stream(path):
        return
    if not stat.S_ISREG(mode) or open_file_of(path) is not None:
        seen = "an open file of a process" if stat.S_ISREG(mode) else kind_of(mode)
        raise FileError(f"{path}: is {seen}, which cannot be replaced; need the name of a regular file, or a new one")
    _need_replaceable(path)


def check_entry(path: str | os.PathLike[str]) -> None:
    """FileError unless a file that is written together with others of its folder may have this path: as check_target,
    and a symbolic link is not followed but refused."""
    if os.path.islink(path):
        raise FileError(f"{path}: is a symbolic link, which is not followed here; need it removed, or another place")
    check_target(path)


def _need_replaceable(path: str | os.PathLike[str]) -> None:
    """FileError where the system will not let a new file be moved to `path`, as far as that can be known before."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if not may(folder, os.W_OK | os.X_OK):
        raise FileError(f"{path}: cannot be written: files cannot be made in the folder {folder}; choose another place")
    try:
        now, home, me = os.stat(real), os.stat(folder), os.geteuid()
    except OSError:  # there is no such file yet
        return
    why = ""
    if home.st_mode & stat.S_ISVTX and me not in (0, now.st_uid, home.st_uid):
        why = f"it is of user {now.st_uid}, in a folder where each user may replace only files of his own"
    elif now.st_uid == me and now.st_mode & stat.S_IWUSR and not may(real, os.W_OK):
        why = "the file system refuses it"  # an attribute of the file: chattr +i
    elif _is_mounted(real):
        why = "a file system is mounted on it"
    if why:
        raise FileError(f"{path}: cannot be replaced: {why}; choose another place")


def need_readable(path: str | os.PathLike[str]) -> None:
    """FileError where there is a file that this user may not read."""
    if os.path.exists(path) and not may(path, os.R_OK):
        need = "whoever replaces it together with others has to read it; need a file of yours, or another place"
        raise FileError(f"{path}: cannot be read: permission denied; {need}")


def may(path: str | os.PathLike[str], mode: int) -> bool:
    """Whether this user may read (os.R_OK), write or enter the path."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _is_mounted(path: str) -> bool:
    """Whether something is mounted on this very file."""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # no Linux
        return False
    # its fifth field; spaces, tabs, line ends and backslashes are written in octal
    name = re.sub(rb"[ \t\n\\]", lambda odd: b"\\%03o" % odd[0][0], os.fsencode(path))
    return any(line.split(b" ")[4:5] == [name] for line in mounts)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """A device of characters, a pipe, or an open file of a process: bytes can be written to it one after the other."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and open_file_of(path) is not None)


def open_file_of(path: str | os.PathLike[str]) -> str | None:
    """/proc/PID/fd/N of a name such as /dev/stdout, whose target is not replaced by a file of another name."""
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
