"""gradloom predict: what a saved model says about the rows of a file."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np

    from ..data import Preprocess


def predict(
    model: Annotated[str, typer.Argument(help="A file that gradloom fit saved, or its folder.")],
    data: Annotated[str, typer.Argument(help="A .csv or .csv.gz file, an .npz file, or a folder of idx files.")],
    out: Annotated[str | None, typer.Option(help="CSV file to write. [default: stdout]")] = None,
) -> int:
    """Predict the target of each row, as CSV: the prediction, and for classes the probability of each.

    Where the file holds the target too, stderr says how well they agree.
    """
    import gradloom as gl

    from ..data import read_features
    from ..files import atomic_write
    from .model import load_model

    net, preprocess = load_model(model)
    features, targets, notes, problems = read_features(data, preprocess)
    for note in notes + problems:
        print(note, file=sys.stderr)
    outputs = gl.predict(net, features)
    rows, header = _table(outputs, preprocess)
    text = "".join(_lines(header, rows))
    if out is None:
        sys.stdout.write(text)
    else:
        encoded = text.encode()
        with atomic_write(out, len(encoded)) as file:
            file.write(encoded)
        print(f"{len(rows):,} predictions in {out}", file=sys.stderr)
    if targets is not None:
        print(_agreement(outputs, targets, preprocess), file=sys.stderr)
    return 0


def _table(outputs: np.ndarray, preprocess: Preprocess) -> tuple[list[list[str]], list[str]]:
    """(rows of cells, header)."""
    import numpy as np

    if preprocess.task == "regression":
        values = preprocess.outputs_to_targets(outputs)
        names = (
            [preprocess.target]
            if values.shape[1] == 1
            else [f"{preprocess.target} {i}" for i in range(values.shape[1])]
        )
        return [[f"{v:.9g}" for v in row] for row in values.tolist()], names
    shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
    share = np.exp(shifted)
    share /= share.sum(axis=1, keepdims=True)
    best = [preprocess.classes[i] for i in outputs.argmax(axis=1)]
    rows = [[name, *(f"{p:.6f}" for p in row)] for name, row in zip(best, share.tolist(), strict=True)]
    return rows, [preprocess.target, *(f"p({name})" for name in preprocess.classes)]


def _lines(header: list[str], rows: list[list[str]]) -> Any:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    yield buffer.getvalue()


def _agreement(outputs: np.ndarray, targets: np.ndarray, preprocess: Preprocess) -> str:
    """How well the predictions agree with the targets that the file holds."""
    import numpy as np

    from ..train.display import plural
    from .fit import regression_scores

    if preprocess.task == "classification":
        known = targets >= 0
        n = int(known.sum())
        if n == 0:
            return f"no row has a {preprocess.target!r} that the model knows"
        accuracy = float((outputs.argmax(axis=1) == targets)[known].mean())
        unc = f" +- {math.sqrt(accuracy * (1 - accuracy) / (n - 1)):.4f}" if n > 1 else ""
        return f"accuracy {accuracy:.4f}{unc} on {plural(n, 'row')} that have a {preprocess.target!r}"
    known = np.isfinite(targets).all(axis=1)
    n = int(known.sum())
    if n == 0:
        return f"no row has a {preprocess.target!r}"
    scores = regression_scores(preprocess.outputs_to_targets(outputs)[known], targets[known])
    return f"R2 {scores['r2']:.4f}, rmse {scores['rmse']:.6g} on {plural(n, 'row')} that have a {preprocess.target!r}"
