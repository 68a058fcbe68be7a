"""Devices and layers of the commands: checks before anything is read, and their reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..llm.gpu_layers import GpuLayers as Layers


def check_places(
    who: str,
    device: str | None,
    gpu_layers: str | None,
    gpu_memory: str | None,
    memory: str | None = None,
    trains: bool = False,
) -> int | str | None:
    """The blocks that are asked for on a GPU. SettingError for a device, blocks or memory that are not usable: before
    anything is read."""
    layers = gpu_layers_of(gpu_layers)
    check_memory(who, memory, device, layers)
    check_device(device)
    if layers is not None or gpu_memory is not None:
        from ..llm.gpu_layers import check_layers

        check_layers(who, layers, gpu_memory, trains=trains, device=device)
    return layers


def check_memory(who: str, memory: str | None, device: str | None, *more: object) -> None:
    """SettingError for a memory budget that is not usable. more: not None if something computes on a GPU."""
    if memory is not None:
        from ..run.budget import check_places as check

        check(who, memory, {"device": device}, *more)


def gpu_layers_of(given: str | None) -> int | str | None:
    """The number, or "auto", of --gpu-layers; SettingError for anything else."""
    if given is None or given == "auto":
        return given
    if not (given.isascii() and given.isdigit()):
        from ..base.errors import SettingError

        raise SettingError(setting="gpu_layers", seen=given, need="a number of blocks, or auto")
    return int(given)


def shown_layers(layers: Layers | None) -> str:
    """The device of each block, of a command with --gpu-layers."""
    return "all blocks on the CPU" if layers is None else str(layers)


def layers_report(asked: int | str | None, layers: Layers | None) -> dict[str, Any]:
    """The same for --json; nothing where --gpu-layers was not given."""
    if asked is None:
        return {}
    return {"gpu_layers": 0 if layers is None else layers.count, "gpu_head": layers is not None and layers.head}


def check_device(name: str | None) -> None:
    """SettingError for a device that cannot compute here: before anything is read."""
    if name is not None:
        from ..base.errors import BackendError, SettingError
        from ..base.settings import switches
        from ..run.backend import backend, is_device

        if name != "cpu" and not is_device(name):
            raise SettingError(setting="device", seen=name, need="cpu, gpu, or gpu:1 for the second adapter")
        try:
            backend(name, switches())
        except BackendError as error:
            raise SettingError(f"{{device}}: {error}", device=name) from None
