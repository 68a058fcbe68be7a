"""Warnings that name the caller's line."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).parents[1])


def warn(text: str) -> None:
    """A UserWarning at the line that called into this package; by default it is shown once for each line and text."""
    level, at = 1, 1
    frame: FrameType | None = sys._getframe(0)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            at = level + 1
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=at)
