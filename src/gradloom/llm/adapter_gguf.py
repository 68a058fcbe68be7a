"""Adapters as GGUF files for llama.cpp.

llama.cpp: src/llama-adapter.cpp, convert_lora_to_gguf.py. Keys: general.type "adapter", general.architecture,
adapter.type "lora", adapter.lora.alpha f32. Tensors, for a base tensor W [n_out, n_in] and rank r, in NumPy's order:

    <base>.lora_a [r, n_in], <base>.lora_b [n_out, r]            W += s B A
    token_embd.weight.lora_a [vocabulary, r], .lora_b [d, r]     W += s A B^T: rows of A are looked up by token

with s = alpha / r, or s = 1 if alpha is 0 or absent. r is that of each pair, alpha that of the file. For a scale of
alpha / sqrt(r) (rsLoRA, arXiv 2312.03732), which has no key, alpha * sqrt(r) is written. A head (head.py) is metadata,
because llama.cpp refuses other tensors and ignores other keys, and so are the facts of embeddings (embedding.py).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..base.errors import FileError, one_line
from ..files import open_gguf, write_gguf
from ..files.gguf_fields import field as gguf_field
from .adapter_arrays import LARGEST, AdapterArrays, check_alpha, check_fits, finite, pairs_of, text_of
from .embedding import embedding_fields, read_embedding, without_embedding
from .head import head_fields, read_head, without_head
from .model_file import ModelFile


def write_adapter_gguf(path: str | os.PathLike[str], adapter: AdapterArrays) -> int:
    """Write an adapter for llama.cpp atomically. Returns its size in bytes. Raises FileError."""
    if not adapter.pairs:
        raise FileError(f"{path}: the adapter has no tensors; need at least one pair")
    check_alpha(path, adapter)
    fields = {
        "general.architecture": gguf_field("string", adapter.architecture),
        "general.type": gguf_field("string", "adapter"),
        "adapter.type": gguf_field("string", "lora"),
        "adapter.lora.alpha": gguf_field("f32", adapter.alpha),
    }
    fields |= {key: gguf_field("string", text) for key, text in adapter.texts.items() if key not in fields}
    fields |= head_fields(adapter.head, path) | embedding_fields(adapter.embedding)
    tensors: dict[str, Any] = {}
    for name, (a, b) in adapter.pairs.items():
        for ending, array in ((".lora_a", a), (".lora_b", b)):
            tensors[name + ending] = finite(f"{path}: {name}{ending}", array)
    return write_gguf(path, fields, tensors, finite=True)


def read_adapter_gguf(path: str | os.PathLike[str], base: ModelFile | None = None) -> AdapterArrays:
    """Read an adapter; with a base, also check that it fits.

    Raises FileError for a damaged GGUF file, a file that is not a LoRA adapter, half of a pair, shapes that do not fit
    each other or the base, a tensor that the base lacks, another architecture, numbers that are not finite.
    """
    file = open_gguf(path)
    if text_of(file, "general.type") != "adapter":
        raise FileError(f"{path}: general.type is {text_of(file, 'general.type')!r}; an adapter's is 'adapter'")
    if text_of(file, "adapter.type") != "lora":
        raise FileError(f"{path}: adapter.type is {text_of(file, 'adapter.type')!r}; need 'lora'")
    architecture = text_of(file, "general.architecture")
    if not architecture:
        raise FileError(f"{path}: general.architecture is missing; need that of the base")
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= LARGEST:
        raise FileError(f"{path}: adapter.lora.alpha is {one_line(alpha)}; need a finite f32")
    if "adapter.alora.invocation_tokens" in file.fields:
        raise FileError(f"{path}: is an activated LoRA (adapter.alora.invocation_tokens), which is not supported")
    halves_by_tensor: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in file.tensors.items():
        stem, _, ending = name.rpartition(".")
        if ending not in ("lora_a", "lora_b") or not stem:
            raise FileError(
                f"{path}: tensor {name!r} is not part of a pair; need names that end in .lora_a and .lora_b"
            )
        if len(tensor.shape) != 2:
            raise FileError(f"{path}: {name} has shape {list(tensor.shape)}; need 2 axes")
        file.check_weight(name)
        halves_by_tensor.setdefault(stem, {})[ending] = finite(f"{path}: {name}", file.floats(name))
    known = ("general.architecture", "general.type", "adapter.type")
    others = without_embedding(without_head(file.fields))
    texts = {k: file.metadata[k] for k, f in others.items() if f.kind == "string" and k not in known}
    pairs = pairs_of(path, halves_by_tensor, ".lora_a", ".lora_b")
    head, embedding = read_head(file.metadata, path), read_embedding(file.metadata, path)
    adapter = AdapterArrays(architecture, float(alpha), pairs, texts=texts, head=head, embedding=embedding)
    if base is not None:
        check_fits(adapter, base, path)
    return adapter
