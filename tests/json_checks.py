"""Validation of JSON documents against their declarations: unknown keys, missing keys, values of other types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gradloom.base.json_documents import Document, Key
from tests.scripts import script

ANY = Document("test/1", "", (Key(".*", Any, "", pattern=True),))


def check_values(document: Document, values: Mapping[str, Any]) -> None:
    """AssertionError where values, without the key `schema`, do not fit the document."""
    _object(document.keys, values, document.schema)


def check_document(found: Mapping[str, Any]) -> Document:
    """The document that a JSON object names; AssertionError where the object does not fit it."""
    document = next(one for one in script("docs/json_documents.py").documents() if one.schema == found["schema"])
    check_values(document, {name: value for name, value in found.items() if name != "schema"})
    return document


def _object(keys: tuple[Key, ...], values: Any, where: str) -> None:
    assert isinstance(values, Mapping), f"{where}: {values!r:.80} is no object"
    missing = [key.name for key in keys if not (key.when or key.pattern) and key.name not in values]
    assert not missing, f"{where}: {missing} is missing"
    plain, patterns = {key.name: key for key in keys if not key.pattern}, [key for key in keys if key.pattern]
    for name, value in values.items():
        key = plain.get(name) or next((one for one in patterns if re.fullmatch(one.name, name)), None)
        assert key is not None, f"{where}: key {name!r} is not declared"
        _value(key.kind, value, f"{where}: {name}")


def _value(kind: Any, value: Any, where: str) -> None:
    if isinstance(kind, tuple):
        _object(kind, value, where)
    elif isinstance(kind, list):
        for one in value:
            _object(kind[0], one, where)
    elif isinstance(kind, dict):
        for name, one in value.items():
            _object(kind[str], one, f"{where}.{name}")
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise AssertionError(f"{where}: {error}") from None
