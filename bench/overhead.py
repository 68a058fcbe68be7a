"""What progress, logs and checkpoints add to a training: MNIST's MLP (784-500-10, batch 500, AdamW) in gl.fit, and the
fine-tuning of a small language model (LoRA, 8 rows of 256 tokens a step).

    python bench/overhead.py [--threads 2] [--repeats 9] [--epochs 4] [--steps 40]

Each round runs every setting once, in an order that rotates; shown are the median over the rounds of the time with
nothing, and the medians of what each setting adds to the time of its own round, in per cent. What compiles is left out:
the first epoch; of the fine-tuning, all before its first step. Two equal settings, "nothing" and "nothing again", tell
what the machine can resolve.

    display           the live display, drawn for a terminal that throws it away
    log               metrics.jsonl, CSV, TensorBoard files (where tensorboardX is there), a line of training every 10 s
    every line        the same with a line of training for each optimiser step: no setting that one would choose
    run               gl.fit(run=, log=): the log, and a checkpoint every five minutes
    each epoch        gl.fit(run=, checkpoint_every="1epoch"): a checkpoint after each epoch

A checkpoint every five minutes falls into few of these runs; the last line spreads the cost of one, as "each epoch" has
it over "run", over five minutes.
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


def settings(folder: str, runs: bool) -> dict[str, dict[str, Any]]:
    """Name -> what gl.fit and gl.llm.Run get. runs: with folders of runs, too."""
    from gradloom.train import Log

    quiet = {"progress": False}
    found: dict[str, dict[str, Any]] = {
        "nothing": quiet,
        "nothing again": quiet,
        "display": {"progress": True},
        "log": {**quiet, "callbacks": [Log(f"{folder}/log", KINDS)]},
        "display and log": {"progress": True, "callbacks": [Log(f"{folder}/both", KINDS)]},
        "every line": {**quiet, "callbacks": [Log(f"{folder}/lines", KINDS, every="1steps")]},
    }
    if runs:
        found["run"] = {**quiet, "run": f"{folder}/run", "log": KINDS}
        found["each epoch"] = {**quiet, "run": f"{folder}/epochs", "log": KINDS, "checkpoint_every": "1epoch"}
    return found


def mlp(threads: int, epochs: int) -> Callable[[dict[str, Any]], float]:
    """A function that gives the seconds of an epoch with some settings."""
    import gradloom as gl

    data = gl.data.Dataset(*rows())

    def run(asked: dict[str, Any]) -> float:
        net = gl.nn.Sequential(gl.nn.Linear(784, 500), gl.nn.ReLU(), gl.nn.Linear(500, 10))
        ends: list[float] = []
        gl.fit(net, data, optimizer=gl.optim.AdamW(lr=1e-4), epochs=epochs + 1, batch_size=BATCH, threads=threads,
               on_epoch=lambda _: ends.append(time.perf_counter()), **asked)  # fmt: skip
        return (ends[-1] - ends[0]) / epochs

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


def measured(name: str, run: Callable[[dict[str, Any]], float], repeats: int, runs: bool) -> list[tuple]:
    """A line of the table for each setting."""
    seconds: dict[str, list[float]] = {}
    with terminal(), tempfile.TemporaryDirectory() as folder:
        for round_ in range(repeats + 1):  # the first one warms up
            asked = list(settings(f"{folder}/{round_}", runs).items())
            for setting, given in asked[round_ % len(asked) :] + asked[: round_ % len(asked)]:
                seconds.setdefault(setting, []).append(run(given))
    first, *others = seconds
    base, medians = seconds[first][1:], {}
    lines = [(f"{name}, {first}", f"{statistics.median(base) * 1e3:.2f}", "", "")]
    for setting in others:
        added = [after / before - 1 for after, before in zip(seconds[setting][1:], base, strict=True)]
        low, _, high = statistics.quantiles(added, n=4)
        spread = f"{low:+.2%} to {high:+.2%}"
        medians[setting] = statistics.median(added)
        lines.append((f"{name}, {setting}", "", f"{medians[setting]:+.2%}", spread))
    if runs:
        one = (medians["each epoch"] - medians["run"]) * statistics.median(base)  # seconds of a checkpoint
        lines.append((f"{name}, a checkpoint every 5 minutes", "", f"{one / 300:+.3%}", f"{one * 1e3:.1f} ms each"))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    pin(args.threads)
    lines = measured("MLP epoch", mlp(args.threads, args.epochs), args.repeats, True)
    step = finetuning(args.threads, args.steps)
    lines += measured("LoRA step", step, args.repeats, False) if step is not None else []
    table(lines, (f"{args.threads} threads", "ms", "added", "middle half"))


if __name__ == "__main__":
    main()
