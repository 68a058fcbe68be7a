"""Training steps on a device: time per step, dispatches, time to encode one, how much of that goes by while the device
works on earlier steps; beside the CPU.

    python bench/gpu.py [--device gpu]

On software Vulkan (lavapipe) only the encoding and the number of dispatches mean anything.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # examples/
import gradloom as gl
from examples.random_gguf import write_random
from gradloom.gpu.backend import GpuExecutable, place_of
from gradloom.gpu.encoder import encode


def mlp() -> tuple[Any, np.ndarray, np.ndarray]:
    """784-500-10 on batches of 100."""
    net = gl.nn.Sequential(gl.nn.Linear(784, 500, activation="relu"), gl.nn.Linear(500, 10)).init(0)
    rng = np.random.default_rng(0)
    return net, rng.random((100, 784), np.float32), rng.integers(0, 10, 100)


def cnn() -> tuple[Any, np.ndarray, np.ndarray]:
    """Two convolutions and a layer on 16 images of 28 x 28."""
    net = gl.nn.Sequential(
        gl.nn.Conv2d(1, 8, 3, padding=1), gl.nn.ReLU(), gl.nn.MaxPool2d(2), gl.nn.Conv2d(8, 16, 3, padding=1),
        gl.nn.ReLU(), gl.nn.MaxPool2d(2), gl.nn.Flatten(), gl.nn.Linear(16 * 49, 10),
    ).init(0)  # fmt: skip
    rng = np.random.default_rng(0)
    return net, rng.random((16, 1, 28, 28), np.float32), rng.integers(0, 10, 16)


SHAPES: dict[str, Callable[[], tuple[Any, np.ndarray, np.ndarray]]] = {"mlp": mlp, "cnn": cnn}


def encoding(run: GpuExecutable, rounds: int = 20) -> tuple[float, int]:
    """(seconds of this thread to encode a step, its dispatches); nothing is submitted."""
    taken = []
    for _ in range(rounds):
        begun = time.thread_time()
        encoder = run.device.raw.create_command_encoder()
        encode(encoder, run.ready)
        encoder.finish()
        taken.append(time.thread_time() - begun)
    return min(taken), sum(len(step) for step in run.ready)


def encoded(run: GpuExecutable) -> str:
    seconds, count = encoding(run)
    return f"{count} dispatches, encoded in {1e6 * seconds:.0f} us ({1e6 * seconds / count:.2f} us each)"


SIZES = {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "ffn": 1536, "vocab": 49152}  # 135M parameters


class Overlap:
    """Inside, submissions are watched: which of the time that encodes them goes by while earlier ones are on their way.
    The first submission of all, and of each native call, has none before it."""

    def __init__(self) -> None:
        self.beside = self.seconds = 0.0
        self.steps = self.on_their_way = 0

    def __enter__(self) -> Overlap:
        self._old = GpuExecutable._submit, GpuExecutable._collect
        submit, collect = self._old

        def submitted(run: GpuExecutable, pair: int, count: int, rows: Any) -> Any:
            begun = time.perf_counter()
            promise = submit(run, pair, count, rows)
            took = time.perf_counter() - begun
            self.seconds += took
            self.beside += took if self.on_their_way else 0.0
            self.steps, self.on_their_way = self.steps + count, self.on_their_way + 1
            return promise

        def collected(run: GpuExecutable, pair: int, count: int, promise: Any) -> Any:
            found = collect(run, pair, count, promise)
            self.on_their_way -= 1
            return found

        GpuExecutable._submit, GpuExecutable._collect = submitted, collected  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: Any) -> None:
        GpuExecutable._submit, GpuExecutable._collect = self._old  # type: ignore[method-assign]

    def __str__(self) -> str:
        share = self.beside / max(self.seconds, 1e-9)
        return f"{share:.0%} of it while earlier steps ran ({self.steps} steps)"


def lora(device: str, steps: int = 8) -> str:
    """LoRA of rank 8 on a model in q8_0, a row of 8 tokens a step: the dispatches do not depend on the tokens.

    Nobody is told of each batch: that would wait for each."""
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab"], (steps, 8)).astype(np.int32)
    positions = np.broadcast_to(np.arange(8, dtype=np.int32), tokens.shape)
    data = SimpleNamespace(tokens=tokens, positions=positions, labels=tokens)
    with tempfile.TemporaryDirectory() as folder, Overlap() as overlap:
        path = write_random(Path(folder) / "model.gguf", kind="q8_0", **SIZES)
        run = gl.llm.finetune(
            str(path), data, gl.llm.LoRA(rank=8, seed=0), device=device, batch_size=1, steps=steps, val_split=0,
            progress=False,
        )  # fmt: skip
        line = f"lora  {device:4} {1e3 * run.seconds / steps:9.2f} ms a step, the upload included"
        return line if device == "cpu" else f"{line}, {encoded(largest())}, {overlap}"


def largest() -> GpuExecutable:
    """The program with the most dispatches that is loaded: the step."""
    loaded = [one for one in gc.get_objects() if isinstance(one, GpuExecutable)]
    return max(loaded, key=lambda one: sum(len(step) for step in one.ready))


def measure(name: str, device: str, steps: int) -> str:
    gc.collect()
    net, x, y = SHAPES[name]()
    trainer = gl.train.Trainer(net, "cross_entropy", gl.optim.AdamW(lr=1e-3), device=device)
    trainer.step(x, y)
    taken = []
    for _ in range(steps):
        begun = time.perf_counter()
        trainer.step(x, y)
        taken.append(time.perf_counter() - begun)
    line = f"{name:5} {device:4} {1e3 * min(taken):9.2f} ms a step"
    if device != "cpu":
        line += f", {encoded(largest())}"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    print(place_of(0).device.name)
    for device in ("cpu", asked.device):
        for name in SHAPES:
            print(measure(name, device, asked.steps), flush=True)
        print(lora(device), flush=True)


if __name__ == "__main__":
    main()
