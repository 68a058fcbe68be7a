"""save_gguf and load_gguf: types per tensor, metadata by kind, the reader of the gguf package, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import FileError, SettingError
from gradloom.files import open_gguf
from gradloom.run import dequantize, quantize
from gradloom.tables.gguf_file import TYPES


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = {"fc1.weight": (64, 256), "fc1.bias": (64,), "fc2.weight": (10, 64), "conv.kernel": (8, 3, 3, 3)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in names.items()}


def test_types_by_pattern(tmp_path: Path) -> None:
    given = arrays()
    types = {"fc1.weight": "q4_k", "fc*.weight": "q8_0", "*.bias": "f16", "conv*": "bf16"}
    gl.save_gguf(given, tmp_path / "a.gguf", types)
    file = open_gguf(tmp_path / "a.gguf")
    kinds = {"fc1.weight": "q4_k", "fc1.bias": "f16", "fc2.weight": "q8_0", "conv.kernel": "bf16"}
    assert {name: tensor.kind for name, tensor in file.tensors.items()} == kinds
    read, metadata = gl.load_gguf(tmp_path / "a.gguf")
    for name, kind in kinds.items():
        data = quantize(given[name], kind)
        assert file.bytes(name).tobytes() == data.tobytes() and read[name].shape == given[name].shape
        assert (read[name].astype(np.float32) == dequantize(data, kind, given[name].shape)).all()
    assert read["conv.kernel"].dtype == ml_dtypes.bfloat16 and read["fc1.weight"].dtype == np.float32
    assert metadata == {"general.architecture": "gradloom", "general.quantization_version": 2}


@pytest.mark.parametrize("kind", TYPES)
def test_every_type(tmp_path: Path, kind: str) -> None:
    whole = np.arange(512).reshape(2, 256) % 100
    gl.save_gguf({"a": whole.astype(np.float32)}, tmp_path / "a.gguf", kind)
    assert open_gguf(tmp_path / "a.gguf").tensors["a"].kind == kind
    read = gl.load_gguf(tmp_path / "a.gguf")[0]["a"]
    assert np.abs(read.astype(np.float64) - whole).max() <= (0 if not kind.startswith("q") else 25)


def test_arrays_keep_their_dtype_by_default(tmp_path: Path) -> None:
    given = {name: np.arange(6).reshape(2, 3).astype(name) for name in ("f4", "f2", "f8", "i1", "i2", "i4", "i8")}
    gl.save_gguf(given | {"scalar": np.float32(3)}, tmp_path / "a.gguf")
    read = gl.load_gguf(tmp_path / "a.gguf")[0]
    assert read.pop("scalar").tolist() == [3]
    assert all(read[name].dtype == a.dtype and (read[name] == a).all() for name, a in given.items())


def test_metadata_by_the_types_of_python_and_numpy(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "general.architecture": "mnist-fc", "a.text": "hä", "a.yes": True, "a.count": 3, "a.negative": -3,
        "a.large": 1 << 40, "a.low": -(1 << 40), "a.rate": 0.5, "a.u64": np.uint64(7), "a.f64": np.float64(0.1),
        "a.texts": ["x", ""], "a.ints": [1, -2], "a.longs": [1 << 40], "a.floats": [0.5, 2], "a.flags": [True, False],
        "a.array": np.arange(3, dtype=np.uint8), "a.empty": [], "a.u64s": [1 << 63, 1], "a.huge": 1e300,
        "a.huges": [1e300, 0.5], "a.infinite": float("inf"),
    }  # fmt: skip
    gl.save_gguf({"w": np.zeros(3, np.float32)}, tmp_path / "a.gguf", metadata=given)
    fields = open_gguf(tmp_path / "a.gguf").fields
    kinds = {key: field.item or field.kind for key, field in fields.items()}
    assert kinds == {
        "general.architecture": "string", "a.text": "string", "a.yes": "bool", "a.count": "u32", "a.negative": "i32",
        "a.large": "u64", "a.low": "i64", "a.rate": "f32", "a.u64": "u64", "a.f64": "f64", "a.texts": "string",
        "a.ints": "i32", "a.longs": "i64", "a.floats": "f32", "a.flags": "bool", "a.array": "u8", "a.empty": "i32",
        "a.u64s": "u64", "a.huge": "f64", "a.huges": "f64", "a.infinite": "f32",
    }  # fmt: skip
    read = gl.load_gguf(tmp_path / "a.gguf")[1]
    for key, value in given.items():
        assert np.array_equal(read[key], value), key


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    given = arrays()
    gl.save_gguf(given, tmp_path / "a.gguf", {"fc*.weight": "q8_0"}, {"general.architecture": "mnist-fc"})
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert reader.fields["general.architecture"].contents() == "mnist-fc"
    assert [tensor.name for tensor in reader.tensors] == list(given)
    for tensor in reader.tensors:
        assert tensor.shape.tolist() == list(reversed(given[tensor.name].shape))  # ggml's ne
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.abs(values - given[tensor.name]).max() < 0.02


def test_a_network(tmp_path: Path) -> None:
    net = gl.nn.Sequential(gl.nn.Linear(64, 32), gl.nn.ReLU(), gl.nn.Linear(32, 4))
    other = gl.nn.Sequential(gl.nn.Linear(64, 32), gl.nn.ReLU(), gl.nn.Linear(32, 4))
    gl.save_gguf(net, tmp_path / "a.gguf", {"*.weight": "q8_0"})
    gl.load(other, tmp_path / "a.gguf")
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    assert 0 < np.abs(gl.predict(net, x) - gl.predict(other, x)).max() < 0.05
    with pytest.raises(FileError, match="holds arrays but no model of gradloom.*gl.load_gguf"):
        gl.load(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("given", "types", "metadata", "message"),
    [
        ({"a": np.zeros((2, 100), "f4")}, "q8_0", None, r"tensor 'a' is q8_0\[2, 100\]: .* need a multiple of it"),
        ({"a": np.zeros((2, 128), "f4")}, "q4_k", None, r"rows are stored in blocks of 256"),
        ({"a": np.zeros((2, 32), "f4")}, "q9", None, r"types: 'q9' cannot be written; must be one of f32 f16 .* q2_k"),
        ({"a": np.zeros((2, 32), "f4")}, {"b*": "q8_0"}, None, r"'b\*' matches no parameter"),
        ({"a": np.zeros((2, 32), "f4")}, {"*": 8}, None, r"8 cannot be written"),
        ({"n" * 64: np.zeros(2, "f4")}, None, None, r"has 64 bytes; a .gguf file takes 63"),
        ({"a": np.zeros((1, 1, 1, 1, 2), "f4")}, None, None, r"has 5 axes; a .gguf file takes 4"),
        ({"a": np.zeros((0, 2), "f4")}, None, None, r"is empty"),
        ({"a": np.array([1, np.nan], "f4")}, None, None, r"a"),
        ({"a": np.full(32, 1e30, "f4")}, "f16", None, r"'a' \(f16\) holds inf"),
        ({"a": np.full(32, 1e30, "f4")}, "q6_k", None, r"rows are stored in blocks"),
        ({"a": np.full(256, 1e30, "f4")}, "q6_k", None, r"'a' \(q6_k\) holds a scale of inf"),
        ({"a": np.arange(32)}, "q8_0", None, r"'a' is int64; q8_0 holds floating-point numbers"),
        ({"a": np.array([0.5], "f4")}, "i32", None, r"with numbers that i32 does not hold"),
        ({"a": np.array(["x"])}, None, None, r"'a' is <U1"),
        ({"": np.zeros(2, "f4")}, None, None, r"array name '' is not usable"),
        ({"a": np.zeros(2, "f4")}, None, {"k": None}, r"metadata 'k': is a NoneType; need a text, a number"),
        ({"a": np.zeros(2, "f4")}, None, {"k": [1 << 63, -1]}, r"metadata 'k': is a list of whole numbers beyond 64"),
        ({"a": np.zeros(2, "f4")}, None, {"k": {}}, r"metadata 'k': is .*dict"),
        ({"a": np.zeros(2, "f4")}, None, {"k": 1 << 70}, r"metadata 'k': is"),
        ({"a": np.zeros(2, "f4")}, None, {"k": np.zeros((2, 2))}, r"need one axis"),
        ({"a": np.zeros(2, "f4")}, None, {"": 1}, r"metadata key '' is not usable"),
        ([1, 2], None, None, r"need a network or a dict of arrays"),
    ],
)
def test_what_is_refused(tmp_path: Path, given: Any, types: Any, metadata: Any, message: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")
    with pytest.raises((FileError, SettingError), match=message) as caught:
        gl.save_gguf(given, path, types, metadata)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_other_endings_and_files(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"requires the ending \.gguf"):
        gl.save_gguf({"a": np.zeros(2)}, tmp_path / "a.bin")
    (tmp_path / "a.gguf").write_bytes(b"GGML")
    with pytest.raises(FileError, match="a .gguf file starts with b'GGUF'"):
        gl.load_gguf(tmp_path / "a.gguf")
