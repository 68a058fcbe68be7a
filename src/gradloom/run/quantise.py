"""f32 arrays as the bytes of a tensor of a model file: the inverse of dequantise.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core
from ..base.dtypes import DType, bf16, dtype, f16, f32
from ..base.errors import DTypeError, ShapeError
from ..base.settings import switches


def quantize(values: Any, kind: str | DType, *, threads: int | None = None) -> np.ndarray:
    """The bytes of finite f32 numbers, of any shape, as a tensor of this type: u8 [n], the same for any `threads`.

    kind: f32, f16, bf16 or a quantised dtype, whose blocks are neighbours along the last axis. q4_0 q4_1 q5_0 q5_1 q8_0
    are bit for bit those of the gguf package, q2_k ... q6_k those of ggml without an importance matrix. A number beyond
    the type's range becomes infinite, as does the scale of its block. Raises ShapeError, DTypeError.
    """
    known, array = dtype(kind), np.require(values, f32.numpy, ["C", "A"])
    if known is f32:
        return array.reshape(-1).view(np.uint8)
    if known in (f16, bf16):
        with np.errstate(over="ignore"):
            return array.reshape(-1).astype(known.numpy).view(np.uint8)
    if not known.is_quantised:
        raise DTypeError(f"quantize: got {known.name}; need f32, f16, bf16 or a quantised dtype")
    if not array.ndim or array.shape[-1] % known.block:
        need = f"a last axis of whole blocks of {known.block}"
        raise ShapeError(f"quantize: {known.name}{list(array.shape)}; need {need}")
    out = np.empty(known.bytes_of(array.size), np.uint8)
    _core.quantise(array, known.code, out, switches(threads=threads).threads)
    return out
