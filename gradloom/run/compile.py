"""compile: from values to something that runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..base.collector import paused
from ..base.errors import BackendError, DTypeError, GraphError, SettingError
from ..base.settings import switches
from ..graph.graph import check_graph, check_updates
from ..graph.value import Value, builds_graphs, describe
from ..transform.passes import rewrite, rounded
from ..transform.program import Program, gather
from .backend import Buffer, has_kernel, is_device, named, plan_for
from .backend import backend as backend_of


@paused()
@builds_graphs
def compile(
    outputs: Value | Sequence[Value],
    updates: Sequence[Value] = (),
    *,
    device: str | None = None,
    backend: str | None = None,
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
) -> Any:
    """Plan, prove and load a program.

    outputs: one or several values to read after each call. updates: outputs of update ops to carry out (updates that
    belong to nodes on the way, such as running statistics, are carried out anyway). device: "cpu" (when not given),
    "gpu", "gpu:1" (docs/devices.md), "numpy" (float64 references, the definition), "null" (plans only), or what was
    registered (run/backend.py); backend is another name of the same argument. arena: memory of its own
    (Backend.allocate), so that the program does not wait for all others; it must share no array that is written. The
    rest are the switches of gradloom.base.settings.
    Returns a callable: run(name=array, ...) -> list of arrays; run.plan is the proved plan.
    Raises GraphError, ShapeError for what cannot be built, BackendError for what cannot run here.
    """
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
    place = named("compile", device, backend)
    for name, given in (("isa", isa), ("flush", flush)):
        if given is not None and is_device(place):
            raise SettingError(f"compile: {name}={given!r} is of the CPU; need device='cpu' for it, and has {place!r}")
    made = backend_of(place, chosen)
    program = gather(values, updates)
    check_updates(program.nodes)
    if not made.planned:
        return made.load(rounded(program, chosen.precision), None)
    last, effects = program, None

    def after(name: str, program: Program) -> None:
        nonlocal last, effects
        if name == "round_products":
            effects = last.effects
        last = program
        if chosen.check >= 2:
            check_graph(program.nodes)
        if chosen.debug >= 3:
            print(f"after {name}:\n{program}", file=sys.stderr)

    program = rewrite(program, chosen.fuse, after, lambda node: has_kernel(made, node), chosen.precision)
    check_graph(program.nodes)
    loaded = made.load(program, plan_for(made, program, chosen), arena)
    loaded.effects = program.effects if effects is None else effects
    return loaded


def compile_checked(outputs: Sequence[Value], updates: Sequence[Value], **options: Any) -> Any:
    """The same program once more, to find the first node that is not finite: checked, unfused, and unshared where the
    memory suffices."""
    options = options | {"check": 2, "fuse": False, "debug": 0}
    try:
        return compile(outputs, updates, **(options | {"reuse": False}))
    except BackendError:  # more memory than there is
        return compile(outputs, updates, **options)
