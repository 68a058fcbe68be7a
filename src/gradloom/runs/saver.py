"""Saver: writes the checkpoints of a run and resumes it, as a subscriber of its loop. gl.fit and gl.llm.finetune create
one for `run=`.

    fit              Saver(run, ...)              claims the folder, reads its newest checkpoint
                     saver.share()                broadcasts it to all ranks
    events of Loop   restore                      compares the identity of the run with that of the checkpoint, loads it
                     on_progress                  ends the run after `stop_after`; a checkpoint, if one is due
                     between_steps                a checkpoint, if one is due; marked, if it is the best so far
                     finish, stopped              the last checkpoint, if the last step is complete

A checkpoint holds the state of a moment between two optimiser steps. Rank 0 alone writes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.arguments import as_bool, as_whole
from ..base.errors import GradloomError, NonFiniteError, SettingError, TrainError
from ..base.interrupts import Held, held_back
from ..base.interval import as_interval
from ..base.memory import present
from ..base.messages import log
from ..base.options import values_of
from ..base.schema import whole
from ..base.terminal import in_one_line, plural
from ..base.training_options import SaveOptions
from ..optim.schedules import ends_at
from ..parallel.agree import agreed, is_root
from ..parallel.communicator import Communicator
from ..plan.memory_map import program_maps
from .events import Resumable, Subscriber, TimeIsUp
from .failed_step import save_failed_step
from .folder import RunFolder
from .identity import FILES, Identity
from .plan_file import PLANS, plan_file
from .schemas import ABOUT
from .state import TrainState, need_schema

EVERY = "5min"


class Saver(Subscriber):
    """Writes the checkpoints of one run, and resumes it.

    run               the run's folder
    kind              "fit", "finetune" or "loop"
    resume            continue from the newest checkpoint there; without any the run starts anew, which is printed
    overwrite         replace an unfinished run in the folder
    checkpoint_every  "5min", "100steps", "1epoch"; there is always one at the end
    keep              number of newest checkpoints that are kept, in addition to the best one: that of the evaluation
                      with the lowest loss, inside of an epoch or at its end; without validation that of the epoch with
                      the lowest loss of training
    stop_after        "3h": end the run after this time, with a checkpoint; it can then be resumed
    ranks             those that train together

    Raises SettingError, and FileError where the folder cannot be used (see RunFolder). As a context it releases the
    folder at its end: the run is finished, or, after an exception, interrupted or failed.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        kind: str = "loop",
        resume: bool = False,
        overwrite: bool = False,
        checkpoint_every: str = EVERY,
        keep: int = 3,
        stop_after: str | None = None,
        ranks: Communicator | None = None,
    ) -> None:
        if not isinstance(run, (str, os.PathLike)) or not os.fspath(run):
            raise SettingError(setting="run", seen=run, need="the path of a folder")
        self.path, self.resume, self.ranks = os.fspath(run), as_bool("resume", resume), ranks
        self.every = as_interval("checkpoint_every", checkpoint_every)
        self._allowed = None if stop_after is None else as_interval("stop_after", stop_after, "seconds").number
        self.kind = kind
        keep, overwrite = as_whole("keep", keep, 1), as_bool("overwrite", overwrite)
        self.folder: RunFolder | None = None  # of rank 0
        if is_root(ranks):
            self.folder = self.opened(kind, overwrite, keep)
        self.entries: dict[str, Any] | None = None  # of the checkpoint to load
        self.saved_about: dict[str, Any] = {}
        self._loop: Resumable
        self._identity: Identity | None = None
        self._first = 0  # the optimiser's step, from 1, of the first step of the loop
        self._held = Held()  # signals that wait for the end of a step
        self._began = self._saved = time.monotonic()
        self._place: object = None  # of the last checkpoint
        self._state = "finished"
        self.time_is_up = False  # `stop_after` has ended the run

    def opened(self, kind: str, overwrite: bool, keep: int) -> RunFolder | None:
        """The folder of the run, of which this process is the writer; None: nothing is written."""
        return RunFolder(self.path, kind, resume=self.resume, overwrite=overwrite, keep=keep)

    # ---- before the run --------------------------------------------------------------------------------------

    def share(self) -> None:
        """Broadcast to all ranks the checkpoint that rank 0 has read; a collective call."""
        resumed = None if self.folder is None else self.folder.resumed
        if resumed is not None:
            need_schema(ABOUT, resumed.about, f"{resumed.path}: about")
        entries, about = ({}, {}) if resumed is None else (resumed.entries, resumed.about)
        if self.ranks is None:
            found, self.saved_about, self.entries = resumed is not None, about, entries
        else:
            arrays = {n: (v.shape, v.dtype) for n, v in entries.items() if isinstance(v, np.ndarray)}
            plain = {n: v for n, v in entries.items() if n not in arrays}
            found, arrays, plain, self.saved_about = self.ranks.gather((resumed is not None, arrays, plain, about))[0]
            self.entries = dict(plain)
            for name, (shape, kind) in arrays.items():
                array = np.array(entries[name], order="C") if entries else np.empty(shape, kind)
                if array.size:
                    self.ranks.broadcast(array)
                self.entries[name] = array
        if not found:
            self.entries = None
        if self.folder is not None and resumed is not None:
            self.folder.resumed = replace(resumed, entries={})  # `entries` holds them until they are restored

    @property
    def freed_bytes(self) -> int:
        """Of the arrays of a checkpoint that is not restored yet."""
        arrays = [value for value in (self.entries or {}).values() if isinstance(value, np.ndarray)]
        return sum(present(array.ctypes.data, array.nbytes) for array in arrays)

    def size(self, name: str, most: int) -> int | None:
        """A size that the run was saved with, such as "micro_batch_size", at most `most`; None for a run that starts
        anew."""
        if self.entries is None:
            return None
        saved = self.saved_about["settings"].get(name)
        need_schema(whole(1), saved, f"{self.path}: about.settings.{name}")
        return min(saved, most)

    @property
    def ends(self) -> tuple[int, ...]:
        return () if self.every.steps is None else (self.every.steps,)

    @property
    def apart(self) -> tuple[str, ...]:
        return ("checkpoints",)

    def copied_bytes(self, weights: int, state: int) -> int:
        return state

    def begin(self, loop: Resumable) -> None:
        self._loop = loop
        if self.folder is not None and self.ranks is None:
            loop.trainer.driver.on_failed = self._save_failed

    def begin_pass(self, source: Any, open_pass: Any) -> None:
        self._first = self._loop.trainer.driver.next_step - self._loop.steps

    def _save_failed(self, step: Any, settings: dict[str, Any], rows: int) -> None:
        """A micro-batch is not finite, and the run ends: the loop counts its steps when the call has ended."""
        if self.folder is not None:
            number = self._loop.trainer.driver.next_step - self._first + 1
            save_failed_step(self.folder, step.run, settings, rows, number)

    @contextlib.contextmanager
    def running(self) -> Any:
        """Without ranks, Ctrl-C waits for the end of an optimiser step."""
        if self._loop.trainer.driver.ranks is not None:
            yield
            return
        with held_back() as self._held:
            yield

    def restore(self) -> None:
        """Load the state of the checkpoint, if there is one. TrainError naming what differs from the run that was
        saved."""
        loop, modules, is_root_rank = self._loop, self._loop.trainer.modules, is_root(self.ranks)
        self._began = self._saved = time.monotonic()
        if self.resume:
            loop.callbacks.check_resumable()
        if self._identity is None:
            modules.begin()
        if self.folder is not None:
            for each in loop.subscribers:
                self.folder.files |= each.files()
            self.folder.files[PLANS] = lambda: plan_file(program_maps(loop.trainer.plans))
        self._identity = loop.identity()
        if self.entries is None:
            return
        with agreed(self.ranks):
            if is_root_rank:
                self._add_earlier()
                self.compare(self._identity, loop.steps_total)
        with agreed(self.ranks):
            loop.trainer.train_state.load(self.entries)
        if modules.warning() is not None and is_root_rank:
            log.warning(f"{self.path}: {modules.warning()}")
        self.entries, self._place = None, self._place_now()
        if self.folder is not None and loop.history:
            self.folder.note(epoch=loop.history[-1].epoch, latest=loop.history[-1].numbers())
        if loop.stopped and is_root_rank:
            log.info(f"{self.path}: a callback has ended this run after {loop.steps} steps: it is finished")
        elif not loop.is_unfinished and loop.is_between_passes and is_root_rank:
            fixed = "steps" in self._identity.settings or any(
                ends_at(value, loop.steps, loop.epoch) for value in loop.trainer.optimizer.settings.values()
            )
            more = "the schedule of its learning rate ends here: more epochs are another run"
            more = more if fixed else "more epochs continue it"
            log.info(f"{self.path}: this run has finished, after {plural(loop.steps, 'step')}; {more}")

    def _add_earlier(self) -> None:
        """Settings that the checkpoint of an earlier version lacks, as other files of the run record them."""
        settings = self.saved_about["settings"]
        for each in self._loop.subscribers:
            if self.folder is not None and each.about().keys() - settings.keys():
                found = each.earlier_about(self.folder.folder)
                settings |= {name: value for name, value in found.items() if name not in settings}

    def compare(self, identity: Identity, steps_total: int | None = None) -> None:
        """TrainError naming what differs from the run of the checkpoint. steps_total: optimiser steps in all."""
        differ = [in_one_line(text, 500) for text in identity.differences(self.saved_about)]
        if differ:
            need = "need the same, or --overwrite (overwrite=True) to start anew"
            text = f"{self.path}: cannot be resumed: {'; '.join(differ)}"
            before = (self.entries or {}).get("loop.steps_total")
            # the number of steps, or a schedule that counts them
            by_steps = all(one.startswith("steps is ") or "steps=" in one for one in differ)
            if by_steps and before and steps_total and before != steps_total and self.kind != "loop":
                raise TrainError(
                    text + _other_length(self.kind, identity, before, steps_total, need), epochs=..., steps=...
                )
            raise TrainError(f"{text}; {need}")
        missing = identity.missing(self.saved_about)
        records = [name for name in missing if name != FILES]
        if records and FILES in missing:
            text = f"not compared, the checkpoint of an earlier version lacks it: {', '.join(records)}"
            log.warning(f"{self.path}: {text}")
        files = [] if records else identity.other_files(self.saved_about)
        if files:
            log.info(f"{self.path}: {'; '.join(files)}; the content that the run reads is the same")
        if identity.unknown:
            text = f"whether these do the same as before is not known: {', '.join(identity.unknown)}"
            log.warning(f"{self.path}: {text}")
        other = identity.other_environment(self.saved_about)
        if other:
            log.warning(f"{self.path}: {'; '.join(other)}: the run continues, the same bits are not promised")
            if self.folder is not None:
                self.folder.note_other(other)

    # ---- during the run --------------------------------------------------------------------------------------

    def is_due(self, steps: int | None = None) -> bool:
        """A checkpoint is due: by time, or, where `checkpoint_every` counts them, after `steps` optimiser steps."""
        if self.every.seconds is not None:
            return time.monotonic() - self._saved >= self.every.seconds
        return steps is not None and self.every.steps is not None and steps % self.every.steps == 0

    @property
    def has_limit(self) -> bool:
        """`stop_after` was given."""
        return self._allowed is not None

    def is_up(self) -> bool:
        """`stop_after` has passed."""
        return self._allowed is not None and time.monotonic() - self._began >= self._allowed

    def end_early(self) -> None:
        """The run ends here because of `stop_after`, and can be resumed."""
        self._state, self.time_is_up = "interrupted", True

    def on_progress(self, progress: Any) -> None:
        """Raises a held signal, and TimeIsUp after `stop_after`; inside a segment a checkpoint, if one is due."""
        self._held.check()
        loop = self._loop
        if not progress.training:
            if loop.steps:  # a run that ends here has a state to continue from
                self._check_time()
        elif not loop.trainer.driver.in_window:
            self._check_time()
            self._emit_saved()
            if loop.is_in_segment and self.is_due():
                self.save()

    def _check_time(self) -> None:
        if self.is_up():
            raise TimeIsUp(f"the run has taken as long as stop_after={self._allowed:g} s allows")

    def _emit_saved(self) -> None:
        """Emit an event for each checkpoint that was written since the last call."""
        while self.folder is not None and self.folder.saved:
            self._loop.emit("on_checkpoint", self.folder.saved.popleft())

    def between_steps(self, after: str) -> None:
        loop = self._loop
        if after == "segment" and self.is_due(loop.steps):
            self.save()
        elif after == "evaluation":  # a checkpoint of the same step is replaced by one that is marked as the best
            if loop.best(inside=True) is not None and (self._place == self._place_now() or self.is_due(loop.steps)):
                self.save(inside=True)
        elif after == "epoch":
            if self.folder is not None:
                last = loop.history[-1]
                self.folder.note(epoch=last.epoch, latest=last.numbers())
            epochs = self.every.epochs
            if self.is_due() or (epochs is not None and len(loop.history) % epochs == 0):
                self.save()
            self._held.check()

    def save(self, inside: bool = False) -> None:
        """Write a checkpoint of the loop, between two steps. inside: after an evaluation inside a pass."""
        assert self._identity is not None
        self._saved, self._place = time.monotonic(), self._place_now()
        if self.folder is None:
            return
        best = self._loop.best(inside)
        if best is not None:
            self.folder.note(best=best)
        self.write(self._loop.steps, self._loop.trainer.train_state, self._identity, best is not None)

    def write(self, step: int, state: TrainState, identity: Identity, best: bool = False) -> None:
        """Write a checkpoint of this state. Where it is not finite, none is written, one line on stderr reports that,
        and the one before stays the newest."""
        self._saved = time.monotonic()
        if self.folder is not None:
            checkpoints, about, taken = self.folder.checkpoints, identity.about(), identity.digests
            checkpoints.wait()  # so that no two copies are held
            entries = state.collect()

            def checked() -> dict[str, Any]:
                state.need_good(entries)
                return {"digests": taken()}

            checkpoints.save(step, entries, about, best, checked)

    # ---- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The last checkpoint of a run that has made all its passes, or that a callback has ended."""
        loop = self._loop
        if self._state == "finished" and loop.steps and self._place != self._place_now():
            self.save()
        loop.trainer.tell(self._wait_and_emit if loop.callbacks.receives("on_checkpoint") else None)

    def _wait_and_emit(self) -> None:
        if self.folder is not None:
            self.folder.checkpoints.wait()
        self._emit_saved()

    def on_stop(self, error: BaseException) -> None:
        """The last checkpoint of a run that is cut off, where a step is complete and each callback has received the
        same events."""
        if isinstance(error, TimeIsUp):
            self.end_early()
        can_resume = isinstance(error, (TimeIsUp, NonFiniteError, KeyboardInterrupt))
        cut = hasattr(error, "at_once") or hasattr(error, "of_callback")
        if can_resume and not cut and self._loop.steps and self._identity and self._place != self._place_now():
            self.save()

    def _place_now(self) -> object:
        loop = self._loop
        return loop.steps, len(loop.history), loop.is_between_passes, loop.stopped

    def __repr__(self) -> str:
        return f"Saver({self.path!r}, resume={self.resume})"

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self._state = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        if self.folder is not None:
            self.folder.end(self._state, error)


def failure_of(saver: Saver | None) -> GradloomError | None:
    """The error of the last checkpoint of a run that is done; None where it was written."""
    return None if saver is None or saver.folder is None else saver.folder.failure


@contextlib.contextmanager
def saving_result(saver: Saver | None) -> Iterator[None]:
    """Inside, the result of a run that has ended is saved: an error marks the run as failed."""
    try:
        yield
    except (GradloomError, OSError) as error:
        if saver is not None and saver.folder is not None:
            saver.folder.fail(error)
        raise


def _other_length(kind: str, identity: Identity, before: int, steps: int, need: str) -> str:
    """Why a run of another number of steps is another run, and how to train longer."""
    which, more = "{epochs}", ""
    if kind == "finetune":
        adapter = identity.settings.get("adapter")
        is_full = isinstance(adapter, dict) and adapter.get("kind") == "full"
        weights = "the trained model as MODEL" if is_full else "--lora FILE"
        which = "{epochs} or {steps}"
        more = f"; a new run can start from the trained weights ({weights}; in Python continue_from=)"
    why = f"{which} changes the {before:,} steps to {steps:,}, and the schedule of the learning rate spans all of them"
    return f": {why}; {need}{more}"


_replacement: ContextVar[Saver | None] = ContextVar("gradloom_saver", default=None)


@contextlib.contextmanager
def replaced_by(saver: Saver) -> Iterator[None]:
    """Inside, `saver_of` returns this Saver: a training runs as in the folder of a run, which it does not write."""
    before = _replacement.set(saver)
    try:
        yield
    finally:
        _replacement.reset(before)


def saver_of(kind: str, ranks: Communicator | None, given: SaveOptions) -> Saver | None:
    """The Saver of a run that has a folder; SettingError for options of one where there is no folder."""
    if (saver := _replacement.get()) is not None:
        return saver
    values = values_of(given, SaveOptions)
    asked = {name: value for name, value in values.items() if value is not None and value is not False}
    if given.run is not None:
        return Saver(kind=kind, ranks=ranks, **asked)
    for name, value in asked.items():
        raise SettingError(f"{{{name}}} requires {{run}}, the folder of a run", {name: value, "run": ...})
    return None
