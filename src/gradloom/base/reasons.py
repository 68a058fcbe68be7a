"""Errors of the operating system in words: the reason and the remedy, of files that cannot be written or read."""

from __future__ import annotations

import errno

_PLACE = "choose another place"
_REMEDIES = {
    "ENOSPC": f"free some space or {_PLACE}",
    "EDQUOT": f"free some space of your quota or {_PLACE}",
    "EFBIG": "raise the limit of the size of a file (`ulimit -f`), or choose a file system that takes larger files",
    "ENAMETOOLONG": "choose a shorter name",
    "EMFILE": "raise the limit of open files (`ulimit -n`)",
    "ENFILE": "too many in the whole system: end other programs",
}
_BY_NUMBER = {number: text for name, text in _REMEDIES.items() if (number := getattr(errno, name, None)) is not None}


def reason_of(error: OSError) -> str:
    """The system's own words, in small letters."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def remedy_of(error: OSError, other: str = "") -> str:
    """The remedy, to follow a message: "; free some space ...". other: for errors that have none of their own."""
    text = _BY_NUMBER.get(error.errno or 0, other)
    return f"; {text}" if text else ""


def unwritten(error: OSError, more: str = "", need: str = "") -> str:
    """Such as: cannot be written: no space left on device; free some space or choose another place

    more: before the remedy; need: the bytes that are needed, such as " (20 bytes needed)"."""
    return f"cannot be written{need}: {reason_of(error)}{more}{remedy_of(error, _PLACE)}"


def is_of_system(error: BaseException) -> bool:
    """Whether the system refused a call, such as the next open file; a damaged file can only cause EINVAL."""
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def unreadable(error: OSError) -> str:
    """Such as: cannot be read: too many open files; raise the limit of open files (`ulimit -n`)"""
    return f"cannot be read: {reason_of(error)}{remedy_of(error)}"
