"""Reference log-probabilities of an objective: those of the base model, with the adapter off, computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import TrainError
from ..base.schema import array, table
from ..base.terminal import to_stderr
from ..data.dataset import Dataset
from ..graph.leaves import input as input_value
from ..graph.stored import Stored
from ..parallel.agree import is_root
from ..parallel.communicator import Communicator
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.compile import compile as compile_program
from ..run.rates import measure_early
from ..train.display import plural
from ..train.duration import is_predictable
from ..train.trainer import Trainer
from .not_finite import not_finite
from .objective import Forward, Objective

STATE = table({"logps": array("float32")})  # of a checkpoint


class Reference:
    """Computes them and holds them in the last columns of the labels of a data set.

    rows: those of a micro-batch, as in training: then rows have the same bits. options: of gl.compile.
    """

    def __init__(self, objective: Objective, forward: Forward, rows: int, options: Mapping[str, Any]) -> None:
        self.objective, self.forward = objective, replace(forward, adapter=None, training=False)
        self._adapter = forward.adapter
        self.rows, self.options = rows, dict(options)
        self._run: Any = None

    def prepare(self, row_tokens: int) -> None:
        """Compile the program."""
        x = input_value("rows", (self.rows, 4, row_tokens), "i32")
        outputs = self.objective.outputs(self.forward, x)
        assert isinstance(outputs, tuple)
        self._logps = outputs[0]
        self._run = compile_program([self._logps], **self.options)

    @property
    def runs(self) -> list[Any]:
        """The program, once it is compiled."""
        return [] if self._run is None else [self._run]

    @property
    def plans(self) -> list[Plan | Schedule]:
        return [] if self._run is None or self._run.plan is None else [self._run.plan]

    def compute(
        self, x: np.ndarray, ranks: Communicator | None = None, on_progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """Log-probabilities of the parts of all rows, f32 [rows, K, P]; ranks share the rows. on_progress: called with
        (rows done, all rows). Raises NonFiniteError."""
        n, size = len(x), self.rows
        rank, share = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        shape = self._logps.shape[1:]
        starts = range(rank * size, n, share * size)
        found = np.zeros((n, *shape), np.float32)
        for start in starts:
            stop = min(start + size, n)
            part = np.zeros((size, *x.shape[1:]), np.int32)
            part[: stop - start] = x[start:stop]
            part[stop - start :, 2:] = -100  # rows beyond the last one count nothing
            (logps,) = self._run(rows=part)
            if not np.isfinite(logps).all():
                what = f"finetune: a reference log-probability of rows {start} to {stop - 1}"
                raise not_finite(what, self.forward.model, None, self._run, [self._logps], {}, **self.options)
            found[start:stop] = logps[: stop - start]
            if on_progress is not None:
                on_progress(stop, n)
        if ranks is not None:
            for other, theirs in enumerate(ranks.gather([found[s : s + size] for s in starts])):
                for start, rows in zip(range(other * size, n, share * size), theirs, strict=True):
                    found[start : start + size] = rows
        return found

    # ---- of a run --------------------------------------------------------------------------------------------

    def attach(self, data: Dataset, trainer: Trainer) -> None:
        """Hold them in this data set, and save them with the state of its training."""
        assert data.labels is not None
        self.data, self.trainer = data, trainer
        data.computed = self.objective.form.parts
        trainer.train_state.register("reference", self.state, self.loading, schema=STATE)

    def fill(self, ranks: Communicator | None, progress: bool) -> None:
        """Compute those of all rows, and write them."""
        x, on_progress = self.data.data, None
        if progress and is_root(ranks):
            to_stderr(f"log-probabilities of the base model: {plural(len(x), 'row')}")
            on_progress = _lines_of_progress()
        plans = [plan for plan in self.trainer.plans if isinstance(plan, Plan)]
        if plans and is_predictable(self.trainer):  # later its arrays would be added to the weights
            measure_early(plans, self.options.get("isa"))
        self.write(self.compute(x, ranks, on_progress))
        model, self._run = self.forward.model, None
        for weight in self.replaced(model.weights.values()):
            model.file.release(weight.name)

    def replaced(self, weights: Iterable[Stored]) -> set[Stored]:
        """Those tensors of the model in whose place the training reads others: only full training has some."""
        adapter = self._adapter
        return set() if adapter is None else {one for one in weights if adapter.weight(one.name) is not None}

    def write(self, found: np.ndarray) -> None:
        """Write f32 [rows, K, P] into the labels."""
        labels = self.data.labels
        assert labels is not None
        labels[:, :, -found.shape[2] :] = found
        for stored in self.trainer.source(self.data).stored:
            if stored.name == "labels":
                stored.write(labels)

    def state(self) -> dict[str, Any]:
        """Part of the state of a run."""
        assert self.data.labels is not None
        return {"logps": np.ascontiguousarray(self.data.labels[:, :, -self.data.computed :])}

    def loading(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Load for `state`."""
        found, need = values["logps"], self.state()["logps"].shape
        if found.shape != need:
            raise TrainError(f"load: reference log-probabilities have shape {list(found.shape)}; need {list(need)}")
        return lambda: self.write(found)


def _lines_of_progress() -> Callable[[int, int], None]:
    """A listener that prints (rows done, all rows) every 10 s."""
    printed = time.perf_counter()

    def on_progress(done: int, total: int) -> None:
        nonlocal printed
        if time.perf_counter() - printed >= 10:
            printed = time.perf_counter()
            to_stderr(f"  {done:,} of {plural(total, 'row')}")

    return on_progress
