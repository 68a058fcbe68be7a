"""plan: how many bytes a fine-tuning needs, and whether this machine has them, before anything runs.

The plan is the very one that a run would use: graph, gradients and update are built, placed and proved; only nothing is
allocated, and no weight is read.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base import memory
from ..base.arguments import as_whole
from ..base.dtypes import dtype
from ..base.errors import BudgetError, SettingError
from ..base.extras import need_llm
from ..base.finetune_options import PlacingOptions, TuneOptions
from ..base.memory import Memory, need_memory, show_bytes
from ..base.messages import log
from ..base.options import taken, takes
from ..base.settings import switches
from ..base.training_options import RankOptions
from ..graph.numbers import addressable
from ..graph.stored import Stored
from ..optim.moments import FULL_BITS
from ..parallel.agree import is_root
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.backend import computing, device_bytes, device_of, is_device
from ..run.budget import (
    HUGE,
    RESUMED_HINT,
    STEP_BYTES,
    budget_bytes,
    check_one_process,
    check_places,
    resident_when_settled,
    shared_bytes,
    too_small,
)
from ..run.compile import memory_curve
from ..run.rates import measure_early
from ..train.arguments import halves
from ..train.loop import copied_bytes
from ..train.source import PlannedSource
from .arguments import adapter_of, data_arguments, refuse_settings
from .duration import duration_of
from .gpu_layers import PLANNED, GpuLayers, bytes_on, check_layers, layers_for
from .lora import LoRA, TrainedTensors
from .memory_plan import FEWER_TRAINED, MemoryPlan
from .model import Adapter, Model, model_of
from .objective import Objective
from .rows import CONTEXT, Rows, read_rows
from .tuning import Settings, Sizes, Tuning, TuningJob, split_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import PlanArguments
    from .json_rows import Source
    from .packing import TokenData


FINE = 64  # of an arena, about the part by which it may be smaller than a budget of a GPU allows
NEAREST = 3  # settings that an error proposes, at most
TRIES = 2  # of each kind that are planned, at most
SHORTEST = 32  # tokens of a context that an error proposes


@takes(PlacingOptions, TuneOptions, RankOptions)
def plan(
    model: Model | str | os.PathLike[str],
    adapter: Adapter | str | os.PathLike[str] | None = None,
    data: TokenData | Rows | Source | None = None,
    *,
    data_options: Mapping[str, Any] | None = None,
    val: Source | None = None,
    eval_rows: int | None = None,
    **settings: Unpack[PlanArguments],
) -> MemoryPlan:
    """The memory that `finetune` needs with these arguments, which are its own.

    With data, which are read for it, it equals the memory of the run, by the byte. Without: of a run with validation,
    unless val_split=0, on rows that do not fill their last batches; finetune holds all rows of its data, about 12 bytes
    a token more, and its peak can be that of reading the data. model, adapter: objects, or the paths of their files.
    device: where the steps would run, "cpu", "gpu", "gpu:1"; for a GPU the bytes of all buffers there, none of which is
    made. duration: on the CPU of one process, by speeds of this machine, which are measured in about 0.1 s.
    Raises SettingError for settings that finetune refuses, BackendError where there is no such device.
    """
    base, there = base_bytes(), memory.memory()
    refuse_settings(settings, "plan", ("on_epoch", "on_progress", "backend"))
    use, more = taken(PlacingOptions, settings)
    asked, ranks, exchange, options = split_arguments(more, plan)
    check_layers("plan", use.gpu_layers, use.gpu_memory, trains=True, **options)
    check_places("plan", use.memory, options, use.gpu_layers)
    model = model_of(model, "plan")
    trained = asked.adapter(adapter_of(adapter, model, "finetune"))
    if data is not None:
        rows = read_rows(
            model, data, asked.context, asked.val_split, asked.seed, val, form=asked.chosen.form,
            **data_arguments(data_options),
        )  # fmt: skip
        sizes = sizes_of(rows, asked.chosen, eval_rows)
    else:
        for name, given in {"val": val, "eval_rows": eval_rows, **(data_options or {})}.items():
            if given is not None:
                text = f"{{{name}}} requires {{data}}, that of the run"
                raise SettingError(text, {name: given, "data": ...}, place="plan")
        context = _context(asked, model)
        numbers = asked.chosen.form.numbers
        sizes = Sizes(2 * asked.batch_size - 1, 0, 0, context, 1, numbers)  # a batch, and one that is not full
        row, _ = asked.chosen.shapes(context, 1, numbers)
        if not addressable((sizes.rows, *row), 4):
            text = f"{{batch_size}}: rows of {row[-1]} tokens take 2^63 bytes or more; use a smaller one"
            raise SettingError(text, batch_size=asked.batch_size)
    job = TuningJob(model, trained, asked, *sizes, ranks, exchange, None, options)
    if data is None:
        validated = 0 if asked.val_split == 0 else 2 * job.micro_batch_size - 1
        job = replace(job, val_rows=validated, all_rows=job.rows + validated)
    job = placed("plan", job, use.gpu_layers, use.gpu_memory)
    reading = 0 if data is None else memory.resident_peak()
    job = within("plan", job, use.memory, base, reading)
    tuning, source = planned(job)
    found = memory_of(tuning, data is None or "tokenizer" in vars(model), there)
    duration = duration_of(tuning, source) if found.fits else None
    found = replace(found, layers=job.layers, base=base, reading=reading, duration=duration)
    found = replace(found, curve=_curve(job, tuning, found))
    del tuning, source
    return replace(found, left=max(resident_when_settled() - base, 0))


def _curve(job: TuningJob, tuning: Tuning, found: MemoryPlan) -> tuple[tuple[int, float], ...]:
    """(bytes that are needed, relative time of the largest step) with ever smaller budgets; none on other devices
    than the CPU, and with ranks."""
    if found.on_device is not None or job.ranks is not None:
        return ()
    if job.arena is not None:  # without clones
        tuning = planned(replace(job, arena=None))[0]
    largest = max(tuning.trainer.compiled, key=lambda step: step.run.plan.peak_bytes)
    others = found.need - found.planned
    return tuple((others + bytes, time) for bytes, time in memory_curve(largest.run))


def base_bytes() -> int:
    """Resident memory of this process before a run, after loading the libraries that a run needs."""
    need_llm()
    import gguf  # noqa: F401
    import tokenizers  # noqa: F401

    from . import data, packing, tokenizer  # noqa: F401

    return memory.resident()


def _context(asked: Settings, model: Model) -> int:
    """The tokens of a row."""
    limit, context = model.config.context_length, asked.context
    length = min(CONTEXT, limit) if context is None else context
    if not 2 <= length <= limit:
        raise SettingError(setting="context", seen=context, need=f"2 to {limit}, the model's context")
    return length


def sizes_of(rows: Rows, objective: Objective, eval_rows: int | None) -> Sizes:
    """Sizes of a fine-tuning on these rows."""
    most = len(rows.val) if eval_rows is None else as_whole("eval_rows", eval_rows, 1)
    if eval_rows is not None and not len(rows.val):
        text = "{eval_rows} requires validation rows: {val_split} above 0"
        raise SettingError(text, eval_rows=eval_rows, val_split=..., place="finetune")
    every, context = len(rows.train) + len(rows.val), rows.tokens.shape[1] // objective.form.parts
    sizes = Sizes(len(rows.train), min(len(rows.val), most), every, context)
    if rows.values is None:
        return sizes
    return sizes._replace(samples=rows.values.shape[1], numbers=rows.values.shape[2] - 1)


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
    source = PlannedSource(job.all_rows, *shapes, has_ids=objective.has_ids)
    tuning.compile(source)
    return tuning, source


def placed(who: str, job: TuningJob, gpu_layers: int | str | None, gpu_memory: int | str | None) -> TuningJob:
    """The same with the layers that are on a GPU, see layers_for, and with programs that hold at most `gpu_memory`
    bytes there; nodes are computed twice where that is needed. The head is not among the layers where it is the
    embedding, too, and trains: it has one home. SettingError with about the least bytes where they do not fit."""
    gpu, budget = check_layers(who, gpu_layers, gpu_memory, trains=True, **job.options)
    arenas: dict[GpuLayers | None, int | None] = {}

    def held(layers: GpuLayers | None, there: str) -> int:
        arenas[layers], bytes = _on_gpu(replace(job, layers=layers), there, budget)
        return bytes

    if gpu_layers is None:
        if budget is not None and (need := held(None, PLANNED + gpu)) > budget:
            need_text = f"at least about {show_bytes(need)}"
            raise SettingError(setting="gpu_memory", seen=gpu_memory, need=need_text, place=who)
        return replace(job, arena=arenas.get(None))
    trains_head = job.model.tied and isinstance(job.adapter, TrainedTensors)
    layers, options = layers_for(
        who, job.model.config.layers, gpu_layers, gpu_memory, job.options, lambda some: held(some, some.gpu),
        head=not trains_head, warn=is_root(job.ranks),
    )  # fmt: skip
    arena = None if layers is None else arenas.get(layers.planned())
    return replace(job, layers=layers, options=options, arena=arena)


def _on_gpu(job: TuningJob, gpu: str, budget: int | None) -> tuple[int | None, int]:
    """(the most bytes of the arena of each program with which all that they hold on a GPU fits `budget`, None where it
    fits anyway; the bytes that they hold then: more than `budget` where the least do not fit). gpu: its planned
    name."""
    arena, before, grown, tries, is_least = None, None, 0.0, 0, False
    while True:
        try:
            there = bytes_on(gpu, planned(replace(job, arena=arena))[0].plans)
        except BudgetError as error:
            arena, is_least = error.least, True  # of this program, others may need more
            continue
        if budget is None or there.total <= budget or is_least:
            return arena, there.total
        if before is not None and before.arena > there.arena:  # besides the arena, clones take bytes for their code
            grown = max(1 - (before.total - there.total) / (before.arena - there.arena), 0.0)
        step = max(int((1 + grown) * (there.total - budget)), tries * there.arena // FINE)
        arena, before, tries = max(min(there.arena, arena or there.arena) - step, 1), there, tries + 1


def within(who: str, job: TuningJob, limit: int | str | None, base: int, reading: int) -> TuningJob:
    """The same with programs so small that the process stays below `limit` bytes; "auto": those available now.

    Recomputation comes first, which changes no bit; then, unless micro_batch_size is given or belongs to a resumed run,
    a smaller micro-batch. SettingError, before anything is allocated, where that does not suffice."""
    if limit is None:
        return job
    check_places(who, limit, job.options)
    check_one_process(limit, job.ranks)
    most = budget_bytes(who, limit, base)
    totals = []
    for tried in (job, *job.smaller()):
        found, total = _in_arena(tried, most, base, reading)
        totals.append(total)
        if found is not None:
            if tried is not job:
                log.info("memory: %d rows are computed at once, not %d", tried.micro_batch_size, job.micro_batch_size)
            return found
    raise too_small(who, most, min(totals), _enough([job, *job.smaller()][-1], most, totals[-1], base, reading))


def _enough(job: TuningJob, most: int, total: int, base: int, reading: int) -> str:
    """The nearest settings with which a job that needs `total` bytes has room in `most`, in words: at most NEAREST."""
    if job.is_resumed:
        return RESUMED_HINT
    whole = memory_of(planned(job)[0], False)
    arena = max(total - base - (whole.need - whole.planned), 0)  # about, with everything computed again
    enough: list[str] = []
    for tries in _alternatives(job):
        likely = [(text, other) for text, share, other in tries if total - (1 - share) * arena < most][:TRIES]
        found = (text for text, other in likely if _has_room(other, most, base, reading))
        enough += [text] if len(enough) < NEAREST and (text := next(found, "")) else []
    weights = list(job.model.weights.values())
    saved = {kind: _bytes(weights) - dtype(kind).bytes_of(sum(w.size for w in weights)) for kind in ("q8_0", "q4_0")}
    enough += [f"a model of type {kind}" for kind, bytes in saved.items() if bytes >= total - most][:1]
    if not enough:
        return "a shorter context, a smaller rank or model"
    return f"it is enough for {', or '.join(enough[:NEAREST])}"


def _has_room(job: TuningJob, most: int, base: int, reading: int) -> bool:
    """False also for settings that do not go together."""
    try:
        return _in_arena(job, most, base, reading)[0] is not None
    except SettingError:
        return False


def _alternatives(job: TuningJob) -> Iterator[list[tuple[str, float, TuningJob]]]:
    """Settings, in words, about their share of the bytes of activations, and the job with them; of each kind the
    nearest first."""
    if job.ranks is None:
        yield [
            (f"micro-batch size {size}", size / job.micro_batch_size, job.with_micro_batch(size))
            for size in halves(job.micro_batch_size)
        ]
    if job.options.get("precision") != "bf16":
        yield [("precision bf16", 0.7, replace(job, options={**job.options, "precision": "bf16"}))]
    yield [
        (f"context {context}", context / job.context, replace(job, context=context))
        for context in halves(job.context)
        if context >= SHORTEST
    ]
    if isinstance(job.adapter, TrainedTensors):
        yield [("method lora", 0.0, replace(job, adapter=LoRA()))]


def _in_arena(job: TuningJob, most: int, base: int, reading: int) -> tuple[TuningJob | None, int]:
    """(the job with programs that leave the process at most `most` bytes; the bytes that it then has), or (None, about
    the least bytes that it can have)."""
    total = arena = held = 0
    while True:
        try:
            found = _planned_memory(job, not reading or "tokenizer" in vars(job.model))
        except BudgetError as error:  # of a job with an arena, whose total is known
            return None, total - arena + error.least
        if not held:  # later plans use the memory that the first one has left
            held = max(base, resident_when_settled() - shared_bytes(found.arena))
        total = replace(found, base=held, reading=reading).budget()
        if total <= most:
            return job, total
        arena = found.planned
        job = replace(job, arena=max(arena - (total - most), 1))


def _planned_memory(job: TuningJob, has_text: bool) -> MemoryPlan:
    """The memory of a job, whose programs are planned and freed."""
    tuning = planned(job)[0]
    trained = [plan for plan in tuning.plans if isinstance(plan, Plan)]
    if job.ranks is None and trained:
        measure_early(trained, job.options.get("isa"))
    return memory_of(tuning, has_text)


def _copied(tuning: Tuning) -> int:
    """Bytes of copies of trained arrays: of a checkpoint and of callbacks; see train/loop.py."""
    return copied_bytes(tuning.trainer, lambda weights, state: state + tuning.job.kept * weights)


def check_trained(model: Model, adapter: Adapter, state_bits: int = FULL_BITS) -> None:
    """SettingError when the arrays that train, and AdamW's moments of `state_bits` bits, are more than there is memory:
    before any of them is made. FileError for a whole model that cannot be written as a GGUF file."""
    if isinstance(adapter, TrainedTensors):
        adapter.check_file(model)
    if isinstance(adapter, (LoRA, TrainedTensors)):
        need = adapter.trained_bytes(model) * (FULL_BITS + 2 * state_bits) // FULL_BITS
        need_memory(need, f"plan: {show_bytes(need)} of memory are needed to train these tensors", FEWER_TRAINED)


def memory_of(tuning: Tuning, has_text: bool, there: Memory | None = None) -> MemoryPlan:
    """The memory of steps that are compiled; has_text: a tokenizer reads the data; there: the memory before them."""
    trainer, model = tuning.trainer, tuning.model
    every, layers = tuning.plans, tuning.layers
    split = [p for p in every if isinstance(p, Schedule)]
    plans = [_here(p) for p in every if not (isinstance(p, Plan) and is_device(computing(p.device)))]
    plans = plans or [_here(p) for p in every]
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
    inputs = touched - weights - trained - state - sums - set(model.weights.values())
    there = memory.memory() if there is None else there
    device = device_of(every, trainer.options.get("backend", "cpu"))
    held = device_bytes(device, every, switches())
    moved = max(split, key=lambda p: p.transfer_bytes, default=None)
    return MemoryPlan(
        weights=_bytes(weights),
        copies=model.copied_bytes,
        copied=_copied(tuning),
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
        recompute_overhead=round(recomputed.overhead, 4),
        device=computing(device),
        on_device=held,
        layers=layers,
        transfers=0 if moved is None else len(moved.transfers),
        transferred=0 if moved is None else moved.transfer_bytes,
    )


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
