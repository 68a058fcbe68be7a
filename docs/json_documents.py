"""docs/json.md and docs/json.schema.json, from the declarations in base/json_tables.py, base/json_documents.py and
base/json_facts.py: `python docs/json_documents.py --write` writes both."""

from __future__ import annotations

import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from gradloom.base import json_documents, json_facts, json_tables
from gradloom.base.json_documents import Document, Key

ROOT = Path(__file__).resolve().parent.parent
PAGE, SCHEMA = ROOT / "docs" / "json.md", ROOT / "docs" / "json.schema.json"
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def documents() -> list[Document]:
    """All documents, in the order of their declaration."""
    found = [*vars(json_tables).values(), *vars(json_documents).values(), *vars(json_facts).values()]
    return list({one.schema: one for one in found if isinstance(one, Document)}.values())


def parts(kind: Any) -> tuple[str, Any]:
    """(form, content) of the kind of a key: form is "any", "simple", "union", "list", "map" or "keys"."""
    if kind is Any:
        return "any", None
    if isinstance(kind, tuple):
        return "keys", kind
    if isinstance(kind, list):
        return "list", kind[0]
    if isinstance(kind, dict):
        return "map", kind[str]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return "union", arguments
    if origin is list:
        return "list", arguments[0]
    if origin is dict:
        return "map", arguments[1]
    return "simple", _SIMPLE[kind]


# ---- page ------------------------------------------------------------------------------------------------------------


def page() -> str:
    """A section for each document."""
    return "\n".join(f"## {one.schema}\n\n{one.source}\n\n{_table(one.keys)}" for one in documents())


def _table(keys: tuple[Key, ...], above: str = "") -> str:
    rows = "" if above else "| key | type | unit | meaning | present |\n|---|---|---|---|---|\n"
    for key in keys:
        name = f"{above}{key.name}".replace("|", "\\|")
        shown = f"`{name}`" + " (pattern)" * key.pattern
        kind, unit = _type(key.kind).replace("|", "\\|"), key.unit
        rows += f"| {shown} | {kind} | {unit} | {key.meaning.replace('|', chr(92) + '|')} | {key.when or 'always'} |\n"
        form, content = parts(key.kind)
        if form == "keys":
            rows += _table(content, f"{key.name}.")
        elif form in ("list", "map") and isinstance(content, tuple):
            rows += _table(content, f"{key.name}{'[]' if form == 'list' else '.*'}.")
    return rows


def _type(kind: Any) -> str:
    form, content = parts(kind)
    if form == "union":
        return " or ".join(_type(one) for one in content)
    if form == "list":
        return f"list of {_type(content)}"
    if form == "map":
        return f"object of {_type(content)}"
    return {"any": "any", "keys": "object"}.get(form, content)


# ---- JSON Schema -----------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) of all documents; its $defs are those of each."""
    made = {one.schema: _object(one.keys) for one in documents()}
    for name, one in made.items():
        one["properties"] = {"schema": {"const": name}, **one["properties"]}
        one["required"] = ["schema", *one["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "JSON documents of gradloom",
        "oneOf": [{"$ref": f"#/$defs/{name.replace('/', '~1')}"} for name in made],
        "$defs": made,
    }


def _object(keys: tuple[Key, ...]) -> dict[str, Any]:
    made = {
        "type": "object",
        "properties": {key.name: {**_value(key.kind), "description": key.meaning} for key in keys if not key.pattern},
        "required": [key.name for key in keys if not key.when and not key.pattern],
    }
    patterns = {f"^({key.name})$": {"description": key.meaning} for key in keys if key.pattern}
    return made | ({"patternProperties": patterns} if patterns else {})


def _value(kind: Any) -> dict[str, Any]:
    form, content = parts(kind)
    if form == "union":
        return {"anyOf": [_value(one) for one in content]}
    if form == "list":
        return {"type": "array", "items": _value(content)}
    if form == "map":
        return {"type": "object", "additionalProperties": _value(content)}
    return {"any": {}, "keys": _object(content) if form == "keys" else {}}.get(form, {"type": content})


def written() -> dict[Path, str]:
    """The text of each file."""
    head, begin, end = PAGE.read_text().partition("<!-- documents -->")[0], "<!-- documents -->", "<!-- /documents -->"
    return {PAGE: f"{head}{begin}\n\n{page()}\n{end}\n", SCHEMA: json.dumps(schema(), indent=1) + "\n"}


if __name__ == "__main__":
    for path, text in written().items():
        if "--write" in sys.argv:
            path.write_text(text)
        else:
            print(text)
