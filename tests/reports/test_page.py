"""Pages: escaped, self-contained, drawn without an error in a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradloom.base.errors import FileError
from gradloom.reports.page import KINDS, Figure, Section, Table, asset, encoded, escaped, json_text, page, write_page
from tests.reports.browser import Browser

HOSTILE = [
    "</script><script>window.hacked = 1</script>", "<!--<script>", "]]>", "<img src=x onerror=window.hacked=1>",
    "\u2028\u2029", "a\u202eb", "\x00\x1b[2J", "\ud800", "\udcff", "&lt;b&gt;", "'\"`${window.hacked = 1}", "\\u003c",
    "line\nfeed", "ü 漢字 🙂",
]  # fmt: skip


class Elements(HTMLParser):
    """Names and attributes of all elements, and the texts in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def drawing(name: str = "a", count: int = 1) -> Figure:
    """A memory map of one buffer with this name."""
    zeros = np.zeros(count, np.uint32)
    arrays: dict[str, Any] = {
        "offset": zeros, "bytes": np.full(count, 64, np.uint32), "first": zeros, "life": zeros, "spec": zeros,
        "readers": np.zeros(0, np.uint32), "reader_count": zeros, "phase": np.zeros(1, np.uint8), "name": zeros,
        "op": zeros, "line": zeros, "names": [name], "ops": [name], "lines": [name], "specs": [name],
    }  # fmt: skip
    facts = {
        "steps": 1, "arena": 64, "lower_bound": 64, "scratch": 0, "budget": None, "phases": ["forward", name, name],
        "workspace": -1, "largest_step": 0,
    }  # fmt: skip
    return Figure("memory_map", name, name, Table((name,), [(name,)], name), facts, arrays)


def hostile_page() -> str:
    sections = [
        Section(
            name, [name], [(name, name)], [(name, name)], [drawing(name)], [(name, Table((name,), [(name,)], name))]
        )
        for name in HOSTILE
    ]
    return page(HOSTILE[0], sections, HOSTILE[1])


def test_names_change_no_markup() -> None:
    plain = page(
        "t",
        [Section("s", ["x"], [("n", "v")], [("n", "v")], [drawing()], [("t", drawing().table)])] * len(HOSTILE),
        "u",
    )
    text = hostile_page()
    assert [tag for tag, _ in Elements(text).found] == [tag for tag, _ in Elements(plain).found]
    assert text.count("</script") == 1 + len(HOSTILE) and "<!--" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert text.encode().decode() == text


def test_json_is_ascii_without_markup() -> None:
    text = json_text({"</script>": HOSTILE})
    assert text.isascii() and not set("<>&") & set(text)
    with pytest.raises(ValueError, match="JSON"):
        json_text(float("nan"))


def test_escaped() -> None:
    assert escaped("<a href='x'>") == "&lt;a href=&#x27;x&#x27;&gt;" and escaped("\u202e") == "\\u202e"


def test_the_policy_permits_nothing_from_elsewhere() -> None:
    text = page("t", [Section("s", figures=[drawing()])])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    every = Elements(text).found
    assert [a for _, attributes in every for a in attributes if a.startswith("on") or a == "style"] == []
    assert {tag for tag, attributes in every if {"src", "href"} & attributes.keys()} <= {"a"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|importScripts|sendBeacon|WebSocket", text)


@pytest.mark.parametrize("kind", KINDS)
def test_assets_can_be_embedded(kind: str) -> None:
    for name in ("page.css", "page.js", *KINDS[kind]):
        assert asset(name) and name.endswith((".js", ".css"))


@pytest.mark.parametrize("kind", ["float16", "int64", "bool"])
def test_arrays_without_a_typed_array_are_refused(kind: str) -> None:
    with pytest.raises(AssertionError, match="typed array"):
        encoded(np.zeros(3, kind))


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_page(path, "one", [Section("s")])
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON"):
        write_page(
            path, "two", [Section("s", figures=[Figure("memory_map", "", "", Table((), []), {"x": float("inf")})])]
        )
    assert path.read_text() == before and [one.name for one in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(FileError, match="missing"):
        write_page(tmp_path / "missing" / "a.html", "t", [Section("s")])


# ---- in a browser --------------------------------------------------------------------------------------------------


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile_page(), "utf-8")
    browser.open(path)
    assert browser.js("return window.hacked") is None
    assert browser.js("return gradloomReport.figures.length") == len(HOSTILE)
    assert len(browser.all(".map-area")) == len(HOSTILE) and browser.all(".problem") == []
    assert browser.find("h1").text == HOSTILE[0]
    assert "ü 漢字 🙂" in [one.text for one in browser.all("h2")]


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "int32", "float32", "float64"])
def test_arrays_arrive_whole(browser: Browser, tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    array = rng.normal(size=77).astype(kind) * 5 if kind.startswith("f") else rng.integers(0, 250, 77).astype(kind)
    figure = drawing()
    write_page(tmp_path / "a.html", "t", [Section("s", figures=[
        Figure(figure.kind, "t", "l", figure.table, figure.facts, {**figure.arrays, "more": array}),
    ])])  # fmt: skip
    text = (
        (tmp_path / "a.html")
        .read_text()
        .replace("m = model(figure.facts", "unused = (window.seen = figure.arrays), m = model(figure.facts")
    )
    csp = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", text)
    (tmp_path / "a.html").write_text(csp)
    browser.open(tmp_path / "a.html")
    assert browser.js("return Array.from(window.seen.more)") == pytest.approx(array.tolist(), rel=1e-7)


def test_a_figure_that_cannot_be_drawn_opens_its_table(browser: Browser, tmp_path: Path) -> None:
    figure = drawing()
    broken = Figure(figure.kind, "t", "l", figure.table, figure.facts, {**figure.arrays, "first": ["x"]})
    del broken.arrays["life"]  # type: ignore[attr-defined]
    write_page(tmp_path / "a.html", "t", [Section("s", figures=[broken, drawing()])])
    browser.open(tmp_path / "a.html")
    assert "cannot draw" in browser.find("#figure-0 .problem").text
    assert browser.js("return document.querySelector('#figure-0 details').open") is True
    assert len(browser.all("#figure-1 .map-area")) == 1
    assert len(browser.errors) == 1
    browser.errors.clear()
