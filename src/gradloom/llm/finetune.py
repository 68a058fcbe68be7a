"""finetune: train an adapter, or the model's own tensors, on text. Built on gl.train.Loop, and meant to be copied.

A row of data is a sequence of `context` tokens that may hold several packed samples; `batch_size` rows make one
optimiser step, computed in micro-batches. The loss is a mean over all tokens that count in the batch.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import memory
from ..base.arguments import as_bool
from ..base.errors import SettingError, TrainError
from ..base.finetune_options import FinetuneOptions, TuneOptions
from ..base.habits import hinted
from ..base.options import bits_of, taken, takes, values_of
from ..base.pages import RunPage
from ..base.schema import table, whole
from ..base.terminal import to_stderr
from ..base.training_options import EvalOptions, RankOptions
from ..data.dataset import Dataset
from ..files import refuse_input
from ..parallel.agree import agreed, is_root, same_settings
from ..run.budget import check_places
from ..runs.saver import saver_of
from ..train.batch_loss import BatchLoss
from ..train.callbacks import Callback, Listeners
from ..train.display import StepDisplay
from ..train.epoch import Listener, Progress
from ..train.fit import evaluate
from ..train.history import History
from ..train.log import log_of
from ..train.loop import Loop
from ..train.metric import UNCERTAINTY
from ..train.result import Result
from ..train.stopping import EarlyStopping
from .arguments import adapter_of, data_arguments
from .data_files import data_files
from .earlier_run import EarlierRun, about_adapter
from .gpu_layers import check_layers
from .lora import LoRA, files_of_adapter
from .memory_plan import MemoryPlan
from .model import Adapter, Model, model_of
from .plan import base_bytes, check_trained, placed, sizes_of
from .planned_job import memory_of
from .records import records_of
from .room import within
from .rows import Rows, is_source, need_weights, read_rows
from .sample_texts import SAMPLES_OF_STATE, SampledText, Samples
from .scored import prepare_head
from .table import training_table
from .teacher import teacher_of
from .trained_tensors import TrainedTensors
from .tuning import Settings, Tuned, Tuning, TuningJob, computed_labels, split_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import FinetuneArguments
    from .json_rows import Source
    from .packing import TokenData

STATE = table({"first_step": whole(), "sampled_at": whole(), "samples": SAMPLES_OF_STATE})  # of a checkpoint


@hinted
@takes(TuneOptions, FinetuneOptions, RankOptions)
def finetune(
    model: Model | str | os.PathLike[str],
    data: TokenData | Source,
    adapter: Adapter | str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
    callbacks: Sequence[Callback] | None = None,
    on_epoch: Listeners = None,
    on_progress: Listener | None = None,
    **settings: Unpack[FinetuneArguments],
) -> Run:
    """Train and return the run: .history, .report, .adapter, .save(path). Arguments: see Run.

    The trained tensors are in run.adapter, with method="full" too (TrainedTensors: copies that replace the model's own
    tensors): the model given stays as it is. gl.llm.evaluate(model, data, run.adapter) measures the two together,
    gl.llm.evaluate(model, data) the model as it was.

    On Ctrl-C the run so far comes back, with .interrupted set. Raises DataError, SettingError, FileError for what
    cannot be trained, before anything runs; NonFiniteError when the loss or a gradient is not finite.
    """
    run = Run(model, data, adapter, callbacks=callbacks, on_epoch=on_epoch, on_progress=on_progress, **settings)
    return run.train(progress=progress)


@takes(TuneOptions, FinetuneOptions, RankOptions)
class Run(RunPage, Tuning):
    """One fine-tuning: everything that was decided is known before `train` begins.

    model        a Model, or the path of a GGUF file
    data         a path (.txt, .jsonl, .json, or a folder with train.jsonl, valid.jsonl, test.jsonl), a list of dicts
                 with the keys of .jsonl lines, or TokenData
    adapter      a LoRA or TrainedTensors, or the path of an adapter, whose weights are the first ones; by default one
                 is created for the method
    callbacks    see gl.train.Callback: notified of optimiser steps, passes, sampled texts and the end
    on_epoch     called with each pass's result (one listener or several), on_progress with the state of a pass at least
                 every 0.2 s; any may raise StopTraining: then the run ends in order, with .stopped set

    {options}

    The other arguments go to gl.compile (threads=). To resume, the model's weights, the samples read from the data,
    the adapter's settings and all options that affect bits must be the same.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        data: TokenData | Rows | Source,
        adapter: Adapter | str | os.PathLike[str] | None = None,
        *,
        on_progress: Listener | None = None,
        callbacks: Sequence[Callback] | None = None,
        on_epoch: Listeners = None,
        **settings: Unpack[FinetuneArguments],
    ) -> None:
        use, more = taken(FinetuneOptions, settings)
        asked, ranks, exchange, options = split_arguments(more, Run)
        self._base, reading = base_bytes(), data_arguments(use.data_options)
        with contextlib.ExitStack() as stack:
            with agreed(ranks):
                _check_devices(use, options)
                self.saver = saver_of("finetune", ranks, use)
                if self.saver is not None:
                    stack.enter_context(self.saver)
            if self.saver is not None:
                self.saver.share()
            with agreed(ranks):
                self.earlier, self._data_options = _earlier(use), reading
                loaded = model_of(model, "finetune")
                given = adapter_of(adapter, loaded, "finetune")
                if given is None and self.earlier is not None:
                    given = self.earlier.adapter()
                trained = asked.adapter(given)
                teacher = teacher_of(asked.chosen, loaded)
                check_trained(loaded, trained, getattr(asked.optimizer, "state_bits", asked.state_bits))
                self._memory = memory.memory()  # before this run takes any
                self._read = [*data_files(data).paths] if isinstance(data, (str, os.PathLike)) else []
                self._read += [os.fspath(p) for p in (use.val, asked.teacher) if isinstance(p, (str, os.PathLike))]
                asked = asked.settled(loaded, trained, data, reading)
                rows = read_rows(
                    loaded, data, asked.context, asked.val_split, asked.seed, use.val, trained,
                    form=asked.chosen.form, **reading,
                )  # fmt: skip
                _complete(trained, loaded, rows, asked, reading.get("chat_template"))
                self._reading = memory.resident_peak()
                memory.trim()
                self.data, self.train_rows, self.val_rows = rows, rows.train, rows.val
                every = [*_early_stopping(use, len(self.val_rows)), *_as_list(callbacks)]
                job = TuningJob(
                    loaded, trained, asked, *sizes_of(rows, asked.chosen, use.eval_rows), ranks, exchange, self.saver,
                    options, is_packed=not is_source(data), teacher=teacher,
                    kept=sum(each.copied_bytes(1, 0) for each in every if isinstance(each, Callback)),
                )  # fmt: skip
                job = placed("finetune", job, use.gpu_layers, use.gpu_memory)
                super().__init__(within("finetune", job, use.memory, self._base, self._reading))
                if self.earlier is not None:
                    self.earlier.load(self.trainer, loaded, trained)
                self.dataset = Dataset(*self.objective.arrays(self.objective.prepared(rows, trained)))
                self.dataset.records = records_of(loaded, rows, teacher)
                if not len(self.val_rows) and use.eval_every != "1epoch":
                    text = "{eval_every} requires validation rows: {val_split} above 0"
                    raise SettingError(text, eval_every=use.eval_every, val_split=..., place="finetune")
                logs = log_of(self.saver, use.log, use.log_every, self.job.row_tokens)
                for each in logs:
                    stack.callback(each.close)
                folder = None if self.saver is None else self.saver.folder
                self._samples = Samples(self.sampler, self.sample_every, folder)
                self.loop = Loop(
                    self.trainer, self.dataset, self.train_rows, self.val_rows,
                    batch_size=self.batch_size, micro_batch_size=self.micro_batch_size, steps=self.steps_total,
                    seed=asked.seed, validates_first=True, before_pass=self._check_model,
                    callbacks=[*logs, *every], metrics=self.metrics, on_epoch=on_epoch,
                    subscribers=[self._samples], saver=self.saver,
                    **values_of(use, EvalOptions), about=self._about(reading),
                    on_progress=None if on_progress is None else lambda at: _of_training(at, on_progress),
                )  # fmt: skip
            self._open = stack.pop_all()  # the run's folder, until the training has ended
        self.trainer.train_state.register("finetune", self._state, self._load, schema=STATE)
        if self.computed is not None:
            self.computed.attach(self.dataset, self.trainer, self.saver)
        self.job = replace(self.job, teacher=None)
        self._has_trained = self.interrupted = False
        self.interruption: KeyboardInterrupt | None = None  # what interrupted it
        self.seconds = 0.0  # of training and validation

    def _about(self, data_options: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that must be equal when the run is resumed, in addition to those of its loop."""
        options = {name: str(value) for name, value in sorted(data_options.items())}
        compared = self.trainer.bits  # by the trainer
        own = {name: value for name, value in bits_of(self.settings, TuneOptions).items() if name not in compared}
        settled = {"method": self.method, "context": self.context, "steps": self.steps_total}
        settled["objective"] = repr(self.objective)
        return own | settled | {"adapter": about_adapter(self.adapter), "data_options": options}

    def _check_model(self) -> None:
        with agreed(self.ranks):
            self.model.check()

    def first_order(self) -> np.ndarray:
        """The rows in the order of the first pass that `train` would make."""
        return self.loop.order(self.trainer.epoch + 1)

    # ---- running -------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile the steps (nothing runs yet): after this, planned_bytes is known."""
        self.compile(self.trainer.source(self.dataset))

    def memory(self) -> MemoryPlan:
        """The memory that the run needs. It is prepared first, where it is not."""
        if not self.plans:
            self.prepare()
        text = "tokenizer" in vars(self.model)
        return replace(memory_of(self, text, self._memory), base=self._base, reading=self._reading)

    def train(self, progress: bool = True) -> Run:
        """All remaining steps; see finetune. After an interruption, another call continues with a new pass.

        SettingError when the machine has not the memory that they need.
        """
        progress = as_bool("progress", progress)
        if self.saver is not None and self._has_trained:
            raise TrainError("finetune: the folder of this run is closed; need a new Run, with resume=True to continue")
        self._has_trained, self.interrupted = True, False
        try:
            with self._open:
                self._train(progress)
        except KeyboardInterrupt as stop:
            if not self.interrupted:
                raise
            self.interruption = stop
        return self

    def _train(self, progress: bool) -> None:
        self.prepare()
        memory.settle()
        with agreed(self.ranks):
            self.memory().check()
        same_settings(self.ranks, steps=self.steps_total, rows=len(self.train_rows))
        if self.computed is not None and not self.job.is_resumed and not self.steps:
            self.computed.fill(self.ranks, progress)
        if not self.loop.passes:
            self.first_step = self.trainer.steps
        display = None
        if progress and is_root(self.ranks):
            if self.earlier is not None and not self.steps:
                to_stderr(self.earlier)
            display = StepDisplay(self.steps_total, self.trainer.epoch + self.epochs_total, self.job.row_tokens)
        began = time.perf_counter()
        try:
            self.loop.run(display)
        except KeyboardInterrupt:
            self.interrupted = True
            if is_root(self.ranks):
                to_stderr(f"interrupted after {self.steps} of {self.steps_total} steps")
            raise
        finally:
            self.seconds += time.perf_counter() - began

    def _state(self) -> dict[str, Any]:
        return {"first_step": self.first_step, **self._samples.state()}

    def _load(self, values: Mapping[str, Any]) -> Callable[[], None]:
        take = self._samples.loading(values)

        def load() -> None:
            self.first_step = values["first_step"]
            take()

        return load

    def measure(self, data: Source) -> Result:
        """Loss and metrics of the objective on other data, with the weights as they are now; nothing is trained.

        data: a path or a list of dicts, read with the run's data_options. Raises as `finetune` does for its data.
        """
        rows = read_rows(
            self.model, data, self.context, 0.0, adapter=self.adapter, form=self.objective.form, **self._data_options
        )  # fmt: skip
        need_weights(rows, self.objective)
        arrays = self.objective.fitted(self.data).arrays(self.objective.prepared(rows, self.adapter))
        measured, options = Dataset(*arrays), self.trainer.options
        samples = 1 if rows.values is None else rows.values.shape[1]
        forward, size = replace(self.forward, samples=samples), self.micro_batch_size
        job = replace(self.job, teacher=teacher_of(self.objective, self.model))
        computed = computed_labels(job, forward, size, options)
        if computed is not None:
            computed.prepare(self.job.row_tokens)
            computed.complete(measured)
        loss = self.objective.trained_loss(forward)
        return evaluate(
            Tuned(self.objective, forward), measured, loss=loss, metrics=self.objective.measures(forward, train=False),
            batch_size=self.batch_size if isinstance(loss, BatchLoss) else size, **options,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained tensors: an adapter as FILE.gguf (llama.cpp) or a folder (PEFT), a model as FILE.gguf.

        With ranks, rank 0 alone writes. TrainError while another thread trains; FileError when it cannot be written or
        would replace the model or the data. The file of the adapter that the run began from may be replaced.
        """
        if is_root(self.ranks):
            for file in files_of_adapter(path) if isinstance(self.adapter, LoRA) else [path]:
                refuse_input(file, self.model.path, *self._read)
            with self.trainer.claim:
                self.adapter.save(path)

    # ---- what came of it -----------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """The trained tensors: "lora", or "full"."""
        return "lora" if isinstance(self.adapter, LoRA) else "full"

    @property
    def history(self) -> History:
        """A result for each pass."""
        return self.loop.history

    @property
    def before(self) -> Result | None:
        """Validation before the first step."""
        return self.loop.before

    @property
    def steps(self) -> int:
        """Optimiser steps that were done."""
        return self.loop.steps

    @property
    def samples(self) -> list[SampledText]:
        """Texts that were sampled, of sample_prompt."""
        return self._samples.texts

    @property
    def stopped(self) -> bool:
        """A listener has ended the run."""
        return self.loop.stopped

    @property
    def tokens(self) -> int:
        """Tokens trained on, with all positions of a row counted."""
        return self.loop.rows * self.job.row_tokens

    @property
    def planned_bytes(self) -> int:
        """The arena of the largest step (activations, gradients, workspace) and the scratch of all threads."""
        return self.trainer.planned_bytes

    @property
    def table(self) -> str:
        """Which tensors train, which are frozen."""
        rows = training_table(self.model, self.adapter)
        kept = self.adapter.parameters().keys() - self.trained().keys()
        size = sum(self.adapter.parameters()[name].size for name in kept)
        return rows + (f"\nkept by freeze: {size:,} of these parameters in {len(kept)} arrays" if kept else "")

    @property
    def report(self) -> dict[str, Any]:
        """The numbers of the run, as --json prints them. Losses are in nats per token, of the epoch whose
        weights the model has (saved_epoch)."""
        loop = self.loop
        numbers: dict[str, Any] = {
            "model": self.model.path,
            "method": self.method,
            "objective": self.objective.name,
            "parameters_trained": sum(p.size for p in self.trained().values()),
            "context": self.context,
            "rows_train": len(self.train_rows),
            "rows_val": len(self.val_rows),
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size,
            "epochs": len(self.history),
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens / loop.training_seconds, 1) if self.tokens else None,
            "planned_bytes": self.planned_bytes,
            "peak_bytes": memory.resident_peak(),
            "seed": self.settings.seed,
            "precision": self.precision,
            "ranks": 1 if self.ranks is None else self.ranks.size,
            "interrupted": self.interrupted,
        }
        train, val = (loop.latest, None) if loop.kept is None else (loop.kept.train, loop.kept.val)
        numbers |= {} if loop.kept is None else {"saved_epoch": loop.kept.epoch}
        numbers |= {} if loop.predicted is None else {"predicted_seconds": round(loop.predicted.seconds, 1)}
        for name, result in (("train_loss", train), ("val_loss", val), ("val_loss_before", self.before)):
            if result is not None and result.batches:
                numbers |= {name: result.loss, f"{name}_unc": result.loss_unc}
        numbers |= metrics_of(train if val is None or not val.batches else val)
        if self.data.reports:
            numbers["data"] = self.data.reports[0].as_dict()
        return numbers

    def __repr__(self) -> str:
        return f"Run({self.method}, {self.steps} of {self.steps_total} steps)"


def _complete(adapter: Adapter, model: Model, rows: Rows, settings: Settings, template: str | None) -> None:
    """Give the adapter its head or embedding, and the chat template of the data. Raises for rows that teach nothing."""
    settings.chosen.check(rows, int(settings.batch_size))
    prepare_head(settings.chosen, adapter, model, rows, settings.seed)
    if template is not None and isinstance(adapter, (LoRA, TrainedTensors)):
        adapter.chat_template = template


def metrics_of(result: Result | None, prefix: str = "") -> dict[str, float]:
    """The metrics of an objective as --json names them: rewards/margins as rewards_margin, recall@1 as recall_at_1."""
    found = {} if result is None or not result.batches else result.metrics
    names = {"accuracies": "accuracy", "margins": "margin"}
    plain = {name: name.removesuffix(UNCERTAINTY).replace("@", "_at_") for name in found}
    parts = [(plain[name].split("/"), name, value) for name, value in found.items()]
    return {
        prefix + "_".join(names.get(part, part) for part in words) + UNCERTAINTY * name.endswith(UNCERTAINTY): value
        for words, name, value in parts
        if math.isfinite(value)  # of some samples: good or bad ones
    }


def _earlier(use: FinetuneOptions) -> EarlierRun | None:
    """The run that is continued, if any."""
    if use.continue_from is None and use.keep_optimizer:
        text = "{keep_optimizer} requires {continue_from}, the folder of the earlier run"
        raise SettingError(text, keep_optimizer=True, continue_from=...)
    return None if use.continue_from is None else EarlierRun(use.continue_from, use.keep_optimizer)


def _early_stopping(use: FinetuneOptions, val_rows: int) -> list[Callback]:
    """What ends a run early and keeps its best weights, if that is asked."""
    if use.patience is None and not use.keep_best:
        return []
    if not val_rows:
        name, value = ("keep_best", True) if use.patience is None else ("patience", use.patience)
        text = f"{{{name}}} requires validation rows: {{val_split}} above 0"
        raise SettingError(text, {name: value, "val_split": ...}, place="finetune")
    return [EarlyStopping(use.patience or sys.maxsize, restore_best=use.keep_best, monitor="val_loss")]


def _as_list(callbacks: Sequence[Callback] | Callback | None) -> Sequence[Callback]:
    return [callbacks] if isinstance(callbacks, Callback) else callbacks or ()


def _check_devices(use: FinetuneOptions, options: Mapping[str, Any]) -> None:
    """SettingError for devices and memory that cannot be used, before anything is read."""
    if options.get("backend") == "numpy":  # computes without a plan
        raise SettingError(setting="device", seen="numpy", need="'cpu', 'gpu' or 'gpu:1'", place="finetune")
    check_layers("finetune", use.gpu_layers, use.gpu_memory, trains=True, **options)
    check_places("finetune", use.memory, options, use.gpu_layers)


def _of_training(at: Progress, listener: Listener) -> None:
    """Call the listener in training, and not in validation."""
    if at.training:
        listener(at)
