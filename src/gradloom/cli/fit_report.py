"""The report of gradloom fit: announcement, results, summary."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..base.errors import NonFiniteError
from ..base.json_documents import FIT
from ..base.memory import resident_peak
from .common import columns, json_text, print_report, saved_weights, to_paste, warn
from .fit_settings import MAY_CHANGE, FitSettings, rows_of
from .saved_settings import Inputs, saved
from .setting import settings_of, shown

if TYPE_CHECKING:
    import numpy as np

    from ..data import Dataset, Table
    from ..parallel.communicator import Communicator
    from ..run.backend import DeviceBytes
    from ..tables.model import Model
    from ..tables.recipe import Recipe
    from .fit_watch import Watch


@dataclass
class FitJob:
    """A fit: its settings, its data, its model."""

    use: Any
    recipe: Recipe
    table: Table
    net: Any
    ranks: Communicator | None
    inputs: Inputs
    val: dict[str, Dataset] = field(default_factory=dict)  # validation sets that are files
    warnings: list[str] = field(default_factory=list)  # for the user

    @cached_property
    def watch(self) -> Watch:
        """The callback that observes the training."""
        from .fit_watch import Watch

        contents = {"test rows": self.test_arrays}
        return Watch(lambda: announce(self), self.inputs, self.settings, contents, self.options)

    def options(self) -> dict[str, str]:
        """The settings that a resumed run keeps, as text by flag."""
        values = vars(self.use) | {"task": self.table.task, "target": self.table.preprocess.target}
        known = settings_of(FitSettings).values()
        kept = [one for one in known if one.is_saved and one.name not in MAY_CHANGE and one.flag.startswith("--")]
        return {one.flag: "none" if values[one.name] in (None, []) else shown(values[one.name]) for one in kept}

    def test_arrays(self) -> list[Any]:
        """Test rows, labels, and targets in their units; empty without test rows."""
        test = self.table.test
        return [] if test is None else [test.data, test.labels, self.table.test_targets]

    def on_device(self) -> DeviceBytes | None:
        """Memory of the training on its device, if it uses one."""
        there: DeviceBytes | None = self.watch.loop.trainer.on_device if self.watch.loop else None
        return there

    def settings(self) -> bytes:
        """The text of settings.toml: every setting as it was decided."""
        ranks = 1 if self.ranks is None else self.ranks.size
        chosen = {"task": self.table.task, "target": self.table.preprocess.target, "exchange": self.use.exchange}
        use = replace(self.use, micro_batch_size=self.sizes()["micro_batch_size"])
        return saved(use, "fit", self.inputs, ranks, out=os.path.abspath(self.use.out), **chosen)

    def check_columns(self) -> None:
        """Collect warnings about the training rows."""
        from ..data.column_warnings import column_warnings, imbalance, repeated_rows

        if self.use.class_weight is None:
            more = "; look at the balanced accuracy, or train with --class-weight balanced"
            self.warnings += [text + more for text in imbalance(self.table)]
        self.warnings += column_warnings(self.table) + repeated_rows(self.table)

    def warn(self, text: str) -> None:
        """Collect and print a warning about the results."""
        from ..parallel.agree import is_root

        self.warnings.append(text)
        if is_root(self.ranks):
            warn(f"warning: {text}")

    @property
    def data(self) -> Dataset:
        """The rows to train and validate on."""
        return _for_loss(self.table.train, self)

    @cached_property
    def ending(self) -> tuple[list[Any], dict[str, Any] | None]:
        """(callbacks of early stopping, their metrics)."""
        return self.recipe.stopping(self.table.preprocess.outputs_to_targets)

    @property
    def stopping(self) -> list[Any]:
        return self.ending[0]

    @property
    def time_is_up(self) -> bool:
        """--stop-after has ended the training before its last step."""
        loop = self.watch.loop
        return loop is not None and loop.stopped and not any(each.stopped for each in self.stopping)

    def about(self, ending: str) -> dict[str, Any]:
        """Facts about the training for the model file; data by their digest, without paths."""
        data = self.inputs.digests().get("data")
        about = {"data": data, "seed": self.use.seed, "ending": ending, **self.sizes()}
        more = {
            "dropout": self.use.dropout,
            "ensemble": self.use.ensemble,
            "folds": self.use.folds,
            "rows": self.table.train.n,
            "saved_epoch": self.watch.kept.epoch if self.watch.kept else None,
        }
        return about | {"optimizer": self.use.optimizer, **more}

    def sizes(self) -> dict[str, Any]:
        """Sizes and settings of network and steps, as they were decided."""
        use, loop = self.use, self.watch.loop
        micro = use.micro_batch_size if loop is None else loop.micro_batch_size  # where a memory budget chooses it
        return {
            "hidden": use.hidden, "epochs": use.epochs, "batch_size": use.batch_size, "micro_batch_size": micro,
            "lr": use.lr, "loss": use.loss, "precision": use.precision,
        }  # fmt: skip

    def model(self, ending: str, result: dict[str, Any]) -> Model:
        """The model to save, with the numbers of this result that do not depend on the machine."""
        from ..tables.model import Model

        parts = ("train_", "val_", "test_", "baseline_")
        numbers = {name: value for name, value in result.items() if name.startswith(parts) or "." in name}
        metrics = {
            name: value for name, value in numbers.items() if isinstance(value, (int, float)) and math.isfinite(value)
        }
        uses = self.table.uses
        if uses is not None:
            uses.digests = self.inputs.digests()
        return Model(self.net, self.table.preprocess, self.about(ending), metrics, uses)


def _for_loss(data: Dataset, job: FitJob) -> Dataset:
    """The data set with labels for the loss: mse over classes requires one-hot rows."""
    import numpy as np

    from ..data import Dataset

    if job.use.loss != "mse" or job.table.task != "classification":
        return data
    labels = np.eye(job.table.preprocess.outputs, dtype=np.float32)[data.labels]
    made = Dataset(data.data, labels, weights=data.weights)
    made.records = data.records
    return made


def validation_sets(use: Any, table: Table) -> dict[str, Dataset]:
    """The encoded files of --val, by name; rows without a known target are left out, with a note.

    DataError for a file without targets."""
    from ..data.table import labelled

    sets = {} if table.val is None else {"val": table.val}
    return sets | {name: labelled(path, table)[0] for name, path in (use.val or {}).items()}


# ---- results ---------------------------------------------------------------------------------------------------------


def measure(job: FitJob, seconds: float) -> dict[str, Any]:
    """The numbers of the epoch whose weights are saved (or of the part before an interruption), time and memory."""
    use, table, epochs = job.use, job.table, job.watch.epochs
    train_rows, val_rows = rows_of(use, table)
    loop, kept = job.watch.loop, job.watch.kept
    return {
        "data": use.data,
        "task": table.task,
        "target": table.preprocess.target,
        "rows_train": train_rows,
        "rows_val": min(val_rows or next((rows.n for rows in job.val.values()), 0), use.eval_rows or sys.maxsize),
        "folds": use.folds,
        "rows_test": 0 if table.test is None else table.test.n,
        **(_of(kept.train, "train") if kept else {}),
        **(_of(kept.val, "val") if kept and kept.val else {}),
        **{name: value for name, value in (kept.numbers() if kept else {}).items() if "." in name},
        "saved_epoch": kept.epoch if kept else None,
        **job.sizes(),
        "epochs": len(epochs),
        "optimizer": use.optimizer,
        "seed": use.seed,
        "ranks": 1 if job.ranks is None else job.ranks.size,
        "seconds": round(seconds, 3),
        "rows_per_second": round(loop.rows / loop.training_seconds) if loop and loop.training_seconds else None,
        **({"predicted_seconds": round(loop.predicted.seconds, 1)} if loop and loop.predicted else {}),
        "parameters": job.net.parameter_count(),
        "peak_bytes": resident_peak(),
        "notes": table.notes,
        "warnings": job.warnings,
        "history": job.watch.history,
    }


def measure_test(job: FitJob) -> dict[str, Any]:
    """Scores of the test rows in f32, and of a baseline; warns if the model is not better."""
    import gradloom as gl

    table = job.table
    where: dict[str, Any] = {
        "threads": job.use.threads, "device": job.use.device, "memory": job.use.memory, "precision": "f32"
    }  # fmt: skip
    if table.test is None:
        return {}
    rows = _for_loss(table.test, job)
    found = _of(gl.evaluate(job.net, rows, loss=job.use.loss, parallel=job.ranks, **where), "test")
    outputs = gl.predict(job.net, table.test.data, **where)
    scores = class_scores(job, outputs) if table.task == "classification" else number_scores(job, outputs)
    return scores | found | {"warnings": job.warnings}


def class_scores(job: FitJob, outputs: np.ndarray) -> dict[str, Any]:
    """Scores of the test rows, of each class, and of the most frequent class for every row."""
    from ..tables import scores

    table, names = job.table, job.table.preprocess.classes
    assert table.test is not None
    train, labels, weights = table.train.labels, table.test.labels, table.test.weights
    assert train is not None and labels is not None
    probabilities = scores.class_probabilities(outputs, job.use.loss)
    predicted = probabilities.argmax(axis=1)
    found = scores.prefixed(scores.classification_scores(probabilities, labels, weights), "test_")
    found["test_classes"] = scores.of_each_class(predicted, labels, names)
    if (counts := scores.confusion(predicted, labels, len(names))) is not None:
        found["test_confusion"] = counts
    baseline, most = scores.majority(train, labels, len(names), table.train.weights, weights)
    absent = [name for name, of in found["test_classes"].items() if not of["rows"]]
    if absent:
        more = "" if len(absent) < 4 else f" and {len(absent) - 3} more"
        text = f"no test row is of class {', '.join(map(repr, absent[:3])):.200}{more}: the scores do not cover it"
        job.warn(text + "; ROC AUC needs rows of two classes" * math.isnan(found["test_roc_auc"]))
    better, error = scores.gain(predicted != labels, labels != most, weights)
    if not better > error:
        text = (
            f"accuracy {found['test_accuracy']:.4f} is not better than always {names[most]!r:.60},"
            f" {baseline['accuracy']:.4f} (difference {better:+.4f} +- {error:.4f})"
        )
        if not math.isnan(found["test_roc_auc"]):
            area = f"ROC AUC {found['test_roc_auc']:.4f}"
            text += f"; balanced accuracy {found['test_balanced_accuracy']:.4f} and {area} show what was learned"
        job.warn(text)
    return found | scores.prefixed(baseline, "baseline_") | {"baseline": f"always {names[most]!r:.60}"}


def number_scores(job: FitJob, outputs: np.ndarray) -> dict[str, Any]:
    """Scores of the test rows, and of one number for every row: the mean of the training rows, or in time the last."""
    import numpy as np

    from ..tables import scores

    table, made = job.table, job.table.preprocess
    assert table.test is not None and table.test_targets is not None
    predicted, weights = made.outputs_to_targets(outputs), table.test.weights
    true = np.reshape(table.test_targets, predicted.shape).astype(np.float64)
    number, words = np.array(made.target_mean), "the mean of the training rows"
    if job.use.time is not None:
        before = table.val or table.train  # both in the order of time
        assert before.labels is not None
        number, words = made.outputs_to_targets(before.labels[-1:])[0], "the last value before the test rows"
    found = scores.prefixed(scores.regression_scores(predicted, true, weights), "test_")
    baseline = scores.constant(number, true, weights)
    of_model, of_number = (np.square((each - true) / made.target_std).mean(axis=1) for each in (predicted, number))
    better, error = scores.gain(of_model, of_number, weights)
    if math.isfinite(found["test_rmse"]) and not better > error:
        job.warn(
            f"rmse {found['test_rmse']:.6g} is not better than that of always {words},"
            f" {baseline['rmse']:.6g}: the features may not determine the target, or fewer epochs are needed"
        )
    return found | scores.prefixed(baseline, "baseline_") | {"baseline": f"always {words}"}


def _of(result: Any, name: str) -> dict[str, Any]:
    """Loss and accuracy of a Result with their uncertainties; accuracy where there are classes."""
    found = {f"{name}_loss": result.loss, f"{name}_loss_unc": result.loss_unc}
    if not math.isnan(result.accuracy):
        found |= {f"{name}_accuracy": result.accuracy, f"{name}_accuracy_unc": result.accuracy_unc}
    return found


def check_losses(job: FitJob, result: dict[str, Any]) -> None:
    """NonFiniteError for a loss that is not finite: it names the set of rows, and the first row whose outputs are not
    finite with the first node that is not. The model is saved."""
    import numpy as np

    import gradloom as gl

    from ..tables.model import why_not_finite

    for name, value in result.items():
        if not name.endswith("loss") or not isinstance(value, float) or math.isfinite(value):
            continue
        part = name.removesuffix("loss").rstrip("_.")
        data = {**job.val, "test": job.table.test}.get(part)
        cause = None
        if data is not None:
            where: dict[str, Any] = {"threads": job.use.threads, "device": job.use.device, "precision": "f32"}
            outputs = gl.predict(job.net, data.data, **where)
            cause = why_not_finite(job.net, data.data, outputs, **where)
            if cause is None:
                row = int(np.abs(outputs).reshape(len(outputs), -1).max(axis=1).argmax())
                cause = f"the largest output is {np.abs(outputs[row]).max():g}, of row {row}, whose loss is beyond f32"
        raise NonFiniteError(
            f"{name} is {value}{f': {cause}' * bool(cause)}; the model is saved in {result['model']}; check these rows"
        )


def write_result(path: str, result: dict[str, Any]) -> None:
    """The numbers of a training as a file."""
    from ..files import atomic_write

    text = json_text(FIT, result, strict=False) + "\n"
    with atomic_write(path, len(text)) as file:
        file.write(text.encode())


# ---- text for the terminal -------------------------------------------------------------------------------------------


def announce(job: FitJob) -> None:
    """Print the data, the network and all settings that were chosen."""
    from ..train.display import plural

    use, table, made = job.use, job.table, job.table.preprocess
    what = f"{table.train.n:,} rows"
    if use.val_split and table.val is None:
        what += f" ({use.val_split:g} of them for validation)"
    if use.folds:
        what += f" in {use.folds} folds (a network trains without one, which validates it)"
    for name, rows in job.val.items():
        source = f"from {(use.val or {})[name]}" if name in (use.val or {}) else "of later times"
        what += f", {rows.n:,} validation rows {source}"
    if table.test is not None:
        sources = {"file": "from the file", "held out": "held out", "the latest": "held out, the latest"}
        what += f", {table.test.n:,} test rows {sources.get(table.test_from, f'from {use.test}')}"
    print_report(f"{use.data}: {what}, {plural(made.inputs, 'feature')}")
    for note in table.notes:
        print_report(f"  {note}")
    if table.task == "classification":
        classes = ", ".join(made.classes[:10]) + (", ..." if len(made.classes) > 10 else "")
        print_report(f"  {len(made.classes)} classes: {classes}")
    for text in job.warnings:
        warn(f"  warning: {text}")
    sizes = "-".join(str(s) for s in (made.inputs, *use.hidden, made.outputs))
    members = f"{use.ensemble} networks " if use.ensemble > 1 else ""
    dropout = f"dropout {use.dropout:g}, " if use.dropout else ""
    print_report(
        f"model: {members}{sizes}, {dropout}{job.net.parameter_count():,} parameters; {use.loss}, {use.optimizer},"
        f" rate {use.lr:g} falling, {plural(use.epochs, 'epoch')}, batches of {use.batch_size}, seed {use.seed}"
        f"{'' if use.precision == 'f32' else f', products in {use.precision}'}"
    )
    steering = {
        "max_norm": "gradients' norm at most {:g}", "ema": "weights averaged with decay {:g}", "freeze": "frozen: {}",
        "class_weight": "classes {}", "patience": "ends after {} evaluations without improvement",
    }  # fmt: skip
    chosen = {name: getattr(use, name) for name in steering}
    lines = [
        text.format(", ".join(v) if isinstance(v := chosen[n], list) else v)
        for n, text in steering.items()
        if chosen[n]
    ]
    if lines:
        print_report(f"  {'; '.join(lines)}")


_SHOWN = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced", "f1_macro": "F1", "roc_auc": "ROC AUC",
    "r2": "R2", "rmse": "rmse", "mae": "mae",
}  # fmt: skip
_SHARES = ("accuracy", "balanced_accuracy", "f1_macro", "roc_auc", "r2")


def summarise(job: FitJob, result: dict[str, Any]) -> None:
    """The numbers of the training in two columns."""
    from ..train.display import duration, rate

    def line(part: str) -> str:
        shown = f"loss {result[f'{part}_loss']:.4f}"
        for name, word in _SHOWN.items():
            if (value := result.get(f"{part}_{name}")) is not None and not math.isnan(value):
                shown += f"  {word} {value:.4f}" if name in _SHARES else f"  {word} {value:.6g}"
                unc = result[f"{part}_{name}_unc"]
                shown += "" if math.isnan(unc) else f" +- {unc:.2g}"
        return shown

    lines = [("weights", saved_weights(job.watch.loop, result["epochs"])), ("training", line("train"))]
    if "val_loss" in result:
        lines.append(("validation", line("val")))
    if "test_loss" in result:
        lines.append((f"test ({job.table.test_from})", line("test")))
        name = "accuracy" if "baseline_accuracy" in result else "rmse"
        lines.append(("baseline", f"{name} {result[f'baseline_{name}']:.4g}  ({result['baseline']})"))
    lines.append(("time", f"{duration(result['seconds'])}, {rate(result['rows_per_second'])} rows/s"))
    lines.append(("memory", f"{rate(result['peak_bytes'])}B, {rate(result['planned_bytes'])}B of them planned"))
    if "device_bytes" in result:
        lines.append((f"on {job.use.device}", f"{rate(result['device_bytes'])}B of its memory"))
    lines.append(("saved", result["model"]))
    lines.append(("use it", to_paste(["gradloom", "predict", result["model"], job.use.data])))
    columns(lines, sys.stderr if job.use.json else None)
