"""Two ways to compute one thing, held against each other: gradients and finite differences; two backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import GradientError, SettingError
from ..graph.grad import gradients
from ..graph.leaves import Parameter
from ..graph.stored import held
from ..graph.value import Value
from ..transform.program import gather
from .backend import heeds
from .compile import compile
from .numpy_backend import evaluate


def check_gradients(
    loss: Value,
    feeds: Mapping[str, Any] | None = None,
    *,
    parameters: Sequence[Value] | None = None,
    step: float = 1e-6,
    tolerance: float = 1e-5,
    entries: int = 64,
    seed: int = 0,
) -> float:
    """Hold every parameter's gradient against central differences of the float64 reference.

    loss: any shape; its elements are summed. parameters: by default all trainable ones that the loss reaches. Up to
    `entries` randomly chosen entries of each are moved by `step` (relative to their size). Returns the worst error,
    |analytic - numeric| / max(1, |numeric|); raises GradientError naming the worst entry beyond tolerance.
    """
    nodes = gather([loss]).nodes
    if parameters is None:
        parameters = [v for n in nodes for v in n.outputs if isinstance(v, Parameter) and v.trainable]
    grads = gradients(loss, parameters)
    known = evaluate([loss, *[g for g in grads if g is not None], *parameters], feeds)
    rng = np.random.default_rng(seed)
    worst = (0.0, "")
    for parameter, grad in zip(parameters, grads, strict=True):
        at = known[parameter]
        analytic = np.zeros(at.shape) if grad is None else known[grad]
        flat = rng.permutation(at.size)[:entries] if at.size > entries else range(at.size)
        for entry in flat:
            i = np.unravel_index(entry, at.shape)
            h = step * max(1.0, abs(float(at[i])))
            total = 0.0
            for sign in (1, -1):
                moved = at.copy()
                moved[i] += sign * h
                total += sign * float(np.sum(evaluate([loss], feeds, {parameter: moved})[loss]))
            numeric = total / (2 * h)
            error = abs(float(analytic[i]) - numeric) / max(1.0, abs(numeric))
            if not error <= worst[0]:
                place = f"{parameter.node.label}[{','.join(map(str, i))}]"
                worst = (error, f"{place}: gradient {float(analytic[i]):.9g}, finite difference {numeric:.9g}")
    if not worst[0] <= tolerance:
        raise GradientError(f"check_gradients: {worst[1]}; error {worst[0]:.3g}, need at most {tolerance:g}")
    return worst[0]


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
    options go to compile, isa and flush to the CPU alone; precision rounds operands of products in float64, too. In
    bf16 a number between two of bf16 may be rounded to the other one: behind more than one product that needs a larger
    tolerance.
    Raises SettingError for fewer than two backends.
    """
    if isinstance(backends, str):
        raise SettingError(
            f"compare: backends={backends!r} is one name; need two or more, such as ('numpy', {backends!r})"
        )
    if len(backends) < 2:
        raise SettingError(f"compare: backends={tuple(backends)!r} is not usable; need two or more")
    values = [outputs] if isinstance(outputs, Value) else list(outputs)
    every = [v for n in gather(values).nodes if not n.op.updates for v in n.outputs if v.dtype.is_float]
    feeds = dict(feeds or {})
    results = []
    for name in backends:
        taken = {k: v for k, v in options.items() if heeds(name, k)}
        run = compile(every, backend=name, **taken | {"fuse": False})
        state = [n.attrs["stored"] for n in run.program.nodes if n.op.name == "parameter"]
        written = [stored for stored in state if stored.role != "frozen"]
        with held(written, written):
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
