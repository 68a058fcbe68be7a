"""Whole tensors of a model file as f32, by the kernels that also run inside a program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import _core
from ..base.aligned import aligned_empty
from ..base.dtypes import DType, bf16, dtype, f16, f32
from ..base.errors import DTypeError, ShapeError
from ..base.settings import switches
from ..plan.bytecode import ARG, ARG_WRITE, INSTRUCTION, MAX_PHASES, MAX_RANK
from ..plan.layout import dense_strides
from .cpu_backend import choose_isa


def dequantize(
    data: np.ndarray,
    kind: str | DType,
    shape: Sequence[int],
    out: np.ndarray | None = None,
    *,
    threads: int | None = None,
    isa: str | None = None,
) -> np.ndarray:
    """The numbers of a tensor as an f32 array of `shape`, bit for bit those of the gguf package.

    data: its bytes (u8, C-contiguous), mapped or not; kind: f32, f16, bf16 or a quantised dtype, blocks along the last
    axis. out: where to, a C-contiguous f32 array of `shape`. Raises ShapeError, DTypeError when they do not fit.
    """
    known, extents = dtype(kind), tuple(int(n) for n in shape)
    if not (known.is_quantised or known in (f32, f16, bf16)):
        raise DTypeError(f"dequantize: got {known.name}; need f32, f16, bf16 or a quantised dtype")
    size = math.prod(extents)
    if known.is_quantised and (not extents or extents[-1] % known.block):
        raise ShapeError(f"dequantize: {known.name}{list(extents)}; need a last axis of whole blocks of {known.block}")
    if not data.flags.c_contiguous or data.nbytes != known.bytes_of(size):
        need = f"{known.bytes_of(size)} bytes without gaps for {known.name}{list(extents)}"
        raise ShapeError(f"dequantize: got {data.dtype}{list(data.shape)}; need {need}")
    if out is None:
        out = aligned_empty(extents, f32.numpy)
    elif out.dtype != f32.numpy or out.shape != extents or not out.flags.c_contiguous or not out.flags.writeable:
        raise ShapeError(f"dequantize: out is {out.dtype}{list(out.shape)}; need a writable f32{list(extents)}")
    if not size:
        return out
    if known is f32 or data.ctypes.data % known.numpy.itemsize:  # halves at odd addresses: NumPy reads them
        out[...] = data.reshape(-1).view(known.numpy).reshape(extents)
        return out
    chosen = switches(isa=isa, threads=threads)
    table = choose_isa(chosen.isa)
    pad = MAX_RANK - 1

    def arg(segment: int, code: int, flags: int, nbytes: int) -> tuple:
        return (segment, code, 1, flags, 0, nbytes, (size,) + (1,) * pad, dense_strides((size,)) + (0,) * pad)

    args = np.array([arg(0, known.code, 0, data.nbytes), arg(1, f32.code, ARG_WRITE, out.nbytes)], ARG)
    words = np.array([f32.code], np.int64)
    kernel = ("cast", f"{known.name}_f32")
    parts, scratch, _ = _core.kernel_plan(table, *kernel, args, words)
    step = (0, 0, 0, 2, 0, 1, 0, 1, (*parts, *[1] * (MAX_PHASES - len(parts))))
    segments = [
        ("readonly", data.ctypes.data, data.nbytes), ("memory", out.ctypes.data, out.nbytes), ("scratch", scratch),
    ]  # fmt: skip
    program = _core.Program(table, [kernel], np.array([step], INSTRUCTION), args, words, segments)
    program.run(1, threads=chosen.threads)
    return out
