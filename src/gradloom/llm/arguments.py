"""Arguments that functions of gl.llm share: an adapter or its path, and settings of a fine-tuning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..base.arguments import what_is
from ..base.errors import SettingError
from .lora import LoRA

if TYPE_CHECKING:
    from .model import Adapter, Model


def adapter_of(adapter: Adapter | str | os.PathLike[str] | None, model: Model, where: str) -> Any:
    """The adapter itself (or None), or the LoRA of a file. Raises SettingError for anything else."""
    if isinstance(adapter, (str, os.PathLike)):
        return LoRA.load(adapter, model)
    if adapter is None or (hasattr(adapter, "bind") and hasattr(adapter, "linear") and not isinstance(adapter, type)):
        return adapter
    raise SettingError(
        f"{where}: adapter is {what_is(adapter)}; need a LoRA, TrainedTensors, or the path of an adapter (.gguf, or a "
        "folder of PEFT), which is loaded"
    )


def refuse_settings(settings: Mapping[str, object], where: str, without_effect: tuple[str, ...]) -> None:
    """Raise SettingError for the first setting that has no effect on the function `where`."""
    for name in settings:
        if name in without_effect:
            raise SettingError(f"{where}: {name} is a setting of finetune that changes nothing here; leave it out")


def data_arguments(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of read_samples in `data_options`; SettingError for the form, which the objective decides."""
    if "form" in (given or {}):
        raise SettingError("{data_options}: form follows from the objective; leave it out", data_options=...)
    return dict(given or {})
