"""Checkpoint: bit-identical save and resume of the user's own training loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from ..base import locks
from ..base.arguments import as_whole, what_is
from ..base.errors import DataError, SettingError, TrainError, one_line
from ..base.schema import Schema, flag, mapping, table
from ..eager.gradients import Gradients
from ..graph.leaves import Parameter
from ..graph.stored import replace
from ..nn.module import Module
from ..optim.optimizer import Optimizer
from ..optim.state import OptimizerState
from ..plan.memory_map import program_maps
from .checkpoint import print_line
from .folder import RunFolder
from .generators import generator_state, load_generator, state_of
from .identity import environment_differences, environment_of
from .module_state import MODULES, ModuleState
from .plan_file import PLANS, plan_file
from .schemas import ABOUT_LOOP
from .state import (
    ANY,
    OPTIMIZER,
    PARAMETERS,
    WINDOW,
    Check,
    Load,
    Part,
    TrainState,
    check_names,
    finite,
    load_optimizer,
    load_parameters,
    load_window,
    matching,
    need_schema,
    of_optimizer,
    of_parameters,
    of_window,
    register_draws,
)

Take = Callable[[], None]
_VALUES = "given values"  # a part; names of arguments have no space
TRAINABLE = mapping(flag)


class Checkpoint:
    """Checkpoints of your own training loop. Objects that have a state are given once, by name.

        checkpoint = gl.train.Checkpoint("runs/a", model=net, optimizer=opt, loader=loader, early=stop)
        step = checkpoint.load() or 0
        for epoch in range(loader.epoch, 10):
            for x, y in loader:
                ...
                step += 1
                if step % 100 == 0:
                    checkpoint.save(step)
        checkpoint.close()

    A loop that was stopped anywhere and is resumed from its last checkpoint ends with the same bits.

    objects    a Module (parameters, buffers, modes, attributes that are numbers, texts or random generators); an
               optimiser with parameters (moments, counts, settings, plateaus, an open accumulation window); a Trainer
               (its model, optimiser, window and counters); a Parameter, or a list or dict of such; a Dataset (the order
               of its rows); a DataLoader (epoch and place in it); a numpy.random.Generator; an object with state(),
               which returns a dict of arrays, numbers, texts, None, lists and dicts, and load_state(values)
    folder     of the run, see RunFolder; keep: number of newest checkpoints that are kept, besides the best
    overwrite  without `load`, a run in the folder that has not finished is replaced instead of refused
    on_error   of the writer, such as a full disk: "warn", a line on stderr; "stop", the next save raises it

    What eager code draws, by gl.seed and a count, belongs to each checkpoint. Random numbers of Python's `random` or
    NumPy's global ones do not: use a Generator. SettingError for an object that cannot be saved, by its name.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, overwrite: bool = False, on_error: str = "warn",
        **objects: Any,
    ) -> None:  # fmt: skip
        self._path = folder
        self._keep, self._overwrite, self._on_error = as_whole("keep", keep, 1), overwrite, on_error
        self._run: RunFolder | None = None
        self.values: dict[str, Any] = {}
        self._modules = [each for each in objects.values() if isinstance(each, Module)]
        self._trainers = [each for each in objects.values() if _is_trainer(each)]
        self._modules += [each.model for each in self._trainers if isinstance(each.model, Module)]
        self._attributes: list[ModuleState] = []
        self._own: list[tuple[Any, Mapping[str, Any]]] = []  # to load: objects with load_state, their values
        self._state = TrainState()
        if not objects:
            raise SettingError("Checkpoint: got no objects to save; need such as model=net, optimizer=opt")
        for name, each in objects.items():
            self._register(name, each)
        register_draws(self._state)
        self._state.register(_VALUES, lambda: self.values, self._load_values, schema=ANY)

    # ---- parts of the state -------------------------------------------------------------------------------------

    def _register(self, name: str, each: Any) -> None:
        parts: dict[str, tuple[Part, Load, Schema]] = {}
        checks: dict[str, Check] = {}
        if isinstance(each, Module):
            parts[name] = (
                lambda: of_parameters(_named(each)),
                lambda values: load_parameters(values, of_parameters(_named(each))),
                PARAMETERS,
            )
            modules = ModuleState(each)
            self._attributes.append(modules)
            parts[f"{name} modules"] = modules.part, modules.load, MODULES
            parts[f"{name} trainable"] = *_trainable(lambda: _named(each)), TRAINABLE
            checks[name] = finite
        elif isinstance(each, Optimizer):
            state = each.state
            if state is None:
                kind = type(each).__name__
                need = f"need {kind}(model.parameters(), ...), or the Trainer that has it"
                raise SettingError(f"Checkpoint: {name} is an optimiser that was made without parameters; {need}")
            parts[name] = lambda: of_optimizer(state), lambda values: load_optimizer(values, state), OPTIMIZER
            parts[f"{name} trainable"] = *_trainable(lambda: _by_name(state.parameters)), TRAINABLE
            parts[f"{name} window"] = lambda: of_window(state), lambda values: _load_open_window(values, state), WINDOW
            checks |= dict.fromkeys((name, f"{name} window"), finite)
        elif _is_trainer(each):
            self._attributes.append(each.modules)
            parts[name] = each.train_state.entries, each.train_state.loading, ANY
            checks[name] = lambda values: each.train_state.fault({n.partition(".")[2]: v for n, v in values.items()})
        elif isinstance(each, np.random.Generator):
            parts[name] = (
                lambda: {"state": state_of(each)},
                lambda values: load_generator(name, values["state"], each),
                table({"state": generator_state}),
            )
        elif _is_parameters(each):
            stored = {key: p.stored for key, p in _by_name(each).items()}
            parts[f"{name} trainable"] = *_trainable(lambda: _by_name(each)), TRAINABLE
            parts[name] = lambda: stored, lambda values: _replacing(name, values, stored), PARAMETERS
            checks[name] = finite
        elif callable(getattr(each, "state", None)) and callable(getattr(each, "load_state", None)):
            parts[name] = lambda: _state_of(name, each), lambda values: self._own_load(name, each, values), ANY
        else:
            need = (
                "need a Module, an optimiser, a Trainer, parameters, a Dataset or DataLoader, a numpy Generator, or an "
                "object with state() and load_state(); plain values are given to save"
            )
            raise SettingError(f"Checkpoint: {name} is {what_is(each)}, which cannot be saved; {need}")
        for part, (get, load, schema) in parts.items():
            self._state.register(part, get, load, checks.get(part), schema=schema)

    def _own_load(self, name: str, each: Any, values: Mapping[str, Any]) -> Take:
        if not values and _state_of(name, each):
            raise TrainError(f"load: {name} is not in the checkpoint; need the objects that were saved")
        self._own.append((each, values))
        return lambda: None  # `_take` does it

    def _load_values(self, values: Mapping[str, Any]) -> Take:
        def take() -> None:
            self.values = dict(values)

        return take

    # ---- saving and loading --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Checkpoint({os.fspath(self._path)!r})"

    def load(self) -> int | None:
        """Load the newest checkpoint that is complete. Returns its step; None, with a line on stderr, without any.

        All objects are restored, and the values of `save` are in `values`. TrainError naming the difference where an
        object has another structure, and nothing is changed; FileError as for RunFolder. To be called once, before the
        loop and before any save. Another version, instruction set, GRADLOOM_PRECISION or GRADLOOM_FLUSH is reported on
        stderr: bits may differ.
        """
        if self._run is not None:
            raise TrainError("Checkpoint.load: the run has begun; need load once, before any save")
        run = self._begin(resume=True)
        saved = run.resumed
        if saved is not None:
            try:
                need_schema(ABOUT_LOOP, saved.about, f"{saved.path}: about")
                self._take(saved.entries)
            except BaseException:
                run.end("failed")
                raise
            other = environment_differences(_environment(), saved.about.get("environment", {}))
            if other:
                run.note_other(other)
                print_line(f"{self._path}: {'; '.join(other)}: the run continues, the same bits are not promised")
            for warning in filter(None, (each.warning() for each in self._attributes)):
                print_line(f"{self._path}: {warning}")
        self._run = run
        return None if saved is None else saved.step

    def _begin(self, resume: bool) -> RunFolder:
        run = RunFolder(
            self._path, "loop", resume=resume, overwrite=self._overwrite, keep=self._keep, on_error=self._on_error
        )
        if self._trainers:
            run.files[PLANS] = lambda: plan_file(program_maps(p for each in self._trainers for p in each.plans))
        return run

    def _take(self, entries: Mapping[str, Any]) -> None:
        """Load all, or nothing: after an error of an object's own load_state those before it are as they were."""
        with locks.building:
            self._own.clear()
            take = self._state.loading(entries)
            before = [(each, each.state()) for each, _ in self._own]
            try:
                for each, values in self._own:
                    each.load_state(values)
            except BaseException:
                for each, values in before:
                    each.load_state(values)
                raise
            take()

    def save(self, step: int | None = None, /, *, best: bool = False, **values: Any) -> None:
        """Save a checkpoint after this step, between two optimiser steps, in a background thread; see Checkpoints.

        values: arrays and plain values of your own, in `values` after a load. best: no earlier one was as good; the
        newest best one is kept. Weights, buffers, moments or sums that are not finite are not saved: an error like that
        of a full disk (see on_error). Raises DataError for what cannot be saved, by name; FileError for a folder that
        holds an unfinished run which was not loaded; SettingError for a value named step in addition to the step.
        """
        if step is not None and "step" in values:
            value = one_line(values["step"])
            raise SettingError(
                f"Checkpoint.save: step={value} together with step {step}; need another name for the value"
            )
        step = as_whole("step", values.pop("step", None) if step is None else step, 0)
        if self._run is None:
            self._run = self._begin(resume=False)
        self._run.checkpoints.wait()  # so that no two copies are held
        with locks.building:
            for module in self._modules:
                module.ensure_init()
            self.values = values
            entries = self._state.collect()
        about = {"environment": _environment()}
        self._run.note(latest={k: v for k, v in values.items() if type(v) in (int, float)})

        def checked() -> dict[str, Any]:
            self._state.need_good(entries)
            return {}

        self._run.checkpoints.save(step, entries, about, best, checked)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk."""
        if self._run is not None:
            self._run.checkpoints.wait()

    def close(self) -> None:
        """The loop is finished: wait for the writer, and release the folder."""
        self._end("finished")

    def _end(self, state: str, error: BaseException | None = None) -> None:
        if self._run is not None:
            self._run.end(state, error)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._end("finished" if kind is None else "interrupted" if interrupted else "failed", error)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    return {name: value for name, value in environment_of({}).items() if name != "backend"}


def _named(module: Module) -> dict[str, Parameter]:
    return module.named_parameters() | module.named_buffers()


def _is_trainer(each: Any) -> bool:
    """A gl.Trainer, by the attributes that are used here."""
    return isinstance(getattr(each, "train_state", None), TrainState) and isinstance(each.modules, ModuleState)


def _is_parameters(each: Any) -> bool:
    several = list(each.values()) if isinstance(each, dict) else each if isinstance(each, (list, tuple)) else [each]
    return bool(several) and all(isinstance(p, Parameter) for p in several)


def _by_name(each: Any) -> dict[str, Parameter]:
    if isinstance(each, Parameter):
        return {"value": each}
    return dict(each) if isinstance(each, dict) else {str(i): p for i, p in enumerate(each)}


def _trainable(get: Callable[[], Mapping[str, Parameter]]) -> tuple[Part, Load]:
    """The part with the `trainable` of each parameter: a loop may freeze some."""

    def load(values: Mapping[str, Any]) -> Take:
        parameters = get()
        check_names("trainable", values, parameters)

        def take() -> None:
            for key, p in parameters.items():
                if p.trainable != values[key]:
                    p.trainable = values[key]

        return take

    return lambda: {key: p.trainable for key, p in get().items()}, load


def _replacing(name: str, values: Mapping[str, Any], stored: Mapping[str, Any]) -> Take:
    arrays = matching(name, values, stored)
    return lambda: replace(arrays)


def _load_open_window(values: Mapping[str, Any], state: OptimizerState) -> Take:
    """As load_window; the step of a window that is open is an eager one."""
    take = load_window(values, state)

    def load() -> None:
        take()
        state.window.gradients = Gradients if state.window.parameters else None

    return load


def _state_of(name: str, each: Any) -> Mapping[str, Any]:
    values = each.state()
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise DataError(f"Checkpoint: {name}.state() gave {what_is(values)}; need a dict with texts as keys")
    return values
