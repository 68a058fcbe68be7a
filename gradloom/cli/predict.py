"""gradloom predict: what a saved model says about the rows of a file."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..base.settings import PRECISIONS
from .common import json_text, need_one_of
from .language import Device, Precision
from .run_settings import check_device

_ROWS = 4096  # written at a time

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ..data import Preprocess


def predict(
    model: Annotated[str, typer.Argument(help="A file that gradloom fit saved, or its folder.")],
    data: Annotated[str, typer.Argument(help="A .csv or .csv.gz file, an .npz file, or a folder of idx files.")],
    out: Annotated[str | None, typer.Option(help="CSV file to write. [default: stdout]")] = None,
    precision: Precision = None,
    device: Device = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object, with the predictions in it where no CSV file is written."),
    ] = False,
) -> int:
    """Predict the target of each row, as CSV: the prediction, and for classes the probability of each.

    Where the file holds the target too, stderr says how well they agree.
    """
    need_one_of("precision", precision, PRECISIONS)
    check_device(device)
    from ..base.errors import DataError
    from ..data import read_features
    from ..files import atomic_write, check_target, refuse_input
    from .model import files_of_model, load_model

    if out is not None:
        refuse_input(out, *files_of_model(model), data)
        check_target(out, streams=True)
    opened = load_model(model)
    preprocess = opened.preprocess
    features, targets, notes, problems = read_features(data, preprocess)
    for note in notes + problems:
        print(note, file=sys.stderr)
    try:
        outputs = opened.outputs(features, precision=precision, device=device)
    except DataError as error:
        raise DataError(f"{model}, {data}: {error}") from None
    if out is not None:
        with atomic_write(out) as file:
            file.writelines(text.encode() for text in _csv(outputs, preprocess))
        print(f"{len(outputs):,} predictions in {out}", file=sys.stderr)
    elif not json:
        sys.stdout.writelines(_csv(outputs, preprocess))
    agreement = {} if targets is None else _agreement(outputs, targets, preprocess)
    if targets is not None:
        print(_shown(agreement, preprocess), file=sys.stderr)
    if json:
        answer = {
            "model": model, "data": data, "task": preprocess.task, "target": preprocess.target,
            "rows": len(outputs), "out": out, "notes": notes + problems, **agreement,
        }  # fmt: skip
        if preprocess.task == "classification":
            answer["classes"] = preprocess.classes
        if out is None:
            predictions, probabilities = _predictions(outputs, preprocess)
            answer["predictions"] = predictions
            answer |= {} if probabilities is None else {"probabilities": probabilities}
        print(json_text(answer))
    return 0


def _predictions(outputs: np.ndarray, preprocess: Preprocess) -> tuple[list[Any], list[list[float]] | None]:
    """(the prediction of each row, for classes the probability of each): a class, a number, or a list of numbers where
    there are several targets."""
    import numpy as np

    if preprocess.task == "regression":
        values = preprocess.outputs_to_targets(outputs)
        return (values[:, 0] if values.shape[1] == 1 else values).tolist(), None
    shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
    share = np.exp(shifted)
    share /= share.sum(axis=1, keepdims=True)
    return [preprocess.classes[i] for i in outputs.argmax(axis=1)], share.tolist()


def _csv(outputs: np.ndarray, preprocess: Preprocess) -> Iterator[str]:
    """A header, and a line for each row, some rows at a time."""
    import csv
    import io

    for start in range(0, len(outputs), _ROWS):
        predictions, probabilities = _predictions(outputs[start : start + _ROWS], preprocess)
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        if probabilities is not None:
            if start == 0:
                writer.writerow([preprocess.target, *(f"p({name})" for name in preprocess.classes)])
            for name, row in zip(predictions, probabilities, strict=True):
                writer.writerow([name, *(f"{p:.6f}" for p in row)])
        else:
            rows = [v if isinstance(v, list) else [v] for v in predictions]
            several = [f"{preprocess.target} {i}" for i in range(len(rows[0]))]
            if start == 0:
                writer.writerow([preprocess.target] if len(several) == 1 else several)
            writer.writerows([f"{v:.9g}" for v in row] for row in rows)
        yield buffer.getvalue()


def _agreement(outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess) -> dict[str, Any]:
    """How well the predictions agree with the targets that the file holds, as --json prints it."""
    import numpy as np

    from ..train.scores import regression_scores

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


def _shown(agreement: dict[str, Any], preprocess: Preprocess) -> str:
    from ..train.display import plural

    n, target = agreement["rows_with_target"], preprocess.target
    if preprocess.task == "classification":
        if n == 0:
            return f"no row has a {target!r} that the model knows"
        unc = agreement["accuracy_unc"]
        shown = f"accuracy {agreement['accuracy']:.4f}" + ("" if math.isnan(unc) else f" +- {unc:.4f}")
    else:
        if n == 0:
            return f"no row has a {target!r}"
        shown = f"R2 {agreement['r2']:.4f}, rmse {agreement['rmse']:.6g}"
    return f"{shown} on {plural(n, 'row')} that have a {target!r}"
