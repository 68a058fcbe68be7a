"""Training on a quantised file is training on its dequantised weights: same loss, same gradients, to f32 noise."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from examples.random_gguf import SHAPES, TYPES, write_random  # noqa: E402
from gradloom import llm  # noqa: E402
from gradloom.llm.generate import complete  # noqa: E402
from tests.llm.given_lora import LINEAR, GivenLora, lora_arrays, packed  # noqa: E402
from tests.llm.torch_lora import TorchLora  # noqa: E402
from tests.noise import assert_all_noise, assert_noise  # noqa: E402

pytestmark = pytest.mark.oracle


def dequantised_file(path: Path, out: Path) -> Path:
    """The same model with every tensor as f32, through the gguf package alone."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            last = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], last)
    for t in reader.tensors:
        writer.add_tensor(t.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("arch", "kind"), [*(("llama", kind) for kind in TYPES), ("qwen2", "q4_k"), ("qwen3", "q8_0"), ("qwen3", "f16")]
)
def test_the_same_step_as_on_the_dequantised_weights(tmp_path: Path, arch: str, kind: str) -> None:
    torch.set_num_threads(1)
    path = write_random(tmp_path / "model.gguf", arch, kind, **SHAPES["small"], std=0.05, tied=arch == "llama")
    arrays = lora_arrays(path, 4, LINEAR, b_std=0.1)
    batch = packed(512, 2, 37)
    ours = GivenLora(path, arrays)
    for name, weight in ours.model.weights.items():
        assert weight.dtype.name == ("f32" if "norm" in name or "bias" in name else kind), f"{name} is a copy: {weight}"
    loss, grads = ours.gradients(*batch)
    plain_loss, plain = GivenLora(dequantised_file(path, tmp_path / "f32.gguf"), arrays).gradients(*batch)
    (loss32, grads32), (loss64, grads64) = (
        TorchLora(path, arrays, dtype).gradients(*batch) for dtype in (torch.float32, torch.float64)
    )
    longest = max(batch[0].size, *ours.model.weights["blk.0.ffn_down.weight"].shape)
    for found_loss, found in ((loss, grads), (plain_loss, plain)):
        assert_noise("loss", found_loss, loss32, loss64, longest)
        assert len(found) == 2 * 7 * 2
        for name, grad in grads64.items():
            assert np.abs(grad).max() > 1e-6, f"{name}: a gradient of nothing proves nothing"
        assert_all_noise(found, grads32, grads64, longest)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_k"])
def test_generation_from_a_quantised_file_is_that_of_its_dequantised_weights(tmp_path: Path, kind: str) -> None:
    path = write_random(tmp_path / "model.gguf", kind=kind, **SHAPES["small"], std=0.1)
    plain = dequantised_file(path, tmp_path / "f32.gguf")
    how = llm.Sampling(temperature=0)
    found = [complete(llm.load(p), "the sea", max_tokens=24, how=how).tokens for p in (path, plain)]
    assert found[0] == found[1] and len(set(found[0])) > 3
