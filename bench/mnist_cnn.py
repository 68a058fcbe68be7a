"""Milliseconds per step of a small CNN (3x3x8 conv, pool, 3x3x16 conv, pool, dense), batch 500, AdamW, beside peers.

    python bench/mnist_cnn.py [--threads 2] [--precision bf16] [--no-peers]

With --precision bf16 ours rounds the operands of convolutions and products, PyTorch computes under its autocast, and
the peak is that of bf16 products; JAX stays in f32.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from common import fma_peak, in_precision, peer, pin, rss_mib, table

ROWS, BATCH = 15_000, 500
# forward, weight gradient, and (second layer and dense) input gradient of each product
FLOP = 2 * BATCH * (2 * 784 * 9 * 8 + 3 * 196 * 72 * 16 + 3 * 784 * 10)


def model():
    import gradloom as gl

    nn = gl.nn
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, activation="relu"), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, activation="relu"), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    pin(args.threads)
    names = () if args.no_peers else ("torch", "torch-cl", "jax")
    peers = {n: peer("cnn", n, args.threads, 5, "--precision", args.precision) for n in names}

    import gradloom as gl

    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, ROWS)
    seconds: list[float] = []
    gl.fit(model(), (x, y), epochs=args.epochs + 1, batch_size=BATCH, progress=False, threads=args.threads,
           precision=args.precision, on_epoch=lambda e: seconds.append(e.seconds))  # fmt: skip
    ours = statistics.median(seconds[1:]) * BATCH / ROWS * 1e3
    peak = fma_peak(args.threads, args.precision)
    lines = [
        ("arithmetic at the FMA peak", f"{FLOP / peak / 1e6:.2f}", "", ""),
        (in_precision("gradloom fit", args.precision), f"{ours:.2f}", "1.00", f"{rss_mib():.0f}"),
    ]
    for name, found in peers.items():
        if found:
            per_step = found["seconds_per_step"] * 1e3
            lines.append(
                (
                    in_precision(name, args.precision),
                    f"{per_step:.2f}",
                    f"{per_step / ours:.2f}",
                    f"{found['rss_mib']:.0f}",
                )
            )
    table(lines, (f"{args.threads} threads", "ms/step", "ratio", "MiB"))


if __name__ == "__main__":
    main()
