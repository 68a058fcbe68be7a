"""Parts of data sets in files: mapped arrays, row groups of Parquet files, record batches of Arrow files."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DataError, FileError, ShapeError
from ..base.extras import optional
from ..base.reasons import unreadable
from .reading.npz import map_arrays

PARQUET, ARROW = (".parquet",), (".arrow", ".feather", ".ipc")
_PIECE, _PIECES = 1 << 20, 64  # bytes of the pieces of a large file that are compared, and how many


@dataclass
class Part:
    """Some rows of a file. names: of its arrays or columns."""

    path: Path
    rows: int
    names: list[str]

    def __post_init__(self) -> None:
        self._state = _state(self.path)

    @property
    def identity(self) -> str:
        return f"{self.path.name} {_digest(self.path)} {self.rows}"

    def check_unchanged(self) -> None:
        """FileError when the file has changed since it was opened."""
        if _state(self.path) != self._state:
            raise FileError(f"{self.path}: has changed since it was opened; open_dataset again")

    def check(self, used: Sequence[str], first: Part) -> None:
        """DataError where it lacks one of these names."""
        for name in used:
            if name not in self.names:
                raise DataError(f"{self.path}: no {name!r:.60}; there are {', '.join(self.names)[:120]}")

    def column(self, name: str) -> np.ndarray:
        """All rows of an array or column."""
        raise NotImplementedError

    def is_flat(self, name: str) -> bool:
        """Whether it has one number or text in a row."""
        return self.column(name).ndim == 1

    def read(self, name: str, rows: np.ndarray) -> np.ndarray:
        """These rows of it."""
        return self.column(name)[rows]


@dataclass
class Arrays(Part):
    """Mapped arrays."""

    arrays: dict[str, np.ndarray]

    def column(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def check(self, used: Sequence[str], first: Part) -> None:
        super().check(used, first)
        for name in used:
            one, other = self.arrays[name], first.column(name)
            if len(one) != self.rows:
                raise ShapeError(f"{self.path}: {name!r:.60} has {len(one)} rows; need {self.rows}, as {used[0]!r:.60}")
            if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
                seen = f"{self.path}: {name!r:.60} is {one.dtype}{list(one.shape[1:])}"
                raise ShapeError(f"{seen}; need {other.dtype}{list(other.shape[1:])}, as in {first.path.name}")


@dataclass
class _Group(Part):
    """A row group of a Parquet file, or a record batch of an Arrow file."""

    number: int
    store: Decoded

    def column(self, name: str) -> np.ndarray:
        return self.store.column(self, name)

    @property
    def identity(self) -> str:
        return f"{super().identity} {self.number} of {self.store.most} bytes"

    def decode(self, name: str) -> Any:
        """The column, of pyarrow."""
        if self.path.suffix.lower() in PARQUET:
            parquet = optional("pyarrow.parquet", str(self.path), "parquet")
            with parquet.ParquetFile(self.path) as file:
                return file.read_row_group(self.number, [name]).column(0)
        arrow, ipc = (optional(name, str(self.path), "parquet") for name in ("pyarrow", "pyarrow.ipc"))
        with arrow.memory_map(str(self.path)) as file:
            return ipc.open_file(file).get_batch(self.number).column(name)


class Decoded:
    """Decoded columns of row groups, the latest ones: at most `most` bytes, and one column at least."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[tuple[Path, int, str], np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Decoded, (self.most,)

    def column(self, group: _Group, name: str) -> np.ndarray:
        """A column of a group, as an array."""
        key = group.path, group.number, name
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = _decoded(group, name)
        with self._lock:
            if key not in self._held:
                self._held[key] = made
                self._bytes += made.nbytes
                while self._bytes > self.most and len(self._held) > 1:
                    self._bytes -= self._held.popitem(last=False)[1].nbytes
        return made


def _decoded(group: _Group, name: str) -> np.ndarray:
    arrow = optional("pyarrow", str(group.path), "parquet")
    where = f"{group.path}: column {name!r:.60}"
    try:
        column = group.decode(name)
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count:
            raise DataError(f"{where}: {column.null_count} missing values in row group {group.number}; need none")
        types, width = arrow.types, None
        if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
            lengths = optional("pyarrow.compute", where, "parquet").list_value_length(column).unique().to_pylist()
            if len(lengths) > 1:
                raise ShapeError(f"{where}: lists of different lengths, {sorted(lengths)[:5]}; need one length")
            column, width = column.flatten(), lengths[0]
            if column.null_count:
                raise DataError(f"{where}: {column.null_count} missing values inside lists; need none")
        kind = column.type
        if types.is_dictionary(kind):
            column, kind = column.dictionary_decode(), kind.value_type
        is_text = types.is_string(kind) or types.is_large_string(kind)
        if not (is_text or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise DataError(f"{where}: {kind}; need numbers, lists of numbers, or texts as labels")
        array: np.ndarray = np.asarray(column.to_numpy(zero_copy_only=False))
        return np.array(array if width is None else array.reshape(-1, width))
    except arrow.ArrowException as error:
        what = " ".join(str(error).split())
        raise FileError(f"{where}: is damaged ({what:.160}); write it again") from None
    except OSError as error:
        raise FileError(f"{group.path}: {(error.strerror or str(error)).lower():.160}") from None


def parquet_parts(path: Path, store: Decoded) -> list[Part]:
    parquet = optional("pyarrow.parquet", str(path), "parquet")

    def groups() -> list[Part]:
        with parquet.ParquetFile(path) as file:
            facts, names = file.metadata, list(file.schema_arrow.names)
            sizes = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
        return [_Group(path, rows, names, i, store) for i, rows in enumerate(sizes) if rows]

    return _opened(path, "Parquet", groups)


def arrow_parts(path: Path, store: Decoded) -> list[Part]:
    arrow, ipc = (optional(name, str(path), "parquet") for name in ("pyarrow", "pyarrow.ipc"))

    def groups() -> list[Part]:
        with arrow.memory_map(str(path)) as file:
            reader = ipc.open_file(file)
            sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
            names = list(reader.schema.names)
        return [_Group(path, rows, names, i, store) for i, rows in enumerate(sizes) if rows]

    return _opened(path, "Arrow", groups)


def _opened(path: Path, kind: str, groups: Any) -> list[Part]:
    arrow = optional("pyarrow", str(path), "parquet")
    try:
        if not path.stat().st_size:
            raise FileError(f"{path}: is empty (0 bytes); need a file of kind {kind}")
        made: list[Part] = groups()
        return made
    except arrow.ArrowException as error:
        what = " ".join(str(error).split())
        raise FileError(f"{path}: is damaged or no {kind} file ({what:.160}); write it again") from None
    except OSError as error:
        raise FileError(f"{path}: {(error.strerror or str(error)).lower():.160}") from None


def npy_parts(files: Sequence[Path], labels: Sequence[Path] | None) -> list[Part]:
    parts: list[Part] = []
    for i, file in enumerate(files):
        arrays = {"x": _with_rows(file, map_arrays(file)[""])}
        if labels is not None:
            arrays["y"] = _with_rows(labels[i], map_arrays(labels[i])[""])
        parts.append(Arrays(file, len(arrays["x"]), list(arrays), arrays))
    return parts


def npz_arrays(path: Path) -> dict[str, np.ndarray]:
    arrays = map_arrays(path)
    if not arrays or "" in arrays:
        raise DataError(f"{path}: holds no arrays with names; need numpy.savez(path, x=..., y=...)")
    return {name: _with_rows(path, array) for name, array in arrays.items() if array.ndim}


def _with_rows(path: Path, array: np.ndarray) -> np.ndarray:
    if not array.ndim or not len(array):
        raise DataError(f"{path}: an array of shape {list(array.shape)}; need rows along the first axis")
    return array


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    return found.st_size, found.st_mtime_ns


def _digest(path: Path) -> str:
    """Of the bytes of a file; of a large one, of its size and of pieces that lie evenly in it."""
    with open(path, "rb") as file:
        size, digest = os.fstat(file.fileno()).st_size, hashlib.blake2b(digest_size=8)
        digest.update(str(size).encode())
        starts = range(0, size, _PIECE) if size <= _PIECES * _PIECE else np.linspace(0, size - _PIECE, _PIECES).tolist()
        for start in starts:
            file.seek(int(start))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()
