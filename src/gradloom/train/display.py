"""What a person sees while a training works: a live display on a terminal, lines elsewhere. All of it on stderr."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import Any

from ..base.memory import resident
from ..base.terminal import controls, in_one_line, shown_on
from ..base.uploads import progress_text, shown_by
from .metrics import UNCERTAINTY
from .result import MAIN, EpochResult, Evaluation
from .stopping import EarlyStopping

BAR = "━" * 20  # its place in a line, and its width


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


def numbers(result: Any, name: str = "") -> list[str]:
    """["loss 0.123", "accuracy 0.9812"] of a Result, where it has them; name: what each begins with."""
    if result is None or not result.ndata:
        return []
    found = [(each, value) for each, value in result.numbers().items() if not each.endswith(UNCERTAINTY)]
    return [f"{name}{each} {value:.4f}" if each == "accuracy" else f"{name}{each} {value:.4g}" for each, value in found]


def measured(evaluation: Evaluation, word: str) -> list[list[str]]:
    """The numbers of each validation set, after its name, or after `word` for the held-out part of the data."""
    return [numbers(result, word if name == MAIN else f"{name} ") for name, result in evaluation.results.items()]


def arranged(groups: Sequence[Sequence[str]], width: int) -> list[str]:
    """All parts in one line, if they fit into the width; else each group begins a line of its own, and goes on in the
    next one where it is longer than the width. No part is broken."""
    groups = [group for group in groups if group]
    whole = "  ".join(part for group in groups for part in group)
    if len(whole) <= width:
        return [whole]
    lines: list[str] = []
    for group in groups:
        lines.append(group[0])
        for part in group[1:]:
            if len(lines[-1]) + 2 + len(part) <= width:
                lines[-1] += f"  {part}"
            else:
                lines.append(f"  {part}")
    return lines


class _Shown:
    """What the live display holds, in groups of parts: a renderable of rich. done: how full the bar is, 0 to 1."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.done = 0.0

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.text import Text

        full = round(len(BAR) * min(max(self.done, 0.0), 1.0))
        for line in arranged([[*map(in_one_line, group)] for group in self.groups], options.max_width):
            text, at = Text(line), line.find(BAR)
            if at >= 0:
                if options.ascii_only:
                    text = Text(line.replace(BAR, "#" * full + "-" * (len(BAR) - full)))
                text.stylize("bar.complete", at, at + full)
                text.stylize("bar.back", at + full, at + len(BAR))
            yield text


class _Display(ABC):
    """What the displays of epochs and of steps share: a context, which a Loop tells of its progress.

    begin(loop)      the first step is about to run, or the one after an earlier part of the run
    rows(at, steps)  somewhere inside a pass: a gradloom.train.Progress, and the steps of the run so far
    epoch(result)    a pass has ended: its gradloom.EpochResult
    before(result)   what validation measured before the first step
    """

    LINE_SECONDS = 10.0  # between two lines of progress, elsewhere than on a terminal
    EPOCH_SECONDS = 1.0  # at least, between two lines of epochs; the last one is always told
    unit = "rows"
    word = "val "  # before the numbers of the held-out part of the data

    def __init__(self, epochs: int, stream: Any = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.epochs = epochs
        self._live: Any = None
        self._shown = _Shown()
        self._loop: Any = None  # the gradloom.train.Loop that is shown
        self._start = self._refreshed = time.perf_counter()
        self._told = self._epoch_told = -math.inf
        self._first = 0
        self._untold: list[str] = []  # of the last epoch, whose line came too soon after another
        self._done = 0  # epochs
        self._training: list[str] = []
        self._validation: list[list[str]] = []  # of each set
        self._speed = ""
        self._upload = ""
        self._uploads = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self._told = time.perf_counter()
        self._uploads.enter_context(shown_by(self._uploading))
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=controls(self.stream))
            if not console.is_dumb_terminal:
                self._live = Live(
                    self._shown, console=console, auto_refresh=False, vertical_overflow="visible",
                    redirect_stdout=sys.stdout.isatty(),  # what goes to a file or a pipe stays out of the display
                )  # fmt: skip
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uploads.close()
        if self._untold:
            self.say(*self._untold)
        if self._live is not None:
            if self._loop is not None:
                self._refresh(0.0)
            self._live.stop()

    def begin(self, loop: Any) -> None:
        self._loop, self._first = loop, loop.steps
        self._start = self._told = time.perf_counter()

    def say(self, *parts: str) -> None:
        """A line that stays; on a narrow terminal several."""
        if self._live is not None:
            lines = arranged([[*map(in_one_line, parts)]], self._live.console.width)
            self._live.console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
        else:
            print(shown_on(self.stream, "  ".join(parts)), file=self.stream, flush=True)

    def _uploading(self, where: str, done: int, total: int) -> None:
        """So much of what runs on a device is there."""
        self._upload = "" if done == total else progress_text(where, done, total)
        self._refresh(0.1)
        if self._live is None and self._upload and time.perf_counter() - self._told >= self.LINE_SECONDS:
            self._told = time.perf_counter()
            self.say(self._upload)

    def before(self, result: Any) -> None:
        spread = "" if math.isnan(result.loss_unc) else f" +- {result.loss_unc:.2g}"
        self.say(f"before training: validation loss {result.loss:.4f}{spread}")

    def rows(self, at: Any, steps: int) -> None:
        if at.training:
            self._speed = self._per_second(at.rows, at.seconds)
        self._told_rows(at, steps)
        self._refresh(0.1)

    @abstractmethod
    def _told_rows(self, at: Any, steps: int) -> None:
        """A pass has come so far; see `rows`."""

    @abstractmethod
    def _head(self) -> str:
        """How far the run is."""

    @abstractmethod
    def epoch(self, done: EpochResult) -> None:
        """A pass has ended."""

    def _per_second(self, rows: float, seconds: float) -> str:
        return f"{rate(rows / max(seconds, 1e-9))} {self.unit}/s"

    def _epoch_line(self, parts: list[str], last: bool) -> None:
        now, self._untold = time.perf_counter(), []
        if last or now - self._epoch_told >= self.EPOCH_SECONDS:
            self._epoch_told = now
            self.say(*parts)
        else:
            self._untold = parts

    def _refresh(self, seconds: float) -> None:
        """Show what is known, unless it was shown less than so many seconds ago."""
        now = time.perf_counter()
        if self._live is None or now - self._refreshed < seconds:
            return
        self._refreshed = now
        loop = self._loop
        self._shown.done = loop.steps / max(loop.steps_total, 1) if loop is not None else 0.0
        self._shown.groups = [
            [self._head(), BAR, *([] if loop is None else [f"{self._left()} left"])],
            [*([self._speed] if self._speed else []), *self._pace()],
            [self._upload] if self._upload else [],
            self._training,
            *self._validation,
            [] if loop is None else _best_of(loop),
        ]
        self._live.refresh()

    def _pace(self) -> list[str]:
        """What this process holds now, and the learning rate of the last step."""
        loop, held = self._loop, f"{rate(resident())}B"
        if loop is None or not loop.steps:
            return [held]
        state = loop.trainer.optimizer_state
        rates = state.rates(max(state.steps - 1, 0), state.epoch)
        return [held, f"lr {next(iter(rates.values())):.3g}"]

    def _left(self) -> str:
        """The time that the steps to come take, if they take as long as those since `begin`."""
        loop = self._loop
        done = 0 if loop is None else loop.steps - self._first
        if loop is None or done <= 0:
            return "?"
        return duration((time.perf_counter() - self._start) / done * max(loop.steps_total - loop.steps, 0))

    def evaluation(self, evaluation: Evaluation) -> None:
        """The validation sets were measured inside of an epoch."""
        self._validation = measured(evaluation, self.word)
        self._epoch_line([f"step {evaluation.step}", *chain(*self._validation)], False)
        self._refresh(0.1)

    def _ended(self, done: EpochResult) -> list[list[str]]:
        """What validation measured at the end of an epoch."""
        return [numbers(done.val, self.word)] if done.ended is None else measured(done.ended, self.word)


class Display(_Display):
    """Shows a fit, counted in epochs; elsewhere than on a terminal a line for an epoch, at most one a second."""

    def _head(self) -> str:
        return f"epoch {min(self._done + 1, self.epochs)}/{self.epochs}"

    def _told_rows(self, at: Any, steps: int) -> None:
        if at.training:
            self._training = numbers(at.result)

    def epoch(self, done: EpochResult) -> None:
        self._done = done.epoch
        self._training, self._validation = numbers(done.train), self._ended(done)
        speed = self._per_second(done.train.ndata, done.seconds)
        if self._live is not None:
            self._refresh(0.1)
            return
        parts = [f"epoch {done.epoch}/{self.epochs}", *self._training, *chain(*self._validation)]
        self._epoch_line([*parts, speed, *self._pace(), f"{self._left()} left"], done.epoch >= self.epochs)


class StepDisplay(_Display):
    """Shows a run that is counted in optimiser steps; elsewhere than on a terminal a line every ten seconds, and one
    for an epoch, at most one a second.

    row_tokens: tokens in a row of data.
    """

    RECENT = 20  # batches that the shown loss is a mean of
    unit = "tokens"
    word = "validation "

    def __init__(self, steps: int, epochs: int, row_tokens: int, stream: Any = None) -> None:
        super().__init__(epochs, stream)
        self.steps, self.row_tokens = steps, row_tokens
        self._steps_done = 0

    def _per_second(self, rows: float, seconds: float) -> str:
        return super()._per_second(rows * self.row_tokens, seconds)

    def _head(self) -> str:
        return f"step {self._steps_done}/{self.steps}"

    def _told_rows(self, at: Any, steps: int) -> None:
        self._steps_done = steps
        if at.training:
            self._training = [f"loss {at.result.recent(self.RECENT):.4f}"]
            line = [self._head(), *self._training, self._speed, *self._pace(), f"{self._left()} left"]
            ended = steps >= self.steps
        else:
            line = [f"validation {at.rows}/{at.rows_total} rows"]
            self._validation = [line]
            ended = at.rows >= at.rows_total
        if self._live is None and time.perf_counter() - self._told >= self.LINE_SECONDS and not ended:
            self._told = time.perf_counter()
            self.say(*line)

    def epoch(self, done: EpochResult) -> None:
        self._told = time.perf_counter()
        epochs = max(done.epoch, self.epochs)
        self._validation = self._ended(done)
        parts = [f"epoch {done.epoch}/{epochs}", *numbers(done.train), *chain(*self._validation)]
        self._epoch_line(parts, done.epoch >= self.epochs)
        self._refresh(0.1)


def _best_of(loop: Any) -> list[str]:
    """What early stopping holds for the best so far."""
    stops = [each for each in loop.callbacks if isinstance(each, EarlyStopping) and each.best_epoch]
    return [f"best {each.monitor or 'loss'} {each.best:.4g} in epoch {each.best_epoch}" for each in stops]
