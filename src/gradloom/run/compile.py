"""compile: from values to something that runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..base.arguments import what_is
from ..base.collector import paused
from ..base.errors import BackendError, DTypeError, GraphError, PlanError, SettingError
from ..base.habits import hinted
from ..base.hooks import shower
from ..base.memory import as_bytes
from ..base.settings import Switches, switches
from ..base.terminal import to_stderr
from ..graph.graph import check_graph, check_updates
from ..graph.scope import device_name
from ..graph.value import Node, Value, builds_graphs, describe
from ..plan.recomputed import Budget
from ..transform.choose import check_explicit_devices, explicit_devices, without_devices
from ..transform.passes import passes, rewrite, rounded
from ..transform.place import place
from ..transform.program import Program, gather
from .backend import Backend, Buffer, check_effect, has_kernel, named, plan_for
from .backend import backend as backend_of
from .cost import TYPICAL, node_seconds
from .executable import Executable, Origin
from .null_backend import NullExecutable
from .scheduled import plan_within, scheduled
from .show import shown_nodes, silent


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
    memory: int | str | Mapping[str, int | str] | None = None,
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
    (docs/memory.md); with devices= the same for each, {"gpu": "2GiB", "cpu": "4GiB"}: for the arena and the scratch of
    its part, with no limit on those that are not named. The rest are the switches of gradloom.base.settings.
    Returns a callable: run(name=array, ...) -> list of arrays; run.plan is the proved plan, of nodes on several devices
    the proved schedule: the device of each node, the bytes of each device, the copies between them.
    Raises GraphError, ShapeError for graphs that cannot be built, BackendError for those that cannot run here,
    BudgetError, with the least bytes, for a memory budget that cannot be met.
    """
    values = _checked_values(outputs, updates)
    own: dict[str, Any] = {
        "threads": threads, "isa": isa, "reuse": reuse, "inplace": inplace, "fuse": fuse, "precision": precision,
        "flush": flush, "poison": poison, "debug": debug, "check": check,
    }  # fmt: skip
    places = device_names("compile", device, backend, devices)
    program = gather(values, updates)
    loaded = _loaded(program, places, devices is not None, switches(**own), own, arena, memory)
    where: dict[str, Any] = {"device": device, "backend": backend, "devices": devices, "memory": memory}
    loaded.origin = Origin(values, updates, own | where)
    shown = shown_nodes(program.nodes)
    if shown and not isinstance(loaded, NullExecutable):
        shower(loaded, shown)
    return loaded


def _loaded(
    program: Program,
    places: Sequence[str],
    is_placed: bool,
    chosen: Switches,
    own: Mapping[str, Any],
    arena: Buffer | None,
    memory: int | str | Mapping[str, int | str] | None,
) -> Any:
    """The program, planned, proved and loaded. is_placed: the places are those of devices=; own: the switches that the
    caller has given."""
    if not places:
        places = list(dict.fromkeys(["cpu", *explicit_devices(program.nodes)]))
    check_effect("compile", places, {name: own[name] for name in ("isa", "flush")})
    budgets = _budgets(memory, places)
    if is_placed:
        check_explicit_devices(program.nodes, places)
    made = {name: backend_of(name, chosen) for name in places}
    check_updates(program.nodes)
    if len(made) > 1:
        if arena is not None:
            text = "{arena} and several {devices} are mutually exclusive"
            raise SettingError(text, arena=..., devices=..., place="compile")
        return _compile_on(made, program, chosen, budgets)
    ((name, one),), program = made.items(), without_devices(program)
    if not one.planned:
        return one.load(rounded(program, chosen.precision), None)
    source = program
    observer = PassObserver(program, chosen)
    program = rewrite(program, chosen.fuse, observer, lambda node: has_kernel(one, node), chosen.precision)
    check_graph(program.nodes)
    try:
        loaded = one.load(*plan_within(budgets.get(name), one, program, chosen), arena)
    except PlanError as error:
        error.program = source, chosen, name
        raise error.extended(after="; gl.capsule(error, FILE) saves the program") from None
    loaded.effects = program.effects if observer.effects is None else observer.effects
    loaded.source, loaded.device_name = source, name
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


def memory_curve(run: Any) -> list[tuple[int, float, int]]:
    """(bytes of arena and scratch, time relative to the first, instructions that are computed again) of a program that
    is planned for the CPU, without a budget and with ever smaller ones; see plan/recomputed.py."""
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


def _budgets(memory: object, places: Sequence[str]) -> dict[str, int]:
    """The memory budget in bytes of each of these devices that has one. SettingError for a number with several devices,
    for a device that is none of them, and where a budget has no effect."""
    if memory is None:
        return {}
    if isinstance(memory, Mapping):
        named = {device_name("compile", name): limit for name, limit in memory.items()}
    elif len(places) > 1:
        need = f"a budget for each device, such as {{{places[0]!r}: '2GiB'}}"
        raise SettingError(setting="memory", seen=memory, need=need, place="compile")
    else:
        named = {device_name("compile", places[0]): memory}
    known = {device_name("compile", name): name for name in places}
    for name in named:
        if name not in known:
            text = f"{{memory}} names {name!r}; the devices of this program are {', '.join(map(repr, known))}"
            raise SettingError(text, memory=memory, place="compile")
    found = {known[name]: as_bytes("memory", limit, "compile") for name, limit in named.items()}
    check_effect("compile", [*found], {"memory": memory})
    return found


def _compile_on(made: Mapping[str, Backend], program: Program, chosen: Switches, budgets: Mapping[str, int]) -> Any:
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
        program, plan = plan_within(budgets.get(name), made[name], placed.program, chosen, name)
        loaded = made[name].load(program, replace(plan, device=name))
    else:
        loaded = scheduled(placed, made, chosen, budgets)
    loaded.effects = on_one.effects
    return loaded


def compile_checked(outputs: Sequence[Value], updates: Sequence[Value], **options: Any) -> Any:
    """The same program once more, to find the first node that is not finite: checked, unfused, and unshared where the
    memory suffices; within a memory budget where the checked program can meet it."""
    with silent():
        return _compiled_checked(outputs, updates, options | {"check": 2, "fuse": False, "debug": 0})


def _compiled_checked(outputs: Sequence[Value], updates: Sequence[Value], options: dict[str, Any]) -> Any:
    if options.get("memory") is not None:
        with contextlib.suppress(SettingError):
            return compile(outputs, updates, **options)
        options |= {"memory": None}
    try:
        return compile(outputs, updates, **(options | {"reuse": False}))
    except BackendError:  # more memory than there is
        return compile(outputs, updates, **options)
