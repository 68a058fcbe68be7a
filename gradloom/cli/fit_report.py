"""What gradloom fit says: before it trains, and what came of it."""

from __future__ import annotations

import math
import os
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base.memory import resident_peak
from .common import columns, json_text, say
from .fit_settings import FitSettings, rows_of
from .saved_settings import Inputs, saved

if TYPE_CHECKING:
    from ..data import Dataset, Table
    from ..parallel.communicator import Communicator
    from ..train.epoch import Progress
    from ..train.result import EpochResult, Result


@dataclass
class Watch:
    """Hears of the progress: what each pass has measured so far, also when the training is interrupted."""

    train: list[Result] = field(default_factory=list)  # one for each pass that was begun
    val: list[Result] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)  # of each pass that was whole

    def __call__(self, at: Progress) -> None:
        results = self.train if at.training else self.val
        if not results or results[-1] is not at.result:
            results.append(at.result)

    def epoch(self, result: EpochResult) -> None:
        from ..train.history import row_of

        self.epochs.append(row_of(result))


@dataclass
class Job:
    """A fit: its settings, its data, its model."""

    use: FitSettings
    table: Table
    net: Any
    ranks: Communicator | None
    inputs: Inputs
    watch: Watch = field(default_factory=Watch)

    @property
    def data(self) -> Dataset:
        """The rows to train and validate on."""
        return _for_loss(self.table.train, self)

    def about(self, ending: str) -> dict[str, Any]:
        """What a model's file tells of its training; the data by their content, so that it names no place."""
        data = self.inputs.digests().get("data")
        return {"data": data, "seed": self.use.seed, "ending": ending, **_sizes(self.use)}


def _sizes(use: FitSettings) -> dict[str, Any]:
    return {
        "hidden": use.hidden, "epochs": use.epochs, "batch_size": use.batch_size,
        "micro_batch_size": use.micro_batch_size, "lr": use.lr, "loss": use.loss,
    }  # fmt: skip


def _for_loss(data: Dataset, job: Job) -> Dataset:
    """The data set with labels as the loss takes them: mse over classes compares with rows of 0 and 1."""
    import numpy as np

    from ..data import Dataset

    if job.use.loss != "mse" or job.table.task != "classification":
        return data
    return Dataset(data.data, np.eye(job.table.preprocess.outputs, dtype=np.float32)[data.labels])


# ---- what came of it -------------------------------------------------------------------------------------------------


def measure(job: Job, seconds: float) -> dict[str, Any]:
    """The numbers of the training: the last pass (when it was interrupted, as far as it came), time and memory."""
    use, table, watch = job.use, job.table, job.watch
    train_rows, val_rows = rows_of(use, table)
    validated = [result for result in watch.val if result.ndata == val_rows]
    trained = [result for result in watch.train if result.ndata == train_rows]
    return {
        "data": use.data,
        "task": table.task,
        "target": table.preprocess.target,
        "rows_train": train_rows,
        "rows_val": val_rows,
        "rows_test": 0 if table.test is None else table.test.n,
        **(_of(watch.train[-1], "train") if watch.train else {}),
        **(_of(validated[-1], "val") if validated else {}),
        **_sizes(use),
        "epochs": len(validated if val_rows else trained),
        "optimizer": use.optimizer,
        "seed": use.seed,
        "ranks": 1 if job.ranks is None else job.ranks.size,
        "seconds": round(seconds, 3),
        "rows_per_second": round(sum(result.ndata for result in watch.train) / seconds),
        "parameters": job.net.parameter_count(),
        "peak_bytes": resident_peak(),
        "notes": table.notes,
        "history": watch.epochs,
    }


def measure_test(job: Job) -> dict[str, Any]:
    """What the test rows measure, where there are some."""
    import gradloom as gl

    table, threads = job.table, job.use.threads
    if table.test is None:
        return {}
    rows = _for_loss(table.test, job)
    found = _of(gl.evaluate(job.net, rows, loss=job.use.loss, threads=threads, parallel=job.ranks), "test")
    if table.task == "regression":
        outputs = gl.predict(job.net, table.test.data, threads=threads)
        found |= regression_scores(table.preprocess.outputs_to_targets(outputs), table.test_targets, "test_")
    return found


def _of(result: Any, name: str) -> dict[str, Any]:
    """Loss and accuracy of a Result with their uncertainties; accuracy where there are classes."""
    found = {f"{name}_loss": result.loss, f"{name}_loss_unc": result.loss_unc}
    if not math.isnan(result.accuracy):
        found |= {f"{name}_accuracy": result.accuracy, f"{name}_accuracy_unc": result.accuracy_unc}
    return found


def regression_scores(predicted: Any, true: Any, name: str = "") -> dict[str, float]:
    """r2 (share of the variance explained, 1 is perfect) and rmse in the units of the target, averaged over targets."""
    import numpy as np

    true = np.reshape(true, predicted.shape).astype(np.float64)
    error = np.square(predicted - true).mean(axis=0)
    spread = np.square(true - true.mean(axis=0)).mean(axis=0)
    r2 = float(np.mean(1 - error / spread)) if (spread > 0).all() else math.nan
    return {f"{name}r2": r2, f"{name}rmse": float(np.sqrt(error.mean()))}


def write_result(path: str, result: dict[str, Any]) -> None:
    """The numbers of a training as a file."""
    from ..files import atomic_write

    text = json_text(result) + "\n"
    with atomic_write(path, len(text)) as file:
        file.write(text.encode())


def write_settings(path: str, job: Job) -> None:
    """Every setting as it was decided."""
    from ..files import atomic_write

    ranks = 1 if job.ranks is None else job.ranks.size
    told = {"task": job.table.task, "target": job.table.preprocess.target, "exchange": job.use.exchange}
    text = saved(job.use, "fit", job.inputs, ranks, out=os.path.abspath(job.use.out), **told)
    with atomic_write(path, len(text)) as file:
        file.write(text)


# ---- what a person reads ---------------------------------------------------------------------------------------------


def announce(job: Job) -> None:
    """What is about to happen, and everything that was decided for the user."""
    from ..train.display import plural

    use, table, made = job.use, job.table, job.table.preprocess
    what = f"{table.train.n:,} rows"
    if use.val_split:
        what += f" ({use.val_split:g} of them for validation)"
    if table.test is not None:
        what += f", {table.test.n:,} test rows " + ("from the file" if table.test_from == "file" else "held out")
    say(f"{use.data}: {what}, {plural(made.inputs, 'feature')}")
    for note in table.notes:
        say(f"  {note}")
    if table.task == "classification":
        classes = ", ".join(made.classes[:10]) + (", ..." if len(made.classes) > 10 else "")
        say(f"  {len(made.classes)} classes: {classes}")
    sizes = "-".join(str(s) for s in (made.inputs, *use.hidden, made.outputs))
    say(
        f"model: {sizes}, {job.net.parameter_count():,} parameters; {use.loss}, {use.optimizer}, rate {use.lr:g}"
        f" falling, {plural(use.epochs, 'epoch')}, batches of {use.batch_size}, seed {use.seed}"
    )


def summarise(job: Job, result: dict[str, Any]) -> None:
    """The numbers of the training in two columns."""
    from ..train.display import duration, rate

    def line(part: str) -> str:
        shown = f"loss {result[f'{part}_loss']:.4f}"
        if f"{part}_accuracy" in result:
            shown += f"  accuracy {result[f'{part}_accuracy']:.4f}"
            unc = result[f"{part}_accuracy_unc"]
            shown += "" if math.isnan(unc) else f" +- {unc:.4f}"
        if f"{part}_r2" in result:
            shown += f"  R2 {result[f'{part}_r2']:.4f}  rmse {result[f'{part}_rmse']:.6g}"
        return shown

    lines = [("training", line("train"))]
    if "val_loss" in result:
        lines.append(("validation", line("val")))
    if "test_loss" in result:
        lines.append((f"test ({job.table.test_from})", line("test")))
    lines.append(("time", f"{duration(result['seconds'])}, {rate(result['rows_per_second'])} rows/s"))
    lines.append(("memory", f"{rate(result['peak_bytes'])}B, {rate(result['planned_bytes'])}B of them planned"))
    lines.append(("saved", result["model"]))
    lines.append(("use it", f"gradloom predict {shlex.quote(result['model'])} {shlex.quote(job.use.data)}"))
    columns(lines, sys.stderr if job.use.json else None)
