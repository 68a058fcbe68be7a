"""Pages of plans and runs, which the floor `reports` defines."""

from __future__ import annotations

import os

from .hooks import run_page, save_plan, show_plan


class Pages:
    """A plan with a page: its memory maps and numbers in one HTML file."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to an .html file, whole or not at all. It loads nothing from elsewhere.

        Raises FileError where the file cannot be written.
        """
        save_plan(self, path)

    def show(self) -> None:
        """Open the page in the browser, from a temporary file that stays; in a notebook, display it."""
        show_plan(self)


class RunPage:
    """A training in memory, which a notebook shows as its report."""

    def _repr_html_(self) -> str:
        return run_page(self)
