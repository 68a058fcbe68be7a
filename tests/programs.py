"""What a corpus of training runs hands to the native core, as digests: a change of the Python floors that should change
no program is held against the commit before it, with both in one run on one machine.

    PYTHONPATH=../before/src python tests/programs.py --write before.json
    PYTHONPATH=src python tests/programs.py --compare before.json

A program's digest covers its kernels, instructions, operands, attributes, constants, arena and output places, for the
instruction set avx2; a run's digest covers the bytes of its weights or what it generated. --compare prints each run
whose programs or result differ, and ends with 1 when there is one.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

os.environ.update(GRADLOOM_ISA="avx2", GRADLOOM_THREADS="2")
sys.path.append(str(Path(__file__).parents[1]))  # examples/

import numpy as np

import gradloom as gl
from gradloom import _core, nn

RUNS: dict[str, Callable[[Path], Any]] = {}


def run(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    RUNS[function.__name__] = function
    return function


def digest(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else repr(part).encode())
        found.update(b"|")
    return found.hexdigest()[:16]


class Recorded(_core.Program):
    """A native program that notes the digest of what it is made of. Node numbers are counted from the first one."""

    made: ClassVar[list[list[Any]]] = []  # [digest, instructions, bytes of the arena]

    def __init__(self, isa, kernels, instructions, args, attrs, segments, records=(), dead=(), guards=()):
        numbered = instructions.copy()
        numbered["node"] = np.unique(numbered["node"], return_inverse=True)[1] if len(numbered) else numbered["node"]
        sizes = [(segment[0], segment[-1]) for segment in segments if segment[0] != "arena"]
        _, address, size = segments[1]
        constants = ctypes.string_at(address, size)
        if records:  # a planned program: not one that dequantises a tensor of a file
            parts = (isa, kernels, numbered.tobytes(), args.tobytes(), attrs.tobytes(), sizes, constants, records)
            arena = max((offset + size for _, _, offset, size in dead), default=0)
            self.made.append([digest(*parts, sorted(dead), guards), len(instructions), arena])
        super().__init__(isa, kernels, instructions, args, attrs, segments, list(records), list(dead), list(guards))


def weights(model: Any) -> str:
    return digest(*(array.tobytes() for array in model.state_dict().values()))


def classes(rows: int = 150, features: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.Generator(np.random.Philox(key=7))
    centres = rng.standard_normal((4, features)) * 1.5
    y = rng.integers(0, 4, rows)
    return (centres[y] + rng.standard_normal((rows, features))).astype(np.float32), y


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24, activation="relu"), nn.LayerNorm(24), nn.Dropout(0.2), nn.Linear(24, 4))


@run
def fit_classes(folder: Path) -> Any:
    net = mlp()
    optimizer = gl.optim.AdamW(lr=lambda step, epoch: 3e-3 * 0.9**epoch, weight_decay=0.01)
    gl.fit(net, classes(), optimizer=optimizer, epochs=3, batch_size=32, val_split=0.1, seed=11, progress=False)
    return weights(net), digest(gl.predict(net, classes()[0]).tobytes())


@run
def trained_state(folder: Path) -> Any:
    """Everything that decides the rest of a run, after two passes and in an open window."""
    from gradloom.data.dataset import Dataset

    trainer = gl.Trainer(mlp(), optimizer=gl.optim.Adam(lr=2e-3), accumulate=2, seed=7, max_norm=1.0)
    x, y = classes()
    for _ in range(2):
        gl.epoch(trainer, Dataset(x, y), batch_size=32)
    trainer.step(x[:10], y[:10])
    return trainer.train_state.digest()


@run
def fit_micro_batches_clipped(folder: Path) -> Any:
    net = mlp()
    gl.fit(
        net, classes(), optimizer=gl.optim.Adam(weight_decay=0.1), epochs=3, batch_size=32, micro_batch_size=20,
        max_norm=1.0, seed=11, progress=False,
    )  # fmt: skip
    return weights(net)


@run
def fit_regression(folder: Path) -> Any:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((90, 5)).astype(np.float32)
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = gl.optim.SGD(lr=gl.optim.schedules.Plateau(0.05, patience=0), momentum=0.9, weight_decay=0.01)
    gl.fit(
        net, (x, x[:, :1] * x[:, 1:2]), loss="mse", optimizer=optimizer, epochs=4, batch_size=16, val_split=0.2, seed=3,
        progress=False,
    )  # fmt: skip
    return weights(net)


@run
def fit_convolutions(folder: Path) -> Any:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 3, 12, 12)).astype(np.float32)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3),
        nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 4),
    )  # fmt: skip
    gl.fit(net, (x, rng.integers(0, 4, 40)), epochs=2, batch_size=16, seed=5, progress=False)
    return weights(net)


class Decoder(nn.Module):
    """Embedding, two blocks of causal attention and a gated feed-forward, tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.norms = [nn.RMSNorm(24) for _ in range(4)]
        self.attention = [nn.MultiheadAttention(24, 4, kv_heads=2, causal=True) for _ in range(2)]
        self.up = [nn.Linear(24, 64) for _ in range(2)]
        self.down = [nn.Linear(32, 24) for _ in range(2)]

    def forward(self, ids):
        x = self.embed(ids)
        for i in range(2):
            x = x + self.attention[i](self.norms[2 * i](x))
            gate, up = gl.ops.split(self.up[i](self.norms[2 * i + 1](x)), 2, axis=-1)
            x = x + self.down[i](gl.ops.swiglu(gate, up))
        return gl.ops.matmul(x, self.embed.weight, transpose_y=True)


@run
def fit_decoder(folder: Path) -> Any:
    ids = np.random.default_rng(3).integers(0, 40, (24, 17))
    net = Decoder()
    gl.fit(net, (ids[:, :-1], ids[:, 1:]), epochs=2, batch_size=8, micro_batch_size=4, seed=5, progress=False)
    return weights(net)


@run
def graph_by_hand(folder: Path) -> Any:
    x, w = gl.input("x", (8, 6)), gl.parameter(np.linspace(-1, 1, 18).reshape(6, 3), name="w")
    y = gl.ops.tanh(x @ w)
    (first,) = gl.gradients(gl.ops.sum(y * y), [w])
    (second,) = gl.gradients(gl.ops.sum(first * first), [w])
    data = np.random.default_rng(4).standard_normal((8, 6))
    return [digest(a.tobytes()) for a in gl.compile([y, first, second])(x=data)]


@run
def eager_loop(folder: Path) -> Any:
    gl.seed(9)
    net = mlp()
    optimizer = gl.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = classes()
    for at in range(0, 150, 25):
        for half in range(2):
            rows = slice(at + 12 * half, at + 12 * half + 12)
            with gl.grad_tape() as tape:
                loss = gl.ops.cross_entropy(net(gl.tensor(x[rows])), gl.tensor(y[rows]))
            optimizer.accumulate(tape.backward(loss), weight=12)
        optimizer.clip(0.5)
        optimizer.step()
    with gl.grad_tape() as tape:
        loss = gl.ops.cross_entropy(net(gl.tensor(x)), gl.tensor(y))
    optimizer.step(tape.backward(loss))
    return weights(net), float(loss)


@run
def replicas(folder: Path) -> Any:
    x, y = classes(48)
    samples = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 48, 4)]
    found = gl.dp_train(
        lambda *_: nn.Sequential(nn.Linear(12, 8, activation="relu"), nn.Linear(8, 4)), samples,
        loss_fn=gl.ops.cross_entropy, replicas=2, iterations=12, max_norm=1.0, seed=1, verbose=False,
    )  # fmt: skip
    return weights(found.model)


def language_model(folder: Path, arch: str, kind: str) -> Path:
    from examples.random_gguf import write_random

    return write_random(folder / f"{arch}-{kind}.gguf", arch, kind, width=64, ffn=96, vocab=300, std=0.15)


def text(folder: Path) -> Path:
    path = folder / "text.txt"
    words = np.random.default_rng(5).integers(97, 123, (400, 5)).astype(np.uint8)
    path.write_text(" ".join(bytes(word).decode() for word in words))
    return path


def finetuned(folder: Path, arch: str, kind: str, **options: Any) -> Any:
    model = gl.llm.load(language_model(folder, arch, kind))
    options = {"context": 32, "batch_size": 4, "lr": 1e-3, "progress": False, "seed": 2} | options
    ran = gl.llm.finetune(model, str(text(folder)), **options)
    out = folder / f"{arch}-{kind}-out.gguf"
    ran.save(out)
    return [repr(value) for name, value in ran.report.items() if "loss" in name]


@run
def finetune_lora(folder: Path) -> Any:
    return finetuned(folder, "llama", "q8_0", adapter=gl.llm.LoRA(rank=4, alpha=8, seed=0, dropout=0.1))


@run
def finetune_lora_micro_batches(folder: Path) -> Any:
    return finetuned(folder, "qwen3", "f32", adapter=gl.llm.LoRA(rank=4, seed=0), micro_batch_size=1, max_norm=1.0)


@run
def finetune_full(folder: Path) -> Any:
    return finetuned(folder, "qwen2", "f16", method="full", train_dtype="f32")


@run
def generate(folder: Path) -> Any:
    found = []
    for arch, kind in (("llama", "q4_0"), ("qwen2", "f32"), ("qwen3", "bf16")):
        model = gl.llm.load(language_model(folder, arch, kind))
        found.append(digest(gl.llm.generate(model, [1, 5, 9, 33], max_tokens=12, temperature=0)))
    return found


def digests() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, {"programs": digests, "result": digest}) of each run, fused and not."""
    _core.Program = Recorded
    for fuse in "1", "0":
        os.environ["GRADLOOM_FUSE"] = fuse
        for name, function in RUNS.items():
            Recorded.made.clear()
            gl.seed(0)
            with tempfile.TemporaryDirectory() as folder:
                result = function(Path(folder))
            yield f"{name} fuse={fuse}", {"programs": list(Recorded.made), "result": digest(result)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--write", metavar="FILE", type=Path)
    chosen.add_argument("--compare", metavar="FILE", type=Path)
    given = parser.parse_args()
    found = dict(digests())
    if given.write:
        given.write.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{gl.__file__}: {len(found)} runs, {sum(len(one['programs']) for one in found.values())} programs")
        return 0
    before = json.loads(given.compare.read_text())
    different = 0
    for name in before | found:
        old, new = before.get(name), found.get(name)
        if old == new:
            continue
        if old is None:
            print(f"{name}: new")
            continue
        different += 1
        if new is None:
            print(f"{name}: gone")
            continue
        print(f"{name}: result {'equal' if old['result'] == new['result'] else 'DIFFERENT'}; programs:")
        for i, (one, other) in enumerate(zip_longest(old["programs"], new["programs"], fillvalue=["", 0, 0])):
            if one != other:
                print(f"  {i}: instructions {one[1]} -> {other[1]}, arena {one[2]} -> {other[2]} bytes")
    print(f"{len(found)} runs, {sum(len(one['programs']) for one in found.values())} programs: {different} runs differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
