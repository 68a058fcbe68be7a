"""Write data for the examples that read MNIST or iris, for a machine that has neither.

    python examples/make_data.py FOLDER
    python examples/mnist_cnn.py FOLDER

MNIST's four files hold the 1797 digits of examples/data, enlarged to 28 x 28 pixels; 360 of them are the t10k files.
iris.csv has 150 rows of random numbers with the means and deviations of Fisher's three species. Results on them are not
those of the real data.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np

SPECIES = {  # mean and standard deviation of sepal length and width, petal length and width, in cm
    "Iris-setosa": ((5.0, 3.4, 1.5, 0.2), (0.35, 0.38, 0.17, 0.11)),
    "Iris-versicolor": ((5.9, 2.8, 4.3, 1.3), (0.52, 0.31, 0.47, 0.20)),
    "Iris-virginica": ((6.6, 3.0, 5.6, 2.0), (0.64, 0.32, 0.55, 0.27)),
}


def write_idx(path: Path, array: np.ndarray) -> None:
    """u8 array in MNIST's format: two zero bytes, the type 8, the number of axes, each size, the values."""
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_mnist(folder: Path) -> None:
    digits = np.load(Path(__file__).parent / "data" / "digits.npz")
    x = np.kron(digits["x"].astype(np.uint16) * 255 // 16, np.ones((3, 3), np.uint16))  # [n, 24, 24]
    x = np.pad(x, ((0, 0), (2, 2), (2, 2)))
    for part, rows in (("train", slice(360, None)), ("t10k", slice(360))):
        write_idx(folder / f"{part}-images-idx3-ubyte", x[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte", digits["y"][rows])


def write_iris(folder: Path) -> None:
    rng = np.random.default_rng(0)
    with open(folder / "iris.csv", "w") as file:
        for name, (means, deviations) in SPECIES.items():
            for row in rng.normal(means, deviations, (50, 4)).clip(0.1):
                file.write(",".join(f"{value:.1f}" for value in row) + f",{name}\n")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_mnist(folder)
    write_iris(folder)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/make_data.py FOLDER")
    main(Path(sys.argv[1]))
