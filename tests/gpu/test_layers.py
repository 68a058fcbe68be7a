"""Layers made of other ops, on a device: outputs and gradients beside the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradloom as gl
from gradloom.graph.value import Value

nn = gl.nn
pytestmark = pytest.mark.usefixtures("bindings")


def activations() -> Any:
    return nn.Sequential(
        nn.LeakyReLU(0.1),
        nn.PReLU(3),
        nn.ELU(0.5),
        nn.Mish(),
        nn.Hardswish(),
        nn.Softplus(2.0),
        nn.GLU(),
        nn.LogSoftmax(1),
    )


def images() -> Any:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, groups=4), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1, groups=2),
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.InstanceNorm(6, affine=True), nn.AdaptiveAvgPool2d((5, 3)),
        nn.Upsample((7, 8)), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Dropout2d(0.0), nn.AdaptiveMaxPool2d(3),
        nn.Residual(nn.Tanh()), nn.Flatten(), nn.Linear(54, 3),
    )  # fmt: skip


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(nn.Conv1d(5, 6, 3, padding="same"), nn.ConvTranspose1d(6, 5, 2))
        self.read = [
            nn.LSTM(6, 4, batch_first=True, bidirectional=True),
            nn.GRU(8, 4, 2, batch_first=True),
            nn.RNN(4, 4),
        ]
        self.at = nn.PositionalEncoding(4)
        self.encode = nn.TransformerEncoderLayer(4, 2, 6, 0.0, causal=True)
        self.decode = nn.TransformerDecoderLayer(4, 2, 6, 0.0, "gelu", norm_first=True)

    def forward(self, x: Value) -> Value:
        x = self.convs(x)
        for layer in self.read:
            x, _ = layer(x, lengths=[5, 3] if layer.batch_first else None)
        return self.decode(self.at(x), self.encode(x), key_padding_mask=np.eye(2, 5, dtype=bool))


NETS = {"activations": (activations, (2, 3, 6)), "images": (images, (2, 4, 5, 6)), "sequences": (Sequences, (2, 5, 5))}


@pytest.mark.parametrize("name", NETS)
def test_outputs_and_gradients_are_those_of_the_cpu(name: str) -> None:
    make, shape = NETS[name]
    net = make().init(1)
    x = gl.input("x", shape)
    y = net(x)
    weight = np.random.default_rng(1).uniform(-1, 1, y.shape).astype(np.float32)
    values = [y, *gl.gradients(gl.ops.sum(y * weight), [*net.parameters(), x])]
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    wanted, found = (gl.compile(values, backend=backend)(**feeds) for backend in ("cpu", "gpu"))
    largest = max(float(np.abs(a).max()) for a in wanted)
    for i, (a, b) in enumerate(zip(wanted, found, strict=True)):
        error = float(np.abs(a - b).max())
        assert error <= 1e-4 * (0.1 + largest), f"{name}, value {i}: error {error:.3g} of {largest:.3g}"
