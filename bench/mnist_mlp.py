"""Seconds per epoch of an MLP 784-500-10, batch 500, AdamW, 60 000 rows, inside gl.fit, beside the peers.

    python bench/mnist_mlp.py [--threads 2] [--precision bf16] [--no-peers]

Ours runs from bytes (u8) on MNIST where ../shared/data/mnist is there, else on random rows of the same shape; the peers
run on f32 rows in memory, the same work in each step. The arithmetic alone, at the FMA peak measured in this run, is
printed as the limit. With --precision bf16 ours rounds the operands of products, PyTorch computes under its autocast,
and the peak is that of bf16 products; JAX stays in f32.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from common import SHARED, fma_peak, in_precision, peer, pin, rss_mib, table

ROWS, BATCH = 60_000, 500
FLOP = 2 * ROWS * (2 * 784 * 500 + 3 * 500 * 10)  # dX of the first layer is never computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    pin(args.threads)
    names = () if args.no_peers else ("torch", "torch-fused", "jax", "jax-scan")
    peers = {n: peer("mlp", n, args.threads, 5, "--precision", args.precision) for n in names}

    import gradloom as gl

    x, y = rows()
    net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10))
    seconds: list[float] = []
    gl.fit(net, (x, y), optimizer=gl.optim.AdamW(lr=1e-4), epochs=args.epochs + 1, batch_size=BATCH, progress=False,
           threads=args.threads, precision=args.precision, on_epoch=lambda e: seconds.append(e.seconds))  # fmt: skip
    ours = statistics.median(seconds[1:])
    peak = fma_peak(args.threads, args.precision)
    lines = [
        ("arithmetic at the FMA peak", f"{FLOP / peak / 1e9:.3f}", "", ""),
        (in_precision("gradloom fit", args.precision), f"{ours:.3f}", "1.00", f"{rss_mib():.0f}"),
    ]
    for name, found in peers.items():
        if found:
            per_epoch = found["seconds_per_step"] * ROWS / BATCH
            lines.append(
                (
                    in_precision(name, args.precision),
                    f"{per_epoch:.3f}",
                    f"{per_epoch / ours:.2f}",
                    f"{found['rss_mib']:.0f}",
                )
            )
    table(lines, (f"{args.threads} threads", "s/epoch", "ratio", "MiB"))
    print(f"FMA peak {peak:.0f} GFLOP/s; ours {FLOP / ours / 1e9:.0f} GFLOP/s in the matrix products alone")


def rows() -> tuple[np.ndarray, np.ndarray]:
    folder = SHARED / "mnist"
    if folder.exists():
        from gradloom.data.idx import read_idx

        x = read_idx(folder / "train-images-idx3-ubyte.gz").reshape(ROWS, 784)
        return x, read_idx(folder / "train-labels-idx1-ubyte.gz")
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (ROWS, 784), dtype=np.uint8), rng.integers(0, 10, ROWS)


if __name__ == "__main__":
    main()
