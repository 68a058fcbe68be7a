"""gradloom quantize: a model as a GGUF file of another type."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import SettingError
from ..base.json_facts import QUANTIZE
from .common import Json, Threads, columns, json_text, llama_server, need_whole, to_paste, warn
from .parser import Argument, Option
from .progress import change_line

if TYPE_CHECKING:
    from ..llm.quantize import Quantized

HELP = """Write a model in another type: smaller, and rounded.

Matrices are converted, as llama-quantize does without an importance matrix; norms, biases and other small tensors keep
their type. The output matrix (the embedding if it is also that) becomes q6_k, in q8_0 files q8_0. Rows that are no
whole blocks of the type become one of smaller blocks or f16, which stderr reports.
"""


def quantize(
    model: Annotated[str, Argument(help="A GGUF file of any architecture, or a Hugging Face folder.")],
    out: Annotated[str, Option("--out", "-o", help="GGUF file to write.")],
    type: Annotated[
        str,
        Option(
            help="f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, q3_k_l, q3_k_m, "
            "q3_k_s or q2_k."
        ),
    ] = "q4_k_m",
    tensor_type: Annotated[
        list[str] | None,
        Option(
            "--tensor-type",
            metavar="PATTERN=TYPE",
            help="Type of tensors whose name matches (* ? [abc]), such as 'output.weight=q8_0'; may be repeated, the "
            "first match counts.",
        ),
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..files import check_target, claim
    from ..llm.quantize import quantize as quantize_file

    begin = time.perf_counter()
    tty = sys.stderr.isatty()
    need_whole("threads", threads)
    rules = _rules(tensor_type or [])
    try:
        check_target(out)
        with claim(out, is_folder=False):
            done = quantize_file(
                model, out, type, tensor_type=rules, threads=threads, progress=_show if tty else None
            )  # fmt: skip
    finally:
        if tty:
            change_line("")
    for note in done.notes:
        warn(note)
    columns(_lines(model, out, done))
    if json:
        result: dict[str, Any] = {"model": model, "out": out, "type": done.type, "bytes": done.bytes}
        result |= {"tensor_bytes_before": done.old_bytes, "tensor_bytes": done.new_bytes, "types": done.kinds}
        result |= {"bits_per_weight": done.bits_per_weight, "rmse": done.rmse, "rms": done.rms, "notes": done.notes}
        result["tensors"] = [
            {"name": t.name, "type_before": t.old, "type": t.new, "bytes_before": t.old_bytes, "bytes": t.new_bytes}
            | {"rmse": t.rmse, "rms": t.rms}
            for t in done.tensors
        ]
        print(json_text(QUANTIZE, result | {"seconds": time.perf_counter() - begin}))
    return 0


def _lines(model: str, out: str, done: Quantized) -> list[tuple[str, str]]:
    from ..base.memory import show_bytes

    kinds = ", ".join(f"{kind} {count}" for kind, count in done.kinds.items())
    share = f" ({done.rmse / done.rms:.2%} of the RMS of these numbers)" if done.rms else ""
    return [
        ("model", f"{model}: {show_bytes(done.old_bytes)} of tensors"),
        ("written", f"{out}: {done.type}, {done.bytes:,} bytes, tensors {kinds}"),
        ("size", f"{show_bytes(done.new_bytes)} of tensors, {done.bits_per_weight:.2f} bits per weight"),
        ("error", f"RMSE {done.rmse:.3g} of converted tensors{share}"),
        *_uses(out),
    ]


def _uses(out: str) -> list[tuple[str, str]]:
    """Commands for a language model; for another file its contents."""
    from ..files.gguf import open_gguf
    from ..llm.families import find

    if find(open_gguf(out).metadata.get("general.architecture")) is None:
        return [("contents", to_paste(["gradloom", "info", out]))]
    return [("use it", to_paste(["gradloom", "evaluate", out]) + " texts.txt"), ("elsewhere", llama_server(out))]


def _rules(given: list[str]) -> dict[str, str]:
    """PATTERN=TYPE, or SettingError."""
    rules: dict[str, str] = {}
    for one in given:
        pattern, equals, kind = one.rpartition("=")
        if not (pattern and equals and kind) or pattern in rules:
            need = "PATTERN=TYPE, each pattern once, such as 'output.weight=q8_0'"
            raise SettingError(setting="tensor_type", seen=one, need=need)
        rules[pattern] = kind.lower()
    return rules


def _show(name: str, share: float) -> None:
    change_line(f"{share:4.0%}  {name}")
