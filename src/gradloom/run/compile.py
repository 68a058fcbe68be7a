"""compile: from values to something that runs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..base.arguments import what_is
from ..base.collector import paused
from ..base.errors import BackendError, BudgetError, DTypeError, GraphError, SettingError
from ..base.habits import hinted
from ..base.memory import as_bytes, show_bytes, trim
from ..base.settings import Switches, switches
from ..base.terminal import to_stderr
from ..graph.graph import check_graph, check_updates
from ..graph.scope import device_name
from ..graph.value import Node, Value, builds_graphs, describe
from ..plan.plan import Plan
from ..plan.recomputed import Budget, PlanOf
from ..transform.choose import check_explicit_devices, explicit_devices, without_devices
from ..transform.passes import passes, rewrite, rounded
from ..transform.place import place
from ..transform.program import Program, gather
from .backend import Backend, Buffer, check_effect, has_kernel, named, plan_for
from .backend import backend as backend_of
from .cost import TYPICAL, node_seconds
from .executable import Executable
from .scheduled import scheduled


@paused()
@builds_graphs
@hinted
def compile(
    outputs: Value | Sequence[Value],
    updates: Sequence[Value] = (),
    *,
    device: str | None = None,
    backend: str | None = None,
    devices: Sequence[str] | None = None,
    threads: int | None = None,
    isa: str | None = None,
    reuse: bool | None = None,
    inplace: bool | None = None,
    fuse: bool | None = None,
    precision: str | None = None,
    flush: bool | None = None,
    poison: bool | None = None,
    debug: int | None = None,
    check: int | None = None,
    arena: Buffer | None = None,
    memory: int | str | None = None,
) -> Any:
    """Plan, prove and load a program.

    outputs: one or several values to read after each call. updates: outputs of update ops to carry out (updates that
    belong to nodes on the way, such as running statistics, are carried out anyway). device: "cpu" (when not given),
    "gpu", "gpu:1" (docs/devices.md), "numpy" (float64 references, the definition), "null" (plans only), or a
    registered name (run/backend.py); backend is another name of the same argument: the one device of all nodes, which
    overrides explicit devices. devices: several, the preferred one first, which run one program together
    (docs/devices.md). With none of these, the CPU and the devices that gl.device and Module.to have named. arena: own
    memory (Backend.allocate), so that the program does not wait for all others; it must share no array that is
    written. memory: bytes, or a text such as "512MiB", that run.plan.peak_bytes (the arena, and the scratch of all
    threads) may have at most: nodes are computed twice where that is needed, which changes no bit
    (docs/memory.md). The rest are the switches of gradloom.base.settings.
    Returns a callable: run(name=array, ...) -> list of arrays; run.plan is the proved plan, with devices= the proved
    schedule: the device of each node, the bytes of each device, the copies between them.
    Raises GraphError, ShapeError for graphs that cannot be built, BackendError for those that cannot run here.
    """
    values = _checked_values(outputs, updates)
    chosen = switches(
        threads=threads,
        isa=isa,
        reuse=reuse,
        inplace=inplace,
        fuse=fuse,
        precision=precision,
        flush=flush,
        poison=poison,
        debug=debug,
        check=check,
    )
    program = gather(values, updates)
    places = device_names("compile", device, backend, devices)
    if not places:
        places = list(dict.fromkeys(["cpu", *explicit_devices(program.nodes)]))
    check_effect("compile", places, {"isa": isa, "flush": flush, "memory": memory})
    if devices is not None:
        check_explicit_devices(program.nodes, places)
    made = {name: backend_of(name, chosen) for name in places}
    budget = None if memory is None else as_bytes("memory", memory, "compile")
    check_updates(program.nodes)
    if len(made) > 1:
        if arena is not None:
            text = "{arena} and several {devices} are mutually exclusive"
            raise SettingError(text, arena=..., devices=..., place="compile")
        if budget is not None:
            text = "{memory} and several {devices} are mutually exclusive"
            raise SettingError(text, memory=memory, devices=..., place="compile")
        return _compile_on(made, program, chosen)
    (one,), program = made.values(), without_devices(program)
    if not one.planned:
        return one.load(rounded(program, chosen.precision), None)
    observer = PassObserver(program, chosen)
    program = rewrite(program, chosen.fuse, observer, lambda node: has_kernel(one, node), chosen.precision)
    check_graph(program.nodes)
    if budget is None:
        planned = program, plan_for(one, program, chosen)
    else:
        planned = plan_within(budget, program, lambda made: plan_for(one, made, chosen))
    loaded = one.load(*planned, arena)
    loaded.effects = program.effects if observer.effects is None else observer.effects
    return loaded


def _checked_values(outputs: Value | Sequence[Value], updates: Sequence[Value]) -> list[Value]:
    """The outputs as a list. GraphError, DTypeError for anything that is no value of a graph or cannot be read."""
    if not isinstance(outputs, Iterable):
        raise GraphError(
            f"compile: got {what_is(outputs)}; need values of a graph, such as model(gl.input('x', shape))"
        )
    values = [outputs] if isinstance(outputs, Value) else list(outputs)
    if not values and not updates:
        raise GraphError("compile: no outputs and no updates; need at least one value")
    for value in (*values, *updates):
        if not isinstance(value, Value):
            raise GraphError(f"compile: got {type(value).__name__}; need values of a graph")
        if value.recorder is not None:
            raise GraphError(
                "compile: got an eager tensor, which is computed when it is looked at; need values of a graph"
            )
    for value in values:
        if value.dtype.is_quantised:
            raise DTypeError(
                f"compile: the output {value.node.label} is {describe(value)}, which is not read out; "
                "need a cast to f32"
            )
    for value in updates:
        if not value.node.op.updates:
            raise GraphError(
                f"compile: the update {value.node.op.name} {value.node.label} writes to nothing; need outputs of "
                "update ops (sgd, adamw, accumulate, zero, assign)"
            )
    return values


def plan_within(budget: int, program: Program, plan_of: PlanOf) -> tuple[Program, Plan]:
    """The program, with clones where it needs them, and its plan of at most `budget` bytes, which do not depend on the
    speed of this machine. BudgetError where there is none."""
    plans = Budget(program, plan_of, lambda node: node_seconds(node, TYPICAL))
    found = plans.within(budget)
    if found is None:
        least = plans.smallest[1].peak_bytes
        need = f"at least {least} bytes ({show_bytes(least)}), for the arena and scratch of this program"
        error = BudgetError(setting="memory", seen=show_bytes(budget), need=need, place="compile")
        error.least = least
        raise error
    del plans
    gc.collect()  # the programs and plans that were tried, which refer to themselves, would add to the process's memory
    trim()
    return found


def memory_curve(run: Any) -> list[tuple[int, float]]:
    """(bytes of arena and scratch, time relative to the first) of a program that is planned for the CPU, without a
    budget and with ever smaller ones; see plan/recomputed.py."""
    one = backend_of("null:cpu", run.switches)
    plans = Budget(run.program, lambda made: plan_for(one, made, run.switches), lambda n: node_seconds(n, TYPICAL))
    return plans.curve()


def device_names(who: str, device: str | None, backend: str | None, devices: str | Sequence[str] | None) -> list[str]:
    """The names that a function was given under these words, each once; none where it was given none. SettingError
    for two of the words at once, and for a value that is no name."""
    if devices is None:
        return [] if device is None and backend is None else [named(who, device, backend)]
    if device is not None or backend is not None:
        word = "device" if device is not None else "backend"
        raise SettingError(f"{{{word}}} and {{devices}} are mutually exclusive", {word: ..., "devices": ...}, place=who)
    names = names_in_order(who, [devices] if isinstance(devices, str) else devices)
    if again := [name for i, name in enumerate(names) if name in names[:i]]:
        raise SettingError(f"{{devices}} has {again[0]!r} twice; must have each once", devices=..., place=who)
    return names


def names_in_order(who: str, devices: object) -> list[str]:
    """The names of a list or tuple, in its order. SettingError for anything else, as a set, which has no order."""
    if not isinstance(devices, (list, tuple)):
        need = "a list or tuple of names, such as ('gpu', 'cpu')"
        raise SettingError(setting="devices", seen=devices, need=need, place=who)
    if not devices:
        raise SettingError("{devices} is empty; must be names, such as ('gpu', 'cpu')", setting="devices", place=who)
    return [device_name(who, name) for name in devices]


class PassObserver:
    """Called with the program after each pass: checks and prints it where the switches ask for that."""

    def __init__(self, program: Program, chosen: Switches) -> None:
        self.last, self.chosen = program, chosen
        self.effects: tuple[Value, ...] | None = None  # of the program before what depends on precision and device

    def __call__(self, name: str, program: Program) -> None:
        if name in ("round_products", "expand") and self.effects is None:
            self.effects = self.last.effects
        self.last = program
        if self.chosen.check >= 2:
            check_graph(program.nodes)
        if self.chosen.debug >= 3:
            to_stderr(f"after {name}:\n{program}")


def _compile_on(made: Mapping[str, Backend], program: Program, chosen: Switches) -> Any:
    """Place a program on several devices, schedule, prove and load it; on one of them where it uses no other."""
    observer = PassObserver(program, chosen)
    on_one = without_devices(program)
    for each in passes(chosen.fuse, chosen.precision):
        on_one = each(on_one)

    def takes(node: Node) -> bool:
        return all(has_kernel(one, node) for one in made.values())

    program = rewrite(program, chosen.fuse, observer, precision=chosen.precision, takes=takes)
    placed = place(program, list(made), lambda name, node: has_kernel(made[name], node))
    observer("place", placed.program)
    check_graph(placed.program.nodes)
    used = list(dict.fromkeys(placed.device.values()))
    loaded: Executable
    if len(used) < 2:
        name = used[0] if used else next(iter(made))
        plan = replace(plan_for(made[name], placed.program, chosen), device=name)
        loaded = made[name].load(placed.program, plan)
    else:
        loaded = scheduled(placed, made, chosen)
    loaded.effects = on_one.effects
    return loaded


def compile_checked(outputs: Sequence[Value], updates: Sequence[Value], **options: Any) -> Any:
    """The same program once more, to find the first node that is not finite: checked, unfused, and unshared where the
    memory suffices; within a memory budget where the checked program can meet it."""
    options = options | {"check": 2, "fuse": False, "debug": 0}
    if options.get("memory") is not None:
        with contextlib.suppress(SettingError):
            return compile(outputs, updates, **options)
        options |= {"memory": None}
    try:
        return compile(outputs, updates, **(options | {"reuse": False}))
    except BackendError:  # more memory than there is
        return compile(outputs, updates, **options)
