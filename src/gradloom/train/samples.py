"""Samples of dp_train: pairs and dicts of arrays, taken apart into named arrays and put together from graph inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.errors import DataError
from ..graph.numbers import kind_of
from ..graph.value import Value
from .source import check_ids, numbers

Leaves = dict[str, np.ndarray]


def as_sample(sample: Any) -> Any:
    """The sample as a pair or a dict; DataError for anything else."""
    if isinstance(sample, dict):
        return sample
    if isinstance(sample, (tuple, list)) and len(sample) == 2:
        return tuple(sample)
    seen = f"{type(sample).__name__} of {len(sample)}" if isinstance(sample, (tuple, list)) else type(sample).__name__
    raise DataError(f"got {seen}; need a pair (x, target) or a dict of arrays")


def flatten(part: Any, name: str, leaves: Leaves) -> Any:
    """Collect the arrays of tuples and dicts, and answer a hashable layout for `rebuilt`."""
    if isinstance(part, dict):
        return ("dict", *((k, flatten(v, f"{name}.{k}" if name else str(k), leaves)) for k, v in part.items()))
    if isinstance(part, tuple):
        names = ("x", "target") if not name else [f"{name}[{i}]" for i in range(len(part))]
        return ("tuple", *(flatten(v, n, leaves) for n, v in zip(names, part, strict=True)))
    if name in leaves:
        raise DataError(f"{name} is there twice; need one array for a name")
    leaves[name] = _as_leaf(name, part)
    return name


def rebuilt(layout: Any, values: dict[str, Value]) -> Any:
    """The sample of a layout, with values in the place of its arrays."""
    if isinstance(layout, str):
        return values[layout]
    if layout[0] == "dict":
        return {k: rebuilt(v, values) for k, v in layout[1:]}
    return tuple(rebuilt(v, values) for v in layout[1:])


def _as_leaf(name: str, data: Any) -> np.ndarray:
    """Numbers in the dtype that gl.tensor gives them."""
    array, kind = numbers(name, data, ("bfloat16",)), kind_of(data)
    if not kind.is_float:
        check_ids(name, array, kind.numpy)
    return array.astype(kind.numpy, copy=False)
