"""Microseconds per AdamW step of a 4-32-3 MLP at batch 32, inside gl.fit, on one thread, beside the peers.

python bench/tiny.py [--no-peers]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from common import peer, pin, table

ROWS, BATCH = 32_000, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--profile", action="store_true", help="nanoseconds per instruction")
    args = parser.parse_args()
    pin(1)
    peers = {} if args.no_peers else {n: peer("tiny", n, 1) for n in ("torch", "jax", "jax-scan")}

    import gradloom as gl

    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, 4), dtype=np.float32), rng.integers(0, 3, ROWS)
    net = gl.nn.Sequential(gl.nn.Linear(4, 32), gl.nn.ReLU(), gl.nn.Linear(32, 3))
    seconds: list[float] = []
    gl.fit(
        net,
        (x, y),
        epochs=21,
        batch_size=BATCH,
        progress=False,
        threads=1,
        on_epoch=lambda e: seconds.append(e.seconds),
    )
    ours = statistics.median(seconds[1:]) / (ROWS / BATCH) * 1e6
    lines = [("gradloom fit", f"{ours:.2f}", "1.0")]
    for name, found in peers.items():
        if found:
            each = found["seconds_per_step"] * 1e6
            lines.append((name, f"{each:.2f}", f"{each / ours:.1f}"))
    table(lines, ("1 thread", "us/step", "ratio"))
    if args.profile:
        trainer = gl.Trainer(net, threads=1)
        data = gl.data.Dataset(x, y)
        gl.epoch(trainer, data, batch_size=BATCH)
        run = trainer.compiled[0].run
        run.collect_times()
        gl.epoch(trainer, data, batch_size=BATCH)
        for what, least, total in run.timings():
            print(f"{least:6d} ns least {total / (ROWS / BATCH):8.0f} ns mean  {what}")


if __name__ == "__main__":
    main()
