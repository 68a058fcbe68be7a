"""Scores of predictions, of files that hold the targets too, by the use of their rows in the training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..base.terminal import plural
from .common import print_report, warn

if TYPE_CHECKING:
    import numpy as np

    from ..data import Preprocess

_MOST_SHOWN = 20  # targets
_PARTS = {"": "", "train": "training rows: ", "val": "validation rows: ", "test": "test rows: "}
_PARTS |= {"left_out": "rows left out of the training: ", "all rows": "all rows, those of the training among them: "}


def print_scores(agreement: dict[str, Any], warnings: list[str], preprocess: Preprocess) -> None:
    """The scores of each part of the file, and of all rows where there is more than one part."""
    parts = agreement.get("scores", {})
    everything = {"all rows" if parts else "": agreement} if len(parts) != 1 else {}
    for part, scores in {**parts, **everything}.items():
        if not preprocess.targets:
            print_report(f"{_PARTS[part]}{_shown(scores, preprocess)}")
            continue
        print_report(f"{_PARTS[part]}{_shown_means(scores, preprocess)}")
        for one, _ in preprocess.each_target[:_MOST_SHOWN]:
            print_report(f"  {_shown(scores['targets'][one.target], one)}")
    for text in warnings:
        warn(f"warning: {text}")


def agreements(
    outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess, uses: np.ndarray | None
) -> dict[str, Any]:
    """The scores as --json has them: of all rows; and "scores" of each part of a file that the training used."""
    from ..data.row_uses import NAMES, TRAIN

    whole = _agreement(outputs, targets, preprocess)
    if uses is None:
        return whole
    order = (*range(TRAIN, len(NAMES)), 0)
    parts = {NAMES[use]: _agreement(outputs[uses == use], targets[uses == use], preprocess) for use in order}
    scores = {name: part for name, part in parts.items() if part["rows_with_target"]}
    return whole | {"scores": scores}


def _agreement(outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess) -> dict[str, Any]:
    """Scores of the predictions against the targets of the file, as --json prints them; of several targets the means,
    and those of each."""
    import numpy as np

    if preprocess.targets:
        return _agreement_of_each(outputs, targets, preprocess)

    from ..tables.scores import regression_scores

    if preprocess.task == "classification":
        known = targets >= 0
        n = int(known.sum())
        if n == 0:
            return {"rows_with_target": 0}
        accuracy = float((outputs.argmax(axis=1) == targets)[known].mean())
        unc = math.sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else math.nan
        return {"rows_with_target": n, "accuracy": accuracy, "accuracy_unc": unc}
    known = np.isfinite(targets).all(axis=1)
    n = int(known.sum())
    scores = regression_scores(preprocess.outputs_to_targets(outputs)[known], targets[known]) if n else {}
    return {"rows_with_target": n, **scores}


def _agreement_of_each(outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess) -> dict[str, Any]:
    import numpy as np

    from ..data.encoding.target import of_target
    from ..data.table import known_rows

    each = {
        one.target: _agreement(outputs[:, at], of_target(targets, k, one.task), one)
        for k, (one, at) in enumerate(preprocess.each_target)
    }
    made: dict[str, Any] = {"rows_with_target": int(known_rows(targets, preprocess).sum())}
    for name in ("accuracy", "r2", "rmse", "mae"):
        values = [of[name] for of in each.values() if name in of and not math.isnan(of[name])]
        made |= {name: float(np.mean(values))} if values else {}
    return made | {"targets": each}


def _shown_means(agreement: dict[str, Any], preprocess: Preprocess) -> str:
    n, count = agreement["rows_with_target"], len(preprocess.targets)
    words = {"accuracy": "accuracy", "r2": "R2"}
    means = [f"mean {word} {agreement[name]:.4f}" for name, word in words.items() if name in agreement]
    return f"{', '.join(means) or 'no scores'} of {count} targets on {plural(n, 'row')}"


def _shown(agreement: dict[str, Any], preprocess: Preprocess) -> str:
    n, target = agreement["rows_with_target"], preprocess.target
    if preprocess.task == "classification":
        if n == 0:
            return f"no row has a {target!r} that the model knows"
        unc = agreement["accuracy_unc"]
        shown = f"accuracy {agreement['accuracy']:.4f}" + ("" if math.isnan(unc) else f" +- {unc:.4f}")
    else:
        if n == 0:
            return f"no row has a {target!r}"
        shown = f"R2 {agreement['r2']:.6g}, rmse {agreement['rmse']:.6g}"
    return f"{shown} on {plural(n, 'row')} that {'has' if n == 1 else 'have'} a {target!r}"
