"""What this machine can compute on: the CPU and the adapters."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.errors import BackendError
from ..base.memory import memory
from ..run.machine import isas
from .device import LIMITS, adapters

if TYPE_CHECKING:
    from .measure import Peak


@dataclass(frozen=True)
class Device:
    """A device that programs run on. name: for `device=`. kind: CPU, DiscreteGPU, IntegratedGPU, ...; driver: its
    driver. memory_bytes: None if the system does not report it. limits: of WebGPU, by name, in bytes or counts.
    peak: of an adapter that was measured."""

    name: str
    hardware: str
    vendor: str
    kind: str
    driver: str
    memory_bytes: int | None
    features: tuple[str, ...]
    limits: dict[str, int] = field(default_factory=dict)
    peak: Peak | None = None


def devices(measure: bool = False) -> list[Device]:
    """The CPU, then each adapter: "gpu", "gpu:1", ... Without the package wgpu, or a driver, the CPU alone.

    measure: run a matrix product and copies on each adapter, a second or two, for its `peak`; BackendError where one
    gives no device."""
    there = memory()
    total = None if there is None else there.total
    found = [Device("cpu", platform.processor() or platform.machine(), "", "CPU", "native", total, tuple(isas()))]
    try:
        every = adapters()
    except BackendError:
        every = ()
    for i, adapter in enumerate(every):
        info, name = adapter.info, f"gpu:{i}" if i else "gpu"
        found.append(
            Device(
                name, info["device"], info["vendor"], info["adapter_type"],
                f"{info['backend_type']}, {info['description']}", None, tuple(sorted(adapter.features)),
                {limit: int(adapter.limits[limit]) for limit in LIMITS}, _measured(name, i) if measure else None,
            )
        )  # fmt: skip
    return found


def _measured(name: str, place: int) -> Peak:
    from .measure import peak  # compiles programs: not where devices are only listed

    return peak(name, place)


def why_no_gpu() -> str:
    """Why there is no adapter; "" where there is one."""
    try:
        adapters()
    except BackendError as error:
        return str(error)
    return ""
