"""gradloom plan: how much memory a fine-tuning needs, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..base.json_documents import PLAN
from ..base.settings import as_precision
from .common import columns, json_text, print_report
from .config import Asked, command
from .finetune_settings import FinetuneSettings, PlanSettings, planning, trained
from .run_settings import check_places

HELP = """Report the bytes of weights, adapter, optimiser and activations, and whether this machine has them.

The options are those of finetune on which memory depends. With DATA, which is read, the bytes are those of that run;
without, of a run with validation on data that do not fill their last batches, and all rows of the data come on top,
about 12 bytes a token; so does the memory for reading them. With --device gpu also the bytes of all buffers that it
will hold there; WebGPU does not report GPU memory. Nothing runs and nothing large is allocated. Exit code 0: it fits;
2: it does not, and stderr proposes settings that fit.
"""


def run(asked: Asked[Any]) -> int:
    """Run the command; returns its exit code."""
    with asked.naming_places():
        use = asked.settings()
        layers = check_places("plan", use.device, use.gpu_layers, use.gpu_memory, use.memory, trains=True)
        use = replace(use, precision=as_precision(use.precision))
        from ..llm.model import load
        from ..llm.plan import plan as plan_model

        loaded = load(use.model)
        planned = plan_model(loaded, trained(use, loaded), use.data, **planning(use))
    if layers is not None and planned.layers is None:
        print_report("all blocks on the CPU")
    rows = [("model", str(loaded.config)), *planned.lines()]
    if use.data is None:
        rows.append(("data", "on top: about 12 bytes for each token; reading it can set a higher peak"))
    columns(rows)
    if use.json:
        about = {"model": use.model, "method": use.method, "optimizer": use.optimizer}
        print(json_text(PLAN, about | planned.report()))
    planned.check()
    return 0


plan = command(PlanSettings, run, "plan", FinetuneSettings)
