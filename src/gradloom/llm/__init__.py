"""Language models from GGUF files: read, fine-tuned, merged, run. Each name is loaded when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..base.habits import missing_name

if TYPE_CHECKING:
    from .chat import ChatTemplate
    from .compare import Comparison, compare
    from .conversation import Conversation
    from .data import read_samples
    from .embed import embed
    from .evaluate import Perplexity, evaluate
    from .finetune import Run, finetune
    from .forms import Form
    from .generate import generate
    from .lora import LoRA
    from .memory_plan import MemoryPlan
    from .merge import Merged, merge
    from .model import Model, load
    from .objective import Objective, Parts
    from .packing import TokenData, pack
    from .plan import plan
    from .predict import Predictions, predict
    from .quantize import Quantized, quantize
    from .sample_texts import SampledText
    from .samples import Samples
    from .sampling import Sampling
    from .tokenizer import Tokenizer
    from .trained_tensors import TrainedTensors
    from .verify import Verification, verify

__all__ = [
    "ChatTemplate",
    "Comparison",
    "Conversation",
    "Form",
    "LoRA",
    "MemoryPlan",
    "Merged",
    "Model",
    "Objective",
    "Parts",
    "Perplexity",
    "Predictions",
    "Quantized",
    "Run",
    "SampledText",
    "Samples",
    "Sampling",
    "TokenData",
    "Tokenizer",
    "TrainedTensors",
    "Verification",
    "compare",
    "embed",
    "evaluate",
    "finetune",
    "generate",
    "load",
    "merge",
    "pack",
    "plan",
    "predict",
    "quantize",
    "read_samples",
    "verify",
]

# Where each name lives
_HOMES = {
    ".chat": "ChatTemplate",
    ".compare": "Comparison compare",
    ".conversation": "Conversation",
    ".data": "read_samples",
    ".embed": "embed",
    ".evaluate": "Perplexity evaluate",
    ".finetune": "Run finetune",
    ".forms": "Form",
    ".generate": "generate",
    ".lora": "LoRA",
    ".merge": "Merged merge",
    ".model": "Model load",
    ".objective": "Objective Parts",
    ".packing": "TokenData pack",
    ".memory_plan": "MemoryPlan",
    ".plan": "plan",
    ".predict": "Predictions predict",
    ".quantize": "Quantized quantize",
    ".sample_texts": "SampledText",
    ".samples": "Samples",
    ".sampling": "Sampling",
    ".tokenizer": "Tokenizer",
    ".trained_tensors": "TrainedTensors",
    ".verify": "Verification verify",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise missing_name(__name__, name)
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """`llm.finetune` is the function, also after something has imported the file of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
