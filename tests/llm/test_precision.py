"""Language models with precision="bf16": gradients, memory, verify, generation; LoRA, full, quantised bases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradloom import llm
from gradloom.llm import LoRA, TrainedTensors
from gradloom.llm.generate import Generator
from gradloom.llm.plan import plan
from gradloom.llm.verify import verify
from tests.llm.given_lora import LINEAR, GivenLora, lora_arrays, packed
from tests.llm.random_models import rows_of, write
from tests.real_data import DATA

STORIES = DATA / "gguf" / "stories260K.gguf"
TEXT = DATA / "text" / "tinyshakespeare.txt"
KINDS = ({"tied": False}, {"kind": "q8_0", "width": 64, "heads": 2, "head_dim": 32, "ffn": 96}, {"kind": "f16"})


def error(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """The median over the arrays of the relative L2 error."""
    each = [np.linalg.norm(found[k] - exact[k]) / np.linalg.norm(exact[k]) for k in exact if np.any(exact[k])]
    return float(np.median(each))


@pytest.mark.oracle
@pytest.mark.parametrize("changes", KINDS, ids=["f32", "q8_0", "f16"])
def test_gradients_of_lora_are_as_near_to_float64_as_those_of_autocast(tmp_path: Path, changes: dict[str, Any]) -> None:
    """B is not zero, so that both matrices have gradients."""
    torch = pytest.importorskip("torch")
    from tests.llm.torch_lora import TorchLora

    path = write(tmp_path, "qwen3" if "head_dim" in changes else "llama", **changes)
    arrays = lora_arrays(path, targets=LINEAR, b_std=0.1)
    batch = packed(300, 3, 40)
    loss, found = GivenLora(path, arrays, precision="bf16", threads=1).gradients(*batch)
    numpy_loss, defined = GivenLora(path, arrays, precision="bf16", backend="numpy").gradients(*batch)
    exact_loss, exact = TorchLora(path, arrays, torch.float64).gradients(*batch)
    with torch.autocast("cpu", torch.bfloat16):
        autocast_loss, autocast = TorchLora(path, arrays, torch.float32).gradients(*batch)
    assert 1e-4 < error(found, exact) <= error(autocast, exact)
    assert abs(loss - exact_loss) <= max(abs(autocast_loss - exact_loss), 2e-3 * exact_loss)
    assert error(found, defined) <= 0.5 * error(found, exact) and abs(loss - numpy_loss) < 1e-3 * abs(loss)


@pytest.mark.oracle
def test_gradients_of_full_training_are_as_near_to_float64_as_those_of_autocast(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.llm.torch_model import TorchModel

    path = write(tmp_path, "llama", tied=False)
    batch = packed(300, 3, 40)
    adapter = TrainedTensors("all")
    ours = GivenLora(path, {}, precision="bf16", threads=1)
    adapter.bind(ours.model)
    loss, found = ours.gradients(*batch, adapter=adapter)

    def theirs(kind: Any) -> tuple[float, dict[str, np.ndarray]]:
        model = TorchModel(path, kind)
        named = model.train(list(found))
        total = model.loss(*batch)
        return total.item(), {
            k: g.double().numpy() for k, g in zip(named, torch.autograd.grad(total, list(named.values())), strict=True)
        }

    exact_loss, exact = theirs(torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        _, autocast = theirs(torch.float32)
    assert 1e-4 < error(found, exact) <= error(autocast, exact)
    assert abs(loss - exact_loss) <= 2e-3 * exact_loss


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "adapter", [lambda: LoRA(rank=8), lambda: LoRA(rank=8, targets="all"), lambda: TrainedTensors("all")]
)
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_activations_take_at_most_seventy_percent(tmp_path: Path, arch: str, adapter: Any) -> None:
    """512 tokens x 4, in a model of the proportions of SmolLM2."""
    shape = {"layers": 6, "width": 144, "heads": 9, "kv_heads": 3, "ffn": 384, "vocab": 1024, "context": 512}
    path = write(tmp_path, arch, **shape, **({"head_dim": 16} if arch == "qwen3" else {}))
    sizes = {"context": 512, "batch_size": 4, "micro_batch_size": 4, "threads": 2}
    plain, rounded = (plan(llm.load(path), adapter(), precision=p, **sizes) for p in ("f32", "bf16"))
    assert rounded.arena <= 0.7 * plain.arena, f"{rounded.arena / plain.arena:.3f}"
    assert (rounded.trained, rounded.state, rounded.gradients) == (plain.trained, plain.state, plain.gradients)
    assert rounded.lower_bound <= rounded.arena <= 1.02 * rounded.lower_bound


@pytest.mark.slow
def test_the_plan_is_that_of_the_run(tmp_path: Path) -> None:
    model, settings = llm.load(write(tmp_path)), {"batch_size": 4, "micro_batch_size": 2, "threads": 2}
    planned = plan(model, LoRA(rank=4), context=24, precision="bf16", **settings)
    run = llm.Run(model, rows_of(4), LoRA(rank=4), val_split=0.0, precision="bf16", **settings)
    run.prepare()
    made = run.memory()
    assert (planned.arena, planned.scratch, planned.lower_bound) == (made.arena, made.scratch, made.lower_bound)
    assert run.report["precision"] == "bf16"


# ---- verify, evaluate, generate --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [lambda: LoRA(rank=3, dropout=0.2, targets="all"), lambda: TrainedTensors("all", "f32")]
)
@pytest.mark.parametrize(
    ("arch", "changes"),
    [("llama", {"tied": False}), ("qwen2", {}), ("qwen3", KINDS[1])],
)
@pytest.mark.slow
def test_verify_agrees(tmp_path: Path, arch: str, changes: dict[str, Any], made: Any) -> None:
    found = verify(llm.load(write(tmp_path, arch, **changes)), rows_of(2, 20), made(), batch_size=2, precision="bf16")
    assert found.agrees and len(found.checks) == 7, [c for c in found.checks if not c.holds]
    plain = verify(llm.load(write(tmp_path, arch, **changes)), rows_of(2, 20), made(), batch_size=2)
    assert found.loss != plain.loss and abs(found.loss - plain.loss) < 0.02 * plain.loss


def test_evaluation_and_generation_round_where_they_are_asked_to(tmp_path: Path) -> None:
    model = llm.load(write(tmp_path, "llama"))
    rows = rows_of(3, 24)
    found = [llm.evaluate(model, rows, **options).nll for options in ({}, {"precision": "f32"}, {"precision": "bf16"})]
    assert found[0] == found[1] != found[2] and abs(found[0] - found[2]) < 0.02 * found[0]
    logits = [Generator(model, rows=64, precision=p).feed([5, 6, 7]) for p in (None, "f32", "bf16")]
    assert (
        np.array_equal(logits[0], logits[1])
        and 0 < np.abs(logits[2] - logits[0]).max() < 0.05 * np.abs(logits[0]).max()
    )
    assert llm.generate(model, "a b", max_tokens=20, temperature=0, precision="bf16")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_finetune_has_the_same_bits_for_any_plan(tmp_path: Path, threads: int) -> None:
    path = write(tmp_path, "qwen3", **KINDS[1])

    def arrays(**options: Any) -> list[np.ndarray]:
        adapter = LoRA(rank=4, targets="all")
        run = llm.finetune(
            llm.load(path), rows_of(6, 24), adapter=adapter, batch_size=3, micro_batch_size=2, epochs=2, lr=1e-2,
            val_split=0.0, progress=False, **{"precision": "bf16", "threads": 1} | options,
        )  # fmt: skip
        assert run.steps == 4
        return [p.numpy().copy() for p in adapter.parameters().values()]

    right = arrays()
    for options in ({"threads": threads, "reuse": False}, {"threads": threads, "fuse": False}, {"inplace": False}):
        assert all(np.array_equal(a, b) for a, b in zip(arrays(**options), right, strict=True)), options
    assert all(np.array_equal(a, b) for a, b in zip(arrays(poison=True, threads=threads), right, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(arrays(precision="f32"), right, strict=True))


@pytest.mark.skipif(not (STORIES.exists() and TEXT.exists()), reason="stories260K is not in shared/data")
@pytest.mark.slow
def test_stories_train_as_far_as_in_f32(tmp_path: Path) -> None:
    """The loss of validation is that of f32 within its uncertainty."""
    (tmp_path / "text.txt").write_text(TEXT.read_text()[:60_000])
    found = {}
    for precision in ("f32", "bf16"):
        run = llm.finetune(
            llm.load(STORIES), tmp_path / "text.txt", method="full", context=128, batch_size=8, steps=60, lr=1e-3,
            val_split=0.1, progress=False, precision=precision,
        )  # fmt: skip
        found[precision] = run.history[-1].val, run.before
    (plain, before), (rounded, _) = found["f32"], found["bf16"]
    assert plain.loss < before.loss - 0.5, "nothing was learned"
    assert plain.loss != rounded.loss and abs(plain.loss - rounded.loss) <= max(plain.loss_unc, rounded.loss_unc)
