"""gradloom info and gradloom merge."""

import json
import struct

import numpy as np
import pytest

from examples.random_gguf import SHAPES, write_random
from gradloom.cli.info import _ranges
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.files.gguf_types import KINDS
from gradloom.llm.adapter_arrays import AdapterArrays
from gradloom.llm.adapter_gguf import write_adapter_gguf
from tests.cli.command import run
from tests.real_data import need


@pytest.fixture
def model(tmp_path):
    return write_random(tmp_path / "m.gguf", "llama", "q8_0", tied=False, chat=True, **SHAPES["tiny"])


@pytest.fixture
def adapter(tmp_path, model):
    base = open_gguf(model)
    pairs = {}
    for name in ("blk.0.attn_q.weight", "blk.1.attn_q.weight"):
        n_out, n_in = base.tensors[name].shape
        pairs[name] = np.ones((4, n_in), "f4"), np.ones((n_out, 4), "f4")
    write_adapter_gguf(tmp_path / "a.gguf", AdapterArrays("llama", 8.0, pairs))
    return tmp_path / "a.gguf"


def test_info_of_a_model(capsys, model):
    code, out, err = run(capsys, "info", model, "--json")
    found = json.loads(out.splitlines()[-1])
    assert (code, err) == (0, "")
    size = model.stat().st_size
    assert f"m.gguf: GGUF version 3, {size:,} bytes" in out
    assert "sizes       layers 2, width 64, heads 4, key-value heads 2, feed-forward 160\n" in out
    assert "context     2048\n" in out and "does not run" not in out
    assert "vocabulary  512 pieces, model llama, " in out and ", chat template\n" in out
    assert "blk.0-1.attn_q.weight       q8_0  [64, 64]    8,704  x 2\n" in out
    assert found["parameters"] == sum(int(np.prod(t["shape"])) for t in found["tensors"]) and found["bytes"] == size
    assert found["types"]["q8_0"]["tensors"] == 16 and found["types"]["f32"]["tensors"] == 5
    assert sum(t["bytes"] for t in found["types"].values()) == sum(t["bytes"] for t in found["tensors"])
    assert 8.4 < found["bits_per_weight"] < 8.7
    assert (found["layers"], found["kv_heads"], found["context_length"], found["vocabulary"]) == (2, 2, 2048, 512)
    assert found["supported"] and found["chat_template"] and found["kind"] == "model"
    assert found["metadata"]["tokenizer.ggml.tokens"]["count"] == 512


def test_info_of_each_tensor_and_key(capsys, model):
    file = open_gguf(model)
    code, out, _ = run(capsys, "info", model, "--tensors", "--keys")
    assert code == 0 and "x 2" not in out
    for tensor in file.tensors.values():
        line = next(line for line in out.splitlines() if line.startswith(tensor.name + " "))
        assert line.split()[1] == tensor.kind and line.endswith(f"{tensor.bytes:,}  at {tensor.offset:,}")
    for key in file.metadata:
        assert f"\n{key} " in out


def test_info_of_an_adapter(capsys, adapter):
    code, out, _ = run(capsys, "info", adapter, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and "low rank    lora, rank 4, scale 8 / rank, 2 pairs\n" in out
    assert "blk.0-1.attn_q.weight.lora_a  f32   [4, 64]  2,048  x 2\n" in out
    assert (found["kind"], found["alpha"], found["ranks"]) == ("adapter", 8.0, [4])
    assert found["targets"] == ["blk.0.attn_q.weight", "blk.1.attn_q.weight"] and "context_length" not in found


def test_info_of_what_is_not_run_here(capsys, tmp_path):
    write_gguf(
        tmp_path / "m.gguf", {"general.architecture": field("string", "bert\n\x1b[2J")}, {"a.b.c": np.ones(3, "f4")}
    )
    code, out, _ = run(capsys, "info", tmp_path / "m.gguf")
    assert code == 0 and "gradloom does not run this architecture\n" in out and "a.b.c" in out
    assert "model       bert ?[2J\n" in out and "\x1b" not in out
    write_gguf(tmp_path / "m.gguf", {"general.file_type": field("array", [1, 2], "u32")}, {})
    code, out, _ = run(capsys, "info", tmp_path / "m.gguf", "--json")
    assert code == 0 and "vocabulary  of no architecture\n" in out and "file type   unknown (array([1, 2]" in out


def test_info_of_real_files(capsys):
    code, out, _ = run(capsys, "info", need("gguf/stories260K.gguf"))
    assert code == 0 and "parameters  292,800, 32.00 bits each\n" in out and "4294967295" not in out
    code, out, _ = run(capsys, "info", need("gguf/vocab/ggml-vocab-qwen2.gguf"))
    assert code == 0 and "vocabulary  151936 pieces, model gpt2, split as qwen2, begin 151643" in out
    assert "rope        base 1e+06\n" in out and "tensor" not in out


def test_info_of_files_that_say_little_or_odd_things(capsys, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, {}, {})
    for option in ("--keys", "--tensors", "--json"):
        code, out, err = run(capsys, "info", path, option)
        assert (code, err) == (0, "") and "vocabulary  of no architecture\n" in out
    head, end = b"GGUF" + struct.pack("<IQQ", 3, 1, 2), struct.pack("<I", 6) + bytes(9)
    nested = struct.pack("<Q", 1) + b"n" + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQI", 4, 1, 7)
    adapter = struct.pack("<Q", 12) + b"general.type" + struct.pack("<IQ", 8, 7) + b"adapter"
    scalar = struct.pack("<Q", 8) + b"x.lora_b" + struct.pack("<IIQ", 0, 0, 0)
    path.write_bytes((head + nested + adapter + scalar).ljust(160, b"\0") + end)
    code, out, err = run(capsys, "info", path, "--keys", "--json")
    assert (code, err) == (0, "") and json.loads(out.splitlines()[-1])["metadata"]["n"] == {"count": 1, "first": []}


@pytest.mark.parametrize("kind", ["f64", "i8", "i16", "i32", "i64", "q8_1"])
def test_tensors_of_types_that_no_weight_has(capsys, tmp_path, model, adapter, kind):
    """Listed by info; refused by name where they are to be computed with."""
    base = open_gguf(model)
    name, (block, size) = "blk.0.attn_q.weight", KINDS[kind]
    shape = base.tensors[name].shape
    tensors = {n: (t.kind, t.shape, base.bytes(n)) for n, t in base.tensors.items()}
    tensors[name] = (kind, shape, bytes(shape[0] * shape[1] // block * size))
    path, data = tmp_path / "odd.gguf", tmp_path / "t.txt"
    write_gguf(path, base.fields, tensors)
    data.write_text("a text " * 300)
    code, out, _ = run(capsys, "info", path, "--tensors")
    assert code == 0 and f" {kind} " in out
    for command in (
        ("plan", path),
        ("finetune", path, data, "--out", tmp_path / "o.gguf"),
        ("merge", path, adapter, "-o", tmp_path / "o.gguf"),
        ("generate", path, "--prompt", "a"),
    ):
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, "") and err.count("\n") == 1 and f"{path}: tensor '{name}' is {kind}, " in err
        assert not (tmp_path / "o.gguf").exists()


def test_info_of_bad_files(capsys, tmp_path, model):
    code, out, err = run(capsys, "info", tmp_path / "none.gguf")
    assert (code, out) == (2, "") and err == f"gradloom: {tmp_path / 'none.gguf'}: no such file or directory\n"
    model.write_bytes(model.read_bytes()[:5000])
    code, out, err = run(capsys, "info", model)
    assert (code, out) == (2, "") and err.startswith(f"gradloom: {model}: ") and err.count("\n") == 1


def test_ranges():
    assert [_ranges(x) for x in ([0], [0, 1], [0, 1, 2, 3, 5], [2, 4])] == ["0", "0-1", "0-3,5", "2,4"]


def test_merge(capsys, tmp_path, model, adapter):
    out_path = tmp_path / "out.gguf"
    code, out, err = run(capsys, "merge", model, adapter, "-o", out_path, "--type", "f16", "--json")
    result = json.loads(out.splitlines()[-1])
    file = open_gguf(out_path)
    assert (code, err) == (0, "") and f"adapter    {adapter}: 2 tensors changed\n" in out
    assert f"written    {out_path}: {file.size:,} bytes, tensors f16 16, f32 5\n" in out
    assert (result["bytes"], result["changed"], result["type"]) == (file.size, 2, "f16")
    assert result["tensors"] == {"f16": 16, "f32": 5} and result["notes"] == [] and result["seconds"] > 0
    before, after = open_gguf(model).floats("blk.0.attn_q.weight"), file.array("blk.0.attn_q.weight")
    np.testing.assert_array_equal(after, (before + 8).astype("f2"))


def test_merge_says_what_got_another_type(capsys, tmp_path):
    model = write_random(tmp_path / "m.gguf", "llama", "q4_k", **SHAPES["small"])
    pairs = {"blk.0.attn_q.weight": (np.ones((1, 256), "f4"), np.ones((256, 1), "f4"))}
    write_adapter_gguf(tmp_path / "a.gguf", AdapterArrays("llama", 1.0, pairs))
    merged = tmp_path / "merged.gguf"
    code, out, err = run(capsys, "merge", model, tmp_path / "a.gguf", "--out", merged)
    assert code == 0 and err == "1 tensor as q8_0: q4_k cannot be written (blk.0.attn_q.weight)\n"
    assert "1 tensor changed" in out and open_gguf(merged).tensors["blk.0.attn_q.weight"].kind == "q8_0"


def test_merge_shows_its_way_on_a_terminal(capsys, tmp_path, model, adapter, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = run(capsys, "merge", model, adapter, "-o", tmp_path / "out.gguf", "--type", "f32")
    shown = err.split("\r")
    assert code == 0 and shown[1].startswith("  0%  token_embd.weight") and err.endswith("\r\x1b[K") and len(shown) > 16
    shares = [int(text[:4].strip(" %")) for text in shown[1:-1]]
    assert shares == sorted(shares) and 50 < shares[-1] < 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.gguf", "a.gguf"], "gradloom: Missing option "),
        (
            ["m.gguf", "a.gguf", "-o", "o.gguf", "--type", "q4_k"],
            "gradloom: --type q4_k: must be one of f32",
        ),
        (["none.gguf", "a.gguf", "-o", "o.gguf"], "gradloom: none.gguf: no such file or directory"),
        (["m.gguf", "none.gguf", "-o", "o.gguf"], "gradloom: none.gguf: no such file or directory"),
        (["m.gguf", "m.gguf", "-o", "o.gguf"], "gradloom: m.gguf: general.type is '"),
        (["a.gguf", "a.gguf", "-o", "o.gguf"], "gradloom: a.gguf: general.type is 'adapter'; need a model"),
        (["m.gguf", "a.gguf", "-o", "no/o.gguf"], "gradloom: no/o.gguf: the folder "),
    ],
)
def test_bad_merges(capsys, tmp_path, monkeypatch, model, adapter, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "merge", *arguments)
    assert (code, out) == (2, "") and err.startswith(message) and err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "m.gguf"]


def test_adapters_for_another_base(capsys, tmp_path, adapter):
    other = write_random(tmp_path / "other.gguf", "llama", **SHAPES["small"])
    code, _, err = run(capsys, "merge", other, adapter, "-o", tmp_path / "o.gguf")
    assert code == 2 and err == (
        f"gradloom: {adapter}: is for another base: blk.0.attn_q.weight is [256, 256] in {other}; "
        "lora_a [4, 64] and lora_b [64, 4] fit [64, 64]\n"
    )
