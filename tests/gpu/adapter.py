"""Whether there is an adapter here; tests of the GPU are skipped with the reason where there is none.

GRADLOOM_NEED_GPU=1 (set by `run_tests.sh --full`) makes that a failure.
"""

from __future__ import annotations

import functools
import os

import pytest

from gradloom.base.errors import BackendError


@functools.cache
def why_not() -> str:
    """Why nothing can run on a GPU here; "" where it can."""
    from gradloom.gpu.device import device

    try:
        device(0)
    except BackendError as error:
        return str(error)
    return ""


def need_adapter() -> None:
    """Skip what needs an adapter, or fail where one must be there."""
    reason = why_not()
    if reason and os.environ.get("GRADLOOM_NEED_GPU") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
