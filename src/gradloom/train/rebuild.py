"""Rebuild one step of a saved run: from the checkpoint before it, or from the start, to the bit. Nothing is written.

Rebuilder     in place of the Saver of the run (`runs/saver.py: replaced_by`): loads the checkpoint, observes the
              step, ends the training
Rebuilt       rows, loss and state of the step
Gradients     recorder of a step: its gradient
Weights       recorder of a step: the arrays of the model after it
CapsuleOf     recorder of a step: its capsule
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import FileError, SettingError, TrainError
from ..base.messages import log
from ..files.checkpoint_files import Manifest, Saved, manifests, read_checkpoint
from ..graph.leaves import Parameter
from ..graph.stored import Stored, copies, replace
from ..run.capsule import Capsule, digest
from ..runs.capsules import Builder
from ..runs.events import TimeIsUp
from ..runs.saver import Saver
from .batches import CompiledBatch
from .epoch import Pass


@dataclass
class Rebuilt:
    """A step of a run.

    step, epoch  its number, and that of its pass, from 1; from_step: of the checkpoint that it was computed from, 0:
                 from the start
    rows         the rows of its batch, numbers of the data set
    loss, grad_norm  of the batch, before clipping; nan where the step is not finite
    skipped      the step was left out, because a number was not finite
    state        all entries of a checkpoint after the step
    """

    step: int
    from_step: int
    epoch: int = 0
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    loss: float = float("nan")
    grad_norm: float = float("nan")
    skipped: bool = False
    state: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Observes the micro-batches of the step, each before it runs. Base class."""

    def call(self, loop: Any, batch: tuple[int, int], step: CompiledBatch, settings: dict[str, Any]) -> None:
        """A micro-batch is about to run. batch: first and last row of the step + 1, in the order of the pass."""

    def done(self, loop: Any) -> None:
        """The step is done."""


class Rebuilder(Saver):
    """Runs a training up to a step, as a Saver that writes nothing.

    run    the folder of the run; step: from 1
    on_step  called with the number of steps that are done, at each report of progress and at the end
    Raises SettingError for a step that no run has.
    .result  when the training has ended
    """

    _loop: Any

    def __init__(
        self,
        run: str | os.PathLike[str],
        step: int,
        kind: str,
        recorders: Sequence[Recorder] = (),
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        if step < 1:
            raise SettingError(setting="step", seen=step, need="a whole number >= 1")
        super().__init__(run, kind=kind)
        self.step, self.recorders, self.on_step = step, recorders, on_step
        self.saved = _before(Path(run), step)
        self.result = Rebuilt(step, 0 if self.saved is None else self.saved.step)
        self._open: Pass | None = None
        self._source: Any = None
        self._counts = 0, 0, 0  # batches, norms and skipped steps of the pass before the step
        self._is_done = False

    def opened(self, kind: str, overwrite: bool, keep: int) -> None:
        """None: nothing is written."""

    def share(self) -> None:
        if self.saved is not None:
            self.saved_about, self.entries = self.saved.about, self.saved.entries
            self.saved = None

    @property
    def ends(self) -> tuple[int, ...]:
        return (self.step, self.step - 1) if self.step > 1 else (1,)

    @property
    def is_next(self) -> bool:
        """The step is the next one."""
        return bool(self._loop.steps == self.step - 1)

    def every_batch(self, training: bool) -> bool:
        return training and self.is_next

    def begin(self, loop: Any) -> None:
        super().begin(loop)
        if not loop.has_rows:
            raise TrainError(
                f"{self.path}: trained on an iterable of batches; a step can be rebuilt on a Dataset alone"
            )
        if self.step > loop.steps_total:
            raise TrainError(f"{self.path}: has {loop.steps_total:,} steps, and no step {self.step:,}")
        loop.trainer.driver.on_call = self._on_call

    def on_progress(self, progress: Any) -> None:
        super().on_progress(progress)
        if self.on_step is not None and progress.training:
            self.on_step(self._loop.steps)

    def begin_pass(self, source: Any, open_pass: Pass) -> None:
        self._source, self._open = source, open_pass
        self._note()

    def _note(self) -> None:
        """Note the counts of the pass before the step."""
        assert self._open is not None
        train = self._open.train
        if self.is_next:
            self._counts = train.batches, len(train.grad_norms), train.skipped

    def _batch(self) -> tuple[int, int]:
        """First and last row + 1 of the step, in the order of its pass."""
        assert self._open is not None
        first = (self.step - 1 - self._open.before) * self._loop.batch_size
        return first, min(first + self._loop.batch_size, self._open.rows)

    def _on_call(self, step: CompiledBatch, settings: dict[str, Any]) -> None:
        if self.is_next:
            self._describe()
            for each in self.recorders:
                each.call(self._loop, self._batch(), step, settings)

    def _describe(self) -> None:
        assert self._open is not None
        start, stop = self._batch()
        self.result.epoch = self._open.number
        self.result.rows = self._source.order.read()[start:stop].copy()

    def between_steps(self, after: str) -> None:
        if self._is_done:
            return
        if self._loop.steps >= self.step:
            self._finish()
            raise TimeIsUp(f"step {self.step} is rebuilt")
        if self._open is not None:
            self._note()

    def _finish(self) -> None:
        """Take the numbers and the state of the step, which is done."""
        assert self._open is not None
        train, result = self._open.train, self.result
        batches, norms, skipped = self._counts
        self._describe()
        result.skipped = train.skipped > skipped
        if train.batches > batches:
            result.loss = train.latest(train.batches - batches)[0]
        if len(train.grad_norms) > norms:
            result.grad_norm = train.grad_norm
        for each in self.recorders:
            each.done(self._loop)
        result.state = self._loop.trainer.train_state.collect()
        self._is_done = True

    def save(self, inside: bool = False) -> None:
        """Nothing is written."""

    def finish(self) -> None:
        """Nothing is written."""

    def on_stop(self, error: BaseException) -> None:
        """Nothing is written."""

    @property
    def has_begun(self) -> bool:
        """The step has begun."""
        return bool(len(self.result.rows))

    @property
    def is_done(self) -> bool:
        """The step is done."""
        return self._is_done


def _before(folder: Path, step: int) -> Saved | None:
    """The newest checkpoint of the run before a step that can be read; None where there is none."""
    usable = [one for one in manifests(folder / "checkpoints")[0] if one.step < step]
    for one in sorted(usable, key=lambda one: (-one.step, -one.number)):
        if (saved := _try(one)) is not None:
            return saved
    return None


def _try(manifest: Manifest) -> Saved | None:
    try:
        return read_checkpoint(manifest)
    except FileError as error:
        log.warning(f"{error}; an earlier state is used")
        return None


# ---- recorders -------------------------------------------------------------------------------------------------------


class Gradients(Recorder):
    """The gradient of the step, before clipping: name -> array."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self._weight = np.float32(0)
        self._programs: dict[int, Any] = {}
        self._is_total = False

    def call(self, loop: Any, batch: tuple[int, int], step: CompiledBatch, settings: dict[str, Any]) -> None:
        driver = loop.trainer.driver
        self._is_total = bool(driver.objective.is_total)
        if id(step) not in self._programs:
            self._programs[id(step)] = driver.program([step.outputs[1], *step.grads])
        run = self._programs[id(step)]
        names = names_of(loop, step.parameters)
        with unchanged(run.writes):  # running statistics
            weight, *grads = (array[0] for array in run.run_many(1, settings)[1])
        self._weight = np.float32(self._weight + np.float32(weight))
        for name, grad in zip(names, grads, strict=True):
            self._sums[name] = self._sums[name] + grad if name in self._sums else grad

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The sum over the batch divided by its weight; of the loss "sum" the sum."""
        if self._is_total or not self._weight:
            return self._sums
        return {name: total / self._weight for name, total in self._sums.items()}


class Weights(Recorder):
    """The arrays of the model after the step, by name: see weights_of."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def done(self, loop: Any) -> None:
        self.arrays = weights_of(loop)


class CapsuleOf(Recorder):
    """The capsule of the step: its micro-batches, with the arrays as they are before it, and the rows of its batch."""

    def __init__(self, **about: Any) -> None:
        self._about = about
        self._builder: Builder | None = None
        self._after: dict[Stored, str] = {}

    def call(self, loop: Any, batch: tuple[int, int], step: CompiledBatch, settings: dict[str, Any]) -> None:
        if step.run.source is None:
            raise TrainError("capsule: the step runs on several devices; a capsule requires one")
        if self._builder is None:
            run = step.run
            self._builder = Builder(run.device_name, run.switches, getattr(run, "isa", ""), **self._about)
            self._builder.rows = batch
        self._builder.add(step.run.source, step.run.fed(), settings)

    def done(self, loop: Any) -> None:
        assert self._builder is not None
        written = [s for s in self._builder.snapshot.stored if s.role != "frozen"]
        self._after = {one: digest(array) for one, array in zip(written, copies(written), strict=True)}

    def capsule(self) -> Capsule:
        """With its results. TrainError where the calls of the capsule do not give the arrays of the run."""
        assert self._builder is not None
        made = self._builder.finished()
        numbers = {own: made.stored.index(copy) for own, copy in self._builder.snapshot.stored.items()}
        found: dict[int, str] = {}
        for call in made.calls:
            found |= call.outcome.updated
        for own, want in self._after.items():
            if found.get(numbers[own], want) != want:
                raise TrainError(f"capsule: {own.name} is another array after the step than in the run")
        return made


@contextlib.contextmanager
def unchanged(stored: Sequence[Stored]) -> Iterator[None]:
    """Restore the contents of arrays at the end."""
    before = dict(zip(stored, copies(stored), strict=True))
    try:
        yield
    finally:
        if before:
            replace(before)


def names_of(loop: Any, parameters: Sequence[Parameter]) -> list[str]:
    """Their names in the model."""
    known = {p.stored: name for name, p in loop.trainer.objective.named().items()}
    return [known.get(p.stored, p.name) for p in parameters]


def weights_of(loop: Any) -> dict[str, np.ndarray]:
    """The arrays of the model that steps write, by name: weights, running statistics; with ema= their averages, too,
    as "average.NAME"."""
    trainer = loop.trainer
    known = {p.stored: name for name, p in trainer.objective.named().items()}
    written = trainer.written()
    found = {known.get(one, one.name): array for one, array in zip(written, copies(written), strict=True)}
    average = trainer.optimizer_state.average
    if average is not None:
        means = {f"average.{known.get(one, one.name)}": mean.stored for one, mean in average.arrays.items()}
        found |= dict(zip(means, copies(means.values()), strict=True))
    return found
