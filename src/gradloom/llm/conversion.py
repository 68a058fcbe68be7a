"""Tensors of a model as tensors of another type: a few rows at a time, with their rounding error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..base.arrays import place_in
from ..base.dtypes import QUANTISED
from ..base.errors import FileError
from ..files.gguf import GGUF
from ..files.gguf_head import TensorInfo
from ..files.gguf_types import FILE_TYPE_NAMES, KINDS, first_not_finite, kind_bytes, show_name
from ..run import dequantize, quantize

FILE_TYPES = {name: number for number, name in FILE_TYPE_NAMES.items()}  # general.file_type of a name
QUANTIZATION_VERSION = 2  # general.quantization_version: ggml's GGML_QNT_VERSION
FALLBACK = "f16"  # for rows whose length is not a multiple of the block, as in llama.cpp's converter
_NATIVE = frozenset(t.name for t in QUANTISED)  # decoded by the core's kernels
_PIECE = 1 << 20  # elements that are converted at a time
_GONE = 0.001  # reported share of a tensor's numbers that became 0
_LOSSY = 0.2  # reported relative rounding error (RMS) of a tensor; for normal numbers q4_0 has 0.08, q8_0 0.005
_RANGES = {"f16": "up to 65504", "bf16": "up to 3.39e38"}


def whole_blocks(tensor: TensorInfo, kind: str, why: str) -> tuple[str, str]:
    """(kind, why), or the type that takes rows of any length and the reason."""
    block = KINDS[kind][0]
    if tensor.shape[-1] % block:
        return FALLBACK, f"rows are not a multiple of the block of {block}"
    return kind, why


@dataclass
class Loss:
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


def loss_notes(losses: Mapping[str, Loss]) -> list[str]:
    """One line on large rounding errors, one on numbers that became 0."""
    notes = []
    large = sorted((name for name, loss in losses.items() if loss.error > _LOSSY), key=lambda n: -losses[n].error)
    if large:
        notes.append(
            f"rounding changes {len(large)} tensors by more than {_LOSSY:.0%} (RMS, relative): {some(large)}; the "
            f"largest error is {losses[large[0]].error:.0%}; a type with more bits is closer"
        )
    gone = [name for name, loss in losses.items() if loss.vanished > _GONE * loss.count]
    gone.sort(key=lambda n: -losses[n].vanished)
    if gone:
        count, of = (sum(getattr(losses[name], what) for name in gone) for what in ("vanished", "count"))
        notes.append(
            f"{count:,} of {of:,} numbers became 0, which are too small for their type: {some(gone)}; "
            "bf16 and f32 hold smaller ones"
        )
    return notes


class Pieces:
    """The bytes of one tensor of the new file, some rows at a time."""

    def __init__(
        self,
        base: GGUF,
        tensor: TensorInfo,
        kind: str,
        loss: Loss,
        on_start: Callable[[], None] | None,
        added: Callable[[int, int], np.ndarray] | None = None,
        threads: int | None = None,
    ) -> None:
        """added: function of rows begin:end that returns the change by an adapter, f64."""
        self.base, self.tensor, self.kind, self.loss, self.on_start = base, tensor, kind, loss, on_start
        self.added, self.threads = added, threads

    def __call__(self) -> Iterator[np.ndarray]:
        if self.on_start is not None:
            self.on_start()
        shape = self.tensor.shape
        rows, length = math.prod(shape[:-1]), shape[-1] if shape else 1
        step = max(1, _PIECE // length)
        for begin in range(0, rows, step):
            values = floats(self.base, self.tensor, begin, begin + step)
            self._check(values, begin, "")
            if self.added is not None:
                with np.errstate(over="ignore"):
                    values = (values + self.added(begin, begin + step)).astype(np.float32)
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
        data = quantize(values, self.kind, threads=self.threads)
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


def floats(base: GGUF, tensor: TensorInfo, begin: int, end: int) -> np.ndarray:
    """Rows begin:end as f32 [rows, row length]: by the core's kernels, or by the gguf package for other types."""
    if tensor.kind not in _NATIVE:
        return base.floats(tensor.name, begin, end)
    rows, length = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    data = base.bytes(tensor.name).reshape(rows, -1)[begin:end]
    return dequantize(data, tensor.kind, (len(data), length))


def some(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
