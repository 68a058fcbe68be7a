"""Losses of every model family and type of file, here and in llama.cpp, on random small models.

    python bench/llama_cpp_families.py [--tokens 600] [--only gemma3] [--types f32,q4_k]

For each family and type: |difference of the mean loss| with the standard error of the paired differences (nats per
token), and the KL divergence. `decoded` is the same where llama.cpp runs the file's numbers as f32, which it multiplies
with activations that are not rounded. Needs llama-cpp-python.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gguf  # noqa: E402

from examples.random_gguf import ARCHS, SHAPES, write_random  # noqa: E402
from gradloom import llm  # noqa: E402
from gradloom.llm.llama_cpp import LlamaCpp  # noqa: E402

KINDS = ("f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k")
LENGTH = 64  # tokens of a row; windows of the random models have 32


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


def compared(ours: Path, theirs: Path, tokens: np.ndarray) -> tuple[float, float, float]:
    """(mean difference of the loss, its standard error, KL) of rows i32 [N, T]: `ours` here, `theirs` in llama.cpp."""
    from tests.client.test_llama_cpp import logits

    mine = logits(llm.load(ours), tokens).astype(np.float64)
    with LlamaCpp(theirs, context=LENGTH, threads=1) as program:
        other = np.array(
            [np.concatenate([b.copy() for b in program.logits(row.tolist())]) for row in tokens], np.float64
        )
    q, p = (x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)
            for x in (mine, other))  # fmt: skip
    labels = tokens[:, 1:, None]
    gaps = (np.take_along_axis(p[:, :-1], labels, -1) - np.take_along_axis(q[:, :-1], labels, -1)).ravel()
    kl = (np.exp(p) * (p - q)).sum(-1).mean()
    return float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(gaps.size)), float(kl)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=640)
    parser.add_argument("--only", choices=tuple(ARCHS), action="append")
    parser.add_argument("--types", default=",".join(KINDS))
    given = parser.parse_args()
    tokens = np.random.default_rng(0).integers(259, 512, (max(2, given.tokens // LENGTH), LENGTH)).astype(np.int32)
    print(f"{'family':<14} {'type':<5} {'|difference| +- error, KL':<34} decoded: the same")
    with tempfile.TemporaryDirectory() as folder:
        path, exact = Path(folder) / "m.gguf", Path(folder) / "f32.gguf"
        for arch in given.only or ARCHS:
            for kind in given.types.split(","):
                write_random(path, arch, kind, **SHAPES["small"] | {"layers": 4}, std=0.05)
                shown = []
                for theirs in (path, *(() if kind == "f32" else (decoded(path, exact),))):
                    gap, error, kl = compared(path, theirs, tokens)
                    shown.append(f"{abs(gap):.1e} +- {error:.1e}, KL {kl:.1e}")
                print(f"{arch:<14} {kind:<5} {shown[0]:<34} {''.join(shown[1:])}", flush=True)


if __name__ == "__main__":
    main()
