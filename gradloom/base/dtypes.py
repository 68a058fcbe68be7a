"""dtypes, named as in ggml. The codes are those of csrc/tape.h."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .errors import DTypeError


@dataclass(frozen=True)
class DType:
    """One element type: its name, its code on the tape, its NumPy type and its size in bytes."""

    name: str
    code: int
    numpy: np.dtype
    bytes: int

    @property
    def is_float(self) -> bool:
        return self.name in ("f16", "bf16", "f32", "f64")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return (dtype, (self.name,))


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

ALL: tuple[DType, ...] = (f32, f16, bf16, f64, u8, i8, i32, i64)
_BY_NAME = {t.name: t for t in ALL}
_BY_NUMPY = {t.numpy: t for t in ALL}


def dtype(what: str | DType | np.dtype | type) -> DType:
    """The DType for a ggml name ("f32"), a DType or a NumPy dtype; DTypeError for anything else."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what in _BY_NAME:
        return _BY_NAME[what]
    try:
        found = _BY_NUMPY.get(np.dtype(what))
    except TypeError:
        found = None
    if found is None:
        raise DTypeError(f"dtype: {what!r} is not known; need one of {', '.join(_BY_NAME)}")
    return found
