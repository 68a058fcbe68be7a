"""Data sets in files that need not fit in memory: .npy, .npz, Parquet, Arrow, and folders of such files.

open_dataset(path) -> parts (arrays of a file, row groups, record batches) -> FileRows, whose rows are read as they are
needed
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..base.arguments import need_path
from ..base.errors import DataError, FileError, ShapeError
from ..base.memory import as_bytes
from ..base.structures import Structure, by_key, mapped, mapped_by_key
from .dataset import Dataset, Draw, generator
from .fetched import MapDataset
from .file_parts import ARROW, PARQUET, Arrays, Decoded, Part, arrow_parts, npy_parts, npz_arrays, parquet_parts
from .reading.npz import keys_of, map_arrays
from .reading.raw_table import X_KEYS, Y_KEYS

_NUMPY = (".npy", ".npz")
_MIXED = 6  # the stream of random numbers that mixes the rows of neighbouring parts

Columns = str | Sequence[str] | Mapping[str, "str | Sequence[str]"]


def open_dataset(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    labels: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, str] | None = None,
    *,
    columns: Columns | None = None,
    cache: int | str = "256MiB",
    workers: int = 2,
) -> Dataset:
    """Rows of files that need not fit in memory. They are read during the training.

    path     x.npy, with labels="y.npy"; an .npz file of arrays that are not compressed; a Parquet or Arrow (Feather)
             file; a list of such files, or a folder of them, all of one kind: in the order of their names
    labels   the array or column with the labels, or their .npy file or files; by default y (or target, labels, ... as
             read_table takes them) of an .npz file, and none of a table. Texts are classes: their sorted names are
             .classes, their ids the labels. A dict gives several labels: {"class": "species", "value": "weight"}
    columns  the array or column that is x; a list: their columns side by side, as f32; a dict of such: several inputs.
             By default x (or data, images, features) of an .npz file, and all columns of a table but the labels.
             Columns of tables hold numbers, or lists of numbers of one length
    cache    bytes of decoded row groups that are kept. Where all of them are larger, training rows are shuffled by row
             group, and the rows of neighbouring groups that fit into half of the cache are mixed; validation rows are
             read in the order of the files
    workers  as of MapDataset

    DataError for other files and columns, FileError for files that are damaged or cannot be read, BackendError for
    tables without pyarrow; ShapeError and DTypeError for files that differ in shapes or dtypes.
    """
    files = _files(path)
    kind = files[0].suffix.lower()
    if kind == ".npy":
        if columns is not None:
            raise DataError("columns: an .npy file has no names; need an .npz file or a table")
        y_files = None if labels is None else _files(labels)
        if y_files is not None and [f.suffix.lower() for f in y_files] != [".npy"] * len(files):
            raise DataError(f"labels: {len(y_files)} files; need an .npy file for each of the {len(files)} of the data")
        if len(files) == 1:
            labels_of = None if y_files is None else map_arrays(y_files[0])[""]
            if labels_of is None or labels_of.dtype.kind not in "UST":
                return Dataset(map_arrays(files[0])[""], labels_of)
        return FileRows(npy_parts(files, y_files), "x", None if y_files is None else "y", 0, workers)
    parts: list[Part]
    if kind == ".npz":
        arrays = [npz_arrays(file) for file in files]
        x, y = _npz_names(files[0], arrays[0], columns, labels)
        first = _flat(x)[0]
        parts = [Arrays(f, len(a.get(first, ())), list(a), a) for f, a in zip(files, arrays, strict=True)]
        return FileRows(parts, x, y, 0, workers)
    store = Decoded(as_bytes("cache", cache))
    parts = [part for file in files for part in (parquet_parts if kind in PARQUET else arrow_parts)(file, store)]
    if not parts:
        raise DataError(f"{files[0]}: 0 rows; need at least 1")
    used = set(_flat(labels))
    x = columns if columns is not None else [name for name in parts[0].names if name not in used]
    return FileRows(parts, x, labels, store.most, workers)


class FileRows(MapDataset):
    """Rows of parts of files, see open_dataset. classes: names of the labels' ids, where the files hold texts."""

    def __init__(self, parts: Sequence[Part], x: Columns, y: Any, cache: int, workers: int) -> None:
        reader = _Reader(parts, x, y)
        self.classes = reader.classes
        self._starts = reader.starts
        super().__init__(reader, workers=workers)
        of_row = sum(one.nbytes // self.n for one in by_key(self.data).values())
        self._mixed = max(cache // 2 // max(of_row, 1), 1) if 0 < cache < of_row * self.n else 0  # rows; 0: all

    def order(self, seed: int, epoch: int, rows: np.ndarray | None = None) -> np.ndarray:
        """As of Dataset. Rows of parts that are too large for the cache are mixed with those of some others."""
        if not self._mixed:
            return super().order(seed, epoch, rows)
        rows = np.arange(self.n) if rows is None else np.sort(np.asarray(rows, np.int64))
        rng = generator(seed, _MIXED, int(epoch))
        part = np.searchsorted(self._starts, rows, side="right")
        start = np.flatnonzero(np.concatenate(([True], part[1:] != part[:-1])))
        pieces = np.split(rows, start[1:])
        made, held, count = [], [], 0
        for i in rng.permutation(len(pieces)):
            held.append(pieces[i])
            count += len(pieces[i])
            if count >= self._mixed:
                made.append(rng.permutation(np.concatenate(held)))
                held, count = [], 0
        return np.concatenate([*made, rng.permutation(np.concatenate([*held, rows[:0]]))])

    def split(self, val_split: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """As of Dataset; validation rows are in the order of the files where not all fit into the cache."""
        trained, held = super().split(val_split, seed)
        return trained, np.sort(held) if self._mixed else held


class _Reader:
    """Makes rows of parts; the source of a MapDataset."""

    def __init__(self, parts: Sequence[Part], x: Columns, y: Any) -> None:
        self._parts, self._x, self._y = list(parts), x, y
        rows = [part.rows for part in self._parts]
        self.starts = np.cumsum([0, *rows])[1:]
        self.classes: list[str] | None = None
        self.labels: np.ndarray | None = None
        for part in self._parts:
            part.check([*_flat(x), *_flat(y)], self._parts[0])
        if isinstance(y, str) and self._parts[0].is_flat(y):
            self.labels = self._read_labels(y)

    def _read_labels(self, name: str) -> np.ndarray:
        """All labels of one column: ids, or numbers."""
        each = [part.read(name, np.arange(part.rows)) for part in self._parts]
        if all(one.dtype.kind in "iub" for one in each):
            return np.concatenate([one.astype(np.int64) for one in each])
        if each[0].dtype.kind in "UOST":
            known = np.unique(np.concatenate([np.unique(one.astype(str)) for one in each]))
            self.classes = known.tolist()
            return np.concatenate([np.searchsorted(known, one.astype(str)) for one in each]).astype(np.int32)
        return np.concatenate([one.astype(np.float32) for one in each])

    @cached_property
    def contents(self) -> list[Any]:
        """Name, digest of the file and rows of each part, and the names of x and y."""
        return [*(part.identity for part in self._parts), f"x {self._x!r}", f"y {self._y!r}"]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, row: int) -> Any:
        x, y = self.fetch(np.array([row]), None)
        return mapped(lambda one: one[0], x), None if y is None else mapped(lambda one: one[0], y)

    def fetch(self, rows: np.ndarray, draw: Draw | None) -> tuple[Structure, Structure | None]:
        x = _structure(self._x, lambda names: self._side_by_side(names, rows))
        if self.labels is not None:
            return x, self.labels[rows]
        return x, None if self._y is None else _structure(self._y, lambda names: self._side_by_side(names, rows))

    def _side_by_side(self, names: str | Sequence[str], rows: np.ndarray) -> np.ndarray:
        """The arrays or columns of these names, of these rows."""
        if isinstance(names, str):
            return self._gathered(names, rows)
        each = [self._gathered(name, rows) for name in names]
        return np.concatenate([one.reshape(len(rows), -1).astype(np.float32) for one in each], axis=1)

    def _gathered(self, name: str, rows: np.ndarray) -> np.ndarray:
        part = np.searchsorted(self.starts, rows, side="right")
        made: np.ndarray | None = None
        for i in np.unique(part):
            own = part == i
            self._parts[i].check_unchanged()
            found = self._parts[i].read(name, rows[own] - (self.starts[i] - self._parts[i].rows))
            if made is None:
                made = np.empty((len(rows), *found.shape[1:]), found.dtype)
            if found.shape[1:] != made.shape[1:]:
                seen = f"{self._parts[i].path}: {name!r:.60} has rows of shape {list(found.shape[1:])}"
                raise ShapeError(f"{seen}; need {list(made.shape[1:])}, as the others")
            if found.dtype.kind in "UOST":
                raise DataError(
                    f"{self._parts[i].path}: column {name!r:.60} holds texts; need numbers, or labels={name!r}"
                )
            made[own] = found
        assert made is not None
        return made


def _npz_names(path: Path, arrays: dict[str, np.ndarray], columns: Columns | None, labels: Any) -> tuple[Columns, Any]:
    """The names of x and y of an .npz file."""
    keys = {name.lower(): name for name in arrays}
    x = columns or next((keys[name] for name in X_KEYS if name in keys), None)
    if x is None:
        raise DataError(f"{path}: holds {keys_of(arrays)}; need an array called x, or columns=")
    return x, labels or next((keys[name] for name in Y_KEYS if name in keys), None)


# ---- names and files -------------------------------------------------------------------------------------------------


def _flat(names: Any) -> list[str]:
    """All names of columns."""
    if names is None:
        return []
    if isinstance(names, Mapping):
        return [name for one in names.values() for name in _flat(one)]
    return [names] if isinstance(names, str) else list(names)


def _structure(names: Any, read: Any) -> Structure:
    return mapped_by_key(lambda _, one: read(one), dict(names)) if isinstance(names, Mapping) else read(names)


def _files(path: Any) -> list[Path]:
    """The files, all of one kind."""
    if isinstance(path, (list, tuple)):
        found = [Path(one) for one in path]
    else:
        need_path(path, "open_dataset", "path")
        known = _NUMPY + PARQUET + ARROW
        found = [Path(path)]
        if found[0].is_dir():
            found = sorted(one for one in found[0].iterdir() if one.suffix.lower() in known and one.name[0] != ".")
    if not found:
        raise DataError(f"{path}: no file of {', '.join(_NUMPY + PARQUET + ARROW)}; need at least one")
    if len(found) == 1 and not found[0].exists():
        raise FileError(f"{found[0]}: no such file or folder")
    kinds = sorted({one.suffix.lower() for one in found})
    if len(kinds) > 1 or kinds[0] not in _NUMPY + PARQUET + ARROW:
        need = "one kind of .npy, .npz, .parquet, .arrow or .feather"
        raise DataError(f"{found[0].parent if len(found) > 1 else found[0]}: files of {', '.join(kinds)}; need {need}")
    for one in found:
        if not one.is_file():
            raise FileError(f"{one}: " + ("is no file" if one.exists() else "no such file"))
    return found
