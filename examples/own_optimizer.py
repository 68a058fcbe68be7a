"""An optimiser of one's own in ten lines, compared with AdamW on handwritten digits.

    python examples/own_optimizer.py [--epochs 10] [--seed 0]

A subclass of gl.optim.Optimizer works wherever the built-in ones do: groups, clipping, micro-batches, processes,
checkpoints. Reads examples/data/digits.npz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import gradloom as gl
from gradloom import ops
from gradloom.optim import schedules


class AdaBelief(gl.optim.Optimizer):
    """Zhuang et al., arXiv 2010.07468, algorithm 2, with decoupled weight decay.

    The step is large where gradients are close to their mean.
    """

    lr: gl.optim.Schedule = 1e-3  # a number, or a schedule
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-16
    weight_decay: float = 0.0
    state_names = ("m", "s")  # f32 arrays of each parameter's shape, zero at first
    nonnegative = ("s",)  # a file with a number below 0 is rejected

    def update(
        self, p: gl.Value, g: gl.Value, m: gl.Value, s: gl.Value, step: gl.Value, lr: gl.Value, beta1: gl.Value,
        beta2: gl.Value, eps: gl.Value, weight_decay: gl.Value,
    ) -> dict[str, gl.Value]:  # fmt: skip
        """New parameter and state by name. p, g and the state have the parameter's shape; the others are scalars."""
        m = beta1 * m + (1 - beta1) * g
        s = beta2 * s + (1 - beta2) * ops.sqr(g - m) + eps
        size = ops.sqrt(s / (1 - beta2**step)) + eps
        return {"p": p - lr * (weight_decay * p + m / (1 - beta1**step) / size), "m": m, "s": s}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    digits = np.load(Path(__file__).parent / "data" / "digits.npz")
    x, y = digits["x"].reshape(-1, 64).astype(np.float32) / 16, digits["y"].astype(np.int32)
    order = np.random.default_rng(args.seed).permutation(len(x))
    train, test = (gl.data.Dataset(x[rows], y[rows]) for rows in (order[:-360], order[-360:]))
    rate = schedules.Cosine(3e-3, steps=args.epochs * 30, warmup=10)
    no_decay = [{"match": "*.bias", "weight_decay": 0.0}]
    reached: dict[str, float] = {}
    for optimizer in (gl.optim.AdamW, AdaBelief):
        net = gl.nn.Sequential(gl.nn.Linear(64, 64, "relu"), gl.nn.Dropout(0.1), gl.nn.Linear(64, 10))
        rule = optimizer(lr=rate, weight_decay=0.01, groups=no_decay)
        gl.fit(
            net, train, optimizer=rule, epochs=args.epochs, batch_size=48, max_norm=1.0, seed=args.seed, progress=False
        )
        result = gl.evaluate(net, test)
        print(f"{optimizer.__name__:<10} test loss {result.loss:.4f}, accuracy {result.accuracy:.4f}")
        reached[optimizer.__name__] = float(result.accuracy)
    return reached


if __name__ == "__main__":
    main()
