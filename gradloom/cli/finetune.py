"""gradloom finetune: train an adapter for a GGUF model, or the model itself, and save it."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..base.memory import resident_peak, show_bytes
from .common import (
    Exchange,
    Parallel,
    columns,
    exit_code,
    heed_signals,
    is_quiet,
    join,
    json_text,
    need_one_of,
    need_place,
    need_rate,
    need_share,
    need_whole,
    say,
    uninterrupted,
    with_more,
)
from .language import (
    DATA_HELP,
    AsChat,
    CompletionKey,
    Json,
    LossOn,
    MessagesKey,
    PromptKey,
    SkipBadLines,
    Template,
    TextKey,
    Threads,
    adapter_for,
    data_options,
)

if TYPE_CHECKING:
    from ..llm.finetune import Run
    from ..llm.plan import MemoryPlan


def finetune(
    model: Annotated[str, typer.Argument(help="A GGUF model.")],
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    method: Annotated[str, typer.Option(help="lora, or full: the model's own tensors.")] = "lora",
    rank: Annotated[int | None, typer.Option(help="Of the adapter. [default: 8]")] = None,
    alpha: Annotated[float | None, typer.Option(help="The adapter counts alpha/rank times. [default: 2 rank]")] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            help="Tensors to adapt or train: names as attn_q, patterns, or all. [default: attention; full: all]"
        ),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Share of the adapter's inputs that is dropped. [default: 0]")
    ] = None,
    rslora: Annotated[bool, typer.Option("--rslora", help="Count alpha/sqrt(rank) times instead.")] = False,
    lora: Annotated[
        str | None,
        typer.Option(
            help="Start from the weights of this adapter (.gguf, or a PEFT folder); optimiser, schedule and order of"
            " rows begin anew. --out may name it again."
        ),
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens per row. [default: 512, or the model's]")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per step.")] = 4,
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Rows computed at a time. [default: about 512 tokens]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows. [default: 1]")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, in place of epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest rate. [default: 2e-4; full 2e-5]")] = None,
    schedule: Annotated[str, typer.Option(help="cosine, linear or constant.")] = "cosine",
    warmup: Annotated[float, typer.Option(help="Share of the steps in which the rate grows.")] = 0.03,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 0.0,
    val_split: Annotated[
        float | None, typer.Option(help="Share of the rows to validate on. [default: 0.05, at most 100 rows]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the adapter, the split, the order of the rows and dropout.")] = 0,
    threads: Threads = None,
    train_dtype: Annotated[str | None, typer.Option(help="f32: quantised and half tensors train as copies.")] = None,
    text_key: TextKey = None,
    prompt_key: PromptKey = None,
    completion_key: CompletionKey = None,
    messages_key: MessagesKey = None,
    as_chat: AsChat = False,
    chat_template: Template = None,
    loss_on: LossOn = None,
    skip_bad_lines: SkipBadLines = False,
    parallel: Parallel = None,
    exchange: Exchange = None,
    out: Annotated[
        str | None,
        typer.Option(help="FILE.gguf, or for an adapter a folder (PEFT). [default: adapter.gguf; full model.gguf]"),
    ] = None,
    json: Json = False,
) -> int:
    """Fine-tune a GGUF model on text, and save the adapter (or with --method full the model).

    What trains and how much memory it needs is said before anything runs; on Ctrl-C, SIGTERM or SIGHUP the work so
    far is saved.
    """
    ranks = join(parallel, exchange)
    for name, value in (
        ("rank", rank), ("context", context), ("batch-size", batch_size), ("micro-batch-size", micro_batch_size),
        ("epochs", epochs), ("steps", steps), ("threads", threads),
    ):  # fmt: skip
        need_whole(name, value)
    need_whole("seed", seed, 0)
    need_rate("lr", lr)
    need_rate("alpha", alpha)
    for name, share in (("dropout", dropout), ("warmup", warmup), ("val-split", val_split)):
        need_share(name, share)
    need_one_of("method", method, ("lora", "full"))
    need_place("out", out)
    need_one_of("schedule", schedule, ("cosine", "linear", "constant"))
    need_one_of("train-dtype", train_dtype, ("f32",))
    options = data_options(
        text_key, prompt_key, completion_key, messages_key, as_chat, chat_template, loss_on, skip_bad_lines
    )
    from ..base.errors import SettingError

    if epochs is not None and steps is not None:
        raise SettingError(f"--epochs {epochs} --steps {steps}: need one of them")
    place = out or ("adapter.gguf" if method == "lora" else "model.gguf")
    settings = {
        "context": context, "batch_size": batch_size, "micro_batch_size": micro_batch_size, "epochs": epochs,
        "steps": steps, "lr": lr or (2e-4 if method == "lora" else 2e-5), "schedule": schedule, "warmup": warmup,
        "weight_decay": weight_decay, "val_split": val_split, "seed": seed, "threads": threads,
        "parallel": ranks, "exchange": exchange or "ordered",
    }  # fmt: skip
    made = {"rank": rank, "alpha": alpha, "dropout": dropout, "rslora": rslora}
    inputs = [model, data] if chat_template is None else [model, data, chat_template]
    with contextlib.ExitStack() as claimed:
        run, planned = _prepare(
            inputs, place, (method, targets, train_dtype, lora, seed), made, settings, options, claimed
        )
        heed_signals()
        return _train(run, planned, data, place, json)


def _prepare(
    inputs: list[str], place: str, adapter: tuple[Any, ...], made: dict[str, Any], settings: dict[str, Any],
    options: dict[str, Any], claimed: contextlib.ExitStack,
) -> tuple[Run, MemoryPlan]:  # fmt: skip
    """Everything up to the first step: read, planned, announced; what cannot be is refused. inputs: the files that are
    read, first the model, then the data. The place to write is claimed until `claimed` is closed."""
    from ..files import claim
    from ..llm.finetune import Run
    from ..llm.lora import files_of_adapter
    from ..llm.model import load
    from ..parallel.agree import agreed, is_root

    ranks = settings["parallel"]
    model, data, *_ = inputs
    with agreed(ranks):
        if is_root(ranks):
            _check_place(place, adapter[0], *inputs)
            is_folder = Path(place).suffix == ""
            names = [file.name for file in files_of_adapter(place)] if is_folder else []
            claimed.enter_context(claim(place, is_folder, names))
        loaded = load(model)
        given: Any = adapter_for(loaded, *adapter, **made)
    run = Run(loaded, data, given, data_options=options, **settings)
    say(f"{model}: {loaded.config}")
    for report in run.data.reports:
        say(str(report))
    _announce(run)
    if adapter[3] is not None:
        say(f"a new run from the weights of {adapter[3]}: optimiser, schedule and order of rows begin anew")
    run.prepare()
    planned = run.memory()
    columns([(f"  {name}", text) for name, text in planned.lines()], sys.stderr)
    with agreed(ranks):
        planned.check()
    return run, planned


def _check_place(place: str, method: str, *inputs: str) -> None:
    """That what is trained can be written there and replaces none of the inputs, before it is trained."""
    from ..base.errors import SettingError
    from ..files import check_target, refuse_input
    from ..llm.lora import files_of_adapter

    path = Path(place)
    if path.suffix != ".gguf" and (path.suffix or method == "full"):
        need = "FILE.gguf" if method == "full" else "FILE.gguf (for llama.cpp) or a folder (for PEFT)"
        raise SettingError(f"--out {place}: need {need}")
    for file in files_of_adapter(path):
        refuse_input(file, *inputs)
        if file.parent.is_dir():
            check_target(file)


def _announce(run: Run) -> None:
    """Which tensors train, which do not, and how."""
    from ..train.display import plural

    say(run.table)
    say(
        f"{plural(run.steps_total, 'step')} of {plural(run.batch_size, 'row')} of {run.context} tokens"
        f" ({run.micro_batch_size} at a time); {plural(len(run.val_rows), 'row')} for validation; rate "
        f"{run.settings.lr:g}, {run.settings.schedule}; seed {run.settings.seed}"
    )


def _train(run: Run, planned: MemoryPlan, data: str, place: str, json: bool) -> int:
    from ..base.errors import GradloomError, TrainError
    from ..train.display import duration, rate

    before = resident_peak()
    try:
        run.train()
    except Exception as error:  # a loss that is not finite, a model file that changed: what was trained is not lost
        if not run.steps:
            if isinstance(error, TrainError):
                raise type(error)(f"{error}; this was before the first step was done, and nothing is saved") from None
            raise
        kept = f"what was trained before it is in {place}"
        try:
            with uninterrupted():
                run.save(place)
        except GradloomError as another:
            kept = f"what was trained before it cannot be saved: {another}"
        raise with_more(error, kept) from None
    if run.interrupted and not run.steps:
        say("there is nothing to save yet")
        return exit_code(run.interruption)
    with uninterrupted():
        run.save(place)
    if run.interrupted:
        say(f"what was trained so far is in {place}")
    report = run.report | {"data_file": data, "out": place}
    report |= {"resident_before_bytes": before, "planned_total_bytes": planned.total}
    lines = []
    for name, key in (("before", "val_loss_before"), ("training", "train_loss"), ("validation", "val_loss")):
        if key in report:
            spread = report[f"{key}_unc"]
            lines.append((name, f"loss {report[key]:.4f}" + ("" if math.isnan(spread) else f" +- {spread:.4f}")))
    speed = report["tokens_per_second"] or 0
    lines.append(("time", f"{duration(run.seconds)}, {rate(speed)} tokens/s"))
    memory = f"{show_bytes(report['peak_bytes'])} at most; {show_bytes(planned.total)} of them planned"
    lines.append(("memory", f"{memory}, {show_bytes(before)} held before the first step"))
    lines.append(("saved", place))
    lines.append(("use it", _use(run, place)))
    columns(lines, sys.stderr if json else None)
    if json and not is_quiet():
        print(json_text(report))
    return exit_code(run.interruption) if run.interrupted else 0


def _use(run: Run, place: str) -> str:
    model = shlex.quote(run.model.path)
    if run.method == "full":
        return f'gradloom generate {shlex.quote(place)} --prompt "..."'
    return f'gradloom generate {model} --lora {shlex.quote(place)} --prompt "..."'
