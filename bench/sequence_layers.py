"""Seconds per AdamW step of an LSTM and a TransformerEncoderLayer, beside PyTorch from the same weights.

    python bench/sequence_layers.py [--steps 50] [--threads 2] [--precision f32]

Both libraries get the initial weights, the batches and their order of one PyTorch module (`gl.nn.from_torch`); the
losses of all steps are compared. Ours runs one compiled program per step (gl.train.Trainer), PyTorch its eager loop.
The first two steps (compiling, warming up) are not in the medians; ours takes the time to compile in a line of its own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from common import pin, table

import gradloom as gl

WIDTH, CLASSES = 128, 10
SHAPES = {"LSTM": (32, 50), "TransformerEncoderLayer": (32, 64)}  # rows of a batch, positions


def theirs(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "LSTM":
        return torch.nn.LSTM(64, WIDTH, batch_first=True)
    return torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)


class Ours(gl.nn.Module):
    """The layer, and a linear layer on the mean of its outputs over the positions."""

    def __init__(self, layer: gl.nn.Module, head: gl.nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, head

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return self.head(gl.ops.mean(y[0] if isinstance(y, tuple) else y, 1))


def measure(name: str, steps: int, threads: int, precision: str) -> tuple[str, ...]:
    """A row: medians of both, their ratio, seconds to compile, the largest difference of the losses."""
    rows, positions = SHAPES[name]
    rng = np.random.default_rng(0)
    width = 64 if name == "LSTM" else WIDTH
    x = rng.standard_normal((steps, rows, positions, width), dtype=np.float32)
    y = rng.integers(0, CLASSES, (steps, rows))
    layer = theirs(name)
    head = torch.nn.Linear(WIDTH, CLASSES)
    net = Ours(gl.nn.from_torch(layer), gl.nn.from_torch(head))
    trainer = gl.train.Trainer(
        net, "cross_entropy", gl.optim.AdamW(lr=1e-3, weight_decay=0.01), threads=threads, precision=precision
    )
    began = time.perf_counter()
    own_losses, own_seconds = [], []
    for i in range(steps):
        start = time.perf_counter()
        own_losses.append(float(trainer.step(x[i], y[i]).loss))
        own_seconds.append(time.perf_counter() - start)
        if i == 0:
            compiled = time.perf_counter() - began
    torch.set_num_threads(threads)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    their_losses, their_seconds = [], []
    for i in range(steps):
        start = time.perf_counter()
        out = layer(torch.from_numpy(x[i]))
        out = head((out[0] if isinstance(out, tuple) else out).mean(1))
        loss = torch.nn.functional.cross_entropy(out, torch.from_numpy(y[i]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        their_losses.append(float(loss.detach()))
        their_seconds.append(time.perf_counter() - start)
    own, other = statistics.median(own_seconds[2:]), statistics.median(their_seconds[2:])
    difference = np.abs(np.subtract(own_losses, their_losses)).max()
    return name, f"{1e3 * own:.2f}", f"{1e3 * other:.2f}", f"{other / own:.2f}", f"{compiled:.2f}", f"{difference:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="f32", choices=["f32", "bf16"])
    options = parser.parse_args()
    pin(options.threads)
    rows = [measure(name, options.steps, options.threads, options.precision) for name in SHAPES]
    heads = ("layer", "ms per step", "PyTorch", "times as fast", "s to compile", "largest difference of a loss")
    table(rows, heads)


if __name__ == "__main__":
    main()
