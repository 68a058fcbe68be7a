"""gradloom evaluate: the perplexity of a model on a text, with its uncertainty."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..base.memory import resident_peak
from ..base.settings import PRECISIONS
from .common import (
    Device,
    GpuLayers,
    GpuMemory,
    Json,
    Precision,
    Threads,
    columns,
    exit_code,
    json_text,
    need_one_of,
    need_whole,
    say,
)
from .language import (
    DATA_HELP,
    AsChat,
    CompletionKey,
    Lora,
    LossOn,
    MessagesKey,
    PromptKey,
    SkipBadLines,
    Special,
    Template,
    TextKey,
    data_options,
    load_adapter,
)
from .progress import ProgressLine
from .run_settings import check_places, layers_told, shown_layers

if TYPE_CHECKING:
    from ..llm.evaluate import Perplexity


def evaluate(
    model: Annotated[str, typer.Argument(help="A GGUF model.")],
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    lora: Lora = None,
    context: Annotated[int | None, typer.Option(help="Tokens per window. [default: 512, or the model's]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows at a time. [default: about 512 tokens]")] = None,
    precision: Precision = None,
    device: Device = None,
    gpu_layers: GpuLayers = None,
    gpu_memory: GpuMemory = None,
    threads: Threads = None,
    text_key: TextKey = None,
    prompt_key: PromptKey = None,
    completion_key: CompletionKey = None,
    messages_key: MessagesKey = None,
    as_chat: AsChat = False,
    chat_template: Template = None,
    loss_on: LossOn = None,
    skip_bad_lines: SkipBadLines = False,
    special: Special = False,
    json: Json = False,
) -> int:
    """Measure the perplexity: exp of the mean -log p of the tokens that count, with its standard error."""
    for name, value in (("context", context), ("batch-size", batch_size), ("threads", threads)):
        need_whole(name, value)
    need_one_of("precision", precision, PRECISIONS)
    layers = check_places("evaluate", device, gpu_layers, gpu_memory)
    options = data_options(
        text_key, prompt_key, completion_key, messages_key, as_chat, chat_template, loss_on, skip_bad_lines, special
    )
    from ..llm.data_files import test_file
    from ..llm.evaluate import evaluate as measure
    from ..llm.model import load
    from ..llm.rows import read_rows
    from ..train.display import duration, rate

    loaded = load(model)
    adapter = load_adapter(loaded, lora)
    rows = read_rows(loaded, test_file(data), context, 0.0, adapter=adapter, **options)
    say(f"{model}: {loaded.config}")
    for report in rows.reports:
        say(str(report))
    shown = _ScoreDisplay()
    code = 0
    try:
        measured = measure(
            loaded,
            rows,
            adapter,
            batch_size=batch_size,
            on_progress=shown.heard,
            precision=precision,
            device=device,
            gpu_layers=layers,
            gpu_memory=gpu_memory,
            threads=threads,
        )
    except KeyboardInterrupt as stopped:
        if shown.so_far is None:
            say("interrupted")
            return exit_code(stopped)
        measured, code = shown.so_far, exit_code(stopped)
        say(f"interrupted after {measured.rows:,} of {len(rows.tokens):,} rows")
    speed = measured.rows * rows.tokens.shape[1] / max(measured.seconds, 1e-9)
    result: dict[str, Any] = {
        "model": model, "data": data, "lora": lora, "perplexity": measured.perplexity,
        "perplexity_unc": measured.perplexity_unc, "test_loss": measured.nll, "test_loss_unc": measured.nll_unc,
        "tokens": measured.tokens, "rows": measured.rows, "context": int(rows.tokens.shape[1]),
        "seconds": round(measured.seconds, 3), "tokens_per_second": round(speed, 1), "peak_bytes": resident_peak(),
        "interrupted": code != 0,
    }  # fmt: skip
    if layers is not None:
        say(shown_layers(measured.layers))
    result |= layers_told(layers, measured.layers)
    columns(
        [
            ("perplexity", f"{measured.perplexity:.4f} +- {measured.perplexity_unc:.4f}"),
            ("loss", f"{measured.nll:.5f} +- {measured.nll_unc:.5f} nats per token, {measured.tokens:,} tokens"),
            ("time", f"{duration(measured.seconds)}, {rate(speed)} tokens/s"),
        ],
        sys.stderr if json else None,
    )
    if json:
        print(json_text(result))
    return code


class _ScoreDisplay:
    """Shows the perplexity so far."""

    def __init__(self) -> None:
        self.line, self.began = ProgressLine(), time.perf_counter()
        self.so_far: Perplexity | None = None

    def heard(self, done: int, rows: int, so_far: Perplexity) -> None:
        from ..train.display import duration

        self.so_far = so_far
        left = duration((time.perf_counter() - self.began) / done * (rows - done))
        self.line.show(f"{done:,} of {rows:,} rows  {so_far}  {left} left", done == rows)
