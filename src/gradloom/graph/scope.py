"""Where a node is created: the open scope, the user's line, and the device assigned to nodes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import FrameType

from ..base.errors import SettingError
from ..base.hooks import need_device

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_scope: ContextVar[str] = ContextVar("gradloom_scope", default="")
_device: ContextVar[str | None] = ContextVar("gradloom_device", default=None)
_asked: ContextVar[str | None] = ContextVar("gradloom_asked_device", default=None)
_shown: dict[str, str] = {}  # file of a frame -> its name in messages, "" in the package and other installed ones
_lines: dict[tuple[str, int], str] = {}  # file and line of a frame -> how messages call them
_located: ContextVar[tuple[FrameType | None, str]] = ContextVar("gradloom_located", default=(None, ""))


def user_location() -> str:
    """file:line of the innermost frame outside the package and other installed ones: where the user asked for this."""
    return _location(sys._getframe(1))


def _location(frame: FrameType) -> str:
    known, location = _located.get()
    while frame is not known:
        path = frame.f_code.co_filename
        name = _shown.get(path)
        if name is None:
            # contextlib adds a frame between a function and its decorator
            ours = path.startswith(_PACKAGE) or "site-packages" in path or path == contextlib.__file__
            name = _shown[path] = "" if ours else os.path.basename(path)
        if name or frame.f_back is None:
            at = path, frame.f_lineno
            return _lines.get(at) or _lines.setdefault(at, f"{name or os.path.basename(path)}:{at[1]}")
        frame = frame.f_back
    return location


@contextmanager
def located() -> Iterator[None]:
    """Inside, the user's line of this call is known: nodes that the package makes look no further than to here for
    theirs."""
    frame = sys._getframe(2)
    token = _located.set((frame, _location(frame)))
    try:
        yield
    finally:
        _located.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Nodes made inside are shown with this name, and in nested scopes as outer.name. Modules use it."""
    outer = enter_scope(name)
    try:
        yield
    finally:
        leave_scope(outer)


def enter_scope(name: str) -> Token[str]:
    """Open the scope of this name inside the current one; the result is an argument of leave_scope."""
    outer = _scope.get()
    return _scope.set(f"{outer}.{name}" if outer else name)


def leave_scope(outer: Token[str]) -> None:
    """Back to the scope that was current at enter_scope."""
    _scope.reset(outer)


def current_scope() -> str:
    return _scope.get()


@contextmanager
def device(name: str | None) -> Iterator[None]:
    """Assign a device to nodes and arrays created inside, for programs on several
    devices (gl.compile(devices=), docs/devices.md): "cpu", "gpu", "gpu:1". None: no device is assigned. The innermost
    counts.

    Gradients run where their forward nodes do, wherever gl.gradients is called. Eager computations have one
    device, that of its tape: SettingError here, for an invalid name, and for an absent device.
    """
    outer = _asked.set(None if name is None else device_there("device", name))
    try:
        with on_device(_asked.get()):
            yield
    finally:
        _asked.reset(outer)


def device_name(who: str, name: object) -> str:
    """The name of a device in canonical form: "gpu:0" is "gpu". SettingError for an invalid name."""
    if not isinstance(name, str) or not name:
        raise SettingError(setting="device", seen=name, need="a name, such as 'cpu' or 'gpu'", place=who)
    return name.removesuffix(":0")


def device_there(who: str, name: object) -> str:
    """The same of a device that can compute here, as one of several. SettingError that names those that are there."""
    need_device(who, found := device_name(who, name))
    return found


@contextmanager
def on_device(name: str | None) -> Iterator[None]:
    """`device` of a name that is known to be one."""
    outer = _device.set(name)
    try:
        yield
    finally:
        _device.reset(outer)


def current_device() -> str | None:
    return _device.get()


def asked_device() -> str | None:
    """The device of the innermost `device` that is open, regardless of the devices of modules."""
    return _asked.get()
