"""Every model family in llama.cpp: logits and greedy tokens of random small models, alone, with an adapter, merged.

Random weights: nothing is learned, so nothing but equal arithmetic gives equal numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="the package llama-cpp-python is not installed")

from examples.random_gguf import ARCHS, SHAPES, write_random
from gradloom import llm, ops
from gradloom.base.errors import FileError
from gradloom.llm import families
from gradloom.llm.llama_cpp import LlamaCpp
from tests.client.client import Client
from tests.client.gelu import table_geglu
from tests.client.test_llama_cpp import greedy, logits

YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32,
}  # fmt: skip
# name -> architecture, settings of write_random, further metadata; windows are shorter than the longer rows
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{arch: (arch, {}, {}) for arch in ARCHS},
    **{f"{arch}, untied": (arch, {"tied": False}, {}) for arch in ARCHS if not ARCHS[arch].untied},
    "llama, yarn": ("llama", {}, YARN),
    "llama, yarn and a magnitude": ("llama", {}, YARN | {"rope.scaling.attn_factor": 1.3}),
    "llama, factors of llama 3.1": ("llama", {"rope_factors": [1, 1, 1.5, 2, 3, 5, 8, 8]}, {}),
    "llama, wide heads": ("llama", {"head_dim": 24}, {}),
    "gemma3, a window in two of three blocks": ("gemma3", {"layers": 4}, {"attention.sliding_window_pattern": 3}),
    "gemma3, the default pattern": ("gemma3", {"layers": 7}, {"attention.sliding_window_pattern": 6}),
    "gemma3, linear scaling": (
        "gemma3", {}, {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 5000.0},
    ),
    "gemma3, a cap of the logits": ("gemma3", {}, {"final_logit_softcapping": 3.0}),
    "gemma3, no windows": ("gemma3", {}, {"attention.sliding_window": 0}),
    "phi3, a window that is not used": ("phi3", {}, {"attention.sliding_window": 16}),
    "smollm3, a block without rotation": ("smollm3", {"layers": 5}, {}),
    "granite, no rotation": ("granite", {}, {"rope.scaling.finetuned": False}),
    "olmo2, no windows": ("olmo2", {}, {"attention.sliding_window": 0}),
    "olmo2, all blocks see all in turn": ("olmo2", {"layers": 5}, {}),
    "olmo2, yarn": ("olmo2", {"layers": 4}, YARN | {"rope.scaling.attn_factor": 1.2}),
    "olmo2, a base of windows that is not used": ("olmo2", {"layers": 4}, {"rope.freq_base_swa": 500.0}),
    "exaone4, a base of windows that is not used": (
        "exaone4", {"layers": 64}, {"attention.sliding_window": 24, "rope.freq_base_swa": 500.0},
    ),
    "exaone4, 64 blocks": ("exaone4", {"layers": 64}, {"attention.sliding_window": 24}),
    "mistral3, no temperature": ("mistral3", {}, {"attention.temperature_scale": 0.0}),
    "glm4, all of a head turned": ("glm4", {"rope_dims": 16}, {}),
    "qwen3, yarn": ("qwen3", {}, YARN),
    "seed_oss, wide heads": ("seed_oss", {"head_dim": 24}, {}),
    "ernie4_5, wide heads": ("ernie4_5", {"head_dim": 24}, {}),
    "hunyuan-dense, wide heads": ("hunyuan-dense", {"head_dim": 24}, {}),
    "minicpm, its factors": (
        "minicpm", {}, {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 0.5},
    ),
}  # fmt: skip
LIMIT = 1e-4  # of the scale of the logits
GELU_LIMIT = 2e-3  # of gemma3: gelu is f16 in llama.cpp, see test_gelu_of_the_table


def write(folder: Path, name: str, **more: Any) -> Path:
    arch, settings, metadata = CASES[name]
    keys = {f"{arch}.{key}": value for key, value in (metadata | more).items()}
    return write_random(folder / "model.gguf", arch, **SHAPES["tiny"] | {"std": 0.1} | settings, metadata=keys)


def random_adapter(model: llm.Model, path: Path) -> llm.LoRA:
    """An adapter of all linear layers of the blocks, and its file."""
    adapter = llm.LoRA(rank=4, alpha=6.0, targets="all")
    adapter.bind(model)
    rng = np.random.default_rng(1)
    for arrays in (adapter.a, adapter.b):
        for p in arrays.values():
            p.assign(rng.normal(0, 0.1, p.shape))
    adapter.save(path)
    return adapter


def agree(theirs: np.ndarray, ours: np.ndarray, limit: float = LIMIT) -> bool:
    return bool(np.abs(theirs - ours).max() < limit * np.abs(theirs).max())


def their_logits(path: Path, ids: np.ndarray, lora: Path | None = None, context: int = 512) -> np.ndarray:
    """f32 [T, V]. The class of llama-cpp-python, which `Client` uses, replaces the file's yarn_beta_fast and _slow."""
    with LlamaCpp(path, lora, context, threads=1) as program:
        return np.concatenate([block.copy() for block in program.logits(ids.tolist())])


def test_every_family_is_here() -> None:
    assert {arch for arch, _, _ in CASES.values()} == set(families.names())


@pytest.mark.parametrize("name", CASES)
def test_logits(tmp_path: Path, name: str) -> None:
    """Rows shorter and longer than the windows; with an adapter and without."""
    path = write(tmp_path, name)
    model = llm.load(path)
    adapter = random_adapter(model, tmp_path / "adapter.gguf")
    limit = GELU_LIMIT if model.config.architecture == "gemma3" else LIMIT
    for length in (9, 100):
        ids = np.random.default_rng(length).integers(259, 512, (1, length)).astype(np.int32)
        plain, changed = (their_logits(path, ids[0], lora) for lora in (None, tmp_path / "adapter.gguf"))
        assert np.abs(plain - changed).max() > 1e-2 * np.abs(plain).max(), "the adapter should matter"
        assert agree(plain, logits(model, ids)[0], limit)
        assert agree(changed, logits(model, ids, adapter)[0], limit)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("gemma3")])
def test_gelu_of_the_table(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gemma3's differences from llama.cpp are those of ggml_vec_geglu_f32's table: with it they vanish at positions
    where every gate is rounded to the same number of f16, which f32 noise prevents at others."""
    path = write(tmp_path, name)
    model = llm.load(path)
    ids = np.random.default_rng(1).integers(259, 512, (20, 9)).astype(np.int32)
    theirs = np.stack([their_logits(path, row) for row in ids])
    errors = []
    for geglu in (ops.geglu, table_geglu):
        monkeypatch.setattr(ops, "geglu", geglu)
        errors.append(np.abs(theirs - logits(model, ids)).max(-1) / np.abs(theirs).max())
    exact, table = errors
    assert exact.min() > 3e-5
    assert table.min() < 1e-6 and np.median(table) < LIMIT and np.median(table) < np.median(exact) / 4
    assert table.max() < 5e-4


@pytest.mark.parametrize("name", ARCHS)
def test_greedy_tokens_of_the_adapter_and_of_the_merged_file(tmp_path: Path, name: str) -> None:
    usual = {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}  # see their_logits
    path, merged = write(tmp_path, name, **usual), tmp_path / "merged.gguf"
    model = llm.load(path)
    adapter = random_adapter(model, tmp_path / "adapter.gguf")
    llm.merge(path, tmp_path / "adapter.gguf", merged, "f32")
    prompt = np.random.default_rng(0).integers(259, 512, 40).tolist()
    ours = greedy(model, prompt, 24, adapter)
    assert len(ours) > 0 and greedy(llm.load(merged), prompt, 24) == ours
    assert Client(path, lora=tmp_path / "adapter.gguf").greedy(prompt, len(ours)) == ours
    assert Client(merged).greedy(prompt, len(ours)) == ours


@pytest.mark.parametrize(("length", "context"), [(200, 256), (300, 512)])
def test_factors_of_short_and_long_texts(tmp_path: Path, length: int, context: int) -> None:
    """longrope: llama.cpp chooses by the context that it was given, in steps of 256; this package by the row."""
    transformers_models = pytest.importorskip("tests.llm.transformers_models", reason="transformers is not installed")
    case = transformers_models.CASES["phi3, longrope"]
    sizes = {"original_max_position_embeddings": 256}
    rope = case.settings["rope_parameters"] | sizes
    case = case._replace(
        settings=case.settings | sizes | {"rope_parameters": rope, "max_position_embeddings": 512},
        metadata=case.metadata | {"rope.scaling.original_context_length": 256},
    )
    path = transformers_models.write(tmp_path / "model.gguf", case, transformers_models.model(case))
    ids = np.random.default_rng(0).integers(3, 320, (1, length)).astype(np.int32)
    assert agree(their_logits(path, ids[0], context=context), logits(llm.load(path), ids)[0])


@pytest.mark.parametrize("name", ARCHS)
def test_compare(tmp_path: Path, name: str) -> None:
    """The same in `compare`, block by block."""
    found = llm.compare(write(tmp_path, name), context=128, tokens=300, layers=True)
    size = 100 if name == "gemma3" else 1
    assert abs(found.difference) < 1e-5 * size and found.kl < 1e-8 * size and found.other_ids == 0
    assert found.same_top > 0.99 and found.layers is not None and 0 < max(found.layers) < 1e-5 * size
    assert (found.first_layer is None) == (name != "gemma3")


def test_an_adapter_in_compare(tmp_path: Path) -> None:
    path = write(tmp_path, "gemma3")
    adapter = random_adapter(llm.load(path), tmp_path / "adapter.gguf")
    plain = llm.compare(path, context=128, tokens=100)
    for given in (adapter, tmp_path / "adapter.gguf"):
        found = llm.compare(path, adapter=given, context=128, tokens=100)
        assert abs(found.difference) < 1e-4 < 1e-2 < abs(found.nll - plain.nll)


def test_a_file_that_llama_cpp_does_not_load(tmp_path: Path) -> None:
    path = write(tmp_path, "llama")
    data = path.read_bytes()
    path.write_bytes(data[:-4096])
    with pytest.raises(FileError, match=r"llama\.cpp .* cannot load it: "):
        LlamaCpp(path)
