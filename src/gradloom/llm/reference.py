"""Reference log-probabilities of an objective: those of the base model, with the adapter off, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.errors import TrainError
from ..base.schema import array, table
from ..data.dataset import Dataset
from ..graph.leaves import input as input_value
from ..graph.stored import Stored
from ..parallel.communicator import Communicator
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.compile import compile as compile_program
from ..run.rates import measure_early
from ..runs.saver import Saver
from ..train.duration import is_predictable
from ..train.trainer import Trainer
from .computed_labels import ComputedLabels, Progress, compute_rows, padded_rows
from .not_finite import not_finite
from .objective import Forward, Objective

STATE = table({"logps": array("float32")})  # of a checkpoint


class Reference(ComputedLabels):
    """Log-probabilities of the parts of each row, f32 [rows, K, P]. Its programs share memory with those of the
    training.

    rows: those of a micro-batch, as in training: then rows have the same bits. options: of gl.compile.
    """

    title = "log-probabilities of the base model"

    def __init__(self, objective: Objective, forward: Forward, rows: int, options: Mapping[str, Any]) -> None:
        self.objective, self.forward = objective, replace(forward, adapter=None, training=False)
        self._adapter = forward.adapter
        self.rows, self.options = rows, dict(options)
        self._run: Any = None

    def prepare(self, row_tokens: int) -> None:
        x = input_value("rows", (self.rows, 4, row_tokens), "i32")
        outputs = self.objective.outputs(self.forward, x)
        assert isinstance(outputs, tuple)
        self._logps = outputs[0]
        self._run = compile_program([self._logps], **self.options)

    @property
    def runs(self) -> list[Any]:
        return [] if self._run is None else [self._run]

    @property
    def plans(self) -> list[Plan | Schedule]:
        return [] if self._run is None or self._run.plan is None else [self._run.plan]

    def compute_into(
        self, out: np.ndarray, data: Dataset, ranks: Communicator | None = None, on_progress: Progress | None = None
    ) -> None:
        def compute(start: int, stop: int) -> np.ndarray:
            part = padded_rows(data.data, start, stop, self.rows)
            part[stop - start :, 2:] = -100  # rows beyond the last one count nothing
            (logps,) = self._run(rows=part)
            if not np.isfinite(logps).all():
                what = f"finetune: a reference log-probability of rows {start} to {stop - 1}"
                raise not_finite(what, self.forward.model, None, self._run, [self._logps], {}, **self.options)
            found: np.ndarray = logps[: stop - start]
            return found

        compute_rows(out, self.rows, compute, ranks, on_progress)

    def attach(self, data: Dataset, trainer: Trainer, saver: Saver | None = None) -> None:
        """Hold them in this data set, and save them with the state of its training."""
        super().attach(data, trainer, saver)
        trainer.train_state.register("reference", self.state, self.loading, schema=STATE)

    def fill(self, ranks: Communicator | None, progress: bool) -> None:
        plans = [plan for plan in self.trainer.plans if isinstance(plan, Plan)]
        if plans and is_predictable(self.trainer):  # later its arrays would be added to the weights
            measure_early(plans, self.options.get("isa"))
        super().fill(ranks, progress)
        model, self._run = self.forward.model, None
        for weight in self.replaced(model.weights.values()):
            model.file.release(weight.name)

    def replaced(self, weights: Iterable[Stored]) -> set[Stored]:
        """Those tensors of the model in whose place the training reads others: only full training has some."""
        adapter = self._adapter
        return set() if adapter is None else {one for one in weights if adapter.weight(one.name) is not None}

    def state(self) -> dict[str, Any]:
        """Part of the state of a run."""
        return {"logps": np.ascontiguousarray(self.columns_of(self.data))}

    def loading(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Load for `state`."""
        found, need = values["logps"], self.columns_of(self.data).shape
        if found.shape != need:
            raise TrainError(f"load: reference log-probabilities have shape {list(found.shape)}; need {list(need)}")

        def load() -> None:
            self.columns_of(self.data)[...] = found
            self.update()

        return load
