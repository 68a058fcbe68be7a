"""Saver: when a run writes checkpoints, and how it goes on from one. gl.fit and gl.llm.finetune make one for `run=`.

    fit                Saver(run, ...)             claims the folder, reads its newest checkpoint
                       saver.share()               gives it to all ranks
    Loop.run           saver.begin(loop)           compares the run with that of the checkpoint, loads its state
      every 0.2 s      saver.check_time()          ends the run after `stop_after`
                       saver.inside(loop)          writes a checkpoint, if one is due
      a segment ends   saver.at_step(loop)         likewise
      an evaluation    saver.at_evaluation(...)    likewise, and marks the checkpoint if it is the best so far
      a pass ends      saver.at_epoch(loop)        likewise
    the last pass      saver.finish(loop)          writes the last checkpoint
    or an error        saver.stopped(loop, error)  likewise, if the last step is complete
    fit                saver.__exit__              notes how the run has ended, lets go of the folder

A checkpoint holds the state between two optimiser steps. Rank 0 alone writes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.arguments import as_bool, as_whole
from ..base.errors import NonFiniteError, SettingError, TrainError
from ..base.interrupts import StopTraining
from ..base.interval import as_interval
from ..base.schema import whole
from ..base.terminal import in_one_line, to_stderr
from ..parallel.agree import agreed, is_root
from ..parallel.communicator import Communicator
from ..step.state import TrainState, need_schema
from .identity import FILES, Identity, Resumable, identity_of
from .result import Evaluation
from .run_folder import RunFolder
from .state_schemas import ABOUT
from .stopping import monitored

EVERY = "5min"


class TimeIsUp(StopTraining):
    """The run has taken as long as `stop_after` allows: it ends in order, and can be resumed."""


class Saver:
    """Writes the checkpoints of one run, and resumes it.

    run               the run's folder
    kind              "fit", "finetune" or "loop"
    resume            go on from the newest checkpoint there; without any the run starts anew, which is said
    overwrite         replace an unfinished run in the folder
    checkpoint_every  "5min", "100steps", "1epoch": how often; there is always one at the end
    keep              so many of the newest stay, and the best: that of the evaluation with the least loss, inside of an
                      epoch or at its end; without validation that of the epoch with the least loss of training
    stop_after        "3h": end in order after so long, with a checkpoint; the run can then be resumed
    ranks             those that train together

    Raises SettingError, and FileError where the folder cannot be used (see RunFolder). As a context it lets go of the
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
        keep, overwrite = as_whole("keep", keep, 1), as_bool("overwrite", overwrite)
        self.folder: RunFolder | None = None  # of rank 0
        if is_root(ranks):
            self.folder = RunFolder(run, kind, resume=self.resume, overwrite=overwrite, keep=keep)
        self.entries: dict[str, Any] | None = None  # of the checkpoint that the run goes on from
        self.about: dict[str, Any] = {}
        self._identity: Identity | None = None
        self._began = self._saved = time.monotonic()
        self._place: object = None  # of the last checkpoint
        self._state = "finished"
        self.time_is_up = False  # `stop_after` has ended the run

    # ---- before the run --------------------------------------------------------------------------------------

    def share(self) -> None:
        """All ranks take over what rank 0 has read; they call it together."""
        resumed = None if self.folder is None else self.folder.resumed
        if resumed is not None:
            need_schema(ABOUT, resumed.about, f"{resumed.path}: about")
        entries, about = ({}, {}) if resumed is None else (resumed.entries, resumed.about)
        if self.ranks is None:
            found, self.about, self.entries = resumed is not None, about, entries
        else:
            arrays = {n: (v.shape, v.dtype) for n, v in entries.items() if isinstance(v, np.ndarray)}
            plain = {n: v for n, v in entries.items() if n not in arrays}
            found, arrays, plain, self.about = self.ranks.gather((resumed is not None, arrays, plain, about))[0]
            self.entries = dict(plain)
            for name, (shape, kind) in arrays.items():
                array = np.array(entries[name], order="C") if entries else np.empty(shape, kind)
                if array.size:
                    self.ranks.broadcast(array)
                self.entries[name] = array
        if not found:
            self.entries = None

    def size(self, name: str, most: int) -> int | None:
        """A size that the run was saved with, such as "micro_batch_size", of at most so many rows; None for a run that
        starts anew."""
        if self.entries is None:
            return None
        saved = self.about["settings"].get(name)
        need_schema(whole(1), saved, f"{self.path}: about.settings.{name}")
        return min(saved, most)

    def begin(self, loop: Resumable) -> None:
        """The loop is about to run: load the state that it goes on from. TrainError naming what differs from the run
        that was saved."""
        self._began = self._saved = time.monotonic()
        if self.resume:
            loop.callbacks.check_resumable()
        if self.every.steps is not None:
            loop.ends.append(self.every.steps)
        modules = loop.trainer.modules
        if self._identity is None:
            modules.begin()
        self._identity = identity_of(loop)
        if self.entries is None:
            return
        with agreed(self.ranks):
            if is_root(self.ranks):
                self.compare(self._identity)
        with agreed(self.ranks):
            loop.trainer.train_state.load(self.entries)
        if modules.warning() is not None and is_root(self.ranks):
            to_stderr(f"{self.path}: {modules.warning()}")
        self.entries, self._place = None, self._place_of(loop)
        if self.folder is not None and loop.history:
            self.folder.note(epoch=loop.history[-1].epoch, latest=loop.history[-1].numbers())
        if loop.stopped and is_root(self.ranks):
            to_stderr(f"{self.path}: a callback has ended this run after {loop.steps} steps: it is finished")
        elif loop.steps >= loop.steps_total and loop.is_between_passes and is_root(self.ranks):
            to_stderr(f"{self.path}: this run has finished, after {loop.steps:,} steps; more epochs continue it")

    def compare(self, identity: Identity) -> None:
        """TrainError naming what differs from the run of the checkpoint."""
        differ = [in_one_line(text, 500) for text in identity.differences(self.about)]
        if differ:
            need = "need the same, or --overwrite (overwrite=True) to start anew"
            raise TrainError(f"{self.path}: cannot be resumed: {'; '.join(differ)}; {need}")
        missing = [name for name in identity.missing(self.about) if name != FILES]
        if missing and FILES in identity.missing(self.about):
            text = f"{self.path}: not compared, the checkpoint of an earlier version lacks it: {', '.join(missing)}"
            to_stderr(text)
        files = [] if missing else identity.other_files(self.about)
        if files:
            text = f"{self.path}: {'; '.join(files)}; what the run reads of it is the same"
            to_stderr(text)
        if identity.unknown:
            text = f"{self.path}: whether these do the same as before is not known: {', '.join(identity.unknown)}"
            to_stderr(text)
        other = [in_one_line(text, 500) for text in identity.other_environment(self.about)]
        if other:
            text = f"{self.path}: {'; '.join(other)}: the run goes on, the same bits are not promised"
            to_stderr(text)
            if self.folder is not None:
                self.folder.note_other(other)

    # ---- during the run --------------------------------------------------------------------------------------

    def is_due(self, steps: int | None = None) -> bool:
        """A checkpoint's time has come; where it is counted in steps: after so many."""
        if self.every.seconds is not None:
            return time.monotonic() - self._saved >= self.every.seconds
        return steps is not None and self.every.steps is not None and steps % self.every.steps == 0

    def inside(self, loop: Resumable) -> None:
        """Between two steps inside a segment: a checkpoint, if its time has come."""
        if self.is_due():
            self.save(loop)

    @property
    def has_limit(self) -> bool:
        """`stop_after` was given."""
        return self._allowed is not None

    def is_up(self) -> bool:
        """The run has taken as long as it may."""
        return self._allowed is not None and time.monotonic() - self._began >= self._allowed

    def end_early(self) -> None:
        """The run ends here because of `stop_after`, and can be resumed."""
        self._state, self.time_is_up = "interrupted", True

    def check_time(self) -> None:
        """TimeIsUp when the run has taken as long as it may."""
        if self.is_up():
            raise TimeIsUp(f"the run has taken as long as stop_after={self._allowed:g} s allows")

    def tell(self, loop: Resumable) -> None:
        """Tell the callbacks of the checkpoints that have been written."""
        while self.folder is not None and self.folder.saved:
            loop.callbacks.tell("on_checkpoint", self.folder.saved.popleft())

    def tell_all(self, loop: Resumable) -> None:
        """Likewise, when all are written."""
        if self.folder is not None:
            self.folder.checkpoints.wait()
        self.tell(loop)

    def at_step(self, loop: Resumable) -> None:
        """A segment has ended."""
        if self.is_due(loop.steps):
            self.save(loop)

    def at_evaluation(self, loop: Resumable, evaluations: Sequence[Evaluation]) -> None:
        """The last of these, of the pass under way, was made: where a checkpoint belongs to its step, and it is the
        best so far, the checkpoint says so."""
        if self._is_best(loop, evaluations) and (self._place == self._place_of(loop) or self.is_due(loop.steps)):
            self.save(loop, evaluations)

    def at_epoch(self, loop: Resumable) -> None:
        """A pass, its validation and the listeners of it are done."""
        if self.folder is not None:
            last = loop.history[-1]
            self.folder.note(epoch=last.epoch, latest=last.numbers())
        epochs = self.every.epochs
        if self.is_due() or (epochs is not None and len(loop.history) % epochs == 0):
            self.save(loop)

    def save(self, loop: Resumable, evaluations: Sequence[Evaluation] = ()) -> None:
        """A checkpoint of the loop, between two steps. Rank 0 alone writes. evaluations: of the pass under way."""
        assert self._identity is not None
        self._saved, self._place = time.monotonic(), self._place_of(loop)
        if self.folder is None:
            return
        identity = self._identity
        best = self._is_best(loop, evaluations)
        if best:
            self.folder.note(best=(evaluations or loop.history)[-1].numbers())
        self.write(loop.steps, loop.trainer.train_state, identity, best)

    @staticmethod
    def _is_best(loop: Resumable, evaluations: Sequence[Evaluation]) -> bool:
        """No weights so far were judged better than those that the loop has now."""
        judged = [*(one for epoch in loop.history for one in epoch.evaluations), *evaluations]
        if judged:
            losses = [float(one.val.loss) for one in judged if one.val is not None]
            return judged[-1].step == loop.steps and losses[-1] == min(losses)
        losses = [monitored(epoch) for epoch in loop.history]
        return loop.is_between_passes and bool(losses) and losses[-1] == min(losses)

    def write(self, step: int, state: TrainState, identity: Identity, best: bool = False) -> None:
        """A checkpoint of this state as it is now. Where no run can go on from it (weights that are not finite) there
        is none, which is said, and the one before stays the newest."""
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

    def finish(self, loop: Resumable) -> None:
        """The loop has made all its passes, or a listener has ended it."""
        if self._state == "finished" and loop.steps and self._place != self._place_of(loop):
            self.save(loop)

    def stopped(self, loop: Resumable, why: BaseException) -> None:
        """The loop ends before its last step: the last checkpoint, where a step is complete and no callback has heard
        of half of what has happened."""
        if isinstance(why, TimeIsUp):
            self.end_early()
        orderly = isinstance(why, (TimeIsUp, NonFiniteError, KeyboardInterrupt))
        cut = hasattr(why, "at_once") or hasattr(why, "of_callback")
        if orderly and not cut and loop.steps and self._identity is not None and self._place != self._place_of(loop):
            self.save(loop)

    @staticmethod
    def _place_of(loop: Resumable) -> object:
        """How far a loop has come."""
        return loop.steps, len(loop.history), loop.is_between_passes, loop.stopped

    def __repr__(self) -> str:
        return f"Saver({self.path!r}, resume={self.resume})"

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self._state = "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
        if self.folder is not None:
            self.folder.end(self._state)


def saver_of(run: str | os.PathLike[str] | None, kind: str, ranks: Communicator | None, **given: Any) -> Saver | None:
    """The Saver of a run that has a folder, with the arguments that are given; SettingError for arguments of one where
    there is no folder."""
    asked = {name: value for name, value in given.items() if value is not None and value is not False}
    if run is not None:
        return Saver(run, kind=kind, ranks=ranks, **asked)
    for name, value in asked.items():
        raise SettingError(f"{{{name}}} requires {{run}}, the folder of a run", {name: value, "run": ...})
    return None
