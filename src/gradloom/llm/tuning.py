"""What a fine-tuning trains, and how: its settings, and the trainer that they make. A run and its plan begin here."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..base.arguments import halves
from ..base.defaults import FINETUNE_RATES, FINETUNE_SCHEDULE, FINETUNE_WARMUP
from ..base.errors import SettingError
from ..base.finetune_options import TuneOptions
from ..base.interval import as_interval
from ..base.options import options_of, taken, values_of
from ..base.patterns import as_patterns, matched
from ..base.settings import as_precision
from ..base.training_options import RankOptions, StepOptions
from ..graph.leaves import Parameter
from ..graph.value import Value
from ..nn.module import Module
from ..optim import schedules
from ..optim.moments import FULL_BITS, LEAST_SIZE, checked_bits, is_coded
from ..optim.names import optimizer_named
from ..optim.optimizer import Optimizer
from ..parallel.agree import agreed, share_of, threads_for
from ..parallel.communicator import Communicator
from ..parallel.join import ranks_of
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..runs.saver import Saver
from ..train.arguments import check_batch, check_options, with_backend
from ..train.batch_loss import BatchLoss
from ..train.metric import Metric
from ..train.metrics import Measures
from ..train.outputs import Outputs
from ..train.source import RowSource
from ..train.trainer import Trainer
from ..train.watching import watching_of
from .gpu_layers import GpuLayers, placed_options
from .lora import LoRA
from .model import Adapter, Model
from .objective import Forward, Objective
from .objectives import objective_of
from .reference import Reference
from .sample_texts import EVERY, TOKENS, TextSampler, prompts_of
from .soft_labels import SoftLabels
from .trained_tensors import TrainedTensors

STEPS_OF_DECAY = 0.1  # the share of the steps in which the rate of "wsd" falls
MICRO_TOKENS = 512  # of a micro-batch, about: enough for the matrix products to be fast


@dataclass(frozen=True)
class Settings(TuneOptions):
    """How a fine-tuning trains; SettingError for values that cannot be used. With the defaults of schedule, warm-up and
    sampled texts filled in."""

    def __post_init__(self) -> None:
        rates = ("lr", "schedule", "warmup", "weight_decay")
        given = [name for name in rates if getattr(self, name) is not None]
        if isinstance(self.optimizer, str):
            optimizer_named(self.optimizer)
        elif self.optimizer is not None and given:
            text = f"{{{given[0]}}} and {{optimizer}} are mutually exclusive: the optimizer has its own settings"
            raise SettingError(text, {given[0]: getattr(self, given[0]), "optimizer": ...}, place="finetune")
        for schedule, name in (("polynomial", "power"), ("cosine_restarts", "cycles")):
            if (self.schedule == schedule) != (getattr(self, name) is not None):
                both = {"schedule": self.schedule, name: getattr(self, name)}
                need = f"{{schedule}} requires {{{name}}}" if self.schedule == schedule else None
                text = need or f"{{{name}}} requires schedule {schedule!r}"
                raise SettingError(text, {**both, name: ...} if need else {name: both[name]}, place="finetune")
        self._check_bits()
        objective_of(self)
        for name, default in (("schedule", FINETUNE_SCHEDULE), ("warmup", FINETUNE_WARMUP)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.micro_batch_size is not None:
            check_batch(self.micro_batch_size, self.batch_size, "micro_batch_size")
        if self.epochs is not None and self.steps is not None:
            both = {"epochs": self.epochs, "steps": self.steps}
            raise SettingError("{epochs} and {steps} are mutually exclusive", both, place="finetune")
        sampling: dict[str, Any] = {"sample_every": EVERY, "sample_tokens": TOKENS, "sample_temperature": 0.0}
        given = [name for name in sampling if getattr(self, name) is not None]
        if self.sample_prompt is None and given:
            text = f"{{{given[0]}}} requires {{sample_prompt}}"
            raise SettingError(text, {given[0]: getattr(self, given[0]), "sample_prompt": ...}, place="finetune")
        object.__setattr__(self, "sample_prompt", prompts_of(self.sample_prompt))
        for name, default in sampling.items():
            if name not in given:
                object.__setattr__(self, name, default)
        as_interval("sample_every", self.sample_every, "steps", "epochs", place="finetune")

    @functools.cached_property
    def chosen(self) -> Objective:
        """The objective, with its settings."""
        return objective_of(self)

    def settled(self, model: Model, adapter: Adapter, data: Any, reading: Mapping[str, Any]) -> Settings:
        """The same, with settings of the objective that depend on model, adapter and data."""
        made = copy.copy(self)
        object.__setattr__(made, "chosen", self.chosen.settled(model, adapter, data, reading))
        return made

    def _check_bits(self) -> None:
        """SettingError for bits of moments that the optimiser does not have."""
        if checked_bits(self.state_bits, "finetune") == FULL_BITS:
            return
        if self.optimizer is not None and not isinstance(self.optimizer, str):
            text = "{state_bits} and {optimizer} are mutually exclusive: the optimizer has its own state_bits"
            raise SettingError(text, state_bits=self.state_bits, optimizer=..., place="finetune")
        if "state_bits" not in optimizer_named(self.optimizer or "adamw").declared:
            text = f"{{state_bits}} requires {{optimizer}} adamw, adam or lion, not {self.optimizer}"
            raise SettingError(text, state_bits=self.state_bits, optimizer=..., place="finetune")

    def with_rate_of(self, adapter: Adapter) -> Settings:
        """With the default learning rate of the adapter."""
        if self.lr is not None:
            return self
        made = copy.copy(self)
        object.__setattr__(made, "lr", FINETUNE_RATES["lora" if isinstance(adapter, LoRA) else "full"])
        return made

    def rate(self, steps: int) -> schedules.Warming:
        """The learning rate of each step, counted from 0."""
        assert self.lr is not None and self.warmup is not None
        warmup = min(round(self.warmup * steps), steps - 1)
        if self.schedule == "constant":
            return schedules.Constant(self.lr, warmup=warmup)
        if self.schedule == "wsd":
            decay = max(1, round(STEPS_OF_DECAY * steps))
            return schedules.WarmupStableDecay(self.lr, steps, min(decay, steps - warmup), warmup=warmup)
        if self.schedule == "one_cycle":
            return schedules.OneCycle(self.lr, steps, pct_start=self.warmup)
        if self.schedule == "polynomial":
            return schedules.Polynomial(self.lr, steps, self.power or 1.0, warmup=warmup)
        if self.schedule == "cosine_restarts":
            period = -(-(steps - warmup) // (self.cycles or 1))
            return schedules.CosineWarmRestarts(self.lr, period, warmup=warmup)
        kind = schedules.Linear if self.schedule == "linear" else schedules.Cosine
        return kind(self.lr, steps, warmup=warmup)

    def sampler(self, model: Model, adapter: Adapter, **options: Any) -> TextSampler | None:
        """What samples texts while it trains; None where no prompt is given. options go to gl.compile."""
        if not self.sample_prompt:
            return None
        tokens, temperature = self.sample_tokens, self.sample_temperature
        assert tokens is not None and temperature is not None
        return TextSampler(model, adapter, self.sample_prompt, tokens, temperature, self.seed, **options)

    def adapter(self, given: Adapter | None) -> Adapter:
        """The given adapter, or a new one for the method. SettingError for settings that would have no effect."""
        own = [name for name in ("train_dtype", "tensors") if getattr(self, name) is not None]
        if given is not None:
            if self.method is not None and (self.method == "lora") != isinstance(given, LoRA):
                kind = "a LoRA" if isinstance(given, LoRA) else type(given).__name__
                text = f"{{method}} cannot be combined with {kind} as {{adapter}}; use one of them"
                raise SettingError(text, method=self.method, adapter=..., place="finetune")
            for name in own:
                text = f"{{{name}}} cannot be combined with {{adapter}}; use a setting of the adapter"
                raise SettingError(text, {name: getattr(self, name), "adapter": ...}, place="finetune")
            return given
        if self.method == "full":
            return TrainedTensors("all" if self.tensors is None else self.tensors, self.train_dtype)
        for name in own:
            text = f"{{{name}}} requires method='full'; LoRA has its own targets"
            raise SettingError(text, {name: getattr(self, name)}, place="finetune")
        return LoRA(seed=self.seed)


def split_arguments(
    given: Mapping[str, Any], function: Callable[..., Any]
) -> tuple[Settings, Communicator | None, str, dict[str, Any]]:
    """The keyword arguments of a function as (settings, ranks, exchange, options of gl.compile).

    SettingError for a name that is none of these and no argument of the function.
    """
    names, ranked = options_of(TuneOptions), options_of(RankOptions)
    options = {name: value for name, value in given.items() if name not in names and name not in ranked}
    check_options("finetune", options, function, *names, *ranked)
    options = with_backend("finetune", options)
    among, _ = taken(RankOptions, given)
    ranks = ranks_of("finetune", among.parallel, among.timeout, among.exchange)
    options["threads"] = threads_for(ranks, options.get("threads"))
    with agreed(ranks):
        for name in ("lr", "weight_decay"):
            if callable(given.get(name)):
                text = f"{{{name}}} is a function; use optimizer=gl.optim.AdamW({name}=function)"
                raise SettingError(text, {name: given[name]}, place="finetune")
        settings, _ = taken(Settings, given)
    return settings, ranks, among.exchange, options


class Sizes(NamedTuple):
    """Sizes of a fine-tuning.

    rows, val_rows   rows that train, and that each evaluation reads
    all_rows         rows of the data
    context          the most tokens of each part of a sample
    samples          the most samples of a row
    numbers          numbers of each sample, or of each token: its weight
    shortest         tokens of the shortest samples of the data, sorted: all those that may share a row, and some more
    """

    rows: int
    val_rows: int
    all_rows: int
    context: int
    samples: int = 1
    numbers: int = 0
    shortest: tuple[int, ...] = ()


@dataclass(frozen=True)
class TuningJob:
    """All that decides the programs of a fine-tuning, and so their bytes. A run and its plan are each made of one.

        rows .. shortest: see Sizes. saver: of a run that may be resumed, which then has the micro-batches that it had.
    options: of gl.compile. layers: those that run on a GPU. arena: most bytes of the arena and scratch of each program,
    with layers of its part on the GPU. kept: copies of the trained arrays that callbacks hold at once. is_packed: the
    caller gave rows of tokens, which have their context. teacher: of an objective that needs one.
    """

    model: Model
    adapter: Adapter
    settings: Settings
    rows: int
    val_rows: int
    all_rows: int
    context: int
    samples: int
    numbers: int
    shortest: tuple[int, ...]
    ranks: Communicator | None
    exchange: str
    saver: Saver | None
    options: Mapping[str, Any]
    layers: GpuLayers | None = None
    arena: int | None = None
    kept: int = 0
    is_packed: bool = False
    teacher: Model | None = None

    @property
    def objective(self) -> Objective:
        return self.settings.chosen

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: of all parts of a sample."""
        return self.objective.form.parts * self.context

    @property
    def batch_size(self) -> int:
        return min(int(self.settings.batch_size), self.rows)

    @property
    def micro_batch_size(self) -> int:
        """Rows computed at once: the given number, or that of the resumed run, else about 512 tokens."""
        asked = self.settings.micro_batch_size
        if asked is None and self.saver is not None:
            asked = self.saver.size("micro_batch_size", self.batch_size)
        most = share_of(self.batch_size, self.ranks if asked is None else None)
        return min(max(1, MICRO_TOKENS // self.row_tokens) if asked is None else int(asked), most)

    @property
    def is_resumed(self) -> bool:
        """Whether it continues a run, whose sizes it keeps."""
        return self.saver is not None and self.saver.entries is not None

    def smaller(self) -> Iterator[TuningJob]:
        """The same with ever fewer rows computed at once, down to 1; none where the number is given, or is that of the
        resumed run, or where ranks share it."""
        size = self.micro_batch_size
        if self.settings.micro_batch_size is None and self.ranks is None and not self.is_resumed:
            yield from map(self.with_micro_batch, halves(size))

    def with_micro_batch(self, size: int) -> TuningJob:
        """The same with this number of rows computed at once."""
        settings = copy.copy(self.settings)
        object.__setattr__(settings, "micro_batch_size", size)
        return replace(self, settings=settings)

    def with_context(self, context: int) -> TuningJob:
        """The same with rows of fewer tokens, at most this number: an upper bound of a job on the same data.

        How they are packed, and so how many rows there are, is only known when they are read again. So the last batch
        is not full, nor is the last micro-batch of training and of validation: each of these has a program.
        """

        def scaled(rows: int) -> int:
            return -(-rows * self.context // context)

        batch = int(self.settings.batch_size)
        rows = _not_full(scaled(self.rows), batch)
        job = replace(self, context=context, rows=rows, samples=self._samples_within(context))
        is_validated = self.val_rows > 0 or self.settings.val_split is None
        val_rows = _not_full(scaled(self.val_rows), job.micro_batch_size) if is_validated else 0
        padded = 1 if self.objective.form.kind == "texts" else 2  # rows are more than half full
        return replace(job, val_rows=val_rows, all_rows=max(padded * scaled(self.all_rows), rows + val_rows))

    def _samples_within(self, context: int) -> int:
        """The most samples of a row of parts of at most this number of tokens."""
        if self.samples == 1 and not self.shortest:
            return 1
        parts = self.objective.form.parts
        taken = itertools.accumulate(min(length, context) for length in self.shortest)
        return max(sum(tokens <= parts * context for tokens in taken), 1)


def _not_full(rows: int, size: int) -> int:
    """At least this number of rows, whose last batch of `size` lacks one row."""
    rows = max(rows, size)
    return rows + -(rows + 1) % size


class Tuning:
    """The trainer of a fine-tuning and the sizes of its batches. Nothing is trained here, and no array is made before a
    step is compiled for a device that runs it."""

    def __init__(self, job: TuningJob) -> None:
        model, adapter, layers = job.model, job.adapter, job.layers
        settings = job.settings.with_rate_of(adapter)
        options = placed_options(job.options, layers)
        self.job, self.model, self.adapter, self.settings, self.layers = job, model, adapter, settings, layers
        self.context, self.ranks, self.saver = job.context, job.ranks, job.saver
        self.precision = as_precision(options.get("precision"))
        self.batch_size, self.micro_batch_size = job.batch_size, job.micro_batch_size
        per_epoch = -(-job.rows // self.batch_size)
        self.steps_total = per_epoch * int(settings.epochs or 1) if settings.steps is None else int(settings.steps)
        self.epochs_total = -(-self.steps_total // per_epoch)
        self.rate = settings.rate(self.steps_total)
        self.first_step = 0  # of the run, by the optimiser's count: more where AdamW's state of another run was loaded
        self.optimizer = self._optimizer()
        adapter.bind(model)
        if not self.trained():
            text = "{freeze} leaves nothing to train; use fewer patterns"
            raise SettingError(text, freeze=settings.freeze, place="finetune")
        if settings.state_bits != FULL_BITS and not any(is_coded(p.stored.each) for p in self.trained().values()):
            text = f"{{state_bits}} requires a parameter of {LEAST_SIZE} elements or more that trains; leave it out"
            raise SettingError(text, state_bits=settings.state_bits, place="finetune")
        limit = job.arena if job.arena is None or layers is None else {layers.gpu: job.arena}
        self.sampler = settings.sampler(model, adapter, layers=layers, **options, arena_bytes=limit)
        every = as_interval("sample_every", settings.sample_every, "steps", "epochs", place="finetune")
        self.sample_every = every.steps or int(every.number) * per_epoch  # optimiser steps
        self.objective = job.objective
        self.forward = Forward(model, adapter, layers, job.context, job.samples)
        loss = self.objective.trained_loss(self.forward)
        self.trainer = Trainer(
            Tuned(self.objective, self.forward), loss if isinstance(loss, BatchLoss) else self._loss, self.optimizer,
            accumulate=-(-self.batch_size // self.micro_batch_size), communicator=job.ranks, exchange=job.exchange,
            **values_of(settings, StepOptions), **options,
        )  # fmt: skip
        self.trainer.options["memory"] = limit
        self.trainer.driver.watching = watching_of("finetune", settings, job.ranks)
        self.metrics = self._metrics()
        self.computed = computed_labels(job, self.forward, self.micro_batch_size, self.trainer.options)

    def _loss(self, outputs: Outputs, labels: Value) -> tuple[Value, Value]:  # a resume compares its name
        return self.objective.pair(self.forward, outputs, labels)

    def _metrics(self) -> dict[str, Metric]:
        """The metrics of the objective: without validation rows only those that can be measured in training."""
        found = self.objective.measures(self.forward, train=self.ranks is None)
        return found if self.job.val_rows else {name: metric for name, metric in found.items() if metric.train}

    def measures_of(self, training: bool) -> Measures:
        """The metrics of steps that train, or of those that validate."""
        every = Measures(tuple(self.metrics.items()))
        return Measures(every.of_training) if training else every

    def trained(self) -> dict[str, Parameter]:
        """Parameters that the steps change: the adapter's without those that `freeze` names."""
        named = self.adapter.parameters()
        frozen = matched("freeze", as_patterns("freeze", self.settings.freeze), named)
        return {name: p for name, p in named.items() if name not in frozen}

    def _optimizer(self) -> Optimizer:
        """The one that the settings give, or name."""
        given = self.settings.optimizer
        if isinstance(given, Optimizer):
            return given
        bits = self.settings.state_bits
        made: Optimizer = optimizer_named(given or "adamw")(
            lr=_Rate(self),
            weight_decay=self.settings.weight_decay or 0.0,
            **({} if bits == FULL_BITS else {"state_bits": bits}),
        )
        return made

    def compile(self, source: RowSource) -> None:
        """Plan, prove and load all steps on these rows, those of validation and sampling too: nothing runs yet."""
        rows, val_rows = self.job.rows, self.job.val_rows
        sizes: dict[str, Any] = {"batch_size": self.batch_size, "micro_batch_size": self.micro_batch_size}
        self.trainer.prepare(source, 0, rows, **sizes, measures=self.measures_of(training=True))
        if val_rows:
            measures = self.measures_of(training=False)
            self.trainer.prepare(source, rows, rows + val_rows, **sizes, backward=False, measures=measures)
        if self.sampler is not None:
            self.sampler.prepare()
        if self.computed is not None:
            self.computed.prepare(self.job.row_tokens)

    @property
    def runs(self) -> list[Any]:
        """All programs that were compiled so far."""
        sampled = [] if self.sampler is None else self.sampler.generator.programs.values()
        computed = [] if self.computed is None else self.computed.runs
        return [*self.trainer.runs, *sampled, *computed]

    @property
    def plans(self) -> list[Plan | Schedule]:
        """The plans of all programs that were compiled so far."""
        more = [] if self.computed is None else self.computed.plans
        return [*self.trainer.plans, *([] if self.sampler is None else self.sampler.plans), *more]


def computed_labels(
    job: TuningJob, forward: Forward, rows: int, options: Mapping[str, Any]
) -> Reference | SoftLabels | None:
    """Labels that are computed before the training: of the base model, or of a teacher; None for objectives without.

    rows: those of a micro-batch. options: of gl.compile."""
    if job.objective.needs_teacher:
        return SoftLabels(job.objective, job.teacher, forward, options)
    return Reference(job.objective, forward, rows, options) if job.objective.needs_reference else None


class _Rate:
    """The learning rate of a fine-tuning: the schedule of its settings, counted from its first step."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning

    def __call__(self, step: int, epoch: int) -> float:
        return self._tuning.rate(step - self._tuning.first_step, epoch)

    def __repr__(self) -> str:
        return repr(self._tuning.rate)


class Tuned(Module):
    """The model as the Trainer calls it: rows of the data -> outputs that the objective reads."""

    def __init__(self, objective: Objective, forward: Forward) -> None:
        super().__init__()
        self._objective, self._forward = objective, forward

    def named_parameters(self) -> dict[str, Parameter]:
        adapter = self._forward.adapter
        return {} if adapter is None else adapter.parameters()

    def forward(self, x: Value) -> Outputs:
        return self._objective.outputs(replace(self._forward, training=self.training), x)
