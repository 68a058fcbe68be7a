"""Embedding: how the hidden states of a text become its embedding, and where files state it.

Adapters and models have metadata gradloom.embed.*, which other programs ignore. A model's GGUF file has llama.cpp's key
ARCH.pooling_type, too; for "last" its tokenizer adds the token for end of text, as in training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import DataError, FileError
from ..base.schema import flag, one_of, table
from ..files.gguf_fields import Field
from ..files.gguf_fields import field as gguf_field

POOLINGS = ("mean", "last")
PREFIX = "gradloom.embed."  # of the keys of GGUF files
PEFT_EMBEDDING = "gradloom.embed"  # metadata of PEFT's .safetensors file: the facts, as JSON
POOLING_TYPES = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}  # enum llama_pooling_type
_ADD_EOS, _EOS = "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id"


@dataclass(frozen=True)
class Embedding:
    """How a text becomes an embedding, a row of norm 1.

    pooling  "mean" of the hidden states of all tokens after the final norm, or that of the "last" token, the end of
             text where the tokenizer has one
    widths   numbers of first components that were trained to be embeddings by themselves, normalised again; () for all
    """

    pooling: str
    widths: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON values by name."""
        return {"pooling": self.pooling, "widths": list(self.widths), "normalize": True}

    @classmethod
    def checked(cls, values: Any, where: str) -> Embedding:
        """The facts in the values of a file. Raises DataError, naming `where`, for values that do not fit."""
        SCHEMA(values, where)
        if not values["normalize"]:
            raise DataError(f"{where}.normalize is false; need true")
        return cls(values["pooling"], tuple(values["widths"]))


def _widths(value: Any, name: str) -> None:
    whole = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in value)
    if not whole or len(set(value)) < len(value):
        raise DataError(f"{name} is {value!r:.60}; need different whole numbers above 0")


SCHEMA = table({"pooling": one_of(*POOLINGS), "widths": _widths, "normalize": flag})


# ---- files -----------------------------------------------------------------------------------------------------------


def embedding_fields(embedding: Embedding | None) -> dict[str, Field]:
    """The metadata of an adapter's GGUF file; {} for None."""
    if embedding is None:
        return {}
    found = {"pooling": gguf_field("string", embedding.pooling), "normalize": gguf_field("bool", True)}
    if embedding.widths:
        found["widths"] = gguf_field("array", np.array(embedding.widths), "i32")
    return {PREFIX + name: value for name, value in found.items()}


def with_embedding(fields: Mapping[str, Field], embedding: Embedding | None, architecture: str) -> dict[str, Field]:
    """The metadata of a model's GGUF file with this embedding; as they are for None."""
    if embedding is None:
        return dict(fields)
    made = without_embedding(fields) | embedding_fields(embedding)
    made[f"{architecture}.pooling_type"] = gguf_field("u32", POOLING_TYPES[embedding.pooling])
    if embedding.pooling == "last" and _EOS in fields:
        made[_ADD_EOS] = gguf_field("bool", True)
    return made


def without_embedding(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The metadata of a GGUF file without gradloom.embed.*."""
    return {key: value for key, value in fields.items() if not key.startswith(PREFIX)}


def read_embedding(metadata: Mapping[str, Any], where: Any) -> Embedding | None:
    """The embedding in the metadata of a GGUF file, None without one. Raises FileError for values that do not fit."""
    found = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    if not found:
        return None
    widths = found.get("widths", [])
    found["widths"] = widths.tolist() if isinstance(widths, np.ndarray) else widths
    return _facts(found, where)


def pooling_of(metadata: Mapping[str, Any]) -> str | None:
    """The name of ARCH.pooling_type; None where a file has none, or has "none"."""
    kind = metadata.get(f"{metadata.get('general.architecture', '')}.pooling_type")
    names = {number: name for name, number in POOLING_TYPES.items()}
    if kind is None or isinstance(kind, bool) or not isinstance(kind, int) or kind == POOLING_TYPES["none"]:
        return None
    return names.get(kind, f"unknown ({kind})")


def embedding_of_model(metadata: Mapping[str, Any], where: Any) -> Embedding | None:
    """The embedding of a model's file: gradloom.embed.*, or ARCH.pooling_type; None without either. Raises FileError
    for a pooling that is not supported."""
    stored = read_embedding(metadata, where)
    pooling = pooling_of(metadata) if stored is None else None
    if pooling is None:
        return stored
    if pooling not in POOLINGS:
        raise FileError(f"{where}: pooling_type is {pooling}; need {' or '.join(POOLINGS)} (pooling=, --pooling)")
    return Embedding(pooling)


def peft_text(embedding: Embedding) -> str:
    """The facts as JSON, for PEFT's .safetensors file."""
    return json.dumps(embedding.as_dict())


def peft_embedding(text: str | None, where: Any) -> Embedding | None:
    """The embedding of PEFT's folder; None without a text. Raises FileError for values that do not fit."""
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise FileError(f"{where}: {PEFT_EMBEDDING} is not JSON") from None
    return _facts(values, where)


def _facts(values: Any, where: Any) -> Embedding:
    try:
        return Embedding.checked(values, PEFT_EMBEDDING)
    except DataError as error:
        raise FileError(f"{where}: {error}") from None
