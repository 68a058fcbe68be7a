"""What the functions of gl.llm take: a model or its path, an adapter or its path, and paths where a file is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..base.arguments import what_is
from ..base.errors import SettingError

if TYPE_CHECKING:
    from .model import Adapter, Model


def model_of(model: Model | str | os.PathLike[str], where: str) -> Model:
    """The model itself, or the one of a GGUF file; SettingError, naming the function `where`, for anything else."""
    from .model import Model, load

    if isinstance(model, Model):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load(model)
    raise SettingError(
        f"{where}: model is {what_is(model)}; need a Model (gl.llm.load), or the path of a GGUF file, which is loaded"
    )


def adapter_of(adapter: Adapter | str | os.PathLike[str] | None, model: Model, where: str) -> Any:
    """The adapter itself (None where there is none), or the LoRA of a file; SettingError for anything else."""
    from .lora import LoRA

    if isinstance(adapter, (str, os.PathLike)):
        return LoRA.load(adapter, model)
    if adapter is None or (hasattr(adapter, "bind") and hasattr(adapter, "linear") and not isinstance(adapter, type)):
        return adapter
    raise SettingError(
        f"{where}: adapter is {what_is(adapter)}; need a LoRA, TrainedTensors, or the path of an adapter (.gguf, or a "
        "folder of PEFT), which is loaded"
    )


def need_path(path: object, where: str, name: str, hint: str = "") -> None:
    """SettingError, naming the argument, unless it is a path."""
    if not isinstance(path, (str, os.PathLike)):
        raise SettingError(f"{where}: {name} is {what_is(path)}; need {hint or 'a path'}")


def refuse_settings(settings: Mapping[str, object], where: str, unheeded: tuple[str, ...]) -> None:
    """SettingError for the first setting that the function `where` would not heed."""
    for name in settings:
        if name in unheeded:
            raise SettingError(f"{where}: {name} is a setting of finetune that changes nothing here; leave it out")
