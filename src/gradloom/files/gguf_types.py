"""The types of ggml: what a block of each holds, and its bytes; limits that the GGUF format sets."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from ..base.errors import FileError

# ggml's types: name, number in the file, elements per block, bytes per block
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}
# general.file_type of a model, llama.cpp's llama_ftype: the type of most tensors, or a mixture of types
FILE_TYPE_NAMES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m",
    13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs",
    21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s",
    29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4_moe", 39: "nvfp4",
    40: "q1_0", 1024: "guessed",
}  # fmt: skip
TYPE_IDS = {name: number for number, (name, _, _) in TYPES.items()}
KINDS: dict[str, tuple[int, int]] = {name: (block, size) for name, block, size in TYPES.values()}  # elements, bytes
# kinds that are plain arrays of NumPy's own (and ml_dtypes') types
PLAIN: dict[str, np.dtype] = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype("<f8"),
    "i8": np.dtype("i1"),
    "i16": np.dtype("<i2"),
    "i32": np.dtype("<i4"),
    "i64": np.dtype("<i8"),
}
NO_WEIGHTS = ("f64", "i8", "i16", "i32", "i64")  # kinds that no weight has: llama.cpp computes with none of them
# offsets of the f16 scales and minimums in a block; kinds whose scales are no f16 are missing
_SCALES: dict[str, tuple[int, ...]] = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q8_1": (0, 2), "q2_k": (80, 82),
    "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq2_xxs": (0,), "iq2_xs": (0,), "iq3_xxs": (0,),
    "iq1_s": (0,), "iq4_nl": (0,), "iq3_s": (0,), "iq2_s": (0,), "iq4_xs": (0,), "tq1_0": (52,), "tq2_0": (64,),
}  # fmt: skip
_EXPONENTS = {"f32": ("<u4", 0x7F800000), "f16": ("<u2", 0x7C00), "bf16": ("<u2", 0x7F80)}  # all ones: inf and NaN
_PIECE = 1 << 20  # bytes that are looked at together, about
ALIGNMENT = 32  # default of general.alignment
NAME_BYTES = 65535  # the longest key or tensor name that is read
TENSOR_NAME_BYTES = 63  # written: ggml's GGML_MAX_NAME, less its terminator
AXES = 4  # ggml's GGML_MAX_DIMS


def kind_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; FileError unless the last axis (ggml's first) is whole blocks."""
    block, size = KINDS[kind]
    if block > 1 and (not shape or shape[-1] % block):
        raise FileError(f"{kind}{list(shape)}: rows are stored in blocks of {block}; need a multiple of it")
    return math.prod(shape) // block * size


def first_not_finite(kind: str, data: np.ndarray) -> tuple[int, str] | None:
    """(flat element, text) of the first number of a tensor that is not finite, or of the first block with such a scale.

    data: u8, whole blocks. None where all are finite; kinds whose scales are no f16 are not checked.
    """
    block, size = KINDS[kind]
    step = max(1, _PIECE // size) * size
    for begin in range(0, data.size, step):
        part = data[begin : begin + step]
        if kind in _EXPONENTS:
            word, ones = _EXPONENTS[kind]
            bad = np.flatnonzero((part.view(word) & np.asarray(ones, word)) == ones)
            if bad.size:
                return begin // size + int(bad[0]), f"{float(part.view(PLAIN[kind])[bad[0]]):g}"
        for at in _SCALES.get(kind, ()):
            scales = np.ascontiguousarray(part.reshape(-1, size)[:, at : at + 2]).view("<f2")
            bad = np.flatnonzero(~np.isfinite(scales))
            if bad.size:
                return (begin // size + int(bad[0])) * block, f"a scale of {float(scales[bad[0], 0]):g}"
    return None


NEED_TYPE = f"must be one of ggml's {len(TYPES)} types, 0 to {max(TYPES)}"


def show_name(name: str) -> str:
    """A key or tensor name for a message: at most 80 characters of it."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
