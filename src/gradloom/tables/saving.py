"""save and load: models, networks and the state of an optimiser, as one safetensors or GGUF file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, overload

import numpy as np

from ..base.arguments import what_is
from ..base.errors import SettingError
from ..base.habits import hinted
from ..files import load_arrays, need_finite, save_arrays
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..optim.state import OptimizerState
from ..parallel.join import is_writer
from .model import DESCRIPTION, Model, read_model, write_model

Path = str | os.PathLike[str]


@hinted
def save(
    what: Model | Module | Optimizer | OptimizerState, path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a network (parameters, buffers and architecture), a Model, or an optimiser's state
    (trainer.optimizer_state, when a trainer keeps it), to a .safetensors or .gguf file (whole or not at all;
    FileError).

    Architectures are saved of networks that consist of gl.nn's layers: `gl.load(path)` makes these again. Of a network
    with classes of the user's own the arrays are saved, which `gl.load(network, path)` reads.
    Among ranks of mpiexec that train together, rank 0 alone writes; the others do not wait for it.
    FileError if a weight, a moment or a metric is not finite; the file is then unchanged.
    """
    _check("save", what.net if isinstance(what, Model) else what, path)
    if not is_writer():
        return
    if isinstance(what, (Model, Module)):
        write_model(what, path, dict(metadata or {}))
    else:
        arrays = what.state_dict()
        _need_finite(what, path, arrays)
        save_arrays(path, arrays, dict(metadata or {}))


@overload
def load(what: Path) -> Any: ...
@overload
def load(what: Module | Optimizer | OptimizerState, path: Path) -> dict[str, str]: ...
@hinted
def load(what: Path | Module | Optimizer | OptimizerState, path: Path | None = None) -> Any:
    """load(path) gives what `save` wrote: a network, or the Model of `gradloom fit` (its file or its folder).

    load(what, path) reads the arrays of a file into a module of the same structure, or into an optimiser of the same
    kind and parameters, and returns the file's metadata.

    Nothing in a file is run as code. Raises FileError for a damaged file, weights or moments that are not finite, or
    (load(path)) a network with a class of the user's own, GraphError or ShapeError when the arrays are not this
    module's or optimiser's (of another kind, of other parameters, in another order).
    """
    if path is None and isinstance(what, (str, os.PathLike)):
        return read_model(what)
    _check("load", what, path)
    assert path is not None and isinstance(what, (Module, Optimizer, OptimizerState))
    arrays, metadata = load_arrays(path)
    _need_finite(what, path, arrays)
    what.load_state_dict(arrays)
    metadata.pop(DESCRIPTION, None)
    return metadata


def _need_finite(what: object, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """FileError for weights or moments that are not finite. A Plateau may remember inf: the best loss before one."""
    is_module = isinstance(what, Module)
    need_finite(path, {name: a for name, a in arrays.items() if is_module or not name.startswith("plateau.")})


def _check(who: str, what: object, path: object) -> None:
    """SettingError unless it has a state and there is a path."""
    if not isinstance(what, (Module, Optimizer, OptimizerState)):
        need = "a module, or an optimiser with parameters (trainer.optimizer_state, when a trainer keeps its state)"
        raise SettingError(f"{who}: got {what_is(what)}; need {need}")
    if not isinstance(path, (str, os.PathLike)):
        raise SettingError(f"{who}: the path is {what_is(path)}; need that of a .safetensors or .gguf file")
