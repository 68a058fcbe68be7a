"""Predicted and measured seconds of trainings and evaluations: what `gradloom` announces before a long run.

    python bench/duration.py [--threads 2] [--rounds 9] [--only TEXT] [--processor]

Each round measures the machine's rates, predicts each case by them, and runs it for some tenths of a second. Shown are
milliseconds of an optimiser step, or of an evaluation of all rows: medians over the rounds of the prediction and of the
fastest measurement in a round, and the median and the range of their ratio. The prediction is that of a machine without
other load, and so is the fastest of many steps; on a machine with other work, long steps are never free of it:
--processor compares with the processor time of one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import HERE, SHARED, pin, table

DIGITS = HERE.parent / "examples" / "data" / "digits.npz"
MODEL = SHARED / "gguf" / "stories260K.gguf"
SECONDS = 0.3  # at least, of one measurement
Case = tuple[str, Callable[[Any], float], Callable[[], float]]  # name, seconds by these rates, measured seconds


class Clock:
    """Seconds of measurements."""

    now: Callable[[], float] = time.perf_counter


def fastest(run: Callable[[], object]) -> float:
    """Least seconds of a call, of calls for some tenths of a second."""
    took, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = Clock.now()
        run()
        took.append(Clock.now() - began)
    return min(took)


def of_trainer(name: str, trainer: Any, data: Any, batch: int, micro: int, training: bool) -> Case:
    """Steps on the first rows of a data set, or their evaluation."""
    from gradloom.train.duration import seconds_of, work
    from gradloom.train.result import Result

    source, steps = trainer.source(data), min(data.n // batch, max(1, 1000 // batch))
    programs = work(trainer, source, 0, steps * batch, batch, micro, backward=training)

    def run() -> None:
        trainer.run_rows(
            source, 0, steps * batch, Result(), batch_size=batch, micro_batch_size=micro, backward=training
        )  # fmt: skip

    return name, lambda rates: seconds_of(programs, rates) / steps, lambda: fastest(run) / steps


def of_network(
    name: str, net: Any, x: np.ndarray, y: np.ndarray, batch: int, training: bool = True, **options: Any
) -> Case:
    import gradloom as gl

    trainer = gl.Trainer(net, "cross_entropy", gl.optim.AdamW(lr=1e-4), **options)
    return of_trainer(name, trainer, gl.data.Dataset(x, y), batch, batch, training)


def text() -> list[dict[str, str]]:
    """About 160 rows of 256 tokens."""
    whole = (SHARED / "text" / "tinyshakespeare.txt").read_text()
    return [{"text": whole[start : start + 400]} for start in range(0, 80_000, 400)]


def of_finetuning(name: str, threads: int, **settings: Any) -> Case:
    import gradloom as gl

    run = gl.llm.Run(str(MODEL), text(), context=256, batch_size=8, val_split=0, threads=threads, **settings)
    run.prepare()
    return of_trainer(name, run.trainer, run.dataset, run.batch_size, run.micro_batch_size, True)


def of_perplexity(threads: int) -> Case:
    import gradloom as gl
    from gradloom.llm.rows import read_rows
    from gradloom.train import prediction

    prediction.LONG = 0.0  # seconds of the shortest evaluation whose duration is predicted
    model = gl.llm.load(str(MODEL))
    rows = read_rows(model, text(), 256, 0.0)
    rows = dataclasses.replace(
        rows, tokens=rows.tokens[:64], positions=rows.positions[:64], labels=rows.labels[:64]
    )  # fmt: skip
    found: dict[str, float] = {}

    def begin(seconds: float) -> None:
        found.update(predicted=seconds, began=Clock.now())

    def once() -> float:
        gl.llm.evaluate(model, rows, threads=threads, on_predicted=begin)
        return Clock.now() - found["began"]

    return "perplexity of 64 rows", lambda rates: found["predicted"], lambda: min(once() for _ in range(20))


def transformer(vocabulary: int, width: int) -> Any:
    from gradloom import nn, ops

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, causal=True)
            self.other = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm(x))
            return x + self.down(ops.gelu(self.up(self.other(x))))

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Embedding(vocabulary, width), nn.Sequential(Block(), Block())
            self.head = nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            return self.head(ops.mean(self.blocks(self.embed(x)), (1,)))

    return Classifier()


def cases(threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The cases by name, which are built one by one."""
    from mnist_cnn import model as cnn

    import gradloom as gl

    nn, rng = gl.nn, np.random.default_rng(0)
    images, labels = rng.random((4000, 784), dtype=np.float32), rng.integers(0, 10, 4000)
    tokens = rng.integers(0, 256, (512, 128)).astype(np.int32)
    digits = np.load(DIGITS)
    x, y = digits["x"].reshape(len(digits["y"]), -1), digits["y"]

    def mlp(inputs: int) -> Any:
        return nn.Sequential(nn.Linear(inputs, 500), nn.ReLU(), nn.Linear(500, 10))

    def wide() -> Any:
        return nn.Sequential(nn.Linear(784, 2000), nn.GELU(), nn.Linear(2000, 2000), nn.GELU(), nn.Linear(2000, 10))

    def network(*given: Any, **options: Any) -> Callable[[str], Case]:
        return lambda name: of_network(name, *given, threads=threads, **options)

    def finetuning(**settings: Any) -> Callable[[str], Case]:
        return lambda name: of_finetuning(name, threads, **settings)

    lora = gl.llm.LoRA
    for name, build in {
        "digits MLP": network(mlp(64), x, y, 32),
        "MNIST MLP": network(mlp(784), images, labels, 500),
        "MNIST MLP, bf16": network(mlp(784), images, labels, 500, precision="bf16"),
        "wide MLP, GELU": network(wide(), images, labels, 200),
        "MNIST CNN": network(cnn(), images.reshape(-1, 1, 28, 28), labels, 500),
        "transformer": network(transformer(256, 128), tokens, labels[:512], 16),
        "MNIST MLP, evaluated": network(mlp(784), images, labels, 500, training=False),
        "LoRA": finetuning(adapter=lora(rank=16, targets="all")),
        "LoRA, bf16": finetuning(adapter=lora(rank=16, targets="all"), precision="bf16"),
        "full fine-tuning": finetuning(method="full"),
        "perplexity of 64 rows": lambda _: of_perplexity(threads),
    }.items():
        yield name, functools.partial(build, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor", action="store_true", help="processor time, in place of time; one thread")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    args = parser.parse_args()
    if args.processor:
        args.threads, Clock.now = 1, time.process_time
    pin(args.threads)
    from gradloom.run.rates import measured_rates

    lines = []
    for name, build in cases(args.threads):
        if args.only not in name:
            continue
        _, seconds, run = build()
        run()  # warms up
        predicted, measured = [], []
        for _ in range(args.rounds):
            measured_rates.cache_clear()
            measured.append(run())
            predicted.append(seconds(measured_rates(args.threads, is_bf16="bf16" in name)))
        ratios = [one / other for one, other in zip(predicted, measured, strict=True)]
        shown = [f"{1e3 * statistics.median(each):.3f}" for each in (predicted, measured)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append((name, *shown, f"{statistics.median(ratios):.2f}", spread))
    table(lines, (f"{args.threads} threads", "predicted", "measured", "ratio", "range"))


if __name__ == "__main__":
    main()
