"""A layer and an op of one's own: weights of three values, -1, 0 and 1 times a scale, trained on handwritten digits.

    python examples/own_layer.py [--epochs 15] [--seed 0]

Rounding has no slope; `ternary` is a function of NumPy whose vjp passes the gradient through (straight-through
estimator, Bengio et al., arXiv 1308.3432; weights of three values as in Li et al., arXiv 1605.04711). Reads
examples/data/digits.npz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import gradloom as gl


def _ternary(w: np.ndarray) -> np.ndarray:
    """Each row of w [out, in] as -scale, 0 or scale: 0 below 0.7 times the mean absolute value."""
    size = np.abs(w)
    kept = size > 0.7 * size.mean(1, keepdims=True)
    scale = (size * kept).sum(1, keepdims=True) / np.maximum(kept.sum(1, keepdims=True), 1)
    return np.asarray(scale * np.sign(w) * kept)


def _ternary_vjp(gradients: tuple[np.ndarray]) -> np.ndarray:
    return gradients[0]


ternary = gl.op(_ternary, _ternary_vjp)  # once, outside of loops: programs are cached by it


class TernaryLinear(gl.nn.Module):
    """x [n, inputs] -> [n, outputs], with weights of three values per output; the trained ones are f32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = self.parameter((outputs, inputs), lambda rng, shape: rng.uniform(-bound, bound, shape))
        self.bias = self.parameter((outputs,), lambda rng, shape: np.zeros(shape))

    def forward(self, x: gl.Value) -> gl.Value:
        return gl.ops.matmul(x, ternary(self.weight).T) + self.bias


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    digits = np.load(Path(__file__).parent / "data" / "digits.npz")
    x, y = digits["x"].reshape(-1, 64).astype(np.float32) / 16, digits["y"].astype(np.int32)
    order = np.random.default_rng(args.seed).permutation(len(x))
    train, test = order[:-360], order[-360:]

    net = gl.nn.Sequential(TernaryLinear(64, 128), gl.nn.LayerNorm(128), gl.nn.ReLU(), TernaryLinear(128, 10))
    optimizer = gl.optim.AdamW(lr=gl.optim.schedules.Cosine(1e-2, steps=args.epochs * 29))
    gl.fit(net, (x[train], y[train]), optimizer=optimizer, epochs=args.epochs, batch_size=50, seed=args.seed)

    result = gl.evaluate(net, (x[test], y[test]))
    first = net[0].weight.numpy()
    print(f"accuracy {result.accuracy:.4f} +- {result.accuracy_unc:.4f} with weights of three values")
    print(f"row 0 has {np.unique(_ternary(first)[0]).round(3)}, {np.mean(_ternary(first) == 0):.0%} of the layer is 0")
    return float(result.accuracy)


if __name__ == "__main__":
    main()
