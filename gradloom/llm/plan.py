"""plan: how many bytes a fine-tuning needs, and whether this machine has them, before anything runs.

The plan is the very one that a run would use: graph, gradients and update are built, placed and proved; only nothing is
allocated, and no weight is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..base import memory
from ..base.errors import SettingError
from ..base.memory import Memory, need_memory, show_bytes
from ..graph.stored import Stored, addressable
from ..plan.plan import Plan
from ..train.source import PlannedSource
from .arguments import adapter_of, refuse_settings
from .lora import LoRA, TrainedTensors
from .model import Adapter, Model, model_of
from .rows import CONTEXT
from .tuning import Tuning, split_arguments

HUGE = 2 << 20  # bytes of a huge page: arenas and scratch take whole ones
STEP_BYTES = 5 << 10  # of memory for each instruction of a compiled step: its node, its plan, its bytecode; measured
TOKENIZER_BYTES = 12 << 20  # of a tokenizer with the words that it remembers; measured
TOKEN_BYTES = 480  # more of them, for each of its tokens; measured

FEWER_TRAINED = "need fewer trained tensors: --method lora, a smaller --rank, fewer --targets"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, by what they hold.

    weights        of the model, mapped from its file: memory that the system may take back, at the price of reading
                   them again
    copies         f32 copies of tensors of types that no kernel reads
    trained        the adapter, or the tensors that train
    state          the optimiser's moments
    gradients      accumulators, where several micro-batches make a step, and what ranks exchange; else gradients lie
                   in the arena
    inputs         the rows of the data (of plan, one batch), constants and settings; the cache of sampled texts
    arena          activations, gradients and workspace of the largest step, all of them in one block
    scratch        of each thread; threads: how many; steps: instructions of the largest step
    process        what surrounds them: graphs, plans and bytecode of all steps, the scratch of those beside the
                   largest, the rest of huge pages, the tokenizer
    lower_bound    the most bytes of the arena that are alive at once
    unshared       the arena if no two buffers shared bytes
    available      of this machine (or of the limit that the process lives under), or None where it is not known or the
                   steps run in the memory of a GPU
    """

    weights: int
    copies: int
    trained: int
    state: int
    gradients: int
    inputs: int
    arena: int
    scratch: int
    threads: int
    process: int
    lower_bound: int
    unshared: int
    steps: int
    available: int | None

    @property
    def own(self) -> int:
        """What has to be in memory, the mapped weights aside."""
        parts = (self.copies, self.trained, self.state, self.gradients, self.inputs, self.arena)
        return sum(parts) + self.scratch * self.threads + self.process

    @property
    def planned(self) -> int:
        """The arena and the scratch of all threads: what a step is planned in."""
        return self.arena + self.scratch * self.threads

    @property
    def total(self) -> int:
        """The peak: all of it."""
        return self.weights + self.own

    @property
    def fits(self) -> bool:
        return self.available is None or self.total <= self.available

    def check(self) -> None:
        """SettingError when this machine has not the memory: before anything runs."""
        if self.available is not None:
            what = f"plan: {show_bytes(self.total)} of memory are needed"
            need_memory(self.total, what, self.hint(), available=self.available)

    def hint(self) -> str:
        """What would need less, by what needs the most."""
        training = self.trained + self.state + self.gradients
        if training > self.arena or (self.available is not None and training > self.available):
            return FEWER_TRAINED
        if self.inputs > max(self.arena, self.weights):
            return "need a smaller --batch-size or --context"
        if self.arena > self.weights:
            return "need a smaller --context or --micro-batch-size"
        return "need a smaller model, or one of a smaller type, such as q8_0 or q4_0"

    def lines(self) -> list[tuple[str, str]]:
        """What is printed: names and texts."""
        shared = f"; lower bound {show_bytes(self.lower_bound)}, without sharing {show_bytes(self.unshared)}"
        rows = [("weights", f"{show_bytes(self.weights)}, mapped from the file")]
        if self.copies:
            rows.append(("f32 copies", show_bytes(self.copies)))
        rows += [("trained", show_bytes(self.trained)), ("optimiser state", show_bytes(self.state))]
        if self.gradients:
            rows.append(("gradient sums", show_bytes(self.gradients)))
        rows += [
            ("inputs", show_bytes(self.inputs)),
            ("activations", show_bytes(self.arena) + shared),
            ("scratch", f"{show_bytes(self.scratch)} for each of {self.threads} threads"),
            ("process", f"{show_bytes(self.process)}: graphs, bytecode, tokenizer, huge pages"),
            ("peak", show_bytes(self.total)),
        ]
        if self.available is not None:
            rows.append(("available", f"{show_bytes(self.available)}: {'it fits' if self.fits else 'it does not fit'}"))
        return rows

    def report(self) -> dict[str, Any]:
        """For --json: each number under <name>_bytes."""
        numbers = {f"{k}_bytes" if k not in ("threads", "steps") else k: v for k, v in asdict(self).items()}
        return numbers | {"peak_bytes": self.total, "planned_bytes": self.planned, "fits": self.fits}


def plan(
    model: Model | str | os.PathLike[str], adapter: Adapter | str | os.PathLike[str] | None = None, **settings: Any
) -> MemoryPlan:
    """The memory that `finetune` needs with these settings (see Settings), one batch of data and one row to validate.

    finetune holds all rows of its data: about 12 bytes a token more.
    model, adapter: objects, or the paths of their files.
    Raises SettingError for settings that finetune refuses.
    """
    model = model_of(model, "plan")
    refuse_settings(settings, "plan", ("on_epoch", "on_progress", "val_split", "data_options", "backend"))
    context = settings.pop("context", None)
    limit = model.config.context_length
    length = min(CONTEXT, limit) if context is None else context
    if not isinstance(length, (int, np.integer)) or not 2 <= length <= limit:
        raise SettingError(f"context={context!r} is not usable; need 2 to {limit}, the model's context")
    asked, ranks, exchange, options = split_arguments(settings, plan)
    rows, length = asked.batch_size, int(length)
    if not addressable((rows, 2, length), 4):
        raise SettingError(f"batch_size={rows} is not usable with {length} tokens per row; need fewer than 2^63 bytes")
    trained = asked.adapter(adapter_of(adapter, model, "finetune"))
    tuning = Tuning(model, trained, asked, rows, 1, length, ranks, exchange, backend="null", **options)
    tuning.compile(PlannedSource(rows + 1, (2, length), (length,)))
    return memory_of(tuning, has_text=True)


def check_trained(model: Model, adapter: Adapter) -> None:
    """SettingError when the arrays that train, and AdamW's moments, are more than there is memory: before any of them
    is made."""
    if isinstance(adapter, (LoRA, TrainedTensors)):
        need = 3 * adapter.trained_bytes(model)
        need_memory(need, f"plan: {show_bytes(need)} of memory are needed to train these tensors", FEWER_TRAINED)


def memory_of(tuning: Tuning, has_text: bool, there: Memory | None = None) -> MemoryPlan:
    """The memory of steps that are compiled; has_text: a tokenizer reads the data; there: the memory before them."""
    trainer, model = tuning.trainer, tuning.model
    plans = tuning.plans
    largest = max(plans, key=lambda p: p.peak_bytes)
    trained = {p.stored for p in tuning.adapter.parameters().values()}
    state = {p.stored for arrays in trainer.state.values() for p in arrays.values()}
    split = trainer.split
    exchanged = [] if split is None else [s for flat in split.flats for s in flat.stored]
    sums = {*trainer.accumulators, *exchanged}
    touched = {s for p in plans for s in p.bytecode.stored}
    weights = {s for s in touched if s.check is not None and model.weights.get(s.name) is s}
    inputs = touched - weights - trained - state - sums - set(model.weights.values())
    there = memory.memory() if there is None else there
    return MemoryPlan(
        weights=_bytes(weights),
        copies=model.copied_bytes,
        trained=_bytes(trained),
        state=_bytes(state),
        gradients=_bytes(sums) + (0 if split is None else split.reduction_bytes),
        inputs=_bytes(inputs) + max(p.bytecode.inputs_bytes + len(p.bytecode.constants) for p in plans),
        arena=max(p.bytecode.arena_bytes for p in plans),
        scratch=max(p.bytecode.scratch_bytes for p in plans),
        threads=largest.threads,
        process=_process_bytes(plans, largest) + _tokenizer_bytes(model, has_text),
        lower_bound=largest.placement.lower_bound_bytes,
        unshared=largest.placement.unshared_bytes,
        steps=len(largest.order.steps),
        available=there.available if there is not None and tuning.device in ("cpu", "null") else None,
    )


def _process_bytes(plans: Sequence[Plan], largest: Plan) -> int:
    """What compiled steps take beside the arena and the scratch of the largest one."""
    arena = max(p.bytecode.arena_bytes for p in plans)
    steps = sum(len(p.order.steps) for p in plans)
    scratch = sum(-(-p.bytecode.scratch_bytes * p.threads // HUGE) * HUGE for p in plans)
    return STEP_BYTES * steps + -arena % HUGE + scratch - largest.bytecode.scratch_bytes * largest.threads


def _tokenizer_bytes(model: Model, has_text: bool) -> int:
    return TOKENIZER_BYTES + TOKEN_BYTES * model.config.vocab_size if has_text else 0


def _bytes(stored: Iterable[Stored]) -> int:
    return sum(s.bytes for s in stored)
