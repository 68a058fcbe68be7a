"""AdapterArrays: the contents of an adapter file in either format, and checks against a base."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.arrays import place_in
from ..base.errors import FileError
from .embedding import Embedding
from .head import HeadArrays
from .model_file import ModelFile

EMBEDDING = "token_embd.weight"
CHAT_TEMPLATE = "tokenizer.chat_template"  # key of models, and of adapters trained through another template
LARGEST = float(np.finfo(np.float32).max)


@dataclass
class AdapterArrays:
    """The contents of an adapter file.

    architecture  of the base, as in its general.architecture
    alpha         numerator of the scale: s = alpha / r for each pair, or 1 if alpha is 0
    pairs         base tensor -> (lora_a, lora_b), f32, with the shapes of the GGUF file (see adapter_gguf.py)
    rslora        alpha is the user's alpha * sqrt(r), PEFT's use_rslora
    texts         other text metadata, such as general.name: of the GGUF file, or of PEFT's .safetensors file
    head          a head on the hidden state of the last token, or None
    embedding     how texts become embeddings, or None
    """

    architecture: str
    alpha: float
    pairs: dict[str, tuple[np.ndarray, np.ndarray]]
    rslora: bool = False
    texts: dict[str, str] = field(default_factory=dict)
    head: HeadArrays | None = None
    embedding: Embedding | None = None

    @property
    def chat_template(self) -> str | None:
        """The chat template used for training, unless it is the base's own."""
        return self.texts.get(CHAT_TEMPLATE) or None

    def rank(self, name: str) -> int:
        return int(self.pairs[name][1].shape[1])

    def scale(self, name: str) -> float:
        return self.alpha / self.rank(name) if self.alpha else 1.0

    def delta(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows begin:end of s B A, the change of the base tensor, f64 [rows, n_in]."""
        a, b = self.pairs[name]
        if name == EMBEDDING:
            a, b = b.T, a
        return self.scale(name) * (b[begin:end].astype(np.float64) @ a.astype(np.float64))


def check_fits(adapter: AdapterArrays, base: ModelFile, path: str | os.PathLike[str] = "adapter") -> None:
    """Raise FileError, naming `path`, unless every pair fits the tensor of that name in the base."""
    architecture = text_of(base, "general.architecture")
    if adapter.architecture != architecture:
        raise FileError(
            f"{path}: is an adapter for architecture {adapter.architecture!r}, and {base.path} is {architecture!r}; "
            "need the model that it was trained on"
        )
    if EMBEDDING in adapter.pairs and "output.weight" not in base.tensors:
        raise FileError(
            f"{path}: adapts {EMBEDDING}, which is also the output layer of {base.path}; "
            "one pair cannot be both: need an adapter without it"
        )
    embedding = base.tensors.get(EMBEDDING)
    if adapter.head is not None and embedding is not None:
        width, need = adapter.head.weight.shape[1], embedding.shape[-1]
        if width != need:
            raise FileError(f"{path}: is for another base: its head has rows of {width}, and {base.path} has {need}")
    for name, (a, b) in adapter.pairs.items():
        if name not in base.tensors:
            raise FileError(f"{path}: is for another base: {base.path} has no tensor {name!r}")
        shape = base.tensors[name].shape
        fits = (a.shape[0], b.shape[0]) if name == EMBEDDING else (b.shape[0], a.shape[1])
        if shape != fits:
            raise FileError(
                f"{path}: is for another base: {name} is {list(shape)} in {base.path}; "
                f"lora_a {list(a.shape)} and lora_b {list(b.shape)} fit {list(fits)}"
            )


def pairs_of(
    path: str | os.PathLike[str], halves_by_tensor: Mapping[str, Mapping[str, np.ndarray]], first: str, second: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Base tensor -> (lora_a, lora_b) in the file's shapes. Raises FileError for missing halves and different ranks."""
    pairs = {}
    for name, halves in halves_by_tensor.items():
        if len(halves) != 2:
            missing = second if "lora_a" in halves else first
            raise FileError(f"{path}: {name} has only half of its pair; {name}{missing} is missing")
        a, b = halves["lora_a"], halves["lora_b"]
        ranks = (a.shape[1] if name == EMBEDDING else a.shape[0], b.shape[1])
        if ranks[0] != ranks[1]:
            raise FileError(
                f"{path}: {name} has lora_a {list(a.shape)} and lora_b {list(b.shape)}, of ranks {ranks[0]} and "
                f"{ranks[1]}; need one rank"
            )
        pairs[name] = (a, b)
    if not pairs:
        raise FileError(f"{path}: has no tensors; need at least one pair")
    return pairs


def finite(where: str, array: Any) -> np.ndarray:
    """The array as f32. Raises FileError, starting with `where`, for numbers that are not finite."""
    values = np.asarray(array, np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise FileError(
            f"{where} holds {values.flat[bad[0]]:g}{place_in(values.shape, int(bad[0]))}; need finite numbers"
        )
    return values


def check_alpha(where: str | os.PathLike[str], adapter: AdapterArrays) -> None:
    """Raise FileError, starting with `where`, unless alpha is a finite f32."""
    if not abs(adapter.alpha) <= LARGEST:
        raise FileError(f"{where}: alpha is {adapter.alpha:g}; need a finite f32")


def text_of(file: ModelFile, key: str) -> str:
    """A text in the metadata; "" if it is missing, the repr of a value that is not a text."""
    value = file.metadata.get(key, "")
    return value if isinstance(value, str) else repr(value)[:60]
