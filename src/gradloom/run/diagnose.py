"""Diagnosis of a failed step: it runs again, unshared and checked, to name the first value that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..base.arrays import place_in
from ..base.errors import GuardTripped, NonFiniteError, NotFinite, UserOpError
from ..graph.graph import view_base
from ..graph.value import Node, Value
from ..transform.program import gather
from .compile import compile_checked
from .numpy_backend import leaf_data

OVERFLOW = "the squared norm of the gradients overflows f32"
LARGE = 1e6  # an input above it is named where a step overflows

Place = tuple[str, str]  # names an element of an input: the array, and the place, " at [2]"
Namer = Callable[[str, np.ndarray, int], Place]  # of the flat element of an input that was fed by a name


@dataclass(frozen=True)
class Input:
    """Real numbers that go into a step, and the words for each of its flat elements."""

    array: np.ndarray
    place: Callable[[int], Place]


def row_of(name: str, array: np.ndarray, at: int) -> Place:
    """The words for the flat element `at` of an input [rows, ...]."""
    row, inside = divmod(at, array.size // len(array))
    return f"row {row} of the {name}", place_in(array.shape[1:], inside)


def first_bad(
    run: Any,
    outputs: Sequence[Value],
    updates: Sequence[Value],
    settings: Mapping[str, Any],
    place: Namer = row_of,
    settled: bool = False,
    **options: Any,
) -> str:
    """The first value that is not finite when a program runs again: an input, a parameter, a node, or the norm of the
    gradients. For an overflow also the input with large numbers.

    run: the executable of outputs and updates, compiled with `options`, that has just failed; its inputs are fed again.
    settings: of one step. place(name, array, at): the words for an element of an input that was fed.
    settled: the caller has waited for all outstanding reads and writes of the program's arrays.
    """
    checked = compile_checked(outputs, updates, **options)
    fed = {k: v for k, v in run.fed().items() if k in checked.inputs}
    for name, array in fed.items():
        bad = np.flatnonzero(~np.isfinite(array))
        if bad.size:
            return _bad(*place(name, array, int(bad[0])))
    checked.feed(fed)
    try:
        if settled:
            checked.run_rows(1, checked.settings_rows(1, settings) if checked.settings else None)
        else:
            checked.run_many(1, settings)
    except NotFinite as failure:
        cause = _row(failure, settings) or _parameter(failure.node)
        if cause:
            return cause
        cause = str(failure) + _behind(failure.node)
    except GuardTripped:
        cause = OVERFLOW
    except UserOpError as error:
        return str(error)
    else:
        called = [node.label for node in checked.program.nodes if node.op.python]
        if called:
            return (
                f"a number is not finite that is finite when the step runs again, after the user-defined op {called[0]}"
            )
        raise AssertionError("a step that was not finite is finite when it runs again")
    return cause + _largest(_inputs(gather(outputs, updates).nodes, fed, settings, place))


def _bad(what: str, at: str) -> str:
    return f"{what} is not finite{at}"


def _row(failure: NotFinite, settings: Mapping[str, Any]) -> str | None:
    """The row of the data set that is not finite in f32, when the node is the one that gathers a trainer's batch."""
    batch = _gathered(failure.node, settings) if failure.node is not None else None
    if batch is None:
        return None
    (what, at), number = batch.place(failure.index), batch.array.flat[failure.index]
    return f"{what} holds {number:g}{at}, which f32 does not hold" if np.isfinite(number) else _bad(what, at)


def _parameter(node: Node | None) -> str | None:
    """The parameter that the node reads and that was not finite before the step."""
    for value in node.inputs if node is not None else ():
        base = view_base(value) if value is not None else None
        if base is not None and base.node.op.name == "parameter":
            array = leaf_data(base, {})
            bad = np.flatnonzero(~np.isfinite(array))
            if bad.size:
                at, name = int(bad[0]), base.node.attrs["stored"].name
                return f"parameter {name} holds {float(array.flat[at]):g}{place_in(array.shape, at)} already"
    return None


def _behind(node: Node | None) -> str:
    """Where in the model a node without a name is: the nearest parameter in front of it, or the nearest node of another
    line, as that of the forward node for a gradient, whose own line is that of the training."""
    queue, seen = [node] if node is not None and not node.name else [], set()
    for one in queue:  # by distance
        for value in one.inputs:
            if value is None or value.node in seen:
                continue
            seen.add(value.node)
            if value.node.op.name == "parameter":
                return f", behind {value.node.attrs['stored'].name}"
            if node is not None and value.node.where != node.where and not value.node.op.leaf:
                return f", behind {value.node.label}"
            queue.append(value.node)
    return ""


def _largest(inputs: Iterable[Input]) -> str:
    """Describes the largest number among finite inputs of a step; "" where none is large."""
    large, text = LARGE, ""
    for one in inputs:
        at = int(np.argmax(np.abs(one.array))) if one.array.size else 0
        number = float(one.array.flat[at]) if one.array.size else 0.0
        if abs(number) > large:
            large, text = abs(number), f"; the largest number that goes in is {number:g}, in {''.join(one.place(at))}"
    return text


def _inputs(
    nodes: Iterable[Node], fed: Mapping[str, np.ndarray], settings: Mapping[str, Any], name: Namer
) -> list[Input]:
    """What goes into the step of real numbers: inputs that are fed, and batches gathered from a data set."""
    found = [Input(array, partial(name, key, array)) for key, array in fed.items() if array.dtype.kind == "f"]
    gathered = [_gathered(node, settings) for node in nodes]
    return found + [one for one in gathered if one is not None]


def _gathered(node: Node, settings: Mapping[str, Any]) -> Input | None:
    """The real numbers that the node gathers as a trainer's batch; None where it is another one."""
    if node.op.name != "take_batch" or node.inputs[2] is None or not node.outputs[0].dtype.is_float:
        return None
    at = node.inputs[2].node.attrs.get("key")
    if not isinstance(at, str) or at not in settings:
        return None
    data, order = (v.node.attrs["stored"] for v in node.inputs[:2] if v is not None)
    first = int(settings[at])
    last = first + node.outputs[0].shape[0]
    array = data.read()[order.read()[first:last]]
    rows = order.rows(first, last) if hasattr(order, "rows") else order.read()[first:last]

    def place(at: int) -> Place:
        row, inside = divmod(at, array.size // len(rows))
        return f"row {rows[row]} of the {data.name}", place_in(array.shape[1:], inside)

    return Input(array, place)


def step_error(step: int, cause: str, epoch: int | None = None) -> NonFiniteError:
    """The error of a training step whose loss or gradient is not finite; step and epoch count from 1. A parameter that
    is not finite at a later step was written by an update: results of the optimizer are not guarded."""
    at = f"step {step}" if epoch is None else f"step {step} (epoch {epoch})"
    hint = "a smaller learning rate or scaled inputs may help"
    if cause.startswith("row "):
        hint = "clean the data"
    elif cause.startswith("parameter "):
        if step > 1:
            hint = "need an earlier checkpoint; a smaller learning rate may help"
            return NonFiniteError(
                f"training stopped at {at}: {cause}, written by the update of an earlier step; {hint}"
            )
        hint = "begin with finite parameters"
    return NonFiniteError(f"training stopped at {at}: {cause}; the weights before this step are kept; {hint}")
