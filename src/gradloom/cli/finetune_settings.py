"""The settings of gradloom finetune, and what follows from them before the data are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.defaults import FINETUNE_RATES
from ..base.finetune_options import (
    AdapterOptions,
    FinetuneFiles,
    FinetuneOptions,
    FinetuneOutput,
    TuneOptions,
)
from ..base.options import values_of
from ..base.sample_options import DataOptions
from ..base.training_options import DeviceOptions, RankOptions
from .config import Asked
from .language import adapter_for, data_options
from .run_settings import check_places, gpu_layers_of
from .saved_settings import beside_run
from .setting import command_settings

if TYPE_CHECKING:
    from ..llm.model import Model
    from ..parallel.communicator import Communicator

_RECORDS = (
    FinetuneFiles, AdapterOptions, TuneOptions, FinetuneOptions, DeviceOptions, DataOptions, RankOptions,
    FinetuneOutput,
)  # fmt: skip
# What a finetune does. None: not given
FinetuneSettings: Any = command_settings("finetune", *_RECORDS)
PlanSettings: Any = command_settings("plan", *_RECORDS)


def settle(asked: Asked[Any]) -> Any:
    """With the defaults that follow from the method; SettingError for settings that exclude one another."""
    from ..base.errors import SettingError
    from ..base.settings import as_precision

    use = asked.settings()
    check_places("finetune", use.device, use.gpu_layers, use.gpu_memory, use.memory, trains=True)
    if use.epochs is not None and use.steps is not None:
        raise SettingError("{epochs} and {steps} are mutually exclusive", epochs=use.epochs, steps=use.steps)
    out = use.out or _out_of(use.method)
    return replace(
        use,
        lr=use.lr or FINETUNE_RATES[use.method],
        precision=as_precision(use.precision),
        out=out,
        run=use.run or run_beside(out),
        epochs=use.epochs or (1 if use.steps is None else None),
    )


def _out_of(method: str) -> str:
    return "adapter.gguf" if method == "lora" else "model.gguf"


def run_beside(out: str) -> str:
    """The folder of a run where none is named."""
    path = Path(out)
    return str(path.with_suffix(".run") if path.suffix in ("", ".gguf") else path.with_name(f"{path.name}.run"))


def resumed(asked: Asked[Any]) -> Asked[Any]:
    """The given settings; with --resume, together with those of the run in its folder."""
    given = asked.values
    folder = given.get("run") or run_beside(given.get("out") or _out_of(given.get("method", "lora")))
    length = ("epochs", "steps")  # one of them is meant
    found = beside_run(asked, folder, *(length if any(name in given for name in length) else ()))
    _check_objective(found, folder)
    if "device" in found.files and found.values["device"] == "cpu" and "gpu_layers" in given:
        values = {name: value for name, value in found.values.items() if name != "device"}
        return replace(found, values=values, files={name: file for name, file in found.files.items() if name in values})
    return found


def _check_objective(asked: Asked[Any], folder: str) -> None:
    """SettingError for a resumed run with another objective than before: its own settings would not fit."""
    from ..base.errors import SettingError
    from .saved_settings import SETTINGS
    from .settings_file import read

    file, given = Path(folder, SETTINGS), asked.values.get("objective")
    if not asked.values.get("resume") or given is None or "objective" in asked.files or not file.exists():
        return
    before = read(asked.kind, str(file)).get("objective", "sft")
    if given != before:
        with asked.naming_places():
            text = f"{{objective}}: the run has {before}, and a resumed run keeps its objective; leave it out"
            raise SettingError(text, objective=given)


def inputs_of(use: Any) -> list[str]:
    """The files that are read, first the model, then the data."""
    from ..llm.data_files import data_files

    paths = (
        use.model,
        *(() if use.data is None else data_files(use.data).paths),
        use.val,
        use.chat_template,
        use.teacher,
    )
    return [path for path in paths if path is not None]


def trained(use: Any, model: Model, **more: Any) -> Any:
    """What these settings train: an adapter, or tensors of the model. more: settings of a new LoRA."""
    return adapter_for(
        model, use.method, None if use.targets is None else ",".join(use.targets), use.train_dtype, use.lora, use.seed,
        rank=use.rank, dropout=use.dropout, **more,
    )  # fmt: skip


def planning(use: Any) -> dict[str, Any]:
    """The arguments of llm.plan.plan, of PlanSettings."""
    read = reading(use)
    if use.data is None:  # options of data are refused
        read = {name: value for name, value in read.items() if value not in (None, False)}
    return _arguments(use) | {"data_options": read}


def reading(use: Any) -> dict[str, Any]:
    """The arguments of llm.data.read_samples."""
    return data_options(values_of(use, DataOptions))


def training(use: Any, ranks: Communicator | None) -> dict[str, Any]:
    """The arguments of llm.finetune.Run."""
    return _arguments(use, RankOptions) | {"parallel": ranks}


def _arguments(use: Any, *more: type) -> dict[str, Any]:
    """The options that were given, or decided, but for those of the adapter."""
    values = values_of(use, TuneOptions, FinetuneOptions, DeviceOptions, *more)
    values["gpu_layers"] = gpu_layers_of(use.gpu_layers)
    return {n: value for n, value in values.items() if value is not None and n not in ("method", "train_dtype")}
