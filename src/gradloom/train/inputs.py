"""Inputs of a model: one value, a dict of values by names of its parameters, or a tuple of values in their order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..base.errors import DataError, GraphError
from ..base.structures import Structure, is_plain, listed
from ..graph.value import Value, describe
from ..nn.module import Module


def called(model: Callable[..., Any], x: Structure) -> Any:
    """The model's outputs: model(x) of one value, model(**x) of a dict, model(*x) of a tuple.

    DataError where a dict has a key that is no parameter of the model (of forward, for a Module) or lacks one, and
    where a tuple, or one value, is not the number of parameters.
    """
    parameters = _parameters(model)
    if is_plain(x):
        if parameters is not None and _least(parameters) > 1:
            raise DataError(
                f"data: one array; {_shown(model, parameters)} takes more: need a dict or a tuple of arrays"
            )
        return model(x)
    if isinstance(x, dict):
        if parameters is not None:
            _check_keys(_shown(model, parameters), x, parameters)
        return model(**x)
    if parameters is not None:
        _check_count(_shown(model, parameters), len(x), parameters)
    return model(*x)


def takes_several(model: Any) -> bool:
    """Whether a model takes more than one value in order."""
    found = _parameters(model) if callable(model) else None
    if found is None:
        return False
    return any(p.kind is p.VAR_POSITIONAL for p in found.values()) or len(_positional(found)) > 1


def rows_of(inputs: Mapping[str, Value]) -> int:
    """The rows of all inputs of a graph. GraphError for a scalar, and where they differ."""
    known, first = next(iter(inputs.items()))
    for name, leaf in inputs.items():
        if not leaf.ndim:
            raise GraphError(f"Trainer: the input {name} is a scalar; need rows along the first axis")
        if leaf.shape[0] != first.shape[0]:
            seen = f"{known} {describe(first)} and {name} {describe(leaf)}"
            raise GraphError(f"Trainer: the inputs of the graph, {seen}, have different rows")
    return first.shape[0]


def of_graph(inputs: Mapping[str, Value], x: Structure) -> dict[Value, Value]:
    """The value for each input of a graph, by name; one value is for the only input. GraphError for others."""
    if is_plain(x):
        if len(inputs) != 1:
            raise GraphError(f"the graph has the inputs {listed(inputs)}; need one, or data as a dict of these")
        (leaf,) = inputs.values()
        return {leaf: x}
    if not isinstance(x, dict):
        raise GraphError(f"data: a tuple; need a dict by the inputs of the graph: {listed(inputs)}")
    for key in x:
        if key not in inputs:
            raise GraphError(f"data {key!r}: the graph has no such input; need {listed(inputs)}")
    for name in inputs:
        if name not in x:
            raise GraphError(f"data: no {name!r}; need all inputs of the graph: {listed(inputs)}")
    return {leaf: x[name] for name, leaf in inputs.items()}


def _parameters(model: Any) -> Mapping[str, inspect.Parameter] | None:
    """None where they are not known: of a function that is not written in Python."""
    try:
        return inspect.signature(model.forward if isinstance(model, Module) else model).parameters
    except (TypeError, ValueError):
        return None


def _shown(model: Any, parameters: Mapping[str, inspect.Parameter]) -> str:
    name = getattr(model, "__name__", None) or type(model).__name__
    return f"{name}{'.forward' * isinstance(model, Module)}({', '.join(map(str, parameters))})"


def _least(parameters: Mapping[str, inspect.Parameter]) -> int:
    return sum(p.default is p.empty for p in _positional(parameters))


def _positional(parameters: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _check_keys(shown: str, x: Mapping[str, Value], parameters: Mapping[str, inspect.Parameter]) -> None:
    usable = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in x:
            if key not in usable:
                raise DataError(f"data {key!r}: {shown} has no such parameter; need the keys {listed(usable)}")
    for key, p in parameters.items():
        needed = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if needed and key not in x:
            raise DataError(f"data: no {key!r}, which {shown} takes; need the keys {listed(usable)}")


def _check_count(shown: str, count: int, parameters: Mapping[str, inspect.Parameter]) -> None:
    least = _least(parameters)
    most = None if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()) else len(_positional(parameters))
    if count < least or (most is not None and count > most):
        need = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise DataError(f"data: a tuple of {count} arrays; {shown} takes {need}")
