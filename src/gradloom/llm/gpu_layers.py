"""Layers on a GPU: the last blocks of a model run there, the others on the CPU, in one proved schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, final

from ..base.errors import SettingError
from ..base.memory import as_bytes, show_bytes
from ..base.messages import log
from ..base.settings import switches
from ..graph.scope import device_name, on_device
from ..plan.plan import Plan
from ..plan.schedule import Schedule
from ..run.backend import DeviceBytes, computing, device_bytes, is_device
from ..run.compile import device_names
from ..run.null_backend import PLANNED

AUTO = "auto"


@final
@dataclass(frozen=True)
class GpuLayers:
    """Blocks of a model on a GPU: the last `count` of `blocks`. head: also the last norm, the output's matrix and the
    loss. The embedding and everything else run on the CPU."""

    blocks: int
    count: int
    head: bool
    gpu: str = "gpu"
    cpu: str = "cpu"

    @property
    def first(self) -> int:
        """The first block on the GPU."""
        return self.blocks - self.count

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
        """The same on devices that are planned for only."""
        return replace(self, gpu=PLANNED + computing(self.gpu), cpu=PLANNED + computing(self.cpu))

    def __str__(self) -> str:
        last = self.blocks - 1
        blocks = f"block {last}" if self.count == 1 else f"blocks {self.first}-{last}"
        blocks = f"all {self.blocks} blocks" if self.count == self.blocks > 1 else blocks
        return f"{blocks}{' and the head' if self.head else ''} on {computing(self.gpu)}, the rest on the CPU"


def at(device: str | None) -> contextlib.AbstractContextManager[None]:
    """Place nodes that are created inside on a device; None: no placement."""
    return contextlib.nullcontext() if device is None else on_device(device)


def placed_options(options: Mapping[str, Any], layers: GpuLayers | None) -> dict[str, Any]:
    """The options of gl.compile for a program with these layers."""
    if layers is None:
        return dict(options)
    return {k: v for k, v in options.items() if k not in ("device", "backend")} | {"devices": layers.devices}


def check_layers(
    who: str,
    gpu_layers: int | str | None = None,
    gpu_memory: int | str | None = None,
    trains: bool = False,
    **options: Any,
) -> tuple[str, int | None]:
    """(the GPU, its memory budget in bytes). Raises SettingError for invalid settings, before a file is read. trains:
    the program is a training, which may have a budget without gpu_layers as well, alone on a GPU. options: of
    gl.compile."""
    budget = None if gpu_memory is None else as_bytes("gpu_memory", gpu_memory, who)
    if gpu_layers is None:
        if budget is None:
            return "cpu", None
        names = device_names(who, options.get("device"), options.get("backend"), options.get("devices"))
        if trains and len(names) == 1 and is_device(names[0]):
            return names[0], budget
        text = "{gpu_memory} requires {gpu_layers}" + (" or {device} 'gpu'" if trains else "")
        named = {"gpu_memory": gpu_memory, "gpu_layers": ...} | ({"device": ...} if trains else {})
        raise SettingError(text, named, place=who)
    if options.get("devices") is not None:
        raise SettingError("{gpu_layers} and {devices} are mutually exclusive", gpu_layers=..., devices=..., place=who)
    (gpu,) = device_names(who, options.get("device"), options.get("backend"), None) or ["gpu"]
    gpu = device_name(who, gpu)
    if gpu != "cpu" and not is_device(gpu):
        text = "{gpu_layers} cannot be combined with {device}; use 'gpu', 'gpu:1' or 'cpu'"
        raise SettingError(text, gpu_layers=gpu_layers, device=gpu, place=who)
    if not (gpu_layers == AUTO or _is_count(gpu_layers)):
        raise SettingError(setting="gpu_layers", seen=gpu_layers, need="a number of blocks, or 'auto'", place=who)
    if gpu_layers == AUTO and budget is None and gpu != "cpu":
        text = "{gpu_layers} requires {gpu_memory}, such as 4GiB: WebGPU does not report GPU memory"
        raise SettingError(text, gpu_layers=AUTO, gpu_memory=..., place=who)
    return gpu, budget


def layers_for(
    who: str,
    blocks: int,
    gpu_layers: int | str | None,
    gpu_memory: int | str | None,
    options: Mapping[str, Any],
    held: Callable[[GpuLayers], int],
    head: bool = True,
    warn: bool = True,
) -> tuple[GpuLayers | None, dict[str, Any]]:
    """(the layers on a GPU, None where nothing is there; the options of gl.compile).

    who: the function, for messages. blocks: of the model. gpu_layers: number of blocks on the GPU, the last ones; more
    than there are for all; "auto": all that fit into gpu_memory (see as_bytes). With device="cpu" there are none.
    held: the bytes that programs with such layers, which are planned only, hold on the GPU; where they do not fit
    gpu_memory, about the least that they can. head: whether the head may be on the GPU, if it fits. warn: print a
    deviation from gpu_layers to stderr.
    Raises SettingError for settings out of range, and if the layers do not fit.
    """
    gpu, budget = check_layers(who, gpu_layers, gpu_memory, **options)
    if gpu_layers is None:
        return None, dict(options)
    rest = {k: v for k, v in options.items() if k not in ("device", "backend")}

    def bytes_of(count: int, with_head: bool) -> int:
        return held(GpuLayers(blocks, count, with_head, gpu).planned())

    warning = ""
    if gpu == "cpu":
        count, warning = (
            0,
            f"device='cpu' leaves no block for a GPU, of gpu_layers={gpu_layers!r}" if gpu_layers else "",
        )
    elif gpu_layers == AUTO:
        assert budget is not None
        count = _most(blocks, budget, bytes_of)
        if not count:
            need = bytes_of(1, False)
            warning = f"no block fits into gpu_memory, {show_bytes(budget)}: the last one needs {show_bytes(need)}"
    else:
        count = min(int(gpu_layers), blocks)
        if count and budget is not None and (need := bytes_of(count, False)) > budget:
            text = (
                f"{{gpu_layers}}: {count} of {blocks} blocks take {show_bytes(need)} on {gpu}, and {{gpu_memory}} "
                f"allows {show_bytes(budget)}; use fewer layers, auto, or more memory"
            )
            raise SettingError(text, gpu_layers=gpu_layers, gpu_memory=..., place=who)
        if count < int(gpu_layers):
            warning = f"gpu_layers={gpu_layers}: the model has {blocks} blocks, and all of them are on {gpu}"
    if warning and warn:
        log.warning("%s: %s", who, warning)
    if not count:
        return None, rest
    layers = GpuLayers(blocks, count, head and (budget is None or bytes_of(count, True) <= budget), gpu)
    return layers, placed_options(rest, layers)


def _is_count(given: Any) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= 0


def _most(blocks: int, budget: int, bytes_of: Callable[[int, bool], int]) -> int:
    """The largest number of blocks whose programs fit, without the head. All are tried first: a plan takes seconds."""
    count, beyond, tried = 0, blocks + 1, blocks  # fits; does not fit
    while beyond - count > 1:
        count, beyond = (tried, beyond) if bytes_of(tried, False) <= budget else (count, tried)
        tried = (count + beyond) // 2
    return count


def bytes_on(device: str, plans: Sequence[Plan | Schedule]) -> DeviceBytes:
    """The memory of programs on a GPU."""
    found = device_bytes(device, plans, switches())
    assert found is not None, device
    return found
