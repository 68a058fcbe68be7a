"""The numbers of gradloom fit: of the saved epoch, of the test rows, and of a baseline."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from ..base.errors import NonFiniteError
from ..base.memory import resident_peak
from .fit_report import for_loss
from .fit_settings import rows_of

if TYPE_CHECKING:
    import numpy as np

    from ..data import Dataset
    from .fit_report import FitJob


def measure(job: FitJob, seconds: float) -> dict[str, Any]:
    """The numbers of the epoch whose weights are saved (or of the part before an interruption), time and memory."""
    use, table, epochs = job.use, job.table, job.watch.epochs
    train_rows, val_rows = rows_of(use, table)
    loop, kept = job.watch.loop, job.watch.kept
    return {
        "data": use.data,
        "task": table.task,
        "target": table.preprocess.target,
        **({"targets": table.preprocess.target_names} if table.preprocess.targets else {}),
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
    rows = for_loss(table.test, job)
    loss = job.recipe.loss_of(table.preprocess)
    found = _of(gl.evaluate(job.net, rows, loss=loss, parallel=job.ranks, **where), "test")
    outputs = gl.predict(job.net, features_in(table.test), **where)
    if table.preprocess.targets:
        from .fit_targets import target_scores

        scores = target_scores(job, outputs)
    else:
        scores = class_scores(job, outputs) if table.task == "classification" else number_scores(job, outputs)
    return scores | found | {"warnings": job.warnings}


def features_in(data: Dataset) -> Any:
    """The features of a data set, as gl.predict takes them."""
    from ..data import MapDataset

    return data.source if isinstance(data, MapDataset) else data.data


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
            outputs = gl.predict(job.net, features_in(data), **where)
            cause = why_not_finite(job.net, features_in(data), outputs, **where)
            if cause is None:
                row = int(np.abs(outputs).reshape(len(outputs), -1).max(axis=1).argmax())
                cause = f"the largest output is {np.abs(outputs[row]).max():g}, of row {row}, whose loss is beyond f32"
        raise NonFiniteError(
            f"{name} is {value}{f': {cause}' * bool(cause)}; the model is saved in {result['model']}; check these rows"
        )
