"""quantize: the bytes of the gguf package, and for k-quants those of ggml; round trips; any number of threads."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from gradloom.base.dtypes import QUANTISED, dtype
from gradloom.base.errors import DTypeError, ShapeError
from gradloom.run import dequantize, quantize

gguf = pytest.importorskip("gguf")

SMALL = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
# SHA-256 of the bytes of ggml's quantize_chunk without an importance matrix (2026-08), for the numbers of `numbers`
GGML = {
    "q4_0": "0a89718ed65feb5fef888435c3cdbb45",
    "q4_1": "6f5936afc6729e033b631814a6d4cc1a",
    "q5_0": "ce6c2916de30ac2ab10225889a6cefb8",
    "q5_1": "0410d4a1020ad545723a46039225d9ff",
    "q8_0": "abe8773f4c709643e986a0f541c85141",
    "q2_k": "023a7751b1def2fe481de4587e7f4202",
    "q3_k": "d0256356a931f7031a278b918c2649d8",
    "q4_k": "e43480a1bfa11f135d6d3b6651a76183",
    "q5_k": "ca9da0cf00576abda711aef227c39cbb",
    "q6_k": "7e4cc558960aa39273cc138a2e253fba",
}


def numbers() -> dict[str, np.ndarray]:
    """f32 [rows, 512] of several kinds: whole numbers of a generator, so that they are the same everywhere."""
    rng = np.random.default_rng(7)
    whole = rng.integers(-1000, 1001, (200, 512))
    scale = 2.0 ** rng.integers(-20, 20, (200, 32, 1))
    sparse = np.where(rng.integers(0, 10, whole.shape) == 0, whole, 0)
    given = {
        "uniform": whole / 1000,
        "cubed": (whole / 1000) ** 3,
        "positive": np.abs(whole) + 500,
        "negative": -np.abs(whole) - 1,
        "sparse": sparse,
        "groups of other scales": (whole.reshape(200, 32, 16) * scale).reshape(200, 512) / 1e9,
        "constant": np.repeat(whole[:, :32], 16, axis=1),
        "zero": np.zeros((2, 512)),
        "tiny": whole * 1e-30,
    }
    return {name: (array + 0.0).astype(np.float32) for name, array in given.items()}  # + 0.0: no negative zeros


@pytest.mark.parametrize("kind", SMALL)
def test_blocks_of_32_are_those_of_the_gguf_package(kind: str) -> None:
    for name, array in numbers().items():
        with np.errstate(all="ignore"):
            expected = np.asarray(gguf.quantize(array, gguf.GGMLQuantizationType[kind.upper()]))
        assert quantize(array, kind).tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("kind", [kind.name for kind in QUANTISED])
def test_the_bytes_are_those_of_ggml(kind: str) -> None:
    digest = hashlib.sha256(b"".join(quantize(array, kind).tobytes() for array in numbers().values()))
    assert digest.hexdigest()[:32] == GGML[kind]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_plain_types_are_those_of_the_gguf_package(kind: str) -> None:
    array = numbers()["cubed"]
    expected = np.asarray(gguf.quantize(array, gguf.GGMLQuantizationType[kind.upper()]))
    assert quantize(array, kind).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("q8_0", 0.006), ("q6_k", 0.02), ("q5_k", 0.04), ("q5_1", 0.04), ("q5_0", 0.05), ("q4_k", 0.08), ("q4_1", 0.08)]
    + [("q4_0", 0.1), ("q3_k", 0.17), ("q2_k", 0.35)],
)
def test_the_error_of_normal_numbers(kind: str, bound: float) -> None:
    """Root mean square, relative; a bound some 10 % above that of ggml."""
    array = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32)
    error = dequantize(quantize(array, kind), kind, array.shape) - array
    assert bound / 2 < np.sqrt(np.square(error).mean()) < bound


@pytest.mark.parametrize("kind", [kind.name for kind in QUANTISED])
def test_any_number_of_threads_gives_the_same_bytes(kind: str) -> None:
    array = np.random.default_rng(2).standard_normal((999, 256)).astype(np.float32)
    whole = quantize(array, kind, threads=1).tobytes()
    assert quantize(array, kind, threads=2).tobytes() == whole
    assert b"".join(quantize(row, kind).tobytes() for row in array) == whole
    assert quantize(array[:, ::-1], kind).tobytes() == quantize(array[:, ::-1].copy(), kind).tobytes()


@pytest.mark.parametrize("kind", [kind.name for kind in QUANTISED])
def test_scales_beyond_f16_are_infinite_and_nothing_else_happens(kind: str) -> None:
    block = dtype(kind).block
    data = quantize(np.array([3e38, -3e38] * (block // 2), np.float32), kind)
    assert not np.isfinite(dequantize(data, kind, (block,))).all()


def test_what_cannot_be_quantised() -> None:
    with pytest.raises(ShapeError, match=r"q4_k\[4, 100\]; need a last axis of whole blocks of 256"):
        quantize(np.zeros((4, 100)), "q4_k")
    with pytest.raises(DTypeError, match="i32; need f32, f16, bf16 or a quantised dtype"):
        quantize(np.zeros(4), "i32")
