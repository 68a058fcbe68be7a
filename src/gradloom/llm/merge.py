"""Merge an adapter into a model, W + s B A, in a chosen type, a few rows at a time."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..base.arguments import need_path
from ..base.arrays import place_in
from ..base.dtypes import QUANTISED
from ..base.errors import FileError, SettingError
from ..base.extras import need_llm
from ..base.habits import hinted
from ..files import check_new_folder, check_target, names_folder, new_folder, refuse_input, write_gguf
from ..files.gguf import GGUF
from ..files.gguf_fields import Field
from ..files.gguf_fields import field as gguf_field
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import FILE_TYPE_NAMES, KINDS, NO_WEIGHTS, first_not_finite, kind_bytes, show_name
from ..run import dequantize
from .adapter_arrays import CHAT_TEMPLATE, AdapterArrays
from .adapter_files import files_given, read_adapter
from .embedding import Embedding, with_embedding
from .head import CLASSIFIER, with_head
from .hf_export import GgufView, as_pieces
from .hf_folder import HFFolder
from .hf_write import write_merged
from .model_file import open_model

# type that can be written -> general.file_type of a model that is mostly of it
_FILE_TYPE_IDS = {name: number for number, name in FILE_TYPE_NAMES.items()}
FILE_TYPES = {name: _FILE_TYPE_IDS[name] for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")}
FALLBACK = "f16"  # for rows whose length is not a multiple of the block, as in llama.cpp's converter
_NATIVE = frozenset(t.name for t in QUANTISED)  # decoded by the core's kernels
_PIECE = 1 << 20  # elements that are converted at a time
_GONE = 0.001  # reported share of a tensor's numbers that became 0
_LOSSY = 0.2  # reported relative rounding error (RMS) of a tensor; for normal numbers q4_0 has 0.08, q8_0 0.005


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
    if kind is not None and kind not in FILE_TYPES:
        raise SettingError(setting="type", seen=kind, need=f"one of {' '.join(FILE_TYPES)}", place="merge")
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
    losses: dict[str, _Loss] = {}
    fallen: dict[str, list[str]] = {}
    for tensor in base.tensors.values():
        new, why = _new_kind(tensor, kind, tensor.name in adapter.pairs)
        if why:
            fallen.setdefault(f"{new}: {why}", []).append(tensor.name)
        if new == tensor.kind and tensor.name not in adapter.pairs:
            tensors[tensor.name] = (new, tensor.shape, functools.partial(as_pieces, base, tensor.name))
        else:
            on_start = functools.partial(progress, tensor.name, before / weights) if progress else None
            loss = losses[tensor.name] = _Loss()
            tensors[tensor.name] = (new, tensor.shape, _Pieces(base, tensor, new, adapter, loss, on_start))
        before += math.prod(tensor.shape)
    notes = [note] if view is not None and (note := view.note()) else []
    notes += [f"{len(names)} tensors as {what} ({_some(names)})" for what, names in fallen.items()]
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
    notes += _loss_notes(losses)
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
        if not changed or old in FILE_TYPES:
            return old, ""
        return _whole_blocks(tensor, "q8_0", f"{old} cannot be written")
    if len(tensor.shape) < 2 or tensor.name.endswith("_norm.weight") or tensor.name == CLASSIFIER:
        return "f32", ""
    if old == kind:
        return old, ""
    return _whole_blocks(tensor, kind, "")


def _whole_blocks(tensor: TensorInfo, kind: str, why: str) -> tuple[str, str]:
    block = KINDS[kind][0]
    if tensor.shape[-1] % block:
        return FALLBACK, f"rows are not a multiple of the block of {block}"
    return kind, why


@dataclass
class _Loss:
    """Rounding error of one tensor. Sums of squares are f64."""

    squares: float = 0.0  # of the numbers
    errors: float = 0.0  # of the changes by rounding
    count: int = 0
    vanished: int = 0  # non-zero numbers in blocks that became 0

    def add(self, values: np.ndarray, rounded: np.ndarray, block: int) -> None:
        """values, rounded: f32 [rows, length]."""
        self.squares += float(np.square(values, dtype=np.float64).sum())
        self.errors += float(np.square(values - rounded, dtype=np.float64).sum())
        self.count += values.size
        empty = ~rounded.reshape(-1, block).any(axis=1)
        self.vanished += int(np.count_nonzero(values.reshape(-1, block)[empty]))

    @property
    def error(self) -> float:
        """The root mean square of the errors, relative to that of the numbers."""
        return math.sqrt(self.errors / self.squares) if self.squares else 0.0


def _loss_notes(losses: dict[str, _Loss]) -> list[str]:
    """One line on large rounding errors, one on numbers that became 0."""
    notes = []
    large = sorted((name for name, loss in losses.items() if loss.error > _LOSSY), key=lambda n: -losses[n].error)
    if large:
        notes.append(
            f"rounding changes {len(large)} tensors by more than {_LOSSY:.0%} (RMS, relative): {_some(large)}; the "
            f"largest error is {losses[large[0]].error:.0%}; a type with more bits is closer"
        )
    gone = [name for name, loss in losses.items() if loss.vanished > _GONE * loss.count]
    gone.sort(key=lambda n: -losses[n].vanished)
    if gone:
        count, of = (sum(getattr(losses[name], what) for name in gone) for what in ("vanished", "count"))
        notes.append(
            f"{count:,} of {of:,} numbers became 0, which are too small for their type: {_some(gone)}; "
            "bf16 and f32 hold smaller ones"
        )
    return notes


class _Pieces:
    """The bytes of one tensor of the new file, some rows at a time."""

    def __init__(
        self,
        base: GGUF,
        tensor: TensorInfo,
        kind: str,
        adapter: AdapterArrays,
        loss: _Loss,
        on_start: Callable[[], None] | None,
    ) -> None:
        self.base, self.tensor, self.kind, self.adapter, self.loss = base, tensor, kind, adapter, loss
        self.on_start = on_start

    def __call__(self) -> Iterator[np.ndarray]:
        if self.on_start is not None:
            self.on_start()
        name, shape = self.tensor.name, self.tensor.shape
        rows, length = math.prod(shape[:-1]), shape[-1] if shape else 1
        step = max(1, _PIECE // length)
        for begin in range(0, rows, step):
            values = _floats(self.base, self.tensor, begin, begin + step)
            self._check(values, begin, "")
            if name in self.adapter.pairs:
                with np.errstate(over="ignore"):
                    values = (values + self.adapter.delta(name, begin, begin + step)).astype(np.float32)
                self._check(values, begin, " with the adapter added")
            yield self._rounded(values, begin)

    def _check(self, values: np.ndarray, begin: int, why: str) -> None:
        """Raise FileError if a number of the rows from `begin` on is not finite."""
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            where = place_in(self.tensor.shape, begin * values.shape[1] + int(bad[0]))
            seen = f"{self.base.path}: tensor {show_name(self.tensor.name)} holds {values.flat[bad[0]]:g}{where}{why}"
            raise FileError(f"{seen}; need finite numbers")

    def _rounded(self, values: np.ndarray, begin: int) -> np.ndarray:
        """f32 [rows, length] -> bytes of the type. Raises FileError for numbers outside of its range."""
        if self.kind == "f32":
            return values
        from gguf import GGMLQuantizationType, quantize

        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            data = np.ascontiguousarray(quantize(values, GGMLQuantizationType[self.kind.upper()]))
        data = data.view(np.uint8).reshape(-1)
        assert data.nbytes == kind_bytes(self.kind, values.shape)
        bad = first_not_finite(self.kind, data)
        if bad is not None:
            block = KINDS[self.kind][0]
            part = values.reshape(-1, block)[bad[0] // block]
            at = bad[0] + int(np.argmax(np.abs(part)))
            where = place_in(self.tensor.shape, begin * values.shape[1] + at)
            seen = f"{self.base.path}: tensor {show_name(self.tensor.name)} has {values.flat[at]:g}{where}"
            need = "f32" if self.kind == "bf16" else "f32 or bf16"
            most = _RANGES.get(self.kind, "its scales are f16, up to 65504")
            raise FileError(f"{seen}, beyond the range of {self.kind} ({most}); need {need}")
        self.loss.add(values, dequantize(data, self.kind, values.shape), KINDS[self.kind][0])
        return data


_RANGES = {"f16": "up to 65504", "bf16": "up to 3.39e38"}


def _floats(base: GGUF, tensor: TensorInfo, begin: int, end: int) -> np.ndarray:
    """Rows begin:end as f32 [rows, row length]: by the core's kernels, or by the gguf package for other types."""
    if tensor.kind not in _NATIVE:
        return base.floats(tensor.name, begin, end)
    rows, length = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    data = base.bytes(tensor.name).reshape(rows, -1)[begin:end]
    return dequantize(data, tensor.kind, (len(data), length))


def _metadata(base: GGUF, kind: str | None, tensors: dict[str, Any]) -> dict[str, Field]:
    fields = dict(base.fields)
    if kind is not None:
        fields["general.file_type"] = gguf_field("u32", FILE_TYPES[kind])
    if any(KINDS[new][0] > 1 for new, _, _ in tensors.values()):
        fields.setdefault("general.quantization_version", gguf_field("u32", 2))
    return fields


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
