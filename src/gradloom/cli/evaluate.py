"""gradloom evaluate: the perplexity of a model on a text, with its uncertainty."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import NonFiniteError, SettingError
from ..base.json_documents import EVALUATE
from ..base.memory import resident_peak
from ..base.sample_options import DATA_HELP, DataOptions
from ..base.settings import PRECISIONS
from .common import (
    Device,
    GpuLayers,
    GpuMemory,
    Json,
    MemoryLimit,
    Precision,
    Threads,
    columns,
    exit_code,
    json_text,
    need_one_of,
    need_whole,
    print_report,
    to_paste,
    warn,
)
from .config import with_options
from .language import Lora, data_options, load_adapter
from .parser import Argument, Option
from .progress import ProgressLine
from .run_settings import check_places, layers_report, shown_layers

if TYPE_CHECKING:
    from ..llm.evaluate import Perplexity
    from ..llm.rows import Rows


HELP = """Measure the perplexity: exp of the mean -log p of the tokens that count, with its standard error."""


@with_options(DataOptions)
def evaluate(
    model: Annotated[str, Argument(help="A GGUF model or a Hugging Face folder.")],
    data: Annotated[str, Argument(help=DATA_HELP)],
    lora: Lora = None,
    context: Annotated[int | None, Option(help="Tokens per window. [default: 512, or the model's]")] = None,
    batch_size: Annotated[int | None, Option(help="Windows at a time. [default: about 512 tokens]")] = None,
    precision: Precision = None,
    device: Device = None,
    gpu_layers: GpuLayers = None,
    gpu_memory: GpuMemory = None,
    memory: MemoryLimit = None,
    threads: Threads = None,
    json: Json = False,
    **reading: Any,
) -> int:
    """Run the command; returns its exit code."""
    for name, value in (("context", context), ("batch_size", batch_size), ("threads", threads)):
        need_whole(name, value)
    need_one_of("precision", precision, PRECISIONS)
    from .info_model import is_saved_model

    if is_saved_model(model):
        use = to_paste(["gradloom", "predict", model, data])
        seen = f"{model}: is neither a GGUF model nor a Hugging Face folder"
        text = f"{seen}; for a model of gradloom fit, {use} prints its scores"
        raise SettingError(text, setting="model", seen=model)
    layers = check_places("evaluate", device, gpu_layers, gpu_memory, memory)
    options = data_options(reading)
    from ..llm.data_files import test_file
    from ..llm.evaluate import evaluate as measure
    from ..llm.model import load
    from ..llm.rows import read_rows
    from ..train.display import duration, rate

    loaded = load(model)
    adapter = load_adapter(loaded, lora)
    rows = read_rows(loaded, test_file(data), context, 0.0, adapter=adapter, **options)
    print_report(f"{model}: {loaded.config}")
    for report in rows.reports:
        print_report(str(report))
    shown = _ScoreDisplay()
    code = 0
    try:
        measured = measure(
            loaded, rows, adapter, batch_size=batch_size, on_progress=shown.show, on_predicted=shown.predict,
            precision=precision, device=device, gpu_layers=layers, gpu_memory=gpu_memory,
            memory=memory, threads=threads,
        )  # fmt: skip
    except KeyboardInterrupt as stopped:
        if shown.so_far is None:
            warn("interrupted")
            return exit_code(stopped)
        measured, code = shown.so_far, exit_code(stopped)
        warn(f"interrupted after {measured.rows:,} of {len(rows.tokens):,} rows")
    _check_defined(measured, loaded.config.vocab_size)
    result = {"model": model, "data": data, "lora": lora, **_numbers(measured, rows, layers, code != 0)}
    if shown.predicted is not None:
        result["predicted_seconds"] = round(shown.predicted, 1)
    if layers is not None:
        print_report(shown_layers(measured.layers))
    columns(
        [
            ("perplexity", f"{measured.perplexity:.4f}{_spread(measured.perplexity_unc, 4)}"),
            ("loss", f"{measured.nll:.5f}{_spread(measured.nll_unc, 5)} nats per token, {measured.tokens:,} tokens"),
            ("time", f"{duration(measured.seconds)}, {rate(_speed(measured, rows))} tokens/s"),
        ],
        sys.stderr if json else None,
    )
    if json:
        print(json_text(EVALUATE, result))
    return code


def _check_defined(measured: Perplexity, vocab_size: int) -> None:
    """NonFiniteError for a loss whose exp is beyond f64."""
    if math.isinf(measured.perplexity):
        uniform = math.log(vocab_size)
        raise NonFiniteError(
            f"perplexity: exp of the loss, {measured.nll:g} nats per token, is beyond f64; need a loss of about "
            f"{uniform:.3g} or less: check the weights and the adapter"
        )


def _speed(measured: Perplexity, rows: Rows) -> float:
    """Tokens per second."""
    return measured.rows * rows.tokens.shape[1] / max(measured.seconds, 1e-9)


def _numbers(measured: Perplexity, rows: Rows, layers: int | str | None, interrupted: bool) -> dict[str, Any]:
    """The measured quantities, as --json prints them."""
    return {
        "perplexity": measured.perplexity, "perplexity_unc": measured.perplexity_unc, "test_loss": measured.nll,
        "test_loss_unc": measured.nll_unc, "tokens": measured.tokens, "rows": measured.rows,
        "context": int(rows.tokens.shape[1]), "seconds": round(measured.seconds, 3),
        "tokens_per_second": round(_speed(measured, rows), 1), "peak_bytes": resident_peak(),
        "interrupted": interrupted,
    } | layers_report(layers, measured.layers)  # fmt: skip


def _spread(uncertainty: float, digits: int) -> str:
    """ " +- 0.1"; "" where it is not defined."""
    return "" if math.isnan(uncertainty) else f" +- {uncertainty:.{digits}f}"


class _ScoreDisplay:
    """Shows the perplexity so far."""

    def __init__(self) -> None:
        self.line, self.began = ProgressLine(), time.perf_counter()
        self.so_far: Perplexity | None = None
        self.predicted: float | None = None  # seconds

    def predict(self, seconds: float) -> None:
        from ..train.duration import approximate

        self.predicted = seconds
        print_report(f"about {approximate(seconds)}")

    def show(self, done: int, rows: int, so_far: Perplexity) -> None:
        from ..train.display import duration

        self.so_far = so_far
        left = duration((time.perf_counter() - self.began) / done * (rows - done))
        self.line.show(f"{done:,} of {rows:,} rows  {so_far}  {left} left", done == rows)
