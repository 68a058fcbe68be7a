"""DataLoader: batches of a data set for custom training loops."""

from __future__ import annotations

import math
import queue
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ..base import locks
from ..base.arguments import as_bool, as_whole
from ..base.errors import DataError
from ..base.habits import KeywordHints
from ..base.schema import MOST, either, flag, optional, table, whole
from ..base.structures import check_rows, is_plain, leaves, mapped
from .dataset import Batch, Dataset, Draw, generator
from .fetched import MapDataset, is_row_maker

_GATHERED = 1 << 18  # bytes of small batches that are gathered at a time: half of a common second-level cache


class DataLoader(KeywordHints):
    """Iterates over batches of two arrays as (x, y), or of x alone, reshuffled each epoch by (seed, epoch).

    x comes as f32 (i32 when it holds i32 or i64 ids), y as i32 ids or f32 rows; the last batch may be shorter. Dicts
    and tuples of arrays come as such (see Dataset). A
    Dataset instead of arrays gives its own order, its shards whole, and (x, y, weights) where it has weights.
    Batches belong to the caller, who may write to them. Small ones are gathered many at a time.
    prefetch: a thread gathers ahead while the caller works. The same batches come in the same order, an error of the
    thread is raised here, and leaving the loop ends the thread. Use it for slow reads (a mapped file on a slow disk);
    for data in memory it is slower.
    """

    def __init__(
        self,
        x: object,
        y: object | None = None,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: bool = False,
    ) -> None:
        if (isinstance(x, Dataset) or is_row_maker(x)) and y is not None:
            raise DataError("y: a data set has its own labels; need DataLoader(data_set)")
        self.dataset = x if isinstance(x, Dataset) else MapDataset(x) if is_row_maker(x) else Dataset(x, y)
        self.batch_size = as_whole("batch_size", batch_size, 1)
        self.shuffle, self.drop_last = as_bool("shuffle", shuffle), as_bool("drop_last", drop_last)
        self.prefetch = as_bool("prefetch", prefetch)
        if drop_last and batch_size > self.dataset.n:
            raise DataError(
                f"batch_size={batch_size} is larger than the data ({self.dataset.n} rows) and drop_last leaves nothing;"
                f" need at most {self.dataset.n}"
            )
        generator(seed)
        self.seed = int(seed)
        self._epoch = 0
        self._skip = 0  # batches of the next epoch to leave out: a resumed run has used them
        self._latest: weakref.ref[_Shared] | None = None  # the newest iterator
        plain = self.dataset.data if is_plain(self.dataset.data) else None
        self._dtype = None if plain is None else "i32" if plain.dtype in (np.int32, np.int64) else "f32"

    @property
    def epoch(self) -> int:
        """Number of iterations over the loader; may be set."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch, self._skip, self._latest = epoch, 0, None

    def __len__(self) -> int:
        n = self.dataset.n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        with locks.building:
            epoch, skip = self._epoch, self._skip
            order = self.dataset.order(self.seed, epoch) if self.shuffle else self.dataset.rows()
            whole = order[: len(self) * self.batch_size]  # drop_last
            made = _Shared(
                self._batches(whole[skip * self.batch_size :], Draw(self.seed, epoch + 1, whole)), epoch, skip
            )
            self._epoch, self._skip, self._latest = epoch + 1, 0, weakref.ref(made)
        return made

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"DataLoader({self.dataset!r}, batches of {self.batch_size}, {order})"

    def state(self) -> dict[str, Any]:
        """The position (epoch, and number of batches if an iteration is open) and the settings that decide the
        batches."""
        latest = None if self._latest is None else self._latest()
        inside = latest is not None and not latest.over
        epoch, given = (latest.epoch, latest.given) if latest is not None and inside else (self._epoch, self._skip)
        return {"epoch": epoch, "batches": given, **self._settings()}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Restore from the result of `state`; the next iteration resumes inside its epoch. DataError for the state of
        another loader."""
        schema = dict.fromkeys(self._settings(), either(flag, optional(whole(-MOST))))
        table({**schema, "epoch": whole(), "batches": whole(0, len(self))})(values, "load: data loader")
        differ = [
            f"{name}={mine!r}, in the state {values.get(name)!r}"
            for name, mine in self._settings().items()
            if values.get(name) != mine
        ]
        if differ:
            raise DataError(f"load: a data loader with {'; '.join(differ)}; need the same")
        self._epoch, self._skip, self._latest = int(values["epoch"]), int(values["batches"]), None

    def _settings(self) -> dict[str, Any]:
        return {
            "rows": self.dataset.n, "batch_size": self.batch_size, "shuffle": self.shuffle, "seed": self.seed,
            "drop_last": self.drop_last, "shard_size": self.dataset.shard_size,
        }  # fmt: skip

    def _batches(self, order: np.ndarray, draw: Draw) -> Generator[Any, None, None]:
        size = self.batch_size
        gathered = self._gathered(order, draw)
        if self.prefetch:
            gathered = _ahead(gathered)  # starts at the first batch
        try:
            for data, labels, weights in gathered:
                if not (is_plain(data) and is_plain(labels)):
                    yield from _parts(data, labels, weights, size)
                    continue
                for i in range(0, len(data), size):
                    j = i + size
                    if weights is not None:
                        yield data[i:j], None if labels is None else labels[i:j], weights[i:j]
                    elif labels is not None:
                        yield data[i:j], labels[i:j]
                    else:
                        yield data[i:j]
        finally:
            gathered.close()

    def _gathered(self, order: np.ndarray, draw: Draw) -> Generator[Batch, None, None]:
        """The rows in order, whole batches of about _GATHERED bytes at a time."""
        every = [*leaves(self.dataset.data), *leaves(self.dataset.labels)]
        row = 4 * sum(math.prod(array.shape[1:]) for array in every)
        at_once = max(_GATHERED // (row * self.batch_size or 1), 1) * self.batch_size
        for i in range(0, len(order), at_once):
            yield self.dataset.take(order[i : i + at_once], self._dtype, draw)


def _parts(data: Any, labels: Any, weights: np.ndarray | None, size: int) -> Iterator[Any]:
    """Batches of several arrays, as of one."""
    for i in range(0, check_rows("data", data), size):
        part = partial(mapped, itemgetter(slice(i, i + size)))
        y = None if labels is None else part(labels)
        if weights is not None:
            yield part(data), y, part(weights)
        else:
            yield part(data) if y is None else (part(data), y)


class _Shared(Iterator[Any]):
    """A counting iterator that several threads may share: each item goes to one of them."""

    def __init__(self, items: Generator[Any, None, None], epoch: int, given: int) -> None:
        self._items, self._lock = items, locks.Lock()
        self.epoch, self.given, self.over = epoch, given, False

    def __next__(self) -> Any:
        with self._lock:
            try:
                item = next(self._items)
            except BaseException:
                self.over = True
                raise
            self.given += 1
            return item

    def close(self) -> None:
        """No further items; a thread that gathers ahead ends."""
        with self._lock:
            self.over = True
            self._items.close()


def _ahead(items: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
    """The same items, made by a thread of their own, up to two ahead of the caller.

    Where the system gives no more threads, the caller's own makes them.
    """
    made: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(2)
    stop = threading.Event()

    def work() -> None:
        try:
            item: Batch | None
            while room.acquire() and not stop.is_set():
                item = next(items, None)
                made.put(item)
                if item is None:
                    return
        except BaseException as error:
            made.put(error)

    thread = threading.Thread(target=work, name="gradloom prefetch", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        yield from items
        return
    try:
        while (item := made.get()) is not None:
            room.release()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        room.release()
        thread.join()
        items.close()
