"""Iris, trained by replicas that keep their weights equal: threads of one process, or processes.

    python examples/dp_iris.py FOLDER [--replicas 2]
    mpiexec -n 2 python examples/dp_iris.py FOLDER

FOLDER holds iris.csv (UCI, without header, the class last). Every tenth flower is held out. The same number of replicas
gives the same weights, bit for bit, whether they are threads or processes: the last line is their checksum.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

import gradloom as gl
from gradloom.parallel import checksum


def flowers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features scaled to mean 0 and deviation 1 [150, 4], class ids [150], in an order drawn once."""
    lines = [line for line in csv.reader(path.open()) if line]
    names = sorted({line[-1] for line in lines})
    x = np.array([line[:4] for line in lines], np.float32)
    y = np.array([names.index(line[-1]) for line in lines])
    order = np.random.default_rng(0).permutation(len(x))
    return ((x - x.mean(0)) / x.std(0))[order], y[order]


def make_model() -> gl.nn.Module:
    return gl.nn.Sequential(gl.nn.Linear(4, 32, activation="relu"), gl.nn.Linear(32, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--iterations", type=int, default=300)
    args = parser.parse_args()
    x, y = flowers(args.folder / "iris.csv")
    held = np.arange(len(x)) % 10 == 0
    samples = [(x[~held][k : k + 15], y[~held][k : k + 15]) for k in range(0, np.sum(~held), 15)]
    result = gl.dp_train(
        make_model,
        samples,
        loss_fn=gl.ops.cross_entropy,
        replicas=args.replicas,
        iterations=args.iterations,
        lr=1e-2,
        max_norm=5.0,
        shuffle=True,
        verbose=True,
    )
    if result.is_root:
        accuracy = np.mean(gl.predict(result.model, x[held]).argmax(-1) == y[held])
        print(f"{result.replicas} replicas: loss {result.loss:.4f}, held-out accuracy {accuracy:.3f}")
        print(f"weights {checksum(*result.params.values())}")


if __name__ == "__main__":
    main()
