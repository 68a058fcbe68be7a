"""Verify one training step of a model on this machine.

The step is run in ways that must give the same bits: as it is trained (buffers shared, in place, fused, all threads),
without sharing, without in-place outputs, unfused, poisoned (freed bytes are filled with NaN) and with one thread.
Plans of one program are executed node by node to find the first node that differs. Then every kernel's result is
compared with its float64 definition on the same inputs, and loss and gradients with the whole step in float64.
Weights, moments and accumulators are restored.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, need_path
from ..base.errors import GradloomError, NonFiniteError, SettingError, one_line
from ..base.habits import hinted
from ..base.hooks import device_backends
from ..base.memory import need_memory, show_bytes
from ..base.settings import Switches, switches
from ..files.targets import check_target
from ..graph.graph import storage_leaf, update_target, view_base, written
from ..graph.value import Node, describe
from ..plan.plan import Plan
from ..run.backend import backend, check_effect, has_kernel, plan_for
from ..run.replay import defined
from ..run.walk import Definition, Judged, Stepped, distance, first_difference, judge, walk_on
from ..runs.capsules import Builder, save
from ..step.step import random_settings
from ..transform.passes import rewrite
from ..transform.program import Program, gather
from .arguments import refuse_settings
from .finetune import Run
from .json_rows import is_samples
from .model import model_of
from .not_finite import bad_tensor
from .teacher import teacher_of
from .tuning import computed_labels

if TYPE_CHECKING:
    from ..graph.value import Value
    from .json_rows import Source
    from .model import Adapter, Model
    from .packing import TokenData

TOKENS = 64  # default tokens per row: float64 references are slow
# settings of finetune that verify sets itself, or that have no effect on one step of one process
NO_EFFECT = (
    "micro_batch_size", "val_split", "reuse", "inplace", "fuse", "poison", "check", "debug", "backend", "parallel",
    "exchange", "timeout", "on_epoch",
)  # fmt: skip
TOTAL_TOLERANCE = 1e-3  # error of a whole step in f32, relative to the norm of a gradient
SPREADS = 3  # additional error in bf16, as a multiple of the distance between float64 with and without bf16 roundings
LEAST_SPREAD = 2**-9  # of a loss, which may agree by chance: half a unit of bf16


@dataclass(frozen=True)
class Check:
    """Result of one check: its name, whether it holds, the finding, and the first node that differs."""

    name: str
    holds: bool
    found: str
    node: str = ""


@dataclass
class Verification:
    """Result of verify. `agrees`: all checks hold."""

    tokens: int  # that the step trained on
    steps: int  # instructions
    peak_bytes: int
    unshared_bytes: int
    loss: float = float("nan")  # per token, or per sample
    checks: list[Check] = field(default_factory=list)
    capsule: str | None = None  # the file of the step, where a check failed and one was asked for

    @property
    def agrees(self) -> bool:
        return all(c.holds for c in self.checks)


@hinted
def verify(
    model: Model | str | os.PathLike[str],
    data: TokenData | Source,
    adapter: Adapter | str | os.PathLike[str] | None = None,
    *,
    context: int | None = None,
    batch_size: int = 1,
    reference: bool = True,
    on_check: Callable[[Check], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    threads: int | None = None,
    isa: str | None = None,
    precision: str | None = None,
    flush: bool | None = None,
    device: str = "cpu",
    capsule: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Verification:
    """Verify one training step: the first of finetune.Run with these settings and without validation rows.

    model, adapter: objects, or the paths of their files. context: tokens per row, by default 64 (for TokenData, their
    own); batch_size: rows. reference=False skips float64. on_check is called with each Check, on_progress with (nodes
    compared with float64, all nodes). device: "cpu", "gpu" or "gpu:1", for the step. capsule: a file; where a check
    fails, the step is saved there (gl.replay holds its instructions against their definitions). If an adapter's
    second matrices are all 0, as in a new adapter, they are replaced by small numbers for the step: otherwise the
    gradients of the first matrices would be 0.
    Raises SettingError if there is not enough memory, BackendError if there is no such device.
    """
    refuse_settings(settings, "verify", NO_EFFECT)
    for name in ("devices", "gpu_layers", "gpu_memory"):
        if settings.get(name) is not None:
            seen = f"{name}={one_line(settings[name])}"
            raise SettingError(f"verify: {seen}: a step is verified on one device; need device='gpu' or 'cpu'")
    chosen = switches(threads=threads, isa=isa, precision=precision, flush=flush)
    if device != "cpu" and (not isinstance(device, str) or device.partition(":")[0] not in device_backends):
        raise SettingError(setting="device", seen=device, need="'cpu', 'gpu' or 'gpu:1'", place="verify")
    check_effect("verify", [device], {"isa": isa, "flush": flush})
    backend(device, chosen)  # for its error, before anything is read
    if capsule is not None:
        need_path(capsule, "verify", "capsule")
        check_target(capsule)
    model = model_of(model, "verify")
    reference = as_bool("reference", reference)
    if context is None and (isinstance(data, (str, os.PathLike)) or is_samples(data)):
        context = min(TOKENS, model.config.context_length)
    run = Run(
        model, data, adapter,
        context=context, batch_size=batch_size, micro_batch_size=batch_size, val_split=0.0, backend="null", isa=isa,
        precision=precision, flush=flush, **settings,
    )  # fmt: skip
    options = {"threads": threads, "isa": isa, "precision": precision, "flush": flush, "device": device}
    job = replace(run.job, teacher=teacher_of(run.objective, model))
    computed = computed_labels(job, run.forward, run.batch_size, options)
    if computed is not None and run.computed is not None:
        computed.prepare(run.job.row_tokens)
        computed.complete(run.dataset)
        run.computed.update()
    source = run.trainer.source(run.dataset)
    source.order.write(run.first_order())
    step = run.trainer.whole_step(source, run.batch_size)
    _check_memory(model, step.run.plan, reference, chosen.precision == "bf16", device != "cpu")
    verifier = _Verifier(run, step, chosen, device, on_check)
    try:
        verifier.same_bits()
        if device != "cpu":
            verifier.against_cpu()
        if reference:
            verifier.against_float64(on_progress)
        if capsule is not None and not verifier.result.agrees:
            verifier.save(capsule)
    finally:
        verifier.restore()
    return verifier.result


class _Verifier:
    """Compares other runs of the step with the unshared one, and collects the checks."""

    def __init__(
        self, run: Run, step: Any, chosen: Switches, device: str, on_check: Callable[[Check], None] | None
    ) -> None:
        self.run, self.step, self.chosen, self.device, self.on_check = run, step, chosen, device, on_check
        self.program = self.rewritten()
        self.numbers = {"position": 0, **random_settings(run.settings.seed, 1), "keep": 0.0} | run.optimizer.at(0, 0)
        plan = step.run.plan if device == "cpu" else plan_for(backend(device, chosen), self.program, chosen)
        counting = run.data.labels if run.data.parts is None else run.data.parts
        counted = int((counting[run.first_order()[: run.batch_size]] >= 0).sum())
        self.result = Verification(counted, len(plan.order.steps), int(plan.peak_bytes), int(plan.unshared_bytes))
        self.held = {s: s.read().copy() for s in step.run.writes}
        for stored, array in self.held.items():
            if stored.name.endswith(".lora_b") and not array.any():
                rng = np.random.default_rng(zlib.crc32(stored.name.encode()))
                stored.write(rng.standard_normal(array.shape) * 0.02)
        self.start = {s: s.read().copy() for s in self.held}
        self.base = self.walk(reuse=False, inplace=False, threads=1)
        try:
            self.values = self.base.run_all()
        except NonFiniteError as error:
            self.restore()
            cause = bad_tensor(run.model, run.adapter) or error
            raise NonFiniteError(f"verify: the loss or a gradient is not finite: {cause}") from None
        self.after = {s: s.read().copy() for s in self.held}
        self.loss = self.values_of(self.program.outputs[0])
        weight = float(self.values_of(self.program.outputs[1]))
        self.result.loss = float(self.loss) / (weight or 1.0)
        self.rewind()

    def rewritten(self, fuse: bool = True) -> Program:
        """The program of the step after all passes for the device."""
        where = backend(self.device, self.chosen)
        program = gather(self.step.outputs, self.step.updates)
        return rewrite(program, fuse, runs=lambda node: has_kernel(where, node), precision=self.chosen.precision)

    def walk(self, program: Program | None = None, device: str = "", **ways: Any) -> Stepped:
        """A new walk over the program, before its first step. device: instead of the verified one."""
        options = {"isa": self.chosen.isa, "threads": self.chosen.threads, "flush": self.chosen.flush} | ways
        walk = walk_on(program or self.program, Switches(**options), device or self.device)
        walk.begin({}, self.numbers)
        return walk

    def values_of(self, value: Value) -> np.ndarray:
        """The value that the unshared run computed for an output."""
        place = next(i for i, output in enumerate(self.program.outputs) if output is value)
        at = self.base.plan.laid.program.outputs[place]
        return self.values[self.base.steps.index(at.node)][at.index]

    def rewind(self) -> None:
        """Restore the stored arrays to their values before the step."""
        for stored, array in self.start.items():
            stored.write(array)

    def restore(self) -> None:
        """Restore the stored arrays to the values that the caller had."""
        for stored, array in self.held.items():
            stored.write(array)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the step as a capsule whose results are the definitions, with the arrays as they are before it."""
        self.rewind()
        built = Builder(self.device, self.chosen, "", model=self.run.model.path)
        built.rows = 0, self.run.batch_size
        program = gather(self.step.outputs, self.step.updates)
        built.add(program, {}, self.numbers)
        save(path, defined(built.finished(runs=False), self.chosen, self.device))
        self.result.capsule = os.fspath(path)

    def add(self, check: Check) -> None:
        self.result.checks.append(check)
        if self.on_check is not None:
            self.on_check(check)

    # ---- the same bits ---------------------------------------------------------------------------------------

    def same_bits(self) -> None:
        several = self.chosen.threads
        shared: tuple[str, dict[str, Any]] = (f"buffers shared, in place, {several} thread{'s' * (several > 1)}", {})
        last = "1 thread" if several > 1 else "2 threads", {"threads": 1 if several > 1 else 2}
        if self.device != "cpu":
            shared, last = ("buffers shared, in place", {}), ("a second run", {"reuse": False, "inplace": False})
        for name, ways in (
            shared,
            ("without in-place outputs", {"inplace": False}),
            ("dead bytes poisoned", {"poison": True}),
            last,
        ):
            self.add(self.side_by_side(name, ways))
        self.add(self.unfused())

    def side_by_side(self, name: str, ways: Mapping[str, Any]) -> Check:
        """Compare another plan of the same program node by node."""
        try:
            difference = first_difference(self.walk(**ways), self.values)
        except GradloomError as error:
            return Check(name, False, f"stopped: {error}")
        finally:
            self.rewind()
        if difference is None:
            return Check(name, True, f"the same bits in all {len(self.base.steps)} nodes")
        what = _shown(difference.node, difference.value, difference.amount)
        return Check(name, False, f"the first node that differs: {what}", _called(difference.node))

    def unfused(self) -> Check:
        """Compare the outputs and the stored arrays of another program of the same step."""
        name = "unfused"
        program = self.rewritten(fuse=False)
        walk = self.walk(program, fuse=False)
        try:
            values = walk.run_all()
        except GradloomError as error:
            self.rewind()
            return Check(name, False, f"stopped: {error}")
        after = {s: s.read().copy() for s in self.held}
        self.rewind()
        at = walk.plan.laid.program.outputs[0]
        loss = values[walk.steps.index(at.node)][at.index]
        pairs = [("the loss", loss, self.loss)] + [(s.name, after[s], self.after[s]) for s in self.held]
        for what, ours, theirs in pairs:
            if ours.tobytes() != theirs.tobytes():
                amount = distance(ours, theirs)
                return Check(name, False, f"{what} differs by {amount:.3g} of its largest number", what)
        nodes = len(walk.steps)
        return Check(name, True, f"the same bits in the loss and in all that trains ({nodes} nodes)")

    def against_cpu(self) -> None:
        """Compare each value with the result of the CPU's kernel for the inputs that the device computed. Therefore
        bf16 roundings do not accumulate over nodes, and an optimiser's first step, the sign of the gradient, does not
        differ for gradients that are noise."""
        name = "each node against the CPU"
        walk = self.walk(device="cpu", reuse=False, inplace=False)
        places = {node: k for k, node in enumerate(self.base.steps)}
        seen = {node.outputs[i]: array for node, k in places.items() for i, array in self.values[k].items()}
        worst, called = 0.0, "none"
        try:
            for k, node in enumerate(walk.steps):
                walk.run_step(k)
                definition = Definition(node, self.leaf, seen)
                for value, array in walk.written(k):
                    there = self.values[places[node]][value.index]
                    amount = distance(there, array)
                    if definition.excess(value, there, array) > 1:
                        what = _shown(node, value, amount)
                        return self.add(Check(name, False, f"the first node that differs: {what}", _called(node)))
                    if amount > worst:
                        worst, called = amount, _called(node)
                    if update_target(value) is None:
                        array[...] = there
                    else:
                        storage_leaf(value).node.attrs["stored"].write(there)
        finally:
            self.rewind()
        text = f"agree in all {len(walk.steps)} nodes; the largest difference is {worst:.2g} ({called})"
        return self.add(Check(name, True, text))

    def leaf(self, value: Value) -> np.ndarray:
        """The numbers of a leaf before the step."""
        before = self.start.get(value.node.attrs.get("stored"))
        return self.base.leaf(value) if before is None else before

    # ---- float64 ---------------------------------------------------------------------------------------------

    def against_float64(self, on_progress: Callable[[int, int], None] | None) -> None:
        """Compare each kernel with its float64 reference, then loss and gradients with a step in float64."""
        gradients = self.gradients()
        worst: Judged | None = None
        wrong: Judged | None = None
        far: dict[str, tuple[float, float]] = {}  # error, and permitted error
        last = None
        for judged in judge(self.base, self.values):
            if judged.excess > 1 and wrong is None:
                wrong = judged
            if worst is None or judged.own > worst.own:
                worst = judged
            if judged.value in gradients:
                far[gradients[judged.value]] = judged.total, TOTAL_TOLERANCE + SPREADS * judged.spread
            if judged.node is not last and on_progress is not None:
                on_progress(self.base.steps.index(judged.node) + 1, len(self.base.steps))
            last = judged.node
        name = "each node against float64"
        if wrong is not None:
            what = _shown(wrong.node, wrong.value, wrong.own)
            self.add(Check(name, False, f"the first node that differs: {what}", _called(wrong.node)))
        elif worst is not None:
            self.add(Check(name, True, f"agree; the largest error is {worst.own:.2g} ({_called(worst.node)})"))
        self.add(self.whole(far))

    def whole(self, far: dict[str, tuple[float, float]]) -> Check:
        """Check the errors of loss and gradients against the step in float64."""
        rounded = self.chosen.precision == "bf16"
        loss, loss_allowed = far.pop("the loss", (float("nan"), TOTAL_TOLERANCE))
        loss_allowed += SPREADS * LEAST_SPREAD * rounded
        which, (amount, allowed) = max(
            far.items(), key=lambda item: item[1][0] / item[1][1], default=("none", (0.0, 1))
        )
        text = f"the loss differs by {loss:.2g}, {len(far)} gradients by at most {amount:.2g} ({which})"
        text += f"; roundings may cost {loss_allowed:.2g} and {allowed:.2g}" if rounded else ""
        right = loss <= loss_allowed, amount <= allowed
        node = "" if all(right) else which if right[0] else "the loss"
        return Check("loss and gradients against float64", all(right), text, node)

    def gradients(self) -> dict[Value, str]:
        """The names of the values that the guard reads: the loss and each gradient."""
        guard = next(n for n in self.base.steps if n.op.guard)
        values = [v for v in guard.inputs if v is not None]
        names = list(self.run.adapter.parameters())
        names = names if len(names) == len(values) - 2 else [v.node.label for v in values[2:]]
        names_of = {view_base(values[0]): "the loss"}
        return names_of | {view_base(v): name for v, name in zip(values[2:], names, strict=True)}


def _called(node: Node) -> str:
    """The op and the name of the node, for messages."""
    return f"{node.op.name} {node.name}".rstrip()


def _shown(node: Node, value: Value, amount: float) -> str:
    return f"{_called(node)} ({describe(value)}), by {amount:.3g} of its largest number"


def _check_memory(model: Model, plan: Plan, reference: bool, rounded: bool, on_gpu: bool) -> None:
    """Raise SettingError if the compared runs do not fit into memory together."""
    largest = max((int(np.prod(w.shape)) for w in model.weights.values()), default=0)
    need = plan.placement.unshared_bytes + plan.peak_bytes + sum(s.bytes for s in written(plan.order.steps)) * 3
    if reference:  # all live values in float64, twice; for bf16 four times
        need += (4 + 4 * rounded) * plan.placement.lower_bound_bytes
    if reference or on_gpu:  # one weight and its product at a time
        need += 16 * largest
    hint = "need a smaller --context, a smaller --batch-size" + (" or --no-reference" if reference else "")
    need_memory(need, f"verify: {show_bytes(need)} of memory are needed", hint)
