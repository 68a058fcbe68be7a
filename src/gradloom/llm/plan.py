"""plan: how many bytes a fine-tuning needs, and whether this machine has them, before anything runs.

The plan is the very one that a run would use: graph, gradients and update are built, placed and proved; only nothing is
allocated, and no weight is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import memory
from ..base.arguments import as_whole
from ..base.errors import BudgetError, SettingError
from ..base.extras import need_llm
from ..base.finetune_options import PlacingOptions, TuneOptions
from ..base.memory import need_memory, show_above, show_bytes
from ..base.options import taken, takes
from ..base.training_options import RankOptions
from ..graph.numbers import addressable
from ..optim.moments import FULL_BITS
from ..parallel.agree import is_root
from ..run.budget import HUGE, STEP_BYTES, check_places, resident_when_settled
from ..run.compile import memory_curve
from ..run.cpu_backend import release_arena
from .arguments import adapter_of, data_arguments, refuse_settings
from .duration import duration_of
from .gpu_layers import PLANNED, GpuLayers, bytes_on, check_layers, layers_for
from .lora import LoRA
from .memory_plan import FEWER_TRAINED, MemoryPlan
from .model import Adapter, Model, model_of
from .objective import Objective
from .planned_job import memory_of, planned
from .pooled import parts_of_tokens
from .room import within
from .rows import CONTEXT, Rows, is_source, need_weights, read_rows
from .scored import with_head
from .teacher import teacher_of
from .trained_tensors import TrainedTensors
from .tuning import Settings, Sizes, Tuning, TuningJob, split_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import PlanArguments
    from .json_rows import Source
    from .packing import TokenData


FINE = 64  # of an arena, about the part by which it may be smaller than a budget of a GPU allows


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
    asked = asked.settled(model, trained, data, data_options or {})
    teacher = teacher_of(asked.chosen, model)
    if data is not None:
        rows = read_rows(
            model, data, asked.context, asked.val_split, asked.seed, val, trained, form=asked.chosen.form,
            **data_arguments(data_options),
        )  # fmt: skip
        asked.chosen.check(rows, int(asked.batch_size))
        sizes = sizes_of(rows, asked.chosen, eval_rows)
        trained = with_head(asked.chosen, trained, model, rows)
    else:
        for name, given in {"val": val, "eval_rows": eval_rows, **(data_options or {})}.items():
            if given is not None:
                text = f"{{{name}}} requires {{data}}, that of the run"
                raise SettingError(text, {name: given, "data": ...}, place="plan")
        context = _context(asked, model)
        numbers = asked.chosen.form.numbers
        sizes = Sizes(2 * asked.batch_size - 1, 0, 0, context, 1, numbers)  # a batch, and one that is not full
        trained = with_head(asked.chosen, trained, model, None)
        row, _ = asked.chosen.shapes(context, 1, numbers)
        if not addressable((sizes.rows, *row), 4):
            text = f"{{batch_size}}: rows of {row[-1]} tokens take 2^63 bytes or more; use a smaller one"
            raise SettingError(text, batch_size=asked.batch_size)
    is_packed = data is not None and not is_source(data)
    job = TuningJob(model, trained, asked, *sizes, ranks, exchange, None, options, is_packed=is_packed, teacher=teacher)
    if data is None:
        validated = 0 if asked.val_split == 0 else 2 * job.micro_batch_size - 1
        job = replace(job, val_rows=validated, all_rows=job.rows + validated)
    job = placed("plan", job, use.gpu_layers, use.gpu_memory)
    reading = 0 if data is None else memory.resident_peak()
    job = within("plan", job, use.memory, base, reading)
    tuning, source = planned(job)
    found = memory_of(tuning, data is None or "tokenizer" in vars(model), there)
    held = resident_when_settled()
    duration = duration_of(tuning, source) if found.fits else None
    found = replace(found, layers=job.layers, base=base, reading=reading, duration=duration, held=held)
    left = max(resident_when_settled() - base - found.process, 0)
    return replace(found, left=left, curve=_curve(job, tuning, found))


def _curve(job: TuningJob, tuning: Tuning, found: MemoryPlan) -> tuple[tuple[int, float], ...]:
    """(bytes that are needed, relative time of the largest step) with ever smaller budgets; none on other devices
    than the CPU, and with ranks."""
    if found.on_device is not None or job.ranks is not None:
        return ()
    if job.arena is not None:  # without clones
        tuning = planned(replace(job, arena=None))[0]
    largest = max(tuning.trainer.compiled, key=lambda step: step.run.plan.peak_bytes)
    others, scratch = found.need - found.planned - -found.arena % HUGE, found.planned - found.arena
    points = list[tuple[int, float]]()
    for bytes, time, clones in memory_curve(largest.run):
        need = others + bytes + -(bytes - scratch) % HUGE + STEP_BYTES * clones
        if not points or need < points[-1][0]:  # the arena takes whole huge pages
            points.append((need, time))
    return tuple(points)


def base_bytes() -> int:
    """Resident memory of this process before a run, after loading the libraries that a run needs; without the arena of
    earlier programs, which is freed."""
    need_llm()
    import gguf  # noqa: F401
    import tokenizers  # noqa: F401

    from . import data, packing, tokenizer  # noqa: F401

    release_arena()
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
    need_weights(rows, objective)
    if rows.weights is not None:
        return sizes._replace(numbers=1)
    if rows.values is None:
        return sizes
    samples, numbers = rows.values.shape[1], rows.values.shape[2] - 1
    return sizes._replace(samples=samples, numbers=numbers, shortest=_shortest(rows, samples, objective.form.parts))


def _shortest(rows: Rows, samples: int, parts: int) -> tuple[int, ...]:
    """See Sizes."""
    part = parts_of_tokens(rows)
    row, place = np.nonzero(part >= 0)
    lengths = np.bincount(row * samples + part[row, place] // parts)
    found = np.sort(lengths[lengths > 0])
    most = int((np.cumsum(found) <= rows.tokens.shape[1]).sum())
    return tuple(found[: most + parts].tolist())


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
            need_text = f"at least about {show_above(need, budget)}"
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


def check_trained(model: Model, adapter: Adapter, state_bits: int = FULL_BITS) -> None:
    """SettingError when the arrays that train, and AdamW's moments of `state_bits` bits, are more than there is memory:
    before any of them is made. FileError for a whole model that cannot be written as a GGUF file."""
    if isinstance(adapter, TrainedTensors):
        adapter.check_file(model)
    if isinstance(adapter, (LoRA, TrainedTensors)):
        need = adapter.trained_bytes(model) * (FULL_BITS + 2 * state_bits) // FULL_BITS
        need_memory(need, f"plan: {show_bytes(need)} of memory are needed to train these tensors", FEWER_TRAINED)
