"""Every test of this folder needs an adapter, but those marked `no_adapter`."""

from __future__ import annotations

import pytest

from tests.gpu.adapter import need_adapter


@pytest.fixture(autouse=True)
def adapter(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("no_adapter") is None:
        need_adapter()
