"""compile: from values to something that runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.collector import paused
from ..base.errors import BackendError, DTypeError, GraphError
from ..base.settings import switches
from ..graph.grad import gradients
from ..graph.graph import check_graph, check_updates
from ..graph.leaves import Parameter
from ..graph.stored import held
from ..graph.value import Value, builds_graphs, describe
from ..transform.passes import rewrite
from ..transform.program import Program, gather
from .backend import Buffer, has_kernel, plan_for
from .backend import backend as backend_of
from .numpy_backend import evaluate


@paused()
@builds_graphs
def compile(
    outputs: Value | Sequence[Value],
    updates: Sequence[Value] = (),
    *,
    backend: str = "cpu",
    threads: int | None = None,
    isa: str | None = None,
    reuse: bool | None = None,
    inplace: bool | None = None,
    fuse: bool | None = None,
    poison: bool | None = None,
    debug: int | None = None,
    check: int | None = None,
    arena: Buffer | None = None,
) -> Any:
    """Plan, prove and load a program.

    outputs: one or several values to read after each call. updates: outputs of update ops to carry out (updates that
    belong to nodes on the way, such as running statistics, are carried out anyway). backend: "cpu", "numpy" (float64
    references, the definition), "null" (plans only), or what was registered (run/backend.py). arena: memory of its own
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
        threads=threads, isa=isa, reuse=reuse, inplace=inplace, fuse=fuse, poison=poison, debug=debug, check=check
    )
    made = backend_of(backend, chosen)
    program = gather(values, updates)
    check_updates(program.nodes)
    if not made.planned:
        return made.load(program, None)

    def after(name: str, program: Program) -> None:
        if chosen.check >= 2:
            check_graph(program.nodes)
        if chosen.debug >= 3:
            print(f"after {name}:\n{program}", file=sys.stderr)

    program = rewrite(program, chosen.fuse, after, lambda node: has_kernel(made, node))
    check_graph(program.nodes)
    return made.load(program, plan_for(made, program, chosen), arena)


def compile_checked(outputs: Sequence[Value], updates: Sequence[Value], **options: Any) -> Any:
    """The same program once more, to find the first node that is not finite: checked, unfused, and unshared where the
    memory suffices."""
    options = options | {"check": 2, "fuse": False, "debug": 0}
    try:
        return compile(outputs, updates, **(options | {"reuse": False}))
    except BackendError:  # more memory than there is
        return compile(outputs, updates, **options)


def check_gradients(
    loss: Value,
    feeds: Mapping[str, Any] | None = None,
    *,
    parameters: Sequence[Value] | None = None,
    step: float = 1e-6,
    tolerance: float = 1e-5,
    entries: int = 64,
    seed: int = 0,
) -> float:
    """Hold every parameter's gradient against central differences of the float64 reference.

    loss: any shape; its elements are summed. parameters: by default all trainable ones that the loss reaches. Up to
    `entries` randomly chosen entries of each are moved by `step` (relative to their size). Returns the worst error,
    |analytic - numeric| / max(1, |numeric|); raises GradientError naming the worst entry beyond tolerance.
    """
    from ..base.errors import GradientError

    nodes = gather([loss]).nodes
    if parameters is None:
        parameters = [v for n in nodes for v in n.outputs if isinstance(v, Parameter) and v.trainable]
    grads = gradients(loss, parameters)
    known = evaluate([loss, *[g for g in grads if g is not None], *parameters], feeds)
    rng = np.random.default_rng(seed)
    worst = (0.0, "")
    for parameter, grad in zip(parameters, grads, strict=True):
        at = known[parameter]
        analytic = np.zeros(at.shape) if grad is None else known[grad]
        flat = rng.permutation(at.size)[:entries] if at.size > entries else range(at.size)
        for entry in flat:
            i = np.unravel_index(entry, at.shape)
            h = step * max(1.0, abs(float(at[i])))
            total = 0.0
            for sign in (1, -1):
                moved = at.copy()
                moved[i] += sign * h
                total += sign * float(np.sum(evaluate([loss], feeds, {parameter: moved})[loss]))
            numeric = total / (2 * h)
            error = abs(float(analytic[i]) - numeric) / max(1.0, abs(numeric))
            if not error <= worst[0]:
                place = f"{parameter.node.label}[{','.join(map(str, i))}]"
                worst = (error, f"{place}: gradient {float(analytic[i]):.9g}, finite difference {numeric:.9g}")
    if not worst[0] <= tolerance:
        raise GradientError(f"check_gradients: {worst[1]}; error {worst[0]:.3g}, need at most {tolerance:g}")
    return worst[0]


def compare(
    outputs: Value | Sequence[Value],
    feeds: Mapping[str, Any] | None = None,
    backends: Sequence[str] = ("numpy", "cpu"),
    *,
    tolerance: float = 1e-4,
    **options: Any,
) -> tuple[Value, float] | None:
    """The first node, in order, at which two backends differ by more than `tolerance`, and by how much; or None.

    Compares every float value of the graph, unfused: max |a - b| / max(1, max |a|). options go to compile.
    """
    values = [outputs] if isinstance(outputs, Value) else list(outputs)
    every = [v for n in gather(values).nodes if not n.op.updates for v in n.outputs if v.dtype.is_float]
    feeds = dict(feeds or {})
    found = []
    for name in backends:
        run = compile(every, backend=name, **(options | {"fuse": False} if name == "cpu" else {}))
        state = [n.attrs["stored"] for n in run.program.nodes if n.op.name == "parameter"]
        written = [stored for stored in state if stored.role != "frozen"]
        with held(written, written):
            before = [stored.read().copy() for stored in written]
            found.append(run(**feeds))
            for stored, data in zip(written, before, strict=True):  # running statistics stay as they were
                stored.write(data)
    first, second = found
    for value, a, b in zip(every, first, second, strict=True):
        if a.size == 0:
            continue
        with np.errstate(invalid="ignore"):
            difference = float(np.max(np.abs(a - b))) / max(1.0, float(np.max(np.abs(a))))
        if not difference <= tolerance and not np.array_equal(a, b, equal_nan=True):
            return value, difference
    return None
