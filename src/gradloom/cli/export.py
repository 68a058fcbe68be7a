"""gradloom export: a model of gradloom fit as an ONNX file."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

from ..base.json_tables import EXPORT
from .common import Json, columns, json_text
from .parser import Argument, Option

HELP = """Write a model that fit saved, with its preprocessing, as an ONNX file for other programs.

The inputs of the file are the columns of the table (or an array, or pixels), its outputs the predictions and the
probabilities of classes. Requires the package onnx: pip install 'gradloom[onnx]'.
"""


def export(
    model: Annotated[str, Argument(help="The file or folder of a model that fit saved.")],
    out: Annotated[str, Option("--out", "-o", help="ONNX file to write, such as model.onnx.")],
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..files import check_target, refuse_input
    from ..interchange import export_onnx
    from .model import files_of_model, load_model

    begin = time.perf_counter()
    check_target(out)
    refuse_input(out, *files_of_model(model))
    made = export_onnx(load_model(model), out)
    size = os.path.getsize(out)
    columns([
        ("model", model),
        ("written", f"{out}: {size:,} bytes"),
        *((f"input {name}", _shown(*fact)) for name, fact in made.inputs.items()),
        *((f"output {name}", _shown(*fact)) for name, fact in made.outputs.items()),
        *(("note", note) for note in made.notes),
    ])  # fmt: skip
    if json:
        facts: dict[str, Any] = {"model": model, "out": out, "bytes": size}
        for key, several in (("inputs", made.inputs), ("outputs", made.outputs)):
            facts[key] = {name: {"dtype": kind, "shape": list(shape)} for name, (kind, shape) in several.items()}
        print(json_text(EXPORT, facts | {"notes": list(made.notes), "seconds": time.perf_counter() - begin}))
    return 0


def _shown(kind: str, shape: tuple[int | str, ...]) -> str:
    return f"{kind} [{', '.join(map(str, shape))}]"
