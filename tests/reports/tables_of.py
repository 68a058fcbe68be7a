"""Numbers of a page as a reader sees them: the tables of its figures and the numbers of its sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Twin:
    """A table of a page. caption: that of its figure, or the title of a table outside of figures."""

    caption: str
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def column(self, name: str) -> list[str]:
        return [row[self.head.index(name)] for row in self.rows]


class Numbers(HTMLParser):
    """tables: of the page, in order. numbers: section -> name -> text of the numbers to read first."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[Twin] = []
        self.numbers: dict[str, dict[str, str]] = {}
        self._caption, self._section, self._name = "", "", ""
        self._text: list[str] | None = None
        self.feed(html)

    def of(self, start: str) -> Twin:
        """The table whose caption begins so."""
        (found,) = [table for table in self.tables if table.caption.startswith(start)]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div" and dict(attrs).get("class") == "scroll" and not self._caption:
            self._caption = dict(attrs)["aria-label"] or ""
        if tag == "table":
            self.tables.append(Twin(self._caption))
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("th", "td", "figcaption", "h2", "dt", "dd"):
            self._text = []

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            found = self.tables[-1]
            found.head, found.rows = found.rows[0], found.rows[1:]
            self._caption = ""
        if self._text is None:
            return
        text, self._text = "".join(self._text), None
        if tag in ("th", "td"):
            self.tables[-1].rows[-1].append(text)
        elif tag == "figcaption":
            self._caption = text
        elif tag == "h2":
            self._section = text
        elif tag == "dt":
            self._name = text
        elif tag == "dd":
            self.numbers.setdefault(self._section, {})[self._name] = text
