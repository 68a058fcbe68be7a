"""The eager style on MNIST: train() and eval(), dropout, a schedule, an early exit.

    python examples/eager_mnist.py FOLDER_WITH_IDX_FILES [--epochs 5] [--batch-size 100] [--seed 0] [--train-rows N]

Prints the accuracy on the t10k files after each epoch; stops when it has not risen for two epochs.
"""

from __future__ import annotations

import argparse

import numpy as np

import gradloom as gl


def build(mean: float, std: float, seed: int) -> gl.nn.Module:
    nn = gl.nn
    return nn.Sequential(
        nn.Standardize(mean, std),
        nn.Linear(784, 256, activation="relu"),
        nn.Dropout(0.2),
        nn.Linear(256, 10),
    ).init(seed)


@gl.no_grad()
def accuracy(model: gl.nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    model.eval()
    right = 0
    for xb, yb in gl.data.DataLoader(x, y, batch_size=1000):
        right += int((model(gl.tensor(xb)).numpy().argmax(-1) == yb).sum())
    model.train()
    return right / len(x)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-rows", type=int, default=60000)
    args = parser.parse_args(arguments)

    table = gl.data.read_table(args.folder, seed=args.seed)
    assert table.test is not None
    x, y = table.train.data[: args.train_rows], table.train.labels[: args.train_rows]
    model = build(float(x.mean()), float(x.std()), args.seed)
    batches = gl.data.DataLoader(x, y, batch_size=args.batch_size, shuffle=True, seed=args.seed)
    steps = args.epochs * len(batches)
    opt = gl.optim.AdamW(model.parameters(), lr=lambda step, epoch: 2e-3 * (1 - step / steps), weight_decay=0.01)
    gl.seed(args.seed)  # of dropout

    best, since = 0.0, 0
    for epoch in range(args.epochs):
        total: gl.Value | float = 0.0
        for xb, yb in batches:
            with gl.grad_tape() as tape:
                loss = gl.ops.cross_entropy(model(gl.tensor(xb)), gl.tensor(yb))
            opt.step(tape.backward(loss))
            total += loss * len(xb)
        reached = accuracy(model, table.test.data, table.test.labels)
        print(f"epoch {epoch + 1}: loss {float(total) / len(x):.4f}, test accuracy {reached:.4f}")
        best, since = (reached, 0) if reached > best else (best, since + 1)
        if since == 2:
            break
    return best


if __name__ == "__main__":
    main()
