"""Class weights: how much the rows of each class weigh in the losses of training and of its validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import what_is
from ..base.arrays import as_array
from ..base.errors import DataError, SettingError, one_line
from ..base.structures import Key, at, by_key, is_plain, listed, place
from ..data.dataset import IGNORED, Dataset, is_ids
from ..graph.leaves import constant
from ..graph.value import Value

_OfLabels = str | Mapping[int, float] | Sequence[float] | np.ndarray
ClassWeight = _OfLabels | Mapping[str, _OfLabels] | Sequence[_OfLabels | None] | None
Tables = np.ndarray | dict[Key, np.ndarray] | None  # f32 [classes], of several arrays of labels by output


def weights_of_classes(
    class_weight: ClassWeight, data: Dataset, rows: np.ndarray, others: Iterable[Dataset] = ()
) -> Tables:
    """The weight of each class, f32 [classes]; None when there are none. Of several arrays of labels such a table for
    each output that class_weight, a dict or tuple like the labels, names.

    class_weight: "balanced", n / (k * count) for a class of `count` of the n labels among these rows, of k classes
    (scikit-learn's compute_class_weight); {class: weight}, 1 for those that are not named; or a weight for each class.
    others: data sets that are validated on, whose classes without rows here weigh 1. Labels of -100 count for
    nothing. DataError without class ids, and for a class that no label names; SettingError for weights that are not
    finite or below 0.
    """
    if class_weight is None:
        return None
    if not data.has_known_labels:
        raise DataError("class_weight: the labels are made with the rows; need MapDataset(labels=...)")
    if is_plain(data.labels) or data.labels is None:
        return _table(class_weight, data, rows, others, None)
    labels = by_key(data.labels)
    example = f'{{"{next(iter(labels))}": "balanced"}}' if isinstance(data.labels, dict) else '("balanced", None)'
    if not isinstance(class_weight, Mapping if isinstance(data.labels, dict) else (tuple, list)):
        raise DataError(
            f"class_weight: the data have several arrays of labels, and it is {what_is(class_weight)}; need it by"
            f" output, such as {example}"
        )
    given: Any = dict(class_weight) if isinstance(class_weight, Mapping) else dict(enumerate(class_weight))
    for key in given:
        if key not in labels:
            raise DataError(f"{place('class_weight', key)}: no such label; the data have {listed(labels)}")
    chosen = {key: one for key, one in given.items() if one is not None}
    others = list(others)
    return {key: _table(one, data, rows, others, key) for key, one in chosen.items()} or None


def _table(class_weight: Any, data: Dataset, rows: np.ndarray, others: Iterable[Dataset], key: Key) -> np.ndarray:
    """weights_of_classes of the labels of one output; None: the only ones."""
    what, own = place("class_weight", key), at(data.labels, key)
    if own is None or not is_ids(own):
        seen = "no labels" if own is None else f"labels of {own.dtype}"
        raise DataError(f"{what}: the data have {seen}; need class ids")
    known = own[own != IGNORED]
    if known.min() < 0:
        raise DataError(f"{what}: a label is {known.min()}; need class ids of at least 0")
    theirs = [at(other.labels, key) for other in others if other.has_known_labels]
    theirs = [one for one in theirs if one is not None and is_ids(one)]
    classes = max(int(labels.max(initial=0)) for labels in (known, *theirs)) + 1
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise SettingError(setting="class_weight", seen=class_weight, need="'balanced', a dict or an array")
        labels = own[rows]
        counts = np.bincount(labels[labels != IGNORED].astype(np.int64), minlength=classes)
        present = counts > 0
        table = np.ones(classes)
        table[present] = counts.sum() / (present.sum() * counts[present])
    elif isinstance(class_weight, Mapping):
        table = np.ones(classes)
        for label, weight in class_weight.items():
            if isinstance(label, bool) or not isinstance(label, (int, np.integer)) or not (known == label).any():
                seen = ", ".join(map(str, np.unique(known)[:8]))
                raise DataError(f"{what}: no label is {one_line(label)}; need classes of the data, such as {seen}")
            table[label] = _number(label, weight)
    else:
        table = weights_by_class(class_weight, classes)
    if not table[known].any():
        raise DataError(f"{what}: every label has weight 0; need a class that counts")
    return table.astype(np.float32)


def weights_by_class(class_weight: Any, classes: int) -> np.ndarray:
    """The weight of each class, f32, given one by one, for at least this number of classes."""
    table = as_array("class_weight", class_weight)
    if table.dtype.kind not in "fiu" or table.ndim != 1 or len(table) < classes:
        seen = f"{table.dtype}{list(table.shape)}"
        text = f"{{class_weight}} is {seen}; must be a weight for each of the {classes} classes, or more"
        raise SettingError(text, setting="class_weight")
    return np.array([_number(label, weight) for label, weight in enumerate(table)], np.float32)


def _number(label: Any, weight: Any) -> float:
    usable = isinstance(weight, (int, float, np.number)) and not isinstance(weight, bool)
    if not usable or not np.isfinite(weight) or weight < 0:
        text = f"{{class_weight}}: {one_line(weight)} of class {label} must be a finite number of at least 0"
        raise SettingError(text, setting="class_weight")
    return float(weight)


def class_weighted(table: np.ndarray, labels: Value, weights: Value | None) -> Value:
    """The weight of each label, f32 of their shape: that of its class (0 for one that is ignored) times its row's.

    table f32 [classes]; labels i32 [rows] or [rows, positions]; weights f32 [rows].
    """
    ignored = ops.equal(labels, constant(np.int32(IGNORED), "i32"))
    ids = ops.cast(ops.where(ignored, 0.0, ops.cast(labels, "f32")), "i32")  # classes are fewer than 2**24
    own = ops.where(ignored, 0.0, ops.get_rows(constant(table), ids))
    if weights is None:
        return own
    return own * ops.reshape(weights, (weights.shape[0], *(1,) * (labels.ndim - 1)))
