"""TrainState: the state required for a bit-identical resume, by name.

Each owner registers its part: a trainer its model, optimiser, window and counters; a callback its own state. Two runs
with equal states continue with equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..base.arrays import not_finite
from ..base.errors import DataError, NonFiniteError, TrainError
from ..base.schema import (
    Schema,
    anything,
    array,
    different_texts,
    either,
    flag,
    items,
    mapping,
    number,
    optional,
    plain,
    shown_name,
    table,
    text,
    whole,
)
from ..base.schema import shown as shown_value
from ..eager.draws import load_position, position
from ..graph.leaves import Parameter
from ..graph.stored import Stored, copies, replace
from ..optim.state import OptimizerState
from ..parallel.communicator import checksum

Values = Mapping[str, Any]
Part = Callable[[], Values]  # names -> Stored arrays and plain values: numbers, texts, dicts of such, arrays
Check = Callable[[Values], "str | None"]  # the fault of the values of a part, by their whole names
Load = Callable[[Values], Callable[[], None]]  # checks saved values, and returns a function that restores them
SHOWN = 6  # names in a message

# Schemas of the parts below. "m.3": a number of a parameter, as files count them.
_NUMBERED = r"\.(0|[1-9][0-9]{0,8})"
ANY = mapping(anything)  # of parts whose owner checks the values itself
PARAMETERS = mapping(array())  # compared with the arrays of the model, one by one
_MEMORY = table({"rate": number(0), "best": number(finite=False), "bad": number(0), "cooling": number(0)})
_OPTIMIZER: dict[str, Schema] = {
    "kind": text, "flags": items(mapping(plain)), "steps": whole(), "epoch": whole(),
    "settings": mapping(number(), r"opt\..+"), "schedules": mapping(text), "plateaus": mapping(_MEMORY),
    "groups": items(plain),
}  # fmt: skip
_MOMENTS = {rf"missed{_NUMBERED}": whole(), rf"[A-Za-z_][A-Za-z0-9_]*{_NUMBERED}": array(("float32", "uint8"))}
OPTIMIZER = table(_OPTIMIZER, _MOMENTS, absent=("groups",))
OPTIMIZER_OF_MODULE = table(
    {**_OPTIMIZER, "joined": different_texts, "trainable": different_texts}, _MOMENTS, absent=("groups",)
)
_OPTIONS = either(items(plain, 0), items(plain, 3))  # of eager steps: TapeOptions
WINDOW = table(
    {
        "weighted": optional(flag), "max_norm": number(0, finite=False), "max_value": number(0, finite=False),
        "options": _OPTIONS, "weight": array("float32", shape=()),
    },
    {rf"sum{_NUMBERED}": array("float32")}, absent=("weight",),
)  # fmt: skip
AVERAGE = either(
    table({}),
    table({"decay": number(0, 1), "is_shown": flag, "shown": items(whole())}, {rf"mean{_NUMBERED}": array("float32")}),
)
DRAWS = table({"seed": whole(0, 2**63 - 1), "step": whole()}, absent=("seed", "step"))


class TrainState:
    """The parts of a run's state, each a function that gives it as it is now: names -> arrays (Stored) and values."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._loads: dict[str, Load | None] = {}
        self._checks: dict[str, Check] = {}
        self._schemas: dict[str, Schema] = {}

    def register(
        self, name: str, part: Part, load: Load | None = None, check: Check | None = None, *, schema: Schema = ANY
    ) -> None:
        """Add a part, or replace the one of this name, which has no dot.

        load: called by `load` with the saved values of the part. It changes nothing: it raises TrainError where the
        values do not fit, and returns a function that restores them. Without it a state with this part cannot be
        loaded.
        check: returns the fault of values that no run can be resumed from, such as `finite`; see need_good. A load is
        refused likewise.
        schema: of the values, see base/schema.py. It is checked before `load` is called: `load` may rely on names,
        types and ranges, and itself compares them with the objects that are to take the values. gradloom's own parts
        have one; without it `load` gets the values unchecked.
        """
        assert "." not in name, name
        self._parts[name], self._loads[name], self._schemas[name] = part, load, schema
        if check is not None:
            self._checks[name] = check

    def load(self, entries: Mapping[str, Any], *parts: str) -> None:
        """Restore from the result of `collect`, all parts or these, in the same objects. TrainError naming entries that
        are missing, unknown or of another shape, before anything is changed."""
        self.loading(entries, *parts)()

    def loading(self, entries: Mapping[str, Any], *parts: str) -> Callable[[], None]:
        """`load` in two parts: the checks, and the function that is returned, which restores the state."""
        given: dict[str, dict[str, Any]] = {part: {} for part in parts or self._parts}
        for name, value in entries.items():
            part, _, rest = name.partition(".")
            given.setdefault(part, {})[rest] = value
        unknown = [part for part in given if part not in self._parts]
        if unknown:
            raise TrainError(f"load: the state has the parts {named(unknown)}, which this run does not have")
        takes = []
        for part, values in given.items():
            load = self._loads[part]
            self._need_schema(part, values)
            if load is not None:
                takes.append(load(values))
            elif values or self._parts[part]():
                raise TrainError(f"load: {part} can be saved and not loaded; requires load_state")

        def take_all() -> None:
            for take in takes:
                take()

        return take_all

    def _need_schema(self, part: str, values: Values) -> None:
        """TrainError where the values of a part are not what its schema and its check allow."""
        if not values and (self._loads[part] is None or not self._parts[part]()):  # nothing to check
            return
        need_schema(self._schemas[part], values, f"load: {part}")
        check = self._checks.get(part)
        bad = None if check is None else check({f"{part}.{name}": value for name, value in values.items()})
        if bad is not None:
            raise TrainError(f"load: {bad}; need finite numbers")

    def entries(self, *parts: str) -> dict[str, Any]:
        """ "part.name" -> array or value, of all parts or of these."""
        return {f"{part}.{name}": value for part in parts or self._parts for name, value in self._parts[part]().items()}

    def arrays(self, *parts: str) -> dict[str, Stored]:
        """The arrays alone, each under the first name that it has."""
        named = {name: value for name, value in self.entries(*parts).items() if isinstance(value, Stored)}
        first = {stored: name for name, stored in reversed(named.items())}
        return {name: stored for name, stored in named.items() if first[stored] == name}

    def collect(self, *parts: str) -> dict[str, Any]:
        """The same as `entries`, with copies of the arrays, all of one moment."""
        entries = self.entries(*parts)
        arrays = [value for value in entries.values() if isinstance(value, Stored)]
        copied = dict(zip(arrays, copies(arrays), strict=True))
        return {name: copied[v] if isinstance(v, Stored) else v for name, v in entries.items()}

    def fault(self, entries: Mapping[str, Any]) -> str | None:
        """The fault of a collected state, by the checks of its parts; None where there is none."""
        for part, check in self._checks.items():
            text = check({name: value for name, value in entries.items() if name.partition(".")[0] == part})
            if text is not None:
                return text
        return None

    def need_good(self, entries: Mapping[str, Any]) -> None:
        """NonFiniteError where a collected state has a fault: such a state is never saved."""
        text = self.fault(entries)
        if text is not None:
            raise NonFiniteError(f"{text}; no run can resume from them")

    def digest(self, *parts: str) -> str:
        """A checksum of it, the same for equal states, in another process, too."""
        entries = self.entries(*parts)
        return checksum(*(f"{name} {_bits(entries[name])}" for name in sorted(entries)))


def register_draws(own: TrainState) -> None:
    """Register the random numbers of eager code, which follow from gl.seed and a count, as a part of this state."""
    own.register("eager draws", position, load_position, schema=DRAWS)


def finite(values: Values) -> str | None:
    """Check for weights, running statistics, averages, moments and the sums of an open window: all numbers are finite.

    No step makes an infinite moment: the guard refuses gradients the square of whose norm is not finite in f32."""
    return not_finite({name: value for name, value in values.items() if isinstance(value, np.ndarray)})


def _bits(value: Any) -> str:
    return checksum(value.numpy() if isinstance(value, Stored) else value)


def _alike(one: Any, other: Any) -> bool:
    """The same value, of plain values, arrays, lists, tuples and dicts."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and checksum(one) == checksum(other)
    if type(one) is type(other) and isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[name]) for name, value in one.items())
    if type(one) is type(other) and isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """What differs first between two collected states, by name; None when they are equal. Arrays are equal when their
    bits are."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            return f"{name} is in the {'second' if name not in one else 'first'} alone"
        a, b = one[name], other[name]
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            if type(a) is not type(b) or not _alike(a, b):
                return f"{name}: {a!r} against {b!r}"
        elif checksum(a) != checksum(b):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"{name}: {a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
            return f"{name}: {int((a != b).sum())} of {a.size} numbers differ"
    return None


def named(names: Iterable[str]) -> str:
    """Some of these names, and how many more there are."""
    several = [shown_name(name) for name in sorted(names)]
    more = f" and {len(several) - SHOWN} more" if len(several) > SHOWN else ""
    return ", ".join(several[:SHOWN]) + more


def need_schema(schema: Schema, values: Values, name: str) -> None:
    """TrainError for values of a checkpoint that the schema does not allow."""
    try:
        schema(values, name)
    except DataError as error:
        raise TrainError(f"{error}; need what a run has saved") from None


def check_names(what: str, values: Mapping[str, Any], needed: Iterable[str]) -> None:
    """TrainError unless the values have these names and no others."""
    names = set(needed)
    missing, unknown = names - values.keys(), values.keys() - names
    if missing or unknown:
        seen = [f"{named(missing)} is missing"] if missing else []
        seen += [f"{named(unknown)} is in the state alone"] if unknown else []
        raise TrainError(f"load: {what}: {'; '.join(seen)}; need the state of the same {what}")


def check_equal(what: str, values: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """TrainError naming each setting that the state has with another value."""
    differ = [
        f"{name}={shown_value(value)}, in the state {shown_value(values[name])}"
        for name, value in mine.items()
        if not _alike(values[name], value)
    ]
    if differ:
        raise TrainError(f"load: {what}: {'; '.join(differ)}; need the same")


def matching(what: str, values: Mapping[str, Any], stored: Mapping[str, Stored]) -> dict[Stored, np.ndarray]:
    """The arrays of a state for these, by name; TrainError for other names, shapes and dtypes."""
    check_names(what, values, stored)
    wrong = [
        f"{name} is {_kind(values[name])} and here {one.dtype.name}{list(one.shape)}"
        for name, one in stored.items()
        if not isinstance(values[name], np.ndarray)
        or (values[name].shape, values[name].dtype) != (one.shape, one.dtype.numpy)
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise TrainError(f"load: {what}: {'; '.join(wrong[:SHOWN])}{more}; need the state of the same {what}")
    return {one: values[name] for name, one in stored.items()}


def _kind(value: Any) -> str:
    return shown_value(value)


def load_parameters(values: Values, kept: Mapping[str, Stored]) -> Callable[[], None]:
    """Load for `of_parameters`."""
    arrays = matching("model", values, kept)
    return lambda: replace(arrays)


def load_optimizer(values: Values, state: OptimizerState) -> Callable[[], None]:
    """Load for `of_optimizer`: counts, settings that are numbers, memories of plateaus, and the arrays, also of
    parameters that have none yet. A number that was set in place of a schedule replaces it again."""
    optimizer, kept = state.optimizer, of_optimizer(state)
    missed = {name: np.array(count, np.int64) for name, count in values.items() if name.startswith("missed.")}
    plain = [name for name, value in kept.items() if not isinstance(value, Stored) and not name.startswith("missed.")]
    missing = [name for name in plain if name not in values]
    if missing:
        raise TrainError(f"load: optimizer: {named(missing)} is missing; need the state of an optimiser")
    check_equal("optimizer", values, {name: kept[name] for name in ("kind", "flags", "groups") if name in kept})
    mine = {name: text for name, text in kept["schedules"].items() if f"opt.{name}" not in values["settings"]}
    check_equal("optimizer", values, {"schedules": mine})
    settings = values["settings"]
    known = {f"opt.{name}" for name in optimizer.settings}
    check_names("optimizer settings", settings | {f"opt.{name}": 0.0 for name in values["schedules"]}, known)
    for name, value in settings.items():
        optimizer.settings.checked(name.removeprefix("opt."), value)
    arrays = {name: value for name, value in values.items() if name not in plain}
    arrays |= missed | {name: np.array(values[name], np.int64) for name in ("steps", "epoch")}
    arrays |= state.remembered(values["plateaus"])
    take = state.loading(arrays)

    def load() -> None:
        optimizer.settings.update({name.removeprefix("opt."): value for name, value in values["settings"].items()})
        take()

    return load


def load_window(values: Values, state: OptimizerState) -> Callable[[], None]:
    """Load for `of_window`."""
    numbers = sorted(int(name.removeprefix("sum.")) for name in values if name.startswith("sum."))
    open_names = [f"sum.{i}" for i in numbers] + ["weight"] * bool(numbers)
    check_names("window", values, ["weighted", "max_norm", "max_value", "options", *open_names])
    if numbers and numbers[-1] >= len(state.parameters):
        raise TrainError(f"load: window: sum.{numbers[-1]} of {len(state.parameters)} parameters; need the same model")
    parameters = [state.parameters[i] for i in numbers]
    sums = state.sums_of(parameters)
    arrays = {f"sum.{i}": one.stored for i, one in zip(numbers, sums, strict=True)}
    arrays |= {"weight": state.weight.stored} if numbers else {}
    plain = {name: values[name] for name in ("weighted", "max_norm", "max_value", "options")}
    taken = matching("window", {name: values[name] for name in open_names}, arrays)

    def load() -> None:
        state.window.clear()
        replace(taken)
        state.window.add(parameters)
        state.window.weighted = plain["weighted"]
        state.window.max_norm, state.window.max_value = plain["max_norm"], plain["max_value"]
        state.window.options = tuple(plain["options"])

    return load


def of_optimizer(state: OptimizerState) -> dict[str, Any]:
    """The part of an optimiser: counts, settings, what plateaus have seen, and the arrays of each parameter."""
    optimizer = state.optimizer
    kept: dict[str, Any] = {
        "kind": type(optimizer).__name__,
        "flags": [{**rule.flags, "kind": type(rule).__name__} for rule in state.rules],
        "steps": state.steps,
        "epoch": state.epoch,
        "settings": dict(sorted(optimizer.settings.constants.items())),
        "schedules": {name: shown(schedule) for name, schedule in sorted(optimizer.settings.schedules.items())},
        **({} if optimizer.placing is None else {"groups": [state.group_of(p) for p in state.parameters]}),
        "plateaus": {name: dict(memory) for name, memory in sorted(state.memories.items())},
    }
    for i, p in enumerate(state.parameters):
        kept |= {f"{name}.{i}": moment.stored for name, moment in state.moments.get(p.stored, {}).items()}
    return kept | state.missed_steps()


def of_average(state: OptimizerState) -> dict[str, Any]:
    """The part of the weights' moving average; none where there is none."""
    return {} if state.average is None else state.average.entries(state.parameters)


def load_average(values: Values, state: OptimizerState) -> Callable[[], None]:
    """Load for `of_average`, also of parameters that have no mean yet."""
    average = state.average
    if average is None:
        check_names("average", values, ())
        return lambda: None
    plain = {name: value for name, value in values.items() if not name.startswith("mean.")}
    check_names("average", plain, ("decay", "is_shown", "shown"))
    check_equal("average", plain, {"decay": average.decay})
    numbers = [int(name.removeprefix("mean.")) for name in values if name not in plain]
    most = max((*numbers, *plain["shown"]), default=-1)
    if most >= len(state.parameters):
        raise TrainError(f"load: average: of {most + 1} parameters and here {len(state.parameters)}")
    arrays = {f"mean.{i}": average.of(state.parameters[i]).stored for i in numbers}
    taken = matching("average", {name: values[name] for name in arrays}, arrays)

    def load() -> None:
        replace(taken)
        average.take(state.parameters, plain["is_shown"], plain["shown"])

    return load


def of_window(state: OptimizerState) -> dict[str, Any]:
    """The part of an open accumulation window: the sums of its parameters, their weight, the bounds of their step, and
    how its programs are compiled."""
    window = state.window
    numbers = [i for i, p in enumerate(state.parameters) if p.stored in window.parameters]
    kept: dict[str, Any] = {"weighted": window.weighted, "max_norm": window.max_norm, "max_value": window.max_value}
    kept["options"] = list(window.options)
    kept |= {f"sum.{i}": state.sums[state.parameters[i].stored].stored for i in numbers}
    return kept | ({"weight": state.weight.stored} if window.parameters else {})


def of_parameters(named: Mapping[str, Parameter], written: Iterable[Stored] = ()) -> dict[str, Any]:
    """The part of a model: its parameters and buffers by name; other arrays that steps write by number. Frozen arrays
    (tensors of a model file) are left out: nothing changes them."""
    kept: dict[str, Any] = {name: p.stored for name, p in named.items() if p.stored.role != "frozen"}
    mine = set(kept.values())
    rest = [stored for stored in written if stored not in mine]
    return kept | {f"written.{i}": stored for i, stored in enumerate(rest)}


def shown(schedule: Any) -> str:
    """A schedule as text that is the same in another process."""
    text = getattr(schedule, "__qualname__", None) or repr(schedule)
    return type(schedule).__name__ if " at 0x" in text else text
