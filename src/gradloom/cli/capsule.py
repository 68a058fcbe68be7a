"""gradloom capsule: save one step of a run as a file that runs elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from ..base.json_facts import CAPSULE
from ..base.memory import show_bytes
from ..base.terminal import plural
from .common import Json, Threads, columns, json_text, need_place
from .parser import Argument, Option
from .rebuilt import rebuilt

HELP = """Save one step of a fit or a finetune: its program, its batch, weights and moments before it, and its results.

The step is computed again, as by gradloom rebuild; a step that is not finite is saved, too. gradloom replay runs the
file, here or on another machine. Nothing in the folder of the run changes.
"""


def capsule(
    run: Annotated[str, Argument(help="The folder of a run, with its settings.toml.")],
    step: Annotated[int, Option(help="The step, from 1.", metavar="N")],
    out: Annotated[
        str | None, Option("--out", "-o", help="The file. [default: step-N.capsule]", metavar="FILE")
    ] = None,
    data: Annotated[
        bool, Option("--data/--no-data", help="--no-data: names, shapes and digests alone; it is planned and not run.")
    ] = True,
    threads: Threads = None,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..files import check_target
    from ..runs.capsules import save
    from ..train.rebuild import CapsuleOf

    need_place("out", out)
    target = out or f"step-{step}.capsule"
    check_target(target)
    recorder = CapsuleOf(run=os.path.basename(os.path.abspath(run)), step=step)
    made = rebuilt(run, step, [recorder], threads, target)
    found = recorder.capsule()
    save(target, found, data)
    steps = sum(len(call.outcome.steps) for call in found.calls)
    size, start = os.path.getsize(target), made.result.from_step
    error = next((call.outcome.error for call in found.calls if call.outcome.error), None)
    lines = [
        (
            "step",
            f"{step}: {plural(len(found.calls), 'program')} run, {steps} instructions; from step {start} of the run",
        )
    ]
    lines += [] if error is None else [("stopped", error)]
    columns([*lines, ("saved", f"{target}, {show_bytes(size)}")], sys.stderr if json else None)
    if json:
        values = {"run": run, "step": step, "from_step": start, "out": target, "bytes": size, "calls": len(found.calls)}
        print(json_text(CAPSULE, values | {"steps": steps, "data": data, "error": error}))
    return 0
