"""merge: W + s B A in every type, against the gguf package; what is copied, what is said, what is refused."""

from __future__ import annotations

import importlib
import os
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from examples.random_gguf import SHAPES, write_random
from gradloom.base.dtypes import QUANTISED
from gradloom.base.errors import FileError, SettingError
from gradloom.cli.main import main
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.files.gguf_types import KINDS
from gradloom.llm.adapter_arrays import AdapterArrays
from gradloom.llm.adapter_gguf import write_adapter_gguf
from gradloom.llm.adapter_peft import write_peft
from gradloom.llm.conversion import FILE_TYPES
from gradloom.llm.merge import TYPES, merge
from gradloom.llm.model import load
from gradloom.llm.trained_tensors import TrainedTensors
from tests.real_data import DATA

STORIES = DATA / "gguf" / "stories260K.gguf"
CHANGED = ["blk.0.attn_q.weight", "blk.1.ffn_down.weight", "token_embd.weight", "output.weight"]


def prepare(folder, kind="f32", shape="small", arch="llama", std=0.05, names=CHANGED, **more):
    """(model, adapter's path, adapter)."""
    base = open_gguf(write_random(folder / "m.gguf", arch, kind, tied=False, **SHAPES[shape] | more))
    rng = np.random.default_rng(1)
    pairs = {}
    for name in names:
        n_out, n_in = base.tensors[name].shape
        a, b = rng.normal(size=(4, n_in)) * std, rng.normal(size=(n_out, 4)) * std
        pairs[name] = (b, a.T) if name == "token_embd.weight" else (a, b)
    adapter = AdapterArrays(arch, 8.0, {n: (a.astype("f4"), b.astype("f4")) for n, (a, b) in pairs.items()})
    write_adapter_gguf(folder / "a.gguf", adapter)
    return base, folder / "a.gguf", adapter


def expected(base, adapter, name, kind):
    """The bytes of a merged tensor, in one piece."""
    tensor = base.tensors[name]
    values = gguf.dequantize(
        base.bytes(name).reshape(tensor.shape[0], -1), gguf.GGMLQuantizationType[tensor.kind.upper()]
    )
    if name in adapter.pairs:
        a, b = (x.astype("f8") for x in adapter.pairs[name])
        delta = a @ b.T if name == "token_embd.weight" else b @ a
        values = (values.reshape(tensor.shape) + 2.0 * delta).astype("f4")
    return np.asarray(gguf.quantize(values, gguf.GGMLQuantizationType[kind.upper()])).tobytes()


def test_every_type_that_the_package_can_write_is_there():
    assert {
        name: getattr(gguf.LlamaFileType, "ALL_F32" if name == "f32" else f"MOSTLY_{name.upper()}") for name in TYPES
    } == {name: FILE_TYPES[name] for name in TYPES}
    for name in TYPES:
        gguf.quantize(np.ones((1, 32), "f4"), gguf.GGMLQuantizationType[name.upper()])
    for name in ("q2_k", "q4_k", "q6_k"):
        with pytest.raises(NotImplementedError):
            gguf.quantize(np.ones((1, 256), "f4"), gguf.GGMLQuantizationType[name.upper()])


@pytest.mark.parametrize("source", ["f32", "f16", "q8_0", "q4_k"])
@pytest.mark.parametrize("kind", TYPES)
def test_all_types(tmp_path, source, kind):
    base, path, adapter = prepare(tmp_path, source)
    done = merge(base.path, path, tmp_path / "out.gguf", kind)
    out = open_gguf(tmp_path / "out.gguf")
    assert done.bytes == out.size and done.changed == CHANGED and done.notes == []
    assert list(out.tensors) == list(base.tensors)
    for name, tensor in out.tensors.items():
        assert tensor.shape == base.tensors[name].shape
        if len(tensor.shape) == 1:
            assert tensor.kind == "f32" and (out.array(name) == base.array(name)).all()
            continue
        assert tensor.kind == kind
        if source == kind and name not in adapter.pairs:
            assert out.bytes(name).tobytes() == base.bytes(name).tobytes()
        else:
            assert out.bytes(name).tobytes() == expected(base, adapter, name, kind), name
    assert done.kinds == ({"f32": 21} if kind == "f32" else {kind: 16, "f32": 5})
    assert out.metadata["general.file_type"] == FILE_TYPES[kind]
    quantised = KINDS[kind][0] > 1
    assert not quantised or out.metadata["general.quantization_version"] == 2
    for key, value in base.fields.items():
        assert key == "general.file_type" or out.fields[key] == value, key
    assert set(out.fields) - set(base.fields) <= {"general.quantization_version", "general.file_type"}


@pytest.mark.parametrize("source", [t.name for t in QUANTISED])
def test_quantised_weights_are_decoded_by_the_core_to_the_same_bits(tmp_path, monkeypatch, source):
    base, path, adapter = prepare(tmp_path, source)
    wanted = {name: expected(base, adapter, name, "f32") for name, t in base.tensors.items() if len(t.shape) > 1}

    def refused(*_):
        raise AssertionError("the gguf package should not decode")

    monkeypatch.setattr(gguf, "dequantize", refused)
    monkeypatch.setattr(importlib.import_module("gradloom.llm.conversion"), "_PIECE", 3 * 256)
    merge(base.path, path, tmp_path / "out.gguf", "f32")
    out = open_gguf(tmp_path / "out.gguf")
    for name, data in wanted.items():
        assert out.bytes(name).tobytes() == data, name


def test_the_formula(tmp_path):
    """W + alpha / r * B A, within one rounding of f32."""
    base, path, adapter = prepare(tmp_path, std=1.0)
    merge(base.path, path, tmp_path / "out.gguf", "f32")
    out = open_gguf(tmp_path / "out.gguf")
    for name in CHANGED:
        exact = base.array(name).astype("f8") + adapter.delta(name)
        assert (out.array(name) == exact.astype("f4")).all() and (out.array(name) != base.array(name)).any()


def test_without_a_type_each_tensor_keeps_its_own(tmp_path):
    base, path, _ = prepare(tmp_path, "q4_0")
    done = merge(base.path, path, tmp_path / "out.gguf")
    out = open_gguf(tmp_path / "out.gguf")
    assert {n: t.kind for n, t in out.tensors.items()} == {n: t.kind for n, t in base.tensors.items()}
    assert out.fields == base.fields | {"general.quantization_version": field("u32", 2)} and done.notes == []
    same = [n for n in base.tensors if out.bytes(n).tobytes() == base.bytes(n).tobytes()]
    assert set(base.tensors) - set(same) == set(CHANGED)


def test_without_a_type_changed_k_quants_become_q8_0_which_is_said(tmp_path):
    base, path, adapter = prepare(tmp_path, "q4_k")
    done = merge(base.path, path, tmp_path / "out.gguf")
    out = open_gguf(tmp_path / "out.gguf")
    assert done.kinds == {"q4_k": 12, "f32": 5, "q8_0": 4}
    assert done.notes == [
        "4 tensors as q8_0: q4_k cannot be written (token_embd.weight, blk.0.attn_q.weight, blk.1.ffn_down.weight "
        "and 1 more)"
    ]
    for name in base.tensors:
        if name in CHANGED:
            assert out.bytes(name).tobytes() == expected(base, adapter, name, "q8_0")
        else:
            assert out.bytes(name).tobytes() == base.bytes(name).tobytes()


def test_rows_that_are_no_whole_blocks_become_f16_which_is_said(tmp_path):
    """stories260K has feed-forward rows of 172 numbers."""
    more = SHAPES["tiny"] | {"ffn": 172}
    base = open_gguf(write_random(tmp_path / "m.gguf", **more))
    write_adapter_gguf(
        tmp_path / "a.gguf",
        AdapterArrays("llama", 1.0, {"blk.0.ffn_down.weight": (np.ones((1, 172), "f4"), np.ones((64, 1), "f4"))}),
    )
    done = merge(base.path, tmp_path / "a.gguf", tmp_path / "out.gguf", "q4_0")
    out = open_gguf(tmp_path / "out.gguf")
    assert done.notes == [
        "2 tensors as f16: rows are not a multiple of the block of 32 (blk.0.ffn_down.weight, blk.1.ffn_down.weight)"
    ]
    assert {out.tensors[f"blk.{i}.ffn_down.weight"].kind for i in range(2)} == {"f16"}
    expected = (base.array("blk.0.ffn_down.weight") + np.float32(1)).astype("f2")
    assert (out.array("blk.0.ffn_down.weight") == expected).all()


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_peft_folders_merge_to_the_same_bytes(tmp_path, arch):
    base, path, adapter = prepare(tmp_path, shape="tiny", arch=arch)
    write_peft(tmp_path / "peft", adapter, base)
    merge(base.path, path, tmp_path / "1.gguf", "f32")
    merge(base.path, tmp_path / "peft", tmp_path / "2.gguf", "f32")
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()


@pytest.mark.slow
def test_some_rows_at_a_time(tmp_path, monkeypatch):
    """Pieces of any size give the same bytes; memory is that of a piece, not of a tensor."""
    base, path, _ = prepare(tmp_path, "q8_0", width=256, shape="tiny", names=["output.weight"], vocab=12_000)
    merge(base.path, path, tmp_path / "1.gguf", "q4_0")
    monkeypatch.setattr(importlib.import_module("gradloom.llm.conversion"), "_PIECE", 5000)
    merge(base.path, path, tmp_path / "2.gguf", "q4_0")
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()
    tracemalloc.start()
    merge(base.path, path, tmp_path / "2.gguf", "q4_0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000 * 256 * 4 / 3


def test_real_model(tmp_path):
    if not STORIES.exists():
        pytest.skip(f"needs the model file {STORIES}")
    base = open_gguf(STORIES)
    zero = {n: (np.ones((1, 64), "f4"), np.zeros((base.tensors[n].shape[0], 1), "f4")) for n in ["blk.0.attn_q.weight"]}
    write_adapter_gguf(tmp_path / "a.gguf", AdapterArrays("llama", 1.0, zero))
    merge(STORIES, tmp_path / "a.gguf", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes()[24:] == STORIES.read_bytes()[24:]  # nothing was added: the same file


@pytest.mark.parametrize("name", ["out.safetensors", "out", "out.bin", "out.gguf.tmp"])
def test_a_merged_model_is_called_gguf(capsys, tmp_path, name):
    base, path, _ = prepare(tmp_path, shape="tiny")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(SettingError, match=f"{name}: a merged model is written as FILE.gguf"):
        merge(base.path, path, tmp_path / name)
    assert main(["merge", str(base.path), str(path), "-o", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and "is written as FILE.gguf" in err[0] and sorted(os.listdir(tmp_path)) == before


def test_what_cannot_be_merged(tmp_path):
    base, path, adapter = prepare(tmp_path, shape="tiny")
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")

    def refused(kind, message, model=base.path, error=FileError):
        write_adapter_gguf(path, adapter)
        with pytest.raises(error) as caught:
            merge(model, path, out, kind)
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert out.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["a.gguf", "m.gguf", "out.gguf"]

    types = "need one of f32 f16 bf16 q8_0 q5_1 q5_0 q4_1 q4_0"
    refused("q4_k", f"merge: type='q4_k': must be {types.removeprefix('need ')}", error=SettingError)
    refused("f32", "general.type is 'adapter'; need a model", model=path)
    adapter.alpha = 1e9
    refused("f16", "beyond the range of f16 (up to 65504); need f32 or bf16")
    adapter.alpha = 3e38
    adapter.pairs = {n: (a * 9e9, b) for n, (a, b) in adapter.pairs.items()}
    refused("bf16", "with the adapter added; need finite numbers")
    adapter.alpha, adapter.architecture = 1.0, "qwen2"
    refused("f32", "a.gguf: is an adapter for architecture 'qwen2', and")
    adapter.architecture = "llama"
    fields = {**base.fields, "split.count": field("u16", 3)}
    tensors = {n: (t.kind, t.shape, base.bytes(n)) for n, t in base.tensors.items()}
    write_gguf(base.path, fields, tensors)
    refused("f32", "m.gguf: is one of 3 parts of a model; join them (llama-gguf-split --merge) first")
    write_gguf(base.path, base.fields, {})
    refused("f32", "m.gguf: has no tensors (a vocabulary only?); need a model")


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_numbers_beyond_the_range_of_a_type_are_refused_in_every_type(tmp_path, kind):
    base, path, adapter = prepare(tmp_path, names=["blk.0.attn_q.weight"])
    _, b = adapter.pairs["blk.0.attn_q.weight"]
    b[3] = 1e8
    write_adapter_gguf(path, adapter)
    with pytest.raises(FileError, match=rf"blk\.0\.attn_q\.weight.* at \[3, .*{kind}"):
        merge(base.path, path, tmp_path / "out.gguf", kind)
    assert not (tmp_path / "out.gguf").exists()
    assert merge(base.path, path, tmp_path / "out.gguf", "bf16").kinds["bf16"]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_1"])
def test_bases_that_are_not_finite_are_refused_also_where_a_tensor_is_copied(tmp_path, kind):
    base, path, _ = prepare(tmp_path, kind, names=["blk.0.attn_q.weight"])
    data = bytearray(Path(base.path).read_bytes())
    tensor = base.tensors["blk.1.ffn_up.weight"]
    at = tensor.offset + tensor.bytes // tensor.shape[0]  # of row 1
    ones = {"f32": b"\x00\x00\x80\x7f", "f16": b"\x00\x7c", "bf16": b"\xc0\x7f"}.get(kind, b"\x00\x7c")
    data[at : at + len(ones)] = ones
    Path(base.path).write_bytes(data)
    for to in (None, "f32", "q4_0"):
        with pytest.raises(FileError, match=r"blk\.1\.ffn_up\.weight.*(inf|nan) at \[1, 0\]"):
            merge(base.path, path, tmp_path / "out.gguf", to)
        assert not (tmp_path / "out.gguf").exists()


def test_notes_report_numbers_that_became_0_and_large_rounding_errors(tmp_path):
    base, path, _ = prepare(tmp_path, names=["blk.0.attn_q.weight"])
    assert merge(base.path, path, tmp_path / "0.gguf", "q4_0").notes == []  # ordinary rounding is not reported
    fields, tensors = base.fields, {n: base.floats(n).reshape(t.shape) for n, t in base.tensors.items()}
    tensors["blk.0.ffn_up.weight"] *= np.float32(1e-9)
    tensors["blk.1.ffn_up.weight"][:, ::32] = 100
    write_gguf(base.path, fields, tensors)
    notes = merge(base.path, path, tmp_path / "b.gguf", "q4_0").notes
    assert len(notes) == 2
    assert "blk.0.ffn_up.weight" in notes[0] and "100%" in notes[0]
    assert "blk.0.ffn_up.weight" in notes[1] and f"{tensors['blk.0.ffn_up.weight'].size:,} of" in notes[1]
    assert merge(base.path, path, tmp_path / "c.gguf", "bf16").notes == []


def test_an_alpha_beyond_f32_is_refused_by_both_formats(tmp_path):
    base, _, adapter = prepare(tmp_path)
    adapter.alpha = 1e39
    for write in (write_adapter_gguf, lambda path, it: write_peft(path, it, base)):
        with pytest.raises(FileError, match=r"alpha is 1e\+39"):
            write(tmp_path / "out.gguf", adapter)
    assert not (tmp_path / "out.gguf").exists()


def test_full_fine_tuning_writes_no_model_whose_frozen_tensors_are_not_finite(tmp_path):
    base, _, _ = prepare(tmp_path)
    data = bytearray(Path(base.path).read_bytes())
    at = base.tensors["blk.1.ffn_up.weight"].offset
    data[at : at + 4] = b"\x00\x00\xc0\x7f"
    Path(base.path).write_bytes(data)
    trained = TrainedTensors(["attn_norm"], train_dtype="f32")
    trained.bind(load(base.path))
    with pytest.raises(FileError, match=r"blk\.1\.ffn_up\.weight.*nan at \[0, 0\]"):
        trained.save(tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
