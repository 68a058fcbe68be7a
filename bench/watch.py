"""What watching costs: steps per second without it, with norms every 100 steps and in each step; and equal weights.

python bench/watch.py [--steps N] [--rounds N] [--width N]

Rounds of the three alternate; the fastest of each is printed, with the share of time that it adds to that without.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np

import gradloom as gl

KINDS = {"off": None, "every 100 steps": "100steps", "every step": "1steps"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64 * args.steps, args.width)).astype(np.float32)
    y = rng.integers(0, 10, len(x))
    times: dict[str, list[float]] = {name: [] for name in KINDS}
    weights = {}
    for _ in range(args.rounds):
        for name, every in KINDS.items():
            seconds, weights[name] = trained(x, y, args.width, every)
            times[name].append(seconds)
    assert len(set(weights.values())) == 1, "watching has changed the weights"
    base = min(times["off"])
    print(f"{args.steps} steps of 64 rows, width {args.width}; the same weights")
    for name, seconds in times.items():
        least = min(seconds)
        print(f"{name:<16} {args.steps / least:8.0f} steps/s  {least / base - 1:+.1%}")


def trained(x: np.ndarray, y: np.ndarray, width: int, every: str | None) -> tuple[float, bytes]:
    """Seconds of an epoch, by its result, and the weights."""
    layers = [gl.nn.Linear(width, width, activation="gelu") for _ in range(3)]
    net = gl.nn.Sequential(*layers, gl.nn.Linear(width, 10))
    watch = {} if every is None else {"watch": ["*", "grad:*"], "watch_every": every}
    began: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        history = gl.fit(
            net, (x, y), batch_size=64, epochs=2, run=folder, progress=False,
            on_epoch=lambda result: began.append(time.perf_counter()), **watch,
        )  # fmt: skip
    assert len(history) == 2
    return began[1] - began[0], b"".join(array.tobytes() for array in net.state_dict().values())


if __name__ == "__main__":
    main()
