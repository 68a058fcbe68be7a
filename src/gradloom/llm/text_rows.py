"""Texts to score, from a file: the lines of a .txt, the rows of a .csv, the objects of a .jsonl or .json."""

from __future__ import annotations

import csv
import gzip
import io
import os
from pathlib import Path
from typing import Any

from ..base.errors import DataError, FileError
from ..base.reasons import unreadable
from .data_files import JSON, JSONL, TEXT
from .json_rows import BadRow, JsonRows
from .sample_lines import keys_of

_CSV = (".csv", ".tsv", ".csv.gz")
_SEPARATORS = (",", ";", "\t", "|")
_CELL = 1 << 27  # bytes of a cell, at most


def text_rows(path: str | os.PathLike[str], encoding: str | None = None) -> list[dict[str, Any]]:
    """The rows of a file as dicts: {"text": line} for each line of a .txt that is not empty; the cells of a .csv by
    column.

    Raises FileError for a file that cannot be read, DataError for contents that are not of the kind of its name.
    """
    shown = os.fspath(path)
    name = shown.lower()
    try:
        if name.endswith(_CSV):
            return _of_csv(shown, encoding or "utf-8-sig")
        if Path(name).suffix in TEXT:
            lines = _text(shown, encoding or "utf-8-sig").splitlines()
            rows = [{"text": line} for line in lines if line.strip()]
        elif Path(name).suffix in JSONL + JSON:
            if encoding is not None:
                raise DataError(f"{shown}: is UTF-8; {{encoding}} requires a .csv or .txt", encoding=encoding)
            reader, rows = JsonRows(shown), []
            for number, row in reader:
                if isinstance(row, BadRow):
                    raise DataError(f"{reader.where(number)}: {row}")
                rows.append(row)
        else:
            possible = " ".join((*TEXT, *JSONL, *JSON, *_CSV))
            raise DataError(f"{shown}: the name ends in {Path(shown).suffix or 'nothing'}; possible are {possible}")
    except OSError as error:
        raise FileError(f"{shown}: {unreadable(error)}") from None
    if not rows:
        raise DataError(f"{shown}: has no text; need one in each line")
    return rows


def _text(path: str, encoding: str) -> str:
    """The text of a file, of a .gz the compressed one."""
    try:
        with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
            return file.read().decode(encoding)
    except UnicodeDecodeError as error:
        text = f"{path}: byte {error.start} is not {encoding.removesuffix('-sig')}; need {{encoding}}"
        raise DataError(text, encoding=...) from None
    except LookupError:
        raise DataError(f"{path}: the encoding {encoding!r:.60} is not known", setting="encoding") from None
    except EOFError:
        raise FileError(f"{path}: is truncated or damaged; fetch it again") from None


def _of_csv(path: str, encoding: str) -> list[dict[str, Any]]:
    text = _text(path, encoding)
    first = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    csv.field_size_limit(_CELL)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        if not header or "" in header or len(set(header)) < len(header):
            raise DataError(f"{path}: the first line is {first[:60]!r}; need different names of columns")
        rows = []
        for cells in lines:
            if len(cells) != len(header):
                if not cells:
                    continue
                seen = f"{len(cells)} cells and the header {len(header)}"
                raise DataError(f"{path}:{lines.line_num}: has {seen} ({keys_of(dict.fromkeys(header))})")
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise DataError(f"{path}:{lines.line_num}: is no CSV ({error})") from None
    if not rows:
        raise DataError(f"{path}: has no rows below its header; need texts")
    return rows
