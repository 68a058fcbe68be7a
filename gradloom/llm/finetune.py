"""finetune: train an adapter, or the model's own tensors, on text. Built on gl.train.Loop, and meant to be copied.

A row of data is a sequence of `context` tokens that may hold several packed samples; `batch_size` rows make one
optimiser step, computed in micro-batches. The loss is a mean over all tokens that count in the batch, however they are
spread over its micro-batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import memory
from ..base.arguments import as_bool
from ..base.memory import resident_peak
from ..data.dataset import Dataset
from ..files import refuse_input
from ..parallel.agree import agreed, is_root, same_settings
from ..train.callbacks import Callback, Listeners
from ..train.display import StepDisplay
from ..train.epoch import Listener, Progress
from ..train.history import History
from ..train.loop import Loop
from ..train.result import Result
from .arguments import adapter_of
from .lora import LoRA, files_of_adapter
from .model import Adapter, Model, model_of
from .plan import MemoryPlan, check_trained, memory_of
from .rows import Rows, read_rows
from .sample_texts import SampledText
from .table import training_table
from .tuning import Tuning, taken

if TYPE_CHECKING:
    from .packing import TokenData


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


class Run(Tuning):
    """One fine-tuning: everything that was decided is known before `train` begins.

    model        a Model, or the path of a GGUF file
    data         a path (.txt, .jsonl) or TokenData; data_options go to its reader
    adapter      what is trained: a LoRA or TrainedTensors, or the path of an adapter, which is trained on from its
                 weights; by default one made for the method
    callbacks    see gl.train.Callback: told of optimiser steps, passes, sampled texts and the end
    on_epoch     is told of each pass's result (one listener or several), on_progress of the state of a pass at least
                 every 0.2 s; any may raise StopTraining: then the run ends in order, with .stopped set
    parallel     "mpi", under mpiexec: each batch is split over the ranks, as in gl.fit; then exchange: "ordered" (the
                 same bits for any number of ranks) or "fast", and timeout: seconds without a sign of life. Rank 0 alone
                 shows progress, calls the listeners and saves
    settings     method, context, batch_size, epochs, lr, ...: see Settings; what is left goes to gl.compile (threads=)
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        data: TokenData | Rows | str | os.PathLike[str],
        adapter: Adapter | str | os.PathLike[str] | None = None,
        *,
        data_options: Mapping[str, Any] | None = None,
        on_progress: Listener | None = None,
        callbacks: Sequence[Callback] | None = None,
        on_epoch: Listeners = None,
        **settings: Any,
    ) -> None:
        asked, ranks, exchange, options = taken(settings, Run)
        with agreed(ranks):
            loaded = model_of(model, "finetune")
            trained = asked.adapter(adapter_of(adapter, loaded, "finetune"))
            check_trained(loaded, trained)
            self._memory = memory.memory()  # before this run takes any
            self._read = [data] if isinstance(data, (str, os.PathLike)) else []
            rows = read_rows(loaded, data, asked.context, asked.val_split, asked.seed, **(data_options or {}))
            memory.trim()
            self.train_rows, self.val_rows = rows.train, rows.val
            sizes = len(rows.train), len(rows.val), int(rows.tokens.shape[1])
            super().__init__(loaded, trained, asked, *sizes, ranks, exchange, **options)
            both = np.stack([rows.tokens, rows.positions], 1)  # [rows, 2, context]: what the Trainer reads
            self.data = replace(rows, tokens=both[:, 0], positions=both[:, 1])  # once in memory
            self.dataset = Dataset(both, rows.labels)
            self.loop = Loop(
                self.trainer, self.dataset, self.train_rows, self.val_rows,
                batch_size=self.batch_size, micro_batch_size=self.micro_batch_size, steps=self.steps_total,
                seed=asked.seed, validates_first=True, before_pass=self._check_model,
                callbacks=callbacks, on_epoch=on_epoch,
                on_progress=None if on_progress is None else lambda at: _of_training(at, on_progress),
            )  # fmt: skip
        self.samples: list[SampledText] = []  # what was sampled, of sample_prompt
        if self.sampler is not None:
            self.loop.ends.append(self.sample_every)
            self.loop.between_steps.append(self._sample)
            self.trainer.train_state.register("samples", self._sampled, self._load_samples)
        self._sampled_at = 0  # the step after which texts were sampled last
        self._display: StepDisplay | None = None
        self.interrupted = False
        self.interruption: KeyboardInterrupt | None = None  # what interrupted it
        self.seconds = 0.0  # of training and validation

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
        return memory_of(self, "tokenizer" in vars(self.model), self._memory)

    def train(self, progress: bool = True) -> Run:
        """All steps that are left; see finetune. After an interruption, called again, it goes on with a new pass.

        SettingError when the machine has not the memory that they need.
        """
        progress = as_bool("progress", progress)
        self.interrupted = False
        self.prepare()
        with agreed(self.ranks):
            self.memory().check()
        same_settings(self.ranks, steps=self.steps_total, rows=len(self.train_rows))
        if not self.loop.passes:
            self.first_step = self.trainer.steps
        self._display = None
        if progress and is_root(self.ranks):
            self._display = StepDisplay(self.steps_total, self.trainer.epoch + self.epochs_total, self.context)
        began = time.perf_counter()
        try:
            self.loop.run(self._display)
        except KeyboardInterrupt as stop:
            self.interrupted, self.interruption = True, stop
            if is_root(self.ranks):
                print(f"interrupted after {self.steps} of {self.steps_total} steps", file=sys.stderr, flush=True)
        finally:
            self.seconds += time.perf_counter() - began
        return self

    def _sample(self) -> None:
        """Between two steps: sample texts, where that is due."""
        if self.steps > self._sampled_at and (self.steps % self.sample_every == 0 or self.steps == self.steps_total):
            self._sampled_at = self.steps
            self.trainer.tell(self._tell_samples)

    def _tell_samples(self) -> None:
        assert self.sampler is not None
        for text in self.sampler.texts(self.steps):
            self.samples.append(text)
            if self._display is not None:
                self._display.say(f"step {text.step}", f"{text.prompt!r} -> {text.text!r}")
            self.loop.callbacks.sample(text)

    def _sampled(self) -> dict[str, Any]:
        """The texts so far, for the state of the run."""
        return {"texts": [text.as_dict() for text in self.samples], "at": self._sampled_at}

    def _load_samples(self, values: Mapping[str, Any]) -> Callable[[], None]:
        texts = [SampledText(**text) for text in values["texts"]]

        def load() -> None:
            self.samples[:], self._sampled_at = texts, values["at"]

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
        """The numbers of the run, as --json prints them. Losses are those of the last epoch, in nats per token."""
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
            "ranks": 1 if self.ranks is None else self.ranks.size,
            "interrupted": self.interrupted,
        }
        last = self.history[-1].val if self.history else None
        for name, result in (("train_loss", loop.latest), ("val_loss", last), ("val_loss_before", self.before)):
            if result is not None:
                numbers |= {name: result.loss, f"{name}_unc": result.loss_unc}
        if self.data.reports:
            numbers["data"] = self.data.reports[0].as_dict()
        return numbers

    def __repr__(self) -> str:
        return f"Run({self.method}, {self.steps} of {self.steps_total} steps)"


def _of_training(at: Progress, listener: Listener) -> None:
    """Validation is not told to the listener of a fine-tuning."""
    if at.training:
        listener(at)
