"""Hooks: functions of upper floors that lower floors call, so that no floor imports one above it.

The root package connects the hooks below to loaders of their functions; the first call imports the module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
run_page: Hook[[Any], str] = Hook()  # a History or a fine-tuning as a notebook shows it (reports/run_report.py)
plan_of_run: Hook[[Any], Any] = Hook()  # (settings.toml of a fine-tuning): its MemoryPlan, planned again (cli/plan.py)
predicted_by_run: Hook[[Any, Mapping[str, Any]], Any] = Hook()  # (settings.toml, run.json): cli/validated.py
profile_of_run: Hook[[Any], Any] = Hook()  # (settings.toml of a run): profiles of its step by name (cli/profile.py)
save_profiles: Hook[[Any, Any], None] = Hook()  # (path, profiles by name): writes their page (reports/time_section.py)
save_plan: Hook[[Any, Any], None] = Hook()  # (plan, path): writes the page of a plan (reports/plan_page.py)
show_plan: Hook[[Any], None] = Hook()  # opens the page of a plan
profiler: Hook[[Any, Mapping[str, Any], int], Any] = Hook()  # (executable, feeds, steps): run/profile.py: profile
watcher: Hook[[Any, Any, Any, Any, Any], Any] = Hook()  # (executable, ...): run/watch.py: watch
shower: Hook[[Any, Any], None] = Hook()  # (executable, nodes of gl.ops.show): run/watch.py: print_shown
print_value: Hook[[str, Any], None] = Hook()  # (name, array): a line of gl.ops.show (run/show.py)
write_file: Hook[[str | os.PathLike[str], bytes], None] = Hook()  # writes a file whole or not at all (files/atomic.py)
dequantizer: Hook[[Any, str, tuple[int, ...]], Any] = Hook()  # (bytes, type, shape): an f32 array (run/dequantise.py)
device_backends: dict[str, Callable[[], object]] = {}  # by name: imports a backend, which registers itself
