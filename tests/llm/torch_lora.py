"""PyTorch's side of a comparison: the model of a GGUF file with the LoRA arrays of given_lora.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.llm.given_lora import Arrays, rank_of
from tests.llm.torch_model import TorchModel


class TorchLora:
    """PyTorch in one precision, with the same adapter."""

    def __init__(self, path: Path, arrays: Arrays, dtype: torch.dtype, alpha: float = 16.0) -> None:
        self.model = TorchModel(path, dtype)
        self.adapter = self.model.adapter(arrays)
        self.scale = alpha / rank_of(arrays) if arrays else 1.0

    def named(self) -> dict[str, torch.Tensor]:
        """Trained arrays by our names."""
        return {f"{k}.lora_{n}": t for k, pair in self.adapter.items() for n, t in zip("ab", pair, strict=True)}

    def loss(self, tokens: Any, positions: Any, labels: Any) -> torch.Tensor:
        return self.model.loss(tokens, positions, labels, self.adapter, self.scale)

    def gradients(self, tokens: Any, positions: Any, labels: Any) -> tuple[float, dict[str, np.ndarray]]:
        named = self.named()
        loss = self.loss(tokens, positions, labels)
        found = torch.autograd.grad(loss, list(named.values()))
        return loss.item(), {k: g.numpy() for k, g in zip(named, found, strict=True)}

    def sgd(self, tokens: Any, positions: Any, labels: Any, lr: float, steps: int) -> list[float]:
        """The loss before each step."""
        losses, trained = [], list(self.named().values())
        for _ in range(steps):
            loss = self.loss(tokens, positions, labels)
            losses.append(loss.item())
            with torch.no_grad():
                for t, g in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                    t -= lr * g
        return losses
