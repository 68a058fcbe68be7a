"""Labels of texts: classes, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import DataError
from .json_rows import BadRow
from .sample_lines import name_of, number_of, value_of, whole_text

_SHOWN = 8  # classes that a message names


class Classes(NamedTuple):
    """Names of classes, sorted (whole numbers by value), and whether a text can have several of them."""

    names: tuple[str, ...]
    several: bool = False


class Labels:
    """Labels of the samples of one source, as numbers.

    kind     "classes": a text or a whole number, or a list of these; "numbers": finite numbers; "none": not read
    known    the classes that are possible; None: all that occur
    """

    def __init__(self, kind: str, known: Classes | None = None) -> None:
        self.kind, self.known = kind, known
        self._ids: dict[Any, int] = {}  # of each class, in the order of their first samples
        self._like: tuple[type, bool] | None = None  # of the first label: its type, and whether it is a list
        self._first = ""
        if known is not None:
            self._ids = {name: i for i, name in enumerate(known.names)}

    def take(self, row: dict[str, Any], key: str, first: str) -> tuple[float, ...]:
        """The label of a row: its number, or the ids of its classes. Raises BadRow."""
        if self.kind == "none":
            return (0.0,)
        if self.kind == "numbers":
            return (number_of(row, key, first, np.float64),)
        label = value_of(row, key, first)
        several = isinstance(label, (list, tuple))
        if self.known is not None and several != self.known.several:
            need = "a list of labels" if self.known.several else "one label"
            raise BadRow(f"{key} is {_shown(label)}; need {need}, as in the training")
        ids = [self._id(one, key, several) for one in (label if several else [label])]
        if len(set(ids)) < len(ids):
            raise BadRow(f"{key} is {_shown(label)}; need each label once")
        return tuple(ids)

    def _id(self, label: Any, key: str, several: bool) -> int:
        if isinstance(label, bool) or not isinstance(label, (str, int, np.integer)):
            seen = name_of(label)
            raise BadRow(f"{key} {'holds' if several else 'is'} a {seen}; need a text or a whole number")
        if isinstance(label, str):
            whole_text(label, key)
        if self.known is not None:
            name = str(label)
            if name not in self._ids:
                names = ", ".join(self.known.names[:_SHOWN]) + ", ..." * (len(self.known.names) > _SHOWN)
                raise BadRow(f"{key} is {_shown(label)}; need a class of the training: {names}")
            return self._ids[name]
        like = (str if isinstance(label, str) else int, several)
        self._like = self._like or like
        if like != self._like:
            raise BadRow(f"{key} is {_shown(label)}; need {_kind(*self._like)}, as before it")
        if isinstance(label, str) and not label.strip():
            raise BadRow(f"{key} is empty; need a label")
        return self._ids.setdefault(label if isinstance(label, str) else int(label), len(self._ids))

    def arrays(self, values: Sequence[tuple[float, ...]], where: str) -> tuple[np.ndarray, Classes | None]:
        """(f32 [samples, V], classes) of the labels of the samples that are used: ids of classes with V = 1, or of
        several labels 1 for each class that a text has, else 0; numbers as f64 [samples, 1]. Raises DataError for
        labels that are all the same."""
        if self.kind != "classes":
            return np.array(values, np.float64 if self.kind == "numbers" else np.float32), None
        if self.known is None:
            used = {int(i) for one in values for i in one}
            labels = sorted(label for label, i in self._ids.items() if i in used)
            several = self._like is None or self._like[1]
            if len(labels) < 2:
                seen = f"the label of all {len(values):,} samples is {_shown(labels[0])}" if labels else "no label"
                raise DataError(f"{where}: {seen}; need at least two classes")
            place = {self._ids[label]: i for i, label in enumerate(labels)}
            classes = Classes(tuple(map(str, labels)), several)
        else:
            classes, place = self.known, {i: i for i in range(len(self.known.names))}
        if not classes.several:
            return np.array([[place[int(one[0])]] for one in values], np.float32), classes
        found = np.zeros((len(values), len(classes.names)), np.float32)
        for row, one in zip(found, values, strict=True):
            row[[place[int(i)] for i in one]] = 1
        return found, classes


def _shown(label: object) -> str:
    return f"{label!r:.60}"


def _kind(kind: type, several: bool) -> str:
    name = "text" if kind is str else "whole number"
    return f"a list of {name}s" if several else f"a {name}"
