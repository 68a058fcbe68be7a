"""The bytes of a text file, converted to UTF-8, in pieces."""

from __future__ import annotations

import codecs
import gzip
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, cast

from ...base.errors import DataError, FileError, SettingError
from .cell_rules import UTF_8
from .unpacked import most_unpacked, too_much

_PIECE = 1 << 22  # bytes read at a time
_LONGEST_LINE = 1 << 24  # bytes
_MEMORY = 20  # bytes of memory that reading a byte may take
_MARKS = (  # the longest first: that of UTF-32 begins as that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_NO_CHARACTER_SETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")
SPREADSHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers")
_OTHERS = (".parquet", ".npz")
_ARCHIVES = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # of .xlsx and .ods; of .xls


def encoding_of(name: object) -> str:
    """The name of a character encoding as Python spells it; SettingError where it is not known."""
    try:
        found = codecs.lookup(name) if isinstance(name, str) else None
    except (LookupError, ValueError):  # not known; a name with NUL
        found = None
    # rot13 and base64 are codecs of Python, but no encodings of a text
    if found is None or not getattr(found, "_is_text_encoding", True) or found.name in _NO_CHARACTER_SETS:
        need = "a character encoding, such as utf-8, cp1252, latin-1 or utf-16"
        raise SettingError(setting="encoding", seen=name, need=need)
    return UTF_8 if found.name == "utf-8-sig" else found.name


def by_mark(start: bytes, otherwise: str) -> tuple[bytes, str]:
    """The byte order mark with which a text begins, and the encoding that it names: b"" and `otherwise` without one."""
    return next(((mark, name) for mark, name in _MARKS if start.startswith(mark)), (b"", otherwise))


def is_text_file(data: object) -> bool:
    """Whether it is the path of a file that is read as text, such as .csv; no folder, idx, .npz or .parquet file."""
    if not isinstance(data, (str, os.PathLike)):
        return False
    name = os.path.basename(data).lower()
    is_idx = ".idx" in name or "-idx" in name
    return not (os.path.isdir(data) or is_idx or name.endswith(_OTHERS))


def spreadsheet(path: str | os.PathLike[str], what: str) -> DataError:
    """The error for a spreadsheet."""
    return DataError(f"{path}: is {what}; export the sheet as CSV (File > Save As > CSV UTF-8) and use that file")


def utf_8_pieces(path: str | os.PathLike[str], encoding: str) -> Iterator[tuple[bytes, bool]]:
    """(bytes in UTF-8, whether the file ends with them), without a byte order mark, which takes precedence over
    `encoding`. FileError for NUL, bytes that are invalid in the encoding, too long lines, and files that unpack to more
    than the free memory."""
    size = os.stat(path).st_size
    if size == 0:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileError(f"{path}: is a pipe or a device; need a file, which can be read twice")
        raise FileError(f"{path}: is empty (0 bytes); need a CSV file")
    packed = str(path).lower().endswith(".gz")
    most = most_unpacked(size, _MEMORY) if packed else None
    seen = lines = line = 0  # so far: bytes, lines, bytes of the line that they end in
    with cast(BinaryIO, gzip.open(path)) if packed else open(path, "rb", buffering=0) as file:
        read = _read(file, max(_PIECE, 8))
        if read.startswith(_ARCHIVES):
            raise spreadsheet(path, "a ZIP or Office file, such as .xlsx, not a text")
        mark, encoding = by_mark(read, encoding)
        read = read[len(mark) :]
        decoder = codecs.getincrementaldecoder(encoding)()
        while True:
            following = _read(file, _PIECE) if read else b""
            if encoding == UTF_8 and (nul := read.find(b"\0")) >= 0:
                raise FileError(f"{path}: byte {seen + nul + len(mark)} is {_nul(read)}", encoding=...)
            try:
                text = decoder.decode(read, final=not following)
                data = read if encoding == UTF_8 else text.encode()
            except UnicodeDecodeError as error:
                at = lines + error.object[: error.start].decode(encoding, "ignore").count("\n") + 1
                raise FileError(f"{path} line {at}: {_undecoded(error, encoding)}", encoding=...) from None
            except UnicodeError as error:  # of some decoders; of a lone surrogate
                why = " ".join(str(error).split())
                text = f"{path}: is not {encoding} text ({why:.100}); see {{encoding}}"
                raise FileError(text, encoding=...) from None
            if encoding != UTF_8 and (nul := data.find(b"\0")) >= 0:
                at = lines + data.count(b"\n", 0, nul) + 1
                raise FileError(f"{path} line {at}: is NUL in {encoding}; see {{encoding}}", encoding=...)
            if most is not None and seen + len(data) > most:
                raise too_much(path, size, most)
            lines += data.count(b"\n")
            end = max(data.rfind(b"\n"), data.rfind(b"\r"))
            line = len(data) - end - 1 if end >= 0 else line + len(data)
            if line > _LONGEST_LINE:
                raise FileError(f"{path}: has a line of more than {_LONGEST_LINE:,} bytes; need shorter ones")
            yield data, not following
            seen += len(data)
            if not following:
                return
            read = following


def _read(file: BinaryIO, most: int) -> bytes:
    """`most` bytes, fewer only at the end of the file."""
    parts = []
    while most and (part := file.read(min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _nul(data: bytes) -> str:
    """An explanation of a NUL in UTF-8."""
    head = data[:200]
    ends = next((end for start, end in ((1, "le"), (0, "be")) if head[start::2].count(0) * 4 > len(head)), "")
    use = f", or use {{encoding}} utf-16-{ends}" if ends else ""
    return f"NUL, as in UTF-16 or in no text at all; save it as UTF-8 text{use}"


def _undecoded(error: UnicodeDecodeError, encoding: str) -> str:
    """The invalid byte, and an encoding to try."""
    wrong = error.object[error.start]
    if encoding != UTF_8:
        return f"is not {encoding} text (byte {wrong:#04x}); see {{encoding}}"
    begin = max(error.object.rfind(bytes([one]), 0, error.start) for one in b',;\t\r\n"') + 1
    ends = [error.object.find(bytes([one]), error.start) for one in b',;\t\r\n"']
    cell = error.object[begin : min((end for end in ends if end >= 0), default=len(error.object))]
    try:
        other, shown = "cp1252", cell.decode("cp1252")
    except UnicodeDecodeError:
        other, shown = "latin-1", cell.decode("latin-1")
    use = f"use its encoding: with --encoding {other} this cell is {shown.strip()!r:.60}"
    return f"is not UTF-8 text (byte {wrong:#04x}); save it as UTF-8, or {use}"
