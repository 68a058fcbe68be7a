"""Bytes of the MLP and CNN training runs: the arena, its lower bound, huge pages, resident memory; PyTorch's beside.

    python bench/memory.py [--no-peers]

Each run is a process of its own. "grown" is by how much the arena grew after compile: it must be 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import numpy as np
from common import peer, rss_mib, table


def measure(work: str) -> dict:
    import gradloom as gl
    from gradloom.run.cpu_backend import arena

    rng = np.random.default_rng(0)
    if work == "mlp":
        net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10))
        x = rng.random((60000, 784), dtype=np.float32)
    else:
        from mnist_cnn import model

        net, x = model(), rng.random((5000, 1, 28, 28), dtype=np.float32)
    data = gl.data.Dataset(x, rng.integers(0, 10, len(x)))
    trainer = gl.Trainer(net)
    before = rss_mib()
    gl.epoch(trainer, data, batch_size=500)
    compiled = arena().bytes
    for _ in range(2):
        gl.epoch(trainer, data, batch_size=500)
    plan = trainer.compiled[0].run.plan
    return {
        "peak": plan.peak_bytes, "lower": plan.lower_bound_bytes, "unshared": plan.unshared_bytes,
        "arena": arena().bytes,
        "huge": arena().huge_bytes, "grown": arena().bytes - compiled, "rss": rss_mib(), "run": rss_mib() - before,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--work", choices=("mlp", "cnn"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(measure(args.work)))
        return
    lines = []
    for work in ("mlp", "cnn"):
        done = subprocess.run([sys.executable, __file__, "--work", work], capture_output=True, text=True, check=True)
        m = json.loads(done.stdout.splitlines()[-1])
        torch = None if args.no_peers else peer(work, "torch", 2, blocks=2)
        mib = [f"{m[k] / 2**20:.2f}" for k in ("peak", "lower", "unshared", "arena", "huge", "grown")]
        lines.append((work, *mib, f"{m['rss']:.0f}", f"{torch['rss_mib']:.0f}" if torch else "-"))
    table(
        lines,
        (
            "MiB",
            "planned",
            "lower bound",
            "unshared",
            "arena",
            "in huge pages",
            "grown",
            "resident",
            "PyTorch resident",
        ),
    )


if __name__ == "__main__":
    main()
