"""Page: one self-contained HTML file of sections, with figures that scripts of the page draw from embedded arrays.

The file loads nothing: its content security policy permits only its own script and style, by their digests. Texts from
outside (names of nodes, values of data) are escaped in HTML and in JSON. Arrays are deflate-compressed typed arrays as
base64. Each figure has a table with the same facts, which needs no script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import FileError
from ..base.terminal import printable
from ..files.atomic import atomic_write
from ..files.targets import check_target, is_stream

# Assets of each kind of figure, in the order in which the page contains them. Each script registers the function that
# draws the figure: report.kinds.NAME = function (figure) {...}, see assets/page.js.
KINDS: dict[str, tuple[str, ...]] = {
    "curves": ("uplot.min.css", "curves.css", "uplot.min.js", "curves.js"),
    **dict.fromkeys(("xy", "bars", "counts", "matrix", "roofline"), ("plots.css", "plots.js")),
    "tokens": ("tokens.css", "tokens.js"),
    "heat": ("heat.css", "heat.js"),
    "memory_map": ("memory_map.css", "memory_map.js"),
}
TYPES = {  # dtype -> the typed array of scripts
    "uint8": "Uint8Array", "uint16": "Uint16Array", "uint32": "Uint32Array", "int32": "Int32Array",
    "float32": "Float32Array", "float64": "Float64Array",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """The table twin of a figure.

    head: names of the columns. rows: cells, texts or numbers. note: the selection of rows ("the 200 largest of 4136").
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure that a script of the page draws.

    kind: a key of KINDS. title: the caption. label: one sentence that a screen reader reads in place of the drawing.
    facts: values that JSON can hold. arrays: name -> array of a dtype of TYPES, of any shape (scripts get it flat), or
    a list of texts. table: the same facts without a script.
    """

    kind: str
    title: str
    label: str
    table: Table
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray | Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A part of a page.

    text: paragraphs. numbers: those to read first, as (name, value). facts: (name, longer text). tables: (title,
    table). html: trusted markup, whose texts its author has escaped with `escaped`.
    """

    title: str
    text: Sequence[str] = ()
    numbers: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[tuple[str, Table]] = ()
    html: str = ""


def escaped(text: object) -> str:
    """A text for HTML: markup, control characters and marks of direction have no effect."""
    return html.escape(_encodable(str(text)))


def page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The HTML of a page."""
    kinds = dict.fromkeys(figure.kind for section in sections for figure in section.figures)
    names = ["page.css", "page.js", *dict.fromkeys(name for kind in kinds for name in KINDS[kind])]
    style = "\n".join(asset(name) for name in names if name.endswith(".css"))
    script = "\n".join([*(asset(name) for name in names if name.endswith(".js")), "gradloomReport.start();"])
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    body, number = [], 0
    for k, section in enumerate(sections):
        body.append(_section(section, k, number))
        number += len(section.figures)
    links = "".join(f'<li><a href="#section-{k}">{escaped(one.title)}</a></li>' for k, one in enumerate(sections))
    contents = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(sections) > 1 else ""
    below = f"<p>{escaped(subtitle)}</p>" if subtitle else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escaped(title)}</h1>{below}</header>\n{contents}\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def check_page(path: str | os.PathLike[str]) -> None:
    """FileError unless a page may be written at `path`. To be asked before any work is done."""
    check_target(path, streams=True)
    if (ending := Path(path).suffix.lower()) not in ("", ".html", ".htm") and not is_stream(path):
        raise FileError(f"{path}: ends in {ending}; a page is HTML: need a name that ends in .html")


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section], subtitle: str = "") -> None:
    """Write a page, whole or not at all. FileError where it cannot be written."""
    check_page(path)
    data = page(title, sections, subtitle).encode()
    with atomic_write(path, len(data)) as file:
        file.write(data)


@cache
def asset(name: str) -> str:
    """The text of a script or style sheet of the package."""
    text = files(__package__).joinpath("assets").joinpath(name).read_text("utf-8")
    assert "</script" not in text and "</style" not in text and "<!--" not in text, f"{name} cannot be embedded"
    return text


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(section: Section, k: int, first: int) -> str:
    parts = [f'<section id="section-{k}" aria-labelledby="title-{k}"><h2 id="title-{k}">{escaped(section.title)}</h2>']
    parts += [f"<p>{escaped(text)}</p>" for text in section.text]
    if section.numbers:
        cells = "".join(f"<div><dt>{escaped(n)}</dt><dd>{escaped(v)}</dd></div>" for n, v in section.numbers)
        parts.append(f'<dl class="numbers">{cells}</dl>')
    if section.facts:
        cells = "".join(f"<dt>{escaped(n)}</dt><dd>{escaped(v)}</dd>" for n, v in section.facts)
        parts.append(f'<dl class="facts">{cells}</dl>')
    parts.append(section.html)
    parts += [_figure(figure, first + i) for i, figure in enumerate(section.figures)]
    parts += [table_html(table, name) for name, table in section.tables if table.rows]
    return "\n".join(filter(None, [*parts, "</section>"]))


def _figure(figure: Figure, k: int) -> str:
    data = {
        "kind": figure.kind, "title": figure.title, "label": figure.label, "facts": figure.facts,
        "arrays": {name: encoded(array) for name, array in figure.arrays.items()},
    }  # fmt: skip
    return (
        f'<figure id="figure-{k}" data-kind="{escaped(figure.kind)}">'
        f'<figcaption id="caption-{k}">{escaped(figure.title)}</figcaption>'
        f'<div class="drawing"><noscript>{escaped(figure.label)}</noscript></div>'
        f'<script type="application/json">{json_text(data)}</script>{table_html(figure.table)}</figure>'
    )


def table_html(table: Table, title: str = "Table") -> str:
    """A table that is closed at first."""
    number = [
        bool(table.rows) and all(isinstance(row[c], (int, float, np.number)) for row in table.rows)
        for c in range(len(table.head))
    ]
    kinds = [' class="number"' if one else "" for one in number]
    head = "".join(f'<th scope="col"{kind}>{escaped(name)}</th>' for kind, name in zip(kinds, table.head, strict=True))
    rows = "".join(f"<tr>{_cells(kinds, row)}</tr>" for row in table.rows)
    note = f" ({escaped(table.note)})" if table.note else ""
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return (
        f'<details class="table"><summary>{escaped(title)}{note}</summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(title)}">{grid}</div></details>'
    )


def _cells(kinds: Iterable[str], row: Iterable[object]) -> str:
    return "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))


def encoded(array: np.ndarray | Sequence[str]) -> dict[str, Any]:
    """An array for JSON: its type, and its bytes as base64 of a zlib stream. Bytes of the same weight are neighbours:
    they compress better so."""
    if not isinstance(array, np.ndarray):
        return {"type": "texts", "size": 1, "data": _packed(json_text(list(array)).encode())}
    known = TYPES.get(array.dtype.name)
    assert known is not None, f"an array of {array.dtype} has no typed array; use one of {', '.join(TYPES)}"
    size = array.dtype.itemsize
    flat = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).reshape(-1)
    planes = flat.view(np.uint8).reshape(-1, size).T if flat.size else np.empty((0, size), np.uint8)
    return {"type": known, "size": size, "data": _packed(planes.tobytes())}


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def json_text(value: object) -> str:
    """JSON that stays data inside of a script element: ASCII without <, > and &, and without characters that change the
    direction of texts or have no shape. ValueError for numbers that are not finite."""
    text = json.dumps(_shown(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _encodable(text: str) -> str:
    """printable, with bytes that are not UTF-8 as escapes."""
    return printable(text).encode("utf-8", "backslashreplace").decode()


def _shown(value: object) -> object:
    """The value with printable texts and Python's numbers."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, Mapping):
        return {_encodable(str(name)): _shown(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value
