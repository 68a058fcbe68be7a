"""The eager style on iris: a tape, a loop, an optimiser.

    python examples/eager_iris.py iris.csv [--epochs 60] [--seed 0]

iris.csv: four numbers and the class's name in each line. Prints the loss as it falls and the accuracy on held-out rows.
"""

from __future__ import annotations

import argparse

import numpy as np

import gradloom as gl


def train(table: gl.data.Table, epochs: int, seed: int) -> gl.nn.Module:
    x, y = table.train.data, table.train.labels
    model = gl.nn.Sequential(gl.nn.Linear(4, 32, activation="relu"), gl.nn.Linear(32, 3)).init(seed)
    opt = gl.optim.Adam(model.parameters(), lr=1e-2)
    batches = gl.data.DataLoader(x, y, batch_size=32, shuffle=True, seed=seed)
    for epoch in range(epochs):
        total: gl.Value | float = 0.0
        for xb, yb in batches:
            with gl.grad_tape() as tape:
                loss = gl.ops.cross_entropy(model(gl.tensor(xb)), gl.tensor(yb))
            grads = tape.backward(loss)
            opt.step(grads)
            total += loss * len(xb)  # computed when it is looked at
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3}: loss {float(total) / len(x):.4f}")
    return model


def accuracy(model: gl.nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    with gl.no_grad():
        return float((model(gl.tensor(x)).numpy().argmax(-1) == y).mean())


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    table = gl.data.read_table(args.file, seed=args.seed)
    assert table.test is not None  # a fifth of the rows, held out
    model = train(table, args.epochs, args.seed)
    reached = accuracy(model, table.test.data, table.test.labels)
    print(f"accuracy on {table.test.n} held-out flowers: {reached:.3f}")
    return reached


if __name__ == "__main__":
    main()
