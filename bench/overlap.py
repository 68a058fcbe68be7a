"""Two independent halves of one program, on a GPU and on the CPU with one thread: against the sum of its parts.

    python bench/overlap.py [--device gpu] [--width N] [--rounds N]

Each half is a chain of products, and takes about 0.15 s. On a software adapter both compute on the processor: there
the GPU's threads are held to one (LP_NUM_THREADS), and what is shown is that the two run side by side on two cores.
Needs two cores that are free.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("LP_NUM_THREADS", "1")  # read by Mesa when the device is made

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gradloom as gl
from gradloom import _core, ops
from gradloom.gpu.device import device as gpu_device
from gradloom.graph.value import Value


def chain(name: str, width: int, length: int, place: str) -> Value:
    """A chain of products of [width, width]: its sum."""
    weights = [gl.parameter(np.eye(width, dtype="f4") / 2, f"{name}{i}") for i in range(2)]
    with gl.device(place):
        h: Value = gl.input(name, (width, width))
        for i in range(length):
            h = h @ weights[i % 2]
        return ops.sum(h)


def seconds(run: Any, feeds: dict[str, np.ndarray]) -> float:
    begun = time.perf_counter()
    run(**feeds)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    x = np.eye(asked.width, dtype="f4")
    there, here = asked.device, "cpu"

    def one(place: str, length: int) -> Any:
        value = chain("x", asked.width, length, place)
        return gl.compile(value, device=place, threads=1)

    lengths = {}
    for place in (there, here):
        short, long = one(place, 4), one(place, 24)
        for run in (short, long):
            run(x=x)
        found = [seconds(long, {"x": x}) - seconds(short, {"x": x}) for _ in range(3)]
        lengths[place] = max(4, round(0.15 / (max(statistics.median(found), 1e-6) / 20)))
    halves = {place: one(place, lengths[place]) for place in (there, here)}
    values = [chain(name, asked.width, lengths[place], place) for name, place in (("x", there), ("y", here))]
    both = gl.compile(values, devices=(there, here), threads=1)
    alone, together = [], []
    for _ in range(asked.rounds + 1):
        alone.append([seconds(halves[place], {"x": x}) for place in (there, here)])
        together.append(seconds(both, {"x": x, "y": x}))
    alone, together = alone[1:], together[1:]  # the first round makes buffers
    ratio = statistics.median(t / sum(a) for a, t in zip(alone, together, strict=True))
    first, second = (statistics.median(column) for column in zip(*alone, strict=True))
    vendor, family, model, *_ = _core.processor()
    print(
        f"{vendor} family {family} model {model}; {gpu_device(0).name}, LP_NUM_THREADS={os.environ['LP_NUM_THREADS']}"
    )
    print(f"products of {asked.width}: {lengths[there]} on {there} {1e3 * first:.0f} ms")
    print(f"products of {asked.width}: {lengths[here]} on {here} with one thread {1e3 * second:.0f} ms")
    print(f"both in one program: {1e3 * statistics.median(together):.0f} ms, {ratio:.2f} of their sum")


if __name__ == "__main__":
    main()
