"""Quantised types, decoded and encoded bit for bit as the gguf package does."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

import gradloom as gl
from gradloom.base.dtypes import QUANTISED, dtype
from gradloom.ops.common import BLOCK_SCALES, draw_blocks
from gradloom.run import dequantize, quantize
from tests.core.harness import isas

KINDS = [k.name for k in QUANTISED]


def by_gguf(data: np.ndarray, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    rows = data.reshape(-1, dtype(kind).bytes_of(shape[-1]))
    return quants.dequantize(rows, GGMLQuantizationType[kind.upper()]).reshape(shape)


def hard_blocks(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Scales of every kind: any finite half, subnormal, 0, -0, the largest."""
    data = draw_blocks(rng, kind, shape).reshape(-1, dtype(kind).bytes)
    for at in BLOCK_SCALES[kind]:
        bits = rng.integers(0, 2**16, len(data), np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] = 0x03FF  # a subnormal instead of inf and NaN
        bits[: len(bits) // 8] = np.resize(np.array([0, 0x8000, 0x7BFF, 1], np.uint16), len(bits) // 8)
        data[:, at : at + 2] = bits[:, None].view(np.uint8)
    return data.reshape(-1)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_those_of_the_gguf_package(kind: str, isa: str) -> None:
    rng = np.random.default_rng(7)
    for shape in ((256,), (3, 512), (300, 256), (2, 5, 768)):
        for data in (draw_blocks(rng, kind, shape), hard_blocks(rng, kind, shape)):
            with np.errstate(all="ignore"):
                want = by_gguf(data, kind, shape)
            for threads in (1, 2):
                got = dequantize(data, kind, shape, isa=isa, threads=threads)
                assert got.shape == shape and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_every_half(kind: str, isa: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    want = quants.dequantize(bits.view(np.uint8), GGMLQuantizationType[kind.upper()])
    got = dequantize(bits.view(np.uint8), kind, (2**16,), isa=isa)
    number = ~np.isnan(want)
    assert np.array_equal(got.view(np.uint32)[number], want.view(np.uint32)[number]) and np.isnan(got[~number]).all()
    odd = np.concatenate([[np.uint8(0)], bits.view(np.uint8)])[1:]
    assert odd.ctypes.data % 2 and np.array_equal(dequantize(odd, kind, (256, 256), isa=isa).ravel(), got, True)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_encoded_bytes_are_those_of_the_gguf_package(kind: str) -> None:
    """Also of equal numbers, and where the second largest number has the other sign."""
    rng = np.random.default_rng(0)
    blocks = rng.standard_normal((512, 32), np.float32)
    rows, largest = np.arange(512), np.abs(blocks).argmax(1)
    blocks[rows, (largest + 5) % 32] = -blocks[rows, largest] * (1 - rng.uniform(0, 0.05, 512))
    blocks[:8] = np.array([0, 1, -1, 1e-6, 3e4, -3e4, 2.0**-30, 2.0**-130], np.float32)[:, None]
    values = blocks.reshape(64, 256)
    with np.errstate(all="ignore"):
        want = quants.quantize(values, GGMLQuantizationType[kind.upper()]).tobytes()
    for threads in (1, 2):
        assert quantize(values, kind, threads=threads).tobytes() == want


def test_into_an_array_of_the_callers() -> None:
    data = draw_blocks(np.random.default_rng(0), "q6_k", (4, 256))
    out = np.full((4, 256), np.nan, np.float32)
    assert dequantize(data, "q6_k", (4, 256), out) is out and np.array_equal(out, by_gguf(data, "q6_k", (4, 256)))
    plain = np.arange(6, dtype=np.float32)
    assert dequantize(plain.view(np.uint8), "f32", (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dequantize(data[:0], "q6_k", (0, 256)).shape == (0, 256)


def test_what_does_not_fit() -> None:
    data = draw_blocks(np.random.default_rng(0), "q4_0", (4, 32))
    for arguments, kind, message in [
        ((data, "q4_0", (4, 64)), gl.ShapeError, r"dequantize: got uint8\[72\]; need 144 bytes without gaps for q4_0"),
        ((data, "q4_0", (8, 16)), gl.ShapeError, "need a last axis of whole blocks of 32"),
        ((data[::2], "q4_0", (2, 32)), gl.ShapeError, "without gaps"),
        ((data, "i8", (72,)), gl.DTypeError, "got i8; need f32, f16, bf16 or a quantised dtype"),
        ((data, "q4_0", (4, 32), np.zeros((4, 32))), gl.ShapeError, r"out is float64\[4, 32\]; need a writable f32"),
    ]:
        with pytest.raises(kind, match=message):
            dequantize(*arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_may_begin_and_end_inside_blocks(kind: str) -> None:
    """Rows of one number: get_rows of a table with one axis."""
    n = 2 * dtype(kind).block
    data = draw_blocks(np.random.default_rng(1), kind, (n,))
    table = gl.graph.leaves.stored_value(gl.graph.stored.Stored.map("t", data, kind, (n,)))
    for isa in isas():
        got = gl.compile(gl.ops.get_rows(table, gl.constant(np.arange(n)[::-1].copy())), isa=isa)()[0]
        assert got.tobytes() == by_gguf(data, kind, (n,))[::-1].tobytes()


# ---- products ----------------------------------------------------------------------------------------------

# rows, depth, columns; whole blocks along k for `turned`, along the columns otherwise.
PRODUCTS = [
    (1, 256, 40, True), (3, 512, 1, True), (4, 768, 300, True), (2, 256, 1030, True), (64, 256, 10, True),
    (57, 1280, 333, True), (530, 256, 129, True), (700, 768, 64, True), (1, 40, 256, False), (64, 7, 512, False),
    (530, 300, 768, False), (48, 1300, 256, False), (64, 1, 256, False),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kind", ["f16", "bf16", *KINDS])
def test_products_have_the_bits_of_products_of_the_decoded_matrix(kind: str, isa: str) -> None:
    """x @ W^T and x @ W, frozen and as f32 in the same layout, also beside a bias, and on two threads."""
    rng = np.random.default_rng(11)
    stored_value, map_ = gl.graph.leaves.stored_value, gl.graph.stored.Stored.map
    for rows, depth, columns, turned in PRODUCTS:
        rows = min(rows, 700 if isa == "avx512" else 130)  # more than what is read in place
        shape = (columns, depth) if turned else (depth, columns)
        if dtype(kind).is_quantised:
            data = draw_blocks(rng, kind, shape)
        else:
            data = rng.normal(size=shape).astype(dtype(kind).numpy).reshape(-1).view(np.uint8)
        decoded = dequantize(data, kind, shape).reshape(-1).view(np.uint8)
        frozen, plain = (stored_value(map_("w", d, k, shape)) for d, k in ((data, kind), (decoded, "f32")))
        x, bias = gl.input("x", (rows, depth)), gl.constant(rng.normal(size=columns))
        products = [gl.ops.matmul(x, w, transpose_y=turned) for w in (frozen, plain)]
        sums = [gl.ops.relu(p + bias) for p in products]
        numbers = rng.normal(size=(rows, depth)).astype(np.float32)
        want = None
        for threads in (1, 2):
            options = {"isa": isa, "threads": threads}
            got = gl.compile(products, **options)(x=numbers) + gl.compile(sums, **options)(x=numbers)
            assert got[0].tobytes() == got[1].tobytes() and got[2].tobytes() == got[3].tobytes()
            assert want is None or [g.tobytes() for g in got] == want
            want = [g.tobytes() for g in got]
