"""Target encoding of columns with many categories.

    code = (sum of targets of the category + m * mean) / (rows of the category + m), less the mean, over its deviation

for each output (of a regression the standardised target, of a classification the share of each class but the first),
and one feature more: the logarithm of how many training rows the category has. A training row gets the code that rows
of the other folds make, so that no row sees its own target (cross-fitting: scikit-learn's TargetEncoder).
"""

from __future__ import annotations

import numpy as np

from ..dataset import generator
from ..reading.columns import Columns
from .column import Column
from .preprocess import Preprocess

_FOLDS = 5
_PRIOR_ROWS = 5.0  # m
_MOST_CLASSES = 20  # classes with a code each; of more, the most frequent ones
_STREAM = 4  # of the seed


class Encoding:
    """Learns the codes of all encoded columns from the known rows, and keeps what cross_fit needs."""

    def __init__(self, made: Preprocess, data: Columns, known: np.ndarray, y: np.ndarray, seed: int) -> None:
        self.known, self.made = known, made
        self.places: dict[int, np.ndarray] = {}  # of each encoded column: the category of each known row, or -1
        self.scales: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        columns = [i for i, column in enumerate(made.columns) if column.kind == "encoded"]
        if not columns:
            return
        self.outputs = _outputs(made, y[known])
        self.fold = generator(seed, _STREAM).permutation(len(known)) % _FOLDS
        inputs = [index for index in range(len(data.names)) if index not in made.target_places]
        for i in columns:
            column = made.columns[i]
            codes, texts = data.texts(inputs[i])
            places = {category.encode(): place for place, category in enumerate(column.categories)}
            of_text = np.array([places.get(text, -1) for text in texts], np.int64)
            self.places[i] = of_text[codes[known]]
            raw = _codes(self.places[i], self.outputs, len(column.categories), np.ones(len(known), bool))
            seen = raw[self.places[i][self.places[i] >= 0]]
            mean, std = seen.mean(axis=0), seen.std(axis=0)
            self.scales[i] = mean, np.where(std > 0, std, 1.0)
            column.codes = self._scaled(i, raw).reshape(-1).tolist()

    def _scaled(self, i: int, raw: np.ndarray) -> np.ndarray:
        mean, std = self.scales[i]
        return (raw - mean) / std

    def cross_fit(self, features: np.ndarray, order: np.ndarray) -> None:
        """Writes the codes of the known rows, each from the rows of other folds, into features, f32 [rows, inputs].
        order: which row each of features is."""
        if not self.places:
            return
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        rows = place[self.known]
        at = 0
        for i, column in enumerate(self.made.columns):
            if i in self.places:
                self._cross_fit(features[:, at : at + column.width], rows, i, column)
            at += column.width

    def _cross_fit(self, out: np.ndarray, rows: np.ndarray, i: int, column: Column) -> None:
        for fold in range(_FOLDS):
            others = self.fold != fold
            raw = self._scaled(i, _codes(self.places[i], self.outputs, len(column.categories), others))
            mine = ~others & (self.places[i] >= 0)
            out[rows[mine]] = raw[self.places[i][mine]]


def _outputs(made: Preprocess, y: np.ndarray) -> np.ndarray:
    """The quantities that codes average, f64 [rows, outputs]; where a target of several is missing, its mean."""
    if made.targets:
        return np.concatenate([_of_known(one.task, y[:, k]) for k, one in enumerate(made.targets)], axis=1)
    return _of_one(made.task, y)


def _of_known(task: str, column: np.ndarray) -> np.ndarray:
    known = ~np.isnan(column)
    values = column[known]
    found = _of_one(task, values.astype(np.int64) if task == "classification" else values)
    outputs = np.tile(found.mean(axis=0), (len(column), 1))
    outputs[known] = found
    return outputs


def _of_one(task: str, y: np.ndarray) -> np.ndarray:
    if task == "regression":
        values = y.reshape(len(y), -1).astype(np.float64)
        scale = values.std(axis=0)
        return (values - values.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    count = np.bincount(y)
    classes = np.sort(np.argsort(-count, kind="stable")[: _MOST_CLASSES + 1])[1:]
    return (y[:, None] == classes).astype(np.float64)


def _codes(place: np.ndarray, outputs: np.ndarray, categories: int, rows: np.ndarray) -> np.ndarray:
    """f64 [categories, outputs + 1], from these rows, bool [rows]."""
    chosen = rows & (place >= 0)
    count = np.bincount(place[chosen], minlength=categories).astype(np.float64)
    mean = outputs[rows].mean(axis=0) if rows.any() else np.zeros(outputs.shape[1])
    sums = np.stack(
        [np.bincount(place[chosen], outputs[chosen, k], minlength=categories) for k in range(outputs.shape[1])], axis=1
    )
    smooth = (sums + _PRIOR_ROWS * mean) / (count + _PRIOR_ROWS)[:, None]
    return np.concatenate([smooth, np.log1p(count)[:, None]], axis=1)
