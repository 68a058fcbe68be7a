"""Settings of a run that fit and finetune share: each one with its type, its limits and its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .common import DEVICE, EXCHANGE, GPU_LAYERS, GPU_MEMORY, PARALLEL, PRECISION, THREADS
from .setting import NUMBER, UNSAVED, Duration, Interval, Name, Often, Rate, Text, Whole, commas

if TYPE_CHECKING:
    from ..llm.gpu_layers import GpuLayers as Layers

Optimizer = Literal["adamw", "adam", "sgd", "lion", "rmsprop", "adafactor", "muon"]
EvalEvery = Annotated[
    Often | None, typer.Option(help="Validate inside epochs, too: 200steps; or 2epochs. [default: 1epoch]")
]
MaxNorm = Annotated[Rate | None, typer.Option(help="Hold the gradients' global norm down to this. [default: no limit]")]
OnNonfinite = Annotated[Literal["stop", "skip"], typer.Option(help="stop at a batch that is not finite, or skip it.")]
EvalRows = Annotated[Whole | None, typer.Option(help="Validate on so many rows, the same each time. [default: on all]")]
Precision = Annotated[Literal["f32", "bf16"], PRECISION]
Device = Annotated[Name | None, DEVICE]
GpuLayers = Annotated[Name | None, NUMBER, GPU_LAYERS]
GpuMemory = Annotated[Name | None, NUMBER, GPU_MEMORY]
Threads = Annotated[Whole | None, UNSAVED, THREADS]
CheckpointEvery = Annotated[
    Interval | None, typer.Option(help="A checkpoint every 5min, 100steps or 1epoch. [default: 5min]")
]
Keep = Annotated[Whole | None, typer.Option(help="So many checkpoints stay, and the best. [default: 3]")]
StopAfter = Annotated[
    Duration | None, UNSAVED, typer.Option(help="End with a checkpoint after 90s, 5min or 3h. [default: never]")
]
LogKinds = Annotated[
    list[Literal["csv", "tensorboard"]] | None,
    Text(commas),
    typer.Option(help="Beside metrics.jsonl: csv, tensorboard, or csv,tensorboard. [default: neither]"),
]
Parallel = Annotated[Literal["mpi"] | None, UNSAVED, PARALLEL]
Exchange = Annotated[Literal["ordered", "fast"] | None, UNSAVED, EXCHANGE]


def resume_option(folder: str) -> Any:
    """--resume of a run whose folder this option names."""
    return typer.Option(
        "--resume", help=f"Go on from the newest checkpoint in {folder}, with the settings of that run."
    )


def overwrite_option(folder: str) -> Any:
    """--overwrite likewise."""
    return typer.Option("--overwrite", help=f"Replace a run in {folder} that has not finished.")


def check_places(who: str, device: str | None, gpu_layers: str | None, gpu_memory: str | None) -> int | str | None:
    """The blocks that are asked for on a GPU. SettingError for a device, blocks or memory that are not usable: before
    anything is read."""
    check_device(device)
    layers = gpu_layers_of(gpu_layers)
    if layers is not None or gpu_memory is not None:
        from ..llm.gpu_layers import check_layers

        check_layers(who, layers, gpu_memory, device=device)
    return layers


def gpu_layers_of(given: str | None) -> int | str | None:
    """The number, or "auto", of --gpu-layers; SettingError for anything else."""
    if given is None or given == "auto":
        return given
    if not (given.isascii() and given.isdigit()):
        from ..base.errors import SettingError

        raise SettingError(setting="gpu_layers", seen=given, need="a number of blocks, or auto")
    return int(given)


def shown_layers(layers: Layers | None) -> str:
    """What runs where, of a command with --gpu-layers."""
    return "all blocks on the CPU" if layers is None else str(layers)


def layers_told(asked: int | str | None, layers: Layers | None) -> dict[str, Any]:
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
