"""Tokens per second of generation, one token at a time, beside llama.cpp where llama-cpp-python is installed.

    python bench/generate.py [--types q8_0,q4_0,f16,f32] [--threads 1,2] [--tokens 48] [--rounds 5]
                             [--shape smollm2-135m | --file MODEL.gguf]

A model of SmolLM2-135M's shape with random weights, one of another shape (q4_k needs widths that 256 divides, such as
qwen3-0.6b's), or a file. Each round takes a prompt of 16 tokens and then as many as were asked for, ours and
llama.cpp's in turn; medians of rounds, and the fastest token of ours. GB/s: bytes of the weights read per second at the
median, and the share of the rate at which as many threads read memory in this run. llama.cpp rounds
activations to 8 bits (f16 for f16), ours stay f32.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the rate of reading is measured with one thread of NumPy each

import numpy as np
from common import fma_peak, read_rate, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.random_gguf import SHAPES, write_random

PROMPT = list(range(300, 316))


def ours(path: Path, threads: int, count: int) -> Callable[[], list[float]]:
    from gradloom import llm
    from gradloom.llm.generate import Generator

    generator = Generator(llm.load(path), rows=len(PROMPT) + count, threads=threads)

    def run() -> list[float]:
        generator.reset()
        return tokens(generator.feed, count)

    return run


def llama(path: Path, threads: int, count: int) -> Callable[[], list[float]] | None:
    if importlib.util.find_spec("llama_cpp") is None:
        return None
    from llama_cpp import Llama

    model = Llama(str(path), n_ctx=len(PROMPT) + count, n_threads=threads, n_threads_batch=threads, verbose=False)

    def feed(ids: list[int]) -> np.ndarray:
        model.eval(ids)
        return model._scores[-1]

    def run() -> list[float]:
        model.reset()
        return tokens(feed, count)

    return run


def tokens(feed: Callable[[list[int]], np.ndarray], count: int) -> list[float]:
    """Seconds of each token after the prompt."""
    logits, times = feed(PROMPT), []
    for _ in range(count):
        token = int(np.argmax(logits))
        began = time.perf_counter()
        logits = feed([token])
        times.append(time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="q8_0,q4_0,f16,f32")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    model.add_argument("--file", type=Path)
    args = parser.parse_args()
    lines = []
    reads = {threads: read_rate(threads) for threads in map(int, args.threads.split(","))}
    with tempfile.TemporaryDirectory() as folder:
        for kind in [args.file.stem] if args.file else args.types.split(","):
            path = args.file or write_random(Path(folder) / "m.gguf", kind=kind, **SHAPES[args.shape])
            for threads in map(int, args.threads.split(",")):
                made = {"ours": ours(path, threads, args.tokens), "llama.cpp": llama(path, threads, args.tokens)}
                ways = {name: run for name, run in made.items() if run is not None}
                took: dict[str, list[float]] = {name: [] for name in ways}
                fastest = float("inf")
                for _ in range(args.rounds):
                    for name, run in ways.items():
                        times = run()
                        took[name].append(sum(times) / len(times))
                        fastest = min(fastest, *times) if name == "ours" else fastest
                each = {name: statistics.median(times) for name, times in took.items()}
                rate = path.stat().st_size / each["ours"] * 1e-9
                peer = f"{1 / each['llama.cpp']:.1f}" if "llama.cpp" in each else "-"
                share = f"{rate / reads[threads]:.2f}"
                lines.append(
                    (kind, threads, f"{1 / each['ours']:.1f}", f"{1 / fastest:.1f}", f"{rate:.1f}", share, peer)
                )
    table(lines, ("tokens/s", "threads", "gradloom", "its fastest", "GB/s", "of reading", "llama.cpp"))
    print("memory is read at " + ", ".join(f"{r:.1f} GB/s by {n} thread(s)" for n, r in reads.items()) + " in this run")
    print(f"FMA peak of one thread in this run: {fma_peak(1):.0f} GFLOP/s")


if __name__ == "__main__":
    main()
