"""gradloom plan: how much memory a fine-tuning needs, before anything runs."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.json_documents import PLAN
from ..base.sample_options import DataOptions
from ..base.settings import as_precision
from .common import columns, json_text, print_report
from .config import Asked, command
from .finetune_settings import FinetuneSettings, PlanSettings, inputs_of, planning, trained
from .run_settings import check_places
from .saved_settings import need_same_inputs
from .settings_file import read

if TYPE_CHECKING:
    from ..llm.memory_plan import MemoryPlan

HELP = """Report the bytes of weights, adapter, optimiser and activations, and whether this machine has them.

The options are those of finetune on which memory depends. With DATA, which is read, the bytes are those of that run;
without, of a run with validation on data that do not fill their last batches, and all rows of the data come on top,
about 12 bytes a token; so does the memory for reading them. With --device gpu also the bytes of all buffers that it
will hold there; WebGPU does not report GPU memory. Nothing runs and nothing large is allocated. Exit code 0: it fits;
2: it does not, and stderr proposes settings that fit. --html writes a page with a map of the memory of each program.
"""


def run(asked: Asked[Any]) -> int:
    """Run the command; returns its exit code."""
    from ..files import refuse_input

    with asked.naming_places():
        use = asked.settings()
        layers = check_places("plan", use.device, use.gpu_layers, use.gpu_memory, use.memory, trains=True)
        use = replace(use, precision=as_precision(use.precision))
        if use.html is not None:
            from ..reports.page import check_page

            refuse_input(use.html, *inputs_of(use))
            check_page(use.html)
        from ..llm.model import load
        from ..llm.plan import plan as plan_model

        loaded = load(use.model)
        planned = plan_model(loaded, trained(use, loaded), use.data, **planning(use))
    if layers is not None and planned.layers is None:
        print_report("all blocks on the CPU")
    rows = [("model", str(loaded.config)), *planned.lines()]
    if use.data is None:
        rows.append(("data", "on top: about 12 bytes for each token; reading it can set a higher peak"))
    if use.html is not None:
        planned.save(use.html)
    columns(rows)
    if use.json:
        about = {"model": use.model, "method": use.method, "optimizer": use.optimizer}
        print(json_text(PLAN, about | planned.report()))
    planned.check()
    return 0


plan = command(PlanSettings, run, "plan", FinetuneSettings)


def plan_of_run(file: str | os.PathLike[str]) -> MemoryPlan:
    """The memory plan of a fine-tuning by the settings.toml of its run, on this machine and without its data.

    FileError where the model is missing or has changed since, SettingError for settings that cannot be planned.
    """
    from ..files.toml_file import parse_toml
    from ..llm.model import load
    from ..llm.plan import plan as plan_model

    of_data = {"data", "val", "eval_rows", *(one.name for one in fields(DataOptions))}
    values = {name: value for name, value in read(PlanSettings, file).items() if name not in of_data}
    digests = (parse_toml(file).get("run") or {}).get("digests") or {}
    of_model = {name: digest for name, digest in digests.items() if name in ("model", "lora")}
    need_same_inputs(Path(file), {"digests": of_model}, values)
    use = Asked(PlanSettings, values).settings()
    loaded = load(use.model)
    return plan_model(loaded, trained(use, loaded), None, **planning(use))
