"""Hooks: functions of upper floors that lower floors call, so that no floor imports one above it.

The root package connects the hooks below to loaders of their functions; the first call imports the module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from .locks import building

P = ParamSpec("P")
R = TypeVar("R")


class Hook(Generic[P, R]):
    """A function that is declared here and defined above."""

    def __init__(self) -> None:
        self._load: Callable[[], Callable[P, R]] | None = None
        self._function: Callable[P, R] | None = None

    def connect(self, load: Callable[[], Callable[P, R]]) -> None:
        """`load` imports the function; it is called once."""
        self._load = load

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._function is None:
            assert self._load is not None, "a hook is connected before it is called"
            with building:  # a fork waits for the end of the import
                self._function = self._load()
        return self._function(*args, **kwargs)


need_device: Hook[[str, str], None] = Hook()  # (place, name): SettingError where this device cannot compute here
eager_recorder: Hook[[], Any] = Hook()  # what records eager operations now (eager/trace.py: Trace)
device_backends: dict[str, Callable[[], object]] = {}  # by name: imports a backend, which registers itself
