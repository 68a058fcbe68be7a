"""finetune: train an adapter, or the model's own tensors, on text. Built on gl.train.Loop, and meant to be copied.

A row of data is a sequence of `context` tokens that may hold several packed samples; `batch_size` rows make one
optimiser step, computed in micro-batches. The loss is a mean over all tokens that count in the batch, however they are
spread over its micro-batches.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import memory
from ..base.arguments import as_bool, as_whole
from ..base.errors import FileError, SettingError, TrainError
from ..base.habits import hinted
from ..base.interval import Interval
from ..base.memory import resident_peak
from ..base.schema import items, table, text, whole
from ..base.terminal import to_stderr
from ..data.dataset import Dataset
from ..files import refuse_input
from ..files.atomic import write_inside
from ..parallel.agree import agreed, is_root, same_settings
from ..train.callbacks import Callback, Listeners
from ..train.display import StepDisplay
from ..train.epoch import Listener, Progress
from ..train.history import History
from ..train.log import log_of
from ..train.loop import Loop
from ..train.result import Result
from ..train.saver import saver_of
from ..train.stopping import EarlyStopping
from .arguments import adapter_of
from .data_files import data_files
from .earlier_run import EarlierRun, about_adapter
from .gpu_layers import check_layers
from .lora import LoRA, TrainedTensors, files_of_adapter
from .model import Adapter, Model, model_of
from .plan import MemoryPlan, base_bytes, check_trained, memory_of, placed, sizes_of
from .records import records_of
from .rows import Rows, read_rows
from .sample_texts import SampledText
from .table import training_table
from .tuning import Job, Tuning, split_arguments

if TYPE_CHECKING:
    from ..train.run_folder import RunFolder
    from .json_rows import Source
    from .packing import TokenData

SAMPLES = "samples.jsonl"  # in the folder of a run
_SAMPLE = table({"step": whole(), "prompt": text, "text": text, "ended": text})
STATE = table({"first_step": whole(), "sampled_at": whole(), "samples": items(_SAMPLE)})  # of a checkpoint


@hinted
def finetune(
    model: Model | str | os.PathLike[str],
    data: TokenData | Source,
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


class Run(Tuning):
    """One fine-tuning: everything that was decided is known before `train` begins.

    model        a Model, or the path of a GGUF file
    data         a path (.txt, .jsonl, .json, or a folder with train.jsonl, valid.jsonl, test.jsonl), a list of dicts
                 with the keys of .jsonl lines, or TokenData; data_options go to its reader
    val          a file (or a list of dicts) to validate on, in place of a share of the data (val_split)
    adapter      what is trained: a LoRA or TrainedTensors, or the path of an adapter, which is trained on from its
                 weights; by default one made for the method
    callbacks    see gl.train.Callback: told of optimiser steps, passes, sampled texts and the end
    patience     end when the loss of validation has not improved for so many evaluations; keep_best: in the end
                 `adapter` holds the weights of the evaluation with the least loss, in place of the last ones
    eval_every   "50steps": measure validation after every 50th step, too; eval_rows: at most so many rows of it. As
                 gl.fit's
    run          a folder for checkpoints, samples.jsonl and metrics.jsonl; resume, overwrite, checkpoint_every, keep,
                 stop_after, log and log_every are those of gl.fit. To resume, the model's weights, what was read of the
                 data, the adapter's settings and all else that decides the bits must be the same
    continue_from  the folder of an earlier run of finetune: train on from its newest checkpoint, with an adapter like
                 its own where none is given. Schedule, order of rows and passes begin anew; so does the optimiser,
                 or with keep_optimizer=True its steps and moments go on
    on_epoch     is told of each pass's result (one listener or several), on_progress of the state of a pass at least
                 every 0.2 s; any may raise StopTraining: then the run ends in order, with .stopped set
    parallel     "mpi", under mpiexec: each batch is split over the ranks, as in gl.fit; then exchange: "ordered" (the
                 same bits for any number of ranks) or "fast", and timeout: seconds without a sign of life. Rank 0 alone
                 shows progress, calls the listeners and saves
    gpu_layers   so many of the model's last blocks run on the GPU (device= says which one), the others on the CPU, and
                 the head where it fits; "auto": as many as fit into gpu_memory, bytes or a text such as "4GiB".
                 run.layers says what was chosen
    settings     method, context, batch_size, epochs, lr, ...: see Settings; what is left goes to gl.compile (threads=)
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        data: TokenData | Rows | Source,
        adapter: Adapter | str | os.PathLike[str] | None = None,
        *,
        data_options: Mapping[str, Any] | None = None,
        val: Source | None = None,
        on_progress: Listener | None = None,
        callbacks: Sequence[Callback] | None = None,
        on_epoch: Listeners = None,
        eval_every: str | Interval = "1epoch",
        eval_rows: int | None = None,
        run: str | os.PathLike[str] | None = None,
        resume: bool = False,
        overwrite: bool = False,
        checkpoint_every: str | None = None,
        keep: int | None = None,
        stop_after: str | None = None,
        patience: int | None = None,
        keep_best: bool = False,
        continue_from: str | os.PathLike[str] | None = None,
        keep_optimizer: bool = False,
        log: str | Sequence[str] = (),
        log_every: str | None = None,
        gpu_layers: int | str | None = None,
        gpu_memory: int | str | None = None,
        **settings: Any,
    ) -> None:
        asked, ranks, exchange, options = split_arguments(settings, Run)
        self._base = base_bytes()
        with contextlib.ExitStack() as stack:
            with agreed(ranks):
                if options.get("backend") == "numpy":  # computes without a plan
                    raise SettingError(setting="device", seen="numpy", need="'cpu', 'gpu' or 'gpu:1'", place="finetune")
                check_layers("finetune", gpu_layers, gpu_memory, **options)
                self.saver = saver_of(
                    run, "finetune", ranks, resume=resume, overwrite=overwrite, checkpoint_every=checkpoint_every,
                    keep=keep, stop_after=stop_after,
                )  # fmt: skip
                if self.saver is not None:
                    stack.enter_context(self.saver)
            if self.saver is not None:
                self.saver.share()
            with agreed(ranks):
                if continue_from is None and as_bool("keep_optimizer", keep_optimizer):
                    text = "{keep_optimizer} requires {continue_from}, the folder of the earlier run"
                    raise SettingError(text, keep_optimizer=True, continue_from=...)
                self.earlier = None if continue_from is None else EarlierRun(continue_from, keep_optimizer)
                loaded = model_of(model, "finetune")
                given = adapter_of(adapter, loaded, "finetune")
                if given is None and self.earlier is not None:
                    given = self.earlier.adapter()
                trained = asked.adapter(given)
                check_trained(loaded, trained)
                self._memory = memory.memory()  # before this run takes any
                self._read = [*data_files(data).paths] if isinstance(data, (str, os.PathLike)) else []
                self._read += [os.fspath(val)] if isinstance(val, (str, os.PathLike)) else []
                rows = read_rows(
                    loaded, data, asked.context, asked.val_split, asked.seed, val, trained, **(data_options or {})
                )  # fmt: skip
                template = (data_options or {}).get("chat_template")
                if template is not None and isinstance(trained, (LoRA, TrainedTensors)):
                    trained.chat_template = template
                self._reading = memory.resident_peak()
                memory.trim()
                self.train_rows, self.val_rows = rows.train, rows.val
                job = Job(loaded, trained, asked, *sizes_of(rows, eval_rows), ranks, exchange, self.saver, options)
                super().__init__(placed("finetune", job, gpu_layers, gpu_memory))
                if self.earlier is not None:
                    self.earlier.load(self.trainer, loaded, trained)
                both = np.stack([rows.tokens, rows.positions], 1)  # [rows, 2, context]: what the Trainer reads
                self.data = replace(rows, tokens=both[:, 0], positions=both[:, 1])  # once in memory
                self.dataset = Dataset(both, rows.labels)
                self.dataset.records = records_of(loaded, rows)
                if not len(self.val_rows) and eval_every != "1epoch":
                    text = "{eval_every} requires validation rows: {val_split} above 0"
                    raise SettingError(text, eval_every=eval_every, val_split=..., place="finetune")
                logs = log_of(self.saver, log, log_every, self.context)
                for each in logs:
                    stack.callback(each.close)
                self.loop = Loop(
                    self.trainer, self.dataset, self.train_rows, self.val_rows,
                    batch_size=self.batch_size, micro_batch_size=self.micro_batch_size, steps=self.steps_total,
                    seed=asked.seed, validates_first=True, before_pass=self._check_model,
                    callbacks=[*logs, *_early_stopping(patience, keep_best, len(self.val_rows)), *_as_list(callbacks)],
                    on_epoch=on_epoch, saver=self.saver, eval_every=eval_every, eval_rows=eval_rows,
                    on_progress=None if on_progress is None else lambda at: _tell_training(at, on_progress),
                )  # fmt: skip
            self._open = stack.pop_all()  # the run's folder, until the training has ended
        self.loop.about |= self._about(data_options or {})
        self.samples: list[SampledText] = []  # what was sampled, of sample_prompt
        self._sampled_at = 0  # the step after which texts were sampled last
        self.trainer.train_state.register("finetune", self._state, self._load, schema=STATE)
        if self.sampler is not None:
            self.loop.ends.append(self.sample_every)
            self.loop.between_steps.append(self._sample)
        self._display: StepDisplay | None = None
        self._has_trained = self.interrupted = False
        self.interruption: KeyboardInterrupt | None = None  # what interrupted it
        self.seconds = 0.0  # of training and validation

    def _about(self, data_options: Mapping[str, Any]) -> dict[str, Any]:
        """What a run that is resumed must have in common with this one, beside what its loop compares."""
        options = {name: str(value) for name, value in sorted(data_options.items())}
        return {
            "method": self.method, "context": self.context, "steps": self.steps_total,
            "adapter": about_adapter(self.adapter), "data_options": options,
        }  # fmt: skip

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
        """The memory that the run needs, once it is prepared."""
        found = memory_of(self, "tokenizer" in vars(self.model), self._memory)
        return replace(found, base=self._base, reading=self._reading)

    def train(self, progress: bool = True) -> Run:
        """All steps that are left; see finetune. After an interruption, called again, it goes on with a new pass.

        SettingError when the machine has not the memory that they need.
        """
        progress = as_bool("progress", progress)
        if self.saver is not None and self._has_trained:
            raise TrainError("finetune: the folder of this run is closed; need a new one, with resume=True to go on")
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
        with agreed(self.ranks):
            self.memory().check()
        same_settings(self.ranks, steps=self.steps_total, rows=len(self.train_rows))
        if not self.loop.passes:
            self.first_step = self.trainer.steps
        self._display = None
        if progress and is_root(self.ranks):
            if self.earlier is not None and not self.steps:
                to_stderr(self.earlier)
            self._display = StepDisplay(self.steps_total, self.trainer.epoch + self.epochs_total, self.context)
        began = time.perf_counter()
        try:
            self.loop.run(self._display)
        except KeyboardInterrupt:
            self.interrupted = True
            if is_root(self.ranks):
                to_stderr(f"interrupted after {self.steps} of {self.steps_total} steps")
            raise
        finally:
            self.seconds += time.perf_counter() - began

    def _sample(self) -> None:
        """Between two steps: sample texts, where that is due."""
        if self.steps > self._sampled_at and (self.steps % self.sample_every == 0 or self.steps == self.steps_total):
            self._sampled_at = self.steps
            self.trainer.tell(self._tell_samples)

    def _tell_samples(self) -> None:
        assert self.sampler is not None
        texts = self.sampler.texts(self.steps)
        self.samples += texts
        self._keep_samples()
        for one in texts:
            if self._display is not None:
                self._display.say(f"step {one.step}", f"{one.prompt!r} -> {one.text!r}")
            self.loop.callbacks.tell("on_sample", one)

    def _keep_samples(self) -> None:
        """Write samples.jsonl, whole: one that a killed process left may tell of later steps. What cannot be written is
        said, and training goes on."""
        folder = None if self.saver is None else self.saver.folder
        if folder is None or not self.samples:
            return
        lines = "".join(json.dumps(text.as_dict(), ensure_ascii=False) + "\n" for text in self.samples)
        error = _written(folder, lines)
        if error is not None:  # the folder's files may have taken the place of an older run's meanwhile
            error = _written(folder, lines)
        if error is not None:
            to_stderr(f"{error}; training goes on")

    def _state(self) -> dict[str, Any]:
        """What it remembers, for the state of the run."""
        texts = [text.as_dict() for text in self.samples]
        return {"first_step": self.first_step, "sampled_at": self._sampled_at, "samples": texts}

    def _load(self, values: Mapping[str, Any]) -> Callable[[], None]:
        texts = [SampledText(**text) for text in values["samples"]]

        def load() -> None:
            self.samples[:], self._sampled_at, self.first_step = texts, values["sampled_at"], values["first_step"]
            self._keep_samples()

        return load

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was trained: an adapter as FILE.gguf (llama.cpp) or a folder (PEFT), a model as FILE.gguf.

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
        """What is trained: "lora", or "full"."""
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
    def stopped(self) -> bool:
        """A listener has ended the run."""
        return self.loop.stopped

    @property
    def tokens(self) -> int:
        """Tokens trained on, with all positions of a row counted."""
        return self.loop.rows * self.context

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
            "peak_bytes": resident_peak(),
            "seed": self.settings.seed,
            "precision": self.precision,
            "ranks": 1 if self.ranks is None else self.ranks.size,
            "interrupted": self.interrupted,
        }
        train, val = (loop.latest, None) if loop.kept is None else (loop.kept.train, loop.kept.val)
        numbers |= {} if loop.kept is None else {"saved_epoch": loop.kept.epoch}
        for name, result in (("train_loss", train), ("val_loss", val), ("val_loss_before", self.before)):
            if result is not None and result.batches:
                numbers |= {name: result.loss, f"{name}_unc": result.loss_unc}
        if self.data.reports:
            numbers["data"] = self.data.reports[0].as_dict()
        return numbers

    def __repr__(self) -> str:
        return f"Run({self.method}, {self.steps} of {self.steps_total} steps)"


def _early_stopping(patience: int | None, keep_best: bool, val_rows: int) -> list[Callback]:
    """What ends a run early and keeps its best weights, if that is asked."""
    keep_best = as_bool("keep_best", keep_best)
    if patience is None and not keep_best:
        return []
    if not val_rows:
        name, value = ("keep_best", True) if patience is None else ("patience", patience)
        text = f"{{{name}}} requires validation rows: {{val_split}} above 0"
        raise SettingError(text, {name: value, "val_split": ...}, place="finetune")
    patience = sys.maxsize if patience is None else as_whole("patience", patience, 1)
    return [EarlyStopping(patience, restore_best=keep_best, monitor="val_loss")]


def _as_list(callbacks: Sequence[Callback] | Callback | None) -> Sequence[Callback]:
    return [callbacks] if isinstance(callbacks, Callback) else callbacks or ()


def _written(folder: RunFolder, samples: str) -> FileError | None:
    """Write samples.jsonl; the error, where it cannot be written."""
    try:
        write_inside(folder.path(SAMPLES), samples.encode("utf-8", "replace"))
    except FileError as error:
        return error
    return None


def _tell_training(at: Progress, listener: Listener) -> None:
    """Tell the listener of training, and not of validation."""
    if at.training:
        listener(at)
