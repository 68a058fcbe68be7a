"""ggml's MNIST examples, mnist-fc and mnist-cnn: the same networks and settings, saved for ggml's mnist-eval.

    python examples/ggml_mnist.py mnist-fc mnist-fc-f32.gguf FOLDER_WITH_IDX_FILES
    mnist-eval mnist-fc-f32.gguf t10k-images-idx3-ubyte t10k-labels-idx1-ubyte          # of ggml

Settings of mnist-train: weights from a normal distribution of 0.01, AdamW with a rate of 0.001, 30 epochs, batches of
1000 in two parts, shards of 10 images, 5 % of the images for validation.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import gradloom as gl
from examples.mnist_cnn import images

LAYERS = {
    "mnist-fc": lambda nn: [nn.Flatten(), nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10)],
    "mnist-cnn": lambda nn: [
        *(nn.Conv2d(1, 8, 3, padding="same", activation="relu"), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding="same", activation="relu"), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 7 * 7, 10)),
    ],
}


def network(kind: str, seed: int) -> gl.nn.Module:
    """Takes images u8 [n, 1, 28, 28]; returns logits [n, 10]."""
    net = gl.nn.Sequential(gl.nn.Standardize([[[0.0]]], [[[255.0]]]), *LAYERS[kind](gl.nn))
    rng = np.random.default_rng(seed)
    state = {name: np.asarray(array) for name, array in net.state_dict().items()}
    for name, array in state.items():
        if name.endswith(("weight", "bias")):
            state[name] = rng.normal(0, 0.01, array.shape).astype(np.float32)
    net.load_state_dict(state)
    return net


def tensors(kind: str, net: gl.nn.Module) -> dict[str, np.ndarray]:
    """The weights under ggml's names, in the shapes of its graph."""
    arrays = [a for name, a in net.state_dict().items() if name.endswith(("weight", "bias"))]
    if kind == "mnist-fc":
        return dict(zip(("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"), arrays, strict=True))
    kernel1, bias1, kernel2, bias2, dense, bias = arrays
    dense = dense.reshape(10, 16, 7, 7).transpose(0, 2, 3, 1).reshape(10, -1)  # ggml flattens [height, width, channels]
    named = {"conv1.kernel": kernel1, "conv1.bias": bias1[:, None, None], "conv2.kernel": kernel2}
    return named | {"conv2.bias": bias2[:, None, None], "dense.weight": dense, "dense.bias": bias}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=LAYERS)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()

    data = gl.data.Dataset(*images(args.folder, "train"), shard_size=10)
    net = network(args.kind, args.seed)
    gl.fit(
        net, data, loss="cross_entropy", optimizer=gl.optim.AdamW(lr=1e-3), epochs=args.epochs, batch_size=1000,
        micro_batch_size=500, val_split=0.05, seed=args.seed, threads=args.threads,
    )  # fmt: skip
    test = gl.evaluate(net, images(args.folder, "t10k"), threads=args.threads)
    gl.save_gguf(tensors(args.kind, net), args.out, metadata={"general.architecture": args.kind})
    print(f"test_loss={test.loss:.6f}+-{test.loss_unc:.6f}")
    print(f"test_acc={100 * test.accuracy:.2f}+-{100 * test.accuracy_unc:.2f}%")


if __name__ == "__main__":
    main()
