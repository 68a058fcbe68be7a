"""The GGUF reader and writer: against the gguf package, and against files that are wrong."""

import contextlib
import os
import struct
import subprocess
import sys
import time

import gguf
import ml_dtypes
import numpy as np
import pytest

from gradloom.base.errors import FileError
from gradloom.files import gguf_types, open_gguf, write_gguf
from gradloom.files.gguf_fields import VALUE_KINDS, Field, field
from gradloom.files.gguf_types import KINDS, PLAIN
from tests import processes
from tests.real_data import need

from .gguf_bytes import ARRAY, BOOL, F32, SMALL, STRING, U8, U32, U64, head, key, model, tensor, text

ENV = processes.environment()
REAL = ["stories260K.gguf", *(f"vocab/ggml-vocab-{name}.gguf" for name in ("llama-spm", "llama-bpe", "gpt-2", "qwen2"))]


def write(path, content):
    path.write_bytes(content)
    return path


# -- reading -----------------------------------------------------------------------------------------------------------


def test_all_types_are_those_of_the_package():
    theirs = {(t.value, t.name.lower(), *size) for t, size in gguf.GGML_QUANT_SIZES.items()}
    assert theirs <= {(number, *rest) for number, rest in gguf_types.TYPES.items()}


def test_a_small_file(tmp_path):
    file = open_gguf(write(tmp_path / "m.gguf", SMALL))
    assert (file.version, file.alignment, file.size) == (3, 32, len(SMALL))
    assert file.metadata["general.architecture"] == "llama" and file.metadata["llama.block_count"] == 2
    assert file.metadata["names"] == ["a", "", "ü"] and file.metadata["flag"] is True
    assert file.metadata["scores"].tolist() == [0.5, -1] and not file.metadata["scores"].flags.writeable
    assert [list(v) for v in file.metadata["deep"]] == [[1, 2, 3], []]
    assert list(file.metadata) == ["general.architecture", "llama.block_count", "names", "scores", "deep", "flag"]
    assert file.metadata.get("none") is None and "none" not in file.metadata
    assert [(t.name, t.kind, t.shape, t.bytes) for t in file.tensors.values()] == [
        ("w", "f32", (2, 4), 32),
        ("q", "q8_0", (1, 32), 34),
        ("b", "bf16", (3,), 6),
    ]
    assert file.array("w").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]] and file.array("b").dtype == ml_dtypes.bfloat16
    for name in file.tensors:
        assert file.bytes(name).ctypes.data % 2 == 0 and not file.bytes(name).flags.writeable
        assert file.bytes(name).tobytes() == SMALL[file.tensors[name].offset :][: file.tensors[name].bytes]
    with pytest.raises(FileError, match=r"m\.gguf: array 'q' is quantised \(q8_0\); need f32 f16"):
        file.array("q")
    with pytest.raises(FileError, match=r"m\.gguf: has no tensor 'z'; it has 3 others"):
        file.bytes("z")
    assert "3 tensors" in repr(file)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_files_are_read_as_the_package_reads_them(name):
    path = need(f"gguf/{name}")
    begin = time.perf_counter()
    file = open_gguf(path)
    assert time.perf_counter() - begin < 2  # some 0.05 s when the machine is free
    if file.size > 5_000_000:
        return  # which the package takes long to read
    theirs = gguf.GGUFReader(path)
    keys = [k for k in theirs.fields if not k.startswith("GGUF.")]
    assert list(file.fields) == keys
    for k in keys:
        value = file.metadata[k]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == theirs.fields[k].contents(), k
    assert list(file.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        mine = file.tensors[t.name]
        assert (mine.kind, mine.shape) == (t.tensor_type.name.lower(), tuple(reversed(t.shape.tolist())))
        assert file.bytes(t.name).tobytes() == t.data.tobytes()


def test_oddities_of_real_files():
    metadata = open_gguf(need("gguf/stories260K.gguf")).metadata
    assert metadata["tokenizer.ggml.padding_token_id"] == 4294967295 and "llama.rope.freq_base" not in metadata
    assert open_gguf(need(f"gguf/{REAL[1]}")).tensors == {}  # ends before its data would begin


def test_rows_as_floats(tmp_path):
    """Every kind that the package can dequantise, whole and in part; a copy."""
    rng = np.random.default_rng(0)
    tensors, expected = {}, {}
    for kind, (block, size) in KINDS.items():
        data = rng.integers(0, 60, (2, 3, 2 * size), np.uint8)  # scales stay finite
        tensors[kind] = (kind, (2, 3, 2 * block), data)
        if kind in PLAIN:
            expected[kind] = data.view(PLAIN[kind]).astype("f4")
        else:
            with contextlib.suppress(NotImplementedError):
                expected[kind] = gguf.dequantize(data, gguf.GGMLQuantizationType[kind.upper()])
    write_gguf(tmp_path / "m.gguf", {}, tensors)
    file = open_gguf(tmp_path / "m.gguf")
    assert {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k", "iq4_xs"} <= set(expected)
    for kind, values in expected.items():
        got = file.floats(kind)
        assert got.dtype == np.float32 and got.flags.writeable and got.shape == (6, tensors[kind][1][-1]), kind
        assert got.tobytes() == np.ascontiguousarray(values).tobytes(), kind
        assert file.floats(kind, 2, 5).tobytes() == got[2:5].tobytes(), kind
    with pytest.raises(FileError, match=r"tensor 'q8_k' is q8_k, which cannot be dequantised"):
        file.floats("q8_k")


def test_versions_2_and_3(tmp_path):
    for version in (2, 3):
        assert open_gguf(write(tmp_path / "m.gguf", SMALL[:4] + bytes([version]) + SMALL[5:])).version == version


def test_other_alignments(tmp_path):
    for alignment in (1, 8, 64, 4096):
        keys = [key("general.alignment", U32, struct.pack("<I", alignment))]
        records = [tensor("a", (3,), 24, 0), tensor("b", (1,), 0, -(-3 // alignment) * alignment)]
        data = b"abc" + bytes(-3 % alignment) + struct.pack("<f", 2)
        file = open_gguf(write(tmp_path / "m.gguf", model(keys, records, data, alignment)))
        assert file.alignment == alignment and file.array("b").tolist() == [2]
        assert file.bytes("a").tobytes() == b"abc"


def test_tensors_in_any_order_and_with_gaps(tmp_path):
    records = [tensor("late", (1,), 0, 64), tensor("first", (1,), 0, 0)]
    file = open_gguf(write(tmp_path / "m.gguf", model([], records, struct.pack("<f60xf", 1, 2))))
    assert file.array("late") == 2 and file.array("first") == 1


def test_changed_files_are_noticed(tmp_path):
    path = write(tmp_path / "m.gguf", SMALL)
    file = open_gguf(path)
    file.check()
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileError, match=r"m\.gguf: has changed since it was opened \(written to\); open it again"):
        file.check()
    file = open_gguf(path)
    with open(path, "ab") as more:
        more.write(b"x")
    with pytest.raises(FileError, match=f"{len(SMALL)} bytes then, {len(SMALL) + 1} now"):
        file.check()


def test_replaced_files_stay_readable(tmp_path):
    """What is mapped is the file that was opened: another one of its name does not reach it."""
    path = write(tmp_path / "m.gguf", SMALL)
    file = open_gguf(path)
    write_gguf(path, {}, {})
    file.check()
    assert file.array("w").sum() == 28 and open_gguf(path).tensors == {}


# -- bad files have names ----------------------------------------------------------------------------------------------

ARCHITECTURE = key("general.architecture", STRING, "llama")
ONE = tensor("w", (4,), 0, 0)
BAD = {
    "bad magic": (b"GGML" + SMALL[4:], "starts with b'GGML' and has {size} bytes; a .gguf file starts with b'GGUF'"),
    "empty": (b"", "is empty (0 bytes); need a .gguf file"),
    "one byte": (b"G", "starts with b'G' and has 1 bytes; a .gguf file starts with b'GGUF'"),
    "no head": (SMALL[:20], "ends inside its head of 24 bytes, after 20 (byte 20); copy or download it again"),
    "version 1": (
        head(0, 0, 1),
        "has GGUF version 1 (byte 4); need 2 or 3: convert the model again with a current tool",
    ),
    "version 99": (
        head(0, 0, 99),
        "has GGUF version 99 (byte 4); need 2 or 3: convert the model again with a current tool",
    ),
    "big-endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "is big-endian (byte 4); need a little-endian file: convert it where it was made",
    ),
    "too many tensors": (
        head(1 << 60, 0) + bytes(100),
        "its head counts 1152921504606846976 tensors and 0 keys, which 124 bytes cannot hold (byte 8)",
    ),
    "too many keys": (
        head(0, 9) + bytes(100),
        "its head counts 0 tensors and 9 keys, which 124 bytes cannot hold (byte 8)",
    ),
    "cut in a key's name": (
        head(0, 1) + struct.pack("<Q", 40) + b"general.arch",
        "ends in the name of key 0 of 1, which has 40 bytes of which 12 are there (byte 32); "
        "the file is cut or damaged",
    ),
    "a name of absurd length": (
        head(0, 1) + struct.pack("<Q", 1 << 62) + bytes(20),
        "the name of key 0 of 1 has 4611686018427387904 bytes (byte 24); need at most 65535",
    ),
    "a text of absurd length": (
        model([text("k") + struct.pack("<IQ", STRING, 1 << 63)]),
        "ends in the text of key 'k', which has 9223372036854775808 bytes of which 0 are there (byte 45); "
        "the file is cut or damaged",
    ),
    "a name that is no text": (
        model([key(b"\xff\xfe", U8, b"\0")]),
        "the name of key 0 of 1 is no UTF-8 text (byte 32)",
    ),
    "a key twice": (model([ARCHITECTURE, ARCHITECTURE]), "key 'general.architecture' appears twice (byte 69)"),
    "an unknown kind of value": (
        model([key("k", 13, b"\0")]),
        "key 'k' has a value of kind 13 (byte 33); need 0 to 12",
    ),
    "an array of an unknown kind": (
        model([key("k", ARRAY, struct.pack("<IQ", 77, 0))]),
        "key 'k' is an array of kind 77; need 0 to 12 (byte 37)",
    ),
    "an array beyond the end": (
        model([key("k", ARRAY, struct.pack("<IQ", F32, 1 << 61))]),
        "key 'k' has 2305843009213693952 items of kind f32, which 0 bytes cannot hold (byte 37)",
    ),
    "an array cut in its head": (model([key("k", ARRAY, bytes(11))]), "key 'k' ends in the head of an array (byte 37)"),
    "a string of an array beyond the end": (
        model([key("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("ab") + struct.pack("<Q", 99) + b"a")]),
        "key 'k' item 1 has 99 bytes, of which 1 are there (byte 59)",
    ),
    "an array of strings cut before one": (
        model([key("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("abcdefgh"))]),
        "key 'k' ends before its string 1 of 2 (byte 65)",
    ),
    "arrays in arrays in arrays": (
        model([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9)]),
        "key 'k' holds arrays in arrays, 5 deep; need at most 4 (byte 73)",
    ),
    "a bool of value 2": (
        model([key("k", BOOL, b"\2")]),
        "key 'k' is a bool of value 2 (byte 37); need 0 or 1",
    ),
    "a bool of value 2 in an array": (
        model([key("k", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\0\2")]),
        "key 'k' holds a bool that is neither 0 nor 1 (byte 37)",
    ),
    "an alignment that is no power of two": (
        model([key("general.alignment", U32, struct.pack("<I", 24))]),
        "general.alignment is 24 of kind u32; need a power of two of kind u32",
    ),
    "an alignment of 0": (
        model([key("general.alignment", U32, bytes(4))]),
        "general.alignment is 0 of kind u32; need a power of two of kind u32",
    ),
    "an alignment of another kind": (
        model([key("general.alignment", U64, struct.pack("<Q", 32))]),
        "general.alignment is 32 of kind u64; need a power of two of kind u32",
    ),
    "a tensor twice": (
        model([], [ONE, ONE], bytes(16)),
        "tensor 'w' appears twice (byte 57)",
    ),
    "an unknown type": (
        model([], [tensor("blk.0.w", (4,), 4, 0)], bytes(16)),
        "tensor 'blk.0.w' has type 4, which is not known (byte 51); must be one of ggml's 34 types, 0 to 41",
    ),
    "too many axes": (
        model([], [tensor("w", (1, 1, 1, 1, 2), 0, 0)], bytes(16)),
        "tensor 'w' has 5 axes (byte 33); need at most 4",
    ),
    "axes without end": (
        model([], [text("w") + struct.pack("<IQQ", 1 << 31, 1, 0)], bytes(16)),
        "tensor 'w' has 2147483648 axes (byte 33); need at most 4",
    ),
    "a size of 0": (
        model([], [tensor("w", (4, 0), 0, 0)], bytes(16)),
        "tensor 'w' has shape [0, 4] (byte 37); need sizes of at least 1, below 2^63 in all",
    ),
    "a size that is negative": (
        model([], [tensor("w", (1, (1 << 64) - 4), 0, 0)], bytes(16)),
        "tensor 'w' has shape [18446744073709551612, 1] (byte 37); need sizes of at least 1, below 2^63 in all",
    ),
    "sizes whose product wraps around": (
        model([], [tensor("w", (1 << 32, 1 << 32), 0, 0)], bytes(16)),
        "tensor 'w' has shape [4294967296, 4294967296] (byte 37); need sizes of at least 1, below 2^63 in all",
    ),
    "bytes that wrap around": (
        model([], [tensor("w", (1 << 62,), 0, 0)], bytes(16)),
        "tensor 'w' (f32[4611686018427387904]) ends at byte 18446744073709551680 of 80 (byte 24); "
        "the file is cut or damaged",
    ),
    "rows that are no whole blocks": (
        model([], [tensor("w", (16, 2), 8, 0)], bytes(64)),
        "tensor 'w' is q8_0[2, 16] (byte 37); need rows that are multiples of 32",
    ),
    "an unaligned offset": (
        model([], [tensor("w", (4,), 0, 4)], bytes(64)),
        "tensor 'w' lies at offset 4 (byte 49); need a multiple of 32",
    ),
    "a tensor beyond the end": (
        model([], [ONE, tensor("v", (4,), 0, 32)], bytes(40)),
        "tensor 'v' (f32[4]) ends at byte 144 of 136 (byte 57); the file is cut or damaged",
    ),
    "an offset beyond everything": (
        model([], [tensor("w", (4,), 0, (1 << 64) - 32)], bytes(16)),
        "tensor 'w' (f32[4]) ends at byte 18446744073709551664 of 80 (byte 24); the file is cut or damaged",
    ),
    "tensors that overlap": (
        model([], [tensor("w", (16,), 0, 0), tensor("v", (4,), 0, 32)], bytes(64)),
        "tensor 'v' begins inside 'w', which ends at byte 160 (byte 128)",
    ),
    "tensors in one place": (
        model([], [ONE, tensor("v", (4,), 0, 0)], bytes(16)),
        "tensor 'v' begins inside 'w', which ends at byte 112 (byte 96)",
    ),
    "cut in a tensor's record": (
        head(1, 0) + ONE[:-5],
        "ends in the record of tensor 'w', which has 8 bytes of which 3 are there (byte 49); "
        "the file is cut or damaged",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_have_names(tmp_path, name):
    content, message = BAD[name]
    path = write(tmp_path / "bad.gguf", content)
    with pytest.raises(FileError) as caught:
        open_gguf(path)
    assert str(caught.value) == f"{path}: {message.format(size=len(content))}"


def test_truncated_at_every_byte(tmp_path):
    """All that lies before the end of the last tensor is needed."""
    end = len(SMALL) - 26
    for length in range(end):
        with pytest.raises(FileError) as caught:
            open_gguf(write(tmp_path / "bad.gguf", SMALL[:length]))
        assert "\n" not in str(caught.value) and str(tmp_path / "bad.gguf") in str(caught.value)
    open_gguf(write(tmp_path / "good.gguf", SMALL[:end]))


def test_texts_that_are_no_text(tmp_path):
    """Texts are decoded when they are asked for; the file opens, and can be copied."""
    array = key("a", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + text(b"ab\xff"))
    file = open_gguf(write(tmp_path / "m.gguf", model([key("s", STRING, text(b"\xc3")), array])))
    with pytest.raises(FileError, match=r"m\.gguf: key 's' is no UTF-8 text \(unexpected end of data at its byte 0\)$"):
        file.metadata["s"]
    with pytest.raises(
        FileError, match=r"m\.gguf: key 'a' item 1 is no UTF-8 text \(invalid start byte at its byte 2\)$"
    ):
        file.metadata["a"]
    write_gguf(tmp_path / "n.gguf", file.fields, {})
    assert (tmp_path / "n.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileError, match="none.gguf: no such file or directory"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(FileError, match="is a folder; need a file"):
        open_gguf(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe: is no regular file, which is what can be mapped; copy it into one"):
        open_gguf(tmp_path / "pipe")
    with pytest.raises(FileError, match=r"cannot be read \(.*embedded null"):
        open_gguf("a\0b")


NO_ROOM = """
import resource, sys
from gradloom.base.errors import FileError
from gradloom.files import open_gguf
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
try:
    open_gguf(sys.argv[1])
except FileError as error:
    print(error)
"""


def test_a_file_larger_than_the_address_space(tmp_path):
    path = tmp_path / "m.gguf"
    with open(path, "wb") as file:
        file.write(SMALL)
        file.truncate(1 << 33)  # a hole: nothing is stored
    done = subprocess.run([sys.executable, "-c", NO_ROOM, path], env=ENV, capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}: cannot be mapped (Cannot allocate memory)\n"


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_written_again_exactly(tmp_path, name):
    """Keys, kinds, tensors, bytes: all of it, and what the package sees in it."""
    path = need(f"gguf/{name}")
    file = open_gguf(path)
    tensors = {t.name: (t.kind, t.shape, file.bytes(t.name)) for t in file.tensors.values()}
    size = write_gguf(tmp_path / "m.gguf", file.fields, tensors)
    again = open_gguf(tmp_path / "m.gguf")
    assert size == again.size and again.fields == file.fields and list(again.tensors) == list(file.tensors)
    for name in tensors:
        assert again.tensors[name].kind == file.tensors[name].kind
        assert again.bytes(name).tobytes() == file.bytes(name).tobytes()
    before, after = path.read_bytes(), (tmp_path / "m.gguf").read_bytes()
    assert after == before[:4] + b"\3" + before[5:]


def package_file(path, alignment=None):
    """A file of all kinds, by the gguf package, and the same by ours: (fields, tensors)."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    fields = {"general.architecture": field("string", "llama")}
    if alignment:
        writer.add_custom_alignment(alignment)
        fields["general.alignment"] = field("u32", alignment)
    numbers = {"u8": 255, "i8": -128, "u16": 65535, "i16": -2, "u32": 2**32 - 1, "i32": -(2**31), "u64": 2**64 - 1}
    numbers |= {"i64": -(2**63), "f32": 0.1, "f64": 1 / 3, "bool": True}
    names = dict(zip(VALUE_KINDS, gguf.GGUFValueType, strict=True))
    for kind, value in numbers.items():
        writer.add_key_value(f"a.{kind}", value, names[kind])
        fields[f"a.{kind}"] = field(kind, value)
    writer.add_array("texts", ["", "ü", "x" * 300])
    fields["texts"] = field("array", ["", "ü", "x" * 300], "string")
    writer.add_array("ints", [1, -2])
    fields["ints"] = field("array", [1, -2], "i32")
    writer.add_array("floats", [0.5, 2.0])
    fields["floats"] = field("array", np.array([0.5, 2]), "f32")
    writer.add_array("flags", [True, False])
    fields["flags"] = field("array", [True, False], "bool")
    tensors = {}
    for kind, dtype in PLAIN.items():
        array = (rng.normal(size=(3, 1, 5)) * 9).astype(dtype)
        raw = gguf.GGMLQuantizationType.BF16 if kind == "bf16" else None
        writer.add_tensor(kind, array.view("i2") if raw else array, raw_dtype=raw)
        tensors[kind] = array
    for kind, (block, size) in KINDS.items():
        if block > 1:
            data = rng.integers(0, 256, (2, 3, 2 * size), np.uint8)
            writer.add_tensor(kind, data, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
            tensors[kind] = (kind, (2, 3, 2 * block), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return fields, tensors


@pytest.mark.parametrize("alignment", [None, 64])
def test_the_same_bytes_as_the_package(tmp_path, alignment):
    """All kinds of values and all types of tensors: the package's file is ours, and is read as what was written."""
    fields, tensors = package_file(tmp_path / "theirs.gguf", alignment)
    write_gguf(tmp_path / "ours.gguf", fields, tensors)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
    file = open_gguf(tmp_path / "theirs.gguf")
    assert file.fields == fields and file.metadata["a.u64"] == 2**64 - 1 and file.metadata["flags"].tolist() == [1, 0]
    for name, given in tensors.items():
        if isinstance(given, tuple):
            assert (file.tensors[name].kind, file.tensors[name].shape) == given[:2]
            assert file.bytes(name).tobytes() == given[2].tobytes()
        else:
            assert file.array(name).dtype == given.dtype and file.array(name).tobytes() == given.tobytes()


def test_what_the_package_cannot_write(tmp_path):
    fields = {
        "empty": field("string", ""),
        "none": field("array", [], "i32"),
        "no texts": field("array", [], "string"),
        "shorts": field("array", [1, 2], "u16"),
    }
    write_gguf(tmp_path / "m.gguf", fields, {"scalar": np.float32(3), "swapped": np.arange(3, dtype=">i4")})
    file = open_gguf(tmp_path / "m.gguf")
    assert file.fields == fields
    assert [v if isinstance(v, str) else list(v) for v in file.metadata.values()] == ["", [], [], [1, 2]]
    assert file.metadata["shorts"].dtype == np.uint16
    assert file.array("scalar").shape == () and file.array("scalar") == 3
    assert file.array("swapped").tolist() == [0, 1, 2]


def test_nested_arrays_are_kept(tmp_path):
    file = open_gguf(write(tmp_path / "m.gguf", SMALL))
    write_gguf(tmp_path / "n.gguf", file.fields, {})
    again = open_gguf(tmp_path / "n.gguf")
    assert again.fields == file.fields and again.fields["deep"].item == "array"


def test_strided_tensors_and_functions(tmp_path):
    array = np.arange(24, dtype="f4").reshape(4, 6)
    made = []

    def make():
        made.append(1)
        yield array[:1].tobytes()
        yield array[1:]

    write_gguf(tmp_path / "m.gguf", {}, {"t": array.T[::2], "f": ("f32", (4, 6), make)})
    file = open_gguf(tmp_path / "m.gguf")
    assert (file.array("t") == array.T[::2]).all() and (file.array("f") == array).all() and made == [1]


@pytest.mark.parametrize(
    ("fields", "tensors", "message"),
    [
        ({}, {"a" * 64: np.zeros(1)}, "tensor '" + "a" * 64 + "' has 64 bytes; a .gguf file takes 63"),
        ({}, {"a": np.zeros((1,) * 5)}, "tensor 'a' has 5 axes; a .gguf file takes 4"),
        ({}, {"a": np.zeros((2, 0))}, "tensor 'a' of shape [2, 0] is empty; a .gguf file needs elements"),
        ({}, {"a": np.zeros(1, "u1")}, "tensor 'a' is uint8; a .gguf file holds float32 float16 bfloat16 float64"),
        ({}, {"a": ("q9_0", (1,), b"")}, "tensor 'a' is of type 'q9_0'; must be one of f32 f16 q4_0"),
        (
            {},
            {"a": ("q8_0", (2, 16), b"")},
            "tensor 'a' is q8_0[2, 16]: rows are stored in blocks of 32; need a multiple of it",
        ),
        ({"k" * 70000: field("u8", 1)}, {}, "has 70000 bytes; a .gguf file takes 65535"),
        (
            {"general.alignment": field("u32", 24)},
            {},
            "general.alignment is Field(u32 24); need a power of two of kind u32",
        ),
    ],
)
def test_bad_files_are_not_written(tmp_path, fields, tensors, message):
    path = write(tmp_path / "m.gguf", b"old")
    with pytest.raises(FileError) as caught:
        write_gguf(path, fields, tensors)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    ("kind", "value", "item", "message"),
    [
        ("u8", 256, None, "metadata [256]: does not fit u8"),
        ("u32", -1, None, "metadata [-1]: does not fit u32"),
        ("u32", 1.5, None, "metadata [1.5]: does not fit u32"),
        ("bool", 1, None, "metadata [1]: does not fit bool"),
        ("f32", "x", None, "metadata ['x']: does not fit f32"),
        ("string", 3, None, "metadata value 3 is int; need a text"),
        ("string", "\udc80", None, r"metadata value '\udc80' is no UTF-8 text (surrogates not allowed)"),
        ("array", [1], "array", "metadata array of 'array': is not known; must be one of string, u8"),
        ("array", [[1]], "u8", "metadata of kind u8 has 2 axes; need one"),
        ("array", ["a", 1], "string", "metadata value 1 is int; need a text"),
        ("f16", 1, None, "metadata kind 'f16' is not known; must be one of u8, i8"),
    ],
)
def test_bad_fields(kind, value, item, message):
    with pytest.raises(FileError) as caught:
        field(kind, value, item)
    assert str(caught.value).startswith(message)


def test_fields_compare_by_their_bytes():
    assert field("u32", 1) == field("u32", 1) != field("i32", 1)
    assert field("u32", 1) != 1
    assert repr([field("array", ["a"], "string"), field("f32", 0.5)]) == "[Field(string[1]), Field(f32 0.5)]"
    assert Field("u8", b"\7").value == 7


FULL_DISK = """
import resource, sys
from gradloom.base.errors import FileError
from gradloom.files import write_gguf
resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
tensors = {f"w{i}": ("f32", (10000,), lambda: [bytes(40000)]) for i in range(10)}
try:
    write_gguf(sys.argv[1], {}, tensors)
except FileError as error:
    print(error)
"""


@pytest.mark.parametrize("old", [True, False])
def test_full_disk(tmp_path, old):
    path = tmp_path / "m.gguf"
    if old:
        path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, path], env=ENV, capture_output=True, text=True, check=True)
    kept = "the file of that name is as it was" if old else "no part of it is left behind"
    assert "bytes needed): file too large; " + kept in done.stdout and done.stdout.count("\n") == 1
    assert os.listdir(tmp_path) == (["m.gguf"] if old else []) and (not old or path.read_bytes() == b"old")


def test_a_disk_too_small_is_said_before_the_work(tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))

    def never():
        raise AssertionError("worked for nothing")

    with pytest.raises(FileError, match=r"cannot be written \(40064 bytes needed\): no space left on device"):
        write_gguf(tmp_path / "m.gguf", {}, {"w": ("f32", (10000,), never)})
    assert os.listdir(tmp_path) == []


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
    import tracemalloc

    array = np.zeros(250_000, "f4")
    tensors = {f"w{i}": ("f32", array.shape, lambda: [array.copy()]) for i in range(20)}
    tracemalloc.start()
    write_gguf(tmp_path / "m.gguf", {}, tensors)
    file = open_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "n.gguf", file.fields, {n: (t.kind, t.shape, file.bytes(n)) for n, t in file.tensors.items()})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * array.nbytes and (tmp_path / "n.gguf").stat().st_size > 20 * array.nbytes


@pytest.mark.parametrize("kind", sorted(set(gguf_types._SCALES) - {"q8_1"}))
def test_scales_that_are_not_finite_are_where_the_gguf_package_reads_them(tmp_path, kind):
    block, size = KINDS[kind]
    number = gguf.GGMLQuantizationType[kind.upper()]
    for place in gguf_types._SCALES[kind]:
        data = np.ones((3, 2 * size), np.uint8)
        assert (
            np.isfinite(gguf.dequantize(data, number)).all() and gguf_types.first_not_finite(kind, data.ravel()) is None
        )
        data[1, size + place : size + place + 2] = np.array([np.inf], "<f2").view(np.uint8)
        with np.errstate(all="ignore"):
            values = gguf.dequantize(data, number)
        assert (~np.isfinite(values)).nonzero()[0].tolist() != [] and np.isfinite(values[0]).all()
        path = tmp_path / "m.gguf"
        with pytest.raises(FileError, match=rf"'t' .* inf at \[1, {block}\]"):
            write_gguf(path, {}, {"t": (kind, (3, 2 * block), data)}, finite=True)
        assert not path.exists()
        write_gguf(path, {}, {"t": (kind, (3, 2 * block), data)})
        path.unlink()
