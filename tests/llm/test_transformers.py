"""Every family against transformers in float64: logits, and the gradient of every tensor, of texts shorter and longer
than the windows; generation with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import gradloom as gl
from gradloom import llm
from gradloom.llm.generate import Generator

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from tests.llm import transformers_models as theirs  # noqa: E402

pytestmark = pytest.mark.oracle
NAMES = list(theirs.CASES)


@pytest.fixture(params=NAMES, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[theirs.Case, Any, Path]:
    """(case, transformers' model, its GGUF file)"""
    torch.set_num_threads(1)
    case = theirs.CASES[request.param]
    made = theirs.model(case)
    return case, made, theirs.write(tmp_path_factory.mktemp("model") / "model.gguf", case, made)


def ids(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(3, theirs.VOCAB, (2, length)).astype(np.int32)


@pytest.mark.parametrize("length", [4, 24, 48])
def test_logits(pair: tuple[theirs.Case, Any, Path], length: int) -> None:
    _, made, path = pair
    given = ids(length)
    model = llm.load(path)
    tokens, positions = (gl.input(name, given.shape, "i32") for name in ("tokens", "positions"))
    run = gl.compile(model.logits(tokens, positions))
    places = np.broadcast_to(np.arange(length, dtype=np.int32), given.shape)
    ours = run(tokens=given, positions=places)[0].reshape(*given.shape, -1)
    with torch.no_grad():
        expected = made(torch.tensor(given, dtype=torch.int64)).logits.numpy()
    assert np.abs(ours - expected).max() <= 1e-5 * np.abs(expected).max()


def test_gradients_of_every_tensor(pair: tuple[theirs.Case, Any, Path]) -> None:
    case, made, path = pair
    given = ids(24)
    model = llm.load(path)
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
    found = {theirs.tensor_name(case, name): (name, p.grad.numpy()) for name, p in made.named_parameters()}
    assert set(found) == set(ours)
    for tensor, (name, gradient) in found.items():
        right = theirs.stored(case, made, name, gradient)
        size = np.abs(right).max()
        assert size > 1e-6 or tensor.endswith("attn_k.bias"), tensor
        assert np.abs(ours[tensor] - right).max() <= 1e-4 * max(size, 1e-3), tensor


def test_the_cache_gives_the_logits_of_the_whole_text(pair: tuple[theirs.Case, Any, Path]) -> None:
    _, made, path = pair
    text = ids(40)[0]
    generator = Generator(llm.load(path), rows=48)
    with torch.no_grad():
        expected = made(torch.tensor(text[None], dtype=torch.int64)).logits[0].numpy()
    for end in (1, 9, 10, 39, 40):
        last = generator.feed(text[generator.length : end])
        if end <= 32:  # transformers' longrope goes by the whole text
            continue
        assert np.abs(last - expected[end - 1]).max() <= 1e-5 * np.abs(expected).max()


def test_an_adapter_of_fused_layers_has_the_modules_of_transformers(tmp_path: Path) -> None:
    case = theirs.CASES["phi3"]
    model = llm.load(theirs.write(tmp_path / "model.gguf", case, theirs.model(case)))
    default, adapter = llm.LoRA(rank=2), llm.LoRA(rank=2, targets="qkv_proj,gate_up_proj,o_proj,down_proj")
    assert {name.split(".")[2] for name in default.choose(model)} == {"attn_qkv", "attn_output"}
    adapter.bind(model)
    adapter.save(tmp_path / "peft")
    kept = set(safetensors.numpy.load_file(tmp_path / "peft/adapter_model.safetensors"))
    modules = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in kept}
    named = {name for name, _ in theirs.model(case).named_modules()}
    assert len(modules) == 4 * theirs.LAYERS and modules <= named
    assert set(llm.LoRA.load(tmp_path / "peft", model).a) == set(adapter.a)
