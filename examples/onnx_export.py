"""Train a network on handwritten digits, write it as an ONNX file, and compare it with ONNX Runtime.

    python examples/onnx_export.py [--out digits.onnx] [--epochs 5] [--seed 0]

Requires `pip install 'gradloom[onnx]'`; the comparison also onnxruntime, and is left out without it. Reads
examples/data/digits.npz.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path

import numpy as np

import gradloom as gl


def network() -> gl.nn.Module:
    """Images [n, 1, 8, 8] with values 0 to 16 -> logits [n, 10]; scaling is a part of the file."""
    nn = gl.nn
    return nn.Sequential(
        nn.Standardize([[[4.9]]], [[[6.0]]]),
        nn.Conv2d(1, 16, 3, padding="same"),
        nn.BatchNorm(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 4 * 4, 10),
    )


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits.onnx"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    digits = np.load(Path(__file__).parent / "data" / "digits.npz")
    x, y = digits["x"].reshape(-1, 1, 8, 8).astype(np.float32), digits["y"].astype(np.int32)
    net = network()
    gl.fit(
        net, (x, y), optimizer=gl.optim.AdamW(lr=3e-3), epochs=args.epochs, batch_size=50, val_split=0.2, seed=args.seed
    )

    made = gl.export_onnx(net, args.out, x[:1])  # in eval mode: no dropout, running statistics
    print(f"{args.out}: inputs {made.inputs}, outputs {made.outputs}, {args.out.stat().st_size} bytes")
    ours = gl.predict(net, x)
    again = gl.predict(gl.import_onnx(args.out), x)  # as a module, which can be trained on
    away = float(np.abs(ours - again).max())
    if importlib.util.find_spec("onnxruntime"):
        session = importlib.import_module("onnxruntime").InferenceSession(str(args.out))
        (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
        away = max(away, float(np.abs(ours - theirs).max()))
        print("compared with ONNX Runtime")
    print(f"largest difference {away:.2g}")
    return away


if __name__ == "__main__":
    main()
