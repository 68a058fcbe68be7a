"""Layers on a GPU: the last blocks of a model run there, the others on the CPU, by one proved schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from ..base.errors import SettingError
from ..base.memory import as_bytes, show_bytes
from ..base.settings import switches
from ..graph.scope import device_name, on_device
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.backend import DeviceBytes, computing, device_bytes, is_device
from ..run.compile import device_names

AUTO = "auto"
PLANNED = "null:"  # before the name of a device that is only planned for


@final
@dataclass(frozen=True)
class GpuLayers:
    """Which blocks of a model run on a GPU: those from `first` on, `count` in all. head: the last norm, the output's
    matrix and the loss, too. The embedding, and all else, is on the CPU."""

    count: int
    first: int
    head: bool
    gpu: str = "gpu"
    cpu: str = "cpu"

    @property
    def devices(self) -> tuple[str, str]:
        """The preferred one first."""
        return self.gpu, self.cpu

    def block(self, number: int) -> str:
        return self.gpu if number >= self.first else self.cpu

    @property
    def end(self) -> str:
        """The device of the head."""
        return self.gpu if self.head else self.cpu

    def planned(self) -> GpuLayers:
        """The same, on devices that are only planned for."""
        return replace(self, gpu=PLANNED + self.gpu, cpu=PLANNED + self.cpu)

    def __str__(self) -> str:
        last = self.first + self.count - 1
        blocks = f"block {last}" if self.count == 1 else f"blocks {self.first}-{last}"
        return f"{blocks}{' and the head' if self.head else ''} on {computing(self.gpu)}, the others on the CPU"


def at(device: str | None) -> contextlib.AbstractContextManager[None]:
    """Nodes made inside are said to run there; None: nothing is said here."""
    return contextlib.nullcontext() if device is None else on_device(device)


def placed_options(options: Mapping[str, Any], layers: GpuLayers | None) -> dict[str, Any]:
    """The options of gl.compile for a program with these layers."""
    if layers is None:
        return dict(options)
    return {k: v for k, v in options.items() if k not in ("device", "backend")} | {"devices": layers.devices}


def layers_for(
    who: str,
    blocks: int,
    gpu_layers: int | str | None,
    gpu_memory: int | str | None,
    options: Mapping[str, Any],
    plans: Callable[[GpuLayers], Sequence[Plan | Schedule]],
    head: bool = True,
) -> tuple[GpuLayers | None, dict[str, Any]]:
    """(the layers on a GPU, None where nothing is there; the options of gl.compile).

    who: the function, for messages. blocks: of the model. gpu_layers: how many of the last ones, "auto": as many as fit
    into gpu_memory (bytes, or a text such as "4GiB"). plans: of the programs with such layers, on devices that are only
    planned for. head: whether it may be on the GPU; it is where it fits.
    SettingError for settings out of range, and where the layers do not fit.
    """
    if gpu_layers is None:
        if gpu_memory is not None:
            raise SettingError(f"{who}: gpu_memory without gpu_layers; need both (--gpu-layers), or none of them")
        return None, dict(options)
    if options.get("devices") is not None:
        raise SettingError(f"{who}: gpu_layers and devices both say where to compute; need one of them")
    gpu = (device_names(who, options.get("device"), options.get("backend"), None) or ["gpu"])[0]
    if not is_device(gpu):
        raise SettingError(f"{who}: gpu_layers={gpu_layers!r} with device={gpu!r}; need device='gpu' or 'gpu:1'")
    budget = None if gpu_memory is None else as_bytes(f"{who}: gpu_memory", gpu_memory)
    rest = {k: v for k, v in options.items() if k not in ("device", "backend")}
    whole = isinstance(gpu_layers, int) and not isinstance(gpu_layers, bool)
    if gpu_layers != AUTO and not (whole and 0 <= int(gpu_layers) <= blocks):
        raise SettingError(f"{who}: gpu_layers={gpu_layers!r} is not usable; need 0 to {blocks}, or 'auto'")

    def made(count: int, with_head: bool) -> GpuLayers:
        return GpuLayers(count, blocks - count, with_head, device_name(who, gpu))

    def held(count: int, with_head: bool) -> int:
        layers = made(count, with_head).planned()
        return bytes_on(layers.gpu, plans(layers)).total

    if gpu_layers == AUTO:
        if budget is None:
            raise SettingError(
                f"{who}: gpu_layers='auto' without gpu_memory; adapters do not tell their memory: need gpu_memory, "
                "such as '4GiB' (--gpu-memory 4GiB)"
            )
        count, beyond = 0, blocks + 1  # so many fit; so many do not
        while beyond - count > 1:
            middle = (count + beyond) // 2
            count, beyond = (middle, beyond) if held(middle, False) <= budget else (count, middle)
    else:
        count = int(gpu_layers)
        if count and budget is not None and (need := held(count, False)) > budget:
            raise SettingError(
                f"{who}: {count} of {blocks} blocks need {show_bytes(need)} on {gpu}; gpu_memory allows "
                f"{show_bytes(budget)}: need fewer gpu_layers, 'auto', or more gpu_memory"
            )
    if not count:
        return None, rest
    layers = made(count, head and (budget is None or held(count, True) <= budget))
    return layers, placed_options(rest, layers)


def bytes_on(device: str, plans: Sequence[Plan | Schedule]) -> DeviceBytes:
    """What programs hold on a GPU."""
    found = device_bytes(device, plans, switches())
    assert found is not None, device
    return found
