"""Last columns of the labels of a data set, which a run computes once, before its training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.terminal import plural, to_stderr
from ..data.dataset import Dataset
from ..parallel.agree import is_root
from ..parallel.communicator import Communicator
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..runs.saver import Saver
from ..train.trainer import Trainer
from .objective import Objective

Progress = Callable[[int, int], None]  # called with (rows done, all rows)


class ComputedLabels:
    """Computes them for the data set of a run and holds them there. Base class."""

    objective: Objective
    data: Dataset
    trainer: Trainer
    title = "labels"  # for a line on stderr

    def prepare(self, row_tokens: int) -> None:
        """Compile, or plan, the programs for rows of this number of tokens."""
        raise NotImplementedError

    @property
    def runs(self) -> list[Any]:
        """Programs that share the memory of the training's steps."""
        return []

    @property
    def plans(self) -> list[Plan | Schedule]:
        """Their plans."""
        return []

    def compute_into(
        self, out: np.ndarray, data: Dataset, ranks: Communicator | None = None, on_progress: Progress | None = None
    ) -> None:
        """Write the columns of all rows of a data set into `out`, f32 [rows, ..., columns]; ranks share the rows.
        Raises NonFiniteError."""
        raise NotImplementedError

    def complete(self, data: Dataset, ranks: Communicator | None = None, on_progress: Progress | None = None) -> None:
        """Compute the columns of all rows of a data set into its labels."""
        self.compute_into(self.columns_of(data), data, ranks, on_progress)

    def columns_of(self, data: Dataset) -> np.ndarray:
        """The columns in the labels of a data set."""
        assert data.labels is not None
        return data.labels[..., -self.objective.computed :]

    # ---- of a run --------------------------------------------------------------------------------------------

    def attach(self, data: Dataset, trainer: Trainer, saver: Saver | None = None) -> None:
        """Hold them in this data set. saver: of a run with a folder."""
        assert data.labels is not None
        self.data, self.trainer = data, trainer
        data.computed = self.objective.computed

    def fill(self, ranks: Communicator | None, progress: bool) -> None:
        """Compute those of all rows of the run."""
        on_progress = None
        if progress and is_root(ranks):
            to_stderr(f"{self.title}: {plural(self.data.n, 'row')}")
            on_progress = _lines_of_progress()
        self.complete(self.data, ranks, on_progress)
        self.update()

    def update(self) -> None:
        """Pass the labels to the arrays that programs read."""
        for stored in self.trainer.source(self.data).stored:
            if stored.name == "labels":
                stored.write(self.data.labels)


def compute_rows(
    out: np.ndarray, size: int, compute: Callable[[int, int], np.ndarray], ranks: Communicator | None = None,
    on_progress: Progress | None = None,
) -> None:  # fmt: skip
    """Write compute(start, stop) into out[start:stop] for `size` rows at a time, the last ones fewer; ranks share the
    rows."""
    n = len(out)
    rank, share = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    starts = range(rank * size, n, share * size)
    for start in starts:
        stop = min(start + size, n)
        out[start:stop] = compute(start, stop)
        if on_progress is not None:
            on_progress(stop, n)
    if ranks is not None:
        for other, theirs in enumerate(ranks.gather([out[s : s + size] for s in starts])):
            for start, rows in zip(range(other * size, n, share * size), theirs, strict=True):
                out[start : start + size] = rows


def padded_rows(array: np.ndarray, start: int, stop: int, size: int) -> np.ndarray:
    """Rows start to stop of an array, followed by rows of 0 up to `size` rows; a copy."""
    part = np.zeros((size, *array.shape[1:]), array.dtype)
    part[: stop - start] = array[start:stop]
    return part


def _lines_of_progress() -> Progress:
    """A listener that prints (rows done, all rows) every 10 s."""
    printed = time.perf_counter()

    def on_progress(done: int, total: int) -> None:
        nonlocal printed
        if time.perf_counter() - printed >= 10:
            printed = time.perf_counter()
            to_stderr(f"  {done:,} of {plural(total, 'row')}")

    return on_progress
