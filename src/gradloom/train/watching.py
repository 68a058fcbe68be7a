"""Watched values of a training: norms and histograms of values and gradients at some optimiser steps, for the log.

The last micro-batch of a watched step is computed by a second program first (run/watch.py): no bit of the run changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import SettingError
from ..base.messages import log
from ..base.patterns import as_patterns
from ..base.terminal import in_one_line
from ..base.training_options import WatchOptions
from ..graph.value import Value, builds_graphs
from ..ops import abs as absolute
from ..ops import max as largest
from ..run.show import silent
from ..run.watch import GRADIENT, Watch, as_every, histogram, outputs_of, targets
from ..runs.log_files import HISTOGRAM

if TYPE_CHECKING:
    from ..parallel.communicator import Communicator

EVERY = "100steps"
PREFIX = "norm/"  # of the names in a log
ZERO = "zero_units/"  # of the number of units of an activation that are zero for all rows
ZERO_LIST = "zero_list/"  # of these units, where there are some: "3,17-20"
PREFIXES = (PREFIX, HISTOGRAM, ZERO, ZERO_LIST)
WATCHES = 10  # watched steps after each other at which a dead unit is zero
GROWTH = 100.0  # of the norm of an activation, between the medians of its first and its last _ENDS watched steps
_ENDS = 3
_SHOWN = 60  # characters of a list of units


class Watching:
    """What a training watches.

    first     the optimiser's steps before the first one of the loop
    listener  called with (step, values by their names in a log) when a watched step begins; the step may still fail
    """

    def __init__(self, patterns: tuple[str, ...], every: int, what: str = "norm") -> None:
        self.patterns, self.every, self.what = patterns, every, what
        self.first = 0
        self.listener: Callable[[int, Mapping[str, Any]], object] | None = None

    def attach(self, driver: Any, program: Any, total: Value, weight: Value | None) -> Any:
        """Watch a program that ends optimiser steps; the program of its values. driver: a Steps, which compiles it.

        total, weight: of its loss; gradients are those of total / weight. SettingError for a pattern without a match,
        and for a program without one of the values."""
        found = targets(self.patterns, [total], total, weight, setting="watch")
        axes = {name: _unit_axis(value) for name, value in found.items() if _is_activation(name, value)}
        if self.what == "histogram":
            names, outputs = [*found], outputs_of(found, "values")
        else:
            zeros = _largest_of_units({name: found[name] for name in axes}, axes)
            names = [*found, *(ZERO + name for name in axes)]
            outputs = [*outputs_of(found, "norm"), *zeros]
        with silent():
            run = driver.program(outputs)

        def on_values(step: int, values: Mapping[str, np.ndarray]) -> None:
            if self.listener is not None:
                self.listener(step, _numbers(values, axes))

        Watch(program, run, names, "values", self.every, on_values, lambda: driver.next_step - self.first)
        return run

    def check(self, steps: int | None) -> None:
        """SettingError where nothing receives the values; a warning where none of the `steps` of a run, if their number
        is known, is watched."""
        if self.listener is None:
            text = "{watch} requires {run}, the folder of a run, or gl.train.Log among {callbacks}"
            raise SettingError(text, watch=list(self.patterns), run=..., callbacks=...)
        if steps is not None and steps < self.every:
            log.warning(
                f"watch: the run ends at step {steps}, and every {self.every}th is watched: use a smaller watch_every"
            )


def _is_activation(name: str, value: Value) -> bool:
    """Whether the value is computed from rows: no parameter, input or gradient."""
    return not name.startswith(GRADIENT) and not value.node.op.leaf and len(value.shape) > 1


def _unit_axis(value: Value) -> int:
    """The axis of the units: the channels of images [rows, channels, height, width], else the last one."""
    return 1 if len(value.shape) == 4 else len(value.shape) - 1


@builds_graphs
def _largest_of_units(values: Mapping[str, Value], axes: Mapping[str, int]) -> list[Value]:
    """The largest absolute value of each unit of these values: f32 [units]."""
    plain = zip(values, outputs_of(values, "values"), strict=True)
    return [
        largest(absolute(value), axes=tuple(k for k in range(len(value.shape)) if k != axes[name]))
        for name, value in plain
    ]


def _numbers(values: Mapping[str, np.ndarray], axes: Mapping[str, int]) -> dict[str, Any]:
    """The values of a line: norms, then histograms, then units that are zero."""
    norms, histograms, zeros = {}, {}, dict[str, Any]()
    for name, array in values.items():
        if name.startswith(ZERO):
            zeros |= _zero_units(name.removeprefix(ZERO), array == 0)
        elif not array.ndim:
            norms[PREFIX + name] = float(array)
        else:
            norms[PREFIX + name] = float(np.sqrt(np.sum(np.square(array, dtype=np.float64))))
            histograms[HISTOGRAM + name] = _histogram(array)
    for name, axis in axes.items():
        if name in values and values[name].ndim:
            others = tuple(k for k in range(values[name].ndim) if k != axis)
            zeros |= _zero_units(name, (values[name] == 0).all(axis=others))
    return {**norms, **histograms, **zeros}


def _histogram(array: np.ndarray) -> dict[str, Any]:
    found = histogram(array)
    edges = found["edges"] or [0.0, 0.0]
    return {"low": edges[0], "high": edges[-1], "counts": found["counts"], "not_finite": found["not_finite"]}


def _zero_units(name: str, is_zero: np.ndarray) -> dict[str, Any]:
    units = np.flatnonzero(is_zero).tolist()
    return {ZERO + name: len(units)} | ({ZERO_LIST + name: ranges(units)} if units else {})


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as a text: 3,17-20."""
    parts: list[list[int]] = []
    for k in numbers:
        if parts and k == parts[-1][1] + 1:
            parts[-1][1] = k
        else:
            parts.append([k, k])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts)


def of_ranges(text: Any) -> set[int]:
    """The numbers of `ranges`; none of any other value."""
    found: set[int] = set()
    try:
        for part in str(text).split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), min(int(last or first), int(first) + 10**6) + 1))
    except ValueError:
        return set()
    return found


def watching_of(who: str, use: WatchOptions, ranks: Communicator | None) -> Watching | None:
    """What these options watch. SettingError for ranks, and for an interval without patterns."""
    patterns = as_patterns("watch", use.watch, who)
    if not patterns:
        for name, default in (("watch_every", None), ("watch_what", "norm")):
            if (value := getattr(use, name)) != default:
                raise SettingError(f"{{{name}}} requires {{watch}}", {name: value, "watch": ...}, place=who)
        return None
    every = as_every(EVERY if use.watch_every is None else use.watch_every, who, "watch_every")
    if ranks is not None:
        raise SettingError("{watch} requires one process, without {parallel}", watch=list(patterns), parallel=...)
    return Watching(patterns, every, use.watch_what)


# ---- warnings --------------------------------------------------------------------------------------------------------


def watch_warnings(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings on the watched values in the lines of a log, which may hold any values.

    Dead units: zero for all rows of the last WATCHES watched micro-batches. Growth: the median norm of the last 3
    watched steps is at least GROWTH times that of the first 3, of activations. Norms that are not finite."""
    watched = [line for line in lines if line.get("kind") == "watch"]
    names = dict.fromkeys(name for line in watched for name in line if isinstance(name, str))
    found = []
    for name in names:
        if name.startswith(PREFIX):
            found += _not_finite(name, watched)
        elif name.startswith(ZERO):
            own = [line for line in watched if name in line]
            shown = in_one_line(name.removeprefix(ZERO), 80)
            found += _dead(shown, [line.get(ZERO_LIST + name.removeprefix(ZERO), "") for line in own[-WATCHES:]])
            found += _grown(shown, [line.get(PREFIX + name.removeprefix(ZERO)) for line in own])
    return found


def _dead(shown: str, lists: Sequence[Any]) -> list[str]:
    if len(lists) < WATCHES or not all(lists):
        return []
    dead = sorted(set.intersection(*map(of_ranges, lists)))
    if not dead:
        return []
    text = in_one_line(ranges(dead), _SHOWN)
    count = f"{len(dead):,} unit{'s' * (len(dead) > 1)}"
    return [f"{shown}: {count} zero for all rows at the last {WATCHES} watched steps: {text}"]


def _grown(shown: str, norms: Sequence[Any]) -> list[str]:
    known = [float(n) for n in norms if isinstance(n, (int, float)) and abs(n) < 1e300]
    if len(known) < 2 * _ENDS:
        return []
    before, after = statistics.median(known[:_ENDS]), statistics.median(known[-_ENDS:])
    if not 0 < before * GROWTH <= after:
        return []
    return [f"{shown}: its norm has grown from {before:.3g} to {after:.3g}, {after / before:.3g} times"]


def _not_finite(name: str, watched: Sequence[Mapping[str, Any]]) -> list[str]:
    line = next((line for line in watched if name in line and not _is_finite(line[name])), None)
    if line is None:
        return []
    return [f"{in_one_line(name.removeprefix(PREFIX), 80)}: its norm is not finite at step {line.get('step')}"]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
