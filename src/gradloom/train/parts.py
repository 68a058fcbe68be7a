"""TrainerParts: the parts of a trainer in the state of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..base.errors import TrainError
from ..base.schema import MOST, any_number, items, number, optional, table, text, whole
from ..graph.stored import Stored
from ..optim.state import OptimizerState
from ..runs.module_state import MODULES, ModuleState
from ..runs.state import (
    AVERAGE,
    OPTIMIZER_OF_MODULE,
    PARAMETERS,
    WINDOW,
    TrainState,
    check_equal,
    check_names,
    finite,
    load_average,
    load_optimizer,
    load_parameters,
    load_window,
    of_average,
    of_optimizer,
    of_parameters,
    of_window,
)
from .objective import Objective
from .steps import Steps

COUNTERS = ("skipped", "in_window", "held", "window_rows")  # of Steps
ROWS = table({
    "seed": whole(-MOST), "max_norm": number(0, finite=False), "max_value": number(0, finite=False),
    "freeze": items(text), "build": text, "accumulate": whole(1), "class_weights": optional(items(any_number)),
    **dict.fromkeys(COUNTERS, whole()),
})  # fmt: skip

Values = Mapping[str, Any]


class TrainerParts:
    """Model, attributes of its modules, optimiser, open window, average of the weights, and row counters of a window.

    written: the arrays of the model that steps have written so far
    """

    def __init__(
        self, objective: Objective, state: OptimizerState, driver: Steps, written: Callable[[], list[Stored]]
    ) -> None:
        self.objective, self.state, self.driver, self.written = objective, state, driver, written
        self.modules = ModuleState(objective.model, objective.loss)

    def register(self, own: TrainState) -> None:
        """Register them as parts of this state."""
        state = self.state
        own.register("model", self._model, self._load_model, finite, schema=PARAMETERS)
        own.register("modules", self.modules.part, self.modules.load, schema=MODULES)
        own.register(
            "optimizer", lambda: self._trained() | of_optimizer(state), self._load_optimizer, finite,
            schema=OPTIMIZER_OF_MODULE,
        )  # fmt: skip
        own.register(
            "window", lambda: of_window(state), lambda values: load_window(values, state), finite, schema=WINDOW
        )
        own.register(
            "average", lambda: of_average(state), lambda values: load_average(values, state), finite, schema=AVERAGE
        )
        own.register("rows", self._rows, self._load_rows, schema=ROWS)

    def _model(self) -> dict[str, Any]:
        return of_parameters(self.objective.named(), self.written())

    def _load_model(self, values: Values) -> Callable[[], None]:
        return load_parameters(values, self._model())

    def _trained(self) -> dict[str, Any]:
        """Which parameters of a Module the optimiser counts, and which are trainable now."""
        named = self.objective.named()
        if named and self.state.chosen is None:
            self.state.follow(named)
        names = {p.stored: name for name, p in named.items()}
        joined = [names[p.stored] for p in self.state.parameters if p.stored in names]
        return {"joined": joined, "trainable": [name for stored, name in names.items() if stored.role == "trained"]}

    def _load_optimizer(self, values: Values) -> Callable[[], None]:
        """Restore `trainable` of the parameters first, so that numbers name the same ones."""
        named, own = self.objective.named(), ("joined", "trainable")
        check_names("model", named, {*values["joined"], *values["trainable"]} | named.keys())
        before = {p: p.trainable for p in named.values()}
        for name, p in named.items():
            p.trainable = name in values["trainable"]
        if self.state.chosen is None and named:
            self.state.follow(named, values["joined"])
        try:
            return load_optimizer({name: value for name, value in values.items() if name not in own}, self.state)
        except BaseException:
            for p, trainable in before.items():
                p.trainable = trainable
            raise

    def _rows(self) -> dict[str, Any]:
        """Counters of the window and of skipped batches, and the settings of steps."""
        driver, objective = self.driver, self.objective
        settings = {
            "seed": driver.seed, "max_norm": driver.max_norm, "max_value": driver.max_value,
            "freeze": list(objective.freeze), "build": driver.build, "accumulate": driver.accumulate,
            "class_weights": None if objective.class_weights is None else objective.class_weights.tolist(),
        }  # fmt: skip
        return settings | {name: getattr(driver, name) for name in COUNTERS}

    def _load_rows(self, values: Values) -> Callable[[], None]:
        mine = self._rows()
        if values["in_window"] >= max(1, values["accumulate"]) and values["build"] == "opt":
            raise TrainError(f"load: rows: in_window is {values['in_window']} of {values['accumulate']} micro-batches")
        check_equal("rows", values, {name: value for name, value in mine.items() if name not in COUNTERS})

        def load() -> None:
            self.driver.reset()
            for name in COUNTERS:
                setattr(self.driver, name, values[name])

        return load
