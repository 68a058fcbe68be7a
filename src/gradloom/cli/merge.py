"""gradloom merge: a model with an adapter added to its weights, as a GGUF file of a chosen type, or as a folder."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_facts import MERGE
from ..base.terminal import plural
from .common import Json, columns, json_text, llama_server, to_paste, warn
from .parser import Argument, Option
from .progress import change_line

if TYPE_CHECKING:
    from ..llm.merge import Merged

HELP = """Add an adapter to the weights of its model, and write the sum as a model of its own.

Norms and biases stay f32. Rows that are no whole blocks of the type become f16, changed tensors whose own type
cannot be written become q8_0, which stderr reports.
"""


def merge(
    model: Annotated[str, Argument(help="The GGUF model or Hugging Face folder that the adapter was trained on.")],
    adapter: Annotated[str, Argument(help="A GGUF adapter, or a folder of PEFT.")],
    out: Annotated[str, Option("--out", "-o", help="GGUF file to write; for a Hugging Face folder also a new folder.")],
    type: Annotated[
        str | None,
        Option(help="f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0. [default: each tensor keeps its own]"),
    ] = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..files import check_target, claim
    from ..llm.merge import is_folder_of
    from ..llm.merge import merge as merge_files

    begin = time.perf_counter()
    tty = sys.stderr.isatty()
    try:
        with contextlib.ExitStack() as claimed:
            if not is_folder_of(model, out):  # a folder is claimed when it is written
                check_target(out)
                claimed.enter_context(claim(out, is_folder=False))
            done = merge_files(model, adapter, out, type, _show if tty else None)
    finally:
        if tty:
            change_line("")
    for note in done.notes:
        warn(note)
    kinds = ", ".join(f"{kind} {count}" for kind, count in done.kinds.items())
    lines = [
        ("model", model),
        ("adapter", f"{adapter}: {plural(len(done.changed), 'tensor')} changed"),
        ("written", f"{out}: {done.bytes:,} bytes, tensors {kinds}"),
        ("use it", _use(out, done)),
    ]
    only_here = os.path.isdir(out) or done.embedding is not None or done.has_head
    columns(lines if only_here else [*lines, ("elsewhere", llama_server(out))])
    if json:
        result: dict[str, Any] = {"model": model, "adapter": adapter, "out": out, "type": type, "bytes": done.bytes}
        result |= {"tensors": done.kinds, "changed": len(done.changed), "notes": done.notes}
        print(json_text(MERGE, result | {"seconds": time.perf_counter() - begin}))
    return 0


def _use(out: str, done: Merged) -> str:
    if done.has_head:
        return to_paste(["gradloom", "predict", out]) + " texts.csv"
    if done.embedding is None:
        return to_paste(["gradloom", "generate", out]) + ' --prompt "..."'
    pooling = ["--pooling", done.embedding.pooling] if os.path.isdir(out) else []  # which a folder does not state
    return to_paste(["gradloom", "embed", out, *pooling]) + " texts.csv"


def _show(name: str, share: float) -> None:
    change_line(f"{share:4.0%}  {name}")
