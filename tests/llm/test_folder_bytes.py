"""Folders of every family in bf16, written as GGUF files and mapped back to the folder's names by an inverse of their
own: the same bytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from gradloom import llm

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tests.llm import family_folders as folders  # noqa: E402
from tests.llm import transformers_models as theirs  # noqa: E402

pytestmark = pytest.mark.oracle
PERMUTED = ("llama", "mistral3", "smollm3", "granite", "minicpm")  # rows of q and k
UNEQUAL: dict[str, list[str]] = {}  # case -> the folder's tensors whose bytes do not return


def numbers(tensor: gguf.ReaderTensor) -> np.ndarray:
    """bf16 as u16, f32 as f32; in NumPy's order of axes."""
    kind = {gguf.GGMLQuantizationType.BF16: np.uint16, gguf.GGMLQuantizationType.F32: np.float32}[tensor.tensor_type]
    return np.ascontiguousarray(tensor.data).view(kind).reshape([int(n) for n in reversed(tensor.shape)])


def to_bf16(array: np.ndarray) -> np.ndarray:
    """f32 -> u16, rounded to the nearest, ties to even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def back(case: theirs.Case, name: str, array: np.ndarray, heads: int) -> np.ndarray:
    """The numbers of the folder's tensor."""
    if case.arch == "gemma3" and "norm" in name:
        array = array - np.float32(1)
    if case.arch in PERMUTED and ("q_proj" in name or "k_proj" in name):
        pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
        array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
    return to_bf16(array) if array.dtype == np.float32 else array


@pytest.mark.parametrize("name", folders.CASES)
def test_a_folder_returns_from_gguf(tmp_path: Path, name: str) -> None:
    torch.set_num_threads(1)
    case, made = folders.CASES[name], folders.build(name)
    folder = folders.write(tmp_path / "model", name, made, "bfloat16")
    adapter = llm.LoRA(rank=1, targets="attn_output")
    adapter.bind(llm.load(folder))
    adapter.save(tmp_path / "adapter")
    llm.merge(folder, tmp_path / "adapter", tmp_path / "model.gguf", "bf16")
    found = {t.name: numbers(t) for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    unequal = []
    for own, tensor in load_file(folder / "model.safetensors").items():
        right = tensor.view(torch.int16).numpy().view(np.uint16)
        heads = made.config.num_attention_heads if "q_proj" in own else made.config.num_key_value_heads
        returned = back(case, own, found.pop(theirs.tensor_name(case, own)), heads)
        assert returned.shape == right.shape
        if not np.array_equal(returned, right):
            unequal.append(own)
            assert "norm" in own and np.abs(returned.astype(np.int32) - right).max() <= 1, own
    assert unequal == UNEQUAL.get(name, [])
    assert all(tensor.startswith("rope_f") for tensor in found), "more tensors than the folder has"
