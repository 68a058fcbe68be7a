"""merge: a GGUF model whose weights are W + s B A, in a chosen type; some rows of it in memory at a time."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.arguments import need_path
from ..base.arrays import place_in
from ..base.dtypes import QUANTISED
from ..base.errors import FileError, SettingError
from ..base.habits import hinted
from ..files import check_target, open_gguf, refuse_input, write_gguf
from ..files.gguf import GGUF
from ..files.gguf_fields import Field
from ..files.gguf_fields import field as gguf_field
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import KINDS, NO_WEIGHTS, first_not_finite, kind_bytes, show_name
from ..run import dequantize
from .adapter_arrays import CHAT_TEMPLATE, AdapterArrays
from .adapter_files import files_given, read_adapter

# types that can be written, and what general.file_type says of a model that is mostly of them (llama.cpp's llama_ftype)
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q5_1": 9, "q5_0": 8, "q4_1": 3, "q4_0": 2}
FALLBACK = "f16"  # of rows that are no whole blocks, as in llama.cpp's converter
_NATIVE = frozenset(t.name for t in QUANTISED)  # decoded by the core's kernels
_PIECE = 1 << 20  # elements that are converted at a time
_GONE = 0.001  # share of a tensor's numbers that became 0 which is reported
_LOSSY = 0.2  # relative rounding error (RMS) of a tensor that is reported; of normal numbers q4_0 has 0.08, q8_0 0.005


@dataclass
class Merged:
    """What merge wrote: bytes of the file, tensors by type, the names that the adapter changed, and what to tell."""

    bytes: int
    kinds: dict[str, int]
    changed: list[str]
    notes: list[str] = field(default_factory=list)


@hinted
def merge(
    model_path: str | os.PathLike[str],
    adapter_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    kind: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Merged:
    """Write the model with the adapter added to its weights; whole or not at all.

    kind  f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0: the type of all matrices; vectors (norms, biases) become f32, as in
          llama.cpp; matrices whose rows are no whole blocks become f16, which the notes say. By default each tensor
          keeps its type; one that the adapter changes and whose type cannot be written (k-quants) becomes q8_0.

    Weights are decoded with the bits of the gguf package; sums are taken in f64 and rounded once to f32, then to the
    type by that package. A tensor that stays as it is (same type, no change) is copied byte for byte; metadata too, but
    for general.file_type and the chat template, which is the adapter's where it was trained through one of its own (the
    notes say where that takes the place of another). The adapter is a .gguf file or PEFT's folder. `progress` is told
    of each tensor that is converted: its name, and the share that is done before it.

    The notes also report tensors whose rounding error (RMS) is above 20 % of their numbers, and tensors of which more
    than 0.1 % of the numbers became 0 because the type has none so small. FileError: files that are no such, an adapter
    for another base, numbers beyond the type's range or not finite (also in tensors that are copied), an out_path that
    is one of the files that are read. SettingError for what is no path: weights are read from files.
    """
    need_path(model_path, "merge", "model_path", "a path: the GGUF file of the model (Model.path)")
    need_path(adapter_path, "merge", "adapter_path", "a path: that of a saved adapter (LoRA.save)")
    need_path(out_path, "merge", "out_path", "a path: that of the GGUF file to write")
    if kind is not None and kind not in FILE_TYPES:
        raise SettingError(setting="type", seen=kind, need=f"one of {' '.join(FILE_TYPES)}", place="merge")
    read = [model_path, *files_given(adapter_path)]
    refuse_input(out_path, *read)
    check_target(out_path)
    base = open_gguf(model_path)
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
            tensors[tensor.name] = (new, tensor.shape, base.bytes(tensor.name))
        else:
            told = functools.partial(progress, tensor.name, before / weights) if progress else None
            loss = losses[tensor.name] = _Loss()
            tensors[tensor.name] = (new, tensor.shape, _Pieces(base, tensor, new, adapter, loss, told))
        before += math.prod(tensor.shape)
    notes = [f"{len(names)} tensors as {what} ({_some(names)})" for what, names in fallen.items()]
    fields = _metadata(base, kind, tensors)
    if adapter.chat_template is not None:
        if base.metadata.get(CHAT_TEMPLATE) not in (None, "", adapter.chat_template):
            notes.append("the chat template of the adapter takes the place of the model's own")
        fields[CHAT_TEMPLATE] = gguf_field("string", adapter.chat_template)
    base.check()
    refuse_input(out_path, *read)
    size = write_gguf(out_path, fields, tensors, finite=True)
    notes += _loss_notes(losses)
    kinds = Counter(new for new, _, _ in tensors.values())
    return Merged(size, dict(kinds.most_common()), list(adapter.pairs), notes)


def check_model(base: GGUF) -> None:
    """FileError unless the file holds a whole model."""
    if base.metadata.get("general.type", "model") != "model":
        raise FileError(f"{base.path}: general.type is {base.metadata['general.type']!r:.60}; need a model")
    parts = base.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise FileError(f"{base.path}: is one of {parts} parts of a model; join them (llama-gguf-split --merge) first")
    if not base.tensors:
        raise FileError(f"{base.path}: has no tensors (a vocabulary only?); need a model")


def _new_kind(tensor: TensorInfo, kind: str | None, changed: bool) -> tuple[str, str]:
    """(type to write, the reason where it is not the type that was asked for)."""
    old = tensor.kind
    if old in NO_WEIGHTS:  # copied as they are
        return old, ""
    if kind is None:
        if not changed or old in FILE_TYPES:
            return old, ""
        return _whole_blocks(tensor, "q8_0", f"{old} cannot be written")
    if len(tensor.shape) < 2 or tensor.name.endswith("_norm.weight"):
        return "f32", ""
    if old == kind:
        return old, ""
    return _whole_blocks(tensor, kind, "")


def _whole_blocks(tensor: TensorInfo, kind: str, why: str) -> tuple[str, str]:
    block = KINDS[kind][0]
    if tensor.shape[-1] % block:
        return FALLBACK, f"rows are no whole blocks of {block}"
    return kind, why


@dataclass
class _Loss:
    """What the rounding of one tensor to its new type changed. Sums of squares are f64."""

    squares: float = 0.0  # of the numbers
    errors: float = 0.0  # of what rounding changed them by
    count: int = 0
    vanished: int = 0  # numbers other than 0 in blocks that became 0

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
        told: Callable[[], None] | None,
    ) -> None:
        self.base, self.tensor, self.kind, self.adapter, self.loss, self.told = base, tensor, kind, adapter, loss, told

    def __call__(self) -> Iterator[np.ndarray]:
        if self.told is not None:
            self.told()
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
        """FileError where a number of the rows from `begin` on is not finite."""
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            where = place_in(self.tensor.shape, begin * values.shape[1] + int(bad[0]))
            seen = f"{self.base.path}: tensor {show_name(self.tensor.name)} holds {values.flat[bad[0]]:g}{where}{why}"
            raise FileError(f"{seen}; need finite numbers")

    def _rounded(self, values: np.ndarray, begin: int) -> np.ndarray:
        """f32 [rows, length] -> bytes of the type; FileError where the type does not hold them."""
        if self.kind == "f32":
            return values
        from gguf import GGMLQuantizationType, quantize

        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            made = np.ascontiguousarray(quantize(values, GGMLQuantizationType[self.kind.upper()]))
        made = made.view(np.uint8).reshape(-1)
        assert made.nbytes == kind_bytes(self.kind, values.shape)
        bad = first_not_finite(self.kind, made)
        if bad is not None:
            block = KINDS[self.kind][0]
            part = values.reshape(-1, block)[bad[0] // block]
            at = bad[0] + int(np.argmax(np.abs(part)))
            where = place_in(self.tensor.shape, begin * values.shape[1] + at)
            seen = f"{self.base.path}: tensor {show_name(self.tensor.name)} has {values.flat[at]:g}{where}"
            need = "f32" if self.kind == "bf16" else "f32 or bf16"
            most = _RANGES.get(self.kind, "its scales are f16, up to 65504")
            raise FileError(f"{seen}, beyond the range of {self.kind} ({most}); need {need}")
        self.loss.add(values, dequantize(made, self.kind, values.shape), KINDS[self.kind][0])
        return made


_RANGES = {"f16": "up to 65504", "bf16": "up to 3.39e38"}


def _floats(base: GGUF, tensor: TensorInfo, begin: int, end: int) -> np.ndarray:
    """Rows begin:end as f32 [rows, row length]: by the core's kernels, or by the gguf package for types they lack."""
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
