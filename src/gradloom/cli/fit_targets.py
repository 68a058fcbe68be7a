"""Scores of gradloom fit with several targets: of each, of its baseline, and their means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ..data import Preprocess
    from ..tables.target_scores import Cells

_MOST_NAMED = 3  # targets in one warning
_MOST_SHOWN = 20  # targets in the summary
_MEAN, _LAST = "the mean of the training rows", "the last value before the test rows"


def class_weights(job: Any) -> list[float] | None:
    """The weights of the classes of several targets in the loss, from the training rows; None without --class-weight,
    and of a single target."""
    import numpy as np

    from ..tables.target_loss import balanced

    made, use, data = job.table.preprocess, job.use, job.data
    if not made.targets or use.class_weight is None:
        return None
    rows = data.split(use.val_split, use.seed)[0] if use.val_split else np.arange(data.n)
    assert data.labels is not None
    return balanced(data.labels[rows], made)


def target_scores(job: Any, outputs: np.ndarray) -> dict[str, Any]:
    """Scores of the test rows: of each target, of a constant prediction for it, and the means of both over the
    targets; warns of targets that the model predicts no better."""
    import numpy as np

    from ..tables import scores
    from ..tables.target_scores import cells_of_targets, target_scores

    table, made = job.table, job.table.preprocess
    assert table.test is not None and table.test_targets is not None
    weights = table.test.weights
    cells = cells_of_targets(made, outputs, table.test_targets)
    each, means = target_scores(cells, weights)
    of_targets: dict[str, dict[str, Any]] = {}
    worse: list[str] = []
    for k, one in enumerate(cells):
        name, task = one.preprocess.target, one.preprocess.task
        of_targets[name] = {"task": task, "rows": len(one.rows), **each.get(name, {})}
        if not len(one.rows):
            job.warn(f"target {name!r:.60}: empty in all test rows: no score covers it")
            continue
        own = None if weights is None else weights[one.rows]
        baseline, is_better = (_of_classes if task == "classification" else _of_numbers)(job, k, one, own)
        of_targets[name] |= baseline
        worse += [name] * (not is_better)
        if task == "classification":
            predicted, names = one.probabilities.argmax(axis=1), one.preprocess.classes
            of_targets[name]["classes"] = scores.of_each_class(predicted, one.targets, names)
            if (counts := scores.confusion(predicted, one.targets, len(names))) is not None:
                of_targets[name]["confusion"] = counts
    if worse:
        more = "" if len(worse) <= _MOST_NAMED else f" and {len(worse) - _MOST_NAMED} more"
        named = f"{', '.join(map(repr, worse[:_MOST_NAMED])):.200}{more}"
        job.warn(
            f"the model is not better than one constant value for {named}: the features may not determine"
            f" {'these targets' if len(worse) > 1 else 'this target'}, or fewer epochs are needed"
        )
    found: dict[str, float] = {}
    for name in ("accuracy", "log_loss", "rmse", "mae"):
        values = [of[f"baseline_{name}"] for of in of_targets.values() if f"baseline_{name}" in of]
        found |= {f"baseline_{name}": float(np.mean(values))} if values else {}
    return scores.prefixed(means, "test_") | {"test_targets": of_targets} | found | {"baseline": _words(job)}


def _words(job: Any) -> str:
    number = _LAST if job.use.time is not None else _MEAN
    kinds = {"classification": "the most frequent class", "regression": number}
    used = [kinds[task] for task in kinds if any(one.task == task for one in job.table.preprocess.targets)]
    return f"always {' or '.join(used)} of each target"


def _of_classes(job: Any, k: int, one: Cells, weights: np.ndarray | None) -> tuple[dict[str, Any], bool]:
    """(scores of the most frequent class for every row, whether the model is better)."""
    from ..tables import scores

    names = one.preprocess.classes
    train, its_weights = _training_cells(job, k)
    found, most = scores.majority(train, one.targets, len(names), its_weights, weights)
    predicted = one.probabilities.argmax(axis=1)
    better, error = scores.gain(predicted != one.targets, one.targets != most, weights)
    return scores.prefixed(found, "baseline_") | {"baseline": f"always {names[most]!r:.60}"}, better > error


def _of_numbers(job: Any, k: int, one: Cells, weights: np.ndarray | None) -> tuple[dict[str, Any], bool]:
    """(scores of one number for every row, whether the model is better)."""
    import numpy as np

    from ..tables import scores

    number, words = np.array(one.preprocess.target_mean), _MEAN
    if job.use.time is not None:
        known = _training_cells(job, k, latest=True)[0]
        if len(known):
            number, words = one.preprocess.outputs_to_targets(known[-1:])[0], _LAST
    true = one.targets
    found = scores.constant(number, true, weights)
    of_model, of_number = (np.square(each - true).mean(axis=1) for each in (one.numbers, number))
    better, error = scores.gain(of_model, of_number, weights)
    return scores.prefixed(found, "baseline_") | {"baseline": f"always {words}"}, better > error


def _training_cells(job: Any, k: int, latest: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
    """(known labels of one target in the training rows, the weights of their rows). latest: in the validation rows that
    follow them in time, if there are some."""
    data = (job.table.val or job.table.train) if latest else job.table.train
    labels, known = job.table.labels_of(data, k)
    return labels[known], None if data.weights is None else data.weights[known]


def class_lines(made: Preprocess) -> list[str]:
    """The classes of the target; of several those with the same ones in one line."""
    from ..data.encoding.features import listed

    if made.classes:
        return [_shown_classes(made.classes)]
    same: dict[tuple[str, ...], list[str]] = {}
    for one in made.targets:
        if one.classes:
            same.setdefault(tuple(one.classes), []).append(f"{one.name!r:.60}")
    return [f"{listed(names)}: {_shown_classes(list(classes))}" for classes, names in same.items()]


def _shown_classes(names: list[str]) -> str:
    return f"{len(names)} classes: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"


def target_lines(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line of the summary for each target."""
    from ..base.terminal import in_one_line

    of_targets = result["test_targets"]
    lines = []
    for name, of in list(of_targets.items())[:_MOST_SHOWN]:
        keys = ("accuracy", "roc_auc") if of["task"] == "classification" else ("r2", "rmse", "mae")
        words = {"accuracy": "accuracy", "roc_auc": "ROC AUC", "r2": "R2", "rmse": "rmse", "mae": "mae"}
        shown = []
        for key in keys:
            value = of.get(key)
            if value is None or math.isnan(value):
                continue
            number = f"{value:.4f}" if key in ("accuracy", "roc_auc", "r2") else f"{value:.6g}"
            unc = of.get(f"{key}_unc", math.nan)
            shown.append(f"{words[key]} {number}" + ("" if math.isnan(unc) else f" +- {unc:.2g}"))
        first = keys[0] if keys[0] == "accuracy" else "rmse"
        if f"baseline_{first}" in of:
            shown.append(f"(baseline {of[f'baseline_{first}']:.4g})")
        lines.append((f"  {in_one_line(name)}", "  ".join(shown) or "no test row has it"))
    if len(of_targets) > _MOST_SHOWN:
        lines.append(("  ...", f"{len(of_targets) - _MOST_SHOWN} more targets in result.json"))
    return lines
