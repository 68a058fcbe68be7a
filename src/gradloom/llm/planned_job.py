"""The programs of a fine-tuning, planned for devices that do not run, and their memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..base import memory
from ..base.errors import SettingError
from ..base.memory import Memory
from ..base.settings import switches
from ..graph.stored import Stored
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.backend import computing, device_bytes, device_of, is_device
from ..run.budget import HUGE, STEP_BYTES
from ..train.loop import copied_bytes
from ..train.source import PlannedSource
from .gpu_layers import PLANNED
from .memory_plan import MemoryPlan
from .reference import Reference
from .soft_labels import SoftLabels
from .tuning import Tuning, TuningJob


def planned(job: TuningJob) -> tuple[Tuning, PlannedSource]:
    """Its steps, compiled for devices that are only planned for, and their source."""
    settings = copy.copy(job.settings)  # the optimiser that is given begins with the run
    object.__setattr__(settings, "optimizer", copy.copy(job.settings.optimizer))
    options = dict(job.options)
    for name in options.get("devices", (options.get("backend", "cpu"),)):
        if name != "cpu" and not is_device(name):
            raise SettingError(setting="device", seen=name, need="'cpu', 'gpu' or 'gpu:1'", place="plan")
    several = tuple(PLANNED + name for name in options.get("devices", ()))
    options |= {"devices": several} if several else {"backend": PLANNED + options.get("backend", "cpu")}
    tuning = Tuning(replace(job, settings=settings, options=options, layers=job.layers and job.layers.planned()))
    objective = job.objective
    shapes = objective.shapes(job.context, job.samples, job.numbers)
    source = PlannedSource(job.all_rows, *shapes, has_ids=objective.has_ids and not job.numbers)
    tuning.compile(source)
    return tuning, source


def memory_of(
    tuning: Tuning, has_text: bool, there: Memory | None = None, plans: Sequence[Plan] | None = None
) -> MemoryPlan:
    """The memory of steps that are compiled; has_text: a tokenizer reads the data; there: the memory before them;
    plans: other ones of its programs."""
    trainer, model = tuning.trainer, tuning.model
    every, layers = tuning.plans if plans is None else plans, tuning.layers
    split = [p for p in every if isinstance(p, Schedule)]
    here = [_here(p) for p in every if not (isinstance(p, Plan) and is_device(computing(p.device)))]
    plans = here or [_here(p) for p in every]
    largest = max(plans, key=lambda p: p.peak_bytes)
    parts = [part.plan for p in split for name, part in p.parts.items() if is_device(computing(name))]
    recomputed = max(parts or plans, key=lambda p: p.peak_bytes).recomputed
    trained = {p.stored for p in tuning.adapter.parameters().values()}
    state = {p.stored for arrays in trainer.state.values() for p in arrays.values()}
    exchanges = trainer.driver.exchanges
    exchanged = [stored for exchange in exchanges for stored in exchange.flat.stored]
    sums = {*trainer.accumulators, *exchanged}
    programs = [*plans, *(part.plan for p in split for part in p.parts.values())]
    touched = {s for p in programs for s in p.bytecode.stored}
    weights = {s for s in touched if s.check is not None and model.weights.get(s.name) is s}
    before = tuning.computed.replaced(weights) if isinstance(tuning.computed, Reference) else set()
    inputs = touched - weights - trained - state - sums - set(model.weights.values())
    there = memory.memory() if there is None else there
    device = device_of(every, trainer.options.get("backend", "cpu"))
    held = device_bytes(device, every, switches())
    moved = max(split, key=lambda p: p.transfer_bytes, default=None)
    return MemoryPlan(
        programs=tuple(every),
        weights=_bytes(weights - before),
        copies=model.copied_bytes,
        copied=max(_copied(tuning), _bytes(before)),
        trained=_bytes(trained),
        state=_bytes(state),
        gradients=_bytes(sums) + sum(exchange.reduction_bytes for exchange in exchanges),
        inputs=_bytes(inputs) + max(p.bytecode.inputs_bytes + len(p.bytecode.constants) for p in plans),
        arena=max(p.bytecode.arena_bytes for p in plans),
        scratch=max(p.bytecode.scratch_bytes for p in plans),
        threads=largest.threads,
        process=_process_bytes(plans, largest, held is not None and moved is None)
        + (model.tokenizer_bytes if has_text else 0),
        lower_bound=largest.placement.lower_bound_bytes,
        unshared=largest.placement.unshared_bytes,
        steps=len(largest.order.steps),
        available=None if there is None else there.available,
        recomputed=recomputed.bytes,
        teacher=tuning.computed.bytes if isinstance(tuning.computed, SoftLabels) else 0,
        recompute_overhead=round(recomputed.overhead, 4),
        device=computing(device),
        on_device=held,
        layers=layers,
        transfers=0 if moved is None else len(moved.transfers),
        transferred=0 if moved is None else moved.transfer_bytes,
    )


def _copied(tuning: Tuning) -> int:
    """Bytes of copies of trained arrays: of a checkpoint and of callbacks; see train/loop.py."""
    return copied_bytes(tuning.trainer, lambda weights, state: state + tuning.job.kept * weights)


def _here(plan: Plan | Schedule) -> Plan:
    """The plan of what this process's memory is planned for: the part of the CPU, of a schedule."""
    if isinstance(plan, Plan):
        return plan
    return next((part.plan for name, part in plan.parts.items() if not is_device(computing(name))), plan.first)


def _process_bytes(plans: Sequence[Plan], largest: Plan, on_device: bool) -> int:
    """Memory of compiled steps in addition to the arena and the scratch of the largest one."""
    arena = max(p.bytecode.arena_bytes for p in plans)
    steps = sum(len(p.order.steps) for p in plans)
    scratch = sum(-(-p.bytecode.scratch_bytes * p.threads // HUGE) * HUGE for p in plans)
    return (
        STEP_BYTES * steps
        + (0 if on_device else -arena % HUGE)
        + scratch
        - largest.bytecode.scratch_bytes * largest.threads
    )


def _bytes(stored: Iterable[Stored]) -> int:
    return sum(s.bytes for s in stored)
