"""Two ways to compute one thing, held against each other: gradients and finite differences; two backends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import GradientError, SettingError
from ..graph.grad import gradients
from ..graph.leaves import Parameter
from ..graph.stored import arrays_locked
from ..graph.value import Value
from ..transform.program import gather
from .backend import has_effect
from .compile import compile
from .numpy_backend import evaluate

EPS = float(np.finfo(np.float64).eps)


class GradientCheck(float):
    """The largest error that check_gradients found; a float.

    .tried  entries that were moved, of all parameters together
    .size   entries that the parameters have
    .unresolved  entries among those tried where the rounding of the loss hides an error of half the largest gradient
    """

    tried: int
    size: int
    unresolved: int

    def __new__(cls, error: float, tried: int, size: int, unresolved: int = 0) -> GradientCheck:
        made = super().__new__(cls, error)
        made.tried, made.size, made.unresolved = tried, size, unresolved
        return made

    def __repr__(self) -> str:
        lost = f", {self.unresolved} unresolved: below the rounding of the loss" if self.unresolved else ""
        return f"GradientCheck(error {float(self):.3g}, {self.tried} of {self.size} entries tried{lost})"


def check_gradients(
    loss: Value,
    feeds: Mapping[str, Any] | None = None,
    *,
    parameters: Sequence[Value] | None = None,
    step: float = 1e-6,
    tolerance: float = 1e-5,
    entries: int = 64,
    seed: int = 0,
) -> GradientCheck:
    """Compare the gradient of every parameter with central differences of the float64 reference.

    loss: any shape; its elements are summed. parameters: by default all trainable ones that the loss reaches. Up to
    `entries` entries of each, the largest of its gradient and others that are randomly chosen, are moved by `step`
    (relative to entries above 1). An error is |analytic - numeric| / largest, where `largest` is the largest entry
    of that parameter's gradient, but at least what makes the rounding of the loss in float64 an error of
    `tolerance`: so a gradient that is exactly 0 passes. An entry beyond tolerance is also tried with steps 10 and
    100 times as large, and a small one with a thousandth of its size, where the loss resolves that; the smallest of
    its errors counts: the rounding of terms that cancel is no error of the gradient.
    Returns the largest error, as a float with the number of entries that were tried, and of those that this rounding
    hides (a small gradient of a large loss); see GradientCheck.
    Raises GradientError naming the worst entry if its error exceeds tolerance, or if there is no entry to try;
    SettingError for `entries` below 1 and for a step below the resolution of float64.
    """
    entries = as_whole("entries", entries, 1, "check_gradients")
    if 0 < step < EPS:
        need = f"at least {EPS:.2g}, to change a float64"
        raise SettingError(setting="step", seen=step, need=need, place="check_gradients")
    nodes = gather([loss]).nodes
    if parameters is None:
        parameters = [v for n in nodes for v in n.outputs if isinstance(v, Parameter) and v.trainable]
    grads = gradients(loss, parameters)
    known = evaluate([loss, *[g for g in grads if g is not None], *parameters], feeds)
    middle, rng = float(np.sum(known[loss])), np.random.default_rng(seed)

    def differences(parameter: Value, i: tuple[int, ...], h: float | None = None) -> _Difference:
        at, ends = known[parameter], []
        h = step * max(1.0, abs(float(at[i]))) if h is None else h
        for sign in (1, -1):
            moved = at.copy()
            moved[i] += sign * h
            ends.append(float(np.sum(evaluate([loss], feeds, {parameter: moved})[loss])))
        return _Difference((ends[0] - ends[1]) / (2 * h), abs(ends[0] - 2 * middle + ends[1]), h)

    found: list[dict[tuple[int, ...], _Difference]] = []
    exact = [np.zeros(p.shape) if g is None else known[g] for p, g in zip(parameters, grads, strict=True)]
    for parameter, analytic in zip(parameters, exact, strict=True):
        flat = rng.permutation(analytic.size)[:entries]
        if analytic.size and (most := np.argmax(np.abs(analytic))) not in flat:  # NaN counts as the largest
            flat[-1] = most
        places = [tuple(map(int, np.unravel_index(entry, analytic.shape))) for entry in sorted(flat)]
        found.append({i: differences(parameter, i) for i in places})
    size, tried = sum(array.size for array in exact), sum(map(len, found))
    if not tried:
        seen = f"{len(parameters)} trainable parameters with {size} entries"
        raise GradientError(f"check_gradients: the loss reaches {seen}; need at least one entry to try")
    curves = [one.second for each in found for one in each.values()]
    cancelled = min(8 * float(np.median(curves)), 1e-12)  # more is no rounding, but a jump of the loss
    rounding = max(64 * EPS * float(np.sum(np.abs(known[loss]))), cancelled)
    worst, place, unresolved = 0.0, "", 0
    for parameter, analytic, each in zip(parameters, exact, found, strict=True):
        sizes = np.abs([*analytic.ravel(), *(one.slope for one in each.values())])
        largest = float(np.max(sizes[np.isfinite(sizes)], initial=0.0))
        for i, one in each.items():
            unresolved += 0.0 < largest < rounding / one.h  # an error of largest / 2 passes
            error = one.error(float(analytic[i]), largest, rounding / tolerance)
            h = 1e-3 * abs(float(known[parameter][i]))  # of a small entry, where the loss resolves it
            relative = [h] if 0.0 < h < step and rounding / tolerance <= 2 * h * largest else []
            for h in (100.0 * one.h, 10.0 * one.h, *relative):
                if not error <= tolerance:
                    again = differences(parameter, i, h).error(float(analytic[i]), largest, rounding / tolerance)
                    error = error if error <= again or math.isnan(again) else again
            if not error <= worst and not math.isnan(worst):
                worst = error
                place = f"{parameter.node.label}[{','.join(map(str, i))}]: gradient {float(analytic[i]):.9g}, finite "
                place += f"difference {one.slope:.9g}, largest entry {largest:.3g}"
    if not worst <= tolerance:
        raise GradientError(
            f"check_gradients: {place}; error {worst:.3g}, need at most {tolerance:g} ({tried} of {size} entries tried)"
        )
    return GradientCheck(worst, tried, size, unresolved)


@dataclass(frozen=True)
class _Difference:
    """Central differences of a loss at one entry: the slope, and the second difference, with step h."""

    slope: float
    second: float
    h: float

    def error(self, gradient: float, largest: float, room: float) -> float:
        """The difference of a gradient in units of the largest, or of room / 2h where that is larger."""
        difference = abs(gradient - self.slope)
        return difference / max(largest, room / (2 * self.h)) if difference else 0.0


def compare(
    outputs: Value | Sequence[Value],
    feeds: Mapping[str, Any] | None = None,
    backends: Sequence[str] = ("numpy", "cpu"),
    *,
    tolerance: float = 1e-4,
    **options: Any,
) -> tuple[Value, float] | None:
    """The first node, in order, at which two backends differ by more than `tolerance`, and by how much; or None.

    Compares every float value of the graph, unfused: max |a - b| / max(1, max |a|). backends: each one behind the first
    is held against the first; "numpy" is float64, so that ("numpy", "cpu", "gpu") finds out which of two is wrong.
    options go to compile, isa and flush to the CPU alone; precision rounds operands of products also in float64. In
    bf16 a number between two of bf16 may be rounded to the other one: behind more than one product that needs a larger
    tolerance.
    Raises SettingError for fewer than two backends.
    """
    if isinstance(backends, str):
        need = f"two or more, such as ('numpy', {backends!r})"
        raise SettingError(setting="backends", seen=backends, need=need, place="compare")
    if len(backends) < 2:
        raise SettingError(setting="backends", seen=tuple(backends), need="two or more", place="compare")
    values = [outputs] if isinstance(outputs, Value) else list(outputs)
    every = [v for n in gather(values).nodes if not n.op.updates for v in n.outputs if v.dtype.is_float]
    feeds = dict(feeds or {})
    results = []
    for name in backends:
        taken = {k: v for k, v in options.items() if has_effect(name, k)}
        run = compile(every, backend=name, **taken | {"fuse": False})
        state = [n.attrs["stored"] for n in run.program.nodes if n.op.name == "parameter"]
        written = [stored for stored in state if stored.role != "frozen"]
        with arrays_locked(written, written):
            before = [stored.read().copy() for stored in written]
            results.append(run(**feeds))
            for stored, data in zip(written, before, strict=True):  # running statistics stay as they were
                stored.write(data)
    for value, a, *others in zip(every, *results, strict=True):
        for b in others if a.size else ():
            with np.errstate(invalid="ignore"):
                difference = float(np.max(np.abs(a - b))) / max(1.0, float(np.max(np.abs(a))))
            if not difference <= tolerance and not np.array_equal(a, b, equal_nan=True):
                return value, difference
    return None
