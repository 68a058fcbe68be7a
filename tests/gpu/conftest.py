"""Every test of this folder needs an adapter, but those marked `no_adapter`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.gpu.adapter import need_adapter, small_bindings


@pytest.fixture(autouse=True)
def adapter(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("no_adapter") is None:
        need_adapter()


@pytest.fixture(params=["adapter", "small"])
def bindings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test with the adapter's limits, and with small bindings."""
    with small_bindings() if request.param == "small" else contextlib.nullcontext():
        yield
