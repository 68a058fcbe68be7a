"""The files of a log: metrics.jsonl, which a run always has, and files with the same lines: CSV, TensorBoard's events.

A line is one JSON object: numbers, texts and null. A number that is not finite is null, and "not_finite" holds its
text: {"loss": null, "not_finite": {"loss": "nan"}}.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..base.errors import FileError
from ..base.extras import optional
from ..base.json_facts import METRICS
from ..files.atomic import atomic_inside
from ..files.inside import opened
from ..files.regular import open_regular

LINES, CSV, EVENTS = "metrics.jsonl", "metrics.csv", "tensorboard"
HISTOGRAM = "histogram/"  # begins the name of a dict: low, high, counts, not_finite
FLUSH_SECONDS = 30.0  # between two flushes of event files, which sync the disk


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, or of the one in this folder. A last line that a kill has cut short is left out.

    FileError when there is no such file, or a line of it is no JSON object.
    """
    path = Path(path)
    path = path / LINES if path.is_dir() else path
    try:
        with open_regular(path, "need the metrics of a run") as file:
            text = file.read()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    return _parsed(text[: text.rfind(b"\n") + 1], path)


def _parsed(text: bytes, path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise FileError(f"{path}: line {number} is no JSON object; need the metrics of a run")
        lines.append(found)
    return lines


def text_of(record: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl: strict JSON."""
    odd = {name: str(v) for name, v in record.items() if isinstance(v, float) and not math.isfinite(v)}
    if odd:
        record = {**record, **dict.fromkeys(odd), "not_finite": odd}
    return json.dumps(METRICS.named(record), allow_nan=False) + "\n"


class DerivedFile(Protocol):
    """A file with the lines of metrics.jsonl in another format."""

    def begin(self, folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        """Rewrite it with these lines."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a line."""

    def close(self) -> None:
        """Close it."""


class _Appended:
    """A file that is appended to by whole pieces of text: a piece that cannot be written is cut off again. It stays
    open when the folder of a run is renamed. size: bytes of its present content that are kept.

    A link is refused. A file that also has a name elsewhere (a hard link) is replaced by a copy: the other one stays.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self.kept = b""
        with opened(path.parent) as folder:
            self._file = folder.open(path.name, flags)
            if os.fstat(self._file).st_nlink > 1:
                with open(self._file, "rb") as file, atomic_inside(folder, path.name) as copy:
                    copy.write(file.read(size))
                self._file = folder.open(path.name, flags)
        try:
            kept = os.pread(self._file, min(size, os.fstat(self._file).st_size), 0)
            self.kept = kept[: kept.rfind(b"\n") + 1]
            self.cut(len(self.kept))
        except BaseException:
            self.close()
            raise

    def cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        self.size = size

    def add(self, text: str) -> None:
        data = text.encode()
        left = memoryview(data)
        try:
            while left:  # once, unless the disk is full: then the second write raises
                left = left[os.write(self._file, left) :]
        except OSError:
            self.cut(self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self._file)


class Lines:
    """metrics.jsonl: a line is one write to the end of the file. `size`: the bytes of whole lines.

    Bytes beyond it, of an incomplete line or of a run that was resumed from an earlier step, are cut when the next line
    is written. derived: the other files, rewritten when this one is opened.
    """

    def __init__(self, derived: Sequence[DerivedFile] = ()) -> None:
        self.size = 0
        self._derived = derived
        self._file: _Appended | None = None

    def add(self, folder: Path, record: Mapping[str, Any]) -> None:
        """Append a line, to all files. OSError or FileError when one of them cannot be written."""
        if self._file is None:
            self._open(folder)
        assert self._file is not None
        self._file.add(text_of(record))
        self.size = self._file.size
        with contextlib.ExitStack() as stack:  # the others, too, when one fails
            for each in reversed(self._derived):
                stack.callback(each.add, record)

    def _open(self, folder: Path) -> None:
        file = _Appended(folder / LINES, self.size)
        try:
            lines = _parsed(file.kept, folder / LINES) if self._derived else []
            for each in self._derived:
                each.begin(folder, lines)
        except BaseException:
            file.close()
            raise
        self.size, self._file = file.size, file

    def close(self) -> None:
        """Close all files; a line that comes later opens them again."""
        if self._file is not None:
            self._file.close()
            self._file = None
            for each in self._derived:
                each.close()


class CsvFile:
    """metrics.csv: a row for a line, a column for each name, empty where a line has none. The file is written anew when
    a line brings a new column."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._lines: list[Mapping[str, Any]] = []
        self._written = 0  # lines
        self._file: _Appended | None = None

    def begin(self, folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        self.close()
        self._columns, self._lines, self._written, self._file = [], list(lines), 0, _Appended(folder / CSV)
        self._write()

    def add(self, record: Mapping[str, Any]) -> None:
        self._lines.append(record)
        self._write()

    def _write(self) -> None:
        """Write the lines that are not in the file yet."""
        assert self._file is not None
        new_lines = self._lines[self._written :]
        names = dict.fromkeys(n for line in new_lines for n in line if _has_column(n))
        new = [name for name in names if name not in self._columns]
        if new:
            self._columns += new
            self._file.cut(0)
            self._written = 0
        lines = self._lines[self._written :]
        text = "".join(_row([_cell(line.get(name)) for name in self._columns]) for line in lines)
        self._file.add(text if self._file.size else _row(self._columns) + text if lines else "")
        self._written = len(self._lines)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _has_column(name: str) -> bool:
    return name not in ("schema", "not_finite") and not name.startswith(HISTOGRAM)


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def _row(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


class EventFiles:
    """tensorboard/events.out.tfevents.*: each number of a line as the scalar "kind/name" of its step, and histograms.
    The event files of an earlier part of the run are replaced by one with all lines. BackendError without
    tensorboardX."""

    def __init__(self) -> None:
        self._make_writer = optional("tensorboardX.event_file_writer", "log", "tensorboard").EventsWriter
        self._make_event = optional("tensorboardX.proto.event_pb2", "log", "tensorboard").Event
        self._writer: Any = None
        self._flushed = 0.0

    def begin(self, folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        place = folder / EVENTS
        with opened(place, create=True) as inside:
            for name in filter(lambda name: name.startswith("events.out.tfevents."), inside.names()):
                inside.unlink(name)
        self._writer = self._make_writer(str(place / "events"))
        for line in lines:
            self._write(line)
        self._flush()

    def add(self, record: Mapping[str, Any]) -> None:
        self._write(record)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._flush()

    def _write(self, record: Mapping[str, Any]) -> None:
        event = self._make_event(wall_time=record["time"], step=record["step"])
        for name, value in record.items():
            if name.startswith(HISTOGRAM) and isinstance(value, Mapping):
                self._add_histogram(event.summary.value.add(tag=f"{record['kind']}/{name}").histo, value)
            elif isinstance(value, (int, float)) and name not in ("step", "time") and math.isfinite(value):
                event.summary.value.add(tag=f"{record['kind']}/{name}", simple_value=value)
        self._writer.write_event(event)

    @staticmethod
    def _add_histogram(made: Any, value: Mapping[str, Any]) -> None:
        """Its bins for TensorBoard, which have upper limits; sums are those of the middles of the bins."""
        counts, low, high = np.array(value["counts"], np.float64), value["low"], value["high"]
        edges = np.linspace(low, high, len(counts) + 1)
        middles = (edges[1:] + edges[:-1]) / 2
        made.min, made.max, made.num = low, high, counts.sum()
        made.sum, made.sum_squares = float(counts @ middles), float(counts @ middles**2)
        made.bucket_limit.extend(edges[1:].tolist())
        made.bucket.extend(counts.tolist())

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


DERIVED: dict[str, Callable[[], DerivedFile]] = {"csv": CsvFile, "tensorboard": EventFiles}  # by the names of log=
