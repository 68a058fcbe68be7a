"""Why a step failed: it is run again, unshared and checked, to name what is not finite first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import GuardTripped, NonFiniteError, NotFinite
from ..graph.value import Value
from .compile import compile_checked

OVERFLOW = "the squared norm of the gradients overflows f32"


def row_of(name: str, array: np.ndarray, at: int) -> str:
    """What is said of an input [rows, ...] whose flat element `at` is not finite."""
    return f"row {at * len(array) // array.size} of the {name} is not finite"


def first_bad(
    run: Any,
    outputs: Sequence[Value],
    updates: Sequence[Value],
    settings: Mapping[str, Any],
    say: Callable[[str, np.ndarray, int], str] = row_of,
    settled: bool = False,
    **options: Any,
) -> str:
    """What is not finite first when a program runs again: one of its inputs, a node, or the norm of the gradients.

    run: the executable of outputs and updates, compiled with `options`, that has just failed; its inputs are fed again.
    settings: of one step. say(name, array, at): the sentence for an input that is not finite at a flat index.
    settled: the caller has seen to it that nothing outstanding reads or writes what the program touches.
    """
    checked = compile_checked(outputs, updates, **options)
    fed = {k: v for k, v in run.fed().items() if k in checked.inputs}
    for name, array in fed.items():
        bad = np.flatnonzero(~np.isfinite(array))
        if bad.size:
            return say(name, array, int(bad[0]))
    checked.feed(fed)
    try:
        if settled:
            checked.run_rows(1, checked.settings_rows(1, settings) if checked.settings else None)
        else:
            checked.run_many(1, settings)
    except NotFinite as failure:
        return _row(failure, settings) or str(failure)
    except GuardTripped:
        return OVERFLOW
    raise AssertionError("a step that was not finite is finite when it runs again")


def _row(failure: NotFinite, settings: Mapping[str, Any]) -> str | None:
    """The row of the data set that is not finite, when the node is the one that gathers a trainer's batch."""
    node = failure.node
    if node is None or node.op.name != "take_batch" or "position" not in settings:
        return None
    data, order = (v.node.attrs["stored"] for v in node.inputs[:2] if v is not None)
    batch = node.outputs[0]
    row = order.read()[int(settings["position"]) + failure.index * batch.shape[0] // batch.size]
    return f"row {row} of the {data.name} is not finite"


def stopped(step: int, cause: str, epoch: int | None = None) -> NonFiniteError:
    """The error of a training step whose loss or gradient is not finite; step and epoch count from 1."""
    at = f"step {step}" if epoch is None else f"step {step} (epoch {epoch})"
    hint = "clean the data" if cause.startswith("row ") else "a smaller learning rate or scaled inputs may help"
    return NonFiniteError(f"training stopped at {at}: {cause}; the weights before this step are kept; {hint}")
