"""gradloom embed: embeddings of texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_facts import EMBED
from ..base.sample_options import DataOptions
from ..base.settings import PRECISIONS
from .common import Device, Precision, Threads, json_text, need_one_of, need_whole, print_report
from .config import with_options
from .csv_text import csv_line
from .language import Lora, load_adapter
from .parser import Argument, Option
from .run_settings import check_device

if TYPE_CHECKING:
    import numpy as np


HELP = """Compute the embedding of each text, as a line of numbers separated by commas.

An embedding is a row of norm 1: the product of two of them is their cosine. --lora is an adapter of finetune with
--objective embed; a model of another program, such as Qwen3-Embedding, needs none.
"""


@with_options(DataOptions)
def embed(
    model: Annotated[str, Argument(help="A GGUF model or a Hugging Face folder.")],
    data: Annotated[
        str,
        Argument(help="A .csv, .jsonl or .json file with a column or key text, or a .txt with a text in each line."),
    ],
    out: Annotated[
        str | None, Option(help="File to write, .npy (f32 [texts, width]) or .csv. [default: stdout]")
    ] = None,
    lora: Lora = None,
    pooling: Annotated[
        str | None,
        Option(help="mean: of all tokens; last: the end of text. [default: that of the adapter or model, else last]"),
    ] = None,
    width: Annotated[int | None, Option(help="Numbers of an embedding to keep, the first ones. [default: all]")] = None,
    context: Annotated[int | None, Option(help="Most tokens of a text. [default: the model's context]")] = None,
    threads: Threads = None,
    precision: Precision = None,
    device: Device = None,
    json: Annotated[
        bool, Option("--json", help="Print one JSON object, with the embeddings in it where no file is written.")
    ] = False,
    **reading: Any,
) -> int:
    """Run the command; returns its exit code."""
    need_one_of("precision", precision, PRECISIONS)
    need_one_of("pooling", pooling, ("mean", "last"))
    need_whole("width", width)
    need_whole("context", context)
    need_whole("threads", threads)
    check_device(device)
    if out is not None:
        _check_out(out, *([model] if lora is None else [model, lora]), data)
    from ..llm.embed import embeddings
    from ..llm.model import load
    from ..llm.text_rows import text_rows

    loaded = load(model)
    adapter = load_adapter(loaded, lora)
    rows = text_rows(data, reading.pop("encoding"))
    options = {"precision": precision, "device": device, "threads": threads}
    found, made, report = embeddings(loaded, rows, adapter, pooling, width, context, None, reading, options)
    notes = [text for text in str(report).split("\n")[1:] if text.startswith(("cut", "names of"))]
    for note in notes:
        print_report(note)
    print_report(f"{len(found):,} embeddings of {found.shape[1]:,} numbers, pooling {made.pooling}")
    if out is not None:
        _write(out, found)
        print_report(f"written: {out}")
    elif not json:
        sys.stdout.writelines(_csv(found))
    if json:
        answer: dict[str, Any] = {
            "model": model, "data": data, "lora": lora, "rows": len(found), "width": found.shape[1],
            "pooling": made.pooling, "out": out, "notes": notes,
        }  # fmt: skip
        answer |= {"embeddings": found.tolist()} if out is None else {}
        print(json_text(EMBED, answer))
    return 0


def _check_out(out: str, *inputs: str) -> None:
    """An error for a file that cannot be written, has another ending, or is one of the inputs."""
    from ..base.errors import SettingError
    from ..files import check_target, refuse_input
    from .model import files_of_model

    refuse_input(out, *(file for path in inputs[:-1] for file in files_of_model(path)), inputs[-1])
    if not out.lower().endswith((".npy", ".csv")):
        raise SettingError(setting="out", seen=out, need="FILE.npy or FILE.csv")
    check_target(out)


def _write(out: str, found: np.ndarray) -> None:
    import numpy as np

    from ..files import atomic_write

    with atomic_write(out) as file:
        if out.lower().endswith(".npy"):
            np.save(file, found)
        else:
            file.writelines(line.encode() for line in _csv(found))


def _csv(found: np.ndarray) -> Iterator[str]:
    """A line for each text, with the fewest digits that read back the same f32."""
    for row in found:
        yield csv_line([*map(str, row)])
