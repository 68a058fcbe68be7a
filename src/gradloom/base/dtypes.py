"""dtypes, named as in ggml. The codes are those of csrc/bytecode.h.

Quantised types hold blocks: `block` elements, neighbours along the last axis of the array that they were made of, in
`bytes` bytes. Their elements have no NumPy type of their own; NumPy holds their bytes as u8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .errors import DTypeError


@dataclass(frozen=True)
class DType:
    """One element type: its name, its code in the bytecode, its NumPy type, and the bytes of a block of elements."""

    name: str
    code: int
    numpy: np.dtype
    bytes: int
    block: int = 1

    @property
    def is_float(self) -> bool:
        return self.name in ("f16", "bf16", "f32", "f64")

    @property
    def is_quantised(self) -> bool:
        return self.block > 1

    def bytes_of(self, elements: int) -> int:
        """Bytes of `count` elements; a partial block counts as a whole one."""
        return -(-elements // self.block) * self.bytes

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return (dtype, (self.name,))


class Shaped:
    """An object with a shape and a dtype."""

    __slots__ = ()
    shape: tuple[int, ...]
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return -(-math.prod(self.shape) // self.dtype.block) * self.dtype.bytes


def _make(name: str, code: int, numpy: object) -> DType:
    kind = np.dtype(numpy)  # type: ignore[call-overload]
    return DType(name, code, kind, kind.itemsize)


f32 = _make("f32", 1, np.float32)
f16 = _make("f16", 2, np.float16)
bf16 = _make("bf16", 3, ml_dtypes.bfloat16)
f64 = _make("f64", 4, np.float64)
u8 = _make("u8", 5, np.uint8)
i8 = _make("i8", 6, np.int8)
i32 = _make("i32", 7, np.int32)
i64 = _make("i64", 8, np.int64)

# Blocks as in ggml: scales, then packed integers (csrc/kernels/quant.h).
q4_0 = DType("q4_0", 16, u8.numpy, 18, 32)
q4_1 = DType("q4_1", 17, u8.numpy, 20, 32)
q5_0 = DType("q5_0", 18, u8.numpy, 22, 32)
q5_1 = DType("q5_1", 19, u8.numpy, 24, 32)
q8_0 = DType("q8_0", 20, u8.numpy, 34, 32)
q2_k = DType("q2_k", 21, u8.numpy, 84, 256)
q3_k = DType("q3_k", 22, u8.numpy, 110, 256)
q4_k = DType("q4_k", 23, u8.numpy, 144, 256)
q5_k = DType("q5_k", 24, u8.numpy, 176, 256)
q6_k = DType("q6_k", 25, u8.numpy, 210, 256)

PLAIN: tuple[DType, ...] = (f32, f16, bf16, f64, u8, i8, i32, i64)
QUANTISED: tuple[DType, ...] = (q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k)
ALL: tuple[DType, ...] = (*PLAIN, *QUANTISED)
_BY_NAME = {t.name: t for t in ALL}
_BY_NUMPY = {t.numpy: t for t in PLAIN}


def dtype(what: str | DType | np.dtype | type) -> DType:
    """The DType for a ggml name ("f32"), a DType or a NumPy dtype; DTypeError for anything else."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what in _BY_NAME:
        return _BY_NAME[what]
    try:
        known = _BY_NUMPY.get(np.dtype(what))
    except (TypeError, ValueError):
        known = None
    if known is None:
        raise DTypeError(f"dtype: {what!r} is not known; must be one of {', '.join(_BY_NAME)}")
    return known
