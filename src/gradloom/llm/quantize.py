"""Write a model in another type, a few rows at a time, as llama-quantize does without an importance matrix."""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..base.arguments import need_path
from ..base.errors import FileError, SettingError
from ..base.extras import need_llm
from ..base.habits import hinted, value_hint
from ..base.terminal import plural
from ..files import check_target, refuse_input, write_gguf
from ..files.gguf import GGUF
from ..files.gguf_fields import Field
from ..files.gguf_fields import field as gguf_field
from ..files.gguf_types import KINDS
from .conversion import FILE_TYPES, QUANTIZATION_VERSION, Loss, Pieces, loss_notes, some
from .hf_export import GgufView, as_pieces
from .hf_folder import HFFolder
from .model_file import open_model
from .tensor_types import ALIASES, TYPES, TensorTypes


@dataclass(frozen=True)
class TensorChange:
    """One tensor: its types and bytes before and after, root mean square of the rounding errors and of the numbers."""

    name: str
    old: str
    new: str
    old_bytes: int
    new_bytes: int
    rmse: float
    rms: float


@dataclass
class Quantized:
    """Result of quantize.

    bytes          of the new file; old_bytes: of the tensors before, new_bytes: after
    type           of the file: a type or a mixture
    kinds          number of tensors by type
    tensors        each tensor, in the file's order
    rmse, rms      root mean square of the rounding errors of the converted tensors, and of their numbers
    parameters     numbers of all tensors
    notes          other types than those asked for, large errors
    """

    bytes: int
    type: str
    kinds: dict[str, int]
    tensors: list[TensorChange]
    rmse: float
    rms: float
    parameters: int
    notes: list[str] = field(default_factory=list)

    @property
    def old_bytes(self) -> int:
        return sum(one.old_bytes for one in self.tensors)

    @property
    def new_bytes(self) -> int:
        return sum(one.new_bytes for one in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.new_bytes / self.parameters


@hinted
def quantize(
    model_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    type: str = "q4_k_m",
    *,
    tensor_type: Mapping[str, str] | None = None,
    threads: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Quantized:
    """Write a model in another type, atomically: the types of llama-quantize's mixtures without an importance matrix.

    type         f32 f16 bf16 q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 q3_k_l q3_k_m q3_k_s q2_k
    tensor_type  types of some tensors, before the mixture: {"blk.0.*": "q8_0", "output.weight": "f16"}, patterns of
                 names (* ? [abc]), of which the first that matches counts; types f32 ... q8_0, q6_k ... q2_k
    threads      number of threads; the bytes do not depend on it
    progress     called before each tensor is converted, with its name and the share that is done

    The model is a GGUF file of any architecture, or a Hugging Face folder, which is converted. Matrices whose name ends
    with `weight` are converted, except norms and the small ones that llama-quantize keeps; all other tensors are copied
    byte for byte, and so is metadata, except for general.file_type and general.quantization_version. The output matrix
    (the embedding if it is also that) becomes q6_k, in q8_0 files q8_0. Rows that are not a multiple of a type's block
    become a type of smaller blocks or f16, with a note. Memory: some 16 MB for the rows at work.

    Raises FileError for damaged files, parts of split models, adapters, numbers that are not finite or beyond the
    type's range; SettingError for other types, patterns that match nothing, an out_path that is no FILE.gguf.
    """
    need_path(model_path, "quantize", "model_path", "a path: that of a GGUF file or a Hugging Face folder")
    need_path(out_path, "quantize", "out_path", "a path: that of the GGUF file to write")
    kind = _known(type)
    refuse_input(out_path, model_path)
    if Path(out_path).suffix != ".gguf":
        raise SettingError(f"{out_path}: a quantised model is written as FILE.gguf; requires that ending")
    check_target(out_path)
    if os.path.isdir(model_path):
        need_llm()
    opened = open_model(model_path)
    view = GgufView(opened) if isinstance(opened, HFFolder) else None
    base: GGUF = cast(GGUF, view or opened)
    _check_model(base)
    types = TensorTypes(kind, base.tensors, base.metadata, tensor_type or {})
    parameters = sum(math.prod(t.shape) for t in base.tensors.values())
    before = 0
    tensors: dict[str, tuple[str, tuple[int, ...], Any]] = {}
    losses: dict[str, Loss] = {}
    fallen: dict[str, list[str]] = {}
    for tensor in base.tensors.values():
        new, why = types.of(tensor)
        if why:
            fallen.setdefault(f"{new}: {why}", []).append(tensor.name)
        if new == tensor.kind:
            source: Any = functools.partial(as_pieces, base, tensor.name)
        else:
            on_start = functools.partial(progress, tensor.name, before / parameters) if progress else None
            loss = losses[tensor.name] = Loss()
            source = Pieces(base, tensor, new, loss, on_start, threads=threads)
        tensors[tensor.name] = (new, tensor.shape, source)
        before += math.prod(tensor.shape)
    notes = [note] if view is not None and (note := view.note()) else []
    notes += [f"{plural(len(names), 'tensor')} as {what} ({some(names)})" for what, names in fallen.items()]
    twice = [t.name for t in base.tensors.values() if KINDS[t.kind][0] > 1 and t.name in losses]
    if twice:
        notes.append(f"quantised before and rounded twice: {plural(len(twice), 'tensor')} ({some(twice)})")
    base.check()
    refuse_input(out_path, model_path)
    size = write_gguf(out_path, _metadata(base, kind), tensors, finite=True)
    return _result(base, kind, tensors, losses, parameters, size, notes + loss_notes(losses))


def _result(
    base: GGUF, kind: str, tensors: Mapping[str, tuple[str, tuple[int, ...], Any]], losses: Mapping[str, Loss],
    parameters: int, size: int, notes: list[str],
) -> Quantized:  # fmt: skip
    changes = []
    for name, (new, shape, _) in tensors.items():
        old, loss, count = base.tensors[name], losses.get(name, Loss()), math.prod(shape)
        block, block_bytes = KINDS[new]
        changes.append(
            TensorChange(
                name, old.kind, new, old.bytes, count // block * block_bytes,
                math.sqrt(loss.errors / count), math.sqrt(loss.squares / count),
            )
        )  # fmt: skip
    count = max(1, sum(loss.count for loss in losses.values()))
    rmse = math.sqrt(sum(loss.errors for loss in losses.values()) / count)
    rms = math.sqrt(sum(loss.squares for loss in losses.values()) / count)
    kinds = Counter(one.new for one in changes)
    return Quantized(size, kind, dict(kinds.most_common()), changes, rmse, rms, parameters, notes)


def _known(kind: str) -> str:
    name = kind.lower() if isinstance(kind, str) else kind
    name = ALIASES.get(name, name)
    if name not in TYPES:
        hint = value_hint("type", kind, TYPES)
        text = f"{{type}}: {kind!r:.40} cannot be written; must be one of {' '.join(TYPES)}{hint}"
        raise SettingError(text, setting="type", place="quantize")
    return name


def _check_model(base: GGUF) -> None:
    """Raise FileError for an adapter, a part of a model, or a file without tensors."""
    if base.metadata.get("general.type") == "adapter":
        raise FileError(f"{base.path}: is an adapter; need a model: merge the adapter into its model first")
    parts = base.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise FileError(f"{base.path}: is one of {parts} parts of a model; join them (llama-gguf-split --merge) first")
    if not base.tensors:
        raise FileError(f"{base.path}: has no tensors (a vocabulary only?); need a model")


def _metadata(base: GGUF, kind: str) -> dict[str, Field]:
    fields = {key: value for key, value in base.fields.items() if not key.startswith("split.")}
    fields["general.quantization_version"] = gguf_field("u32", QUANTIZATION_VERSION)
    fields["general.file_type"] = gguf_field("u32", FILE_TYPES[kind])
    return fields
