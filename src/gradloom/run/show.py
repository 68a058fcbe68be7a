"""Values that gl.ops.show marks in a program: which, and their lines. run/watch.py computes them before each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ..base.terminal import in_one_line, to_stderr
from ..graph.value import Node

FIRST = 6  # numbers that are printed
_is_silent: ContextVar[bool] = ContextVar("gradloom_silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Inside, programs are compiled that print nothing: those that compute a step a second time."""
    before = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(before)


def shown_nodes(nodes: Sequence[Node]) -> list[Node]:
    """The nodes whose values a program of these nodes is to print."""
    return [] if _is_silent.get() else [node for node in nodes if node.op.name == "show"]


def print_value(name: str, array: np.ndarray) -> None:
    """Print a line of an array."""
    to_stderr(shown_value(name, array))


def shown_value(name: str, array: np.ndarray) -> str:
    """name f32[2,3]: mean 0.5, from -1 to 2; -1, 0, ..."""
    kinds = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}
    kind = kinds.get(array.dtype.name, array.dtype.name)
    head = f"{in_one_line(name, 80)} {kind}[{','.join(map(str, array.shape))}]"
    numbers = array.reshape(-1).astype(np.float64)
    if not numbers.size:
        return f"{head}: no numbers"
    finite = numbers[np.isfinite(numbers)]
    parts = [f"{len(numbers) - len(finite):,} not finite"] if len(finite) < len(numbers) else []
    if len(finite):
        parts.append(f"mean {finite.mean():.6g}, from {finite.min():.6g} to {finite.max():.6g}")
    first = ", ".join(f"{number:.6g}" for number in numbers[:FIRST])
    return f"{head}: {', '.join(parts)}; {first}{', ...' if len(numbers) > FIRST else ''}"
