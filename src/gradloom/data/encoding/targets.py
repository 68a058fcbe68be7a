"""Targets of a table: classification or regression, class ids, and the rows that are held out for the test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..._cells import code_of
from ...base.errors import DataError
from ..dataset import split_rows
from ..reading.cells import composed, read_exactly
from ..reading.columns import Columns
from ..reading.raw_table import RawTable, class_name
from .features import truth_words
from .preprocess import Preprocess

MOST_INTEGER_CLASSES = 20  # a whole-number target with more different values is a regression by default
_TEST = 3  # the stream of the seed that holds rows out for the test


def drop_rows_without_target(raw: RawTable) -> RawTable:
    """The table without the rows whose target is empty or NaN; a note counts them."""
    y = raw.y
    if isinstance(raw.x, Columns) and raw.target_index >= 0:
        empty = raw.x.missing(raw.target_index)
        if raw.texts is not None and not empty.all():
            empty = np.array([text == b"" for text in raw.texts])[y]
    elif y.dtype.kind == "f":
        empty = np.isnan(y.reshape(len(y), -1)).any(axis=1)
    else:
        return raw
    if empty.all():
        raise DataError(
            f"{raw.path}: target {raw.target!r:.60} is empty in all {len(y)} rows; name another with --target"
        )
    if empty.any():
        rows = np.flatnonzero(~empty)
        raw.notes.append(f"{int(empty.sum())} of {len(y)} rows left out: their target {raw.target!r:.60} is empty")
        raw.y = y[rows]
        raw.picked, raw.x = rows, raw.x.keep(rows) if isinstance(raw.x, Columns) else raw.x[rows]
    return raw


def targets_of(raw: RawTable, task: str | None) -> tuple[str, np.ndarray, np.ndarray | None, list[str]]:
    """(task, targets, test targets, class names); ids i32 when they are classes, else f64."""
    y, test_y = raw.y, raw.test_y
    if isinstance(raw.x, Columns) and raw.target_index >= 0:
        if raw.texts is not None and task == "regression":
            numbers = raw.x.numbers(raw.target_index)
            if numbers is None:
                row, cell = raw.x.first_text(raw.target_index)
                raise DataError(
                    f"{raw.x.where(row)}: target {raw.target!r:.60} is {cell!r:.60}; need numbers for a regression"
                )
            y, raw.texts = numbers, None
    elif y.dtype.kind in "SU" and test_y is not None and test_y.dtype.kind != y.dtype.kind:
        y, test_y = (np.char.decode(a, "utf-8", "replace") if a.dtype.kind == "S" else a for a in (y, test_y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
        test_y = None if test_y is None else np.reshape(test_y, len(test_y))
    if y.ndim == 2 and y.dtype.kind in "fiub" and task != "regression" and _is_one_hot(y):
        raw.notes.append(f"target {raw.target!r:.60}: rows with a single 1 are taken as class ids")
        names = raw.classes or [str(i) for i in range(y.shape[1])]
        ids = y.argmax(axis=1).astype(np.int32)
        test_ids = None if test_y is None else np.asarray(test_y).argmax(axis=1).astype(np.int32)
        return "classification", ids, test_ids, names
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise DataError(f"{raw.path}: target {raw.target!r:.60} is inf in some row; need finite numbers")
    if task is None:
        task, why = decided(raw, y)
        raw.notes.insert(0, f"task: {task}, because the target {raw.target!r:.60} {why}")
    if task == "regression":
        if y.dtype.kind not in "fiub":
            raise DataError(
                f"{raw.path}: target {raw.target!r:.60} holds texts such as {class_name(y.flat[0])!r:.60}; need numbers"
            )
        return task, y.astype(np.float64), None if test_y is None else np.asarray(test_y, np.float64), []
    if y.ndim != 1:
        raise DataError(f"{raw.path}: target {raw.target!r:.60} has shape {list(y.shape)}; need one class for each row")
    return task, *_class_ids(raw, y, test_y)


def _class_ids(
    raw: RawTable, y: np.ndarray, test_y: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    if raw.classes is not None and y.dtype.kind in "iu":
        for values, what in ((y, raw.target), (test_y, "the test target")):
            bad = (
                np.flatnonzero((values < 0) | (values >= len(raw.classes))) if values is not None else np.zeros(0, int)
            )
            if values is not None and bad.size:
                need = f"need 0..{len(raw.classes) - 1}, the {len(raw.classes)} classes that the file names"
                raise DataError(f"{raw.path}: row {bad[0]}: {what!r:.60} is {values[bad[0]]}; {need}")
        return y.astype(np.int32), None if test_y is None else test_y.astype(np.int32), raw.classes
    if raw.texts is None:
        different, ids = np.unique(y, return_inverse=True)
    else:
        different, ids = _sorted_texts(y, raw.texts)
        raw.notes += _spellings(different.tolist(), raw.target)
    if len(different) > max(MOST_INTEGER_CLASSES, len(y) // 2):
        raise DataError(
            f"{raw.path}: target {raw.target!r:.60} has {len(different)} classes in {len(y)} rows; need far fewer"
        )
    names = [class_name(v) for v in different]
    test_ids = None
    if test_y is not None:
        place = np.clip(np.searchsorted(different, test_y), 0, len(different) - 1)
        bad = np.flatnonzero(different[place] != test_y)
        if bad.size:
            seen = class_name(test_y[bad[0]])
            raise DataError(f"{raw.path}: row {bad[0]} of the test has class {seen!r:.60}, which no training row has")
        test_ids = place.astype(np.int32)
    return ids.reshape(-1).astype(np.int32), test_ids, names


def _spellings(texts: list[bytes], target: str) -> list[str]:
    """A note where two classes, which are texts because others are, are one number: 1e5 and 100000."""
    numbers = [(read_exactly(text), text.decode()) for text in texts if code_of(text) == 0]
    first: dict[float, str] = {}
    for number, text in numbers:
        if isinstance(number, float) and first.setdefault(number, text) != text:
            two = f"classes {first[number]!r:.60} and {text!r:.60} are one number, and two classes"
            return [f"target {target!r:.60}: {two}, because other classes are texts; write them alike"]
    return []


def _sorted_texts(codes: np.ndarray, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(the used texts, sorted; the index of each row's text among them)."""
    used = sorted(np.unique(codes).tolist(), key=lambda code: texts[code])
    place = np.zeros(len(texts), np.int64)
    place[used] = np.arange(len(used))
    different = np.empty(len(used), object)
    different[:] = [texts[code] for code in used]
    return different, place[codes]


def _is_one_hot(y: np.ndarray) -> bool:
    return y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(axis=1) == 1).all())


def decided(raw: RawTable, y: np.ndarray) -> tuple[str, str]:
    """(the task of a target by its values, why)."""
    return _decide(y) if raw.texts is None else ("classification", _why_texts(raw))


def _decide(y: np.ndarray) -> tuple[str, str]:
    if y.dtype.kind in "USO":
        return "classification", "holds texts"
    if y.dtype.kind == "b":
        return "classification", "is true or false"
    if y.ndim > 1:
        return "regression", f"holds {y.shape[1]} numbers a row"
    if y.dtype.kind == "f" and not (y == np.floor(y)).all():
        return "regression", "holds numbers with decimals"
    count = len(np.unique(y))
    if count <= MOST_INTEGER_CLASSES:
        return "classification", f"has {count} whole-number value{'s' * (count != 1)}"
    return "regression", f"has {count} different numbers"


def _why_texts(raw: RawTable) -> str:
    if isinstance(raw.x, Columns) and raw.x.numbers(raw.target_index) is not None:
        zeros = raw.x.has_leading_zeros(raw.target_index)
        return "holds codes with leading zeros" if zeros else "holds numbers with more digits than float64 keeps"
    return "holds texts"


def check_classes(path: str, ids: np.ndarray, classes: list[str], notes: list[str]) -> None:
    count = np.bincount(ids, minlength=len(classes))
    if len(classes) < 2 or (count > 0).sum() < 2:
        name = classes[int(count.argmax())]
        raise DataError(f"{path}: a single class, {name!r:.60}, in all {len(ids)} training rows; need at least 2")
    absent = [name for name, c in zip(classes, count, strict=True) if c == 0]
    if absent:
        notes.append(f"no training row of class {', '.join(absent[:6])}")


def target_scales(values: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """(mean, deviation) of each target, f64 [rows, targets]; the deviation is 0 where all are one number.

    DataError, which calls the targets `what`, where f64 does not hold the squares of their distances.
    """
    with np.errstate(all="ignore"):
        mean, std = values.mean(axis=0), values.std(axis=0)
    least, most = values.min(axis=0), values.max(axis=0)
    is_one = least == most
    if not np.isfinite(std[~is_one]).all():
        raise DataError(f"{what} has numbers as large as {abs(values).max():g}; scale it")
    if not std[~is_one].all():
        raise DataError(f"{what} has numbers that differ by {(most - least)[~is_one].min():g} at most; scale it")
    return np.where(is_one, least, mean), np.where(is_one, 0.0, std)


def targets_of_column(data: Columns, index: int, preprocess: Preprocess) -> tuple[np.ndarray | None, list[str]]:
    """known_targets of a column of a table."""
    if preprocess.task == "classification":
        codes, texts = data.texts(index)
        as_written = set(map(composed, preprocess.classes))
        named = [text.decode("utf-8", "replace") for text in texts]
        named = [n if n in as_written else _as_class(text) for n, text in zip(named, texts, strict=True)]
        return _known_classes(codes, named, preprocess)
    values = data.numbers(index) if preprocess.outputs == 1 else None
    return (None, []) if values is None else (_checked_numbers(values.reshape(-1, 1), preprocess, data.where), [])


def known_targets(y: np.ndarray, preprocess: Preprocess) -> tuple[np.ndarray | None, list[str]]:
    """(targets of an array to predict on, as the model counts them, None when they are of another kind; problems).

    DataError, with the row, for a number that no score can be computed from.
    """
    if preprocess.task == "classification":
        if y.ndim == 2 and y.shape[1] == len(preprocess.classes) and y.dtype.kind in "fiub":
            return y.argmax(axis=1), []
        if y.ndim != 1:
            return None, []
        different, place = np.unique(y, return_inverse=True)
        of_rows, problems = _known_classes(place.reshape(-1), [_as_class(v) for v in different], preprocess)
        if (of_rows < 0).all() and y.dtype.kind in "iu" and y.min() >= 0 and y.max() < len(preprocess.classes):
            return y.astype(np.int64), []  # ids into the names that the file gave
        return of_rows, problems
    if y.dtype.kind not in "fiub":
        return None, []
    values = y.astype(np.float64).reshape(len(y), -1)
    if values.shape[1] != preprocess.outputs:
        return None, []
    return _checked_numbers(values, preprocess, lambda row: f"row {row}"), []


def _checked_numbers(values: np.ndarray, preprocess: Preprocess, where: Callable[[int], str]) -> np.ndarray:
    """The targets of a regression, f64 [rows, targets]; DataError for one that is infinite, or so far from the training
    rows that float32 cannot hold it standardised or f64 its square. NaN (missing) is accepted. where: names a row."""
    with np.errstate(over="ignore", invalid="ignore"):
        distance = values - np.array(preprocess.target_mean)
        standard = (distance / np.array(preprocess.target_std)).astype(np.float32)
        bad = np.argwhere(np.isinf(standard) | np.isinf(np.square(distance)))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        seen = f"{where(row)}: target {preprocess.target!r:.60} is {values[row, column]:g}"
        need = "need a finite number" if np.isinf(values[row, column]) else "too far from those of the training rows"
        raise DataError(f"{seen}; {need}; correct the value or leave it empty")
    return values


def _known_classes(codes: np.ndarray, texts: list[str], preprocess: Preprocess) -> tuple[np.ndarray, list[str]]:
    """(the class id of each row's text, -100 where the model does not know it; a line that names those texts)."""
    ids = {composed(name): i for i, name in enumerate(preprocess.classes)}
    truths = truth_words(preprocess.classes)
    texts = [truths.get(text.lower(), text) for text in texts]
    known = np.array([ids.get(text, -100) for text in texts], np.int64)
    of_rows = known[codes]
    new = sorted({texts[code] for code in np.unique(codes) if known[code] < 0 and texts[code]})
    if not new:
        return of_rows, []
    count = int(np.isin(codes, [code for code, text in enumerate(texts) if text and known[code] < 0]).sum())
    rows = f"1 row of {len(codes):,}, which counts" if count == 1 else f"{count:,} rows of {len(codes):,}, which count"
    return of_rows, [f"classes that the model does not know: {', '.join(new[:6])} ({rows} in no score)"]


def _as_class(value: object) -> str:
    if isinstance(value, bytes):
        read = read_exactly(value)
        return class_name(read) if isinstance(read, float) and np.isfinite(read) else value.decode("utf-8", "replace")
    return class_name(value)


def hold_out(ids: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows): one permutation by the seed, of which each class gives its last share to the test."""
    order = np.concatenate(split_rows(len(ids), share, seed, stream=_TEST, called="test_split"))
    total = min(max(round(len(ids) * share), 1), len(ids) - 1)
    want = np.bincount(ids) * share
    take = np.floor(want).astype(np.int64)
    take[np.argsort(take - want, kind="stable")[: total - take.sum()]] += 1  # the largest remainders
    held = np.zeros(len(ids), bool)
    for label, count in enumerate(take):
        if count:
            held[np.flatnonzero(ids[order] == label)[-count:]] = True
    return order[~held], order[held]
