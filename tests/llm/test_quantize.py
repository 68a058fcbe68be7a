"""quantize: llama-quantize's types per tensor, bytes of each tensor, copied parts, notes, refusals; the command."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import SHAPES, write_random
from gradloom.base.errors import FileError, SettingError
from gradloom.cli.main import main
from gradloom.files import open_gguf, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.files.gguf_head import TensorInfo
from gradloom.files.gguf_types import KINDS, kind_bytes
from gradloom.llm.adapter_arrays import AdapterArrays
from gradloom.llm.adapter_gguf import write_adapter_gguf
from gradloom.llm.tensor_types import TENSOR_TYPES, TYPES, TensorTypes, is_converted
from gradloom.run import dequantize, quantize
from tests.real_data import DATA


def run(capsys: Any, *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("m") / "m.gguf", "llama", "f32", tied=False, **SHAPES["small"])


# ---- types of the tensors -------------------------------------------------------------------------------------------


def llama(layers: int, width: int = 4096, heads: int = 32, kv_heads: int = 32, tied: bool = False) -> Any:
    """(tensors, metadata) of a llama model, without its numbers."""
    shapes = {"token_embd.weight": (32000, width), "output_norm.weight": (width,)}
    if not tied:
        shapes["output.weight"] = (32000, width)
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.{i}.{name}.weight"] = (width, width)
        shapes[f"blk.{i}.attn_norm.weight"] = shapes[f"blk.{i}.ffn_norm.weight"] = (width,)
    tensors = {n: TensorInfo(n, "f16" if len(s) > 1 else "f32", s, 0, 0) for n, s in shapes.items()}
    about = {"general.architecture": "llama", "llama.block_count": layers, "llama.attention.head_count": heads}
    return tensors, about | {"llama.attention.head_count_kv": kv_heads}


def counts(kind: str, given: Any, rules: dict[str, str] | None = None) -> dict[str, int]:
    tensors, metadata = given
    types = TensorTypes(kind, tensors, metadata, rules or {})
    new = [types.of(one)[0] for one in tensors.values()]
    return {one: new.count(one) for one in sorted(set(new))}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("q8_0", {"f32": 65, "q8_0": 226}),
        ("q4_0", {"f32": 65, "q4_0": 225, "q6_k": 1}),
        ("q5_1", {"f32": 65, "q5_1": 225, "q6_k": 1}),
        ("f16", {"f16": 226, "f32": 65}),
        ("q6_k", {"f32": 65, "q6_k": 226}),
        ("q5_k_s", {"f32": 65, "q5_k": 225, "q6_k": 1}),
        ("q5_k_m", {"f32": 65, "q5_k": 193, "q6_k": 33}),
        ("q4_k_m", {"f32": 65, "q4_k": 193, "q6_k": 33}),
        ("q4_k_s", {"f32": 65, "q4_k": 217, "q5_k": 8, "q6_k": 1}),
        ("q3_k_s", {"f32": 65, "q3_k": 225, "q6_k": 1}),
        ("q3_k_m", {"f32": 65, "q3_k": 129, "q4_k": 92, "q5_k": 4, "q6_k": 1}),
        ("q3_k_l", {"f32": 65, "q3_k": 129, "q5_k": 96, "q6_k": 1}),
        ("q2_k", {"f32": 65, "q2_k": 129, "q3_k": 96, "q6_k": 1}),
    ],
)
def test_types_of_a_model_of_32_layers_are_those_that_llama_quantize_lists(kind: str, expected: Any) -> None:
    assert counts(kind, llama(32)) == expected


def test_the_embedding_is_the_output_matrix_where_there_is_no_other() -> None:
    given = llama(2, tied=True)
    types = TensorTypes("q4_0", *given, {})
    assert types.of(given[0]["token_embd.weight"]) == ("q6_k", "")
    assert TensorTypes("q8_0", *given, {}).of(given[0]["token_embd.weight"]) == ("q8_0", "")


def test_models_with_shared_values_and_with_experts() -> None:
    assert counts("q2_k", llama(4, heads=32, kv_heads=8))["q4_k"] == 4
    assert counts("q4_k_s", llama(80, heads=64, kv_heads=8))["q5_k"] == 80 + 10  # Llama 2 70B: all attn_v
    tensors, about = llama(4)
    eight = counts("q4_k_m", (tensors, about | {"llama.expert_count": 8}))
    assert eight["q8_0"] == 8 and eight["q5_k"] == 4


def test_rows_of_other_lengths_become_smaller_blocks_or_f16() -> None:
    expected = {"q6_k": "q8_0", "q5_k_s": "q5_1", "q4_k_s": "q5_0", "q3_k_s": "q4_0", "q2_k": "q4_0", "q4_1": "q4_1"}
    for kind, fallback in expected.items():
        given = llama(1, width=96)
        types = TensorTypes(kind, *given, {})
        assert types.of(given[0]["blk.0.attn_q.weight"])[0] == fallback
        odd = TensorInfo("blk.0.attn_q.weight", "f32", (5, 33), 0, 0)
        assert types.of(odd) == ("f16", "rows are not a multiple of the block of 32")


def test_small_and_odd_tensors_are_kept() -> None:
    kept = ["blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "position_embd.weight", "blk.0.attn_q.bias"]
    kept += ["conv1.kernel", "blk.0.ssm_conv1d.weight", "blk.0.time_mix_w1.weight", "v.patch_embd.weight"]
    assert not any(is_converted(TensorInfo(name, "f32", (256, 256), 0, 0)) for name in kept)
    assert not is_converted(TensorInfo("a.weight", "f32", (256,), 0, 0))
    assert not is_converted(TensorInfo("a.weight", "i32", (256, 256), 0, 0))
    assert is_converted(TensorInfo("fc1.weight", "f32", (256, 256), 0, 0))


def test_rules_come_first() -> None:
    given = llama(4)
    rules = {"output.weight": "f16", "blk.0.*": "q8_0", "*.ffn_down.weight": "q2_k"}
    assert counts("q4_0", given, rules) == {"f16": 1, "f32": 9, "q2_k": 3, "q4_0": 1 + 3 * 6, "q8_0": 7}
    for pattern, message in [
        ("blk.9.*", "'blk.9.*' matches no tensor; converted are output.weight, token_embd.weight, blk.0.attn_k.weight"),
        ("*attn_norm*", "matches 'blk.0.attn_norm.weight', which keeps its type"),
    ]:
        with pytest.raises(SettingError) as caught:
            TensorTypes("q4_0", *given, {pattern: "q8_0"})
        assert message in str(caught.value), caught.value
    with pytest.raises(SettingError, match=r"q4_k_m.*must be|need .*one of f32 f16"):
        TensorTypes("q4_0", *given, {"*": "q4_k_m"})


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_every_type(tmp_path: Path, model: Path, kind: str) -> None:
    base = open_gguf(model)
    done = gl.llm.quantize(model, tmp_path / "q.gguf", kind)
    out = open_gguf(tmp_path / "q.gguf")
    types = TensorTypes(kind, base.tensors, base.metadata, {})
    assert done.bytes == out.size and list(out.tensors) == list(base.tensors)
    for name, tensor in out.tensors.items():
        assert (tensor.kind, "") == types.of(base.tensors[name]) and tensor.shape == base.tensors[name].shape
        expected = quantize(base.array(name), tensor.kind) if is_converted(base.tensors[name]) else base.bytes(name)
        assert out.bytes(name).tobytes() == expected.tobytes(), name
    assert out.metadata["general.quantization_version"] == 2
    names = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "q4_k_m": 15, "q4_k_s": 14, "q2_k": 10, "q6_k": 18, "bf16": 32}
    assert kind not in names or out.metadata["general.file_type"] == names[kind]
    changed = {"general.file_type", "general.quantization_version"}
    assert {k: v for k, v in base.fields.items() if k not in changed} == {
        k: v for k, v in out.fields.items() if k not in changed
    }
    (tmp_path / "t.txt").write_text("the " * 300)
    assert np.isfinite(gl.llm.evaluate(str(tmp_path / "q.gguf"), str(tmp_path / "t.txt"), context=32).nll)


def test_the_reported_errors_are_those_of_the_file(tmp_path: Path, model: Path) -> None:
    done = gl.llm.quantize(model, tmp_path / "q.gguf", "q4_0", threads=1)
    base, out = open_gguf(model), open_gguf(tmp_path / "q.gguf")
    squares, errors, count = 0.0, 0.0, 0
    for one in done.tensors:
        assert (one.old_bytes, one.new_bytes) == (base.tensors[one.name].bytes, out.tensors[one.name].bytes)
        if one.old == one.new:
            assert one.rmse == one.rms == 0
            continue
        values = base.array(one.name).astype(np.float64)
        error = dequantize(out.bytes(one.name), one.new, values.shape) - values
        assert one.rmse == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-6)
        squares, errors = squares + np.square(values).sum(), errors + np.square(error).sum()
        count += values.size
    assert done.rmse == pytest.approx(np.sqrt(errors / count), rel=1e-6)
    assert done.rms == pytest.approx(np.sqrt(squares / count), rel=1e-6)
    assert done.bits_per_weight == pytest.approx(
        8 * done.new_bytes / sum(np.prod(t.shape) for t in out.tensors.values())
    )
    first = (tmp_path / "q.gguf").read_bytes()
    gl.llm.quantize(model, tmp_path / "q.gguf", "Q4_0", threads=2)
    assert (tmp_path / "q.gguf").read_bytes() == first
    assert not done.notes


def test_tensors_that_were_quantised_before_are_named(tmp_path: Path, model: Path) -> None:
    gl.llm.quantize(model, tmp_path / "a.gguf", "q5_0", tensor_type={"output.weight": "q8_0"})
    again = gl.llm.quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "q8_0")
    assert any("quantised before and rounded twice" in note for note in again.notes)
    assert [t.name for t in again.tensors if t.old == t.new == "q8_0"] == ["output.weight"]


def test_a_file_of_any_program(capsys: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {"fc1.weight": rng.standard_normal((64, 784)), "fc1.bias": rng.standard_normal(64)}
    tensors |= {"fc2.weight": rng.standard_normal((3, 10, 64)), "ids": np.arange(64)}
    ready = {n: a.astype(np.float32) if n != "ids" else a.astype(np.int32) for n, a in tensors.items()}
    fields = {"general.architecture": field("string", "mnist-fc"), "split.no": field("u16", 0)}
    write_gguf(tmp_path / "m.gguf", fields, ready)
    done = gl.llm.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", "q4_0")
    out = open_gguf(tmp_path / "q.gguf")
    assert {n: t.kind for n, t in out.tensors.items()} == {
        "fc1.weight": "f16", "fc1.bias": "f32", "fc2.weight": "q4_0", "ids": "i32",
    }  # fmt: skip
    assert done.notes == ["1 tensor as f16: rows are not a multiple of the block of 32 (fc1.weight)"]
    assert "split.no" not in out.fields and out.metadata["general.architecture"] == "mnist-fc"
    code, shown, _ = run(capsys, "quantize", tmp_path / "m.gguf", "-o", tmp_path / "r.gguf", "--type", "q8_0")
    assert code == 0 and "gradloom info" in shown and "use it" not in shown and "llama-server" not in shown


def test_memory_does_not_grow_with_a_tensor(tmp_path: Path) -> None:
    big = np.random.default_rng(0).standard_normal((8192, 1024)).astype(np.float32)  # 32 MiB
    write_gguf(tmp_path / "m.gguf", {}, {"a.weight": big})
    gl.llm.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", "q4_0")
    tracemalloc.start()
    gl.llm.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", "q4_0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 26 << 20


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite(tmp_path: Path, value: float) -> None:
    array = np.zeros((8, 256), np.float32)
    array[3, 5] = value
    write_gguf(tmp_path / "m.gguf", {}, {"a.weight": array})
    with pytest.raises(FileError, match=rf"tensor 'a.weight' holds {value} at \[3, 5\]; need finite numbers"):
        gl.llm.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", "q4_k_m")
    assert not (tmp_path / "q.gguf").exists()


@pytest.mark.parametrize("kind", [kind for kind in TENSOR_TYPES if KINDS[kind][0] > 1 or kind == "f16"])
def test_numbers_beyond_the_type(tmp_path: Path, kind: str) -> None:
    array = np.zeros((8, 256), np.float32)
    array[3, 5] = 1e30
    write_gguf(tmp_path / "m.gguf", {}, {"a.weight": array})
    with pytest.raises(FileError, match=rf"has 1e\+30 at \[3, 5\], beyond the range of {kind}"):
        gl.llm.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", "q4_0", tensor_type={"*": kind})


def test_what_is_refused(tmp_path: Path, model: Path) -> None:
    pairs = {"blk.0.attn_q.weight": (np.zeros((2, 64), "f4"), np.zeros((64, 2), "f4"))}
    write_adapter_gguf(tmp_path / "a.gguf", AdapterArrays("llama", 1.0, pairs))
    write_gguf(tmp_path / "part.gguf", {"split.count": field("u16", 3)}, {"a.weight": np.zeros((1, 32), "f4")})
    write_gguf(tmp_path / "none.gguf", {}, {})
    out = tmp_path / "q.gguf"
    for path, message in [
        (tmp_path / "a.gguf", "is an adapter; need a model"),
        (tmp_path / "part.gguf", "is one of 3 parts of a model"),
        (tmp_path / "none.gguf", "has no tensors"),
        (tmp_path / "missing.gguf", "no such file"),
    ]:
        with pytest.raises(FileError, match=message):
            gl.llm.quantize(path, out, "q4_0")
    for arguments, message in [
        ((model, model), "is the same file as"),
        ((model, tmp_path / "q.bin"), "requires that ending"),
        ((model, out, "q4"), "type: 'q4' cannot be written; must be one of f32 f16"),
        ((model, out, "iq4_xs"), "'iq4_xs' cannot be written"),
        ((model, out, 4), "4 cannot be written"),
        ((None, out), "model_path"),
    ]:
        with pytest.raises((SettingError, FileError), match=message):
            gl.llm.quantize(*arguments)  # type: ignore[arg-type]
    assert not out.exists()


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command(capsys: Any, tmp_path: Path, model: Path) -> None:
    out = tmp_path / "q.gguf"
    code, text, err = run(
        capsys, "quantize", model, "-o", out, "--type", "Q4_K_S", "--tensor-type", "output.weight=Q8_0", "--json"
    )
    assert code == 0 and not err
    result = json.loads(text.splitlines()[-1])
    kinds = {name: tensor.kind for name, tensor in open_gguf(out).tensors.items()}
    assert {one["name"]: one["type"] for one in result["tensors"]} == kinds and kinds["output.weight"] == "q8_0"
    before = {name: tensor.kind for name, tensor in open_gguf(model).tensors.items()}
    assert {one["name"]: one["type_before"] for one in result["tensors"]} == before != kinds
    assert result["bytes"] == out.stat().st_size and result["type"] == "q4_k_s" and result["rmse"] > 0
    assert sum(kind_bytes(t.kind, t.shape) for t in open_gguf(out).tensors.values()) == result["tensor_bytes"]
    assert "bits per weight" in text and "llama-server -m" in text and "RMSE" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--type", "q9"], "--type q9: 'q9' cannot be written|--type: 'q9' cannot be written"),
        (["--tensor-type", "q8_0"], "--tensor-type q8_0; need PATTERN=TYPE|--tensor-type"),
        (["--tensor-type", "a=q8_0", "--tensor-type", "a=q4_0"], "each pattern once"),
        (["--tensor-type", "nothing*=q8_0"], "--tensor-type: 'nothing\\*' matches no tensor"),
        (["--threads", "0"], "--threads 0"),
    ],
)
def test_bad_options(capsys: Any, tmp_path: Path, model: Path, words: list[str], message: str) -> None:
    code, _, err = run(capsys, "quantize", model, "-o", tmp_path / "q.gguf", *words)
    assert code == 2 and len(err.splitlines()) == 1
    assert re.search(message, err), err
    assert not (tmp_path / "q.gguf").exists()


def test_an_interrupted_command_leaves_the_old_file(
    capsys: Any, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "q.gguf"
    out.write_bytes(b"old")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradloom.llm.conversion.quantize", stop)
    assert run(capsys, "quantize", model, "-o", out)[0] == 130
    assert out.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not (DATA / "gguf" / "stories260K.gguf").exists(), reason="needs shared data")
def test_a_real_model_in_fewer_bits_is_nearly_as_good(tmp_path: Path) -> None:
    story = tmp_path / "s.txt"
    story.write_text(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. " * 4
    )
    before = gl.llm.evaluate(str(DATA / "gguf" / "stories260K.gguf"), str(story), context=64).nll
    for kind, most in [("q8_0", 0.02), ("q5_1", 0.1), ("q4_0", 0.4)]:
        gl.llm.quantize(DATA / "gguf" / "stories260K.gguf", tmp_path / "q.gguf", kind)
        assert abs(gl.llm.evaluate(str(tmp_path / "q.gguf"), str(story), context=64).nll - before) < most, kind
