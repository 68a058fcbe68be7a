"""LoRA: which tensors, how they begin, what dropout does; and training of the model's own tensors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom import FileError, SettingError
from gradloom.llm.lora import ATTENTION, LoRA
from gradloom.llm.model import load
from gradloom.llm.trained_tensors import TrainedTensors
from tests.llm.random_models import packed, write
from tests.refused import refused

Q0, Q1 = "blk.0.attn_q.weight", "blk.1.attn_q.weight"


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("attn_q", [Q0, Q1]),
        ("q_proj", [Q0, Q1]),
        ("blk.1.attn_q.weight", [Q1]),
        ("blk.1.attn_q", [Q1]),
        ("blk.0.attn_[qk]", [Q0, "blk.0.attn_k.weight"]),
        (["attn_q", "blk.0.*"], [f"blk.0.{n}.weight" for n in (*ATTENTION, "ffn_gate", "ffn_up", "ffn_down")] + [Q1]),
        ("attn_q, blk.0.ffn_up", [Q0, "blk.0.ffn_up.weight", Q1]),
    ],
)
def test_targets_by_name_short_name_and_pattern(tmp_path: Path, targets, expected: list[str]) -> None:
    model = load(write(tmp_path, "llama"))
    found = LoRA(targets=targets).choose(model)
    assert sorted(found) == sorted(expected) and len(found) == len(set(found))


def test_default_targets_and_all(tmp_path: Path) -> None:
    model = load(write(tmp_path, "llama_untied"))
    assert LoRA().choose(model) == [f"blk.{i}.{n}.weight" for i in range(2) for n in ATTENTION]
    every = LoRA(targets="all").choose(model)
    assert len(every) == 14 and not {"token_embd.weight", "output.weight"} & set(every)
    assert LoRA(targets=["token_embd", "lm_head"]).choose(model) == ["token_embd.weight", "output.weight"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("attn_qq", "targets: 'attn_qq' matches no tensor that can be trained; use some of attn_q, attn_k, attn_v, "),
        ("attn_out", "did you mean attn_output?"),
        ("blk.7.attn_q", "did you mean blk."),
        ("output", "matches no tensor"),  # the embedding is shared
        ((), "at least one tensor"),
    ],
)
def test_an_unknown_target_names_the_nearest(tmp_path: Path, targets, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        LoRA(targets=targets).bind(load(write(tmp_path, "llama")))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 0}, {"rank": 1.5}, {"rank": True}, {"alpha": 0}, {"alpha": math.inf}, {"dropout": 1.0},
        {"dropout": -0.1}, {"seed": -1}, {"alpha": "x"},
    ],
)  # fmt: skip
def test_settings_that_cannot_be(options) -> None:
    with pytest.raises(SettingError):
        LoRA(**options)


def test_how_it_begins(tmp_path: Path) -> None:
    """A ~ U(-1/sqrt(n_in), 1/sqrt(n_in)), B = 0; each tensor from its own stream."""
    model = load(write(tmp_path, "llama", width=192, ffn=320, heads=6))
    few, more, other = LoRA(rank=16, targets="attn_q"), LoRA(rank=16, targets="all"), LoRA(rank=16, seed=1)
    for adapter in (few, more, other):
        adapter.bind(model)
    for name, a in more.a.items():
        bound = 1 / math.sqrt(a.shape[1])
        values = a.numpy()
        assert np.abs(values).max() <= bound and np.abs(values).max() > 0.99 * bound
        assert abs(values.mean()) < 0.05 * bound and abs(values.std() / bound - 1 / math.sqrt(3)) < 0.03
        assert not more.b[name].numpy().any()
    np.testing.assert_array_equal(few.a[Q0].numpy(), more.a[Q0].numpy())
    assert np.abs(few.a[Q0].numpy() - few.a[Q1].numpy()).max() > 0.01
    assert np.abs(few.a[Q0].numpy() - other.a[Q0].numpy()).max() > 0.01
    assert few.parameter_count == 2 * 16 * (192 + 192)


def test_scales() -> None:
    assert LoRA(rank=8).scale == 2 and LoRA(rank=8, alpha=4).scale == 0.5
    assert LoRA(rank=16, alpha=8, rslora=True).scale == 2 and LoRA(rank=16, alpha=8, rslora=True).file_alpha == 32


def hidden_of(model, adapter, batch, training: bool, row: int = 0, step: int = 1) -> np.ndarray:
    shape = batch.tokens.shape
    tokens, positions = gl.input("tokens", shape, "i32"), gl.input("positions", shape, "i32")
    run = gl.compile(model.hidden(tokens, positions, adapter, training=training), threads=1)
    feeds = {"tokens": batch.tokens, "positions": batch.positions, "row": row, "step": step, "seed": 3}
    known = {*run.inputs, *run.settings}
    return run(**{k: v for k, v in feeds.items() if k in known})[0]


def trained(model, **options) -> LoRA:
    adapter = LoRA(targets=["attn_q", "ffn_down"], seed=2, **options)
    adapter.bind(model)
    rng = np.random.default_rng(0)
    for b in adapter.b.values():
        b.assign(rng.standard_normal(b.shape) * 0.2)
    return adapter


def test_dropout_drops_in_training_only_and_by_sequence(tmp_path: Path) -> None:
    """The masks belong to (step, sequence): the same for a batch of four and for its halves."""
    model = load(write(tmp_path, "llama"))
    batch = packed(4, 16)
    with_, without = trained(model, dropout=0.5), trained(model)
    np.testing.assert_array_equal(hidden_of(model, with_, batch, False), hidden_of(model, without, batch, True))
    dropped = hidden_of(model, with_, batch, True).reshape(4, 16, -1)
    assert np.abs(dropped - hidden_of(model, without, batch, True).reshape(4, 16, -1)).max() > 0.1
    halves = []
    for half in (slice(0, 2), slice(2, 4)):
        part = packed(4, 16)
        part.tokens, part.positions = part.tokens[half], part.positions[half]
        halves.append(hidden_of(model, with_, part, True, row=half.start).reshape(2, 16, -1))
    np.testing.assert_allclose(np.concatenate(halves), dropped, atol=1e-5)
    assert np.abs(hidden_of(model, with_, batch, True, step=2).reshape(4, 16, -1) - dropped).max() > 0.1


def test_an_adapter_for_another_model_is_refused(tmp_path: Path) -> None:
    adapter = LoRA(targets="all")
    adapter.bind(load(write(tmp_path, "llama")))
    kept = adapter.a[Q0]
    adapter.bind(load(write(tmp_path, "llama", seed=7)))  # the same shapes: another fine-tune of one base
    assert adapter.a[Q0] is kept
    for case, message in (
        ("llama_heads", "blk.0.attn_k.weight has shapes"),
        ("qwen3", "blk.0.attn_q.weight has shapes"),
    ):
        with pytest.raises(FileError, match=message):
            adapter.bind(load(write(tmp_path, case)))
    (tmp_path / "one").mkdir()
    with pytest.raises(FileError, match="has arrays for blk.1.attn_q.weight, which .* does not have"):
        adapter.bind(load(write(tmp_path / "one", "llama", layers=1)))


def test_the_model_itself_is_never_written(tmp_path: Path) -> None:
    model = load(write(tmp_path, "llama"))
    for stored in model.weights.values():
        assert stored.role == "frozen" and not stored.read().flags.writeable
    own = TrainedTensors("attn_q, output_norm")
    own.bind(model)
    assert set(own.arrays) == {Q0, Q1, "output_norm.weight"}
    np.testing.assert_array_equal(own.arrays[Q0].numpy(), model.weights[Q0].read())
    assert not np.shares_memory(own.arrays[Q0].stored.read(), model.weights[Q0].read())


def test_tensors_that_do_not_exist(tmp_path: Path) -> None:
    model = load(write(tmp_path, "llama"))
    with pytest.raises(SettingError, match=r"tensors: 'attn_x' matches no tensor .*did you mean attn_"):
        TrainedTensors("attn_x").bind(model)
    with refused("train_dtype", "f16", need="f32"):
        TrainedTensors(train_dtype="f16")


# ---- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["adapter.gguf", "peft", "adapter_model.safetensors"])
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3_untied"])
def test_saved_and_loaded_it_gives_the_same(tmp_path: Path, case: str, form: str) -> None:
    model = load(write(tmp_path, case))
    adapter = trained(model, rank=4, alpha=6, rslora=form == "peft")
    folder = tmp_path / "out"
    folder.mkdir()
    adapter.save(folder / form)
    again = LoRA.load(folder / form, model)
    assert again.rslora == (form == "peft") and again.scale == pytest.approx(adapter.scale, rel=1e-7)
    batch = packed()
    np.testing.assert_array_equal(hidden_of(model, again, batch, False), hidden_of(model, adapter, batch, False))
    assert np.abs(hidden_of(model, None, batch, False) - hidden_of(model, adapter, batch, False)).max() > 0.01


def test_ranks_and_scales_of_a_file(tmp_path: Path) -> None:
    """Each pair has its own rank; no alpha means a scale of 1."""
    from gradloom.llm.adapter_arrays import AdapterArrays
    from gradloom.llm.adapter_gguf import write_adapter_gguf

    model, rng = load(write(tmp_path, "llama")), np.random.default_rng(0)
    pairs = {
        name: (rng.standard_normal((r, 48)).astype(np.float32), rng.standard_normal((48, r)).astype(np.float32))
        for name, r in ((Q0, 2), (Q1, 5))
    }
    batch = packed()
    for alpha in (0.0, 3.0):
        write_adapter_gguf(tmp_path / "a.gguf", AdapterArrays("llama", alpha, pairs))
        merged = TrainedTensors("attn_q")
        merged.bind(model)
        for name, (a, b) in pairs.items():
            scale = alpha / len(a) if alpha else 1.0
            merged.arrays[name].assign(model.array(name) + scale * b @ a)
        found = hidden_of(model, LoRA.load(tmp_path / "a.gguf", model), batch, False)
        np.testing.assert_allclose(found, hidden_of(model, merged, batch, False), atol=2e-4)


def test_a_model_that_was_trained_is_written_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "qwen3", kind="f16")
    model = load(path)
    own = TrainedTensors("attn_q, attn_norm", "f32")
    own.bind(model)
    rng = np.random.default_rng(0)
    for p in own.arrays.values():
        p.assign(p.numpy() + rng.standard_normal(p.shape) * 0.1)
    own.save(tmp_path / "new.gguf")
    again = load(tmp_path / "new.gguf")
    assert list(again.weights) == list(model.weights) and dict(again.file.fields) == dict(model.file.fields)
    for name in model.weights:
        if name in own.arrays:
            assert again.file.tensors[name].kind == "f32"
            np.testing.assert_array_equal(again.array(name), own.arrays[name].numpy())
        else:
            np.testing.assert_array_equal(again.file.bytes(name), model.file.bytes(name))
    batch = packed()
    np.testing.assert_allclose(hidden_of(again, None, batch, False), hidden_of(model, own, batch, False), atol=1e-6)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    model = load(write(tmp_path, "llama"))
    with pytest.raises(SettingError, match="has no arrays yet"):
        LoRA().save(tmp_path / "a.gguf")
    with pytest.raises(SettingError, match=r"must be FILE.gguf \(an adapter .* or a folder"):
        trained(model).save(tmp_path / "a.bin")
    own = TrainedTensors("attn_q")
    with pytest.raises(SettingError, match="there are no trained tensors yet"):
        own.save(tmp_path / "m.gguf")
    own.bind(model)
    with pytest.raises(SettingError, match="must be FILE.gguf, as which a fully fine-tuned model is written"):
        own.save(tmp_path / "m")
    with pytest.raises(FileError, match="is an adapter for architecture 'llama'"):
        trained(model).save(tmp_path / "a.gguf")
        LoRA.load(tmp_path / "a.gguf", load(write(tmp_path, "qwen2")))
