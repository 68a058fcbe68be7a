"""Texts to score, from a file: the lines of a .txt, or the rows of any other file of samples."""

from __future__ import annotations

import os
from pathlib import Path

from ..base.errors import DataError, FileError
from ..base.messages import log
from ..base.reasons import unreadable
from ..data.reading.text_bytes import encoding_of
from .data_files import TEXT
from .json_rows import BadRow, FileRows, RowReader, text_blocks
from .row_readers import need_file, reader_of


def text_rows(path: str | os.PathLike[str], encoding: str | None = None) -> FileRows:
    """The rows of a file as dicts: {"text": line} for each line of a .txt that is not empty, with a warning where
    some are; the cells of a table by column.

    Raises FileError for a file that cannot be read, DataError for contents that are not of the kind of its name,
    SettingError for an encoding that is not known.
    """
    shown, rows, numbers = os.fspath(path), [], []
    encoding = None if encoding is None else encoding_of(encoding)
    try:
        if Path(shown.lower()).suffix in TEXT:
            need_file(shown)
            lines = "".join(text_blocks(shown, encoding)).splitlines()
            reader = RowReader(shown, "line")
            numbers = [i + 1 for i, line in enumerate(lines) if line.strip()]
            rows = [{"text": lines[i - 1]} for i in numbers]
            empty = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
            if 0 < empty < len(rows):  # those at the end do not count
                log.warning("%s:%d: is empty; such lines have no result", shown, empty + 1)
        else:
            reader = reader_of(shown, encoding)
            for number, row in reader:
                if isinstance(row, BadRow):
                    raise DataError(f"{reader.where(number)}: {row}")
                rows.append(row)
                numbers.append(number)
    except OSError as error:
        raise FileError(f"{shown}: {unreadable(error)}") from None
    if not rows:
        raise DataError(f"{shown}: has no text; need one in each line")
    return FileRows(rows, reader, numbers)
