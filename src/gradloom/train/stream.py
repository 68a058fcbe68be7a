"""Streams: the batches of an iterable, read one at a time, and their position, from which a run is resumed.

An iterable is resumed in one of three ways (Stream.way):

    "state"       a gl.data.DataLoader: its position
    "state_dict"  an object with state_dict() and load_state_dict(): the result of state_dict()
    "skip"        any other iterable that gives a new iterator each time: the batches before are read again

A checksum of the batches shows whether those that are read again are the same. An iterator or generator cannot be
resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, GradloomError, TrainError
from ..base.schema import flag, one_of, plain, table, text, whole
from ..base.structures import named
from ..data.dataset import Dataset
from ..data.loader import DataLoader
from ..data.reading.table_columns import is_table
from ..nn.module import Module
from ..parallel.agree import agreed
from ..parallel.communicator import Communicator, checksum

MOST_ROWS = 2**31 - 1
SIZES = 8  # sizes of batches, each with programs of its own, before a notice
STREAM = table(
    {
        "way": one_of("state", "state_dict", "skip", ""), "iterations": whole(), "batches": whole(), "is_over": flag,
        "is_pass_over": flag, "rows": whole(1, MOST_ROWS), "most": whole(1, MOST_ROWS), "all_count": flag,
        "read": text, "begun": text, "inner": plain,
    }
)  # fmt: skip


_KINDS = {
    "state": "a gl.data.DataLoader",
    "state_dict": "an object with state_dict()",
    "skip": "an iterable that is read again",
    "": "an iterator",
}


class Batch(Dataset):
    """One batch. Unlike the rows of a data set, all of them may have weight 0."""

    def check_counted(self, rows: np.ndarray | None = None, what: str = "data") -> None:
        """Nothing is refused."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Data, labels and weights by name."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return named("data", self.data) | named("labels", self.labels) | weights


class First(NamedTuple):
    """Facts about the first batch of a run, whose programs identify the run."""

    rows: int
    all_count: bool


@dataclass
class _Read:
    """A batch that was read ahead (None: the iterator has ended), and the state of the iterable before that."""

    batch: Batch | None
    before: Any = None


def is_stream(data: Any) -> bool:
    """Whether data are an iterable of batches: an iterator or generator, a gl.data.DataLoader, another object with
    __iter__ that has not both __len__ and __getitem__, a list of batches, or a function that returns an iterator.

    A list of two arrays is (x, y), and a list of numbers or lists is one array. A list of batches has tuples, dicts or
    arrays; one of two batches has tuples or lists of arrays."""
    if isinstance(data, DataLoader):
        return True
    if isinstance(data, list):
        if len(data) == 2:
            return all(isinstance(one, (tuple, list)) and any(map(_is_array, one)) for one in data)
        return not data or any(isinstance(one, tuple) or holds_array(one) for one in data)
    if data is None or isinstance(data, (str, bytes, tuple, np.ndarray, Dataset, Mapping, Module)) or is_table(data):
        return False
    if hasattr(data, "__iter__"):
        return not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) and not hasattr(data, "__array__")
    return callable(data)


def _is_array(one: Any) -> bool:
    return isinstance(one, Mapping) or bool(getattr(one, "shape", None))


def holds_array(one: Any) -> bool:
    return _is_array(one) or (isinstance(one, (tuple, list)) and any(map(_is_array, one)))


def parts_of(item: Any) -> tuple[Any, ...]:
    """A batch as a tuple: x, (x, y) or (x, y, weights). A list of arrays, as torch collates, is taken apart like a
    tuple; another list is one array. DataError for another number of parts."""
    if not isinstance(item, tuple) and not (isinstance(item, list) and any(map(holds_array, item))):
        return (item,)
    if not 1 <= len(item) <= 3:
        raise DataError(f"a {type(item).__name__} of {len(item)}; need x, (x, y) or (x, y, weights)")
    return tuple(item)


class Stream:
    """The batches of an iterable, in its iterations.

    name        of the data in messages
    ranks       those that train together: each reads its own iterable, of the same batches
    repeats     every iteration is the first one again: of a gl.data.DataLoader the same epoch, set_epoch(0)
    .way        how a run is resumed, see above; "": it cannot be
    .is_once    an iterator, which gives no second iteration
    .keeps      checkpoints are written: `state` is called
    .dataset    that of a gl.data.DataLoader
    .count      batches of an iteration by len(); None where that is not known
    .iterations iterations that are over; batches: of the open one that were trained on
    .first, .most  the first batch of the run; the largest number of rows so far
    """

    def __init__(self, data: Any, name: str = "data", ranks: Communicator | None = None, repeats: bool = False) -> None:
        self._data, self.name, self._ranks, self._repeats = data, name, ranks, repeats
        self.is_once = isinstance(data, Iterator)
        self._sets_epoch = _epoch_setters(data)
        has_state = all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict"))
        is_loader = isinstance(data, DataLoader)
        self.way = "state" if is_loader else "state_dict" if has_state else "" if self.is_once else "skip"
        self.dataset = data.dataset if isinstance(data, DataLoader) else None
        self.keeps = False
        self.count = _length(data)
        self.iterations = self.batches = 0
        self.first: First | None = None
        self.most = 0
        self.sizes: set[int] = set()
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}  # dtype and shape of a row of each array
        self._items: Any = None  # the open iterator
        self._number = 0  # batches read of the iterator
        self._offset = 0  # batches of a loader's epoch before the first one of this run
        self._at_first = data.state() if is_loader and repeats else None
        self._ahead: list[_Read] = []
        self._current: _Read | None = None  # given, and not trained on
        self._read, self._begun = "", ""  # checksums: of the batches of the open iteration; of the first of each

    def __repr__(self) -> str:
        return f"Stream({what_is(self._data)})"

    @property
    def kinds(self) -> str:
        """The arrays of a batch in a text: data float32[4], labels int64[]."""
        return ", ".join(f"{name} {kind}{list(shape)}" for name, (kind, shape) in self._kinds.items())

    # ---- reading ---------------------------------------------------------------------------------------------

    def peek(self) -> Batch | None:
        """The next batch, which stays the next one; None where the iteration is over. TrainError where ranks differ.
        Errors of the iterable are raised as they are."""
        if not self._ahead:
            self._read_ahead()
        return self._ahead[0].batch

    def _read_ahead(self) -> None:
        with agreed(self._ranks):
            read = self._next()
        if self._ranks is not None:
            self._compare_ends(read.batch is None)
        self._ahead.append(read)

    def example(self) -> Batch:
        """The next batch, of the next iteration where the open one is over; nothing is consumed. DataError for an
        iterable without batches."""
        batch = self.peek()
        if batch is None:
            if not self.batches:
                raise self.empty()
            if len(self._ahead) == 1:
                self._read_ahead()
            batch = self._ahead[1].batch
        if batch is None:
            raise self.empty()
        return batch

    def first_of_run(self) -> First:
        """Facts about the first batch of the run."""
        batch = self.example()
        self.first = self.first or First(batch.n, batch.all_count)
        return self.first

    def empty(self) -> DataError:
        """The error for an iteration without batches."""
        if not self.iterations:
            return DataError(f"{self.name}: an iterable without batches; need at least one")
        need = "need an iterable that gives a new iterator each time, such as a function that returns one"
        return DataError(f"{self.name}: no batches in iteration {self.iterations + 1}; {need}")

    def take(self) -> Batch:
        """The next batch; there is one. `consumed` follows when it is used."""
        batch = self.peek()
        assert batch is not None
        self._current = self._ahead.pop(0)
        self.first = self.first or First(batch.n, batch.all_count)
        self.most = max(self.most, batch.n)
        self.sizes.add(batch.n)
        return batch

    def consumed(self) -> None:
        """The batch that `take` gave is used."""
        assert self._current is not None and self._current.batch is not None
        if self.keeps and self.way == "skip":
            self._note(self._current.batch)
        self.batches += 1
        self._current = None

    def next_iteration(self) -> None:
        """End the open iteration, where one is open; its other batches are not read."""
        is_over = bool(self._ahead) and self._ahead[0].batch is None
        if not (self.batches or self._current or is_over):
            return
        if is_over:
            self._ahead.pop(0)
        elif not self.is_once:
            self._ahead.clear()
            self._close()
        self._current, self._read = None, ""
        self.iterations, self.batches = self.iterations + 1, 0

    def _next(self) -> _Read:
        before = self._data.state_dict() if self.keeps and self.way == "state_dict" else None
        if self._items is None:
            self._open(self.iterations + sum(one.batch is None for one in self._ahead))
        assert self._items is not None
        try:
            item = next(self._items)
        except StopIteration:
            self._items = None
            return _Read(None, before)
        self._number += 1
        return _Read(self._batch(item), before)

    def _open(self, iteration: int) -> None:
        """Begin an iteration, counted from 0."""
        iteration = 0 if self._repeats else iteration
        for set_epoch in self._sets_epoch:
            set_epoch(iteration)
        if self._at_first is not None:
            self._data.load_state(self._at_first)
        made = self._data if hasattr(self._data, "__iter__") else self._data()
        try:
            self._items = iter(made)
        except TypeError:
            if hasattr(made, "__iter__"):
                raise
            raise DataError(
                f"{self.name}: the function returned {what_is(made)}; need an iterator of batches"
            ) from None
        self._number = self.batches if iteration == self.iterations else 0
        if self.way == "state":
            self._offset = self._items.given - self._number

    def _close(self) -> None:
        items, self._items = self._items, None
        if hasattr(items, "close"):
            items.close()

    def _batch(self, item: Any) -> Batch:
        try:
            x, y, weights = (*parts_of(item), None, None)[:3]
            batch = Batch(x, y, weights=weights)
            self._compare(batch)
        except GradloomError as error:
            raise error.extended(f"{self.name}: batch {self._number}: ") from None
        return batch

    def _compare(self, batch: Batch) -> None:
        """DataError for a batch of other arrays, dtypes or shapes of rows than the first one's."""
        kinds = {name: (array.dtype.name, array.shape[1:]) for name, array in batch.arrays.items()}
        self._kinds = self._kinds or kinds
        for name in self._kinds.keys() | kinds.keys():
            mine, theirs = kinds.get(name), self._kinds.get(name)
            if mine != theirs:
                here, before = (
                    f"no {name}" if one is None else f"{name} of {one[0]}, rows of shape {list(one[1])}"
                    for one in (mine, theirs)
                )
                raise DataError(f"{here}; the batches before have {before}; need the same in all batches")

    def _compare_ends(self, is_over: bool) -> None:
        assert self._ranks is not None
        first, *others = self._ranks.gather(is_over)
        for rank, other in enumerate(others, 1):
            if other != first:
                ended, longer = (0, rank) if first else (rank, 0)
                kind, count = self._ranks.kind, self.batches
                raise TrainError(
                    f"{self.name}: the iterable of {kind} {ended} ends after {count} batches, that of {kind} {longer} "
                    "does not; need the same batches on all ranks: each computes its share of the rows of each batch"
                )

    # ---- the position ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The position after the last batch that was trained on."""
        read = self._current or (self._ahead[0] if self._ahead else None)
        is_over = read is not None and read.batch is None
        inner = None
        if self.way == "state":
            opened = self._items if self._items is not None else self._data
            place = 0 if is_over or self._items is None else self._offset + self.batches
            inner = {**self._data.state(), "epoch": opened.epoch, "batches": place}
        elif self.way == "state_dict" and self.keeps:
            after = self._ahead[1] if is_over and len(self._ahead) > 1 else None
            live = read is None or (is_over and after is None)
            inner = self._data.state_dict() if live else (after or read).before  # type: ignore[union-attr]
        first = self.first or First(1, True)
        return {
            "way": self.way, "iterations": self.iterations, "batches": self.batches, "is_over": is_over,
            "rows": first.rows, "all_count": first.all_count, "most": max(self.most, 1),
            "read": "" if is_over else self._read, "begun": self._begun, "inner": inner,
        }  # fmt: skip

    def check_keeps(self) -> None:
        """Checkpoints will be written. DataError for a state_dict that they cannot hold."""
        self.keeps = True
        if self.way == "state_dict":
            plain(self._data.state_dict(), f"{self.name}: state_dict()")

    def load(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`: the next batch is the one after. TrainError where the iterable is
        resumed in another way, or gives other batches than before."""
        if values["way"] != self.way:
            was, now = _KINDS[values["way"]], _KINDS[self.way]
            need = "need the same, or --overwrite (overwrite=True) to start anew"
            raise TrainError(f"{self.name}: cannot be resumed: the data are {now} and were {was}; {need}")
        self.first, self.most = First(values["rows"], values["all_count"]), values["most"]
        if self.way == "state":
            self._data.load_state(values["inner"])
        elif self.way == "state_dict":
            self._data.load_state_dict(values["inner"])
        elif self.way == "skip":
            self._read_again(values["iterations"], values["batches"], values["is_over"])
            if (self._read, self._begun) != (values["read"], values["begun"]):
                raise self._other_batches("other batches")
        self.iterations, self.batches = values["iterations"], values["batches"]
        if values["is_over"]:
            self._ahead = [_Read(None)]

    def _read_again(self, iterations: int, batches: int, is_over: bool) -> None:
        """Read what a run has read: the batches of the open iteration; of each one before only the first batch, so
        that an order that is drawn anew for each iteration continues, unless set_epoch decides it."""
        whole = iterations + is_over
        for iteration in range(whole if self._sets_epoch else 0, whole + (not is_over and batches > 0)):
            self.iterations, self.batches, self._read = iteration, 0, ""
            self._open(iteration)
            for _ in range(1 if iteration < whole else batches):
                batch = self._next().batch
                if batch is None:
                    raise self._other_batches("fewer batches")
                self._note(batch)
                self.batches += 1
            if iteration < whole:
                self._close()
                self._read = ""

    def _note(self, batch: Batch) -> None:
        """Add a batch to the checksums."""
        mine = checksum(*batch.arrays.values())
        if not self.batches and not self._sets_epoch:
            self._begun = checksum(self._begun, mine)
        self._read = checksum(self._read, mine)

    def _other_batches(self, what: str) -> TrainError:
        return TrainError(
            f"{self.name}: cannot be resumed: the iterable gives {what} than before (iteration {self.iterations + 1});"
            " need the same in each run (a seed; set_epoch(epoch)), or --overwrite (overwrite=True) to start anew"
        )


def _epoch_setters(data: Any) -> list[Callable[[int], Any]]:
    """The methods set_epoch(epoch) of an iterable and of its sampler."""
    found = [getattr(one, "set_epoch", None) for one in (data, getattr(data, "sampler", None))]
    return [one for one in found if callable(one)]


def _length(data: Any) -> int | None:
    with contextlib.suppress(TypeError, ValueError, NotImplementedError):
        return len(data) or None
    return None
