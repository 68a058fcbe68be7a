"""Results and models as a notebook shows them: small tables of HTML, whose texts are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a line of names above it (none where `head` is empty)."""
    top = f"<thead>{_row('th', head)}</thead>" if head else ""
    return f"<table>{top}<tbody>{''.join(_row('td', row) for row in rows)}</tbody></table>"


def html_text(text: str) -> str:
    """Text whose lines and columns stay as they are."""
    return f"<pre>{html.escape(text)}</pre>"


def html_details(summary: str, text: str) -> str:
    """A line that opens to a longer text."""
    return f"<details><summary>{html.escape(summary)}</summary>{html_text(text)}</details>"


def _row(kind: str, cells: Sequence[object]) -> str:
    style = ' style="text-align:left"'
    return f"<tr>{''.join(f'<{kind}{style}>{html.escape(str(cell))}</{kind}>' for cell in cells)}</tr>"
