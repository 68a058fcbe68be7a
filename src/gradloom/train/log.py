"""Log: results of a run, line by line, in the files of its folder (runs/log_files.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import FileError, SettingError
from ..base.interval import as_interval
from ..base.memory import resident, resident_peak
from ..base.reasons import reason_of, unwritten
from ..base.schema import items, number, table, whole
from ..files.targets import check_entry
from ..runs.checkpoint import print_line
from ..runs.log_files import DERIVED, LINES, Lines, read_metrics
from ..runs.state import need_schema
from .callbacks import Callback
from .epoch import Progress
from .result import EpochResult, Evaluation, Result
from .watching import watch_warnings

STATE = table(
    {
        "seconds": number(0), "size": whole(), "told": items(whole(), 5), "steps": whole(),
        "waited": number(0),
    },
    absent=("waited",),  # in checkpoints of versions before 0.2
)  # fmt: skip


class Log(Callback):
    """Writes metrics.jsonl into a folder: a line for each evaluation and epoch, and lines of training at an interval.

    folder     is created if missing; or a function that returns it, called when a file is opened; None: nothing is
               written
    kinds      of further files with the same lines: "csv" (metrics.csv) and "tensorboard" (event files in the folder
               tensorboard; BackendError without tensorboardX)
    every      between two lines of training: "10s", or "50steps"
    row_tokens tokens in a row of data: lines then have tokens, too

    A line has kind ("train", "evaluation", "epoch" or "watch"), step (optimiser steps done), epoch, time (seconds since
    1970), seconds (of the whole run, all its sessions), and measured numbers by name: loss, loss_unc, accuracy, ...,
    val_loss, ...; in a line "train" the averages since the previous line of its epoch. Also lr (the learning rate of
    the last step; with parameter groups the others, too), grad_norm (of the last step, before clipping), grad_norm_mean
    (of the same steps as the loss), rows and tokens (trained on in the whole run), rows_per_second and
    tokens_per_second, memory_bytes and memory_peak_bytes (resident). epoch_seconds: of an epoch with its validation.
    A line "watch" has norm/NAME of the watched values of its step, and histogram/NAME where that is watched;
    zero_units/NAME, the number of units of an activation that are zero for all rows, and zero_list/NAME, which. At the
    end of the training warnings on them are printed (train/watching.py: watch_warnings).

    Nothing is written before the first optimiser step is done. A resumed run continues the same files: lines that
    were written after its checkpoint are cut. A line that cannot be written is reported on stderr, and the training
    continues.
    """

    steers = False

    def __init__(
        self,
        folder: str | os.PathLike[str] | Callable[[], Path] | None,
        kinds: Sequence[str] = (),
        every: str = "10s",
        row_tokens: int | None = None,
    ) -> None:
        names = [kinds] if isinstance(kinds, str) else list(kinds)
        for name in names:
            if name not in DERIVED:
                raise SettingError(setting="log", seen=kinds, need=f"some of {', '.join(DERIVED)}")
        self._folder = folder
        self._every = as_interval("log_every", every, "seconds", "steps")
        self.every_steps = self._every.steps
        self._row_tokens = None if row_tokens is None else as_whole("row_tokens", row_tokens, 1)
        self._lines = Lines([DERIVED[name]() for name in dict.fromkeys(names)])
        self._early: list[dict[str, Any]] = []  # before the first step
        self._watched: list[dict[str, Any]] = []  # of steps that are not done yet
        self._failed = ""  # the last error of writing
        of_run = callable(folder) or folder is None
        self._shown = Path(LINES) if of_run else Path(str(folder)) / LINES  # the place in messages
        self._loop: Any = None
        self._before = 0.0  # seconds of earlier sessions
        self._began = self._line_at = time.perf_counter()
        self._gain = Gain()

    @property
    def folder(self) -> Path:
        """Where the files are."""
        assert self._folder is not None
        return self._folder() if callable(self._folder) else Path(self._folder)

    # ---- events ---------------------------------------------------------------------------------

    def begin(self, loop: Any) -> None:
        """The training begins. FileError when there can be no metrics.jsonl in the folder."""
        self._loop = loop
        if loop.trainer.driver.watching is not None:
            loop.trainer.driver.watching.listener = self.on_watched
        self._began = self._line_at = time.perf_counter()
        if callable(self._folder) or self._folder is None:  # of a run, which has looked at it
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.folder}: {unwritten(error)}") from None
        check_entry(self.folder / LINES)

    def on_progress(self, progress: Progress) -> None:
        """A line of training, if one is due."""
        self._gain.look(progress, self._loop)
        self._release()
        if progress.training and self._is_due():
            self._train_line(progress.result)

    def on_watched(self, step: int, values: Mapping[str, Any]) -> None:
        """A line of the watched values of a step that begins; it is written when the step is done."""
        self._watched.append(self._record("watch", step, self._loop.epoch, values))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """A line of an evaluation."""
        self._write("evaluation", evaluation.epoch, evaluation.numbers())

    def on_epoch(self, result: EpochResult) -> None:
        """A line of the epoch."""
        speed = result.train.ndata / max(result.seconds, 1e-9)
        found: dict[str, Any] = {**result.numbers(), **result.rates, **_norms(result.train.grad_norms)}
        found["epoch_seconds"] = round(result.seconds, 3)
        self._write("epoch", result.epoch, found | self._pace(speed))

    def on_part(self, result: EpochResult) -> None:
        """A line of an epoch that ends inside."""
        self.on_epoch(result)

    def end(self, history: list[EpochResult]) -> None:
        """Close the files; print warnings on watched values."""
        self.close()
        if self._loop is not None and self._loop.trainer.driver.watching is not None and self._loop.steps:
            self._guarded(self._warn_of_values)

    def close(self) -> None:
        """Close the files; a line that comes later opens them again."""
        self._guarded(self._lines.close)

    def _warn_of_values(self) -> None:
        if self._folder is not None:
            for text in watch_warnings(read_metrics(self.folder)):
                print_line(f"watch: {text}")

    def state(self) -> dict[str, Any]:
        """Seconds of the run, bytes of metrics.jsonl, counts at its last line of training, seconds since then."""
        self._release()
        return {
            "seconds": self._seconds(), "size": self._lines.size, "told": list(self._gain.reported),
            "steps": self._gain.steps, "waited": time.perf_counter() - self._line_at,
        }  # fmt: skip

    def check_state(self, values: Mapping[str, Any]) -> None:
        """TrainError where these are not what `state` gives."""
        need_schema(STATE, values, "load: log")

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`; TrainError as for check_state."""
        self.check_state(values)
        self._before, self._began = float(values["seconds"]), time.perf_counter()
        self._lines.close()
        self._lines.size = int(values["size"])
        self._gain.reported, self._gain.steps = tuple(values["told"]), int(values["steps"])
        self._line_at = self._began - float(values.get("waited", 0.0))  # which older versions lack
        loop = self._loop
        if loop is not None and not loop.is_between_passes and self._is_due():  # it was stopped just before this line
            self._train_line(loop.latest)

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """A line of training is due: outside of an accumulation window, with steps since the last line."""
        if self._loop.steps <= self._gain.steps or self._loop.trainer.driver.in_window:
            return False
        if self.every_steps is None:
            return time.perf_counter() - self._line_at >= self._every.number
        return self._loop.steps % self.every_steps == 0

    def _train_line(self, result: Result) -> None:
        loop, self._line_at = self._loop, time.perf_counter()
        state = loop.trainer.optimizer_state
        found, speed = self._gain.take(result, loop)
        found |= state.rates(max(state.steps - 1, 0), loop.epoch - 1)
        self._write("train", loop.epoch, found | self._pace(speed))

    def _pace(self, rows_per_second: float) -> dict[str, Any]:
        rows = self._loop.rows
        found: dict[str, Any] = {"rows": rows, "rows_per_second": round(rows_per_second, 1)}
        if self._row_tokens is not None:
            tokens = self._row_tokens
            found |= {"tokens": rows * tokens, "tokens_per_second": round(rows_per_second * tokens, 1)}
        held = resident()
        return found | {"memory_bytes": held, "memory_peak_bytes": max(held, resident_peak())}

    def _seconds(self) -> float:
        return self._before + time.perf_counter() - self._began

    def _write(self, kind: str, epoch: int, found: Mapping[str, Any]) -> None:
        self._release()
        self._early.append(self._record(kind, self._loop.steps, epoch, found))
        self._write_early()

    def _record(self, kind: str, step: int, epoch: int, found: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "kind": kind, "step": step, "epoch": epoch, "time": round(time.time(), 3),
            "seconds": round(self._seconds(), 3), **found,
        }  # fmt: skip

    def _release(self) -> None:
        """Write the watched values of steps that are done."""
        done = [line for line in self._watched if line["step"] <= self._loop.steps]
        if done:
            self._watched = self._watched[len(done) :]
            self._early += done
            self._write_early()

    def _write_early(self) -> None:
        """Write the lines that wait, once a step is done."""
        if self._loop.steps and self._folder is not None:
            lines, self._early = self._early, []
            for line in lines:
                self._guarded(partial(self._add, line))

    def _add(self, line: Mapping[str, Any]) -> None:
        folder = self.folder  # of a run: to ask for it writes, too
        self._shown = folder / LINES
        self._lines.add(folder, line)

    def _guarded(self, write: Callable[[], None]) -> None:
        """Write; an error is printed, once for each kind."""
        try:
            write()
        except (OSError, FileError) as error:
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            if why != self._failed:
                self._failed = why
                print_line(f"{self._shown}: a line cannot be written: {why}; the training continues")


class Gain:
    """Means of batches and steps since the last line of training of a pass, and rows per second.

    reported: epoch, batches, steps, rows that count, right ones among them: of the pass, when that line was written.
    """

    def __init__(self) -> None:
        self.reported: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.steps = 0  # of the training, when that line was written
        self._from = 0, 0, 0.0  # epoch, rows and time since when the speed is measured

    def look(self, progress: Progress, loop: Any) -> None:
        """Note the progress of a pass: its speed is that of training alone."""
        now = time.perf_counter()
        if not progress.training:
            self._from = loop.epoch, loop.rows, now
        elif self._from[0] != loop.epoch:
            self._from = loop.epoch, loop.rows - progress.rows, now - progress.seconds

    def take(self, result: Result, loop: Any) -> tuple[dict[str, Any], float]:
        """(the numbers of a line, rows per second); the next line begins here."""
        norms, now = result.grad_norms, time.perf_counter()
        mark = loop.epoch, result.batches, len(norms), result.counted, result.correct
        batches, steps, counted, correct = self.reported[1:] if self.reported[0] == loop.epoch else (0, 0, 0, 0)
        found: dict[str, Any] = {"loss": result.latest(result.batches - batches)[0]}
        found |= result.latest_losses(result.batches - batches)
        if result.counted > counted:
            found["accuracy"] = (result.correct - correct) / (result.counted - counted)
        found |= _norms(norms[steps:])
        _, rows, began = self._from
        self.reported, self.steps, self._from = mark, loop.steps, (loop.epoch, loop.rows, now)
        return found, (loop.rows - rows) / max(now - began, 1e-9)


def _norms(norms: np.ndarray) -> dict[str, float]:
    """The last and the mean of the norms of some steps; nothing of none."""
    return {"grad_norm": float(norms[-1]), "grad_norm_mean": float(norms.mean())} if len(norms) else {}


def log_of(saver: Any, kinds: Sequence[str] = (), every: str | None = None, row_tokens: int | None = None) -> list[Log]:
    """The Log of a run that has a folder, given its Saver. None without one; then SettingError for arguments of it."""
    if saver is None:
        for name, value in (("log", kinds), ("log_every", every)):
            if value:
                raise SettingError(f"{{{name}}} requires {{run}}, the folder of a run", {name: value, "run": ...})
        return []
    folder = saver.folder  # of rank 0; the others write nothing
    if folder is not None:
        folder.appended.append(LINES)

    def place() -> Path:
        return Path(folder.path(LINES)).parent

    return [Log(None if folder is None else place, kinds, every or "10s", row_tokens)]
