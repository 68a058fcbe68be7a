"""Arrays that lie in one."""

from __future__ import annotations

import numpy as np
import pytest

import gradloom as gl
from gradloom.parallel import FlatArrays


def test_pieces_are_views_on_cache_lines() -> None:
    flat = FlatArrays([("a", (3, 5)), ("b", ()), ("none", (0, 4)), ("c", (16,)), ("d", (17,))])
    assert flat.whole.dtype == np.float32 and flat.whole.size == 16 + 16 + 0 + 16 + 32
    assert flat.offsets == [0, 16, 32, 32, 48] and not flat.whole.any()
    for i, stored in enumerate(flat.stored):
        assert stored.address % 64 == 0 or not stored.bytes
        assert np.shares_memory(stored.read(), flat.whole) or not stored.bytes
        stored.write(i + 1)
    assert [s.name for s in flat.stored] == flat.names == ["a", "b", "none", "c", "d"]
    expected = [1] * 15 + [0] + [2] + [0] * 15 + [4] * 16 + [5] * 17 + [0] * 15
    assert flat.whole.tolist() == expected


def test_a_program_writes_and_reads_them() -> None:
    flat = FlatArrays([("sum", (2, 3)), ("weight", ())])
    x = gl.input("x", (2, 3))
    written = gl.ops.assign(flat.values[0], x * 2.0, flat.values[1], gl.ops.sum(x))
    gl.compile([], written)(x=np.arange(6).reshape(2, 3))
    assert flat.whole[:6].tolist() == [0, 2, 4, 6, 8, 10] and flat.whole[16] == 15
    flat.whole[:6] += 1
    (read,) = gl.compile(flat.values[0] + 0.5)()
    assert read.tolist() == [[1.5, 3.5, 5.5], [7.5, 9.5, 11.5]]


def test_bad_shapes() -> None:
    with pytest.raises(gl.ShapeError, match=r"^w: shape \[2, -1\]; need extents of at least 0$"):
        FlatArrays([("w", (2, -1))])
    assert FlatArrays([]).whole.size == 0
