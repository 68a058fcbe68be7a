"""GgufView: a Hugging Face folder in the form of a GGUF file for llama.cpp, to be written by merge.

Rows of attn_q and attn_k are permuted where the family's files store them so; vectors are f32.
"""

from __future__ import annotations

import math
import os
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from ..base.errors import FileError
from ..files.gguf import GGUF
from ..files.gguf_fields import Field, Metadata, field
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import PLAIN
from .adapter_peft import heads_of
from .config import Config, Keys, Rope, read_config
from .hf_folder import HFFolder
from .hf_stated import unstated_tokenizer
from .hf_tokenizer import FolderTokenizer
from .special_tokens import BYTE, UNUSED, USER_DEFINED

# Properties of the computation; sizes are checked against the tensors
_COMPUTED = [one.name for one in fields(Config) if one.name not in ("architecture", "name", "context_length")]


class GgufView:
    """The attributes and methods of an open GGUF file that merge uses. Raises FileError for a tokenizer that GGUF
    files cannot hold."""

    def __init__(self, folder: HFFolder) -> None:
        self.folder, self.path = folder, folder.path
        rows = folder.tensor("token_embd.weight").shape[0]
        self._tokenizer = folder.tokenizer(rows)
        self.fields: dict[str, Field] = folder.fields | tokenizer_fields(self._tokenizer, rows)
        self.metadata = Metadata(self.fields)
        self.tensors = {name: _as_vector(tensor) for name, tensor in folder.tensors.items()}
        self._last: tuple[str, np.ndarray] | None = None

    def note(self) -> str:
        """Properties of the model and its tokenizer that its GGUF file does not state, and tensors that llama.cpp does
        not load, in one line; "" if there are none."""
        parts = (self._unstated(), unstated_tokenizer(self._tokenizer, self.metadata), self._unread())
        return "; ".join(part for part in parts if part)

    def _unstated(self) -> str:
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        keys = Keys(os.fspath(self.path), self.metadata)
        stated = self.folder.config.declared.configure(keys, read_config(keys, shapes))
        own = self.folder.configure(self.folder.keys())
        differ = [name for name in _COMPUTED if not _same(getattr(stated, name), getattr(own, name))]
        if not differ:
            return ""
        what = ", ".join(differ)
        return f"GGUF files of {own.architecture} do not state this model's {what}: there it computes otherwise"

    def _unread(self) -> str:
        family = self.folder.config.declared
        unread = [f"{name}.bias" for name in family.unread_biases if f"blk.0.{name}.bias" in self.tensors]
        arch = self.metadata["general.architecture"]
        return f"llama.cpp does not load files of {arch} with {', '.join(unread)}" if unread else ""

    def bytes(self, name: str) -> np.ndarray:
        """The bytes of a tensor in GGUF's order of rows, u8 [n]; of the latest permuted one a copy is kept."""
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        tensor = self.folder.tensor(name)
        array = self.folder.array(name)
        if tensor.kind != self.tensors[name].kind:
            array = array.astype(np.float32)
        elif not self._heads(name):
            return self.folder.bytes(name)
        array = self.ordered(name, array)
        self._last = name, np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._last[1]

    def ordered(self, name: str, array: np.ndarray) -> np.ndarray:
        """An array of the shape of a tensor, with its rows in GGUF's order."""
        heads = self._heads(name)
        if not heads:
            return array
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)

    def _heads(self, name: str) -> int:
        """Heads of a tensor whose rows are permuted, otherwise 0."""
        if not self.folder.config.declared.permutes:
            return 0
        return heads_of(self.folder, name.replace(".bias", ".weight"))

    def floats(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows begin:end of a tensor as f32 [rows, row length], a copy."""
        tensor = self.tensors[name]
        rows = self.bytes(name).view(PLAIN[tensor.kind]).reshape(-1, tensor.shape[-1])
        return np.array(rows[begin:end], np.float32)

    def check_weight(self, name: str) -> None:
        """FileError when the folder has no tensor of that name."""
        self.folder.tensor(name)

    def check(self) -> None:
        """FileError when a file has changed since it was opened."""
        self.folder.check()


def as_pieces(file: GGUF | GgufView, name: str) -> list[np.ndarray]:
    """The bytes of a tensor, as write_gguf takes them; read when they are written."""
    return [file.bytes(name)]


def _same(a: Any, b: Any) -> bool:
    """Whether two properties are the same, as numbers in f32."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    if isinstance(a, Rope) and isinstance(b, Rope):
        return _same(astuple(a), astuple(b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _as_vector(tensor: TensorInfo) -> TensorInfo:
    """A tensor as GGUF files have it: of one axis, f32."""
    if len(tensor.shape) > 1:
        return tensor
    return TensorInfo(tensor.name, "f32", tensor.shape, 0, 4 * math.prod(tensor.shape))


def tokenizer_fields(tokenizer: FolderTokenizer, rows: int) -> dict[str, Field]:
    """The keys tokenizer.* of a GGUF file. rows: of the embedding. Raises FileError for patterns without a name in GGUF
    files, and for merges that scores cannot express."""
    file = tokenizer.file
    where = os.fspath(file.path)
    spm = tokenizer.kind == "spm"
    if not spm and not tokenizer.pre:
        raise FileError(
            f"{where}: no tokenizer.ggml.pre of GGUF files has its patterns; need an adapter (PEFT), or a"
            " merge into a folder"
        )
    if len(tokenizer.first_ids) > 1 or len(tokenizer.last_ids) > 1:
        raise FileError(f"{where}: puts several tokens before or after a text; need at most one for a GGUF file")
    more = rows - tokenizer.vocab_size
    bos = (*tokenizer.first_ids, tokenizer.bos)[0]
    eos = (*tokenizer.last_ids, None)[0] if tokenizer.eos is None else tokenizer.eos
    pieces = [*tokenizer.pieces, *(f"[PAD{i}]" for i in range(tokenizer.vocab_size, rows))]
    types = np.concatenate([tokenizer.types, np.full(more, UNUSED, np.int32)])
    values: dict[str, Any] = {
        "model": field("string", "llama" if spm else "gpt2"), "tokens": field("array", pieces, "string"),
        "token_type": field("array", types, "i32"), "add_bos_token": field("bool", tokenizer.add_bos),
        "add_eos_token": field("bool", tokenizer.add_eos),
    }  # fmt: skip
    if spm:
        scores = np.full(rows, -1000.0, np.float32)
        scores[np.flatnonzero((types == BYTE) | (types == USER_DEFINED))] = 0
        for rank, (a, b) in reversed([*enumerate(file.model.merges)]):
            scores[file.model.vocab[a + b]] = -rank
        values["scores"] = field("array", scores, "f32")
        values["add_space_prefix"] = field("bool", tokenizer.add_space_prefix)
    else:
        values["pre"] = field("string", tokenizer.pre)
        values["merges"] = field("array", [f"{a} {b}" for a, b in file.model.merges], "string")
    for key, token in (
        ("bos", bos), ("eos", eos), ("unknown", tokenizer.unk), ("padding", tokenizer.pad),
        *_ends(tokenizer),
    ):  # fmt: skip
        if token is not None:
            values[f"{key}_token_id"] = field("u32", token)
    fields: dict[str, Field] = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
    if tokenizer.chat_template is not None:
        fields["tokenizer.chat_template"] = field("string", tokenizer.chat_template)
    return fields


def _ends(tokenizer: FolderTokenizer) -> list[tuple[str, int]]:
    """The keys of tokens that end a reply beside eos and those that are known by their names: GGUF files have two."""
    known = (tokenizer.eos, tokenizer.eot, tokenizer.eom)
    return list(zip(("eot", "eom"), (i for i in tokenizer.file.end_ids if i not in known), strict=False))
