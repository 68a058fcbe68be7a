"""The arrays of a state dict, ours or of torch.nn, by the parameters that they are for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..base.arguments import listed, what_is
from ..base.dlpack import array_of
from ..base.errors import DTypeError, GraphError, SettingError, ShapeError


def arrays_for(net: Any, given: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[Any, np.ndarray]:
    """Stored -> its array. paths: all names of the parameters of the net, the first of each parameter first.

    GraphError for missing and unknown names, and for different arrays of one parameter; ShapeError, DTypeError."""
    if not isinstance(given, Mapping):
        seen = what_is(given)
        raise SettingError(f"load_state_dict: got {seen}; need a dict of arrays, or gl.load(model, path) for a file")
    arrays = {name: array_of(f"load: {name}", one) for name, one in given.items()}
    for path, module in _places(net):
        _rename_layers(arrays, path, module.torch_names)
        module.take_torch_names(arrays, path)
    first: dict[Any, str] = {}
    for name, p in paths.items():
        own = first.setdefault(p.stored, name)
        if own != name and name in arrays:  # another name of a shared array
            other = arrays.pop(name)
            if not _same(arrays.setdefault(own, other), other):
                raise GraphError(f"load: {own} and {name} differ; need equal arrays, because this model shares them")
    mine = {name: paths[name] for name in first.values()}
    missing, extra = sorted(set(mine) - set(arrays)), sorted(set(arrays) - set(mine))
    shapes = [(name, arrays[name].shape, p.shape) for name, p in mine.items() if name in arrays]
    wrong = [f"{name} has shape {list(seen)}; need {list(need)}" for name, seen, need in shapes if seen != need]
    if missing or extra:
        faults = [f"missing {listed(missing)}"] * bool(missing) + [f"unknown {listed(extra)}"] * bool(extra)
        raise GraphError(f"load: {'; '.join([*faults, f'need exactly the {len(mine)} arrays of this model', *wrong])}")
    if wrong:
        raise ShapeError(f"load: {listed(wrong, ', ')}")
    for name, parameter in mine.items():
        kind = arrays[name].dtype
        if kind.kind not in "fiub" and kind.name != "bfloat16":
            raise DTypeError(f"load: {name} is {kind}; need numbers for {parameter.dtype.name}")
    return {p.stored: arrays[name] for name, p in mine.items()}


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays hold the same numbers, NaN among them."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _rename_layers(arrays: dict[str, np.ndarray], path: str, names: tuple[str, ...]) -> None:
    """Replace the names that torch.nn has for the layers of a Sequential by their positions."""
    positions = {f"{path}{name}.": f"{path}{i}." for i, name in enumerate(names) if name != str(i)}
    for name in list(arrays) if positions else ():
        start = next((start for start in positions if name.startswith(start)), None)
        if start is not None:
            arrays[positions[start] + name.removeprefix(start)] = arrays.pop(name)


def _places(net: Any) -> Iterator[tuple[str, Any]]:
    """(beginning of the names of its arrays, module) of the tree, parents first, shared modules at each place."""
    todo: list[tuple[str, Any, frozenset[Any]]] = [("", net, frozenset((net,)))]
    while todo:
        path, module, above = todo.pop()
        yield path, module
        todo += [(f"{path}{name}.", one, above | {one}) for name, one in module.children() if one not in above]
