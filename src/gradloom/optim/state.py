"""OptimizerState: state of an optimiser between steps, of the trainer and of the eager `step`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

import numpy as np

from .. import ops
from ..base import locks
from ..base.errors import GradientError
from ..graph.declaration import Spec
from ..graph.leaves import Parameter, setting, stored_value
from ..graph.stored import Stored, arrays_locked, copies, zeros
from ..graph.value import Value
from .average import Average
from .rule import UpdateInputs, UpdateRule
from .schedules import Memory, Plateau
from .state_checks import MEMORY, Kept, KnownParameter, Named, are_ordered, check_fit, check_same, checked
from .step_counts import STEP, StepCounts
from .window import Window


class OptimizerState:
    """Arrays per parameter (moments), sums of gradients over an accumulation window and their weight, and counts.

    Arrays are made when a parameter is first updated or accumulated: what no loss reaches takes no memory.
    chosen: the parameters to train, when they are known and no other may join.
    """

    def __init__(self, optimizer: UpdateRule, chosen: Sequence[Parameter] | None = None) -> None:
        self.optimizer = optimizer
        self.steps = 0  # optimiser steps done since the last reset
        self.epoch = 0  # for schedules
        self.parameters: list[Parameter] = []  # in the order in which files count them
        self.moments: dict[Stored, dict[str, Parameter]] = {}
        self.sums: dict[Stored, Parameter] = {}
        self.weight = stored_value(Stored("accumulated weight", np.zeros(())))
        self.memories: dict[str, Memory] = {
            name: value.remember() for name, value in optimizer.settings.items() if isinstance(value, Plateau)
        }
        self._known: set[Stored] = set()
        self._rules: dict[Stored, UpdateRule] = {}  # of the parameters that were placed
        self._names: dict[str, tuple[int, ...]] = {}  # of all that were placed: name -> shape, of a stack that of each
        self._loaded: dict[str, np.ndarray] = {}  # of parameters that are not registered yet
        self._loaded_missed: dict[int, int] = {}  # of parameters without their moments yet, by number
        self._expected: list[Named] = []  # name and shape of each parameter of the state that was loaded, in order
        self.window = Window()
        self.step_counts = StepCounts()
        self.average: Average | None = None  # of the weights, where one is asked for
        self.claim = locks.Claim(
            "this trainer or optimiser", "one for each thread, or to wait until the call of the other has ended"
        )
        self.chosen: frozenset[Stored] | None = None
        if chosen is not None:
            self.register(chosen)
            self.chosen = frozenset(self._known)
            for stored in self.chosen:
                stored.has_optimizer = True

    def __repr__(self) -> str:
        return f"OptimizerState({type(self.optimizer).__name__}, {len(self.parameters)} parameters, {self.steps} steps)"

    def register(self, parameters: Iterable[Parameter]) -> None:
        """Parameters that may be trained: their order is that of the state's files."""
        for p in parameters:
            if p.stored not in self._known:
                if len(self.parameters) < len(self._expected):
                    check_same(len(self.parameters), self._expected[len(self.parameters)], (p.stored.name, p.shape))
                self._known.add(p.stored)
                self.parameters.append(p)
                self._take_loaded(len(self.parameters) - 1)

    def follow(self, named: Mapping[str, Parameter], joined: Iterable[str] | None = None) -> None:
        """These are the model's parameters now, in order, trainable or not. New ones that are trainable join, and
        others leave: they are no part of files and of the open window any more. One that comes back finds its moments.
        joined: the names of all that have joined so far, from another state."""
        self.place(named.items(), whole=False)
        if joined is not None:
            self._known = {named[name].stored for name in joined}
        present = {p.stored: p for p in named.values()}
        order = [p for p in present.values() if p.trainable or p.stored in self._known]
        if [p.stored for p in order] == [p.stored for p in self.parameters]:
            return
        self.parameters, self._known = order, {p.stored for p in order}
        for stored in [s for s in self.window.parameters if s not in present]:
            del self.window.parameters[stored]
        for i in range(len(order)):
            self._take_loaded(i)

    def place(self, named: Iterable[tuple[str, Parameter]], whole: bool = True) -> None:
        """Find each parameter's group by its name; one that was placed stays where it is. whole: these are all, so that
        a group without any of them is a SettingError."""
        if self.optimizer.placing is None:
            return
        for name, p in named:
            self._names[name] = p.stored.each
            if p.stored not in self._rules:
                self._rules[p.stored] = self.optimizer.placing.rule_of(name, p.stored.each)
        if whole:
            self.optimizer.placing.check(self._names.items())

    def fresh(self) -> OptimizerState:
        """A state without memory, of the same parameters in the same groups."""
        made = OptimizerState(self.optimizer, self.parameters)
        made._rules, made._names = dict(self._rules), dict(self._names)
        return made

    def group_of(self, p: Parameter) -> int:
        """The number of its rule among `rules`."""
        return self.rules.index(self.rule_of(p))

    def rule_of(self, p: Parameter) -> UpdateRule:
        """What updates a parameter."""
        if self.optimizer.placing is None:
            return self.optimizer
        if p.stored not in self._rules:
            self.place([(p.stored.name, p)], whole=False)
        return self._rules[p.stored]

    def _kept(self) -> Kept:
        """This state's description, for the checks of a state that is to be loaded."""
        placing = self.optimizer.placing
        parameters = [KnownParameter(p.stored.name, p.shape, p.name, self._layout_of(p)) for p in self.parameters]

        def layout_of(name: str, shape: tuple[int, ...]) -> Mapping[str, Spec]:
            each = self._names.get(name, shape)
            return (self.optimizer if placing is None else placing.rule_of(name, each)).layout_of(shape, each)

        signed = {name for rule in self.rules for name in rule.state_names if name not in rule.nonnegative}
        return Kept(
            self._kind(), self._kinds(), frozenset(self._kinds()) - signed, parameters, self.chosen is not None,
            tuple(self.memories), layout_of,
        )  # fmt: skip

    def _layout_of(self, p: Parameter) -> Mapping[str, Spec]:
        return self.rule_of(p).layout_of(p.shape, p.stored.each)

    def _kinds(self) -> tuple[str, ...]:
        """The names of all that is kept of any parameter."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.state_names))

    @property
    def rules(self) -> list[UpdateRule]:
        """The optimiser and the rules of its groups."""
        return [self.optimizer] if self.optimizer.placing is None else self.optimizer.placing.rules

    def _kind(self) -> str:
        """The kinds of optimisers, the first its own."""
        return ", ".join(dict.fromkeys(type(rule).__name__ for rule in self.rules))

    def settings(self) -> dict[str, float]:
        """The optimiser's settings for the next step: "opt.lr" -> number."""
        numbers = self.optimizer.at(self.steps, self.epoch, self.memories)
        return numbers | self.step_counts.settings(self.steps) if self.step_counts.missed else numbers

    def rates(self, step: int, epoch: int) -> dict[str, float]:
        """The learning rates of one step by name: "lr", and "head.*.lr" of a parameter group that has its own. step and
        epoch count from 0."""
        numbers = self.optimizer.at(step, epoch, self.memories)
        names = dict.fromkeys(rule.keys.get("lr", "lr") for rule in self.rules)
        return {name: numbers[f"opt.{name}"] for name in names}

    def settings_ahead(self, count: int) -> dict[str, float | np.ndarray]:
        """The settings of the next `count` steps of this epoch: a number, or one for each where it changes."""
        optimizer, steps = self.optimizer, range(self.steps, self.steps + count)
        columns: dict[str, float | np.ndarray] = {**optimizer.settings.constants}
        for name, value in optimizer.settings.schedules.items():
            if name in self.memories:
                column = [optimizer.scheduled(name, step, self.epoch, self.memories) for step in steps]
            else:
                column = [value(step, self.epoch) for step in steps]
                for number in {min(column), max(column)} if are_ordered(column) else column:
                    optimizer.settings.checked(name, number)
            columns[f"opt.{name}"] = np.array(column, np.float64)
        columns[STEP] = np.arange(self.steps + 1, self.steps + 1 + count)
        return columns | self.step_counts.settings_ahead(self.steps, count)

    def advance(self, parameters: Collection[Parameter], count: int = 1) -> None:
        """Count `count` steps that updated these parameters."""
        self.steps += count
        if len(parameters) < len(self.moments):
            self.step_counts.add(parameters, count)

    def with_missed_steps(self, parameters: Collection[Parameter]) -> tuple[Stored, ...]:
        """Those of these parameters, about to be updated, whose rule counts steps and that missed some: the nodes of
        the update depend on them."""
        if self.steps:
            for p in parameters:
                if p.stored not in self.moments:
                    self._moments_of(p)
        return self.step_counts.among(parameters)

    def update_key(self, updated: Collection[Parameter]) -> Hashable:
        """Key of the nodes of an update of these parameters: equal keys, equal nodes."""
        return self.ema_only(updated), self.with_missed_steps(updated)

    def observe(self, loss: float) -> None:
        """An epoch has ended with this loss: for Plateau schedules."""
        for name, value in self.optimizer.settings.items():
            if isinstance(value, Plateau):
                value.observe(self.memories.setdefault(name, value.remember()), loss)

    # ---- nodes ---------------------------------------------------------------------------------------------

    def update(self, parameters: Sequence[Parameter], grads: Sequence[Value], weight: Value) -> tuple[Value, ...]:
        """Update nodes for these parameters, one for each rule, and one for each parameter that has missed steps which
        its rule counts; grads are sums, divided by `weight` (a scalar)."""
        if self.optimizer.placing is not None and not self._names:  # a model that is a function
            self.place([(p.stored.name, p) for p in parameters])
        by_rule: dict[tuple[UpdateRule, str], list[tuple[Parameter, Value]]] = {}
        for p, g in zip(parameters, grads, strict=True):
            self._moments_of(p)
            by_rule.setdefault((self.rule_of(p), self.step_counts.setting_of(p)), []).append((p, g))
        written: list[Value] = []
        for (rule, t), pairs in by_rule.items():
            kept = [self.moments[p.stored] for p, _ in pairs]
            state = {name: [arrays[name] for arrays in kept if name in arrays] for name in rule.state_names}
            written += rule.update(UpdateInputs([p for p, _ in pairs], [g for _, g in pairs], weight, state, t))
        if self.average is not None:
            rest = self.ema_only(parameters)
            others = [p for p in self.parameters if p.stored in rest]
            written += self.average.updates([*parameters, *others], written)
        return tuple(written)

    def ema_only(self, updated: Iterable[Parameter]) -> tuple[Stored, ...]:
        """Parameters whose average moves in a step that does not update them: frozen since, or not reached."""
        if self.average is None:
            return ()
        mine, means = {p.stored for p in updated}, self.average.arrays
        return tuple(p.stored for p in self.parameters if p.stored in means and p.stored not in mine)

    def accumulate(
        self, parameters: Sequence[Parameter], grads: Sequence[Value], weight: Value | None
    ) -> tuple[Value, ...]:
        """Update nodes that add grads to the sums, and weight, if there is one, to theirs (then the last output).

        With the setting "keep" 0 they write instead: the first micro-batch of a window.
        """
        sums = self.sums_of(parameters)
        pairs = [v for pair in zip(sums, grads, strict=True) for v in pair]
        if weight is not None:
            pairs += [self.weight, weight]
        return ops.accumulate(setting("keep"), *pairs)

    def sums_of(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """The arrays that sum up the gradients of these parameters over a window."""
        for p in parameters:
            if p.stored not in self.sums:
                sums = Stored(f"{p.stored.name}.acc", zeros(p.shape))
                self.sums[p.stored] = stored_value(sums)
        return [self.sums[p.stored] for p in parameters]

    def join(self, parameters: Iterable[Parameter], first: bool) -> None:
        """Gradients of these parameters are about to be accumulated; `first`: they open a window."""
        if first:
            self.window.clear()
        else:
            self.clear_late(parameters)
        self.window.add(parameters)

    def check_trained(self, what: str) -> None:
        """GradientError while the model holds the average of its weights."""
        if self.average is not None and self.average.is_shown:
            raise GradientError(
                f"{what}: the model holds the average of its weights (ema=); need optimizer.show_average(False) before"
            )

    def others(self, parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
        """Other parameters in the window, without those frozen since."""
        mine = {p.stored for p in parameters}
        return tuple(p for stored, p in self.window.parameters.items() if stored not in mine and p.trainable)

    def clear_late(self, parameters: Iterable[Parameter]) -> None:
        """What joins a window that is open finds nothing of an earlier one in its sum."""
        _clear(
            [
                self.sums[p.stored]
                for p in parameters
                if p.stored not in self.window.parameters and p.stored in self.sums
            ]
        )

    def _moments_of(self, p: Parameter) -> dict[str, Parameter]:
        self.register([p])  # which may bring loaded moments
        if p.stored not in self.moments:
            made = self.rule_of(p).make_state([p])
            self.moments[p.stored] = {name: arrays[0] for name, arrays in made.items() if arrays}
            if self.rule_of(p).counts_steps:
                self.step_counts.begin(p.stored, self.steps)
        return self.moments[p.stored]

    # ---- forgetting, saving, loading -----------------------------------------------------------------------

    def drop_sums(self) -> None:
        """Zero the accumulated gradients."""
        _clear([*self.sums.values(), self.weight])

    def reset(self) -> None:
        """Forget moments, steps and what plateaus have seen, as if no step had been taken; `epoch` stays."""
        self.steps = 0
        self.step_counts.restart(0)
        self._loaded.clear()
        self._loaded_missed.clear()
        self._expected = []
        for name, value in self.optimizer.settings.items():
            if isinstance(value, Plateau):
                self.memories[name] = value.remember()
        _clear([moment for arrays in self.moments.values() for moment in arrays.values()])

    def state_dict(self) -> dict[str, np.ndarray]:
        """State required for the next step, as copies: "steps" and "epoch" (i64), "m.3" (f32, state m of parameter 3,
        as far as it has been updated; of moments in 8 bits "m_code.3", u8, and "m_scale.3", f32), "missed.3" (i64, the
        steps taken without it, where there are some and its rule counts them), "plateau.lr" (f64[4]), and "optimizer"
        (i8, JSON in ASCII): the kind of optimiser, the names of its states, and the names and shapes of the parameters
        in order. Accumulated gradients that are not applied are no part of it."""
        with locks.building:  # no step of a loop of the user's in between
            kept = {"steps": np.array(self.steps, np.int64), "epoch": np.array(self.epoch, np.int64)}
            named = {
                f"{name}.{i}": moment.stored
                for i, p in enumerate(self.parameters)
                for name, moment in self.moments.get(p.stored, {}).items()
            }
            kept |= zip(named, copies(named.values()), strict=True)
        kept |= {name: np.array(count, np.int64) for name, count in self.missed_steps().items()}
        kept |= self.remembered(self.memories)
        names: list[Named] = [(p.stored.name, p.shape) for p in self.parameters]
        about = {
            "kind": self._kind(),
            "keeps": self._kinds(),
            "parameters": names + self._expected[len(names) :],
        }
        kept["optimizer"] = np.frombuffer(json.dumps(about).encode("ascii"), np.int8).copy()
        return kept | {name: array.copy() for name, array in self._loaded.items()}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore from the result of state_dict, with the same optimiser and the same parameters in the same order.

        Raises GraphError for the state of another kind of optimiser or of other parameters (parameters without a name
        are identified by their shape; "weight" is "0.weight" before its module has a place), ShapeError and DTypeError
        for arrays that do not fit; then nothing is changed. A state without "optimizer" is compared by its arrays.
        """
        self.loading(arrays)()

    def missed_steps(self) -> dict[str, int]:
        """Missed steps of the parameters that have some, as in state_dict: "missed.3" -> count."""
        missed = self.step_counts.missed
        mine = {i: missed[p.stored] for i, p in enumerate(self.parameters) if p.stored in missed}
        return {f"missed.{i}": count for i, count in (mine | self._loaded_missed).items()}

    def remembered(self, memories: Mapping[str, Memory]) -> dict[str, np.ndarray]:
        """The memories of plateaus as in state_dict: "plateau.lr" -> f64[4]."""
        return {f"plateau.{name}": np.array([memory[k] for k in MEMORY]) for name, memory in memories.items()}

    def loading(self, arrays: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """load_state_dict in two parts: the checks, and the function that is returned, which takes the state over."""
        given = checked(arrays, self._kept())

        def load() -> None:
            with locks.building, self.claim:
                self.reset()
                self.drop_sums()
                self.window.clear()
                self.steps, self.epoch = given.steps, given.epoch
                self.step_counts.restart(self.steps)  # but for those whose moments are loaded
                self.memories.update(given.memories)
                self._expected = given.parameters
                self._loaded = {name: array.copy() for name, array in given.moments.items()}
                self._loaded_missed = given.missed.copy()
                for i in range(len(self.parameters)):
                    self._take_loaded(i)

        return load

    def _take_loaded(self, i: int) -> None:
        """Give parameter i the moments that were loaded for it."""
        if not self._loaded:
            return
        p = self.parameters[i]
        for kind, spec in self._layout_of(p).items():
            array = self._loaded.get(f"{kind}.{i}")
            if array is not None:
                check_fit(f"{kind}.{i}", array, spec, p.name)
                self._moments_of(p)[kind].stored.write(array)
                del self._loaded[f"{kind}.{i}"]
                if self.rule_of(p).counts_steps:
                    self.step_counts.put(p.stored, self._loaded_missed.get(i, 0))
        self._loaded_missed.pop(i, None)


def _clear(arrays: Iterable[Parameter]) -> None:
    """Zero arrays of the optimiser's own, between two steps."""
    stored = [a.stored for a in arrays]
    with arrays_locked((), stored):
        for one in stored:
            one.write(0)
