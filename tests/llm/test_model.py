"""Forward pass and gradients of each family against PyTorch; files that are not what they should be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from examples.random_gguf import write_random
from gradloom import DTypeError, FileError, SettingError
from gradloom.base import memory
from gradloom.llm.generate import Generator
from gradloom.llm.lora import LoRA
from gradloom.llm.model import Model, load
from gradloom.llm.plan import plan
from gradloom.llm.rows import read_rows
from gradloom.llm.trained_tensors import TrainedTensors
from tests.llm.random_models import CASES, SMALL, packed, write
from tests.noise import assert_all_noise, assert_noise
from tests.real_data import DATA

STORIES = DATA / "gguf" / "stories260K.gguf"
torch = pytest.importorskip("torch", reason="PyTorch is the oracle of these tests")
torch.set_num_threads(1)
if True:  # after torch is known to be there
    from tests.llm.torch_model import TorchModel


def compiled(model: Model, batch: Any, adapter: Any = None, gradients: bool = True, **options: Any) -> dict[str, Any]:
    """Logits, mean loss and the gradient of the loss's sum for all that the adapter trains."""
    shape = batch.tokens.shape
    tokens, positions, labels = (gl.input(n, shape, "i32") for n in ("tokens", "positions", "labels"))
    if adapter is not None:
        adapter.bind(model)
    hidden = model.hidden(tokens, positions, adapter, training=gradients)
    total, weight = model.loss_pair(hidden, labels, adapter)
    trained = adapter.parameters() if adapter is not None and gradients else {}
    grads = gl.gradients(total, list(trained.values())) if trained else []
    run = gl.compile([model.project(hidden, adapter), total, weight, *grads], **options)
    logits, total_, weight_, *found = run(tokens=batch.tokens, positions=batch.positions, labels=batch.labels)
    return {"logits": logits, "loss": total_ / weight_} | {n: g / weight_ for n, g in zip(trained, found, strict=True)}


def with_torch(path: Path, batch: Any, adapter: Any = None, dtype: Any = None) -> dict[str, Any]:
    """The same from PyTorch."""
    oracle = TorchModel(path, torch.float32 if dtype is None else dtype)
    lora, scale, trained = None, 1.0, {}
    if isinstance(adapter, LoRA):
        lora = oracle.adapter({n: (adapter.a[n].numpy(), adapter.b[n].numpy()) for n in adapter.a})
        scale = adapter.scale
        trained = {f"{n}.lora_{s}": t for n, pair in lora.items() for s, t in zip("ab", pair, strict=True)}
    elif adapter is not None:
        trained = oracle.train(list(adapter.arrays))
    loss = oracle.loss(batch.tokens, batch.positions, batch.labels, lora, scale)
    if trained:
        loss.backward()
    logits = oracle.logits(batch.tokens, batch.positions, lora, scale)
    found = {"logits": logits.reshape(-1, logits.shape[-1]).detach().numpy(), "loss": loss.detach().numpy()}
    return found | {n: t.grad.numpy() for n, t in trained.items()}


def compare_with_torch(path: Path, batch: Any, adapter: Any) -> None:
    model = load(path)
    found = compiled(model, batch, adapter)
    single, double = (with_torch(path, batch, adapter, kind) for kind in (torch.float32, torch.float64))
    longest = max(batch.tokens.size, *model.weights["blk.0.ffn_down.weight"].shape)
    assert_all_noise(found, single, double, longest)


def random_b(adapter: LoRA, model: Model, seed: int = 5) -> LoRA:
    """An adapter that has been trained: B is not 0."""
    adapter.bind(model)
    rng = np.random.default_rng(seed)
    for b in adapter.b.values():
        b.assign(rng.standard_normal(b.shape) * 0.1)
    return adapter


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES)
def test_lora_gradients_are_those_of_pytorch(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, case)
    compare_with_torch(path, packed(), random_b(LoRA(rank=3, alpha=5, targets="all", seed=1), load(path)))


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES)
def test_full_gradients_are_those_of_pytorch(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, case)
    compare_with_torch(path, packed(), TrainedTensors("all"))


@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight"])
def test_lora_on_the_ends_of_an_untied_model(tmp_path: Path, name: str) -> None:
    """It moves the matrix by s B A (s A B^T for the embedding, whose rows are looked up)."""
    model = load(write(tmp_path, "qwen2_partial"))
    adapter = random_b(LoRA(rank=2, targets=name), model)
    adapter.a[name].assign(np.random.default_rng(0).standard_normal(adapter.a[name].shape))
    batch = packed()
    moved = TrainedTensors(name)
    moved.bind(model)
    a, b = adapter.a[name].numpy(), adapter.b[name].numpy()
    moved.arrays[name].assign(model.array(name) + adapter.scale * (a @ b.T if name.startswith("token") else b @ a))
    ours, other = compiled(model, batch, adapter), compiled(model, batch, moved)
    np.testing.assert_allclose(ours["logits"], other["logits"], atol=5e-5)
    np.testing.assert_allclose(ours["loss"], other["loss"], rtol=1e-5)
    g = other[name]
    expected = (g @ b, g.T @ a) if name.startswith("token") else (b.T @ g, g @ a.T)
    for end, slope in zip("ab", expected, strict=True):
        np.testing.assert_allclose(ours[f"{name}.lora_{end}"], adapter.scale * slope, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
def test_packed_samples_do_not_see_each_other(tmp_path: Path, case: str) -> None:
    model = load(write(tmp_path, case))
    batch = packed(1, 20)
    start = int(np.flatnonzero(batch.positions[0] == 0)[1])
    before = compiled(model, batch, gradients=False)["logits"]
    batch.tokens[0, : start - 1] = (batch.tokens[0, : start - 1] + 7) % 300
    after = compiled(model, batch, gradients=False)["logits"]
    np.testing.assert_array_equal(before[start:], after[start:])
    assert (np.abs(before[: start - 1] - after[: start - 1]).max(1) > 1e-3).all()


@pytest.mark.parametrize("case", ["llama_untied", "qwen2", "qwen3"])
def test_the_same_bits_however_it_is_run(tmp_path: Path, case: str) -> None:
    model = load(write(tmp_path, case))
    adapter = random_b(LoRA(rank=4, targets="all"), model)
    batch = packed(3, 40)
    first = compiled(model, batch, adapter, threads=1)
    for options in (
        {"threads": 2}, {"reuse": False}, {"inplace": False}, {"fuse": False}, {"poison": True}, {"check": 2},
    ):  # fmt: skip
        for name, array in compiled(model, batch, adapter, **options).items():
            np.testing.assert_array_equal(array, first[name], err_msg=f"{name} with {options}")


@pytest.mark.skipif(not STORIES.exists(), reason=f"{STORIES} is not here")
def test_a_real_model_knows_its_story() -> None:
    model = load(STORIES)
    assert model.tied is False and model.config.rope[0].base == 10000 and model.config.context_length == 2048
    ids = [1, 403, 407, 261, 378]  # <s> Once upon a time
    tokens, positions = gl.input("tokens", (1, 5), "i32"), gl.input("positions", (1, 5), "i32")
    run = gl.compile(model.logits(tokens, positions))
    best = run(tokens=[ids], positions=[np.arange(5)])[0].argmax(-1)
    assert best[:4].tolist() == ids[1:] and model.file.metadata["tokenizer.ggml.tokens"][best[4]] == ","


# ---- files that cannot be used -----------------------------------------------------------------------------


def rewritten(
    path: Path,
    out: Path,
    drop: tuple[str, ...] = (),
    keys: dict[str, Any] | None = None,
    raw: dict[str, Any] | None = None,
    **tensors: Any,
) -> Path:
    """The file again, with other metadata and tensors; raw: types of those that are given as bytes."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = dict(keys or {})
    arch = keys.get("general.architecture", reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in drop:
            continue
        value = keys.pop(name, field.contents())
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for name, value in keys.items():
        if name != "general.architecture":
            kind = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}[type(value)]
            writer.add_key_value(name, value, gguf.GGUFValueType[kind])
    arrays = {t.name: np.array(t.data) for t in reader.tensors}
    arrays = {n: a for n, a in arrays.items() if n not in drop} | tensors
    for name, array in arrays.items():
        writer.add_tensor(name, array, raw_dtype=(raw or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"keys": {"general.architecture": "gpt2"}},
            "the architecture gpt2 is not supported; need ernie4_5, exaone4, gemma3",
        ),
        ({"drop": ("llama.block_count",)}, "metadata llama.block_count is missing"),
        ({"drop": ("llama.attention.layer_norm_rms_epsilon",)}, "llama.attention.layer_norm_rms_epsilon is missing"),
        ({"drop": ("llama.context_length",)}, "metadata llama.context_length is missing"),
        ({"keys": {"llama.block_count": 0}}, "metadata llama.block_count is 0; need a whole number of at least 1"),
        ({"keys": {"llama.block_count": 3}}, "block_count is 3; need at most 2, the number of blocks"),
        ({"keys": {"llama.attention.head_count_kv": 4}}, "head_count_kv is 4; need a divisor of head_count, 6"),
        ({"keys": {"llama.attention.head_count": 5}}, "head_count is 5; need a divisor of embedding_length, 48"),
        ({"keys": {"llama.rope.dimension_count": 10}}, "rope.dimension_count is 10; need an even number up to 8"),
        (
            {"keys": {"llama.rope.scaling.type": "dynamic"}},
            "rope.scaling.type is 'dynamic'; need none, linear, yarn or longrope",
        ),
        (
            {"keys": {"llama.rope.scaling.type": "yarn", "llama.rope.freq_base": 1.0}},
            "rope_frequencies: base 1.0; yarn needs another one than 1",
        ),
        ({"keys": {"llama.expert_count": 8}}, "mixtures of experts are not supported"),
        ({"keys": {"llama.attention.value_length": 16}}, "attention.value_length is 16; need key_length, 8"),
        (
            {"keys": {"llama.feed_forward_length": 96}},
            "feed_forward_length is 96; need the rows of blk.0.ffn_gate.weight, 80, not 96",
        ),
        ({"keys": {"llama.block_count": 2**31 - 1}}, "block_count is 2147483647; need at most 2, the number of blocks"),
        ({"keys": {"llama.embedding_length": 480}}, "embedding_length is 480; need 48, the number of columns"),
        ({"keys": {"llama.embedding_length": 2**31 - 2}}, "embedding_length is 2147483646; need 48"),
        (
            {"keys": {"llama.attention.key_length": 2**30, "llama.attention.value_length": 2**30}},
            "attention.key_length is 1073741824; need the rows of blk.0.attn_q.weight, 48, not 6442450944",
        ),
        ({"keys": {"llama.attention.head_count": 12}}, "head_count_kv is 2; need the rows of blk.0.attn_k.weight, 16"),
        (
            {"keys": {"llama.attention.head_count_kv": 6}},
            "head_count_kv is 6; need the rows of blk.0.attn_k.weight, 16",
        ),
        ({"keys": {"llama.rope.dimension_count": 2**30}}, "rope.dimension_count is 1073741824; need an even number"),
        ({"keys": {"general.type": "\n"}}, "is of type '\\n'; need a model"),
        ({"keys": {"llama.rope.freq_base": -1.0}}, "rope.freq_base is -1.0; need a positive number"),
        ({"drop": ("blk.1.ffn_up.weight",)}, "the tensor blk.1.ffn_up.weight is missing; need it for llama"),
        ({"drop": ("token_embd.weight",)}, "the tensor token_embd.weight [vocabulary, width] is missing"),
        (
            {"blk.0.attn_qq.weight": np.zeros((48, 48), np.float32)},
            "unsupported tensor blk.0.attn_qq.weight for the architecture llama; the nearest known one is "
            "blk.0.attn_q.weight",
        ),
        ({"blk.0.attn_q_norm.weight": np.zeros(8, np.float32)}, "unsupported tensor blk.0.attn_q_norm.weight"),
        ({"keys": {"general.type": "adapter"}}, "is of type 'adapter'; need a model"),
        ({"keys": {"split.count": 3}}, "is one of 3 parts; join them first"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    source = write(tmp_path, "llama")
    with pytest.raises(FileError) as caught:
        load(rewritten(source, tmp_path / "changed.gguf", **change))
    assert message in str(caught.value) and "\n" not in str(caught.value) and "changed.gguf" in str(caught.value)


def test_a_vocabulary_beyond_the_embedding_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "llama")
    embedding = np.zeros((299, 48), np.float32)
    model = load(rewritten(source, tmp_path / "changed.gguf", **{"token_embd.weight": embedding}))
    with pytest.raises(
        FileError,
        match=r"tokenizer.ggml.tokens has 300 entries; need at most 299, the number of rows of token_embd.weight",
    ):
        _ = model.tokenizer


def test_copies_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = {"output_norm.weight": np.ones(48, np.float16)}
    path = rewritten(write(tmp_path, "llama"), tmp_path / "half.gguf", **norm)
    assert load(path).copied_bytes == 192
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 30, 100))
    with pytest.raises(FileError, match=r"f32 copies of its tensors of type f16 need 192 B of memory, 100 B are"):
        load(path)


def test_a_context_that_nobody_has_the_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rewritten(write(tmp_path, "llama"), tmp_path / "long.gguf", keys={"llama.context_length": 2**31 - 1})
    monkeypatch.setattr(memory, "memory", lambda: memory.Memory(1 << 36, 1 << 34))
    with pytest.raises(SettingError, match="a cache of 2147483647 tokens needs .* of memory"):
        Generator(load(path))
    with pytest.raises(SettingError, match="context=2000000000 is not usable: one row needs"):
        read_rows(load(path), "a.txt", 2 * 10**9)
    assert plan(load(path), context=2**31 - 1, batch_size=1).fits is False


def test_a_vocabulary_alone_is_no_model() -> None:
    path = STORIES.parent / "vocab" / "ggml-vocab-llama-spm.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with pytest.raises(FileError, match="contains no tensors, only metadata"):
        load(path)


def test_biases_that_a_llama_may_have(tmp_path: Path) -> None:
    source = write(tmp_path, "llama")
    bias = {"blk.0.attn_q.bias": np.full(48, 0.5, np.float32), "blk.1.ffn_down.bias": np.ones(48, np.float32)}
    path = rewritten(source, tmp_path / "biased.gguf", **bias)
    batch = packed()
    found = compiled(load(path), batch, gradients=False)["logits"]
    assert np.abs(found - compiled(load(source), batch, gradients=False)["logits"]).max() > 0.01
    single, double = (with_torch(path, batch, dtype=kind)["logits"] for kind in (torch.float32, torch.float64))
    assert_noise("logits", found, single, double, batch.tokens.size)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_k"])
def test_quantised_tensors_train_only_as_f32_copies(tmp_path: Path, kind: str) -> None:
    shape = SMALL | {"width": 256, "ffn": 256, "heads": 4}
    path = write_random(tmp_path / "m.gguf", kind=kind, **shape)
    with pytest.raises(
        DTypeError, match=f"token_embd.weight is {kind} and cannot be trained as it is; need --train-dtype f32"
    ):
        TrainedTensors("all").bind(load(path))
    TrainedTensors("attn_norm").bind(load(path))  # these are f32
    compare_with_torch(path, packed(), TrainedTensors("attn_v, output_norm", "f32"))


@pytest.mark.parametrize("kind", ["iq4_nl", "iq4_xs", "tq2_0"])
def test_types_without_a_kernel_are_held_as_f32_copies_and_that_is_said(tmp_path: Path, kind: str) -> None:
    import gguf

    source = write_random(tmp_path / "m.gguf", **(SMALL | {"width": 256, "ffn": 256, "heads": 4}))
    number = gguf.GGMLQuantizationType[kind.upper()]
    elements, size = gguf.GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (256 * 256 // elements, size), dtype=np.uint8)
    at = size - 2 if kind == "tq2_0" else 0  # the scale of a block, an f16
    blocks[:, at : at + 2] = rng.uniform(0.01, 0.02, len(blocks)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    blocks = blocks.reshape(256, -1)
    name = "blk.1.ffn_down.weight"
    path = rewritten(source, tmp_path / f"{kind}.gguf", raw={name: number}, **{name: blocks})
    model = load(path)
    assert model.copied_bytes == 256 * 256 * 4 and model.weights[name].dtype.name == "f32"
    assert model.notes == [f"tensors of type {kind} are held as f32 copies, 262144 bytes: no kernel reads that type"]
    same = TrainedTensors("blk.1.ffn_down")
    plain = load(source)
    same.bind(plain)
    same.arrays[name].assign(gguf.quants.dequantize(blocks, number))
    batch = packed()
    found = compiled(model, batch, gradients=False)["logits"]
    np.testing.assert_array_equal(found, compiled(plain, batch, same, gradients=False)["logits"])


def test_a_file_that_changes_under_the_model_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    model, batch = load(path), packed()
    tokens, positions = gl.input("tokens", batch.tokens.shape, "i32"), gl.input("positions", batch.tokens.shape, "i32")
    run = gl.compile(model.logits(tokens, positions))
    feeds = {"tokens": batch.tokens, "positions": batch.positions}
    run(**feeds)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    os.utime(path)
    path.open("r+b").write(data)
    with pytest.raises(FileError, match="has changed since it was opened"):
        run(**feeds)
