"""Losses of every model family and type of file, here and in llama.cpp, on random small models.

    python bench/llama_cpp_families.py [--error 2e-4] [--most 100000] [--only gemma3] [--types f32,q4_k]

For each family and type: |difference of the mean loss| with the standard error of the paired differences (nats per
token), and the KL divergence. Rows of random tokens are added until the standard error is at most --error, or there are
--most tokens. `decoded` is the same where llama.cpp runs the file's numbers as f32, which it multiplies with
activations that are not rounded. Needs llama-cpp-python.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gguf  # noqa: E402

import gradloom as gl  # noqa: E402
from examples.random_gguf import ARCHS, SHAPES, write_random  # noqa: E402
from gradloom import llm  # noqa: E402
from gradloom.llm.llama_cpp import LlamaCpp  # noqa: E402

KINDS = ("f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k")
ROWS, LENGTH = 10, 64  # of a batch of tokens; windows of the random models have 32


def decoded(path: Path, out: Path) -> Path:
    """A file with the same numbers in f32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


class Compared(NamedTuple):
    """Mean difference of the loss, its standard error, the mean KL divergence, and the number of tokens."""

    gap: float
    error: float
    kl: float
    tokens: int

    def __str__(self) -> str:
        return f"{self.tokens:>6}: {abs(self.gap):.1e} +- {self.error:.1e}, KL {self.kl:.1e}"


def compared(ours: Path, theirs: Path, most_error: float, most_tokens: int) -> Compared:
    """`ours` here, `theirs` in llama.cpp, until the standard error is at most most_error."""
    model, draw = llm.load(ours), np.random.default_rng(0)
    leaves = [gl.input(name, (ROWS, LENGTH), "i32") for name in ("tokens", "positions")]
    run = gl.compile(model.logits(*leaves))
    places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH))
    gaps, divergences, error = np.empty(0), np.empty(0), np.inf
    with LlamaCpp(theirs, context=LENGTH, threads=1) as program:
        while error > most_error and gaps.size < most_tokens:
            tokens = draw.integers(259, 512, (ROWS, LENGTH)).astype(np.int32)
            mine = log_softmax(run(tokens=tokens, positions=places)[0].reshape(ROWS, LENGTH, -1))
            other = log_softmax(np.array(
                [np.concatenate([b.copy() for b in program.logits(row.tolist())]) for row in tokens]
            ))  # fmt: skip
            differ = (np.take_along_axis(x[:, :-1], tokens[:, 1:, None], -1) for x in (other, mine))
            gaps = np.append(gaps, np.subtract(*differ))
            divergences = np.append(divergences, (np.exp(other) * (other - mine)).sum(-1))
            error = float(gaps.std(ddof=1) / np.sqrt(gaps.size))
    return Compared(float(gaps.mean()), error, float(divergences.mean()), gaps.size)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """f64 [..., V]"""
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--error", type=float, default=2e-4)
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--only", choices=tuple(ARCHS), action="append")
    parser.add_argument("--types", default=",".join(KINDS))
    given = parser.parse_args()
    print(f"{'family':<14} {'type':<5} {'tokens: |difference| +- error, KL':<42} decoded: the same")
    with tempfile.TemporaryDirectory() as folder:
        path, exact = Path(folder) / "m.gguf", Path(folder) / "f32.gguf"
        for arch in given.only or ARCHS:
            for kind in given.types.split(","):
                write_random(path, arch, kind, **SHAPES["small"] | {"layers": 4}, std=0.05)
                files = (path, *(() if kind == "f32" else (decoded(path, exact),)))
                shown = [str(compared(path, theirs, given.error, given.most)) for theirs in files]
                print(f"{arch:<14} {kind:<5} {shown[0]:<42} {''.join(shown[1:])}", flush=True)


if __name__ == "__main__":
    main()
