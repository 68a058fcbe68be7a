"""Trains, and saves a checkpoint after each step: python -m tests.faults.training KIND FOLDER SEED HOW.

KIND: loop (of one's own, with gl.train.Checkpoint) or fit. HOW: resume (go on from the newest checkpoint, if there is
one) or overwrite.
"""

from __future__ import annotations

import sys

import numpy as np

import gradloom as gl
from gradloom import nn, optim

STEPS = 4


def main(arguments: list[str], keep: int = 2, stop: int = STEPS) -> int:
    """The exit code; errors and warnings are lines on stderr. stop: the steps after which a loop is interrupted."""
    kind, folder, seed, how = arguments
    net = nn.Linear(3, 2)
    net.init(int(seed))
    try:
        if kind == "fit":
            rows = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
            again = {"resume": how == "resume", "overwrite": how == "overwrite"}
            gl.fit(
                net, (rows, rows[:, :2]), loss="mse", epochs=STEPS // 2, batch_size=4, progress=False, run=folder,
                checkpoint_every="1steps", keep=keep, **again,
            )  # fmt: skip
        else:
            loop(net, folder, how, keep, stop)
    except (gl.GradloomError, MemoryError) as error:
        print(f"gradloom: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def loop(net: nn.Module, folder: str, how: str, keep: int, stop: int) -> None:
    """A loop of one's own."""
    opt = optim.AdamW(net.parameters(), lr=0.1)
    with gl.train.Checkpoint(folder, keep=keep, overwrite=how == "overwrite", model=net, optimizer=opt) as saving:
        step = (saving.load() if how == "resume" else None) or 0
        while step < STEPS:
            if step == stop:
                raise KeyboardInterrupt
            with gl.grad_tape() as tape:
                grads = tape.backward(gl.ops.mean(net(np.full((2, 3), step, np.float32)) ** 2))
            opt.step(grads)
            step += 1
            saving.save(step)
            saving.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
