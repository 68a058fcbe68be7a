"""The models of `gradloom fit`: building them, and the one file that holds everything `gradloom predict` needs."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import nn
from ..base.described import parse
from ..base.errors import DataError, FileError, GradloomError
from ..base.memory import need_memory, show_bytes
from ..data import Preprocess
from ..files import load_arrays, need_finite, save_arrays
from ..graph.value import Value

MODEL, RESULT = "model.safetensors", "result.json"  # the files of a folder that `gradloom fit` writes together
_FORMAT = 1


class _Dropping(nn.Sequential):
    """Layers with dropout after each hidden one: in training alone, and with the names of the same without it."""

    def __init__(self, layers: Sequence[nn.Module], dropout: float) -> None:
        super().__init__(*layers)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Value) -> Value:
        *before, last = self.layers
        for layer in before:
            x = layer(x)
            x = self.dropout(x) if isinstance(layer, nn.Linear) else x
        return last(x)


def build_model(preprocess: Preprocess, hidden: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """A multilayer perceptron from the features of `preprocess` to its outputs: logits, or standardised targets.

    dropout: the share of each hidden layer's outputs that a step of training leaves out.
    """
    layers: list[nn.Module] = []
    if preprocess.kind == "array":
        layers.append(nn.Standardize(preprocess.mean, preprocess.std))
    width = preprocess.inputs
    for size in hidden:
        layers.append(nn.Linear(width, size, activation="relu"))
        width = size
    layers.append(nn.Linear(width, preprocess.outputs))
    return _Dropping(layers, dropout) if dropout else nn.Sequential(*layers)


def need_room(preprocess: Preprocess, hidden: Sequence[int]) -> None:
    """SettingError when the free memory does not hold the training of build_model(preprocess, hidden): weights, their
    gradients and two moments."""
    count = sum(math.prod(shape) for shape in _shapes(preprocess, hidden).values())
    what = f"{count:,} parameters need {show_bytes(16 * count)} of memory to train"
    need_memory(16 * count, f"hidden layers {','.join(map(str, hidden)):.80}: {what}", "need smaller ones")


def save_model(
    path: str | os.PathLike[str],
    net: nn.Sequential,
    preprocess: Preprocess,
    hidden: Sequence[int],
    about: dict[str, Any],
    dropout: float = 0.0,
) -> None:
    """Write weights, architecture and preprocessing into one .safetensors file, whole or not at all."""
    description = {
        "format": _FORMAT,
        "architecture": {"kind": "mlp", "hidden": list(hidden), **({"dropout": dropout} if dropout else {})},
        "preprocess": json.loads(preprocess.to_json()),
        "about": about,
    }
    save_arrays(path, net.state_dict(), {"gradloom.model": json.dumps(description, ensure_ascii=False)})


def files_of_model(path: str | os.PathLike[str]) -> list[str]:
    """What belongs to a model that is given by its file or folder."""
    return [os.fspath(path), os.path.join(os.path.dirname(path), RESULT)]


def load_model(path: str | os.PathLike[str]) -> tuple[nn.Sequential, Preprocess]:
    """The model of a file that save_model wrote, or of a folder that `gradloom fit --out` made.

    FileError for any other file. Nothing is built before the arrays are those that the description needs.
    """
    where = Path(path)
    if not where.suffix and not where.exists():
        raise FileError(f"{path}: no such file or folder")
    if where.is_dir():
        where = where / MODEL
    arrays, metadata = load_arrays(where)
    if "gradloom.model" not in metadata:
        raise FileError(f"{where}: holds arrays but no model of gradloom; need a file that `gradloom fit` saved")
    try:
        preprocess, hidden, dropout = _described(metadata["gradloom.model"])
        _check_arrays(arrays, preprocess, hidden)
    except GradloomError as error:
        raise FileError(f"{where}: its description is damaged ({error}); train and save it again") from None
    need_finite(where, arrays)
    net = build_model(preprocess, hidden, dropout)
    net.load_state_dict(arrays)
    return net, preprocess


def _described(text: str) -> tuple[Preprocess, list[int], float]:
    """(preprocessing, widths of the hidden layers, dropout) of what save_model wrote; DataError otherwise."""
    said = parse(text, "the description")
    version = said.whole("format", 0)
    if version != _FORMAT:
        raise DataError(f"format {version}; this version reads format {_FORMAT}")
    architecture = said.part("architecture")
    architecture.text("kind", ("mlp",))
    hidden = architecture.wholes("hidden", 1)
    dropout = architecture.number("dropout") if architecture.has("dropout") else 0.0
    if not 0 <= dropout < 1:
        raise DataError(f"dropout {dropout:g}; need at least 0 and below 1")
    architecture.end()
    preprocess = Preprocess.from_described(said.part("preprocess"))
    said.part("about")  # of the training; nothing follows from it
    said.end()
    return preprocess, hidden, dropout


def _check_arrays(arrays: Mapping[str, np.ndarray], preprocess: Preprocess, hidden: Sequence[int]) -> None:
    """DataError unless these are the arrays of build_model(preprocess, hidden), in f32."""
    count = 2 * (preprocess.kind == "array") + 2 * (len(hidden) + 1)
    if len(arrays) != count:
        raise DataError(f"{len(hidden)} hidden layers need {count} arrays; the file holds {len(arrays)}")
    for name, shape in _shapes(preprocess, hidden).items():
        if name not in arrays:
            raise DataError(f"array {name!r} is missing among {', '.join(sorted(arrays)):.120}")
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float32:
            raise DataError(f"{name} is {array.dtype} {list(array.shape)}; need float32 {list(shape)}")


def _shapes(preprocess: Preprocess, hidden: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The arrays of build_model(preprocess, hidden)."""
    made: dict[str, tuple[int, ...]] = {"0.mean": (), "0.scale": ()} if preprocess.kind == "array" else {}
    widths = [preprocess.inputs, *hidden, preprocess.outputs]
    for layer, (n_in, n_out) in enumerate(itertools.pairwise(widths), start=len(made) // 2):
        made |= {f"{layer}.weight": (n_out, n_in), f"{layer}.bias": (n_out,)}
    return made
