"""What a person sees while a fit works: a bar on a terminal, one line per epoch elsewhere. All of it on stderr."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any


def rate(number: float) -> str:
    """1234567 -> 1.23 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """75.3 -> 1:15; short times keep a decimal."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def plural(count: int, noun: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{count:,} {noun}" + "s" * (count != 1)


def numbers(result: Any, name: str = "") -> str:
    """loss 0.123 and accuracy 0.98 of a Result, where it has them."""
    if result is None or not result.ndata:
        return ""
    text = f"{name}loss {result.loss:.4g}"
    accuracy = result.accuracy
    return text if accuracy is None or math.isnan(accuracy) else f"{text}  {name}accuracy {accuracy:.4f}"


class _Display:
    """What both displays are: a bar on a terminal while the block runs, lines elsewhere."""

    def __init__(self, stream: Any) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._bar: Any = None
        self._task: Any = None
        self._start = self._told = time.perf_counter()
        self._first = 0

    def _begin_bar(self, columns: tuple[Any, ...], total: int, **fields: Any) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        shown = (*columns, BarColumn(bar_width=20), TextColumn("{task.description}"))
        self._bar = Progress(*shown, console=Console(file=self.stream))
        self._task = self._bar.add_task("", total=total, **fields)
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, steps: int = 0) -> None:
        """The first step is about to run, or the one after so many."""
        self._first = steps
        self._start = self._told = time.perf_counter()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)

    def before(self, result: Any) -> None:
        """What validation measured before the first step."""
        spread = "" if math.isnan(result.loss_unc) else f" +- {result.loss_unc:.2g}"
        self.say(f"before training: validation loss {result.loss:.4f}{spread}")


class Display(_Display):
    """Shows a fit: a context, told of the rows of a pass and of each epoch's end."""

    def __init__(self, epochs: int, stream: Any = None) -> None:
        super().__init__(stream)
        self.epochs = epochs
        self.done = 0
        self._shown = ""

    def __enter__(self) -> Display:
        self.begin()
        if self.stream.isatty():
            from rich.progress import TextColumn

            self._begin_bar((TextColumn("epoch {task.fields[epoch]}"),), self.epochs, epoch=f"1/{self.epochs}")
        return self

    def rows(self, at: Any, steps: int = 0) -> None:
        """Somewhere inside a pass (a gradloom.train.Progress), after so many steps of the run."""
        if self._bar is None:
            return
        share = at.rows / at.rows_total if at.training else 1.0
        shown = numbers(at.result) if at.training else self._shown
        self._show(self.done + share, shown, at.rows / max(at.seconds, 1e-9))

    def epoch(self, done: Any) -> None:
        """An epoch has ended (a gradloom.EpochResult)."""
        self.done = done.epoch
        shown = "  ".join(part for part in (numbers(done.train), numbers(done.val, "val ")) if part)
        speed = done.train.ndata / max(done.seconds, 1e-9)
        self._shown = shown
        if self._bar is not None:
            self._show(self.done, shown, speed)
        else:
            self.say(f"epoch {done.epoch}/{self.epochs}  {shown}  {rate(speed)} rows/s  {self._left(self.done)} left")

    def _show(self, passed: float, shown: str, speed: float) -> None:
        text = f"{shown}  {rate(speed)} rows/s  {self._left(passed)} left"
        epoch = f"{min(int(passed) + 1, self.epochs)}/{self.epochs}"
        self._bar.update(self._task, completed=passed, description=text, epoch=epoch)

    def _left(self, passed: float) -> str:
        took = time.perf_counter() - self._start
        return duration(took / max(passed, 1e-9) * (self.epochs - passed))


class StepDisplay(_Display):
    """Shows a run that is counted in optimiser steps: a bar on a terminal, elsewhere a line every ten seconds.

    row_tokens: tokens in a row of data.
    """

    SECONDS = 10.0  # between two lines
    RECENT = 20  # batches that the shown loss is a mean of

    def __init__(self, steps: int, epochs: int, row_tokens: int, stream: Any = None) -> None:
        super().__init__(stream)
        self.steps, self.epochs, self.row_tokens = steps, epochs, row_tokens
        self._rows = self._rows_before = 0

    def __enter__(self) -> StepDisplay:
        if self.stream.isatty():
            from rich.progress import MofNCompleteColumn, TextColumn

            self._begin_bar((TextColumn("step"), MofNCompleteColumn()), self.steps)
        return self

    def rows(self, at: Any, steps: int) -> None:
        """Somewhere inside a pass (a gradloom.train.Progress), after so many steps of the run."""
        if at.training:
            self._rows = self._rows_before + at.rows
            text, ended = self._text(steps, at.result), steps >= self.steps
        else:
            text, ended = f"validation {at.rows}/{at.rows_total} rows", at.rows >= at.rows_total
        if self._bar is not None:
            self._bar.update(self._task, completed=steps, description=text)
        elif time.perf_counter() - self._told >= self.SECONDS and not ended:
            self._told = time.perf_counter()
            self.say(f"step {steps}/{self.steps}  {text}" if at.training else text)

    def epoch(self, done: Any) -> None:
        """A pass has ended (a gradloom.EpochResult)."""
        self._rows_before = self._rows
        self._told = time.perf_counter()
        epochs = max(done.epoch, self.epochs)
        parts = [f"epoch {done.epoch}/{epochs}", numbers(done.train), numbers(done.val, "validation ")]
        self.say("  ".join(part for part in parts if part))

    def _text(self, steps: int, result: Any) -> str:
        took = max(time.perf_counter() - self._start, 1e-9)
        speed = rate(self._rows * self.row_tokens / took)
        done = steps - self._first
        left = duration(took / done * (self.steps - steps)) if done else "?"
        return f"loss {result.recent(self.RECENT):.4f}  {speed} tokens/s  {left} left"
