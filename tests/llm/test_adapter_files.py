"""Adapter files: their layout, what llama.cpp's and PEFT's conventions make of it, and adapters that do not fit."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from examples.random_gguf import SHAPES, write_random
from gradloom.base.errors import FileError
from gradloom.files import load_arrays, open_gguf, save_arrays, write_gguf
from gradloom.files.gguf_fields import field
from gradloom.llm.adapter_arrays import AdapterArrays, check_fits
from gradloom.llm.adapter_files import read_adapter
from gradloom.llm.adapter_gguf import read_adapter_gguf, write_adapter_gguf
from gradloom.llm.adapter_peft import read_peft, write_peft

TINY = SHAPES["tiny"]  # width 64, 4 heads, 2 kv heads, ffn 160, vocabulary 512
TARGETS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def base(request, tmp_path_factory):
    return open_gguf(write_random(tmp_path_factory.mktemp("m") / "m.gguf", request.param, tied=False, **TINY))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return open_gguf(write_random(tmp_path_factory.mktemp("m") / "m.gguf", "llama", tied=False, **TINY))


def make(base, names=None, rank=3, alpha=6.0, **more):
    rng = np.random.default_rng(0)
    names = names or [f"blk.{i}.{t}.weight" for i in range(2) for t in TARGETS] + ["token_embd.weight", "output.weight"]
    pairs = {}
    for name in names:
        n_out, n_in = base.tensors[name].shape
        a, b = rng.normal(size=(rank, n_in)), rng.normal(size=(n_out, rank))
        if name == "token_embd.weight":
            a, b = b, a.T.copy()
        pairs[name] = a.astype("f4"), b.astype("f4")
    return AdapterArrays(base.metadata["general.architecture"], alpha, pairs, **more)


def same(left, right, exact=True):
    assert set(left.pairs) == set(right.pairs) and left.architecture == right.architecture
    for name in left.pairs:
        if exact:
            assert all((x == y).all() for x, y in zip(left.pairs[name], right.pairs[name], strict=True)), name
        np.testing.assert_allclose(left.delta(name), right.delta(name), rtol=1e-6, atol=1e-6)


def test_gguf_round_trip(base, tmp_path):
    adapter = make(base, texts={"general.name": "tést"})
    size = write_adapter_gguf(tmp_path / "a.gguf", adapter)
    back = read_adapter(tmp_path / "a.gguf", base)
    same(adapter, back)
    assert (back.alpha, back.texts) == (6.0, {"general.name": "tést"}) and size == (tmp_path / "a.gguf").stat().st_size
    same(adapter, read_adapter_gguf(tmp_path / "a.gguf"))


def test_gguf_is_as_llama_cpp_wants_it(llama, tmp_path):
    """The checks of llama-adapter.cpp, on what the gguf package reads."""
    write_adapter_gguf(tmp_path / "a.gguf", make(llama))
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    texts = {k: reader.fields[k].contents() for k in ("general.type", "adapter.type", "general.architecture")}
    assert texts == {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama"}
    alpha = reader.fields["adapter.lora.alpha"]
    assert alpha.types == [gguf.GGUFValueType.FLOAT32] and alpha.contents() == 6.0
    sizes = {t.name: [*t.shape.tolist(), t.tensor_type.name] for t in reader.tensors}
    assert len(sizes) == 2 * 16
    for name, tensor in llama.tensors.items():
        if name + ".lora_a" not in sizes:
            continue
        (n_out, n_in), a, b = tensor.shape, sizes[name + ".lora_a"], sizes[name + ".lora_b"]
        if name == "token_embd.weight":
            assert n_in == b[1] and n_out == a[1] and a[0] == b[0] == 3
        else:
            assert n_in == a[0] and n_out == b[1] and a[1] == b[0] == 3
        assert a[2] == b[2] == "F32"


def test_scales_are_those_of_llama_cpp(llama):
    """alpha / rank of each pair, 1 where alpha is 0; rsLoRA through alpha * sqrt(rank)."""
    name = "blk.0.attn_q.weight"
    adapter = make(llama, [name], rank=4, alpha=8.0)
    a, b = adapter.pairs[name]
    np.testing.assert_allclose(adapter.delta(name), 2 * b.astype("f8") @ a.astype("f8"))
    np.testing.assert_array_equal(adapter.delta(name, 5, 9), adapter.delta(name)[5:9])
    adapter.alpha = 0.0
    np.testing.assert_allclose(adapter.delta(name), b.astype("f8") @ a.astype("f8"))
    embedding = make(llama, ["token_embd.weight"], rank=4, alpha=8.0)
    a, b = embedding.pairs["token_embd.weight"]
    np.testing.assert_allclose(embedding.delta("token_embd.weight", 7, 9), 2 * a[7:9].astype("f8") @ b.T.astype("f8"))


@pytest.mark.parametrize("rslora", [False, True])
def test_peft_round_trip(base, tmp_path, rslora):
    alpha = 6 * math.sqrt(3) if rslora else 6.0
    adapter = make(base, alpha=alpha, rslora=rslora)
    write_peft(tmp_path / "peft", adapter, base, "some/model")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["use_rslora"]) == ("LORA", 3, 6, rslora)
    assert config["base_model_name_or_path"] == "some/model" and config["bias"] == "none"
    assert config["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"]
    )
    arrays, _ = load_arrays(tmp_path / "peft" / "adapter_model.safetensors")
    assert len(arrays) == 32
    shapes = {k.removeprefix("base_model.model."): a.shape for k, a in arrays.items()}
    assert shapes["model.layers.1.mlp.down_proj.lora_A.weight"] == (3, 160)
    assert shapes["model.layers.0.self_attn.k_proj.lora_B.weight"] == (32, 3)
    assert shapes["model.embed_tokens.lora_embedding_A"] == (3, 512)
    assert shapes["model.embed_tokens.lora_embedding_B"] == (64, 3) and shapes["lm_head.lora_B.weight"] == (512, 3)
    for path in (tmp_path / "peft", tmp_path / "peft" / "adapter_model.safetensors"):
        back = read_adapter(path, base)
        same(adapter, back)
        assert back.rslora == rslora and back.alpha == pytest.approx(alpha)


def test_rows_of_q_and_k_are_reordered_for_llama_only(base, tmp_path):
    """Hugging Face turns (i, i + D/2), GGUF's llama (2i, 2i + 1): the scores of q and k are the same either way."""
    adapter = make(base)
    write_peft(tmp_path, adapter, base)
    arrays, _ = load_arrays(tmp_path / "adapter_model.safetensors")
    reordered = base.metadata["general.architecture"] == "llama"
    x = np.random.default_rng(1).normal(size=(2, 3)).astype("f8")  # two positions, after A
    angle = np.array([2.0, 5.0])[:, None, None] * 10.0 ** -np.arange(8)  # [T, 1, D/2]
    scores = []
    for form in ("hf", "gguf"):
        turned = []
        for target, module, heads in (("attn_q", "q_proj", 4), ("attn_k", "k_proj", 2)):
            b = adapter.pairs[f"blk.0.{target}.weight"][1]
            hf = arrays[f"base_model.model.model.layers.0.self_attn.{module}.lora_B.weight"]
            assert (hf == b).all() != reordered
            y = (x @ (hf if form == "hf" else b).T.astype("f8")).reshape(2, heads, 16)
            halves = form == "hf" or not reordered
            u, v = (y[..., :8], y[..., 8:]) if halves else (y[..., ::2], y[..., 1::2])
            turned.append(
                np.concatenate([u * np.cos(angle) - v * np.sin(angle), u * np.sin(angle) + v * np.cos(angle)], -1)
            )
        scores.append(np.einsum("thd,shd->ths", turned[0], turned[1].repeat(2, 1)))
    np.testing.assert_allclose(scores[0], scores[1])
    for module in ("v_proj", "o_proj"):
        target = {"v_proj": "attn_v", "o_proj": "attn_output"}[module]
        hf = arrays[f"base_model.model.model.layers.0.self_attn.{module}.lora_B.weight"]
        assert (hf == adapter.pairs[f"blk.0.{target}.weight"][1]).all()


def test_the_order_is_that_of_the_converter(llama, tmp_path):
    """Row 2i + j of a head in GGUF is row j * D/2 + i in Hugging Face's order."""
    adapter = make(llama, ["blk.0.attn_k.weight"], rank=1)
    adapter.pairs["blk.0.attn_k.weight"][1][:, 0] = np.arange(32)
    write_peft(tmp_path, adapter, llama)
    b = load_arrays(tmp_path / "adapter_model.safetensors")[0]
    rows = b["base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"][:, 0]
    assert rows.tolist() == [*range(0, 16, 2), *range(1, 16, 2), *range(16, 32, 2), *range(17, 32, 2)]


def test_peft_patterns_are_read_and_written(llama, tmp_path):
    """Ranks and alphas that differ by module: the products are the same on the way there and back."""
    adapter = make(llama)
    adapter.pairs["blk.1.ffn_up.weight"] = make(llama, ["blk.1.ffn_up.weight"], rank=5).pairs["blk.1.ffn_up.weight"]
    for rslora in (False, True):
        adapter.rslora = rslora
        write_peft(tmp_path, adapter, llama)
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        assert config["rank_pattern"] == {r"model\.layers\.1\.mlp\.up_proj": 5}
        assert bool(config["alpha_pattern"]) == rslora
        same(adapter, read_peft(tmp_path, llama), exact=not rslora)
    config["use_rslora"], config["alpha_pattern"] = False, {"q_proj": 30, "layers.1.self_attn.v_proj": 1.5}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    back = read_peft(tmp_path, llama)
    factors = {n: np.linalg.norm(back.delta(n)) / np.linalg.norm(adapter.delta(n)) for n in adapter.pairs}
    alpha = config["lora_alpha"]
    for name, factor in factors.items():
        want = 30 if "attn_q" in name else 1.5 if name == "blk.1.attn_v.weight" else alpha
        assert factor == pytest.approx(want / adapter.rank(name) / adapter.scale(name), rel=1e-5), name


def test_other_types_of_numbers(llama, tmp_path):
    """f16, bf16 and q8_0 adapters, as the converter can write them."""
    name = "blk.0.attn_q.weight"
    fields = {
        "general.architecture": field("string", "llama"),
        "general.type": field("string", "adapter"),
        "adapter.type": field("string", "lora"),
    }
    a = np.linspace(-1, 1, 32 * 64).reshape(32, 64).astype("f2")
    b = gguf.quantize(np.linspace(-1, 1, 64 * 32, dtype="f4").reshape(64, 32), gguf.GGMLQuantizationType.Q8_0)
    write_gguf(tmp_path / "a.gguf", fields, {name + ".lora_a": a, name + ".lora_b": ("q8_0", (64, 32), b)})
    back = read_adapter_gguf(tmp_path / "a.gguf", llama)
    assert back.alpha == 0 and back.scale(name) == 1 and (back.pairs[name][0] == a).all()
    np.testing.assert_allclose(back.pairs[name][1], np.linspace(-1, 1, 64 * 32).reshape(64, 32), atol=0.01)


# -- adapters that do not fit ------------------------------------------------------------------------------------------


def damaged(folder, keys=None, tensors=None):
    """An adapter file with these keys and tensors in place of good ones (None: without it)."""
    fields = {
        "general.architecture": field("string", "llama"),
        "general.type": field("string", "adapter"),
        "adapter.type": field("string", "lora"),
        "adapter.lora.alpha": field("f32", 1.0),
    } | (keys or {})
    arrays = {
        "blk.0.attn_q.weight.lora_a": np.ones((3, 64), "f4"),
        "blk.0.attn_q.weight.lora_b": np.ones((64, 3), "f4"),
    }
    arrays |= tensors or {}
    path = folder / "bad.gguf"
    write_gguf(path, {k: f for k, f in fields.items() if f}, {k: a for k, a in arrays.items() if a is not None})
    return path


Q = "blk.0.attn_q.weight"
BAD = {
    "a model": ({"general.type": field("string", "model")}, {}, "general.type is 'model'; an adapter's is 'adapter'"),
    "no type": ({"general.type": None}, {}, "general.type is ''; an adapter's is 'adapter'"),
    "another adapter": ({"adapter.type": field("string", "ia3")}, {}, "adapter.type is 'ia3'; need 'lora'"),
    "no architecture": (
        {"general.architecture": None},
        {},
        "general.architecture is missing; need that of the base",
    ),
    "another architecture": (
        {"general.architecture": field("string", "qwen2")},
        {},
        "is an adapter for architecture 'qwen2', and {base} is 'llama'; need the model that it was trained on",
    ),
    "alpha is text": (
        {"adapter.lora.alpha": field("string", "8")},
        {},
        "adapter.lora.alpha is '8'; need a finite f32",
    ),
    "alpha is NaN": (
        {"adapter.lora.alpha": field("f32", math.nan)},
        {},
        "adapter.lora.alpha is nan; need a finite f32",
    ),
    "activated": (
        {"adapter.alora.invocation_tokens": field("array", [1], "u32")},
        {},
        "is an activated LoRA (adapter.alora.invocation_tokens), which is not supported",
    ),
    "half of a pair": ({}, {Q + ".lora_b": None}, f"{Q} has only half of its pair; {Q}.lora_b is missing"),
    "the other half": ({}, {Q + ".lora_a": None}, f"{Q} has only half of its pair; {Q}.lora_a is missing"),
    "nothing": ({}, {Q + ".lora_a": None, Q + ".lora_b": None}, "has no tensors; need at least one pair"),
    "a norm": (
        {},
        {"blk.0.attn_norm.weight": np.ones(64, "f4")},
        "tensor 'blk.0.attn_norm.weight' is not part of a pair; need names that end in .lora_a and .lora_b",
    ),
    "three axes": ({}, {Q + ".lora_a": np.ones((1, 3, 64), "f4")}, f"{Q}.lora_a has shape [1, 3, 64]; need 2 axes"),
    "two ranks": (
        {},
        {Q + ".lora_a": np.ones((4, 64), "f4")},
        f"{Q} has lora_a [4, 64] and lora_b [64, 3], of ranks 4 and 3; need one rank",
    ),
    "not finite": (
        {},
        {Q + ".lora_a": np.full((3, 64), np.inf, "f4")},
        f"{Q}.lora_a holds inf at [0, 0]; need finite numbers",
    ),
    "an unknown tensor": (
        {},
        {"blk.7.attn_q.weight.lora_a": np.ones((3, 64), "f4"), "blk.7.attn_q.weight.lora_b": np.ones((64, 3), "f4")},
        "is for another base: {base} has no tensor 'blk.7.attn_q.weight'",
    ),
    "another width": (
        {},
        {Q + ".lora_a": np.ones((3, 96), "f4")},
        f"is for another base: {Q} is [64, 64] in {{base}}; lora_a [3, 96] and lora_b [64, 3] fit [64, 96]",
    ),
    "an embedding that is not flipped": (
        {},
        {
            "token_embd.weight.lora_a": np.ones((64, 3), "f4"),
            "token_embd.weight.lora_b": np.ones((512, 3), "f4"),
        },
        "is for another base: token_embd.weight is [512, 64] in {base}; "
        "lora_a [64, 3] and lora_b [512, 3] fit [64, 512]",
    ),
    "a vector": (
        {},
        {
            "output_norm.weight.lora_a": np.ones((1, 64), "f4"),
            "output_norm.weight.lora_b": np.ones((1, 1), "f4"),
        },
        "is for another base: output_norm.weight is [64] in {base}; lora_a [1, 64] and lora_b [1, 1] fit [1, 64]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_adapters_have_names(llama, tmp_path, name):
    keys, tensors, message = BAD[name]
    path = damaged(tmp_path, keys, tensors)
    with pytest.raises(FileError) as caught:
        read_adapter(path, llama)
    assert str(caught.value) == f"{path}: {message.format(base=llama.path)}"


def test_bad_adapters_are_not_written(llama, tmp_path):
    for adapter, message in (
        (AdapterArrays("llama", 1, {}), "the adapter has no tensors; need at least one pair"),
        (make(llama, [Q], alpha=math.inf), "alpha is inf; need a finite f32"),
        (AdapterArrays("llama", 1, {Q: (np.full((1, 64), np.nan), np.ones((64, 1)))}), r"holds nan at \[0, 0\]"),
    ):
        with pytest.raises(FileError, match=message):
            write_adapter_gguf(tmp_path / "a.gguf", adapter)
    assert not any(tmp_path.iterdir())
    check_fits(make(llama), llama)


def change(folder, **entries):
    config = json.loads((folder / "adapter_config.json").read_text()) | entries
    (folder / "adapter_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type is 'IA3'; need 'LORA'"),
        ({"use_dora": True}, "adapter_config.json: use_dora is True, which is not supported"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication is [[0, 2], [1, 2]], which is not supported"),
        ({"use_qalora": True}, "use_qalora is True, which is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head'], which is not supported"),
        ({"bias": "all"}, "bias is 'all'; need 'none'"),
        ({"r": 0}, "r is 0; need a whole number above 0"),
        ({"lora_alpha": None}, "lora_alpha is None; need a finite number above 0"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern is {'q_proj': 'x'}; need numbers above 0 by module"),
        ({"rank_pattern": [1]}, "rank_pattern is [1]; need whole numbers above 0 by module"),
        ({"r": 10**9}, "r of model.layers.0.self_attn.q_proj is 1000000000; need 3, the rank of its tensors"),
        ({"r": 2.5}, "r is 2.5; need a whole number above 0"),
        ({"rank_pattern": {"q_proj": 4}}, "r of model.layers.0.self_attn.q_proj is 4; need 3"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000000000000000000"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan; need a finite number above 0"),
        ({"lora_alpha": 1e39}, "lora_alpha is 1e+39; need a finite number above 0"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern is {'q_proj': 1000"),
        ({"use_rslora": "no"}, "use_rslora is 'no'; need true or false"),
        ({"alpha_pattern": {"(": 2}}, "alpha_pattern has the pattern '(', which is not supported"),
        (
            {"alpha_pattern": {r"(\w+\.?)+x": 2}},
            r"alpha_pattern has the pattern '(\\w+\\.?)+x', which is not supported",
        ),
        ({"alpha_pattern": {"(" * 150 + ")" * 150: 2}}, "which is not supported"),
    ],
)
def test_bad_configs_have_names(llama, tmp_path, entries, message):
    write_peft(tmp_path, make(llama, [Q]), llama)
    change(tmp_path, **entries)
    with pytest.raises(FileError) as caught:
        read_peft(tmp_path, llama)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_bad_peft_folders_have_names(llama, tmp_path):
    write_peft(tmp_path / "good", make(llama, [Q]), llama)
    arrays, _ = load_arrays(tmp_path / "good" / "adapter_model.safetensors")
    a, b = sorted(arrays)
    cases = {
        "tensor 'x.weight' is not part of a pair; need names with lora_A and lora_B": arrays | {"x.weight": arrays[a]},
        "module 'model.layers.0.block_sparse_moe' has no tensor in a llama GGUF file": {
            "base_model.model.model.layers.0.block_sparse_moe.lora_A.weight": arrays[a]
        },
        f"{Q} has only half of its pair; {Q}.lora_b is missing": {a: arrays[a]},
        "q_proj.lora_A.weight has shape [192]; need 2 axes": {a: arrays[a].reshape(-1), b: arrays[b]},
        "lora_A.weight has shape [0, 64]; need 2 axes, none of them empty": {a: arrays[a][:0], b: arrays[b][:, :0]},
        "q_proj.lora_B.weight has 60 rows": {a: arrays[a], b: arrays[b][:60]},
        f"is for another base: {Q} is [64, 64]": {a: arrays[a], b: arrays[b].repeat(2, 0)},
        "holds inf at [0, 0]": {a: arrays[a] * np.float32(np.inf), b: arrays[b]},
    }
    for number, (message, damaged) in enumerate(cases.items()):
        folder = shutil.copytree(tmp_path / "good", tmp_path / str(number))
        save_arrays(folder / "adapter_model.safetensors", damaged)
        with pytest.raises(FileError) as caught:
            read_peft(folder, llama)
        assert message in str(caught.value) and str(folder) in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "good" / "adapter_config.json").write_text("{")
    with pytest.raises(FileError, match=r"adapter_config\.json: is not JSON \(Expecting property name"):
        read_peft(tmp_path / "good", llama)
    (tmp_path / "good" / "adapter_config.json").unlink()
    with pytest.raises(FileError, match=r"adapter_config\.json: no such file or directory; PEFT writes it next to"):
        read_adapter(tmp_path / "good", llama)


def test_peft_needs_names_that_exist(llama, tmp_path):
    name = "blk.0.attn_norm.weight"
    adapter = AdapterArrays("llama", 1, {name: (np.ones((1, 64)), np.ones((64, 1)))})
    base = open_gguf(write_random(tmp_path / "m.gguf", **TINY))
    base.tensors[name] = base.tensors["blk.0.attn_q.weight"]
    with pytest.raises(
        FileError, match=r"tensor 'blk\.0\.attn_norm\.weight' has no module in PEFT's format; need attn_q"
    ):
        write_peft(tmp_path / "p", adapter, base)
    base.fields["general.architecture"] = field("string", "gemma")
    adapter = make(base, [Q])
    with pytest.raises(
        FileError, match="PEFT's names for architecture 'gemma' are not known; known are ernie4_5 exaone4"
    ):
        write_peft(tmp_path / "p", adapter, base)
    assert not (tmp_path / "p").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file: is no folder; need the name of a folder"):
        write_peft(tmp_path / "file", make(llama, [Q]), llama)


def test_head_counts_by_layer(llama, tmp_path):
    """Some files give one number of heads per layer; a file without the number cannot order the rows."""
    key = "llama.attention.head_count"
    fields = dict(llama.fields)
    tensors = {n: (t.kind, t.shape, llama.bytes(n)) for n, t in llama.tensors.items()}
    adapter = make(llama)
    write_peft(tmp_path / "one", adapter, llama)
    write_gguf(tmp_path / "m.gguf", fields | {key: field("array", [4, 4], "i32")}, tensors)
    same(adapter, read_peft(tmp_path / "one", open_gguf(tmp_path / "m.gguf")))
    del fields[key]
    write_gguf(tmp_path / "m.gguf", fields, tensors)
    with pytest.raises(FileError, match=r"llama\.attention\.head_count is None; need the number of heads"):
        read_peft(tmp_path / "one", open_gguf(tmp_path / "m.gguf"))


def test_shared_embeddings_are_refused(llama, tmp_path):
    tied = open_gguf(write_random(tmp_path / "m.gguf", "llama", **TINY))
    write_adapter_gguf(tmp_path / "a.gguf", make(llama, ["token_embd.weight"]))
    with pytest.raises(
        FileError, match=r"a\.gguf: adapts token_embd\.weight, which is also the output layer of .*m\.gguf"
    ):
        read_adapter(tmp_path / "a.gguf", tied)


def test_paths_may_be_text(llama, tmp_path):
    write_adapter_gguf(str(tmp_path / "a.gguf"), make(llama, [Q]))
    assert Path(tmp_path / "a.gguf").exists() and read_adapter(str(tmp_path / "a.gguf"), llama).pairs.keys() == {Q}
