"""Display of a training on stderr: live on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import Any

from ..base.live import Live, can_redraw
from ..base.memory import resident
from ..base.terminal import in_one_line, plural, shown_on
from ..base.uploads import progress_text, shown_by
from ..runs.events import Subscriber
from .metric import UNCERTAINTY
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


def numbers(result: Any, name: str = "") -> list[str]:
    """["loss 0.123", "accuracy 0.9812"] of a Result, where it has them; name: prefix of each. Metrics that are not
    defined for its rows are left out."""
    if result is None or not result.ndata:
        return []
    found = [(each, value) for each, value in result.numbers().items() if not each.endswith(UNCERTAINTY)]
    found = [(each, value) for each, value in found if each not in result.metrics or not math.isnan(value)]
    return [f"{name}{each} {value:.4f}" if each == "accuracy" else f"{name}{each} {value:.4g}" for each, value in found]


def measured(evaluation: Evaluation, word: str) -> list[list[str]]:
    """The numbers of each validation set, after its name, or after `word` for the held-out part of the data."""
    return [numbers(result, word if name == MAIN else f"{name} ") for name, result in evaluation.results.items()]


def arranged(groups: Sequence[Sequence[str]], width: int) -> list[str]:
    """All parts in one line, if they fit into the width; else each group begins a line of its own, and continues in the
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


class _LiveBar(Live):
    """Live lines with a bar. done: its filled part, 0 to 1."""

    done = 0.0

    def styled(self, line: str) -> str:
        full = round(len(BAR) * min(max(self.done, 0.0), 1.0))
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        if "NO_COLOR" in os.environ or not encoding.lower().startswith("utf"):
            return line.replace(BAR, "#" * full + "-" * (len(BAR) - full))
        return line.replace(BAR, f"\x1b[35m{BAR[:full]}\x1b[90m{BAR[full:]}\x1b[0m")


class _Display(Subscriber, ABC):
    """Base class of the displays of epochs and of steps: a context, and a subscriber of the loop."""

    LINE_SECONDS = 10.0  # between two lines of progress, elsewhere than on a terminal
    EPOCH_SECONDS = 1.0  # at least, between two lines of epochs; the last one is always printed
    unit = "rows"
    word = "val "  # before the numbers of the held-out part of the data

    def __init__(self, epochs: int, stream: Any = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.epochs = epochs
        self._live: _LiveBar | None = None
        self._loop: Any = None  # the gl.train.Loop
        self._shown_loop: Any = None  # the same, from `start` on
        self._start = self._refreshed = time.perf_counter()
        self._line_at = self._epoch_line_at = -math.inf
        self._first = 0
        self._postponed: list[str] = []  # of the last epoch, whose line came too soon after another
        self._done = 0  # epochs
        self._training: list[str] = []
        self._validation: list[list[str]] = []  # of each set
        self._speed = ""
        self._upload = ""
        self._uploads = contextlib.ExitStack()

    def __enter__(self) -> Any:
        self._line_at = time.perf_counter()
        self._uploads.enter_context(shown_by(self._uploading))
        if can_redraw(self.stream):
            self._live = _LiveBar(self.stream)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uploads.close()
        if self._postponed:
            self.print_line(*self._postponed)
        if self._live is not None:
            if self._shown_loop is not None:
                self._refresh(0.0)
            self._live.stop()

    # ---- events of the loop ----------------------------------------------------------------------------------

    def running(self) -> Any:
        return self

    def begin(self, loop: Any) -> None:
        self._loop = loop

    def on_predicted(self, duration: Any) -> None:
        self.print_line(str(duration))

    def on_before(self, result: Any) -> None:
        spread = "" if math.isnan(result.loss_unc) else f" +- {result.loss_unc:.2g}"
        self.print_line(f"before training: validation loss {result.loss:.4f}{spread}")

    def start(self) -> None:
        self._shown_loop, self._first = self._loop, self._loop.steps
        self._start = self._line_at = time.perf_counter()

    def on_progress(self, progress: Any) -> None:
        if progress.training:
            self._speed = self._per_second(progress.rows, progress.seconds)
        self._show_rows(progress, self._loop.steps)
        self._refresh(0.1)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if self._loop.rows_left:  # inside of an epoch
            self._validation = measured(evaluation, self.word)
            self._epoch_line([f"step {evaluation.step}", *chain(*self._validation)], False)
            self._refresh(0.1)

    @abstractmethod
    def on_pass(self, result: EpochResult) -> None: ...

    def on_notice(self, text: str) -> None:
        self.print_line(text)

    def on_sample(self, sample: Any) -> None:
        self.print_line(f"step {sample.step}", f"{sample.prompt!r} -> {sample.text!r}")

    # ---- lines -----------------------------------------------------------------------------------------------

    def print_line(self, *parts: str) -> None:
        """A line that stays; on a narrow terminal several."""
        if self._live is not None:
            self._live.print("\n".join([*self._arranged([parts]), ""]))
        else:
            print(shown_on(self.stream, "  ".join(parts)), file=self.stream, flush=True)

    def _uploading(self, where: str, done: int, total: int) -> None:
        """Report upload progress to a device."""
        self._upload = "" if done == total else progress_text(where, done, total)
        self._refresh(0.1)
        if self._live is None and self._upload and time.perf_counter() - self._line_at >= self.LINE_SECONDS:
            self._line_at = time.perf_counter()
            self.print_line(self._upload)

    @abstractmethod
    def _show_rows(self, at: Any, steps: int) -> None:
        """Show the progress of a pass after `steps` steps of the loop."""

    @abstractmethod
    def _head(self) -> str:
        """Progress of the run."""

    def _per_second(self, rows: float, seconds: float) -> str:
        return f"{rate(rows / max(seconds, 1e-9))} {self.unit}/s"

    def _epoch_line(self, parts: list[str], last: bool) -> None:
        now, self._postponed = time.perf_counter(), []
        if last or now - self._epoch_line_at >= self.EPOCH_SECONDS:
            self._epoch_line_at = now
            self.print_line(*parts)
        else:
            self._postponed = parts

    def _refresh(self, seconds: float) -> None:
        """Show the present content, at most once in `seconds`."""
        now = time.perf_counter()
        if self._live is None or now - self._refreshed < seconds:
            return
        self._refreshed = now
        loop = self._shown_loop
        total = None if loop is None else loop.steps_total
        self._live.done = loop.steps / max(total, 1) if total is not None else 0.0
        groups = [
            [self._head(), *([BAR] if loop is None or total is not None else []), *self._left()],
            [*([self._speed] if self._speed else []), *self._pace()],
            [self._upload] if self._upload else [],
            self._training,
            *self._validation,
            [] if loop is None else _best_of(loop),
        ]
        self._live.show(self._arranged(groups))

    def _arranged(self, groups: Sequence[Sequence[str]]) -> list[str]:
        """Printable lines of the width of the terminal."""
        assert self._live is not None
        return arranged([[*map(in_one_line, group)] for group in groups], self._live.columns)

    def _pace(self) -> list[str]:
        """Memory of this process, and the learning rate of the last step."""
        loop, held = self._shown_loop, f"{rate(resident())}B"
        if loop is None or not loop.steps:
            return [held]
        state = loop.trainer.optimizer_state
        rates = state.rates(max(state.steps - 1, 0), state.epoch)
        return [held, f"lr {next(iter(rates.values())):.3g}"]

    def _left(self) -> list[str]:
        """Time left, at the speed since `start`; the steps that are done, where their total is not known."""
        loop = self._shown_loop
        if loop is None:
            return []
        if loop.steps_total is None:
            return [plural(loop.steps, "step")]
        done = loop.steps - self._first
        if done <= 0:
            return ["? left"]
        seconds = (time.perf_counter() - self._start) / done * max(loop.steps_total - loop.steps, 0)
        return [f"{duration(seconds)} left"]

    def _ended(self, done: EpochResult) -> list[list[str]]:
        """Numbers of the validation at the end of an epoch."""
        return [numbers(done.val, self.word)] if done.ended is None else measured(done.ended, self.word)


class Display(_Display):
    """Display of a training counted in epochs; without a terminal one line per epoch, at most one per second."""

    def _head(self) -> str:
        return f"epoch {min(self._done + 1, self.epochs)}/{self.epochs}"

    def _show_rows(self, at: Any, steps: int) -> None:
        if at.training:
            self._training = numbers(at.result)

    def on_pass(self, done: EpochResult) -> None:
        self._done = done.epoch
        self._training, self._validation = numbers(done.train), self._ended(done)
        speed = self._per_second(done.train.ndata, done.seconds)
        if self._live is not None:
            self._refresh(0.1)
            return
        parts = [f"epoch {done.epoch}/{self.epochs}", *self._training, *chain(*self._validation)]
        self._epoch_line([*parts, speed, *self._pace(), *self._left()], done.epoch >= self.epochs)


class StepDisplay(_Display):
    """Display of a run counted in optimiser steps; without a terminal a line every ten seconds, and one per epoch, at
    most one per second.

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

    def _show_rows(self, at: Any, steps: int) -> None:
        self._steps_done = steps
        if at.training:
            self._training = [f"loss {at.result.recent(self.RECENT):.4f}"]
            line = [self._head(), *self._training, self._speed, *self._pace(), *self._left()]
            ended = steps >= self.steps
        else:
            line = [f"validation {at.rows}/{at.rows_total} rows"]
            self._validation = [line]
            ended = at.rows >= at.rows_total
        if self._live is None and time.perf_counter() - self._line_at >= self.LINE_SECONDS and not ended:
            self._line_at = time.perf_counter()
            self.print_line(*line)

    def on_pass(self, done: EpochResult) -> None:
        self._line_at = time.perf_counter()
        epochs = max(done.epoch, self.epochs)
        self._validation = self._ended(done)
        parts = [f"epoch {done.epoch}/{epochs}", *numbers(done.train), *chain(*self._validation)]
        self._epoch_line(parts, done.epoch >= self.epochs)
        self._refresh(0.1)


def _best_of(loop: Any) -> list[str]:
    """The best result so far of early stopping."""
    stops = [each for each in loop.callbacks if isinstance(each, EarlyStopping) and each.best_epoch]
    return [f"best {each.monitor or 'loss'} {each.best:.4g} in epoch {each.best_epoch}" for each in stops]
