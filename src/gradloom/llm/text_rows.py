"""Texts to score, from a file: the lines of a .txt, or the rows of any other file of samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..base.errors import DataError, FileError
from ..base.messages import log
from ..base.reasons import unreadable
from .data_files import TEXT
from .json_rows import BadRow
from .row_readers import need_file, reader_of


def text_rows(path: str | os.PathLike[str], encoding: str | None = None) -> list[dict[str, Any]]:
    """The rows of a file as dicts: {"text": line} for each line of a .txt that is not empty, with a warning where
    some are; the cells of a table by column.

    Raises FileError for a file that cannot be read, DataError for contents that are not of the kind of its name.
    """
    shown = os.fspath(path)
    rows = []
    try:
        if Path(shown.lower()).suffix in TEXT:
            need_file(shown)
            lines = _text(shown, encoding or "utf-8-sig").splitlines()
            rows = [{"text": line} for line in lines if line.strip()]
            empty = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
            if 0 < empty < len(rows):  # those at the end do not count
                log.warning("%s:%d: is empty; such lines have no result", shown, empty + 1)
        else:
            reader = reader_of(shown, encoding)
            for number, row in reader:
                if isinstance(row, BadRow):
                    raise DataError(f"{reader.where(number)}: {row}")
                rows.append(row)
    except OSError as error:
        raise FileError(f"{shown}: {unreadable(error)}") from None
    if not rows:
        raise DataError(f"{shown}: has no text; need one in each line")
    return rows


def _text(path: str, encoding: str) -> str:
    try:
        return Path(path).read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        text = f"{path}: byte {error.start} is not {encoding.removesuffix('-sig')}; need {{encoding}}"
        raise DataError(text, encoding=...) from None
    except LookupError:
        raise DataError(f"{path}: the encoding {encoding!r:.60} is not known", setting="encoding") from None
