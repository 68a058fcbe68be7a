"""gradloom report: a page about runs."""

from __future__ import annotations

import os
import time
from typing import Annotated

from ..base.json_facts import REPORT
from .common import Json, json_text, need_place, print_report, warn
from .parser import Argument, Option

OUT = "report.html"

HELP = """Write a page about a run, or about several that are compared, as one HTML file that loads nothing.

Results with uncertainties, baseline, warnings; curves of loss, metrics, learning rate, gradient norm and time; sampled
texts. Of models of tables and images also confusion matrix, ROC, calibration or residuals, worst rows, and the
importance of the columns, computed now on the held-out rows of the run; that takes at most a minute. Of fine-tunings
the losses of tokens, or rewards, of validation samples. With --profile
the time of each op and line of a step, measured now on the data of the run, against the limits of this machine.
"""


def report(
    runs: Annotated[list[str], Argument(help="Folders of runs, or the models or adapters that they saved.")],
    out: Annotated[str, Option("--out", "-o", help="HTML file to write.", metavar="FILE")] = OUT,
    data: Annotated[
        str | None, Option(help="File of rows to measure models on, in place of the held-out rows of their runs.")
    ] = None,
    profile: Annotated[bool, Option("--profile", help="Time a step of each run now, for the section Time.")] = False,
    json: Json = False,
) -> int:
    """Run the command; returns its exit code."""
    from ..files import refuse_input
    from ..reports.page import check_page
    from ..reports.run_report import report as make_report
    from ..runs.files import refuse_files_of
    from .model import MODEL, RESULT

    for name, place in (("out", out), ("data", data)):
        need_place(name, place)
    began = time.perf_counter()
    refuse_input(out, *(path for path in (*runs, data) if path is not None and os.path.isfile(path)))
    for run in runs:
        refuse_files_of(run, out, MODEL, RESULT)
    check_page(out)
    made = make_report(*runs, data=data, profile=profile)
    made.save(out)
    for line in made.left_out:
        warn(line)
    for line in made.warnings:
        warn(f"warning: {line}")
    size = len(made.html.encode())
    print_report(f"{out}: {size:,} bytes, {time.perf_counter() - began:.1f} s")
    if json:
        print(json_text(REPORT, {"out": out, "bytes": size, **made.facts}))
    return 0
