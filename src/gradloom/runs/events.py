"""Events of a training loop: the order in which subscribers receive them, and what a subscriber adds to a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..base.interrupts import StopTraining
from ..base.messages import log


class TimeIsUp(StopTraining):
    """`stop_after` has passed: the run ends between two steps, inside a pass or not, and can be resumed."""


class Contribution:
    """What a subscriber or a callback adds to the identity and to the folder of a run."""

    def about(self) -> Mapping[str, Any]:
        """Settings that must be equal when the run is resumed: plain values, or dicts of such."""
        return {}

    def contents(self) -> Mapping[str, Callable[[], Sequence[Any]]]:
        """Name -> function that returns arrays and texts whose checksum must be equal when the run is resumed."""
        return {}

    def files(self) -> Mapping[str, Callable[[], bytes]]:
        """Files in the folder of the run, written together with run.json."""
        return {}

    def earlier_about(self, folder: Path) -> Mapping[str, Any]:
        """Entries of `about` that a checkpoint of an earlier version lacks, as other files in `folder` record them."""
        return {}


class Subscriber(Contribution):
    """Base class of the subscribers of a gl.train.Loop. Each event is a method, called on every rank.

    For each event the loop calls its subscribers in this order: display, callbacks, those of subscribers=, saver.

        begin(loop)                   nothing is compiled yet
        running()                     a context, from here to `finish` or to the error
        restore()                     the trainer is claimed and in training mode: a saved state is loaded here
        on_predicted(duration)        the predicted duration of a long run
        on_before(result)             validation before the first step
        start()                       the first pass of this call of Loop.run
          begin_pass(...)             a pass begins, or is resumed inside
            on_progress(progress)     in training and validation, at least every 0.2 s, or after each micro-batch where
                                      `every_batch` is true
            on_segment()              the optimiser steps up to a multiple of `ends` are done, or all of the pass
            on_evaluation(evaluation) the validation sets were measured, inside the pass (loop.rows_left > 0) or at its
                                      end
            between_steps(after)      after a "segment", an "evaluation" inside a pass, an "epoch": all subscribers have
                                      received that event, and no optimiser step is open: a state can be saved
          on_stop(error)              StopTraining has ended the pass
          on_pass(result)             the result of the pass is in the history
          on_notice(text)             one line for the person who watches
          on_part(result)             the pass was ended before its last step
          on_epoch(result)            or it was not
        on_stop(error)                another exception ends the run
        finish()                      all passes are done
        end(history)                  the context is closed

    on_sample(sample) and on_checkpoint(path) are emitted by subscribers.

    StopTraining from on_progress, on_segment, on_sample and on_checkpoint ends the pass at once; from other events it
    ends the pass, or outside of the steps of a pass the run, when all subscribers have received the event. `finish` and
    `end` follow. Any other exception ends the run.
    """

    @property
    def ends(self) -> Sequence[int]:
        """A segment ends at multiples of these, in optimiser steps of the loop."""
        return ()

    @property
    def apart(self) -> Sequence[str]:
        """Work of this subscriber whose duration is not predicted."""
        return ()

    @property
    def freed_bytes(self) -> int:
        """Bytes in memory now that it frees before the first step."""
        return 0

    def copied_bytes(self, weights: int, state: int) -> int:
        """The most bytes of copies that it holds at once, where the weights and buffers of the model have `weights`
        bytes, and all arrays of a checkpoint `state`: for a memory budget."""
        return 0

    def every_batch(self, training: bool) -> bool:
        """Whether on_progress is required after each micro-batch of training, or of validation."""
        return False

    def running(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def begin(self, loop: Any) -> None: ...
    def restore(self) -> None: ...
    def on_predicted(self, duration: Any) -> None: ...
    def on_before(self, result: Any) -> None: ...
    def start(self) -> None: ...
    def begin_pass(self, source: Any, open_pass: Any) -> None: ...
    def on_progress(self, progress: Any) -> None: ...
    def on_segment(self) -> None: ...
    def on_evaluation(self, evaluation: Any) -> None: ...
    def between_steps(self, after: str) -> None: ...
    def on_stop(self, error: BaseException) -> None: ...
    def on_pass(self, result: Any) -> None: ...
    def on_notice(self, text: str) -> None: ...
    def on_part(self, result: Any) -> None: ...
    def on_epoch(self, result: Any) -> None: ...
    def on_sample(self, sample: Any) -> None: ...
    def on_checkpoint(self, path: Path) -> None: ...
    def finish(self) -> None: ...
    def end(self, history: Any) -> None: ...


class Notices(Subscriber):
    """Logs notices, in place of a display."""

    def on_notice(self, text: str) -> None:
        log.warning(text)


def stop_raised_by(method: Callable[..., None], *values: Any) -> StopTraining | None:
    """Call a method; returns StopTraining if the method raises it."""
    try:
        method(*values)
    except StopTraining as stop:
        return stop
    return None


class Resumable(Protocol):
    """What a Saver reads of a gl.train.Loop."""

    trainer: Any
    callbacks: Any
    subscribers: Sequence[Subscriber]
    steps: int
    stopped: bool
    history: Any

    @property
    def steps_total(self) -> int | None: ...

    @property
    def epoch(self) -> int: ...

    @property
    def is_unfinished(self) -> bool: ...

    @property
    def is_between_passes(self) -> bool: ...

    @property
    def is_in_segment(self) -> bool: ...

    def best(self, inside: bool) -> Mapping[str, Any] | None: ...

    def identity(self) -> Any: ...

    def emit(self, event: str, *values: Any) -> None: ...
