"""gradloom compare: the predictions of a model here and in another program."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_documents import COMPARE
from ..base.sample_options import DATA_HELP, DataOptions
from .common import Json, Threads, columns, json_text, need_one_of, need_whole, print_report
from .config import with_options
from .language import Lora, data_options, load_adapter
from .parser import Argument, Option
from .progress import ProgressLine

if TYPE_CHECKING:
    from ..llm.compare import Comparison

HELP = """Compare a model's predictions here with those of another program, token by token.

Prints the loss of both, the mean of the paired differences with its standard error, the KL divergence, and how often
both find the same token likeliest. Both run on the CPU. llama.cpp comes with the package llama-cpp-python; keys and
values are f32, without flash attention. transformers requires torch; weights are f32, attention is eager.
"""


@with_options(DataOptions)
def compare(
    model: Annotated[str, Argument(help="A GGUF model or a Hugging Face folder.")],
    data: Annotated[str | None, Argument(help=f"{DATA_HELP} [default: eight short texts of gradloom]")] = None,
    program: Annotated[
        str | None,
        Option(
            "--with",
            help="The other program: llama.cpp, or transformers for a folder. [default: the one that reads MODEL]",
            metavar="PROGRAM",
        ),
    ] = None,
    lora: Lora = None,
    context: Annotated[int | None, Option(help="Tokens per row. [default: 512, or the model's]")] = None,
    tokens: Annotated[int, Option(help="Compare the first N tokens that count.", metavar="N")] = 4096,
    layers: Annotated[
        bool, Option("--layers", help="Also compare the values behind each block, and name the first that differs.")
    ] = False,
    threads: Threads = None,
    json: Json = False,
    **reading: Any,
) -> int:
    """Run the command; returns its exit code."""
    for name, value in (("context", context), ("tokens", tokens), ("threads", threads)):
        need_whole(name, value)
    from ..llm.compare import PROGRAMS, program_of, rows_of
    from ..llm.compare import compare as measure
    from ..llm.model import load

    need_one_of("program", program, tuple(PROGRAMS))
    options = data_options(reading)
    loaded = load(model)
    other = program_of(loaded, program)
    described = other.describe()
    adapter = load_adapter(loaded, lora)
    rows = rows_of(loaded, data, adapter, context, tokens, options)
    print_report(f"{model}: {loaded.config}")
    for report in rows.reports if data is not None else ():
        print_report(str(report))
    if data is None:
        print_report("data: eight short texts of gradloom (prose, numbers, code, other scripts)")
    print_report(described)
    found = measure(
        loaded, rows, adapter, program=other.name, tokens=tokens, layers=layers, threads=threads,
        on_progress=_Progress().show,
    )  # fmt: skip
    columns(_lines(found), sys.stderr if json else None)
    if json:
        print(json_text(COMPARE, {"model": model, "data": data, "lora": lora} | _numbers(found, rows.tokens.shape[1])))
    return 0


def _lines(found: Comparison) -> list[tuple[str, str]]:
    from ..train.display import duration

    other = f"{found.other_ids:,} of {found.texts:,} texts have other ids in {found.program}"
    ids = other if found.other_ids else f"the same ids in both programs, {found.texts:,} texts"
    lines = [
        ("tokenizer", ids),
        ("loss", f"{found.nll:.6f} here, {found.other_nll:.6f} in {found.program}, {found.tokens:,} tokens"),
        ("difference", f"{found.difference:+.2e}{_spread(found.difference_unc)} nats per token"),
        ("KL", f"{found.kl:.2e}{_spread(found.kl_unc)} nats, at most {found.kl_max:.2e}"),
        ("likeliest", f"the same token at {100 * found.same_top:.2f} % of the positions"),
    ]
    if found.layers:
        worst = max(range(len(found.layers)), key=found.layers.__getitem__)
        first = found.first_layer
        where = "none differs by more than 1e-04" if first is None else f"the first above 1e-04 is blk.{first}"
        sizes = f"blk.0 {found.layers[0]:.1e} of its size, at most {found.layers[worst]:.1e} (blk.{worst})"
        lines.append(("layers", f"{sizes}; {where}"))
    times = f"{duration(found.seconds)} here, {duration(found.other_seconds)} in {found.program}"
    return [*lines, ("time", times)]


def _spread(uncertainty: float) -> str:
    """ " +- 0.1"; "" where it is not defined."""
    return "" if math.isnan(uncertainty) else f" +- {uncertainty:.1e}"


def _numbers(found: Comparison, context: int) -> dict[str, Any]:
    """The measured quantities, as --json prints them."""
    numbers: dict[str, Any] = {
        "with": found.program, "version": found.version, "test_loss": found.nll, "other_loss": found.other_nll,
        "difference": found.difference, "kl": found.kl, "kl_max": found.kl_max, "same_top": found.same_top,
        "tokens": found.tokens, "texts": found.texts, "texts_with_other_ids": found.other_ids, "context": context,
        "seconds": round(found.seconds, 3), "other_seconds": round(found.other_seconds, 3),
    }  # fmt: skip
    spreads = {"difference_unc": found.difference_unc, "kl_unc": found.kl_unc}
    numbers |= {name: value for name, value in spreads.items() if not math.isnan(value)}
    if found.layers is not None:
        numbers |= {"layers": list(found.layers), "first_layer": found.first_layer}
    return numbers


class _Progress:
    """Shows the tokens compared so far."""

    def __init__(self) -> None:
        self.line, self.began = ProgressLine(), time.perf_counter()

    def show(self, done: int, tokens: int) -> None:
        from ..train.display import duration

        left = duration((time.perf_counter() - self.began) / max(done, 1) * (tokens - done))
        self.line.show(f"{done:,} of {tokens:,} tokens  {left} left", done == tokens)
