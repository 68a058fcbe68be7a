import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from gradloom.base.errors import FileError
from gradloom.files import atomic_path, atomic_write, load_arrays, save_arrays
from gradloom.files.safetensors_file import SafetensorsFile
from tests import processes

ENV = processes.environment()
SUFFIXES = [".safetensors", ".gguf"]


def sample():
    rng = np.random.default_rng(0)
    arrays = {
        "0.weight": rng.normal(size=(5, 3)).astype("f4"),
        "0.bias": rng.normal(size=3).astype("f4"),
        "conv": rng.normal(size=(2, 3, 4, 5)).astype("f2"),
        "double": rng.normal(size=(1, 7)),
        "scalar": np.float32(1.5),
        "strided": np.arange(24, dtype="f4").reshape(4, 6)[::2, ::3].T,
        "brain": rng.normal(size=(3, 4)).astype(ml_dtypes.bfloat16),
        "brain1": rng.normal(size=5).astype(ml_dtypes.bfloat16),
        "brain0": np.array(2, ml_dtypes.bfloat16),
        "special": np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], "f4"),
    }
    for kind in ("i1", "i2", "i4", "i8"):
        arrays[kind] = np.array([np.iinfo(kind).min, 0, np.iinfo(kind).max], kind)
    return arrays


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path, suffix):
    arrays, metadata = sample(), {"gradloom.model": '{"a": [1, 2]}', "name": "tést\n"}
    path = tmp_path / f"m{suffix}"
    save_arrays(path, arrays, metadata)
    first = path.read_bytes()
    back, texts = load_arrays(path)
    assert texts == metadata and set(back) == set(arrays)
    for name, array in arrays.items():
        array = np.asarray(array)
        assert back[name].shape == array.shape and back[name].dtype == array.dtype, name
        assert back[name].tobytes() == array.tobytes(), name
        assert back[name].flags.writeable, name
    save_arrays(path, arrays, metadata)
    assert path.read_bytes() == first and os.listdir(tmp_path) == [path.name]
    save_arrays(path, {})
    assert load_arrays(path) == ({}, {})


@pytest.mark.parametrize("texts", [{}, {"b": '1 ü"\n', "a": "x"}])
def test_safetensors_are_the_bytes_of_the_package(tmp_path, texts):
    """All kinds, in its order; names that JSON has to quote."""
    from safetensors import TensorSpec, serialize

    arrays = {f'{name} ü\n"/\x01\x7f': np.asarray(array, order="C") for name, array in sample().items()}
    arrays |= {f"{k}{kind}": np.zeros((k, 3), kind) for kind in ("?", "u1", "f2", "f4", "f8") for k in (2, 0)}
    specs = {
        name: TensorSpec(dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in arrays.items()
    }
    save_arrays(tmp_path / "m.safetensors", arrays, texts)
    wanted = serialize(specs, metadata={"gradloom": json.dumps(texts)} if texts else None)
    assert (tmp_path / "m.safetensors").read_bytes() == bytes(wanted)


def test_gguf_shapes_are_reversed(tmp_path):
    from gguf import GGUFReader

    save_arrays(tmp_path / "m.gguf", {"w": np.zeros((2, 3, 5), "f4"), "b": np.zeros((2, 3), ml_dtypes.bfloat16)})
    shapes = {t.name: (t.shape.tolist(), t.tensor_type.name) for t in GGUFReader(tmp_path / "m.gguf").tensors}
    assert shapes == {"w": ([5, 3, 2], "F32"), "b": ([3, 2], "BF16")}


def test_safetensors_are_read_by_the_package(tmp_path):
    from safetensors.numpy import load_file

    save_arrays(tmp_path / "m.safetensors", {"w": np.arange(6, dtype="f4").reshape(2, 3), "u": np.array([1], "u1")})
    assert load_file(tmp_path / "m.safetensors")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert load_arrays(tmp_path / "m.safetensors")[0]["u"].tolist() == [1]


def test_empty_tensors_lie_anywhere(tmp_path):
    """At the offset of the tensor that follows, and listed before or behind it."""
    one, none = {"dtype": "F32", "shape": [2]}, {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}
    for names in (["b", "a"], ["a", "b"]):
        head = {name: one | {"data_offsets": [0, 8]} if name == "b" else none for name in names}
        text = json.dumps(head).encode()
        (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + np.float32([1, 2]).tobytes())
        tensors = SafetensorsFile(tmp_path / "m.safetensors").tensors
        assert {name: (t.shape, t.bytes) for name, t in tensors.items()} == {"a": ((0, 3), 0), "b": ((2,), 8)}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_and_damaged_files_are_refused_or_read(tmp_path, suffix):
    """Cut at many lengths, and bytes all over it changed: a FileError of one line, or arrays; never a crash."""
    path, bad = tmp_path / f"m{suffix}", tmp_path / f"bad{suffix}"
    save_arrays(path, {"w": np.ones((4, 3), "f4"), "b": np.ones(3, "f4"), "s": np.float32(1)}, {"k": "v"})
    whole = path.read_bytes()
    for length in range(0, len(whole) - 40, 3):  # the last bytes may be padding
        bad.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"bad\.") as caught:
            load_arrays(bad)
        assert "\n" not in str(caught.value)
    rng = np.random.default_rng(0)
    for position in range(0, len(whole) - 64, 2):
        for value in (0, 255, int(rng.integers(256))):
            bad.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                load_arrays(bad)
            except FileError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.safetensors", None, "m.safetensors: no such file or directory"),
        ("m.gguf", b"", "m.gguf: is empty (0 bytes)"),
        (
            "m.gguf",
            b"GGML" + bytes(40),
            "m.gguf: starts with b'GGML' and has 44 bytes; a .gguf file starts with b'GGUF'",
        ),
        ("m.gguf", b"GGUF\3\0\0\0" + b"\xff" * 16, "which 24 bytes cannot hold"),
        ("m.safetensors", b"\xff" * 30, "m.safetensors: is no whole safetensors file"),
        ("m.bin", b"x", "m.bin: suffix .bin is not known; need .safetensors or .gguf"),
    ],
)
def test_bad_files_have_names(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError) as caught:
        load_arrays(tmp_path / name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_types_that_numpy_does_not_know(tmp_path):
    header = b'{"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}'
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(FileError, match=r"m.safetensors: array 'w' is F8_E4M3; must be one of F64 F32 F16 BF16 I64"):
        load_arrays(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("name", "arrays", "metadata", "message"),
    [
        ("m.gguf", {"a": np.zeros(1, "u1")}, {}, "array 'a' is uint8; a .gguf file holds float32"),
        ("m.safetensors", {"a": np.array(["x"])}, {}, "array 'a' is <U1; a .safetensors file holds int64 float64"),
        ("m.gguf", {"a" * 64: np.zeros(1)}, {}, "has 64 bytes; a .gguf file takes 63"),
        ("m.gguf", {"a": np.zeros((1,) * 5)}, {}, "tensor 'a' has 5 axes; a .gguf file takes 4"),
        ("m.gguf", {"a": np.zeros((2, 0))}, {}, "tensor 'a' of shape [2, 0] is empty"),
        ("m.safetensors", {"": np.zeros(1)}, {}, "array name '' is not usable"),
        ("m.safetensors", {"__metadata__": np.zeros(1)}, {}, "is taken by the format"),
        ("m.safetensors", {"a\udcff": np.zeros(1)}, {}, "is no text of UTF-8"),
        ("m.safetensors", {}, {"a": 1}, "metadata 'a' is int; need texts"),
        ("m", {}, {}, "suffix (none) is not known"),
        ("none/m.gguf", {}, {}, "does not exist; create it or choose another place"),
    ],
)
def test_bad_saves_leave_the_old_file(tmp_path, name, arrays, metadata, message):
    path = tmp_path / name
    if path.parent.exists():
        path.write_bytes(b"old")
    with pytest.raises(FileError) as caught:
        save_arrays(path, arrays, metadata)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not path.parent.exists() or path.read_bytes() == b"old"
    assert [f for f in os.listdir(tmp_path) if f != name] == []


FULL_DISK = """
import resource, sys
import numpy as np
from gradloom.base.errors import FileError
from gradloom.files import save_arrays, atomic_write
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    if sys.argv[1].endswith(".txt"):
        with atomic_write(sys.argv[1]) as file:
            file.write(bytes(40000))
    else:
        save_arrays(sys.argv[1], {"w": np.zeros(100000, "f4")})
except FileError as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".txt"])
@pytest.mark.parametrize("old", [True, False])
def test_full_disk(tmp_path, suffix, old):
    path = tmp_path / f"m{suffix}"
    if old:
        path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, path], env=ENV, capture_output=True, text=True, check=True)
    need = {".gguf": " (400128 bytes needed)", ".safetensors": " (400072 bytes needed)"}.get(suffix, "")
    kept = "the file of that name is as it was" if old else "no part of it is left behind"
    hint = "raise the limit of the size of a file (`ulimit -f`), or choose a file system that takes larger files"
    assert done.stdout == f"{path}: cannot be written{need}: file too large; {kept}; {hint}\n"
    assert os.listdir(tmp_path) == ([path.name] if old else [])
    assert not old or path.read_bytes() == b"old"


def test_anything_that_interrupts_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as file:
        file.write(b"old")
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error), atomic_write(path) as file:
            file.write(b"new")
            raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.txt"]


def test_modes_and_links_are_kept(tmp_path):
    path, link = tmp_path / "a", tmp_path / "link"
    link.symlink_to(path)
    old = os.umask(0o027)
    try:
        with atomic_path(link) as part:
            part.write_bytes(b"1")
    finally:
        os.umask(old)
    assert link.is_symlink() and path.read_bytes() == b"1" and path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    with atomic_write(path) as file:
        file.write(b"2")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileError, match="is a folder; need the name of a file to write"), atomic_write(tmp_path):
        pass
