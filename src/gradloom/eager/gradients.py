"""Gradients: the result of a tape's backward, and the one program that computes them and an optimiser's step."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..base import locks
from ..base.errors import GradientError, NonFiniteError, SettingError
from ..graph.leaves import Parameter, constant, setting
from ..graph.leaves import input as graph_input
from ..graph.stored import Stored
from ..graph.value import Value, describe, graph_mode
from ..optim.clip import clip_values, held_between, is_one
from ..optim.state import OptimizerState
from ..step.step import guard, update
from .cache import slot_name
from .options import TapeOptions
from .program import EagerProgram, run_alone
from .tensors import Numbers, Tensor
from .trace import Trace

Build = Callable[[list[Value], Value], Sequence[Value]]
WEIGHT = "gradients.weight"  # the setting that gradients are divided by
LIMIT = "gradients.limit"  # and the one that bounds their elements before


@dataclass(frozen=True, eq=False)
class Slopes:
    """The gradient graph of a loss: built once for a structure."""

    loss: Value  # a scalar
    keys: tuple[Stored | int, ...]  # a parameter's array, or which of the watched tensors
    parameters: tuple[Parameter | None, ...]
    symbols: tuple[Value, ...]  # the gradients
    reads: tuple[Parameter, ...]
    at: Mapping[Stored | int, int]
    count: int  # of the parameters


class Gradients(Mapping[Value, "Tensor | None"]):
    """Gradients by parameter and by watched tensor; `grads[p]` is a Tensor, None where the loss does not depend on p.

    They are lazy: an optimiser computes them in the program of its update. The first look at one computes all. Each is
    the gradient of the loss, its elements held between -limit and limit, divided by `weight`: inf and 1, or what
    clipping made of these (numbers or scalar tensors).
    """

    def __init__(self, watched: Mapping[Value, None], trace: Trace, slopes: Slopes) -> None:
        self._watched, self._trace, self._slopes = watched, trace, slopes
        self._weight: Any = 1
        self._limit: Any = math.inf
        self._made: dict[int, weakref.ref[Tensor]] = {}
        self._held: list[Tensor] | None = None
        self._whole: list[Tensor] = []  # the gradients before any clipping and the loss, where they are kept
        trace.slopes.append(weakref.ref(self))

    # ---- the mapping -----------------------------------------------------------------------------------------

    def __getitem__(self, x: Value) -> Tensor | None:
        locks.refuse_in_user_code("a gradient is computed")
        i = self._slopes.at.get(self._key(x))
        with locks.building:
            return None if i is None else self._tensor(i)

    def _key(self, x: Value) -> Stored | int:
        for i, known in enumerate(self._watched):
            if known is x:
                return i
        if isinstance(x, Parameter):
            return x.stored
        seen = describe(x) if isinstance(x, Value) else type(x).__name__
        raise GradientError(f"gradients: {seen} was not watched; need a parameter or a tensor given to tape.watch")

    def _tensor(self, i: int) -> Tensor:
        if self._held is not None:
            return self._held[i]
        if self._is_whole and self._whole:
            return self._whole[i]
        made = self._made.get(i)
        tensor = made() if made is not None else None
        if tensor is None:
            if self._trace.over:
                raise GradientError(
                    f"gradients: {self._trace.changed or 'the tape'} has changed since; ask for them before the step"
                )
            tensor = self._trace.wrap(self._slopes.symbols[i])
            if self._is_limited:
                lowest = -self._limit
                tensor = self._trace.record(ops.maximum, (tensor, lowest), {})
                tensor = self._trace.record(ops.minimum, (tensor, self._limit), {})
            if not is_one(self._weight):
                tensor = self._trace.record(ops.div, (tensor, self._weight), {})
            self._made[i] = weakref.ref(tensor)
        return tensor

    def __contains__(self, x: object) -> bool:
        if x.__class__ is Parameter and not self._watched:
            return x.stored in self._slopes.at
        return isinstance(x, Value) and (x in self._watched or isinstance(x, Parameter)) and (
            self._key(x) in self._slopes.at
        )  # fmt: skip

    def __iter__(self) -> Iterator[Value]:
        watched = list(self._watched)
        for key, p in zip(self._slopes.keys, self._slopes.parameters, strict=True):
            yield watched[key] if isinstance(key, int) else p  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._slopes.keys)

    def __repr__(self) -> str:
        return f"Gradients of {len(self)}: {', '.join(x.name or describe(x) for x in self)}"

    def hold(self, alive: Sequence[Tensor], ends: bool = False) -> list[Tensor]:
        """Where some gradients are alive, create tensors of the others as well, so that one program computes all. ends:
        the trace is about to end; then some need only have been asked for."""
        mine = [t for r in self._made.values() if (t := r()) is not None]
        known = {id(t) for t in alive}
        if self._held is not None or not (any(id(t) in known for t in mine) or (ends and self._made)):
            return []
        self._held = [self._tensor(i) for i in range(len(self))]
        if self._is_whole:
            self._keep_whole()
        return [t for t in (*self._held, *self._whole) if id(t) not in known]

    def _keep_whole(self) -> None:
        held = self._held if self._is_whole else None
        made = held or [self._trace.wrap(g) for g in self._slopes.symbols]
        self._whole = [*made, self._trace.wrap(self._slopes.loss)]

    @property
    def _is_whole(self) -> bool:
        return is_one(self._weight) and not self._is_limited

    @property
    def _is_limited(self) -> bool:
        return isinstance(self._limit, Value) or not math.isinf(self._limit)

    @property
    def weight(self) -> Any:
        """What gradients are divided by."""
        return self._weight

    @weight.setter
    def weight(self, weight: Any) -> None:
        with locks.building:
            self._weight = self._taken(weight)
            self._made, self._held = {}, None

    @property
    def limit(self) -> Any:
        """What bounds the elements of gradients before they are divided; inf: nothing."""
        return self._limit

    @limit.setter
    def limit(self, limit: Any) -> None:
        with locks.building:
            self._limit = self._taken(limit)
            self._made, self._held = {}, None

    def _taken(self, scalar: Any) -> Any:
        """A scalar of a graph (a constant, a setting) as a tensor of this tape."""
        if isinstance(scalar, Value) and not isinstance(scalar, Tensor):
            return self._trace.take(scalar)
        return scalar

    def _lazy(self, scalar: Any) -> Value | None:
        """The symbol of a scalar tensor that this program computes; None for a number."""
        is_lazy = isinstance(scalar, Tensor) and scalar.data is None and scalar.trace is self._trace
        return scalar.symbol if is_lazy else None

    # ---- updates ---------------------------------------------------------------------------------------------

    def commit(
        self, key: Hashable, parameters: Sequence[Parameter], build: Build, settings: Mapping[str, float]
    ) -> None:
        """Run ONE program: all that is alive on the tape, the guard over loss and gradients, and the updates.

        key: identifies `parameters` and `build`; hashable. parameters: those to update, each with a gradient;
        where they are not all, the other gradients are kept for another commit. build(grads, weight) makes the update
        nodes from one gradient (a graph value) per parameter, to be divided by the scalar `weight`; it is called only
        when this structure was not seen before under this key. settings: of the nodes that build made, by name. Raises
        NonFiniteError, naming the first bad node, when the loss or a gradient is not finite: then nothing is written.
        """
        locks.refuse_in_user_code("an optimizer steps")
        trace = self._trace
        with locks.building:
            computed = self._whole and all(t.data is not None for t in self._whole)
            if trace.over and not computed:
                raise GradientError(
                    f"step: {trace.changed or 'the tape'} has changed since backward; need a new loss and its backward"
                )
            if not self._whole and len(parameters) < self._slopes.count:
                self._keep_whole()  # another optimiser may want the others
            if computed:
                trace.compute()
                program, alive, slots = self._of_computed(key, parameters, build)
            else:
                alive, slots = trace.alive(), trace.slots
                program = self._of_all(key, parameters, build, alive)
            if not isinstance(self._weight, Tensor) or WEIGHT in program.names:
                settings = {**settings, WEIGHT: float(self._weight)}
            if LIMIT in program.names:
                settings = {**settings, LIMIT: float(self._limit)}
            updated = program.writes - trace.writes  # in addition to updates of the model itself
            trace.settle(program.writes)
            try:
                trace.run(program, [(t, t.symbol) for t in alive], slots, settings)
            except NonFiniteError as error:
                trace.drop_effects()
                raise NonFiniteError(f"step: {error}; nothing was written") from None
            except BaseException:
                trace.drop_effects()
                raise
            changed = trace.reader(updated)
            if changed is None:
                trace.remember(alive)
            else:
                trace.release(changed)

    def _of_all(
        self, key: Hashable, parameters: Sequence[Parameter], build: Build, alive: Sequence[Tensor]
    ) -> EagerProgram:
        """The program from the inputs of the tape to the updates."""
        trace, slopes = self._trace, self._slopes
        outputs, effects = tuple(dict.fromkeys([t.symbol for t in alive])), tuple(trace.effects)
        divisor, limit = self._lazy(self._weight), self._lazy(self._limit)

        def make() -> EagerProgram:
            grads = [slopes.symbols[i] for i in self._places(parameters)]
            guard, updates = self._ending(build, slopes.loss, divisor, limit, grads)
            return EagerProgram((*outputs, guard), (*effects, *updates), trace.options)

        how = divisor, self._is_limited, limit, trace.options
        return trace.cache.program((key, slopes, outputs, effects, *how), make)

    def _of_computed(
        self, key: Hashable, parameters: Sequence[Parameter], build: Build
    ) -> tuple[EagerProgram, list[Tensor], list[Numbers]]:
        """The program from gradients that were looked at to the updates."""
        trace, slopes = self._trace, self._slopes

        def make() -> EagerProgram:
            places = self._places(parameters)
            with graph_mode():
                given = [graph_input(slot_name(i), t.shape, t.dtype) for i, t in enumerate(self._whole)]
            guard, updates = self._ending(build, given[-1], None, None, [given[i] for i in places])
            return EagerProgram((guard,), updates, options)

        options = trace.options.of_updates
        program = trace.cache.program((key, slopes, "computed", self._is_limited, options), make)
        return program, [], [t.wherever() for t in self._whole]

    def _places(self, parameters: Sequence[Parameter]) -> list[int]:
        at = self._slopes.at
        missing = next((p for p in parameters if p.stored not in at), None)
        if missing is not None:
            raise GradientError(f"step: the loss does not depend on {missing.name}; need parameters with a gradient")
        return [at[p.stored] for p in parameters]

    def _ending(
        self, build: Build, loss: Value, divisor: Value | None, limit: Value | None, grads: Sequence[Value]
    ) -> tuple[Value, tuple[Value, ...]]:
        """(guard, updates); a divisor or a limit that is not computed is a setting."""
        with graph_mode():
            weight = setting(WEIGHT) if divisor is None else divisor
            finite = guard(loss, weight, grads)
            if self._is_limited:
                grads = held_between(grads, setting(LIMIT) if limit is None else limit)
            return finite, tuple(build(list(grads), weight))

    # ---- an optimiser in a loop of the user's own --------------------------------------------------------------

    def apply(self, state: OptimizerState) -> None:
        """One step of this optimiser; see Optimizer.step."""
        with locks.building, state.claim:
            state.check_trained("step")
            if state.window.parameters:
                raise GradientError(
                    "step: gradients were accumulated since the last step; need accumulate(grads) and step(), or "
                    "zero_grad() to drop them"
                )
            reached = self._reached(state, "step")
            key = state, "step", state.ema_only(reached), state.with_missed_steps(reached)
            self.commit(key, reached, lambda g, w: update(state, reached, g, w), state.settings())
            state.advance(reached)

    def add_to(self, state: OptimizerState, weight: Any = None) -> None:
        """Add these gradients to the sums of the window; see Optimizer.accumulate."""
        _check_weight(weight)
        with locks.building, state.claim:
            self._add_to(state, weight)

    def _add_to(self, state: OptimizerState, weight: Any) -> None:
        state.check_trained("accumulate")
        window, weighted, clipped = state.window, weight is not None, not self._is_whole
        if window.weighted is not None and window.weighted != weighted:
            seen = ("without", "with") if weighted else ("with", "without")
            raise GradientError(
                f"accumulate: gradients {seen[0]} a weight, then {seen[1]} one; all until the step must be alike"
            )
        if weighted and clipped:
            raise GradientError(
                "accumulate: these gradients are clipped; need clip_grad_norm(optimizer) after the last"
            )
        reached = self._reached(state, "accumulate")
        is_open = bool(window.parameters)
        if is_open:
            state.clear_late(reached)

        def build(grads: Sequence[Value], divisor: Value) -> tuple[Value, ...]:
            if clipped:
                grads = [g / divisor for g in grads]
            return state.accumulate(reached, grads, divisor if weighted else None)

        if weighted:
            self.weight = weight
        self.commit((state, "accumulate", weighted, clipped), reached, build, {"keep": float(is_open)})
        window.add(reached)
        window.weighted, window.gradients, window.options = weighted, Gradients, self._trace.options.of_updates

    @staticmethod
    def clip_window(state: OptimizerState, max_norm: float) -> float:
        """The global norm of the accumulated gradients; the step reduces it to max_norm."""
        with locks.building, state.claim:
            weight, _, sums, key = _window(state)
            most, bound = _bound("max_value", state.window.max_value)
            options = TapeOptions(*state.window.options)
            (norm,) = run_alone(
                (state, "norm", bool(bound), *key),
                lambda: ([ops.grad_norm(weight, *clip_values(sums, weight, most))], ()), bound, options,
            )  # fmt: skip
            state.window.max_norm = max_norm
            return float(norm)

    @staticmethod
    def apply_window(state: OptimizerState) -> None:
        """One step of this optimiser with the accumulated gradients."""
        with locks.building, state.claim:
            state.check_trained("step")
            weight, parameters, sums, key = _window(state)
            max_norm, norm_bound = _bound("max_norm", state.window.max_norm)
            max_value, value_bound = _bound("max_value", state.window.max_value)

            def build() -> tuple[Sequence[Value], tuple[Value, ...]]:
                norm = guard(weight, weight, sums)
                return [norm], update(state, parameters, sums, weight, max_norm, norm, max_value)

            how = state, "apply", bool(norm_bound), bool(value_bound), state.with_missed_steps(parameters)
            run_alone(
                (*how, *key), build, state.settings() | norm_bound | value_bound, TapeOptions(*state.window.options)
            )
            state.window.clear()
            state.advance(parameters)

    def _reached(self, state: OptimizerState, what: str) -> list[Parameter]:
        at, watched = self._slopes.at, self._watched
        reached = [p for p in state.parameters if (p in self if watched else p.stored in at)]
        if not reached:
            raise GradientError(
                f"{what}: the loss depends on none of the {len(state.parameters)} parameters of this optimiser"
            )
        if len(self) > len(reached):
            self._refuse_untrained(what)
        return reached

    def _refuse_untrained(self, what: str) -> None:
        """GradientError for a gradient of a parameter without an optimiser: it would not be trained. One of
        another optimiser is fine: several may share the gradients."""
        missing = [p for p in self if isinstance(p, Parameter) and p.trainable and not p.stored.has_optimizer]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise GradientError(
                f"{what}: the loss reaches a parameter that no optimiser was made with: {describe(missing[0])} "
                f"{missing[0].node.label}{more}; need it among the parameters of one, or frozen: "
                "parameter.trainable = False"
            )


def _window(state: OptimizerState) -> tuple[Value, list[Parameter], list[Value], tuple[Any, ...]]:
    """(weight, parameters, their sums, key of a program) of the accumulated gradients."""
    window = state.window
    parameters = [p for p in state.parameters if p.stored in window.parameters and p.trainable]
    weight: Value = state.weight if window.weighted else constant(np.float32(1.0))
    return weight, parameters, [state.sums[p.stored] for p in parameters], (
        window.weighted, *(p.stored for p in parameters), state.ema_only(parameters)
    )  # fmt: skip


def _bound(name: str, most: float) -> tuple[float | Value, dict[str, float]]:
    """A bound of the window's step as its program reads it, and the setting that it needs; inf needs none."""
    if math.isinf(most):
        return most, {}
    return setting(f"opt.{name}"), {f"opt.{name}": most}


def _check_weight(weight: Any) -> None:
    """SettingError unless it is None, a scalar of a tape, or a finite number of at least 0."""
    if weight is None or isinstance(weight, Value):
        return
    number = np.asarray(weight)
    if number.shape != () or number.dtype.kind not in "fiu" or not 0 <= float(number) < math.inf:
        need = "a finite number of at least 0, or a scalar of the tape"
        raise SettingError(setting="weight", seen=weight, need=need, place="accumulate")
