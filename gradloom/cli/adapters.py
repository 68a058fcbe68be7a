"""What the commands for language models share: adapters from options and files, data options, a chat's prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..llm.lora import LoRA, TrainedTensors


def adapter_for(method: str, targets: str | None, train_dtype: str | None, **lora: Any) -> LoRA | TrainedTensors:
    """What the options --method, --targets and --train-dtype ask to train; lora: settings of LoRA."""
    from ..llm.lora import ATTENTION, LoRA, TrainedTensors

    if method == "full":
        return TrainedTensors("all" if targets is None else targets, train_dtype)
    return LoRA(targets=ATTENTION if targets is None else targets, **lora)
