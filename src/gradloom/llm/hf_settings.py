"""Settings of a Hugging Face folder, checked: config.json, generation_config.json, tokenizer_config.json."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.described import parse_object
from ..base.errors import DataError, FileError, one_line
from ..base.reasons import reason_of, remedy_of
from ..files.regular import open_regular

CONFIG = "config.json"
_MOST_BYTES = 1 << 24  # of a file of settings


def read_bytes(path: Path, most: int) -> bytes:
    """The bytes of a regular file. Raises FileError if it cannot be read or has more than `most` bytes."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise FileError(f"{path}: has {size} bytes; need at most {most}")
            return file.read(size)
    except OSError as error:
        raise FileError(f"{path}: {reason_of(error)}{remedy_of(error)}") from None
    except ValueError as error:  # a NUL in the name
        raise FileError(f"{os.fspath(path)!r}: cannot be read ({error})") from None


def read_text(path: Path, most: int = _MOST_BYTES) -> str:
    """The text of a file. Raises FileError as read_bytes, and for bytes that are not UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: byte {error.start} is not UTF-8; need a text") from None


def read_json(path: Path, most: int = _MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a file. Raises FileError as read_text, and for anything that is no JSON object."""
    try:
        return parse_object(read_text(path, most), "the text", most)
    except DataError as error:
        seen = str(error).removesuffix("; need a JSON object").removesuffix("; need an object")
        raise FileError(f"{path}: is not read as JSON: {one_line(seen)[1:-1]}; need an object") from None


def read_if_there(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} if there is no such file."""
    return read_json(path) if os.path.lexists(path) else {}


class FolderSettings:
    """The keys of a config.json, with transformers' defaults for absent ones.

    path      of config.json, for messages
    values    its keys: those of text_config, if it has one
    defaults  for absent keys
    """

    def __init__(self, path: str | os.PathLike[str], values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.path, self.values, self.defaults = path, values, defaults

    def get(self, key: str, default: Any = None) -> Any:
        """The value, else the default of the model type, else this one. null counts as absent."""
        value = self.values[key] if key in self.values else self.defaults.get(key)
        return default if value is None else value

    def wrong(self, key: str, seen: Any, need: str) -> FileError:
        return FileError(f"{self.path}: {key} is {one_line(seen)}; need {need}")

    def _given(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise FileError(f"{self.path}: {key} is missing; need it for this model_type")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self._given(key, default)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 31:
            value = int(value)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self.wrong(key, value, "a whole number of at least 1")
        return value

    def number(self, key: str, default: float | None = None, least: float | None = None) -> float:
        """A finite number: above 0, or of at least `least`."""
        return self.checked(key, self._given(key, default), least)

    def checked(self, key: str, value: Any, least: float | None = None) -> float:
        """A value as a finite number that f32 holds: above 0, or of at least `least`."""
        known = type(value) in (int, float) and (value > 0 if least is None else least <= value) and value < 1e38
        if not known or (value and value < 1e-38) or not math.isfinite(value):
            raise self.wrong(key, value, "a positive number" if least is None else f"a number of at least {least:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """An object; {} if it is absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return value
