"""gradloom rebuild: compute one step of a run again."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from ..base.json_facts import REBUILD
from .common import Json, Threads, columns, json_text, need_place
from .parser import Argument, Option
from .rebuilt import rebuilt

if TYPE_CHECKING:
    from ..train.rebuild import Rebuilt

_ROWS = 12  # row numbers that are printed

HELP = """Compute one step of a fit or a finetune again, from the checkpoint before it or from the start, to the bit.

Prints its batch (row numbers), loss and gradient norm, and can save weights and gradients. Nothing in the folder of
the run changes. The same bits require the instruction set and the version of the run.
"""


def rebuild(
    run: Annotated[str, Argument(help="The folder of a run, with its settings.toml.")],
    step: Annotated[int, Option(help="The step, from 1.", metavar="N")],
    out: Annotated[
        str | None,
        Option(
            "--out", "-o", help="Save weights after the step, and its gradients, as FILE.safetensors.", metavar="FILE"
        ),
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..base.errors import NonFiniteError, SettingError
    from ..files import check_target, save_arrays
    from ..train.rebuild import Gradients, Recorder, Weights

    need_place("out", out)
    recorders: list[Recorder] = []
    weights, gradients = Weights(), Gradients()
    if out is not None:
        if not out.endswith(".safetensors"):
            raise SettingError(setting="out", seen=out, need="FILE.safetensors")
        check_target(out)
        recorders = [weights, gradients]
    began = time.perf_counter()
    made = rebuilt(run, step, recorders, threads, out)
    if not made.is_done:
        raise NonFiniteError(f"{run}: step {step} is not finite; gradloom capsule saves it")
    result = made.result
    if out is not None:
        arrays = {f"weights.{name}": array for name, array in weights.arrays.items()}
        arrays |= {f"gradients.{name}": array for name, array in gradients.arrays.items()}
        save_arrays(out, arrays, {"run": run, "step": str(step), "loss": repr(result.loss)})
    seconds = time.perf_counter() - began
    columns(_lines(result, out, seconds), sys.stderr if json else None)
    if json:
        print(json_text(REBUILD, _values(run, result, out, seconds)))
    return 0


def _lines(result: Rebuilt, out: str | None, seconds: float) -> list[tuple[str, str]]:
    rows = result.rows.tolist()
    shown = ", ".join(map(str, rows[:_ROWS])) + (f", ... ({len(rows)} rows)" if len(rows) > _ROWS else "")
    start = f"the checkpoint of step {result.from_step}" if result.from_step else "the start"
    lines = [("step", f"{result.step} (epoch {result.epoch}), from {start}, {seconds:.1f} s"), ("rows", shown)]
    if result.skipped:
        lines.append(("loss", "not finite; the batch was skipped"))
    else:
        lines += [("loss", f"{result.loss:.9g}"), ("gradient", f"norm {result.grad_norm:.9g}")]
    return lines + ([] if out is None else [("saved", out)])


def _values(run: str, result: Rebuilt, out: str | None, seconds: float) -> dict[str, Any]:
    numbers = {"loss": result.loss, "grad_norm": result.grad_norm}
    return {
        "run": run, "step": result.step, "from_step": result.from_step, "epoch": result.epoch,
        "rows": result.rows.tolist(), "skipped": result.skipped, "out": out, "seconds": round(seconds, 3),
    } | {name: value for name, value in numbers.items() if math.isfinite(value)}  # fmt: skip
