"""Whether there is an adapter here; tests of the GPU are skipped with the reason where there is none.

GRADLOOM_NEED_GPU=1 (set by `run_tests.sh --full`) makes that a failure.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Iterator
from typing import Any

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


SMALL = 128 << 10  # bytes of a binding: less than most programs of these tests need


@functools.cache
def _small(few: bool) -> Any:
    from gradloom.gpu.device import Gpu

    return Gpu(0, default_limits=few, binding_bytes=SMALL // 4 if few else SMALL)


@contextlib.contextmanager
def small_bindings(few: bool = False) -> Iterator[Any]:
    """Inside, "gpu" is a device of small bindings: values, inputs and arrays lie in pieces. few: of yet smaller ones, 8
    in a kernel as WebGPU promises everywhere. What was compiled before stays on the device that it is on."""
    from gradloom.gpu import device as devices

    before = devices.device(0)
    devices._devices[0] = _small(few)
    try:
        yield _small(few)
    finally:
        devices._devices[0] = before


def programs_on(device: Any) -> list[Any]:
    """The programs that are loaded on a device."""
    from gradloom.gpu.backend import GpuExecutable

    loaded = [one for one in gc.get_objects() if isinstance(one, GpuExecutable)]
    return [one for one in loaded if one.device is device]


@contextlib.contextmanager
def own_device(binding_bytes: int | None = None) -> Iterator[Any]:
    """Inside, "gpu" is a device on which nothing lies yet. What was compiled before stays where it is."""
    from gradloom.gpu import device as devices

    gc.collect()  # programs in cycles hold the devices of earlier tests
    before, made = devices.device(0), devices.Gpu(0, binding_bytes=binding_bytes)
    devices._devices[0] = made
    try:
        yield made
    finally:
        devices._devices[0] = before
