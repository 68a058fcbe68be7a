"""gradloom plan: how much memory a fine-tuning needs, before anything runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..base.settings import PRECISIONS
from .common import (
    Device,
    GpuLayers,
    GpuMemory,
    Json,
    Precision,
    Threads,
    columns,
    json_text,
    need_one_of,
    need_whole,
    say,
)
from .run_settings import check_device, gpu_layers_of


def plan(
    model: Annotated[str, typer.Argument(help="A GGUF model.")],
    method: Annotated[str, typer.Option(help="lora, or full: the model's own tensors.")] = "lora",
    rank: Annotated[int | None, typer.Option(help="Of the adapter. [default: 8]")] = None,
    targets: Annotated[
        str | None, typer.Option(help="Tensors to adapt or train: names or patterns, or all. [default: see finetune]")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens per row. [default: 512, or the model's]")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 4,
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Rows computed at a time. [default: about 512 tokens]")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd.")] = "adamw",
    train_dtype: Annotated[str | None, typer.Option(help="f32: quantised and half tensors train as copies.")] = None,
    precision: Precision = None,
    device: Device = None,
    gpu_layers: GpuLayers = None,
    gpu_memory: GpuMemory = None,
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Say how many bytes weights, adapter, optimiser and activations need, and whether this machine has them.

    With --device gpu also the bytes of all buffers that it will hold there; how many it has cannot be asked of it.
    Inputs are those of one batch: the data come on top, of which finetune holds all rows, about 12 bytes a token.
    Nothing runs and nothing large is allocated. Exit code 0: it fits; 2: it does not, and stderr says what would.
    """
    for name, value in (
        ("rank", rank), ("context", context), ("batch-size", batch_size), ("micro-batch-size", micro_batch_size),
        ("threads", threads),
    ):  # fmt: skip
        need_whole(name, value)
    need_one_of("method", method, ("lora", "full"))
    need_one_of("optimizer", optimizer, ("adamw", "sgd"))
    need_one_of("precision", precision, PRECISIONS)
    need_one_of("train-dtype", train_dtype, ("f32",))
    check_device(device)
    layers = gpu_layers_of(gpu_layers)
    from ..llm.model import load
    from ..llm.plan import plan as plan_model
    from ..optim import SGD, AdamW
    from .language import adapter_for

    loaded = load(model)
    adapter: Any = adapter_for(loaded, method, targets, train_dtype, rank=rank)
    planned = plan_model(
        loaded, adapter, context=context, batch_size=batch_size, micro_batch_size=micro_batch_size,
        optimizer=SGD() if optimizer == "sgd" else AdamW(), precision=precision, threads=threads,
        device=device, gpu_layers=layers, gpu_memory=gpu_memory,
    )  # fmt: skip
    if layers is not None and planned.layers is None:
        say("all blocks on the CPU")
    columns([("model", str(loaded.config)), *planned.lines(), ("data", "on top: about 12 bytes for each token")])
    if json:
        print(json_text({"model": model, "method": method, "optimizer": optimizer} | planned.report()))
    planned.check()
    return 0
