"""The memory budget of a fine-tuning: the programs with which its process has room, or settings that have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..base.arguments import halves
from ..base.errors import SettingError
from ..base.memory import show_above, show_bytes
from ..base.messages import log
from ..base.settings import switches
from ..parallel.agree import largest_of
from ..plan.plan import Plan
from ..run.budget import (
    FAR,
    FEWER_THREADS,
    KEPT_BY_RESUME,
    Hint,
    budget_bytes,
    check_one_process,
    check_places,
    enough,
    nearest,
    resident_when_settled,
    too_small,
)
from ..run.program_plans import ProgramPlans
from ..run.rates import measure_early
from .lora import LoRA
from .memory_plan import MemoryPlan
from .planned_job import memory_of, planned
from .trained_tensors import TrainedTensors
from .tuning import Tuning, TuningJob

SHORTEST = 32  # tokens of a context that an error proposes
NEAREST = 3  # settings that an error proposes, at most
STEPS_ONLY = ("threads", "micro_batch_size", "precision", "context")  # settings on which little depends but the steps
KINDS = ("q8_0", "q4_0")  # types of a model that an error proposes


@dataclass(frozen=True)
class Room:
    """A job within a budget.

    job: with programs that fit; None where none do. total: the bytes of the process then, or about the least it can
    have; fixed: those of them besides arena and scratch. held: resident bytes before, without programs.
    """

    job: TuningJob | None
    total: int
    fixed: int
    held: int


@dataclass(frozen=True)
class _Limit:
    """most: bytes; base, reading: of MemoryPlan."""

    most: int
    base: int
    reading: int


def within(who: str, job: TuningJob, limit: int | str | None, base: int, reading: int) -> TuningJob:
    """The same with programs so small that the process stays below `limit` bytes; "auto": those available now.

    Recomputation comes first, which changes no bit; then, unless micro_batch_size is given or belongs to a resumed run,
    a smaller micro-batch. SettingError, before anything is allocated, where that does not suffice."""
    if limit is None:
        return job
    check_places(who, limit, job.options)
    check_one_process(limit, job.ranks)
    its = _Limit(budget_bytes(who, limit, base), base, reading)
    _check_teacher(who, job, its)
    jobs = [job, *job.smaller()]
    left, tried = list(jobs), list[tuple[TuningJob, Room]]()
    while left:
        one = left.pop(0)
        room = _room(one, its, tried[0][1].held if tried else None)
        if room.job is not None:
            if one is not job:
                log.info("memory: %d rows are computed at once, not %d", one.micro_batch_size, job.micro_batch_size)
            return room.job
        tried.append((one, room))
        if room.fixed >= FAR * its.most:
            left = left[-1:]
    best, room = min(tried, key=lambda pair: pair[1].total)
    rows = {"micro_batch_size": best.micro_batch_size} if len(jobs) > 1 else {}
    raise too_small(who, its.most, room.total, _enough(tried[-1][0], its, tried[-1][1]), rows=rows)


def _check_teacher(who: str, job: TuningJob, its: _Limit) -> None:
    """SettingError where the teacher's pass, which nothing makes smaller, does not fit."""
    if job.teacher is None:
        return
    found = _measured(planned(job)[0], job, not its.reading or "tokenizer" in vars(job.model))
    least = replace(found, base=its.base, reading=its.reading, copied=0).budget(found.during_teacher)
    least = largest_of(job.ranks, least)
    if least > its.most:
        need = f"at least {show_above(least, its.most)} for the pass of the teacher, or a smaller teacher"
        raise SettingError(setting="memory", seen=show_bytes(its.most), need=need, place=who)


def _enough(job: TuningJob, its: _Limit, room: Room) -> Hint:
    """The nearest settings that were planned and with which a job that needs `room` fits: at most NEAREST."""
    settings, texts, kinds = dict[str, object](), list[str](), list[str]()
    for kind, name, tries in _alternatives(job):
        if len(settings) + len(texts) >= NEAREST:
            break
        is_far = name in STEPS_ONLY and room.fixed >= FAR * its.most
        if name != "context" or is_far:  # which is planned by an upper bound: another row may have room
            kinds.append(kind)
        if is_far:
            continue
        found = nearest(tries, lambda one: _has_room(one[1], its, room.held))
        if found is not None and name:
            settings[name] = found[0]
        elif found is not None:
            texts.append(kind)
    job.adapter.bind(job.model)
    return enough(settings, texts, kinds, KEPT_BY_RESUME if job.is_resumed else "")


def _alternatives(job: TuningJob) -> Iterator[tuple[str, str, list[tuple[object, TuningJob]]]]:
    """(kind in words, name of the setting or "", its values and the jobs with them, the nearest first)."""

    def with_options(name: str, values: Iterable[object]) -> list[tuple[object, TuningJob]]:
        return [(value, replace(job, options={**job.options, name: value})) for value in values]

    threads = switches(threads=job.options.get("threads")).threads
    if threads > 1:
        yield FEWER_THREADS, "threads", with_options("threads", halves(threads))
    if job.is_resumed:
        return
    if job.ranks is None and job.micro_batch_size > 1:
        sizes = halves(job.micro_batch_size)
        yield "a smaller micro-batch", "micro_batch_size", [(size, job.with_micro_batch(size)) for size in sizes]
    if job.options.get("precision") != "bf16":
        yield "precision bf16", "precision", with_options("precision", ["bf16"])
    contexts = [context for context in halves(job.context) if context >= SHORTEST and not job.is_packed]
    if contexts:
        yield "a shorter context", "context", [(context, job.with_context(context)) for context in contexts]
    if isinstance(job.adapter, TrainedTensors):
        lora = LoRA()
        if job.adapter.head is not None:
            lora.add_head(job.adapter.head, job.model, 0)
        yield "method lora", "method", [("lora", replace(job, adapter=lora))]
    else:
        held = sum(weight.bytes for weight in job.model.weights.values())
        for kind in KINDS:
            model = job.model.planned_as(kind)
            if sum(weight.bytes for weight in model.weights.values()) < held:
                yield f"a model of type {kind}", "", [(kind, replace(job, model=model))]


def _has_room(job: TuningJob, its: _Limit, held: int) -> bool:
    """False also for settings that do not go together."""
    try:
        return _room(job, its, held, fastest=False).job is not None
    except SettingError:
        return False


def _room(job: TuningJob, its: _Limit, held: int | None, fastest: bool = True) -> Room:
    """The job within a budget. held: None: it is measured. fastest: with the programs of a run; otherwise with any ones
    that are found in few plans."""
    has_text = not its.reading or "tokenizer" in vars(job.model)

    if held is None:  # after the programs are freed
        found = _measured(planned(job)[0], job, has_text)
        held = largest_of(job.ranks, max(its.base, resident_when_settled()))
        total = _total(job, found, its, held)
        if total <= its.most:
            return Room(job, total, total - found.planned, held)
    tuning = planned(job)[0]
    found = _measured(tuning, job, has_text)
    programs, arena, is_least = ProgramPlans(tuning.runs), None, False
    while (total := _total(job, found, its, held)) > its.most:
        if is_least or (not fastest and total - found.planned >= its.most):
            return Room(None, total, total - found.planned, held)
        arena = max(found.planned - (total - its.most), 1)
        plans = programs.within(arena, fastest)
        if plans is None and not fastest:
            return Room(None, total, total - found.planned, held)
        if is_least := plans is None:
            arena = programs.least()
            plans = programs.slowest(arena)
        found = memory_of(tuning, has_text, plans=plans)
    return Room(replace(job, arena=arena), total, total - found.planned, held)


def _total(job: TuningJob, found: MemoryPlan, its: _Limit, held: int) -> int:
    """The least budget of a run with this memory, the same on all ranks. A checkpoint that was read is freed before
    copies are made."""
    copied = max(found.copied - (0 if job.saver is None else job.saver.freed_bytes), 0)
    total = replace(found, base=held, reading=its.reading, copied=copied, teacher=0).budget()
    return largest_of(job.ranks, total)


def _measured(tuning: Tuning, job: TuningJob, has_text: bool) -> MemoryPlan:
    """The memory of a job's programs."""
    trained = [plan for plan in tuning.plans if isinstance(plan, Plan)]
    if job.ranks is None and trained:
        measure_early(trained, job.options.get("isa"))
    return memory_of(tuning, has_text)
