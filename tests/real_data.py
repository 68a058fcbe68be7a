"""Real data and models that lie beside the checkout, in shared/data; tests that need them are skipped elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("GRADLOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def need(name: str) -> Path:
    """A file of the real data; the test is skipped where it is not there."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in {DATA}")
    return path
