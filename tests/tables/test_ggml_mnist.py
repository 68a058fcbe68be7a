"""examples/ggml_mnist.py: the saved file, computed by NumPy with the semantics of ggml's mnist example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from examples.ggml_mnist import LAYERS, network, tensors


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """x [N, C, H, W], kernel [O, C, 3, 3], padding 1 -> [N, O, H, W]."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, kernel)


def pooled(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def logits(kind: str, w: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """ggml's graph in f64; images u8 [N, 1, 28, 28]."""
    x = images / 255.0
    if kind == "mnist-fc":
        hidden = np.maximum(x.reshape(len(x), -1) @ w["fc1.weight"].T + w["fc1.bias"], 0)
        return hidden @ w["fc2.weight"].T + w["fc2.bias"]
    for i in (1, 2):
        x = pooled(np.maximum(convolved(x, w[f"conv{i}.kernel"]) + w[f"conv{i}.bias"], 0))
    return x.transpose(0, 2, 3, 1).reshape(len(x), -1) @ w["dense.weight"].T + w["dense.bias"]


@pytest.mark.parametrize("kind", LAYERS)
def test_the_file_has_the_logits_of_the_network(tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    net = network(kind, seed=0)
    net.load_state_dict({name: 5 * np.asarray(a) if name[0] != "0" else a for name, a in net.state_dict().items()})
    gl.save_gguf(tensors(kind, net), tmp_path / "a.gguf", metadata={"general.architecture": kind})
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert reader.fields["general.architecture"].contents() == kind
    shapes = {one.name: one.shape.tolist() for one in reader.tensors}  # ggml's ne
    if kind == "mnist-fc":
        assert shapes == {"fc1.weight": [784, 500], "fc1.bias": [500], "fc2.weight": [500, 10], "fc2.bias": [10]}
    else:
        assert shapes == {
            "conv1.kernel": [3, 3, 1, 8], "conv1.bias": [1, 1, 8], "conv2.kernel": [3, 3, 8, 16],
            "conv2.bias": [1, 1, 16], "dense.weight": [784, 10], "dense.bias": [10],
        }  # fmt: skip
    images = np.random.default_rng(1).integers(0, 256, (20, 1, 28, 28), dtype=np.uint8)
    weights = {one.name: np.array(one.data, np.float64) for one in reader.tensors}
    expected = logits(kind, weights, images)
    assert np.abs(gl.predict(net, images) - expected).max() < 1e-5 * np.abs(expected).max() + 1e-6
