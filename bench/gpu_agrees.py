"""Trainings on a device beside the CPU: twenty losses of plain SGD, gradients, an accuracy; equal to f32 noise.

    python bench/gpu_agrees.py DATA [--only stories q4_k layers deep cnn] [--shape smollm2-135m|deep] [--steps N]
                                     [--device D]

DATA has gguf/stories260K.gguf, text/tinyshakespeare.txt and mnist/. stories260K: LoRA on f32 and on q8_0 (rows that are
no whole blocks become f16), and all tensors; q4_k, whose blocks are longer than its rows: a model of random weights.
deep: thirty layers of random weights, every LoRA gradient of the first step with B = 0 and with another B, then losses.
layers: 1, 3 and 5 of the five blocks of stories260K on the device, and as many as fit into 64 MiB, the rest on the CPU.
cnn: two convolutions on 6000 images of MNIST. Allowed are 8 units of f32 rounding times the square root of the longest
sum. Ends with status 1 where more than that differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the tests are written as modules

import gradloom as gl
from examples.mnist_cnn import images
from examples.mnist_cnn import model as cnn
from examples.random_gguf import SHAPES, write_random
from gradloom.gpu.backend import place_of
from tests.gpu.test_finetune import Losses
from tests.llm.deep_case import CASES, DeepCase
from tests.llm.given_lora import GivenLora
from tests.noise import UNIT


def apart(what: str, there: Any, here: Any, longest: int) -> bool:
    """Print how far two results are apart, by the largest number; whether that is more than f32 noise."""
    most, allowed = relative(there, here), 8 * UNIT * longest**0.5
    print(f"  {what}: apart by {most:.2g}; allowed {allowed:.2g}", flush=True)
    return not most <= allowed


def relative(there: Any, here: Any) -> float:
    a, b = np.asarray(there, np.float64), np.asarray(here, np.float64)
    return float(np.abs(a - b).max(initial=0.0)) / (float(np.abs(b).max(initial=0.0)) or 1.0)


def tuned(
    path: Path, text: Path, method: str, lr: float, device: str | None, steps: int, context: int = 64, **where: Any
) -> tuple[list[float], float]:
    """(losses, seconds) of a run of plain SGD on two rows of so many tokens."""
    heard, begun = Losses(), time.perf_counter()
    adapter = (
        gl.llm.LoRA(rank=8, targets="all", seed=1) if method == "lora" else gl.llm.TrainedTensors(train_dtype="f32")
    )
    gl.llm.finetune(
        str(path), str(text), adapter, method=method, device=device, context=context, batch_size=2, steps=steps,
        val_split=0, optimizer=gl.optim.SGD(lr=lr), callbacks=[heard], progress=False, **where,
    )  # fmt: skip
    return heard.all, time.perf_counter() - begun


def tuned_beside(what: str, path: Path, text: Path, method: str, lr: float, asked: argparse.Namespace) -> bool:
    (here, _), (there, seconds) = (tuned(path, text, method, lr, d, asked.steps) for d in ("cpu", asked.device))
    print(f"{what}: {len(there)} losses from {there[0]:.6f} to {there[-1]:.6f}, {seconds:.0f} s")
    return apart("losses", there, here, longest=256)


def narrowed(model: Path, path: Path, kind: str) -> None:
    """Write the model in another format."""
    lora, adapter = gl.llm.LoRA(rank=1), path.with_suffix(".lora.gguf")
    lora.bind(gl.llm.load(str(model)))
    lora.save(adapter)
    gl.llm.merge(model, adapter, path, kind)


def stories(folder: Path, asked: argparse.Namespace) -> bool:
    model, text = asked.data / "gguf" / "stories260K.gguf", asked.data / "text" / "tinyshakespeare.txt"
    narrow = folder / "stories-q8_0.gguf"
    narrowed(model, narrow, "q8_0")
    bad = tuned_beside("stories260K, LoRA, f32", model, text, "lora", 0.1, asked)
    bad |= tuned_beside("stories260K, LoRA, q8_0", narrow, text, "lora", 0.1, asked)
    return bad | tuned_beside("stories260K, full, f32", model, text, "full", 0.05, asked)


def q4_k(folder: Path, asked: argparse.Namespace) -> bool:
    path = write_random(folder / "q4_k.gguf", kind="q4_k", std=0.1, **SHAPES["small"])
    return tuned_beside("random, LoRA, q4_k", path, asked.data / "text" / "tinyshakespeare.txt", "lora", 0.03, asked)


def layers(folder: Path, asked: argparse.Namespace) -> bool:
    model, text = asked.data / "gguf" / "stories260K.gguf", asked.data / "text" / "tinyshakespeare.txt"
    narrow, bad = folder / "stories-q4_0.gguf", False
    narrowed(model, narrow, "q4_0")
    for path, method in ((model, "lora"), (model, "full"), (narrow, "lora"), (narrow, "full")):
        run = path, text, method, 0.1 if method == "lora" else 0.05
        here = tuned(*run, "cpu", asked.steps, context=24)[0]
        for count in (0, 1, 3, 5, "auto"):
            memory = {"gpu_memory": "64MiB"} if count == "auto" else {}
            there = tuned(*run, None, asked.steps, context=24, gpu_layers=count, **memory)[0]
            bad |= apart(f"{path.stem}, {method}, {count} blocks there: {len(there)} losses", there, here, longest=256)
    return bad


def deep(folder: Path, asked: argparse.Namespace) -> bool:
    case, longest, bad = DeepCase(folder, asked.shape), SHAPES[asked.shape]["ffn"], False
    print(f"30 layers, {asked.shape}")
    for b_std in (0.0, 0.05):
        given = case.arrays(b_std)
        (loss, here), (loss_there, there) = (
            GivenLora(case.path, given, backend=d).gradients(*case.batch) for d in ("cpu", asked.device)
        )
        bad |= apart(f"B of spread {b_std}: loss", loss_there, loss, longest)
        name = max(here, key=lambda k: relative(there[k], here[k]))
        bad |= apart(f"{len(here)} gradients, at most ({name})", there[name], here[name], 30 * longest)
    here, there = (case.ours(asked.steps, backend=d)[0] for d in ("cpu", asked.device))
    return bad | apart(f"{len(there)} losses, {there[0]:.4f} to {there[-1]:.4f}", there, here, longest)


def convolutions(folder: Path, asked: argparse.Namespace) -> bool:
    (x, y), test = images(asked.data / "mnist", "train"), images(asked.data / "mnist", "t10k")
    found = []
    for device in ("cpu", asked.device):
        net, begun = cnn(float(x.mean()), float(x.std())).init(0), time.perf_counter()
        gl.fit(
            net, (x[:6000], y[:6000]), optimizer=gl.optim.AdamW(lr=2e-3), epochs=1, batch_size=50, seed=0,
            device=device, progress=False,
        )  # fmt: skip
        found.append(gl.evaluate(net, (test[0][:2000], test[1][:2000]), batch_size=100, device=device))
        seconds = time.perf_counter() - begun
        print(
            f"cnn, {device}: accuracy {found[-1].accuracy:.4f} +- {found[-1].accuracy_unc:.4f}, {seconds:.0f} s",
            flush=True,
        )
    return not abs(found[0].accuracy - found[1].accuracy) <= found[0].accuracy_unc


CLAIMS = {"stories": stories, "q4_k": q4_k, "layers": layers, "deep": deep, "cnn": convolutions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=CLAIMS, default=list(CLAIMS))
    parser.add_argument("--shape", choices=CASES, default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="gpu")
    asked = parser.parse_args()
    print(place_of(int(asked.device.partition(":")[2] or 0)).device.name)
    bad = False
    for name in asked.only:
        with tempfile.TemporaryDirectory() as temporary:
            bad |= CLAIMS[name](Path(temporary), asked)
    print("MORE THAN f32 NOISE APART" if bad else "equal to f32 noise")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
