"""The models of `gradloom fit`: building them, and the one file that holds everything `gradloom predict` needs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import nn
from ..base.errors import FileError, GradloomError
from ..data import Preprocess
from ..files import load_arrays, save_arrays

_FORMAT = 1


def build_model(preprocess: Preprocess, hidden: Sequence[int]) -> nn.Sequential:
    """A multilayer perceptron from the features of `preprocess` to its outputs: logits, or standardised targets."""
    layers: list[nn.Module] = []
    if preprocess.kind == "array":
        layers.append(nn.Standardize(preprocess.mean, preprocess.std))
    width = preprocess.inputs
    for size in hidden:
        layers.append(nn.Linear(width, size, activation="relu"))
        width = size
    layers.append(nn.Linear(width, preprocess.outputs))
    return nn.Sequential(*layers)


def save_model(
    path: str | os.PathLike[str],
    net: nn.Sequential,
    preprocess: Preprocess,
    hidden: Sequence[int],
    about: dict[str, Any],
) -> None:
    """Write weights, architecture and preprocessing into one .safetensors file, whole or not at all."""
    description = {
        "format": _FORMAT,
        "architecture": {"kind": "mlp", "hidden": list(hidden)},
        "preprocess": json.loads(preprocess.to_json()),
        "about": about,
    }
    save_arrays(path, net.state_dict(), {"gradloom.model": json.dumps(description, ensure_ascii=False)})


def load_model(path: str | os.PathLike[str]) -> tuple[nn.Sequential, Preprocess]:
    """The model of a file that save_model wrote, or of a folder that `gradloom fit --out` made."""
    where = Path(path)
    if where.is_dir():
        where = where / "model.safetensors"
    arrays, metadata = load_arrays(where)
    if "gradloom.model" not in metadata:
        raise FileError(f"{where}: holds arrays but no model of gradloom; need a file that `gradloom fit` saved")
    try:
        description = json.loads(metadata["gradloom.model"])
        if description["format"] != _FORMAT:
            raise ValueError(f"format {description['format']}; this version reads format {_FORMAT}")
        hidden = [int(h) for h in description["architecture"]["hidden"]]
        preprocess = Preprocess.from_json(json.dumps(description["preprocess"]))
        net = build_model(preprocess, hidden)
        net.load_state_dict(arrays)
    except (GradloomError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FileError(f"{where}: its description is damaged ({error}); train and save it again") from None
    return net, preprocess
