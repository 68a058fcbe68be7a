"""The error of an installation whose native modules are not built."""

from __future__ import annotations

import os

PACKAGE = "gradloom"


def not_built() -> ImportError:
    """The error, with the remedy, for a source tree that is imported in place of the installed package."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return ImportError(
        f"gradloom: the native core is not built in {folder}; install it with `pip install .` in the project folder, "
        f"or remove {os.path.dirname(folder)} from PYTHONPATH to use the installed package",
        name=PACKAGE,
    )
