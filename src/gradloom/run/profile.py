"""Profile: where the time of a program goes, per instruction, op, line of user code and module.

Real steps are timed, one after the other; the arrays that they write are restored. The time of an instruction is the
median over the steps, and the times of a group are added.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.arguments import as_whole, what_is
from ..base.errors import SettingError
from ..base.hooks import save_profiles, write_file
from ..base.memory import need_memory, show_bytes
from ..base.terminal import in_one_line
from ..graph.value import Node, describe
from .cost import Rates, limit_seconds, node_cost
from .cpu_backend import CpuExecutable
from .executable import Executable
from .feeds import SETTING_DEFAULTS, as_array, check_names
from .rates import rates_for
from .scheduled import ScheduledExecutable

GROUPS = ("op", "line", "module", "pattern")
SHOWN = 12  # lines of each table
NAME = 44  # characters of a name in a table
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
MODULE = re.compile(r"(\.grad)+$")  # gradients belong to the module of their node


@dataclass(frozen=True)
class ProfileRow:
    """Time and work of an instruction, or of a group of them.

    name      of an instruction its op and the name of its node; of a group its op, line or module
    seconds   of one step: the median of `times`, its seconds in each step; of a group the sum of the medians
    flops     floating-point operations, by the op's rule: 2 m n k of a matrix product; bytes: read and written
    limit     seconds that the work takes at the measured speed of this machine; None where no speed was measured
    count     instructions; op, line, module, shapes, device: of an instruction; of a group "" where they differ
    """

    name: str
    seconds: float
    flops: float
    bytes: float
    limit: float | None
    op: str
    line: str
    module: str
    shapes: str = ""
    device: str = ""
    count: int = 1
    times: tuple[float, ...] = ()

    @property
    def pattern(self) -> str:
        """The module with * for numbers, which blocks of one structure have in common: blk.*.attn_q."""
        return NUMBER.sub("*", self.module)

    @property
    def gflops(self) -> float:
        """GFLOP/s; 0 where no time was measured."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbs(self) -> float:
        """GB/s; 0 where no time was measured."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def limit_share(self) -> float | None:
        """The share of this machine's measured limit that was reached."""
        return None if self.limit is None or not self.seconds else self.limit / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The numbers for JSON documents."""
        return {
            "name": self.name, "count": self.count, "seconds": self.seconds, "flops": self.flops, "bytes": self.bytes,
            "gflops": self.gflops, "gbs": self.gbs,
            **({} if self.limit_share is None else {"limit_share": self.limit_share}),
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Profile:
    """Times of a program; `print(profile)` shows tables by op, line and module.

    rows          one ProfileRow per instruction, in the order of execution
    step_times    seconds of each step that was timed
    where         device, instruction set and threads; rates: measured speeds of the machine, None on other devices
    """

    rows: tuple[ProfileRow, ...]
    step_times: tuple[float, ...]
    where: str
    rates: Rates | None = None

    @property
    def steps(self) -> int:
        """Steps that were timed."""
        return len(self.step_times)

    @property
    def step_seconds(self) -> float:
        """The median time of a whole step."""
        return statistics.median(self.step_times)

    @property
    def seconds(self) -> float:
        """The sum of all instructions; the rest of step_seconds is the start of the step and its outputs."""
        return sum(row.seconds for row in self.rows)

    def by(self, what: str) -> list[ProfileRow]:
        """The rows of each "op", "line", "module" or "pattern" (of modules) together, the slowest first."""
        if what not in GROUPS:
            need = " or ".join(map(repr, GROUPS))
            raise SettingError(setting="what", seen=what, need=need, place="Profile.by")
        groups: dict[str, list[ProfileRow]] = {}
        for row in self.rows:
            groups.setdefault(getattr(row, what), []).append(row)
        made = [_together(name, rows) for name, rows in groups.items()]
        return sorted(made, key=lambda row: row.seconds, reverse=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page with rooflines and tables to an .html file; else the step as Chrome trace JSON, which
        ui.perfetto.dev and chrome://tracing open: one complete event per instruction with its time, one after the
        other. FileError where it cannot be written."""
        if os.fspath(path).endswith(".html"):
            save_profiles(path, {"Profile": self})
        else:
            save_trace(path, {"gradloom": self})

    def events(self, process: int, name: str) -> list[dict[str, Any]]:
        """The events of the step in trace JSON, as those of a process of this number and name."""
        devices = list(dict.fromkeys(row.device for row in self.rows))
        events = [_about("process_name", process, 0, f"{name}: {self.where}")]
        events += [_about("thread_name", process, i, one or "instructions") for i, one in enumerate(devices)]
        ends = dict.fromkeys(devices, 0.0)
        for row in self.rows:
            args = {
                "op": row.op, "shapes": row.shapes, "bytes": row.bytes, "flops": row.flops, "line": row.line,
                "module": row.module, "gflops": row.gflops, "gbs": row.gbs,
            }  # fmt: skip
            took = row.seconds * 1e6
            events.append(
                {
                    "name": row.op, "cat": row.module or "program", "ph": "X", "ts": ends[row.device], "dur": took,
                    "pid": process, "tid": devices.index(row.device), "args": args,
                }
            )  # fmt: skip
            ends[row.device] += took
        return events

    def as_dict(self) -> dict[str, Any]:
        """The numbers for JSON documents."""
        return {
            "where": self.where, "steps": self.steps, "step_seconds": self.step_seconds, "seconds": self.seconds,
            "instructions": len(self.rows),
            **{f"by_{what}": [row.as_dict() for row in self.by(what)] for what in GROUPS},
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Profile({len(self.rows)} instructions, {self.step_seconds * 1e3:.3g} ms a step)"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        whole = self.step_seconds
        inside = f", {self.seconds / whole:.0%} of it in instructions" if whole else ""
        yield (
            f"{len(self.rows)} instructions on {in_one_line(self.where)}: {whole * 1e3:.4g} ms a step, the median of "
            f"{self.steps}{inside}"
        )
        if self.rates is not None:
            yield (
                f"limits measured here: {self.rates.product / 1e9:.4g} GFLOP/s of f32 products, "
                f"{self.rates.memory / 1e9:.4g} GB/s of memory, {self.rates.cached / 1e9:.4g} GB/s of cache"
            )
        for what in GROUPS:
            rows = self.by(what)
            if len(rows) > 1 or what == "op":
                if what == "pattern" and len(rows) == len(self.by("module")):
                    continue
                yield ""
                yield from self._table(what, rows)

    def _table(self, what: str, rows: Sequence[ProfileRow]) -> Iterator[str]:
        yield f"{'by ' + what:<{NAME}} {'count':>6} {'ms':>10} {'%':>6} {'GFLOP/s':>9} {'GB/s':>8} {'limit':>6}"
        total, shown = self.seconds, list(rows[:SHOWN])
        if len(rows) > SHOWN:
            rest = rows[SHOWN:]
            shown.append(_together(f"{len(rest)} more", rest))
        for row in shown:
            part = f"{100 * row.seconds / total:.1f}" if total else "-"
            limit = "-" if row.limit_share is None else f"{row.limit_share:.0%}"
            yield (
                f"{in_one_line(row.name or '-', NAME):<{NAME}} {row.count:>6} {row.seconds * 1e3:>10.4f} {part:>6} "
                f"{row.gflops:>9.1f} {row.gbs:>8.1f} {limit:>6}"
            )


def save_trace(path: str | os.PathLike[str], profiles: Mapping[str, Profile]) -> None:
    """Write several profiles, by name, as one file: see Profile.save."""
    events = [event for i, (name, one) in enumerate(profiles.items()) for event in one.events(i, name)]
    write_file(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False).encode())


def _about(name: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": {"name": text}}


def _together(name: str, rows: Sequence[ProfileRow]) -> ProfileRow:
    """Several rows as one."""

    def common(what: str) -> str:
        found = {getattr(row, what) for row in rows}
        return found.pop() if len(found) == 1 else ""

    limits = [row.limit for row in rows]
    return ProfileRow(
        name, sum(row.seconds for row in rows), sum(row.flops for row in rows), sum(row.bytes for row in rows),
        None if any(limit is None for limit in limits) else sum(limit for limit in limits if limit is not None),
        common("op"), common("line"), common("module"), common("shapes"), common("device"),
        sum(row.count for row in rows), tuple(map(sum, zip(*(row.times for row in rows), strict=True))),
    )  # fmt: skip


def profile(executable: Executable, feeds: Mapping[str, Any], steps: int) -> Profile:
    """See Executable.profile."""
    steps = as_whole("steps", steps, 1, "profile")
    if not isinstance(feeds, Mapping):
        need = "a dict of inputs and settings by name"
        raise SettingError(f"profile: {{feeds}} is {what_is(feeds)}; must be {need}", setting="feeds", seen=feeds)
    check_names(feeds, executable.inputs, executable.settings)
    settings = {key: feeds.get(key, SETTING_DEFAULTS.get(key)) for key in executable.settings}
    for key, value in executable.settings.items():
        as_array(key, settings[key], (), value.dtype)  # for its checks
    given = executable.checked_inputs({key: feeds[key] for key in executable.inputs})
    rates = None
    if isinstance(executable, CpuExecutable):
        rates = rates_for([executable.plan], executable.isa, lambda _: 1.0, 0.0)
    size = sum(stored.bytes for stored in executable.writes)
    what = f"profile: {show_bytes(size)} of memory are needed for copies of the arrays that the program writes"
    need_memory(size, what, "need a smaller program, or more memory")
    with executable.held(), _same_inputs(executable), executable.restored():
        executable.copy_in(given)
        executable.check_files()
        executable.run_steps(1, settings, 0.0)
        executable.collect_times()
        try:
            whole, each = _measured(lambda: executable.run_steps(1, settings, 0.0), executable, steps)
            nodes = executable.timed_nodes()
        finally:
            executable.collect_times(executable.switches.debug >= 2)  # which prints them at the end
    rows = [
        _row(device, node, times, rates) for (device, node), times in zip(nodes, zip(*each, strict=True), strict=True)
    ]
    return Profile(tuple(rows), tuple(whole), _where(executable), rates)


def _measured(run: Callable[[], object], executable: Executable, steps: int) -> tuple[list[float], list[list[int]]]:
    """(seconds of each step, nanoseconds of each instruction in each step)."""
    whole, each, before = list[float](), list[list[int]](), list[int]()
    for _ in range(steps):
        began = time.perf_counter()
        run()
        whole.append(time.perf_counter() - began)
        totals = [total for _, _, total in executable.timings()]
        each.append([now - then for now, then in zip(totals, before or [0] * len(totals), strict=True)])
        before = totals
    return whole, each


@contextmanager
def _same_inputs(executable: Executable) -> Iterator[None]:
    """Restores the inputs of the program at the end. The caller holds its lock."""
    inputs = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in executable.fed().items()}
    try:
        yield
    finally:
        executable.copy_in(inputs)


def _row(device: str, node: Node, nanoseconds: Sequence[int], rates: Rates | None) -> ProfileRow:
    flops, moved = node_cost(node)
    read = ", ".join(describe(value) for value in node.inputs if value is not None)
    shapes = f"{read} -> {', '.join(describe(value) for value in node.outputs)}"
    module = MODULE.sub("", node.name)
    name = f"{node.title} {node.name}".rstrip()
    limit = None if rates is None else limit_seconds(node, rates)
    times = tuple(ns * 1e-9 for ns in nanoseconds)
    return ProfileRow(
        name, statistics.median(times), flops, moved, limit, node.title, node.where, module, shapes, device, 1, times
    )


def _where(executable: Executable) -> str:
    """What computes."""
    threads = f"{executable.switches.threads} thread{'s' * (executable.switches.threads != 1)}"
    if isinstance(executable, CpuExecutable):
        return f"cpu ({executable.isa}, {threads})"
    if isinstance(executable, ScheduledExecutable):
        return ", ".join(executable.parts)
    return type(executable).__name__.removesuffix("Executable").lower()
