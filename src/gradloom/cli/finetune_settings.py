"""The settings of gradloom finetune, and what follows from them before the data are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from ..base.defaults import FINETUNE_BATCH, FINETUNE_RATES, FINETUNE_SCHEDULE, FINETUNE_WARMUP
from .common import Json
from .config import Asked
from .language import (
    DATA_HELP,
    LOSS_ON,
    TEMPLATE,
    AsChat,
    CompletionKey,
    MessagesKey,
    PromptKey,
    SkipBadLines,
    Special,
    TextKey,
    adapter_for,
    data_options,
)
from .run_settings import (
    CheckpointEvery,
    Device,
    EvalEvery,
    EvalRows,
    Exchange,
    GpuLayers,
    GpuMemory,
    Keep,
    LogKinds,
    MaxNorm,
    OnNonfinite,
    Optimizer,
    Parallel,
    Precision,
    StopAfter,
    Threads,
    check_places,
    gpu_layers_of,
    overwrite_option,
    resume_option,
)
from .saved_settings import beside_run
from .setting import UNSAVED, Count, Decay, Name, Often, Place, Rate, Share, Text, Whole, commas, decided

if TYPE_CHECKING:
    from ..llm.model import Model
    from ..parallel.communicator import Communicator


@dataclass(frozen=True)
class FinetuneSettings:
    """What a finetune does. None: not said."""

    model: Annotated[Place, typer.Argument(help="A GGUF model.")]
    data: Annotated[Place, typer.Argument(help=DATA_HELP)]
    method: Annotated[Literal["lora", "full"], typer.Option(help="lora, or full: the model's own tensors.")] = "lora"
    rank: Annotated[Whole | None, typer.Option(help="Of the adapter. [default: 8]")] = None
    alpha: Annotated[Rate | None, typer.Option(help="The adapter counts alpha/rank times. [default: 2 rank]")] = None
    targets: Annotated[
        list[str] | None,
        Text(commas),
        typer.Option(
            help="Tensors to adapt or train: names as attn_q, patterns, or all. [default: attention; full: all]"
        ),
    ] = None
    dropout: Annotated[
        Share | None, typer.Option(help="Share of the adapter's inputs that is dropped. [default: 0]")
    ] = None
    rslora: Annotated[bool, typer.Option("--rslora", help="Count alpha/sqrt(rank) times instead.")] = False
    lora: Annotated[
        Place | None,
        typer.Option(
            help="Start from the weights of this adapter (.gguf, or a PEFT folder); optimiser, schedule and order of"
            " rows begin anew. --out may name it again."
        ),
    ] = None
    context: Annotated[Whole | None, typer.Option(help="Tokens per row. [default: 512, or the model's]")] = None
    batch_size: Annotated[Whole, typer.Option(help="Rows per step.")] = FINETUNE_BATCH
    micro_batch_size: Annotated[
        Whole | None, typer.Option(help="Rows computed at a time. [default: about 512 tokens]")
    ] = None
    epochs: Annotated[Whole | None, typer.Option(help="Passes over the training rows. [default: 1]")] = None
    steps: Annotated[Whole | None, typer.Option(help="Steps, in place of epochs.")] = None
    lr: Annotated[Rate, typer.Option(help="The highest rate. [default: 2e-4; full 2e-5]")] = decided
    schedule: Annotated[Literal["cosine", "linear", "constant"], typer.Option(help="cosine, linear or constant.")] = (
        FINETUNE_SCHEDULE  # type: ignore[assignment]
    )
    warmup: Annotated[Share, typer.Option(help="Share of the steps in which the rate grows.")] = FINETUNE_WARMUP
    weight_decay: Annotated[Decay, typer.Option(help="Of AdamW.")] = 0.0
    optimizer: Annotated[
        Optimizer,
        Text(str.lower),
        typer.Option(help="adamw, adam, sgd, lion, rmsprop, adafactor or muon, with the rate of --lr."),
    ] = "adamw"
    max_norm: MaxNorm = None
    freeze: Annotated[
        list[Name] | None,
        typer.Option(help="Of what would train, a pattern such as blk.0.* that stays. May be given more than once."),
    ] = None
    on_nonfinite: OnNonfinite = "stop"
    sample_prompt: Annotated[
        list[str] | None, typer.Option(help="Show how the model goes on from this text. May be given more than once.")
    ] = None
    sample_every: Annotated[
        Often | None, typer.Option(help="How often, such as 100steps or 1epoch. [default: 100steps]")
    ] = None
    val_split: Annotated[
        Share | None, typer.Option(help="Share of the rows to validate on. [default: 0.05, at most 100 rows]")
    ] = None
    val: Annotated[Place | None, typer.Option(help="A file to validate on, in place of --val-split.")] = None
    eval_every: EvalEvery = None
    eval_rows: EvalRows = None
    patience: Annotated[
        Whole | None, typer.Option(help="End after so many evaluations without improvement. [default: never]")
    ] = None
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Save the weights of the evaluation with the least loss.")
    ] = False
    ema: Annotated[
        Share, typer.Option(help="Decay of a moving average of what trains, which is validated and saved; 0: none.")
    ] = 0.0
    seed: Annotated[Count, typer.Option(help="Of the adapter, the split, the order of the rows and dropout.")] = 0
    precision: Precision = decided
    device: Device = None
    gpu_layers: GpuLayers = None
    gpu_memory: GpuMemory = None
    threads: Threads = None
    train_dtype: Annotated[
        Literal["f32"] | None, typer.Option(help="f32: quantised and half tensors train as copies.")
    ] = None
    text_key: TextKey = None
    prompt_key: PromptKey = None
    completion_key: CompletionKey = None
    messages_key: MessagesKey = None
    as_chat: AsChat = False
    chat_template: Annotated[Place | None, TEMPLATE] = None
    loss_on: Annotated[Literal["assistant", "all"] | None, LOSS_ON] = None
    skip_bad_lines: SkipBadLines = False
    special: Special = False
    parallel: Parallel = None
    exchange: Exchange = None
    checkpoint_every: CheckpointEvery = None
    keep: Keep = None
    stop_after: StopAfter = None
    log: LogKinds = None
    resume: Annotated[bool, UNSAVED, resume_option("--run")] = False
    overwrite: Annotated[bool, UNSAVED, overwrite_option("--run")] = False
    out: Annotated[
        Place,
        UNSAVED,
        typer.Option(help="FILE.gguf, or for an adapter a folder (PEFT). [default: adapter.gguf; full model.gguf]"),
    ] = decided
    run: Annotated[
        Place | None,
        UNSAVED,
        typer.Option(help="Folder for checkpoints, settings.toml, metrics.jsonl. [default: FILE.run beside --out]"),
    ] = None
    json: Annotated[Json, UNSAVED] = False


# What changes no byte of a run, and where it writes
_NOT_PLANNED = {
    "alpha", "rslora", "epochs", "steps", "lr", "schedule", "warmup", "weight_decay", "on_nonfinite", "sample_every",
    "eval_every", "patience", "keep_best", "loss_on", "parallel", "exchange", "checkpoint_every", "keep", "stop_after",
    "log", "resume", "overwrite", "out", "run",
}  # fmt: skip


def _planned() -> type:
    """FinetuneSettings without these, and with data that may be missing."""
    hints = get_type_hints(FinetuneSettings, include_extras=True)
    hints["data"] = Annotated[Place | None, typer.Argument(help=f"{DATA_HELP} Without: any data.")]
    made = [
        (one.name, hints[one.name], field(default=None if one.name == "data" else one.default))
        for one in fields(FinetuneSettings)
        if one.name not in _NOT_PLANNED
    ]
    return make_dataclass("PlanSettings", made, frozen=True)


PlanSettings: Any = _planned()


def settle(asked: Asked[FinetuneSettings]) -> FinetuneSettings:
    """With the defaults that follow from the method; SettingError for settings that exclude one another."""
    from ..base.errors import SettingError
    from ..base.settings import as_precision

    use = asked.settings()
    check_places("finetune", use.device, use.gpu_layers, use.gpu_memory)
    if use.epochs is not None and use.steps is not None:
        raise SettingError("{epochs} and {steps} are mutually exclusive", epochs=use.epochs, steps=use.steps)
    out = use.out or _out_of(use.method)
    return replace(
        use,
        lr=use.lr or FINETUNE_RATES[use.method],
        precision=as_precision(use.precision),
        out=out,
        run=use.run or run_beside(out),
        epochs=use.epochs or (1 if use.steps is None else None),
    )


def _out_of(method: str) -> str:
    return "adapter.gguf" if method == "lora" else "model.gguf"


def run_beside(out: str) -> str:
    """The folder of a run where none is named."""
    return str(Path(out).with_suffix(".run"))


def resumed(asked: Asked[FinetuneSettings]) -> Asked[FinetuneSettings]:
    """What is asked for, with --resume beside the settings of the run in its folder."""
    given = asked.values
    folder = given.get("run") or run_beside(given.get("out") or _out_of(given.get("method", "lora")))
    length = ("epochs", "steps")  # one of them is meant
    found = beside_run(asked, folder, *(length if any(name in given for name in length) else ()))
    if "device" in found.files and found.values["device"] == "cpu" and "gpu_layers" in given:
        values = {name: value for name, value in found.values.items() if name != "device"}
        return replace(found, values=values, files={name: file for name, file in found.files.items() if name in values})
    return found


def inputs_of(use: FinetuneSettings) -> list[str]:
    """The files that are read, first the model, then the data."""
    from ..llm.data_files import data_files

    return [path for path in (use.model, *data_files(use.data).paths, use.val, use.chat_template) if path is not None]


def trained(use: Any, model: Model, **more: Any) -> Any:
    """What these settings train: an adapter, or tensors of the model. more: settings of a new LoRA."""
    return adapter_for(
        model, use.method, None if use.targets is None else ",".join(use.targets), use.train_dtype, use.lora, use.seed,
        rank=use.rank, dropout=use.dropout, **more,
    )  # fmt: skip


def planning(use: Any) -> dict[str, Any]:
    """The arguments of llm.plan.plan, of PlanSettings."""
    names = (
        "context", "batch_size", "micro_batch_size", "val_split", "val", "eval_rows", "seed", "precision", "device",
        "threads", "optimizer", "ema", "sample_prompt", "gpu_memory",
    )  # fmt: skip
    made = {name: getattr(use, name) for name in names}
    made |= {"max_norm": use.max_norm or math.inf, "freeze": use.freeze or ()}
    read = data_options(
        use.text_key, use.prompt_key, use.completion_key, use.messages_key, use.as_chat, use.chat_template, None,
        use.skip_bad_lines, use.special,
    )  # fmt: skip
    if use.data is None:  # what is asked for of data is refused
        read = {name: value for name, value in read.items() if value not in (None, False)}
    return made | {"gpu_layers": gpu_layers_of(use.gpu_layers), "data_options": read}


def reading(use: FinetuneSettings) -> dict[str, Any]:
    """The arguments of llm.data.read_samples that say how the data are read."""
    return data_options(
        use.text_key, use.prompt_key, use.completion_key, use.messages_key, use.as_chat, use.chat_template,
        use.loss_on, use.skip_bad_lines, use.special,
    )  # fmt: skip


def training(use: FinetuneSettings, ranks: Communicator | None) -> dict[str, Any]:
    """The arguments of llm.finetune.Run that say how it trains."""
    names = (
        "context", "batch_size", "micro_batch_size", "epochs", "steps", "lr", "schedule", "warmup", "weight_decay",
        "val_split", "seed", "precision", "device", "threads", "optimizer", "on_nonfinite", "sample_every", "ema",
        "run", "resume", "overwrite", "checkpoint_every", "keep", "stop_after", "eval_rows", "patience", "keep_best",
        "val",
    )  # fmt: skip
    made = {name: getattr(use, name) for name in names}
    made |= {"gpu_layers": gpu_layers_of(use.gpu_layers), "gpu_memory": use.gpu_memory}
    made |= {"max_norm": use.max_norm or math.inf, "freeze": use.freeze or (), "sample_prompt": use.sample_prompt}
    made |= {"eval_every": use.eval_every or "1epoch", "log": use.log or ()}
    return made | {"parallel": ranks, "exchange": use.exchange or "ordered"}
