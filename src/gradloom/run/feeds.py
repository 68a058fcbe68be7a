"""Checks of a caller's feeds against the inputs of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.arguments import nearest
from ..base.arrays import as_array as plain_array
from ..base.arrays import check_whole
from ..base.dtypes import DType, i32, i64
from ..base.errors import DTypeError, GraphError, SettingError, ShapeError
from ..graph.stored import Stored
from ..graph.value import Node, Value, describe

SETTING_DEFAULTS: dict[str, float] = {"seed": 0, "step": 1, "row": 0}


class LeafTable(dict[str, Value]):
    """name -> input or setting of a program. Read-only: their numbers are arguments of each call."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise SettingError("run: inputs and settings are read-only; pass their numbers to the call: run(x=..., lr=0.1)")

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


def leaves(nodes: Sequence[Node], kind: str) -> LeafTable:
    """key -> value of all `input` or `setting` leaves; GraphError when one key means two things."""
    values: dict[str, Value] = {}
    for node in nodes:
        if node.op.name == kind:
            value = node.outputs[0]
            known = values.setdefault(node.attrs["key"], value)
            if (known.shape, known.dtype) != (value.shape, value.dtype):
                raise GraphError(
                    f"{kind} {node.attrs['key']!r} is {describe(known)} at {known.node.where} and {describe(value)} at "
                    f"{node.where}; need one shape and dtype for a name"
                )
    return LeafTable(values)


def check_names(given: Mapping[str, Any], inputs: Mapping[str, Value], settings: Mapping[str, Value]) -> None:
    """Every input fed, nothing unknown."""
    missing = [k for k in inputs if k not in given]
    missing += [k for k in settings if k not in given and k not in SETTING_DEFAULTS]
    if missing:
        value = inputs.get(missing[0], settings.get(missing[0]))
        raise GraphError(
            f"run: {missing[0]} is not fed; need {missing[0]}={describe(value)}; got {sorted(given) or 'nothing'}"
        )
    for name in given:
        if name not in inputs and name not in settings:
            hint = nearest(name, [*inputs, *settings])
            raise GraphError(f"run: {name} is not an input of this graph; it has {sorted([*inputs, *settings])}{hint}")


def narrowed(nodes: Sequence[Node]) -> tuple[list[str], list[Stored]]:
    """Inputs (by key) and stored arrays of i64 that a program converts to i32, itself or through views."""
    same: dict[Value, Node] = {}
    found: dict[Node, None] = {}
    for node in nodes:
        first = node.inputs[0] if node.inputs else None
        if node.op.leaf:
            same |= {v: node for v in node.outputs if v.dtype is i64}
        elif first in same and (node.op.view is not None or node.op.name == "copy"):
            same[node.outputs[0]] = same[first]
        elif first in same and node.op.name == "cast" and node.outputs[0].dtype is i32:
            found[same[first]] = None
    inputs = [n.attrs["key"] for n in found if n.op.name == "input"]
    return inputs, [n.attrs["stored"] for n in found if n.op.name == "parameter"]


def as_array(name: str, data: Any, shape: tuple[int, ...], kind: DType) -> np.ndarray:
    """The data as an array of exactly this shape and dtype; ShapeError, DTypeError, IndexOutOfRange with the value
    seen."""
    try:
        array = plain_array(f"run: {name}", data)
    except ValueError:
        raise ShapeError(f"run: {name} has rows of different lengths; need {kind.name}{list(shape)}") from None
    if array.dtype != kind.numpy:
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise DTypeError(f"run: {name} is {array.dtype}; need numbers for {kind.name}")
        if array.dtype.kind == "f" and not kind.is_float:
            raise DTypeError(f"run: {name} is {array.dtype}; need whole numbers for {kind.name}")
        if not kind.is_float:
            check_whole(f"run: {name}", array, kind.numpy)
        array = array.astype(kind.numpy)
    if array.shape != shape:
        raise ShapeError(f"run: {name} has shape {list(array.shape)}; need {kind.name}{list(shape)}")
    return array
