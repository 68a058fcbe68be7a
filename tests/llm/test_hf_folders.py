"""Hugging Face folders of every family against transformers in float64: logits, the gradient of every tensor, and
generation with a cache; merging, and adapters, for folders and GGUF files."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom import llm
from gradloom.files import load_arrays, save_arrays
from gradloom.llm.generate import Generator

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from gradloom.llm.hf_export import GgufView  # noqa: E402
from gradloom.llm.hf_folder import HFFolder  # noqa: E402
from gradloom.llm.tokenizer import Tokenizer  # noqa: E402
from tests.llm import transformers_models as theirs  # noqa: E402
from tests.llm.hf_tokenizers import without_marks, write_tokenizer  # noqa: E402

pytestmark = pytest.mark.oracle
Pair = tuple[theirs.Case, Any, Path]


def save(made: Any, folder: Path, dtype: str = "float32", **options: Any) -> Path:
    """A model as transformers saves it."""
    copy.deepcopy(made).to(getattr(torch, dtype)).save_pretrained(folder, **options)
    return folder


@pytest.fixture(params=list(theirs.FOLDER_CASES), scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """(case, transformers' model, its folder)"""
    torch.set_num_threads(1)
    case = theirs.FOLDER_CASES[request.param]
    made = theirs.model(case)
    folder = save(made, tmp_path_factory.mktemp("folder") / "model", max_shard_size="100KB")
    write_tokenizer(folder, "gpt-2", 300)
    return case, made, folder


def ids(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(3, theirs.VOCAB, (2, length)).astype(np.int32)


def logits(model: Any, given: np.ndarray) -> np.ndarray:
    tokens, positions = (gl.input(name, given.shape, "i32") for name in ("tokens", "positions"))
    run = gl.compile(model.logits(tokens, positions))
    places = np.broadcast_to(np.arange(given.shape[1], dtype=np.int32), given.shape)
    return run(tokens=given, positions=places)[0].reshape(*given.shape, -1)


def expected_logits(made: Any, given: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return made(torch.tensor(given, dtype=torch.int64)).logits.numpy()


def same(ours: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(ours - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("length", [4, 24, 48])
def test_logits(pair: Pair, length: int) -> None:
    _, made, folder = pair
    given = ids(length)
    same(logits(llm.load(folder), given), expected_logits(made, given))


def test_gradients_of_every_tensor(pair: Pair) -> None:
    case, made, folder = pair
    given = ids(24)
    model = llm.load(folder)
    adapter = llm.TrainedTensors("all")
    adapter.bind(model)
    tokens, positions, labels = (gl.input(name, given.shape, "i32") for name in ("tokens", "positions", "labels"))
    total, count = model.loss_pair(model.hidden(tokens, positions, adapter, training=True), labels, adapter)
    trained = adapter.parameters()
    run = gl.compile([total, count, *gl.gradients(total, list(trained.values()))])
    wanted = np.concatenate([given[:, 1:], np.full((2, 1), -100, np.int32)], 1)
    places = np.broadcast_to(np.arange(24, dtype=np.int32), given.shape)
    loss, counted, *gradients = run(tokens=given, positions=places, labels=wanted)
    made.zero_grad()
    expected = made(torch.tensor(given, dtype=torch.int64), labels=torch.tensor(given, dtype=torch.int64)).loss
    (expected * int(counted)).backward()
    assert abs(float(loss) - expected.item() * int(counted)) <= 1e-5 * float(loss)
    ours = dict(zip(trained, gradients, strict=True))
    found = {theirs.tensor_name(case, name): p.grad.numpy() for name, p in made.named_parameters()}
    assert set(found) == set(ours)
    for tensor, right in found.items():
        size = np.abs(right).max()
        assert size > 1e-6 or tensor.endswith("attn_k.bias"), tensor
        assert np.abs(ours[tensor] - right).max() <= 1e-4 * max(size, 1e-3), tensor


def test_the_cache_gives_the_logits_of_the_whole_text(pair: Pair) -> None:
    _, made, folder = pair
    text = ids(40)[0]
    generator = Generator(llm.load(folder), rows=48)
    expected = expected_logits(made, text[None])[0]
    for end in (1, 9, 10, 39, 40):
        last = generator.feed(text[generator.length : end])
        if end > 32:  # transformers' longrope depends on the whole text
            assert np.abs(last - expected[end - 1]).max() <= 1e-5 * np.abs(expected).max()


def test_adapters_of_a_folder_are_the_same_in_both_forms(tmp_path: Path) -> None:
    """Rows of B of q and k are permuted in an adapter for GGUF files."""
    case = theirs.FOLDER_CASES["llama, yarn"]
    made = theirs.model(case)
    model = llm.load(save(made, tmp_path / "model"))
    adapter = llm.LoRA(rank=3)
    adapter.bind(model)
    draw = np.random.default_rng(1)
    for b in adapter.b.values():
        b.stored.write(draw.normal(size=b.shape).astype(np.float32))
    adapter.save(tmp_path / "peft")
    adapter.save(tmp_path / "adapter.gguf")
    converted = llm.load(theirs.write(tmp_path / "model.gguf", case, made))
    given = ids(12)
    expected = adapted(model, adapter, given)
    for path in ("peft", "adapter.gguf"):
        for one in (model, converted):
            same(adapted(one, llm.LoRA.load(tmp_path / path, one), given), expected)


def adapted(model: Any, adapter: Any, given: np.ndarray) -> np.ndarray:
    tokens, positions = (gl.input(name, given.shape, "i32") for name in ("tokens", "positions"))
    places = np.broadcast_to(np.arange(given.shape[1], dtype=np.int32), given.shape)
    return gl.compile(model.logits(tokens, positions, adapter))(tokens=given, positions=places)[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "text", "image"), [("Gemma3", "gemma3", "Siglip"), ("Mistral3", "mistral3", "Pixtral")]
)
def test_an_adapter_of_a_model_that_sees_images_fits_its_modules(
    tmp_path: Path, name: str, text: str, image: str, tied: bool
) -> None:
    """Keys name modules of transformers' class, which are not those of the stored tensors; PEFT adapts no others."""
    made = theirs.seeing(name, text, image, tied, tied).double().eval()
    write_tokenizer(save(made, tmp_path / "model"), "gpt-2", 300)
    model = llm.load(tmp_path / "model")
    adapter = llm.LoRA(rank=3, alpha=6, targets="all" if tied else ["all", "token_embd", "output"])
    adapter.bind(model)
    draw = np.random.default_rng(1)
    for p in (*adapter.a.values(), *adapter.b.values()):
        p.stored.write(draw.normal(0, 0.1, p.shape).astype(np.float32))
    adapter.save(tmp_path / "peft")
    stored, _ = load_arrays(tmp_path / "peft" / "adapter_model.safetensors")
    pairs: dict[str, dict[str, Any]] = {}
    for key, array in stored.items():
        path, half = re.fullmatch(r"base_model\.model\.(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?", key).groups()
        pairs.setdefault(path, {})[half] = torch.tensor(array).double()
    assert len(pairs) == len(adapter.b)
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    chosen = [n for n, _ in made.named_modules() if re.fullmatch(config["target_modules"], n)]
    assert sorted(chosen) == sorted(pairs) and any(".vision_tower." in n for n, _ in made.named_modules())

    given = ids(12)
    plain, ours = expected_logits(made, given), adapted(model, adapter, given).reshape(*given.shape, -1)
    with torch.no_grad():
        for path, pair in pairs.items():
            delta = 2 * pair["B"] @ pair["A"]
            made.get_submodule(path).weight.add_(delta.T if path.endswith("embed_tokens") else delta)
    expected = expected_logits(made, given)
    same(ours, expected)
    assert np.abs(expected - plain).max() > 1e-2 * np.abs(plain).max()
    llm.merge(model.path, tmp_path / "peft", tmp_path / "model.gguf")
    converted = llm.load(tmp_path / "model.gguf")
    first = llm.LoRA.load(tmp_path / "peft", converted)
    for inner, head in (("model.language_model.", "lm_head"), ("language_model.model.", "language_model.lm_head")):
        arrays = {
            k.replace("model.language_model.", inner).replace("lm_head", head): array for k, array in stored.items()
        }
        save_arrays(tmp_path / "peft" / "adapter_model.safetensors", arrays, {})
        for base, expected_adapter in ((model, adapter), (converted, first)):
            again = llm.LoRA.load(tmp_path / "peft", base)
            for now, then in ((again.a, expected_adapter.a), (again.b, expected_adapter.b)):
                assert now.keys() == then.keys()
                for tensor, p in then.items():
                    np.testing.assert_array_equal(now[tensor].stored.read(), p.stored.read())


@pytest.mark.parametrize("name", ["llama, yarn", "llama3", "gemma3", "glm4", "phi3, longrope"])
def test_a_folder_becomes_a_gguf_file(tmp_path: Path, name: str) -> None:
    """merge: the same logits, and with a LoRA adapter those of the model with the adapter."""
    case = theirs.FOLDER_CASES[name]
    made = theirs.model(case)
    folder = save(made, tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    model = llm.load(folder)
    adapter = llm.LoRA(rank=3, targets="attn_output,ffn_down" if case.arch == "phi3" else "all")
    adapter.bind(model)
    draw = np.random.default_rng(1)
    for b in adapter.b.values():
        b.stored.write(draw.normal(size=b.shape).astype(np.float32))
    adapter.save(tmp_path / "peft")
    llm.merge(folder, tmp_path / "peft", tmp_path / "merged.gguf")
    merged = llm.load(tmp_path / "merged.gguf")
    given = ids(12)
    expected = adapted(model, adapter, given)
    ours = logits(merged, given).reshape(expected.shape)
    assert np.abs(ours - expected).max() <= 2e-5 * np.abs(expected).max()
    text = "once upon a time <s> there 12345\n\n ünïcödé"
    assert merged.tokenizer.encode(text) == model.tokenizer.encode(text)


def test_a_fully_trained_folder_becomes_a_gguf_file(tmp_path: Path) -> None:
    case = theirs.FOLDER_CASES["llama3"]
    folder = save(theirs.model(case), tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    model = llm.load(folder)
    trained = llm.TrainedTensors("attn_q,attn_k,ffn_up")
    trained.bind(model)
    draw = np.random.default_rng(1)
    for parameter in trained.arrays.values():
        parameter.stored.write(draw.normal(0, 0.2, parameter.shape).astype(np.float32))
    trained.save(tmp_path / "trained.gguf")
    given = ids(12)
    expected = adapted(model, trained, given)
    same(logits(llm.load(tmp_path / "trained.gguf"), given).reshape(expected.shape), expected)


def test_a_merged_folder_loads_in_transformers(tmp_path: Path) -> None:
    case = theirs.FOLDER_CASES["llama3"]
    folder = save(theirs.model(case), tmp_path / "model", max_shard_size="100KB")
    write_tokenizer(folder, "gpt-2", 300)
    model = llm.load(folder)
    adapter = llm.LoRA(rank=3, targets="all")
    adapter.bind(model)
    draw = np.random.default_rng(1)
    for b in adapter.b.values():
        b.stored.write(draw.normal(size=b.shape).astype(np.float32))
    adapter.save(tmp_path / "peft")
    llm.merge(folder, tmp_path / "peft", tmp_path / "merged")
    loaded = theirs.transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager")
    given = ids(12)
    ours = adapted(model, adapter, given).reshape(*given.shape, -1)
    expected = expected_logits(loaded.double(), given)
    assert np.abs(ours - expected).max() <= 2e-5 * np.abs(expected).max()
    same(logits(llm.load(tmp_path / "merged"), given), expected)


CHANGED: dict[str, tuple[str, dict[str, Any]]] = {  # a case, keys of config.json; None: without the key, "null": null
    "a window of a type without windows": ("llama", {"sliding_window": 5}),
    "a window of glm4": ("glm4", {"sliding_window": 5, "use_sliding_window": True}),
    "a window of olmo2": ("olmo2", {"sliding_window": 5}),
    "a window of hunyuan": ("hunyuan-dense", {"sliding_window": 5, "layer_types": theirs.PATTERN}),
    "whole heads are rotated": ("mistral", {"partial_rotary_factor": 0.5}),
    "whole heads are rotated, in rope_parameters": (
        "qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "a part of phi3's heads": ("phi3, window", {"partial_rotary_factor": 0.25}),
    "exaone4 without its window": ("exaone4, window", {"sliding_window": None}),
    "mistral3 without its rotation": ("mistral3", {"rope_parameters": None}),
    "mistral3 without the type of its rotation": (
        "mistral3", {"rope_parameters": {
            "rope_theta": 1e4, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 7,
        }},
    ),
    "mistral3 with no rotation": ("mistral3", {"rope_parameters": "null"}),
    "a head beside tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "another head beside tied embeddings": ("qwen3", {"tie_word_embeddings": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CHANGED))
def test_keys_have_the_effect_that_they_have_in_transformers(tmp_path: Path, name: str) -> None:
    case, changes = CHANGED[name]
    folder = save(theirs.model(theirs.FOLDER_CASES[case]), tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    given = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: None if value == "null" else value for key, value in given.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    model, given_ids = llm.load(folder), ids(24)
    kind = transformers.AutoModelForCausalLM
    made = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").double().eval()
    expected = expected_logits(made, given_ids)
    np.testing.assert_allclose(logits(model, given_ids), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "key"), [
    ("llama3", "attention_bias"), ("llama3", "mlp_bias"), ("seed_oss", "attention_out_bias"), ("ernie4_5", "use_bias"),
])  # fmt: skip
def test_biases_that_the_keys_exclude_are_refused(tmp_path: Path, name: str, key: str) -> None:
    case = theirs.FOLDER_CASES[name]
    folder = save(theirs.model(case._replace(settings=case.settings | {key: True})), tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    llm.load(folder)
    given = json.loads((folder / "config.json").read_text()) | {key: False}
    (folder / "config.json").write_text(json.dumps(given))
    with pytest.raises(gl.FileError, match=rf"config.json: {key} is False; need true, or no tensor \S*_proj.bias"):
        llm.load(folder)


UNSTATED = {
    "mistral": "windows", "qwen2": "windows", "phi3, window": "windows", "smollm3, window": "rope, windows",
    "exaone4, window": "rope, windows",
}  # fmt: skip


@pytest.mark.parametrize(("name", "bias", "unread"), [
    ("seed_oss", "attention_out_bias", "attn_output.bias"), ("seed_oss", "attention_bias", ""),
    ("ernie4_5", "use_bias", "ffn_gate.bias, ffn_up.bias, ffn_down.bias"), ("granite", "attention_bias", ""),
    ("hunyuan-dense", "attention_bias", "attn_output.bias"),
])  # fmt: skip
def test_biases_that_llama_cpp_does_not_load_are_noted(tmp_path: Path, name: str, bias: str, unread: str) -> None:
    case = theirs.FOLDER_CASES[name]
    folder = save(theirs.model(case._replace(settings=case.settings | {bias: True})), tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    without_marks(folder)
    note = GgufView(HFFolder(folder)).note()
    assert note == (f"llama.cpp does not load files of {name} with {unread}" if unread else "")


@pytest.mark.parametrize("ends", [[2, 7, 9], [7], [2, 4], 2])
def test_tokens_that_end_a_reply_are_in_the_gguf_file(tmp_path: Path, ends: list[int] | int) -> None:
    """Those of generation_config.json; token 4, <|im_end|>, is known by its name."""
    folder = save(theirs.model(theirs.FOLDER_CASES["qwen3"]), tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    view = GgufView(HFFolder(folder))
    there = Tokenizer(view.metadata)
    assert llm.load(folder).tokenizer.end_ids <= there.end_ids and set(np.atleast_1d(ends)) <= there.end_ids
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eot", "eom")]
    assert [view.metadata[key] for key in keys if key in view.metadata] == [i for i in np.atleast_1d(ends) if i > 4]


@pytest.mark.parametrize("name", list(theirs.FOLDER_CASES))
def test_what_a_gguf_file_does_not_state_is_noted(tmp_path: Path, name: str) -> None:
    folder = save(theirs.model(theirs.FOLDER_CASES[name]), tmp_path / "model")
    write_tokenizer(folder, "gpt-2", 300)
    without_marks(folder)
    note = GgufView(HFFolder(folder)).note()
    listed = UNSTATED.get(name, "")
    assert f"this model's {listed}: " in note if listed else note == "", note
