"""Tables and lists of a page as HTML; all texts are escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .page import escaped


class Markup(str):
    """HTML that is trusted: its texts are escaped already."""


def table_html(head: Sequence[object], rows: Iterable[Sequence[object]], label: str, wrapped: bool = False) -> Markup:
    """A table with a line of names; label: for screen readers. Cells of Markup are taken as they are. wrapped: long
    texts are broken into lines."""
    kind = ' class="wrap"' if wrapped else ""
    top = "".join(f'<th scope="col">{_cell(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return Markup(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(label)}"><table{kind}>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded_html(title: str, content: Markup) -> Markup:
    """Content that opens with a click on its title."""
    return Markup(f'<details class="table"><summary>{escaped(title)}</summary>{content}</details>')


def warnings_html(texts: Sequence[str]) -> Markup:
    """Texts that a reader must see."""
    return Markup("".join(f'<p class="problem">{escaped(text)}</p>' for text in texts))


def list_html(texts: Sequence[str]) -> Markup:
    return Markup(f"<ul>{''.join(f'<li>{escaped(text)}</li>' for text in texts)}</ul>")


def heading_html(text: str) -> Markup:
    return Markup(f"<h3>{escaped(text)}</h3>")


def image_html(url: str, text: str) -> Markup:
    """An image of a data URL; text: for readers who do not see it."""
    return Markup(f'<img src="{url}" alt="{escaped(text)}" width="64">')


def _cell(value: object) -> str:
    return str(value) if isinstance(value, Markup) else escaped(value)
