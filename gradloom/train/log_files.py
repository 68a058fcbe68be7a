"""The files of a log: metrics.jsonl, which a run always has, and what is made of its lines: a CSV file, TensorBoard's
event files.

A line is one JSON object: numbers, texts and null. A number that is not finite is null, and "not_finite" says what it
was: {"loss": null, "not_finite": {"loss": "nan"}}.
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

from ..base.errors import BackendError, FileError
from ..files import atomic_write

LINES, CSV, EVENTS = "metrics.jsonl", "metrics.csv", "tensorboard"
FLUSH_SECONDS = 30.0  # between two flushes of event files, which sync the disk


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, or of the one in this folder. A last line that a kill has cut short is left out.

    FileError when there is no such file, or a line of it is no JSON object.
    """
    path = Path(path)
    path = path / LINES if path.is_dir() else path
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    return _parsed(text[: text.rfind(b"\n") + 1], path)


def _parsed(text: bytes, path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError:
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
    return json.dumps(record, allow_nan=False) + "\n"


class MadeOfLines(Protocol):
    """A file that is made of the lines of metrics.jsonl."""

    def begin(self, folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write it anew, with these lines."""

    def add(self, record: Mapping[str, Any]) -> None:
        """One line more."""

    def close(self) -> None:
        """Nothing more is written."""


class Lines:
    """metrics.jsonl: a line is one write to the end of the file. `size`: the bytes of whole lines.

    What is longer, of a line that was cut short or of a run that was resumed from an earlier step, is cut when the next
    line is written. made: the other files, written anew when this one is opened.
    """

    def __init__(self, made: Sequence[MadeOfLines] = ()) -> None:
        self.size = 0
        self._made = made
        self._file: int | None = None

    def add(self, folder: Path, record: Mapping[str, Any]) -> None:
        """Append a line. OSError or FileError when it cannot be written: then nothing of it stays."""
        if self._file is None:
            self._open(folder)
        assert self._file is not None
        text = text_of(record).encode()
        try:
            if os.write(self._file, text) != len(text):
                raise OSError("no space left on device")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size += len(text)
        for each in self._made:
            each.add(record)

    def _open(self, folder: Path) -> None:
        path = folder / LINES
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            kept = os.pread(file, self.size, 0)
            kept = kept[: kept.rfind(b"\n") + 1]
            os.ftruncate(file, len(kept))
            lines = _parsed(kept, path) if self._made else []
            for each in self._made:
                each.begin(folder, lines)
        except BaseException:
            os.close(file)
            raise
        self.size, self._file = len(kept), file

    def close(self) -> None:
        """Close all files; a line that comes later opens them again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            for each in self._made:
                each.close()


class CsvFile:
    """metrics.csv: a row for a line, a column for each name, empty where a line has none. The file is written anew when
    a line brings a new column."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._lines: list[Mapping[str, Any]] = []
        self._path = Path()

    def begin(self, folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        self._path, self._columns, self._lines = folder / CSV, [], []
        for line in lines:
            self._take(line)
        if lines:
            self._write()

    def _take(self, record: Mapping[str, Any]) -> bool:
        new = [name for name in record if name not in self._columns and name != "not_finite"]
        self._columns += new
        self._lines.append(record)
        return bool(new)

    def add(self, record: Mapping[str, Any]) -> None:
        if self._take(record):
            self._write()
        else:
            with open(self._path, "a", newline="", encoding="utf-8") as file:
                file.write(self._text([record]))

    def _write(self) -> None:
        with atomic_write(self._path) as file:
            file.write((_row(self._columns) + self._text(self._lines)).encode())

    def _text(self, lines: Sequence[Mapping[str, Any]]) -> str:
        return "".join(_row([_cell(line.get(name)) for name in self._columns]) for line in lines)

    def close(self) -> None:
        pass


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def _row(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


class EventFiles:
    """tensorboard/events.out.tfevents.*: each number of a line as the scalar "kind/name" of its step. The event files
    of an earlier part of the run are replaced by one with all lines. BackendError without tensorboardX."""

    def __init__(self) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
        except ImportError:
            raise BackendError("log: tensorboardX is missing; pip install gradloom[tensorboard]") from None
        self._make_writer, self._make_event = EventsWriter, Event
        self._writer: Any = None
        self._flushed = 0.0

    def begin(self, folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
        place = folder / EVENTS
        place.mkdir(exist_ok=True)
        old = list(place.glob("events.out.tfevents.*"))
        for path in old:
            path.unlink()
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
            if isinstance(value, (int, float)) and name not in ("step", "time") and math.isfinite(value):
                event.summary.value.add(tag=f"{record['kind']}/{name}", simple_value=value)
        self._writer.write_event(event)

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


MADE: dict[str, Callable[[], MadeOfLines]] = {"csv": CsvFile, "tensorboard": EventFiles}  # by the words of log=
