"""Every training test runs on the float64 references and on the native core."""

import pytest


@pytest.fixture(params=["numpy", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param
