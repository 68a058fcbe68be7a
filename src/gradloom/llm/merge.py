"""Merge an adapter into a model, W + s B A, in a chosen type, a few rows at a time."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..base.arguments import need_path
from ..base.errors import FileError, SettingError
from ..base.extras import need_llm
from ..base.habits import hinted
from ..base.terminal import plural
from ..files import check_new_folder, check_target, names_folder, new_folder, refuse_input, write_gguf
from ..files.gguf import GGUF
from ..files.gguf_fields import Field
from ..files.gguf_fields import field as gguf_field
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import KINDS, NO_WEIGHTS
from .adapter_arrays import CHAT_TEMPLATE
from .adapter_files import files_given, read_adapter
from .conversion import FILE_TYPES, QUANTIZATION_VERSION, Loss, Pieces, loss_notes, some, whole_blocks
from .embedding import Embedding, with_embedding
from .head import CLASSIFIER, with_head
from .hf_export import GgufView, as_pieces
from .hf_folder import HFFolder
from .hf_write import write_merged
from .model_file import open_model

# types that can be asked for
TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@dataclass
class Merged:
    """Result of merge: bytes of the file, number of tensors by type, names that the adapter changed, notes, and how
    texts become embeddings, if the adapter was trained for them; has_head: it has a head."""

    bytes: int
    kinds: dict[str, int]
    changed: list[str]
    notes: list[str] = field(default_factory=list)
    embedding: Embedding | None = None
    has_head: bool = False


@hinted
def merge(
    model_path: str | os.PathLike[str],
    adapter_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    kind: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Merged:
    """Write the model with the adapter added to its weights, atomically.

    kind  f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0: the type of all matrices; vectors (norms, biases) become f32, as in
          llama.cpp; matrices whose rows are not a multiple of the block become f16, with a note. By default each tensor
          keeps its type; one that the adapter changes and whose type cannot be written (k-quants) becomes q8_0.

    Weights are decoded with the bits of the gguf package; sums are computed in f64 and rounded once to f32, then to the
    type by that package. Unchanged tensors of the same type are copied byte for byte, and so is metadata, except for
    general.file_type, the chat template, which is the adapter's if it was trained with another one (with a note), and
    the adapter's head and pooling of embeddings, if it has them.
    The model is a GGUF file, or a Hugging Face folder, which is converted (hf_export.py). The adapter is a .gguf file
    or PEFT's folder. `progress` is called before each tensor is converted, with its name
    and the share that is done.

    The notes also report tensors whose rounding error (RMS) is above 20 % of their numbers, and tensors with more than
    0.1 % of numbers that became 0 because they are too small for the type. Raises FileError for damaged files, an
    adapter for another base, numbers outside of the type's range or not finite (also in copied tensors), an out_path
    that is one of the input files; SettingError for invalid paths, and for an out_path that is no FILE.gguf (for a
    Hugging Face folder also a new or an empty folder, for transformers, in f32, f16 or bf16).
    """
    need_path(
        model_path, "merge", "model_path", "a path: the GGUF file or the Hugging Face folder of the model (Model.path)"
    )
    need_path(adapter_path, "merge", "adapter_path", "a path: that of a saved adapter (LoRA.save)")
    need_path(out_path, "merge", "out_path", "a path: that of the GGUF file to write")
    if kind is not None and kind not in TYPES:
        raise SettingError(setting="type", seen=kind, need=f"one of {' '.join(TYPES)}", place="merge")
    need_llm()
    read = [model_path, *files_given(adapter_path)]
    refuse_input(out_path, *read)
    if is_folder_of(model_path, out_path):
        check_new_folder(out_path)
        return _merged_folder(HFFolder(model_path), adapter_path, out_path, kind)
    if Path(out_path).suffix != ".gguf":
        raise SettingError(f"{out_path}: a merged model is written as FILE.gguf; requires that ending")
    check_target(out_path)
    opened = open_model(model_path)
    view = GgufView(opened) if isinstance(opened, HFFolder) else None
    base: GGUF = cast(GGUF, view or opened)
    check_model(base)
    adapter = read_adapter(adapter_path, base)
    for name in adapter.pairs:
        base.check_weight(name)
    weights = sum(math.prod(t.shape) for t in base.tensors.values())
    before = 0
    tensors: dict[str, Any] = {}
    losses: dict[str, Loss] = {}
    fallen: dict[str, list[str]] = {}
    for tensor in base.tensors.values():
        new, why = _new_kind(tensor, kind, tensor.name in adapter.pairs)
        if why:
            fallen.setdefault(f"{new}: {why}", []).append(tensor.name)
        if new == tensor.kind and tensor.name not in adapter.pairs:
            tensors[tensor.name] = (new, tensor.shape, functools.partial(as_pieces, base, tensor.name))
        else:
            on_start = functools.partial(progress, tensor.name, before / weights) if progress else None
            loss = losses[tensor.name] = Loss()
            changed = tensor.name in adapter.pairs
            added = functools.partial(adapter.delta, tensor.name) if changed else None
            tensors[tensor.name] = (new, tensor.shape, Pieces(base, tensor, new, loss, on_start, added))
        before += math.prod(tensor.shape)
    notes = [note] if view is not None and (note := view.note()) else []
    notes += [f"{plural(len(names), 'tensor')} as {what} ({some(names)})" for what, names in fallen.items()]
    fields = _metadata(base, kind, tensors)
    if adapter.chat_template is not None:
        if base.metadata.get(CHAT_TEMPLATE) not in (None, "", adapter.chat_template):
            notes.append("the chat template of the adapter replaces the model's own")
        fields[CHAT_TEMPLATE] = gguf_field("string", adapter.chat_template)
    fields, written = with_head(fields, tensors, adapter.head, adapter.architecture, adapter_path)
    fields = with_embedding(fields, adapter.embedding, adapter.architecture)
    base.check()
    refuse_input(out_path, *read)
    size = write_gguf(out_path, fields, written, finite=True)
    notes += loss_notes(losses)
    kinds = Counter(new for new, _, _ in tensors.values())
    return Merged(
        size, dict(kinds.most_common()), list(adapter.pairs), notes, adapter.embedding, adapter.head is not None
    )


def is_folder_of(model_path: str | os.PathLike[str], out_path: str | os.PathLike[str]) -> bool:
    """Whether merge writes a folder for this model and this name, not a GGUF file."""
    return names_folder(out_path) and os.path.isdir(model_path)


def _merged_folder(
    base: HFFolder, adapter_path: str | os.PathLike[str], out_path: str | os.PathLike[str], kind: str | None
) -> Merged:
    """Write a folder for transformers."""
    if kind not in (None, "f32", "f16", "bf16"):
        raise SettingError(setting="type", seen=kind, need="f32, f16 or bf16 for a folder", place="merge")
    adapter = read_adapter(adapter_path, base)
    if adapter.head is not None:
        raise SettingError(f"{out_path}: a folder cannot hold the adapter's head; need FILE.gguf", setting="out")
    base.check()
    with new_folder(out_path):
        size, kinds = write_merged(base, adapter, out_path, kind)
    notes = []
    if adapter.embedding is not None:
        notes = [f"{out_path}: the folder does not state the pooling of embeddings, {adapter.embedding.pooling}"]
    return Merged(size, kinds, list(adapter.pairs), notes, adapter.embedding)


def check_model(base: GGUF) -> None:
    """Raise FileError unless the file contains a whole model."""
    if base.metadata.get("general.type", "model") != "model":
        raise FileError(f"{base.path}: general.type is {base.metadata['general.type']!r:.60}; need a model")
    parts = base.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise FileError(f"{base.path}: is one of {parts} parts of a model; join them (llama-gguf-split --merge) first")
    if not base.tensors:
        raise FileError(f"{base.path}: has no tensors (a vocabulary only?); need a model")


def _new_kind(tensor: TensorInfo, kind: str | None, changed: bool) -> tuple[str, str]:
    """(type to write, reason if it is not the requested one)."""
    old = tensor.kind
    if old in NO_WEIGHTS:  # copied as they are
        return old, ""
    if kind is None:
        if not changed or old in TYPES:
            return old, ""
        return whole_blocks(tensor, "q8_0", f"{old} cannot be written")
    if len(tensor.shape) < 2 or tensor.name.endswith("_norm.weight") or tensor.name == CLASSIFIER:
        return "f32", ""
    if old == kind:
        return old, ""
    return whole_blocks(tensor, kind, "")


def _metadata(base: GGUF, kind: str | None, tensors: dict[str, Any]) -> dict[str, Field]:
    fields = dict(base.fields)
    if kind is not None:
        fields["general.file_type"] = gguf_field("u32", FILE_TYPES[kind])
    if any(KINDS[new][0] > 1 for new, _, _ in tensors.values()):
        fields.setdefault("general.quantization_version", gguf_field("u32", QUANTIZATION_VERSION))
    return fields
