"""What progress, logs and checkpoints add to a training: MNIST's MLP (784-500-10, batch 500, AdamW) in gl.fit, and the
fine-tuning of a small language model (LoRA, 8 rows of 256 tokens a step).

    python bench/overhead.py [--threads 2] [--repeats 9] [--epochs 4] [--steps 40]

Each round runs every setting once, in an order that rotates; shown are the median over the rounds of the time without
anything, and the medians of what each setting adds to the time of its own round, in per cent. The first epoch (of the
fine-tuning: what comes before its first step) is left out: it compiles. The spread of two equal settings tells what a
machine can resolve: read the medians against "nothing again".

    display     the live display, drawn for a terminal that throws it away
    log         metrics.jsonl, CSV and TensorBoard files (where tensorboardX is there), a line of training every 10 s
    every line  the same with a line of training for each optimiser step: no setting that one would choose
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from common import SHARED, pin, table
from mnist_mlp import BATCH, rows

KINDS = ("csv", "tensorboard") if importlib.util.find_spec("tensorboardX") else ("csv",)


class Terminal:
    """A terminal whose screen nobody sees."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    kept, sys.stderr = sys.stderr, Terminal()  # type: ignore[assignment]
    os.environ.setdefault("TERM", "xterm")
    try:
        yield
    finally:
        sys.stderr = kept


def settings(folder: str) -> dict[str, dict[str, Any]]:
    """Name -> what gl.fit and gl.llm.finetune get."""
    from gradloom.train import Log

    return {
        "nothing": {"progress": False},
        "nothing again": {"progress": False},
        "display": {"progress": True},
        "log": {"progress": False, "callbacks": [Log(folder, KINDS)]},
        "display and log": {"progress": True, "callbacks": [Log(folder, KINDS)]},
        "every line": {"progress": False, "callbacks": [Log(folder, KINDS, every="1steps")]},
    }


def mlp(threads: int, epochs: int) -> Callable[[dict[str, Any]], float]:
    """A function that gives the seconds of an epoch with some settings."""
    import gradloom as gl

    data = gl.data.Dataset(*rows())

    def run(asked: dict[str, Any]) -> float:
        net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10))
        ends: list[float] = []
        gl.fit(net, data, optimizer=gl.optim.AdamW(lr=1e-4), epochs=epochs + 1, batch_size=BATCH, threads=threads,
               on_epoch=lambda _: ends.append(time.perf_counter()), **asked)  # fmt: skip
        return (time.perf_counter() - ends[0]) / epochs

    return run


def finetuning(threads: int, steps: int) -> Callable[[dict[str, Any]], float] | None:
    """A function that gives the seconds of a step with some settings; None without the model and its text."""
    import gradloom as gl

    model, text = SHARED / "gguf" / "stories260K.gguf", SHARED / "text" / "tinyshakespeare.txt"
    if not model.exists() or not text.exists():
        return None
    loaded = gl.llm.load(str(model))

    def run(asked: dict[str, Any]) -> float:
        given = dict(asked)
        progress = given.pop("progress")
        made = gl.llm.Run(loaded, str(text), gl.llm.LoRA(rank=16, targets="all"), context=256, batch_size=8,
                          steps=steps, val_split=0, threads=threads, **given)  # fmt: skip
        made.prepare()
        began = time.perf_counter()
        made.train(progress=progress)
        return (time.perf_counter() - began) / steps

    return run


def measured(name: str, run: Callable[[dict[str, Any]], float], repeats: int) -> list[tuple]:
    """A line of the table for each setting."""
    seconds: dict[str, list[float]] = {}
    with terminal(), tempfile.TemporaryDirectory() as folder:
        for round_ in range(repeats + 1):  # the first one warms up
            asked = list(settings(f"{folder}/{round_}").items())
            for setting, given in asked[round_ % len(asked) :] + asked[: round_ % len(asked)]:
                seconds.setdefault(setting, []).append(run(given))
    first, *others = seconds
    base = seconds[first][1:]
    lines = [(f"{name}, {first}", f"{statistics.median(base) * 1e3:.2f}", "", "")]
    for setting in others:
        added = [after / before - 1 for after, before in zip(seconds[setting][1:], base, strict=True)]
        low, _, high = statistics.quantiles(added, n=4)
        spread = f"{low:+.2%} to {high:+.2%}"
        lines.append((f"{name}, {setting}", "", f"{statistics.median(added):+.2%}", spread))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    pin(args.threads)
    lines = measured("MLP epoch", mlp(args.threads, args.epochs), args.repeats)
    step = finetuning(args.threads, args.steps)
    lines += measured("LoRA step", step, args.repeats) if step is not None else []
    table(lines, (f"{args.threads} threads", "ms", "added", "middle half"))


if __name__ == "__main__":
    main()
