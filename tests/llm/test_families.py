"""Every family against PyTorch: logits, loss and all gradients of packed rows, to f32 noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from examples.random_gguf import SHAPES, write_random  # noqa: E402
from gradloom import llm  # noqa: E402
from tests.llm.given_lora import LINEAR, GivenLora, lora_arrays, packed  # noqa: E402
from tests.llm.torch_lora import TorchLora  # noqa: E402
from tests.noise import assert_all_noise, assert_noise  # noqa: E402

pytestmark = pytest.mark.oracle
KINDS = (torch.float32, torch.float64)
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"arch": "llama"},
    "llama, an output of its own": {"arch": "llama", "tied": False},
    "llama, part of a head turned": {"arch": "llama", "rope_dims": 8, "rope_base": 500.0},
    "llama, one kv head": {"arch": "llama", "kv_heads": 1},
    "llama, wide heads": {"arch": "llama", "head_dim": 24},
    "llama, linear scaling": {
        "arch": "llama",
        "metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    },
    "llama, factors of llama 3.1": {"arch": "llama", "rope_factors": [1, 1, 1.5, 2, 3, 5, 8, 8]},
    "qwen2": {"arch": "qwen2"},
    "qwen2, untied, eps": {"arch": "qwen2", "tied": False, "eps": 1e-6, "rope_base": 1e6},
    "qwen3": {"arch": "qwen3"},
    "qwen3, wide heads": {"arch": "qwen3", "head_dim": 32, "kv_heads": 4},
}


@pytest.fixture(params=VARIANTS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    options = SHAPES["tiny"] | {"std": 0.1} | VARIANTS[request.param]
    return write_random(tmp_path / "model.gguf", **options)


def test_logits_loss_and_gradients_of_lora(path: Path) -> None:
    """Rank 4 on every linear layer, embedding and output too where both are there, B not 0; rows of several samples."""
    targets = LINEAR
    if any(t.name == "output.weight" for t in gguf.GGUFReader(path).tensors):
        targets = (*LINEAR, "token_embd", "output")
    arrays = lora_arrays(path, 4, targets, b_std=0.1)
    batch = packed(512, 3, 29)
    ours, twins = GivenLora(path, arrays, alpha=6.0), [TorchLora(path, arrays, kind, alpha=6.0) for kind in KINDS]
    with torch.no_grad():
        found = [t.model.logits(*batch[:2], t.adapter, t.scale).numpy() for t in twins]
        plain = [t.model.logits(*batch[:2]).numpy() for t in twins]
    assert np.abs(found[1] - plain[1]).max() > 0.1, "the adapter should matter"
    assert_noise("logits", ours.logits(*batch[:2]), *found, longest=batch[0].size)
    assert_noise(
        "logits without the adapter", ours.logits(*batch[:2], with_adapter=False), *plain, longest=batch[0].size
    )
    loss, grads = ours.gradients(*batch)
    (loss32, grads32), (loss64, grads64) = (t.gradients(*batch) for t in twins)
    assert_noise("loss", loss, loss32, loss64, batch[0].size)
    assert len(grads) == 2 * len(arrays) >= 2 * 7 * 2
    for name, grad in grads64.items():
        assert np.abs(grad).max() > 1e-6, f"{name}: a gradient of nothing proves nothing"
    assert_all_noise(grads, grads32, grads64, batch[0].size)


def test_gradients_of_every_tensor(path: Path) -> None:
    """Full fine-tuning: embedding, norms, biases and matrices."""
    batch = packed(512, 2, 23, seed=5)
    ours = GivenLora(path, {})
    tensors = llm.TrainedTensors("all")
    tensors.bind(ours.model)
    loss, grads = ours.gradients(*batch, adapter=tensors)
    found = []
    for kind in KINDS:
        model = TorchLora(path, {}, kind).model
        named = model.train([n for n in model.weights if n != "rope_freqs.weight"])
        total = model.loss(*batch)
        their = torch.autograd.grad(total, list(named.values()))
        found.append((total.item(), {k: g.numpy() for k, g in zip(named, their, strict=True)}))
    (loss32, grads32), (loss64, grads64) = found
    assert_noise("loss", loss, loss32, loss64, batch[0].size)
    for name, grad in grads64.items():
        if not name.endswith("attn_k.bias"):  # the same amount on every score of a query: the gradient is nearly 0
            assert np.abs(grad).max() > 1e-6, f"{name}: a gradient of nothing proves nothing"
    assert_all_noise(grads, grads32, grads64, batch[0].size)


def test_packed_samples_do_not_see_each_other(path: Path) -> None:
    """A row of two samples gives each the logits that it has alone."""
    ours = GivenLora(path, {})
    tokens = np.random.default_rng(2).integers(3, 512, (1, 20)).astype(np.int32)
    positions = np.int32([[*range(13), *range(7)]])
    both = ours.logits(tokens, positions, with_adapter=False)[0]
    first = ours.logits(tokens[:, :13], positions[:, :13], with_adapter=False)[0]
    second = ours.logits(tokens[:, 13:], positions[:, 13:], with_adapter=False)[0]
    alone = np.concatenate([first, second])
    assert np.abs(both - alone).max() < 1e-5 * np.abs(alone).max()
