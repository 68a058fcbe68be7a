"""A small CNN on MNIST: two 3x3 convolutions, pooling, one dense layer.

    python examples/mnist_cnn.py FOLDER_WITH_IDX_FILES [--epochs 5] [--seed 0] [--threads N]

Prints the test accuracy on the t10k files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import gradloom as gl
from gradloom.data.idx import read_idx


def images(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(u8 [n, 1, 28, 28], u8 [n]) of "train" or "t10k"."""
    x, y = (next(folder.glob(f"{part}-{what}*")) for what in ("images", "labels"))
    return read_idx(x)[:, None], read_idx(y)


def model(mean: float, std: float) -> gl.nn.Module:
    nn = gl.nn
    return nn.Sequential(
        nn.Standardize([[[mean]]], [[[std]]]),
        nn.Conv2d(1, 8, 3, padding="same", activation="relu"),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding="same", activation="relu"),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()

    x, y = images(args.folder, "train")
    net = model(float(x.mean()), float(x.std()))
    steps = args.epochs * -(-len(x) // 100)
    optimizer = gl.optim.AdamW(lr=lambda step, epoch: 4e-3 * (1 - step / steps), weight_decay=0.01)
    gl.fit(net, (x, y), optimizer=optimizer, epochs=args.epochs, batch_size=100, seed=args.seed, threads=args.threads)

    test = gl.evaluate(net, images(args.folder, "t10k"), threads=args.threads)
    print(f"test accuracy {test.accuracy:.4f} +- {test.accuracy_unc:.4f}, loss {test.loss:.4f}")


if __name__ == "__main__":
    main()
