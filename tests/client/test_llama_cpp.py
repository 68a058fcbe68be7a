"""llama.cpp as a client of our files: adapters and merged models that we write do there what they do here.

Needs the package llama-cpp-python, which builds llama.cpp from source (some minutes); run by ./run_tests.sh --client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="the package llama-cpp-python is not installed")

import gradloom as gl
from examples.random_gguf import SHAPES, TYPES, write_random
from gradloom import llm
from gradloom.files import open_gguf
from gradloom.llm.generate import complete
from tests.client.client import Client
from tests.real_data import DATA

STORIES, SHAKESPEARE = DATA / "gguf" / "stories260K.gguf", DATA / "text" / "tinyshakespeare.txt"
PROMPT, COUNT = "Once upon a time", 200
needs_data = pytest.mark.skipif(
    not (STORIES.exists() and SHAKESPEARE.exists()),
    reason="stories260K.gguf and tinyshakespeare.txt are not in shared/data",
)


def greedy(model: llm.Model, prompt: Any, count: int, adapter: Any = None) -> list[int]:
    return list(complete(model, prompt, adapter, count, llm.Sampling(temperature=0)).tokens)


def logits(model: llm.Model, rows: np.ndarray, adapter: Any = None) -> np.ndarray:
    """rows [B, T] -> [B, T, V]."""
    leaves = [gl.input(name, rows.shape, "i32") for name in ("tokens", "positions")]
    run = gl.compile(model.logits(*leaves, adapter))
    found = run(tokens=rows, positions=np.broadcast_to(np.arange(rows.shape[1], dtype=np.int32), rows.shape))[0]
    return found.reshape(*rows.shape, -1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[llm.Run, Path]:
    """stories260K and an adapter of every linear layer that has learned a page of Shakespeare nearly by heart, so that
    it matters and is sure of what comes next; and the adapter's file."""
    folder = tmp_path_factory.mktemp("client")
    text = folder / "text.txt"
    text.write_text(SHAKESPEARE.read_text()[:4000])
    adapter = llm.LoRA(rank=16, targets="all", seed=0)
    run = llm.finetune(
        str(STORIES), str(text), adapter=adapter, context=128, batch_size=4, steps=400, lr=1e-2, val_split=0,
        progress=False,
    )  # fmt: skip
    run.save(folder / "adapter.gguf")
    return run, folder / "adapter.gguf"


@needs_data
def test_two_hundred_greedy_tokens_of_the_base() -> None:
    client, model = Client(STORIES), llm.load(STORIES)
    prompt = client.encode(PROMPT)
    assert model.tokenizer.encode(PROMPT) == prompt
    found = client.greedy(prompt, COUNT)
    assert greedy(model, PROMPT, COUNT) == found
    assert "there was a little girl named Lily" in client.decode(found)


@needs_data
def test_an_adapter_does_there_what_it_does_here(trained: tuple[llm.Run, Path]) -> None:
    run, path = trained
    base, adapted = Client(STORIES), Client(STORIES, lora=path)
    for text in (PROMPT, "KING RICHARD:\nThe", "a"):
        prompt = base.encode(text)
        ours = greedy(run.model, prompt, COUNT, run.adapter)
        assert adapted.greedy(prompt, len(ours)) == ours
        assert base.greedy(prompt, len(ours)) != ours, "the adapter should matter"
    ids = np.array([base.encode(SHAKESPEARE.read_text()[90_000:91_000])[:400]], np.int32)
    assert np.abs(adapted.logits(ids[0]) - logits(run.model, ids, run.adapter)[0]).max() < 2e-3


@needs_data
def test_a_merged_f32_file_is_the_adapted_model(trained: tuple[llm.Run, Path], tmp_path: Path) -> None:
    run, path = trained
    llm.merge(STORIES, path, tmp_path / "merged.gguf", "f32")
    client = Client(tmp_path / "merged.gguf")
    for text in (PROMPT, "KING RICHARD:\nThe"):
        prompt = client.encode(text)
        ours = greedy(run.model, prompt, COUNT, run.adapter)
        assert client.greedy(prompt, len(ours)) == ours == greedy(llm.load(tmp_path / "merged.gguf"), prompt, COUNT)


@needs_data
@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_merged_files_of_other_types(trained: tuple[llm.Run, Path], tmp_path: Path, kind: str) -> None:
    """llama.cpp rounds activations to f16 or to 8 bits there. Teacher-forced on the page that the model knows, and on
    what it says itself, the same tokens win all the same; on a text that it does not know, many pairs of tokens are
    closer than that rounding, and llama.cpp does not agree with itself: with the same numbers in an f32 file it says
    what we say, and parts from its own 8-bit products exactly as often as we do. Perplexity is the same everywhere."""
    run, path = trained
    llm.merge(STORIES, path, tmp_path / "merged.gguf", kind)
    nothing = llm.LoRA(rank=1, seed=0)
    nothing.bind(run.model)
    nothing.save(tmp_path / "nothing.gguf")
    llm.merge(tmp_path / "merged.gguf", tmp_path / "nothing.gguf", tmp_path / "same.gguf", "f32")
    client, same = Client(tmp_path / "merged.gguf"), Client(tmp_path / "same.gguf")
    model = llm.load(tmp_path / "merged.gguf")
    held = np.array(client.encode(SHAKESPEARE.read_text()[200_000:300_000])[: 16 * 256 + 1], np.int32)
    tokens = held[:-1].reshape(16, 256).copy()
    tokens[:, 0] = client.llama.token_bos()
    prompts = [row[:16].tolist() for row in run.data.tokens]
    own = np.array([p + greedy(model, p, 112) for p in prompts], np.int32)  # as long as the samples that it has seen
    for what, rows, labels, sure in (
        ("known", run.data.tokens, run.data.labels, True),
        ("its own", own[:, :-1], own[:, 1:], True),
        ("held", tokens, held[1:].reshape(16, 256), False),
    ):
        counts = labels.ravel() >= 0
        ours = logits(model, rows).reshape(-1, model.config.vocab_size)[counts]
        theirs, exact = (np.concatenate([c.logits(row) for row in rows])[counts] for c in (client, same))
        agreed, bound = (np.mean(x.argmax(-1) == theirs.argmax(-1)) for x in (ours, exact))
        (ppl, unc), (their, _) = (perplexity(x.astype(np.float64), labels.ravel()[counts]) for x in (ours, theirs))
        print(
            f"{kind}, {what} text ({counts.sum()} tokens): agreement {100 * agreed:.2f} %, of llama.cpp with itself in "
            f"f32 {100 * bound:.2f} %; perplexity {ppl:.3f} +- {unc:.3f}, there {their:.3f}"
        )
        assert abs(ppl - their) < unc
        assert np.abs(ours - exact).max() < 2e-3
        assert np.mean(ours.argmax(-1) == exact.argmax(-1)) >= 0.999
        assert agreed >= (0.99 if sure else bound - 0.001)


@needs_data
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_what_differs_there_is_rounding_alone(trained: tuple[llm.Run, Path], tmp_path: Path, kind: str) -> None:
    """Every product of llama.cpp is our decoded weight times its activations, these rounded to what its weight's type
    asks for and nothing else: f32 as they are; f16; 8 bits per 32 numbers with a scale in f16. (Such rounding makes a
    step of the last bit before it into one of 1/127: the whole 8-bit model, computed once in f32 and once in f64, has
    98 % of its likeliest tokens in common on a held text. So no more than this can be had, and no more is asked.)"""
    run, path = trained
    llm.merge(STORIES, path, tmp_path / "merged.gguf", kind)
    file, seen, worst = open_gguf(tmp_path / "merged.gguf"), [], {}

    def watch(name: str, x: np.ndarray, y: np.ndarray) -> None:
        seen.append(name)
        weight = file.floats(name).astype(np.float64)
        for what, given in (("as they are", x), ("rounded", rounded(x, file.tensors[name].kind))):
            error = np.linalg.norm(given.astype(np.float64) @ weight.T - y) / np.linalg.norm(y)
            worst[what] = max(worst.get(what, 0), error)

    Client(tmp_path / "merged.gguf", watch=watch).logits(run.data.tokens[0])
    print(
        f"{kind}: {len(seen)} products, worst error {worst['rounded']:.1e} with rounded activations, "
        f"{worst['as they are']:.1e} with the activations as they are"
    )
    assert len(seen) == 7 * run.model.config.layers + 1
    assert worst["rounded"] < 1e-6
    assert kind == "f32" or worst["as they are"] > 1e-4


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """f32 [T, n] as ggml's CPU backend gives it to a product with a weight of this type (quantize_row_q8_0)."""
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16).astype(np.float32)
    assert kind in ("q8_0", "q4_0")
    blocks = x.reshape(-1, 32)
    top = np.abs(blocks).max(1, keepdims=True)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    scale = (top / np.float32(127)).astype(np.float16).astype(np.float32)
    return (np.rint(blocks * inverse) * scale).reshape(x.shape)


def perplexity(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(perplexity, its standard error) of [N, V] against i32 [N]."""
    shifted = logits - logits.max(-1, keepdims=True)
    nll = np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(labels)), labels]
    ppl = math.exp(nll.mean())
    return ppl, ppl * float(nll.std(ddof=1)) / math.sqrt(len(nll))


SPLIT = ("llama", "qwen2", "qwen3")  # families with a tensor for each linear layer; all: test_families.py
VARIANTS: dict[str, Callable[[Path], Path]] = {
    **{arch: lambda p, arch=arch: write_random(p, arch, **SHAPES["tiny"], std=0.1) for arch in SPLIT},
    "untied": lambda p: write_random(p, **SHAPES["tiny"], std=0.1, tied=False),
    "linear scaling": lambda p: write_random(
        p, **SHAPES["tiny"], std=0.1,
        metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "llama 3.1's factors": lambda p: write_random(
        p, **SHAPES["tiny"], std=0.1, rope_factors=[1, 1, 1.5, 2, 3, 5, 8, 8]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_with_an_adapter_of_all_matrices_and_without(tmp_path: Path, name: str) -> None:
    """Random weights: nothing is learned, so nothing but equal arithmetic gives equal numbers."""
    path = VARIANTS[name](tmp_path / "model.gguf")
    model = llm.load(path)
    targets = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ends = () if model.tied else ("token_embd", "output")
    adapter = llm.LoRA(rank=4, alpha=6.0, targets=(*targets, *ends), rslora=name == "qwen3")
    adapter.bind(model)
    rng = np.random.default_rng(1)
    for arrays in (adapter.a, adapter.b):
        for p in arrays.values():
            p.assign(rng.normal(0, 0.2, p.shape))
    adapter.save(tmp_path / "adapter.gguf")
    ids = rng.integers(259, 512, (1, 60)).astype(np.int32)
    plain, adapted = Client(path).logits(ids[0]), Client(path, lora=tmp_path / "adapter.gguf").logits(ids[0])
    assert np.abs(plain - adapted).max() > 0.1, "the adapter should matter"
    for theirs, ours in ((plain, logits(model, ids)[0]), (adapted, logits(model, ids, adapter)[0])):
        assert np.abs(theirs - ours).max() < 2e-4 * np.abs(ours).max()


@pytest.mark.parametrize("kind", [t for t in TYPES if t != "f32"])
def test_logits_from_every_type_of_file(tmp_path: Path, kind: str) -> None:
    """Within what rounding the activations costs there."""
    path = write_random(tmp_path / "model.gguf", kind=kind, **SHAPES["small"], std=0.05)
    ids = np.random.default_rng(1).integers(259, 512, (1, 60)).astype(np.int32)
    ours, theirs = logits(llm.load(path), ids)[0], Client(path).logits(ids[0])
    error = np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(ours**2))
    print(f"{kind}: logits differ by {100 * error:.2f} %")
    assert error < (0.01 if kind in ("f16", "bf16") else 0.06)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_probabilities_of_classes_there_are_those_here(tmp_path: Path, method: str) -> None:
    """Of a qwen3 model with a head: the classifier in its file."""
    import llama_cpp

    base, path = write_random(tmp_path / "base.gguf", "qwen3"), tmp_path / "made.gguf"
    texts = [f"{word} {word} and {other}" for word in ("good", "bad", "fair") for other in ("day", "night", "a tale")]
    rows = [{"text": text, "label": text.split()[0]} for text in texts]
    trains = {"adapter": llm.LoRA(rank=4, seed=0)} if method == "lora" else {"method": "full", "train_dtype": "f32"}
    run = llm.finetune(
        str(base), rows, objective="classify", context=64, epochs=20, lr=1e-2, val_split=0.0, progress=False, **trains
    )
    if method == "full":
        run.save(path)
    else:
        run.save(tmp_path / "adapter.gguf")
        llm.merge(base, tmp_path / "adapter.gguf", path)
    client = llama_cpp.Llama(str(path), embedding=True, n_ctx=64, n_batch=64, n_ubatch=64, verbose=False)
    assert client.pooling_type() == llama_cpp.LLAMA_POOLING_TYPE_RANK
    assert llama_cpp.llama_model_n_cls_out(client.model) == 3
    here = llm.predict(path, texts)
    there = []
    for text in texts:
        client.reset()
        client._batch.reset()
        client._batch.add_sequence(client.tokenize(text.encode()), 0, False)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(client.ctx), True)
        client._ctx.decode(client._batch)
        there.append(llama_cpp.llama_get_embeddings_seq(client.ctx, 0)[:3])
    found = here.probabilities
    assert found is not None
    assert np.ptp(found, axis=0).max() > 0.3
    np.testing.assert_allclose(np.array(there), found, atol=2e-3)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("method", ["lora", "full"])
@needs_data
def test_embeddings_there_are_those_here(tmp_path: Path, pooling: str, method: str) -> None:
    """Of the merged or trained model's file, whose pooling_type and end of text llama.cpp reads."""
    from llama_cpp import Llama

    sentences = [s.strip() for s in SHAKESPEARE.read_text()[:3000].split("\n\n") if s.strip()]
    lines = [{"anchor": text, "positive": text.upper()} for text in sentences[:12]]
    trains = llm.TrainedTensors() if method == "full" else llm.LoRA(targets="all")
    run = llm.finetune(
        str(STORIES), lines, trains, objective="embed", pooling=pooling, context=128, epochs=3, lr=1e-3, val_split=0.0,
        progress=False,
    )  # fmt: skip
    path = tmp_path / "model.gguf"
    run.save(path if method == "full" else tmp_path / "a.gguf")
    if method == "lora":
        llm.merge(STORIES, tmp_path / "a.gguf", path)
    client = Llama(str(path), embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, verbose=False)
    texts = [text for text in sentences if len(text) < 300][:10]
    there = np.array([client.embed(text, normalize=True) for text in texts])
    here = llm.embed(path, texts)
    assert there.shape == here.shape
    np.testing.assert_allclose(here, there, atol=2e-3)
    np.testing.assert_allclose(llm.embed(run.model, texts, run.adapter), here, atol=1e-4)
