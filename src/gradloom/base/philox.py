"""Philox4x32-10, the counter-based generator of random ops and image transforms: the words of csrc/kernels/random.h.

    key   = words 0, 1 of philox(counter = (step low, step high, stream low, stream high), key = (seed low, seed high))
    block = philox(counter = (row low, row high, element / 4 low, element / 4 high), key)
    word  = block[element % 4]

A word depends on (seed, step, stream, row, element) alone: not on batch sizes, threads or instruction sets.
"""

from __future__ import annotations

import math

import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MASK64 = (1 << 64) - 1


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Ten rounds of Philox4x32 over uint32 counters of shape (..., 4); uint32 words of the same shape."""
    c0, c1, c2, c3 = (np.asarray(counter[..., i], np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


def _words(*values: int) -> list[int]:
    """Each 64-bit number (negative ones as in two's complement) as its low and high word."""
    return [(v & _MASK64) >> shift & 0xFFFFFFFF for v in values for shift in (0, 32)]


def row_words(seed: int, step: int, stream: int, row: int, rows: int, width: int) -> np.ndarray:
    """uint32 [rows, width]: the words of elements 0..width-1 of the global rows row .. row + rows - 1."""
    with np.errstate(over="ignore"):  # rows count modulo 2**64
        index = np.arange(rows, dtype=np.uint64) + np.uint64(int(row) & _MASK64)
    return words_of_rows(seed, step, stream, index, width)


def words_of_rows(seed: int, step: int, stream: int, rows: np.ndarray, width: int) -> np.ndarray:
    """uint32 [rows, width]: the words of elements 0..width-1 of these global rows, u64 or i64 [rows]."""
    low, high = _words(int(seed))
    key = philox(np.array(_words(int(step), int(stream)), np.uint32), (low, high))
    blocks = -(-width // 4)
    index = rows.astype(np.uint64)
    counter = np.empty((len(index), blocks, 4), np.uint32)
    counter[..., 0] = (index & _LOW)[:, None]
    counter[..., 1] = (index >> _HALF)[:, None]
    block = np.arange(blocks, dtype=np.uint64)
    counter[..., 2] = block & _LOW
    counter[..., 3] = block >> _HALF
    return philox(counter, (int(key[0]), int(key[1]))).reshape(len(index), blocks * 4)[:, :width]


def keep_mask(seed: int, step: int, stream: int, row: int, shape: tuple[int, ...], rate: float) -> np.ndarray:
    """bool of `shape`: which elements dropout keeps. Rows run along the first axis, elements along the others."""
    rows = shape[0] if shape else 1
    width = math.prod(shape[1:])
    threshold = math.floor((1.0 - rate) * 2.0**32)
    return (row_words(seed, step, stream, row, rows, width).astype(np.uint64) < threshold).reshape(shape)
