"""finetune: train an adapter, or the model's own tensors, on text. Built on gl.train.Trainer, and meant to be copied.

A row of data is a sequence of `context` tokens that may hold several packed samples; `batch_size` rows make one
optimiser step, computed in micro-batches. The loss is a mean over all tokens that count in the batch, however they are
spread over its micro-batches.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import memory
from ..base.arguments import as_bool, as_whole
from ..base.errors import DataError, SettingError
from ..base.interrupts import StopTraining
from ..base.memory import need_memory, resident_peak, show_bytes
from ..data.dataset import IGNORED, Dataset, split_rows
from ..files import refuse_input
from ..graph.leaves import Parameter
from ..graph.stored import sketching
from ..graph.value import Value
from ..nn.module import Module
from ..optim import schedules
from ..optim.optimizer import AdamW, Optimizer
from ..parallel.agree import agreed, is_root, same_settings, share_of, threads_for
from ..parallel.communicator import TIMEOUT, Communicator
from ..parallel.join import ranks_of
from ..train.arguments import check_batch, check_options
from ..train.display import StepDisplay
from ..train.epoch import Progress
from ..train.fit import EpochResult
from ..train.result import Result
from ..train.stopping import Listeners, Listening, monitored
from ..train.trainer import Trainer
from .arguments import adapter_of
from .lora import LoRA, TrainedTensors, files_of_adapter
from .model import Adapter, Model, model_of
from .plan import check_trained, plan_of
from .table import training_table

if TYPE_CHECKING:
    from .packing import TokenData

METHODS = ("lora", "full")
SCHEDULES = ("cosine", "linear", "constant")
MICRO_TOKENS = 512  # a micro-batch has about so many: enough for the matrix products to be fast
VAL_SHARE, VAL_ROWS = 0.05, 100  # validation when not said: a share of all samples (or windows), and at most so many
LR, WARMUP = 2e-4, 0.03
CONTEXT = 512  # tokens per row when not said, or the model's context if that is less


def finetune(
    model: Model | str | os.PathLike[str],
    data: TokenData | str | os.PathLike[str],
    adapter: Adapter | str | os.PathLike[str] | None = None,
    *,
    method: str | None = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Train and return the run: .history, .report, .adapter, .save(path). Arguments: see Run.

    What was trained is in run.adapter, with method="full" too (TrainedTensors: copies that stand in for the model's own
    tensors): the model given stays as it is. gl.llm.evaluate(model, data, run.adapter) measures the two together,
    gl.llm.evaluate(model, data) the model as it was.

    On Ctrl-C the run so far comes back, with .interrupted set. Raises DataError, SettingError, FileError for what
    cannot be trained, before anything runs; NonFiniteError when the loss or a gradient is not finite.
    """
    return Run(model, data, adapter, method=method, **settings).train(progress=progress)


class Run:
    """One fine-tuning: everything that was decided is known before `train` begins.

    model        a Model, or the path of a GGUF file
    data         a path (.txt, .jsonl) or TokenData; data_options go to its reader
    adapter      what is trained: a LoRA or TrainedTensors, or the path of an adapter, which is trained on from its
                 weights; by default one made for the method
    method       "lora", or "full": the model's own `tensors` (all of them, or names and patterns; see TrainedTensors),
                 as copies that are run.adapter afterwards; by default that of the adapter, else "lora"
    context      tokens per row, at most the model's
    batch_size   rows per optimiser step; micro_batch_size: rows computed at once, by default about 512 tokens
    epochs       passes over the training rows; or steps: optimiser steps (then as many passes as that takes)
    lr           the highest rate, by default 2e-4; schedule: "cosine" (the default) or "linear" down to 0, or
                 "constant", after `warmup` (a share of the steps, by default 0.03) of linear growth; weight_decay:
                 AdamW's, by default 0
    optimizer    another than this AdamW, in place of these four. One with parameters (those of the adapter) keeps its
                 state: steps, moments, schedule and the order of rows go on where it stands, in this run and in one
                 that has loaded it (gl.save, gl.load) with the adapter. The AdamW of a run is new: its steps, moments,
                 schedule and order of rows begin anew, also for an adapter that was trained before
    max_norm     an optimiser step divides its gradients, if their global norm is above this, down to it
    val_split    share of the samples (of the rows, for a text) that is never trained on; 0: none; by default 5 % and at
                 most 100
    seed         of the order of the rows, of the validation rows, of dropout and of an adapter made here
    on_epoch     is told of each pass's result (one listener or several), on_progress of the state of a pass at least
                 every 0.2 s; any may raise StopTraining: then the run ends in order, with .stopped set
    parallel     "mpi", under mpiexec: each batch is split over the ranks, as in gl.fit; then exchange: "ordered" (the
                 same bits for any number of ranks) or "fast", and timeout: seconds without a sign of life. Rank 0 alone
                 shows progress, calls the listeners and saves
    options      go to gl.compile (threads=, ...)
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        data: TokenData | Rows | str | os.PathLike[str],
        adapter: Adapter | str | os.PathLike[str] | None = None,
        *,
        method: str | None = None,
        tensors: Any = None,
        train_dtype: str | None = None,
        context: int | None = None,
        batch_size: int = 4,
        micro_batch_size: int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        schedule: str | None = None,
        warmup: float | None = None,
        weight_decay: float | None = None,
        optimizer: Optimizer | None = None,
        val_split: float | None = None,
        seed: int = 0,
        data_options: Mapping[str, Any] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_epoch: Listeners = None,
        max_norm: float = math.inf,
        parallel: str | Communicator | None = None,
        exchange: str = "ordered",
        timeout: float = TIMEOUT,
        **options: Any,
    ) -> None:
        check_options("finetune", options, Run)
        self.ranks = ranks_of("finetune", parallel, timeout, exchange)
        options["threads"] = threads_for(self.ranks, options.get("threads"))
        with agreed(self.ranks):
            self.model = model_of(model, "finetune")
            if method is not None:
                _check_one_of("method", method, METHODS)
            rates = {"lr": lr, "schedule": schedule, "warmup": warmup, "weight_decay": weight_decay}
            unheeded = [name for name, value in rates.items() if value is not None]
            if optimizer is not None and unheeded:
                raise SettingError(
                    f"finetune: {', '.join(unheeded)} beside an optimizer, which has its own; need one of them"
                )
            self.lr = LR if lr is None else lr
            self.schedule = "cosine" if schedule is None else schedule
            self.warmup = WARMUP if warmup is None else warmup
            _check_one_of("schedule", self.schedule, SCHEDULES)
            _check_number("lr", self.lr, 0.0, math.inf)
            _check_number("warmup", self.warmup, 0.0, 1.0)
            check_batch(batch_size)
            if micro_batch_size is not None:
                check_batch(micro_batch_size, batch_size, "micro_batch_size")
            if epochs is not None and steps is not None:
                raise SettingError("finetune: both epochs and steps are given; need one of them")
            for name, count in (("epochs", epochs), ("steps", steps)):
                if count is not None:
                    as_whole(f"finetune: {name}", count, 1)
            seed = as_whole("seed", seed, 0)
            given = adapter_of(adapter, self.model, "finetune")
            self.adapter = _adapter(given, method, tensors, train_dtype, seed)
            self._memory = memory.memory()  # before this run takes any
            self.method = "lora" if isinstance(self.adapter, LoRA) else "full"
            self.seed, self.on_progress, self.on_epoch = seed, on_progress, Listening(on_epoch)
            self._read = [data] if isinstance(data, (str, os.PathLike)) else []
            self.data = read_rows(self.model, data, context, val_split, seed, **(data_options or {}))
            self.context = int(self.data.tokens.shape[1])
            self.train_rows, self.val_rows = self.data.train, self.data.val
            self.batch_size = min(int(batch_size), len(self.train_rows))
            micro = max(1, MICRO_TOKENS // self.context) if micro_batch_size is None else int(micro_batch_size)
            most = share_of(self.batch_size, self.ranks if micro_batch_size is None else None)
            self.micro_batch_size = min(micro, most)
            per_epoch = -(-len(self.train_rows) // self.batch_size)
            self.steps_total = per_epoch * int(epochs or 1) if steps is None else int(steps)
            self.epochs_total = -(-self.steps_total // per_epoch)
            self.optimizer = optimizer or AdamW(
                lr=lambda step, epoch: self.rate(step - self._first_step, epoch), weight_decay=weight_decay or 0.0
            )
            self._first_step = self._first_pass = 0  # not 0 when an optimiser with a state of its own goes on
            if not sketching():
                check_trained(self.model, self.adapter)
            self.adapter.bind(self.model)
            self.trainer = Trainer(
                _Step(self.model, self.adapter),
                self._loss,
                self.optimizer,
                accumulate=-(-self.batch_size // self.micro_batch_size),
                seed=seed,
                max_norm=max_norm,
                communicator=self.ranks,
                exchange=exchange,
                **options,
            )
            self.dataset = self._dataset()
        self.before: Result | None = None  # validation before the first step
        self.history: list[EpochResult] = []
        self.passes = 0  # over the training rows that this run has begun
        self.latest = Result()  # of the pass under way, or the last one
        self.interrupted = self.stopped = False
        self.interruption: KeyboardInterrupt | None = None  # what interrupted it
        self.seconds = 0.0  # of training and validation
        self.training_seconds = 0.0
        self.tokens = 0  # trained on, with all positions of a row counted
        self.steps = 0

    def _dataset(self) -> Dataset:
        """The rows as the Trainer reads them, [rows, 2, context]: tokens and positions."""
        if sketching():  # for a plan: of any size, and nothing is read
            tokens = self.data.tokens
            return _PlannedRows(np.broadcast_to(tokens[:, None], (len(tokens), 2, self.context)), self.data.labels)
        rows = np.stack([self.data.tokens, self.data.positions], 1)
        self.data = replace(self.data, tokens=rows[:, 0], positions=rows[:, 1])  # once in memory
        return Dataset(rows, self.data.labels)

    def rate(self, step: int, epoch: int) -> float:
        """The learning rate of a step of this run, counted from 0."""
        warmup = min(round(self.warmup * self.steps_total), self.steps_total - 1)
        if self.schedule == "constant":
            return schedules.Constant(self.lr, warmup=warmup)(step, epoch)
        kind = schedules.Linear if self.schedule == "linear" else schedules.Cosine
        return kind(self.lr, self.steps_total, warmup=warmup)(step, epoch)

    def _loss(self, hidden: Value, labels: Value) -> tuple[Value, Value]:
        return self.model.loss_pair(hidden, labels, self.adapter)

    # ---- running -------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile the step (nothing runs yet): after this, planned_bytes is known."""
        source = self.trainer.source(self.dataset)
        rows = min(len(self.train_rows), self.steps_total * self.batch_size)
        self.trainer.prepare(source, 0, rows, batch_size=self.batch_size, micro_batch_size=self.micro_batch_size)

    def train(self, progress: bool = True) -> Run:
        """All steps that are left; see finetune. After an interruption, called again, it goes on with a new pass.

        SettingError when the machine has not the memory that they need.
        """
        progress = as_bool("progress", progress)
        self.interrupted = self.stopped = False
        self.prepare()
        with agreed(self.ranks):
            plan_of(self, self._memory).check()
        same_settings(self.ranks, steps=self.steps_total, rows=len(self.train_rows))
        display = StepDisplay(self.steps_total, self.context) if progress and is_root(self.ranks) else None
        source = self.trainer.source(self.dataset)
        began = time.perf_counter()
        if not self.passes:
            self._first_step, self._first_pass = self.trainer.steps, self.trainer.epoch
            self.on_epoch.begin(self.trainer)
        try:
            with display or contextlib.nullcontext(), self.trainer.together(), self.trainer.claim:
                if not self.passes:
                    self.before = self._evaluate(source, display)
                    if display is not None and self.before is not None:
                        display.say(f"before training: validation {_shown(self.before)}")
                if display is not None:
                    display.begin(self.steps)
                while self.steps < self.steps_total and not self.stopped:
                    self.passes += 1
                    self._epoch(self._first_pass + self.passes, source, display)
            self.trainer.tell(self.on_epoch.end if self.on_epoch else None)
        except KeyboardInterrupt as stop:
            self.interrupted, self.interruption = True, stop
            if is_root(self.ranks):
                print(f"interrupted after {self.steps} of {self.steps_total} steps", file=sys.stderr, flush=True)
        finally:
            self.seconds += time.perf_counter() - began
        return self

    def _epoch(self, number: int, source: Any, display: StepDisplay | None) -> None:
        """One pass over the training rows (the last may be cut by `steps`), then validation."""
        with agreed(self.ranks):
            self.model.check()
        source.order.array[...] = self._order(number)
        rows = min(len(self.train_rows), (self.steps_total - self.steps) * self.batch_size)
        result, began, first = Result(), time.perf_counter(), self.steps
        self.latest = result

        def heard(done: int) -> None:
            self.steps = self.trainer.steps - self._first_step
            at = Progress(True, done, rows, time.perf_counter() - began, result)
            if display is not None:
                display.step(self.steps, done, result)
            if self.on_progress is not None:
                self.on_progress(at)

        try:
            self.trainer.run_rows(
                source, 0, rows, result,
                batch_size=self.batch_size, micro_batch_size=self.micro_batch_size, heard=heard,
            )  # fmt: skip
        except StopTraining:
            self.stopped = True
        finally:
            self.steps = self.trainer.steps - self._first_step
            self.training_seconds += time.perf_counter() - began
            self.tokens += min((self.steps - first) * self.batch_size, rows) * self.context
        seconds = time.perf_counter() - began
        if self.stopped:
            if result.ndata:
                self.history.append(EpochResult(number, result, None, seconds, self.trainer.planned_bytes))
            return
        self.trainer.epoch += 1
        found = EpochResult(number, result, self._evaluate(source, display), seconds, self.trainer.planned_bytes)
        self.history.append(found)
        if display is not None:
            display.epoch(found, max(number, self._first_pass + self.epochs_total))
        self.trainer.optimizer_state.observe(monitored(found))
        try:
            self.trainer.tell(self.on_epoch or None, found)
        except StopTraining:
            self.stopped = True

    def _order(self, number: int) -> np.ndarray:
        """The rows in the order of a pass, counted from 1: those that train, then those of validation."""
        return np.concatenate([self.dataset.order(self.seed, number, self.train_rows), self.val_rows])

    def first_order(self) -> np.ndarray:
        """The rows in the order of the first pass that `train` would make."""
        return self._order(self.trainer.epoch + 1)

    def _evaluate(self, source: Any, display: StepDisplay | None) -> Result | None:
        """The loss on the validation rows; None when there are none."""
        if not len(self.val_rows):
            return None
        source.order.array[len(self.train_rows) :] = self.val_rows
        result, first = Result(), len(self.train_rows)
        size = min(self.micro_batch_size, len(self.val_rows))

        def heard(done: int) -> None:
            if display is not None:
                display.validation(done, len(self.val_rows))

        self.trainer.run_rows(source, first, self.dataset.n, result, batch_size=size, backward=False, heard=heard)
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was trained: an adapter as FILE.gguf (llama.cpp) or a folder (PEFT), a model as FILE.gguf.

        With ranks, rank 0 alone writes. TrainError while another thread trains; FileError when it cannot be written or
        would replace the model or the data. The file of the adapter that the run began from may be replaced.
        """
        if is_root(self.ranks):
            self._refuse_inputs(path)
            with self.trainer.claim:
                self.adapter.save(path)

    def _refuse_inputs(self, path: str | os.PathLike[str]) -> None:
        read = [self.model.path, *self._read]
        for file in files_of_adapter(path) if isinstance(self.adapter, LoRA) else [path]:
            refuse_input(file, *read)

    # ---- what came of it -----------------------------------------------------------------------------------

    @property
    def planned_bytes(self) -> int:
        """The arena of the step (activations, gradients, workspace) and the scratch of all threads."""
        return self.trainer.planned_bytes

    @property
    def table(self) -> str:
        """Which tensors train, which are frozen."""
        return training_table(self.model, self.adapter)

    @property
    def report(self) -> dict[str, Any]:
        """The numbers of the run, as --json prints them. Losses are those of the last epoch, in nats per token."""
        trained = self.adapter.parameters()
        found: dict[str, Any] = {
            "model": self.model.path,
            "method": self.method,
            "parameters_trained": sum(p.size for p in trained.values()),
            "context": self.context,
            "rows_train": len(self.train_rows),
            "rows_val": len(self.val_rows),
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size,
            "epochs": len(self.history),
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens / self.training_seconds, 1) if self.tokens else None,
            "planned_bytes": self.planned_bytes,
            "peak_bytes": resident_peak(),
            "seed": self.seed,
            "ranks": 1 if self.ranks is None else self.ranks.size,
            "interrupted": self.interrupted,
        }
        found |= {"train_loss": self.latest.loss, "train_loss_unc": self.latest.loss_unc}
        last = self.history[-1].val if self.history else None
        if last is not None:
            found |= {"val_loss": last.loss, "val_loss_unc": last.loss_unc}
        if self.before is not None:
            found |= {"val_loss_before": self.before.loss, "val_loss_before_unc": self.before.loss_unc}
        if self.data.reports:
            found["data"] = self.data.reports[0].as_dict()
        return found

    def __repr__(self) -> str:
        return f"Run({self.method}, {self.steps} of {self.steps_total} steps)"


class _Step(Module):
    """The model as the Trainer calls it: i32 [rows, 2, T] (tokens, positions) -> [rows*T, d]."""

    def __init__(self, model: Model, adapter: Adapter) -> None:
        super().__init__()
        self._model, self._adapter = model, adapter

    def named_parameters(self) -> dict[str, Parameter]:
        return self._adapter.parameters()

    def forward(self, x: Value) -> Value:
        return self._model.hidden(x[:, 0], x[:, 1], self._adapter, training=self.training)


class _PlannedRows(Dataset):
    """Shapes and dtypes of a data set, for a plan: nothing is read, checked or ordered."""

    def __init__(self, data: np.ndarray, labels: np.ndarray) -> None:
        self.data, self.labels, self.weights, self.n = data, labels, None, len(data)


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, i32 [rows, T] each (see llm.packing.TokenData), and which of them train and validate."""

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    reports: tuple[Any, ...] = ()  # what was read, cut and skipped: of the training rows, of the validation rows

    @property
    def report(self) -> str:
        """The reports as text."""
        return "\nvalidation: ".join(map(str, self.reports))


def read_rows(
    model: Model,
    data: TokenData | Rows | str | os.PathLike[str],
    context: int | None = None,
    val_split: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Rows:
    """The rows of a file, or TokenData as they are, checked against the model's vocabulary and context.

    Samples of a .jsonl are split before they are packed, so that no row holds samples of both sides; windows of a text
    and rows of TokenData are split as they are. TokenData are rows already: SettingError for another context, and for
    options, which are those of a file; DataError for data of another kind. Rows come back unchanged.
    """
    limit = model.config.context_length
    if context is not None and not 2 <= context <= limit:
        raise SettingError(f"context={context} is not usable; need 2 to {limit}, the model's context")
    if isinstance(data, Rows):
        return data
    need = 12 * (context or 0)
    what = f"context={context} is not usable: one row needs {show_bytes(need)} of memory"
    need_memory(need, what, "need a smaller one")
    if isinstance(data, (str, os.PathLike)):
        from .data import read_samples
        from .packing import pack

        samples = read_samples(data, model.tokenizer, **options)
        length = context or min(CONTEXT, limit)
        share = _val_share(len(samples), val_split)
        if not samples.stream and share:
            parts = [pack(part, length) for part in samples.split(share, seed)]
            return _checked(model, _joined(*parts))
        data = pack(samples, length)
    else:
        check_rows(data, context, options)
    train, val = split_rows(len(data.tokens), _val_share(len(data.tokens), val_split), seed)
    reports = (data.report,) if hasattr(data, "report") else ()
    return _checked(model, Rows(data.tokens, data.positions, data.labels, train, val, reports))


def check_rows(data: Any, context: int | None, options: Mapping[str, Any]) -> None:
    """DataError unless these are rows of tokens; SettingError for what they would not heed."""
    arrays: list[Any] = [getattr(data, name, None) for name in ("tokens", "positions", "labels")]
    if not all(isinstance(a, np.ndarray) for a in arrays):
        raise DataError(
            f"data: got {type(data).__name__}; need the path of a .txt or .jsonl file, or TokenData (gl.llm.pack)"
        )
    tokens = arrays[0]
    if tokens.ndim != 2 or any(a.shape != tokens.shape or a.dtype.kind not in "iu" for a in arrays):
        seen = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
        raise DataError(f"data: tokens, positions and labels are {seen}; need three of i32 [rows, context]")
    if context is not None and context != tokens.shape[1]:
        raise SettingError(f"context={context} beside rows of {tokens.shape[1]} tokens; need it where they are packed")
    if options:
        raise SettingError(
            f"data_options: {', '.join(options)} beside rows of tokens; they belong to the path of a file"
        )


def _joined(train: TokenData, val: TokenData) -> Rows:
    """Training rows, then validation rows."""
    rows = np.arange(len(train) + len(val))
    return Rows(
        np.concatenate((train.tokens, val.tokens)),
        np.concatenate((train.positions, val.positions)),
        np.concatenate((train.labels, val.labels)),
        rows[: len(train)],
        rows[len(train) :],
        (train.report, val.report),
    )


def _checked(model: Model, rows: Rows) -> Rows:
    """The rows, or DataError or SettingError for what this model cannot be trained on."""
    limit, vocabulary, length = model.config.context_length, model.config.vocab_size, rows.tokens.shape[1]
    if length > limit:
        raise SettingError(f"data: rows of {length} tokens; the model's context is {limit}")
    for name, ids in (("token", rows.tokens), ("label", rows.labels)):
        bad = (ids >= vocabulary) | ((ids < 0) if name == "token" else (ids < 0) & (ids != IGNORED))
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"data: {name} id {int(ids.flat[at])} in row {at // length}; need 0..{vocabulary - 1}, the model's "
                "vocabulary"
            )
    if ((rows.positions < 0) | (rows.positions > np.arange(length))).any():
        raise DataError("data: a position lies before the start of its row; need positions that count from 0")
    if not (rows.labels[rows.train] != IGNORED).any():
        raise DataError("data: no token counts for the loss; need at least one label")
    return rows


def _val_share(count: int, asked: float | None) -> float:
    """The share for validation of so many rows or samples."""
    if asked is None:
        return 0.0 if count < 2 else min(VAL_SHARE, VAL_ROWS / count)
    return asked


def _adapter(adapter: Adapter | None, method: str | None, tensors: Any, train_dtype: str | None, seed: int) -> Any:
    """What is trained. What the method or the adapter would not heed is refused."""
    if adapter is not None:
        if method is not None and (method == "lora") != isinstance(adapter, LoRA):
            kind = "a LoRA" if isinstance(adapter, LoRA) else type(adapter).__name__
            raise SettingError(f"finetune: method={method!r} with {kind}; need one of them")
        if train_dtype is not None or tensors is not None:
            raise SettingError("finetune: tensors and train_dtype are settings of the adapter; need them there")
        return adapter
    if method == "full":
        return TrainedTensors("all" if tensors is None else tensors, train_dtype)
    if train_dtype is not None or tensors is not None:
        raise SettingError("finetune: tensors and train_dtype belong to method='full'; LoRA has targets of its own")
    return LoRA(seed=seed)


def _check_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingError(f"finetune: {name}={value!r} is not known; need one of {', '.join(known)}")


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, (int, float, np.number)) or not low <= value < high or value > sys.float_info.max:
        raise SettingError(f"finetune: {name}={value!r} is not usable; need {low:g} <= {name} < {high:g}")


def _shown(result: Result) -> str:
    unc = "" if math.isnan(result.loss_unc) else f" +- {result.loss_unc:.2g}"
    return f"loss {result.loss:.4f}{unc}"
