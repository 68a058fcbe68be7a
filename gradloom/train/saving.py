"""save and load: the weights of a module, or the state of an optimiser, as one safetensors or GGUF file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..base.arguments import what_is
from ..base.errors import SettingError
from ..files import load_arrays, need_finite, save_arrays
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..optim.state import OptimizerState
from ..parallel.join import is_writer


def save(
    what: Module | Optimizer | OptimizerState, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a module's parameters and buffers, or an optimiser's state (trainer.optimizer_state, when a trainer keeps
    it), to a .safetensors or .gguf file (whole or not at all; FileError).

    Among ranks of mpiexec that train together, rank 0 alone writes; the others do not wait for it.
    """
    _check("save", what, path)
    if is_writer():
        save_arrays(path, what.state_dict(), dict(metadata or {}))


def load(what: Module | Optimizer | OptimizerState, path: str | os.PathLike[str]) -> dict[str, str]:
    """Read what `save` wrote into a module of the same structure, or into an optimiser of the same kind and parameters;
    returns the file's metadata.

    Raises FileError for a damaged file or a module's numbers that are not finite, GraphError or ShapeError when the
    arrays are not this module's or optimiser's (of another kind, of other parameters, in another order).
    """
    _check("load", what, path)
    arrays, metadata = load_arrays(path)
    if isinstance(what, Module):  # an optimiser's state may hold inf: the best loss before there is one
        need_finite(path, arrays)
    what.load_state_dict(arrays)
    return metadata


def _check(who: str, what: object, path: object) -> None:
    """SettingError unless it has a state and there is a path."""
    if not isinstance(what, (Module, Optimizer, OptimizerState)):
        need = "a module, or an optimiser with parameters (trainer.optimizer_state, when a trainer keeps its state)"
        raise SettingError(f"{who}: got {what_is(what)}; need {need}")
    if not isinstance(path, (str, os.PathLike)):
        raise SettingError(f"{who}: the path is {what_is(path)}; need that of a .safetensors or .gguf file")
