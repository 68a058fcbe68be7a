"""What a trainer adds to the state of a run: model, what of it trains, optimiser, window, average, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..base.errors import TrainError
from ..graph.stored import Stored
from ..step.state import (
    TrainState,
    Values,
    check_equal,
    check_names,
    load_average,
    load_optimizer,
    load_parameters,
    load_window,
    named,
    of_average,
    of_optimizer,
    of_parameters,
    of_window,
)
from .local import LocalSteps

_COUNTERS = ("skipped", "in_window", "held", "window_rows")


class TrainerState:
    """The parts of a trainer with these steps. written: what its steps so far wrote of the model."""

    def __init__(self, local: LocalSteps, written: Callable[[], Iterable[Stored]]) -> None:
        self._local, self._written = local, written

    def register(self, own: TrainState) -> None:
        """Add the parts."""
        state = self._local.state
        own.register("model", self._model, lambda values: load_parameters(values, self._model()))
        own.register("trainable", self._trainable, self._load_trainable, first=True)
        own.register("optimizer", lambda: of_optimizer(state), lambda values: load_optimizer(values, state))
        own.register("window", lambda: of_window(state), lambda values: load_window(values, state))
        own.register("average", lambda: of_average(state), lambda values: load_average(values, state))
        own.register("rows", self._rows, self._load_rows)

    def _model(self) -> dict[str, Any]:
        return of_parameters(self._local.objective.named(), self._written())

    def _trainable(self) -> dict[str, Any]:
        """The parameters that are trained now; callbacks may freeze and thaw them."""
        return {"names": sorted(name for name, p in self._local.objective.named().items() if p.trainable)}

    def _load_trainable(self, values: Values) -> Callable[[], None]:
        check_names("trainable", values, ["names"])
        mine, trained = self._local.objective.named(), set(values["names"])
        if not trained <= mine.keys():
            raise TrainError(f"load: trainable: {named(trained - mine.keys())}: not in this model")
        for name, p in mine.items():
            if p.trainable != (name in trained):
                p.trainable = name in trained
        self._local.forms.look(True)  # the optimiser's parameters follow
        return lambda: None

    def _rows(self) -> dict[str, Any]:
        """What a window has seen, how many batches were skipped, and the numbers that decide how steps go on."""
        local, objective = self._local, self._local.objective
        return {
            "seed": local.seed, "max_norm": local.max_norm, "max_value": local.max_value,
            "freeze": list(objective.freeze), "build": local.build,
            "class_weights": None if objective.class_weights is None else objective.class_weights.tolist(),
            "accumulate": local.accumulate, **{name: getattr(local, name) for name in _COUNTERS},
        }  # fmt: skip

    def _load_rows(self, values: Values) -> Callable[[], None]:
        mine = self._rows()
        check_names("rows", values, mine)
        check_equal("rows", values, {name: value for name, value in mine.items() if name not in _COUNTERS})

        def load() -> None:
            self._local.reset()
            for name in _COUNTERS:
                setattr(self._local, name, values[name])

        return load
