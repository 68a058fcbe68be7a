"""Replay of a capsule: plan and prove its programs here, run their calls instruction by instruction, and compare.

On the device and instruction set of the capsule, digests of each instruction, output and updated array must be equal.
Elsewhere each instruction is held against its float64 definition, for the inputs that it had here, within the tolerance
of `run/walk.py: Definition`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..base.errors import BackendError, GradloomError, NonFiniteError, PlanError, SettingError
from ..base.settings import Switches, switches
from ..graph.graph import view_base
from ..graph.stored import Stored
from ..graph.value import Node, Value, describe
from ..transform.choose import without_devices
from ..transform.passes import rewrite
from ..transform.program import Program
from .backend import backend, check_effect, has_kernel, is_device, make_of, plan_for
from .capsule import Call, Capsule, Outcome, Planned, digest, planned
from .cpu_backend import choose_isa
from .feeds import SETTING_DEFAULTS, as_array, check_names
from .machine import isas
from .walk import Definition, Stepped, away, distance, walk_on

DEFINITION = "numpy"  # the device of a capsule whose results are the definitions themselves
NEAR_OVERFLOW = 1e-3  # tolerance of an output that has numbers beyond f32
OnProgress = Callable[[int, int], None]  # called with instructions done, and all of them


@dataclass(frozen=True)
class Found:
    """The first place where a replay differs. program, step: the instruction, -1 for none in particular."""

    text: str
    program: int = 0
    call: int = 0
    step: int = -1
    by_bits: bool = False


@dataclass
class Replayed:
    """The result of a replay.

    isa, device   that ran; by_bits: digests were compared; else instructions were held against their definitions
    same_plan     whether the plans are those of the capsule
    has_run       False for a capsule without data: its programs were planned and proved only
    steps         instructions that ran, of all calls
    first         the first difference; None where there is none
    largest       of the outputs that both have: the largest difference, of the largest number of an output
    error         how each call ended that failed, as in the capsule
    not_finite    the first instruction whose output is not finite
    """

    isa: str
    device: str
    by_bits: bool
    same_plan: bool = True
    has_run: bool = True
    steps: int = 0
    first: Found | None = None
    largest: float = 0.0
    error: str = ""
    not_finite: str = ""
    results: list[Outcome] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return self.first is None


def chosen_for(capsule: Capsule, isa: str | None, device: str | None) -> tuple[Switches, str]:
    """The switches and the device of a replay: the given ones, else those of the environment, else the capsule's, where
    this machine has them. BackendError, SettingError for what cannot compute here."""
    where = device if device is not None else (capsule.device if capsule.device != DEFINITION else "cpu")
    if not isinstance(where, str) or (where not in ("cpu", DEFINITION) and not is_device(where)):
        raise SettingError(setting="device", seen=where, need="cpu, gpu, or gpu:1 for the second adapter")
    check_effect("replay", [where], {"isa": isa})
    given = {name: value for name, value in capsule.switches.items() if name != "isa"}
    chosen = switches(**given, isa=isa)
    if chosen.isa is None and capsule.switches["isa"] in isas():
        chosen = replace(chosen, isa=capsule.switches["isa"])
    if where == DEFINITION:
        raise BackendError("replay: the device 'numpy' computes the definitions; need 'cpu' or 'gpu'")
    backend(where, chosen)  # for its error
    return chosen, where


def prepared(program: Program, chosen: Switches, device: str) -> Program:
    """The program after the passes for the device, as gl.compile plans it."""
    where = backend(device, chosen)
    program = without_devices(program)
    return rewrite(program, chosen.fuse, None, lambda node: has_kernel(where, node), chosen.precision)


def plans_of(capsule: Capsule, chosen: Switches, device: str) -> list[Planned]:
    """The plans of the programs here; one that the proof rejects has its error."""
    return [_plan_of(program, chosen, device) for program in capsule.programs]


def _plan_of(program: Program, chosen: Switches, device: str) -> Planned:
    try:
        return planned(plan_for(backend(device, chosen), prepared(program, chosen, device), chosen))
    except PlanError as error:
        return Planned(error=str(error))


# ---- running ---------------------------------------------------------------------------------------------------------


def record(capsule: Capsule) -> None:
    """Run the calls of a new capsule on copies, and keep plans and results in it; its arrays stay as they are."""
    chosen, device = chosen_for(capsule, capsule.switches["isa"] or None, None)
    capsule.plans = plans_of(capsule, chosen, device)
    if not any(plan.error for plan in capsule.plans):
        capsule.calls = [
            replace(call, outcome=outcome)
            for call, outcome in zip(capsule.calls, _outcomes(capsule, chosen, device), strict=True)
        ]


def defined(capsule: Capsule, chosen: Switches, device: str) -> Capsule:
    """A new capsule without results, whose results are the definitions: every replay holds its instructions against
    them. The plans are those of a device."""
    plans = plans_of(capsule, chosen, device)
    switches_then = capsule.switches | {"isa": ""}
    return replace(capsule, plans=plans, device=DEFINITION, switches=switches_then)


def _outcomes(capsule: Capsule, chosen: Switches, device: str) -> list[Outcome]:
    run = _Run(capsule, chosen, device)
    try:
        return [run.call(call, None) for call in capsule.calls]
    finally:
        run.restore()


class _Run:
    """Calls of a capsule, run in order on its arrays; `restore` puts their contents back."""

    def __init__(self, capsule: Capsule, chosen: Switches, device: str) -> None:
        self.capsule, self.chosen, self.device = capsule, chosen, device
        self.walks: dict[int, Stepped] = {}
        self.held: dict[Stored, np.ndarray] = {}

    def walk(self, number: int) -> Stepped:
        if number not in self.walks:
            made = walk_on(prepared(self.capsule.programs[number], self.chosen, self.device), self.chosen, self.device)
            self.walks[number] = made
            for stored in made.writes:
                self.held.setdefault(stored, stored.read().copy())
        return self.walks[number]

    def restore(self) -> None:
        for stored, array in self.held.items():
            stored.write(array)

    def call(self, call: Call, watch: Callable[[Stepped, int], None] | None) -> Outcome:
        """Run a call. watch(walk, k) is called after instruction k."""
        walk, found = self.walk(call.program), Outcome()
        feeds = {key: array for key, array in call.inputs.items() if key in walk.inputs}  # passes may drop some
        settings = {key: value for key, value in call.settings.items() if key in walk.settings}
        check_names({**feeds, **settings}, walk.inputs, walk.settings)
        for key, value in walk.settings.items():
            as_array(key, settings.get(key, SETTING_DEFAULTS.get(key)), (), value.dtype)  # for its checks
        walk.begin(feeds, settings)
        for k in range(len(walk.steps)):
            try:
                walk.run_step(k)
            except NonFiniteError as error:
                found.error, found.failed = str(error), k
            except GradloomError as error:
                found.error, found.failed = f"{type(error).__name__}: {error}", k
            if found.failed >= 0:
                break
            arrays = dict(walk.written(k))
            found.steps.append(_step_digest(arrays))
            if found.not_finite < 0 and not all(_is_finite(v, a) for v, a in arrays.items()):
                found.not_finite = k
            if watch is not None:
                watch(walk, k)
        if found.failed < 0:
            found.outputs = list(walk.outputs_now())
            found.digests = [digest(array) for array in walk.outputs_now()]
        numbers = {stored: i for i, stored in enumerate(self.capsule.stored)}
        found.updated = {numbers[stored]: digest(stored.read()) for stored in walk.writes}
        return found


def _step_digest(arrays: Mapping[Value, np.ndarray]) -> str:
    """A short digest of the outputs of an instruction."""
    return digest(np.frombuffer("".join(digest(a) for a in arrays.values()).encode(), np.uint8))[:16]


def _is_finite(value: Value, array: np.ndarray) -> bool:
    return not value.dtype.is_float or bool(np.isfinite(array.astype(np.float32, copy=False)).all())


# ---- comparing -------------------------------------------------------------------------------------------------------


def replay(
    capsule: Capsule, isa: str | None = None, device: str | None = None, on_progress: OnProgress | None = None
) -> Replayed:
    """Run a capsule and compare; its arrays stay as they are. isa, device: where to run, by default as in the capsule.

    Raises BackendError, SettingError for what cannot compute here, GraphError for inputs that are missing.
    """
    chosen, where = chosen_for(capsule, isa, device)
    own = capsule.switches["isa"] if capsule.device == "cpu" else capsule.about.get("device", "")
    here = choose_isa(chosen.isa) if where == "cpu" else make_of(where)
    same_kind = capsule.device.partition(":")[0] == where.partition(":")[0]
    result = Replayed("" if is_device(where) else here, where, same_kind and own == here)
    plans = plans_of(capsule, chosen, where)
    result.same_plan = [plan.digest for plan in plans] == [plan.digest for plan in capsule.plans]
    rejected = next((i for i, plan in enumerate(plans) if plan.error), None)
    if rejected is not None:
        result.first = Found(f"the proof rejects the plan: {plans[rejected].error}", rejected)
        return result
    if not capsule.has_data or not capsule.calls:
        result.has_run = result.by_bits = False
        return result
    run = _Run(capsule, chosen, where)
    try:
        for i, call in enumerate(capsule.calls):
            _compare(run, i, call, result, on_progress)
            if result.first is not None:
                break
    finally:
        run.restore()
    return result


def _compare(run: _Run, number: int, call: Call, result: Replayed, on_progress: OnProgress | None) -> None:
    """Run a call and hold it against its saved results, or against the definitions."""
    saved, walk = call.outcome, run.walk(call.program)
    total = len(walk.steps)
    watch: Callable[[Stepped, int], None] | None = None
    judged = _Judged(walk, number, call.program) if not result.by_bits else None
    if judged is not None:
        judged.begin()

        def watch(walk: Stepped, k: int) -> None:
            assert judged is not None
            judged.step(k)
            if on_progress is not None:
                on_progress(k + 1, total)

    found = run.call(call, watch)
    result.results.append(found)
    result.steps += len(found.steps)
    if found.not_finite >= 0 and not result.not_finite:
        result.not_finite = called(walk.steps[found.not_finite])
    result.error = result.error or found.error
    for have, want in zip(found.outputs, saved.outputs, strict=False):
        if have is not None and want is not None and have.dtype.kind != "V":
            result.largest = max(result.largest, distance(have, want))
    difference = judged.first if judged is not None else _first_bits(walk, found, saved, number, call.program)
    if difference is None and bool(found.error) != bool(saved.error) and run.capsule.device != DEFINITION:
        text = f"stopped here: {found.error}" if found.error else f"runs to its end here; it had stopped: {saved.error}"
        difference = Found(text, call.program, number, found.failed)
    result.first = difference


def _first_bits(walk: Stepped, found: Outcome, saved: Outcome, number: int, program: int) -> Found | None:
    """The first instruction, output or array whose digest is not the saved one."""
    if len(saved.steps) + (saved.failed >= 0) == len(found.steps) + (found.failed >= 0) or found.failed != saved.failed:
        for k, (have, want) in enumerate(zip(found.steps, saved.steps, strict=False)):
            if have != want:
                node = walk.steps[k]
                text = f"the first instruction whose bits differ is {k}: {shown(node)}"
                return Found(text, program, number, k, True)
    for i, (have, want) in enumerate(zip(found.digests, saved.digests, strict=False)):
        if have != want:
            return Found(f"output {i} has other bits", program, number, by_bits=True)
    for i, want in saved.updated.items():
        if found.updated.get(i) != want:
            return Found(f"stored array {i} has other bits after the call", program, number, by_bits=True)
    return None


class _Judged:
    """Holds each instruction of a walk against its definition, for the inputs that it had."""

    def __init__(self, walk: Stepped, call: int, program: int) -> None:
        self.walk, self.call, self.program = walk, call, program
        self.first: Found | None = None
        self.seen: dict[Value, np.ndarray] = {}
        self.last: dict[Value, int] = {}
        for k, node in enumerate(walk.steps):
            self.last.update((view_base(v), k) for v in node.inputs if v is not None)

    def begin(self) -> None:
        self.start = {stored: stored.read().copy() for stored in self.walk.writes}

    def leaf(self, value: Value) -> np.ndarray:
        """The numbers of a leaf before the call."""
        stored = value.node.attrs.get("stored")
        return self.start[stored] if stored in self.start else self.walk.leaf(value)

    def step(self, k: int) -> None:
        if self.first is not None:
            return
        node = self.walk.steps[k]
        definition = Definition(node, self.leaf, self.seen)
        kept = {}
        for value, array in self.walk.written(k):
            amount, excess = self.held_against(definition, value, array)
            if excess > 1:
                text = f"instruction {k} is not its definition: {shown(node)}, by {amount:.3g} of its largest number"
                self.first = Found(text, self.program, self.call, k)
            if k < self.last.get(value, -1):
                kept[value] = array.copy()
        self.seen.update(kept)
        for value in [v for v in self.seen if self.last[v] == k]:
            del self.seen[value]

    def held_against(self, definition: Definition, value: Value, got: np.ndarray) -> tuple[float, float]:
        """(distance, in units of the tolerance) of a result from its definition. Numbers that are not finite must be
        such in f32 arithmetic too: float64 holds larger ones."""
        with np.errstate(all="ignore"):
            own = np.asarray(definition.own[value.index])
            if not value.dtype.is_float:
                return distance(got, own), definition.excess(value, got, own)
            finite, in_own = np.isfinite(got.astype(np.float32)), np.isfinite(own.astype(np.float32))
            if finite.all() and in_own.all():
                return distance(got, own), definition.excess(value, got, own)
            in_f32 = np.isfinite(np.asarray(definition.of(self.seen, np.float32)[value.index]))
            if (~finite & in_own & in_f32).any() or (finite & ~in_own & ~in_f32).any():
                return np.inf, np.inf
            both = finite & in_own
            have, want = np.where(both, got, 0).astype(np.float64), np.where(both, own, 0)
            amount = distance(have, want)
            return amount, max(amount, away(have, want)) / NEAR_OVERFLOW


def called(node: Node) -> str:
    """The op and the name of a node."""
    return f"{node.op.name} {node.label}" if node.name else node.label


def shown(node: Node) -> str:
    """The same with its outputs."""
    outputs: Iterator[str] = (describe(value) for value in node.outputs)
    return f"{called(node)} ({', '.join(outputs)})"
