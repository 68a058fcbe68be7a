"""Data sets whose rows are made when they are read: by an object with __len__ and __getitem__, in worker threads or
processes."""

from __future__ import annotations

import inspect
import math
import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..base.arguments import as_bool, as_whole, what_is
from ..base.arrays import as_array, check_whole
from ..base.errors import DataError, DTypeError, GradloomError, ShapeError
from ..base.structures import (
    Structure,
    as_several,
    at,
    by_key,
    is_plain,
    leaves,
    listed,
    mapped,
    mapped_by_key,
    named,
    place,
)
from .dataset import Dataset, Draw, is_ids

_AWAY = "__array__", "__dlpack__", "__array_interface__", "columns"  # of arrays and tables, which are no row makers


class MapDataset(Dataset):
    """Rows of an object with __len__ and __getitem__, made when they are read (PyTorch calls it a map-style dataset).

    source     source[i] is x or (x, y) for i in 0..len(source) - 1: an array or number each, or a dict or tuple of
               such; all rows have the shapes of row 0, and are converted to its dtypes, which must hold them.
               source.__getitem__(i, rng), with a second parameter, gets the np.random.Generator of the row in the
               epoch, and None in evaluations and predictions.
               source.fetch(rows, draw), where there is one, makes several rows at once instead: x and y (or x alone)
               with n rows each; draw is a Draw, and None in evaluations
    labels     (n,) class ids or (n, ...) targets, where they are known without making the rows; by default
               source.labels
    workers    threads that make rows ahead of the training; 0: none. The rows are the same for any number, if the
               source draws random numbers from its rng alone
    processes  workers are processes, to which the source is pickled: for a __getitem__ that computes in Python
    weights, shard_size  as of Dataset

    DataError where a row cannot be made; ShapeError and DTypeError where it is not like row 0: the message names it.
    """

    def __init__(
        self,
        source: Any,
        labels: object | None = None,
        shard_size: int = 1,
        weights: object | None = None,
        *,
        workers: int = 2,
        processes: bool = False,
    ) -> None:
        if not is_row_maker(source):
            raise DataError(f"data: {what_is(source)}; need an object with __len__ and __getitem__")
        n = _length(source)
        self.source, self.workers = source, as_whole("workers", workers, 0)
        self.processes = as_bool("processes", processes)
        self._maker = _Maker(source)
        if self.processes:
            _need_pickled(source)
        self._pools: dict[int, Executor] = {}
        x, y = self._maker.make(np.zeros(1, np.int64), None)
        first = Dataset(x, y)  # checks dtypes and shapes
        self._maker.first = {"data": x, "labels": y}
        self._maker.kinds = {
            place(name, key): one.dtype
            for name, several in (("data", first.data), ("labels", first.labels))
            for key, one in by_key(several).items()
        }
        labels = getattr(source, "labels", None) if labels is None else labels
        self.has_known_labels = labels is not None
        if labels is None and first.labels is not None:
            labels = mapped(lambda one: _all(n, one), first.labels)
        super().__init__(mapped(lambda one: _all(n, one), first.data), labels, shard_size, weights)
        differs = _kinds(self.labels) != _kinds(first.labels)
        if differs:
            seen, need = (_shown(each) for each in (self.labels, first.labels))
            raise ShapeError(f"labels: {seen}; need {need}, as the rows have them")
        if not self.has_known_labels:
            self._all_count = not any(map(is_ids, leaves(self.labels)))

    def __repr__(self) -> str:
        return f"MapDataset({type(self.source).__name__}, {super().__repr__()[len('Dataset(') :]}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pools": {}}

    @property
    def contents(self) -> list[Any]:
        """What identifies the data: source.contents, where there is such a list of arrays and texts; else its class,
        and the number, shapes and dtypes of the rows."""
        own = getattr(self.source, "contents", None)
        shapes = [f"{name} {one.dtype}{list(one.shape)}" for name, one in named("data", self.data).items()]
        known = [*leaves(self.labels)] if self.has_known_labels else [_shown(self.labels)]
        weights = [] if self.weights is None else [self.weights]
        return [*(own if isinstance(own, list) else [type(self.source).__qualname__]), *shapes, *known, *weights]

    def begin(self, rows: np.ndarray, draw: Draw | None) -> Making:
        """Begin to make these rows; workers do it."""
        pool = self._pool()
        if pool is None:
            return Making(self, rows, draw, [(0, self._maker.make(rows, draw))])
        size = max(-(-len(rows) // (2 * self.workers)), 1)
        make: Callable[..., Any] = _make_in_process if self.processes else self._maker.make
        return Making(
            self, rows, draw, [(i, pool.submit(make, rows[i : i + size], draw)) for i in range(0, len(rows), size)]
        )

    def read(self, rows: np.ndarray, draw: Draw | None = None) -> tuple[Structure, Structure | None]:
        """(data, labels) of these rows, as they are stored."""

        def empty(one: np.ndarray) -> np.ndarray:
            return np.empty((len(rows), *one.shape[1:]), one.dtype)

        data, labels = mapped(empty, self.data), None if self.labels is None else mapped(empty, self.labels)
        for first, x, y in self.begin(np.asarray(rows, np.int64), draw).pieces():
            for whole, piece in ((data, x), (labels, y)):
                for key, one in by_key(whole).items():
                    made = at(piece, key)
                    one[first : first + len(made)] = made
        return data, labels

    def data_of(self, first: int, rows: int) -> Structure:
        """The data of n rows from this one on, or of those that there are."""
        return self.read(np.arange(first, min(first + rows, self.n)))[0]

    def rows_of_labels(self, rows: Any) -> Structure | None:
        if self.has_known_labels or self.labels is None:
            return super().rows_of_labels(rows)
        return self.read(np.arange(self.n)[rows])[1]

    def _pool(self) -> Executor | None:
        """The workers of this process; None where there are none."""
        if not self.workers:
            return None
        pid = os.getpid()
        if pid not in self._pools:
            self._pools.clear()
            pool = self._pools[pid] = (
                ProcessPoolExecutor(
                    self.workers,
                    multiprocessing.get_context("spawn"),
                    initializer=_begin_process,
                    initargs=(self._maker,),
                )
                if self.processes
                else ThreadPoolExecutor(self.workers, "gradloom rows")
            )
            weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
        return self._pools[pid]


class Making:
    """Rows that are being made."""

    def __init__(self, data: MapDataset, rows: np.ndarray, draw: Draw | None, made: list[tuple[int, Any]]) -> None:
        self.rows, self.draw, self._data, self._made = rows, draw, data, made

    def pieces(self) -> Any:
        """Each piece as (its first place among the rows, data, labels), in order, as soon as it is made."""
        try:
            for first, one in self._made:
                x, y = one.result() if isinstance(one, Future) else one
                count = min(len(leaves(x)[0]), len(self.rows) - first)
                rows = self.rows[first : first + count]
                yield first, _like("data", x, self._data.data, rows), _like("labels", y, self._data.labels, rows)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Make no more of them."""
        for _, one in self._made:
            if isinstance(one, Future):
                one.cancel()


class _Maker:
    """Makes rows of a source, in whichever thread or process."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.kinds: dict[str, np.dtype[Any]] = {}  # of row 0, by the name of the array
        self.first: dict[str, Structure | None] = {}  # row 0, as data and labels
        self._draws = _takes_generator(source)

    def make(self, rows: np.ndarray, draw: Draw | None) -> tuple[Structure, Structure | None]:
        """(data, labels) of these rows, as arrays."""
        if hasattr(self.source, "fetch"):
            return self._fetched(rows, draw)
        made = [self._row(int(row), draw) for row in rows]
        x = self._stacked("data", [one[0] for one in made], rows)
        has_labels = any(one[1] is not None for one in made)
        return x, self._stacked("labels", [one[1] for one in made], rows) if has_labels else None

    def _stacked(self, name: str, each: list[Structure], rows: np.ndarray) -> Structure:
        """Rows as arrays with a new first axis. ShapeError naming the first row that is not like row 0."""
        first = self.first.get(name, None if each[0] is None else mapped(lambda one: one[None], each[0]))
        for row, one in zip(rows, each, strict=True):
            if (one is None) != (first is None) or by_key(one).keys() != by_key(first).keys():
                raise ShapeError(f"{name} of row {row}: {_named(one)}; need {_named(first)}, as row 0")

        def stacked(key: Any, like: np.ndarray) -> np.ndarray:
            shape = like.shape[1:]
            parts = [at(one, key) for one in each]
            for row, part in zip(rows, parts, strict=True):
                if part.shape != shape and not part.size == math.prod(shape) == 1:
                    seen = f"{place(name, key)} of row {row}: shape {list(part.shape)}"
                    raise ShapeError(f"{seen}; need {list(shape)}, as row 0")
            return np.stack([part if part.shape == shape else part.reshape(shape) for part in parts])

        return mapped_by_key(stacked, first)

    def _fetched(self, rows: np.ndarray, draw: Draw | None) -> tuple[Structure, Structure | None]:
        try:
            found = self.source.fetch(rows, draw)
        except GradloomError:
            raise
        except Exception as error:
            raise DataError(f"rows {rows[0]}..{rows[-1]}: {_reason(error)}") from error
        x, y = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        for name, one in (named("data", x) | named("labels", y)).items():
            if len(one) != len(rows):
                raise ShapeError(f"{name}: fetch gave {len(one)} rows; need the {len(rows)} that it was asked for")
        return x, y

    def _row(self, row: int, draw: Draw | None) -> tuple[Any, Any]:
        try:
            rng = () if not self._draws else (None if draw is None else draw.of_row(row),)
            found = self.source.__getitem__(row, *rng) if rng else self.source[row]
        except GradloomError:
            raise
        except Exception as error:
            raise DataError(f"row {row}: {_reason(error)}") from error
        if isinstance(found, (tuple, list)):
            if len(found) != 2:
                raise DataError(f"row {row}: {what_is(found)} of {len(found)}; need x, or (x, y)")
            return tuple(self._arrays(name, one, row) for name, one in zip(("data", "labels"), found, strict=True))
        return self._arrays("data", found, row), None

    def _arrays(self, name: str, made: Any, row: int) -> Structure:
        """Copies of the arrays of a row: its source may use their memory again."""
        if made is None:
            return None
        found = as_several(f"{name} of row {row}", made)
        if found is None:
            return self._array(name, made, row)
        return mapped_by_key(lambda key, one: self._array(place(name, key), one, row), found)

    def _array(self, name: str, made: Any, row: int) -> np.ndarray:
        array = np.array(made if type(made) is np.ndarray else as_array(f"{name} of row {row}", made))
        if array.dtype.kind not in "fiub":
            raise DTypeError(f"{name} of row {row}: dtype {array.dtype}; need numbers")
        kind = self.kinds.get(name, array.dtype)
        if array.dtype == kind:
            return array
        if array.dtype.kind == "f" and kind.kind != "f":
            raise DTypeError(f"{name} of row {row}: {array.dtype}; need {kind}, as row 0")
        if kind.kind != "f":
            check_whole(f"{name} of row {row}", array, kind)
        return array.astype(kind)


_of_process: _Maker | None = None


def _begin_process(maker: _Maker) -> None:
    global _of_process
    _of_process = maker


def _make_in_process(rows: np.ndarray, draw: Draw | None) -> tuple[Structure, Structure | None]:
    assert _of_process is not None
    return _of_process.make(rows, draw)


def _reason(error: Exception) -> str:
    """Its type and text in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def is_row_maker(what: Any) -> bool:
    """Whether it is an object with __len__ and __getitem__ that is no array, table, mapping or sequence of Python."""
    has_rows = hasattr(type(what), "__len__") and hasattr(type(what), "__getitem__")
    plain = isinstance(what, (Mapping, str, bytes, list, tuple, np.ndarray, Dataset))
    return has_rows and not plain and not any(hasattr(what, name) for name in _AWAY)


def _length(source: Any) -> int:
    try:
        n = len(source)
    except Exception as error:
        raise DataError(f"data: len({type(source).__name__}): {_reason(error)}") from error
    if n == 0:
        raise DataError("data: 0 rows; need at least 1")
    return n


def _need_pickled(source: Any) -> None:
    try:
        pickle.dumps(source)
    except Exception as error:
        need = "a class at the top of a module, without open files; or processes=False"
        raise DataError(
            f"processes=True: {what_is(source)} cannot be pickled ({_reason(error)}); need {need}"
        ) from None


def _takes_generator(source: Any) -> bool:
    """Whether its __getitem__ has a second parameter."""
    try:
        found = inspect.signature(type(source).__getitem__).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in found) > 2


def _all(n: int, first: np.ndarray) -> np.ndarray:
    """An array of n rows of this shape and dtype, in the memory of one number: only its shape is read."""
    return np.broadcast_to(np.zeros((), first.dtype), (n, *first.shape[1:]))


def _kinds(structure: Structure | None) -> dict[Any, Any]:
    return {key: (is_ids(one), one.shape[1:]) for key, one in by_key(structure).items()}


def _named(structure: Structure | None) -> str:
    return (
        "none" if structure is None else "an array" if is_plain(structure) else f"the keys {listed(by_key(structure))}"
    )


def _shown(labels: Structure | None) -> str:
    each = [f"{name} {one.dtype}{list(one.shape[1:])}" for name, one in named("labels", labels).items()]
    return ", ".join(each) or "no labels"


def _like(name: str, made: Structure | None, stored: Structure | None, rows: np.ndarray) -> Structure | None:
    """Rows that were made, in the dtypes of row 0. ShapeError and DTypeError where they are not like it."""
    if set(by_key(made)) != set(by_key(stored)):
        raise ShapeError(f"{name} of row {rows[0]}: {_named(made)}; need {_named(stored)}, as row 0")
    if stored is None:
        return None

    def one(key: Any, whole: np.ndarray) -> np.ndarray:
        array = np.asarray(at(made, key))
        if array.shape[1:] != whole.shape[1:] and math.prod(array.shape[1:]) == math.prod(whole.shape[1:]) == 1:
            array = array.reshape(len(array), *whole.shape[1:])
        if array.shape[1:] != whole.shape[1:]:
            seen = f"{place(name, key)} of row {rows[0]}: shape {list(array.shape[1:])}"
            raise ShapeError(f"{seen}; need {list(whole.shape[1:])}, as row 0")
        if array.dtype != whole.dtype:
            is_float = array.dtype.kind == "f" and whole.dtype.kind != "f"
            if is_float or array.dtype.kind not in "fiub":
                seen = f"{place(name, key)} of row {rows[0]}: {array.dtype}"
                raise DTypeError(f"{seen}; need {whole.dtype}, as row 0")
            if whole.dtype.kind != "f":
                check_whole(f"{place(name, key)} of row {rows[0]}", array, whole.dtype)
            array = array.astype(whole.dtype)
        return array

    return mapped_by_key(one, stored)
