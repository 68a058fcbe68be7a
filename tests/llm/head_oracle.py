"""Losses of objectives with a head in PyTorch, from their definitions in TRL and transformers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from gradloom.llm.finetune import Run
from gradloom.llm.head import HEAD
from gradloom.llm.model import load
from gradloom.llm.objectives.classify import Classify
from gradloom.llm.objectives.reward import Reward
from gradloom.llm.rows import Rows


def first_head(path: Path, objective: Any, data: Rows, adapter: Any) -> np.ndarray:
    """The head that a run on these rows begins with."""
    run = Run(load(path), data, copy.deepcopy(adapter) if not getattr(adapter, "a", None) else copy.copy(adapter),
              objective=objective, val_split=0.0)  # fmt: skip
    return run.adapter.parameters()[HEAD].numpy()


@dataclass
class Truth:
    """A loss with the leaves that it was computed from."""

    loss: float
    head: torch.Tensor

    def gradients(self, oracle: Any, pairs: Any, adapter: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Name -> (numbers before the step, gradient)."""
        leaves = {HEAD: self.head} | {n: w for n, w in oracle.weights.items() if w.requires_grad}
        for name, sides in (pairs or {}).items():
            leaves |= {f"{name}.lora_{side}": leaf for side, leaf in zip("ab", sides, strict=True)}
        return {name: (leaf.detach().numpy(), leaf.grad.numpy()) for name, leaf in leaves.items()}


def loss(oracle: Any, data: Rows, objective: Any, start: np.ndarray, pairs: Any, scale: float) -> Truth:
    """The mean over all samples, each computed as a text of its own, without packing."""
    if pairs is None:
        oracle.train([f"blk.{i}.{name}.weight" for i in range(oracle.layers) for name in ("attn_q", "ffn_up")])
    head = torch.tensor(start).to(oracle.dtype).requires_grad_()
    assert data.parts is not None and data.values is not None
    total, weights = torch.zeros((), dtype=oracle.dtype), 0.0
    for row in range(len(data.tokens)):
        for sample in range(data.values.shape[1]):
            if data.values[row, sample, 0] == 0:
                continue
            sides = 2 if isinstance(objective, Reward) or objective == "reward" else 1
            scores = []
            for side in range(sides):
                part = sample * sides + side
                here = (data.parts[row] == part) | (data.parts[row] == -2 - part)
                hidden = oracle.hidden(data.tokens[row][here][None], None, pairs, scale)
                scores.append(hidden[-1] @ head.T)
            each, weight = _of_sample(objective, scores, data.values[row, sample, 1:], data)
            total, weights = total + weight * each, weights + weight
    mean = total / weights
    mean.backward()  # type: ignore[no-untyped-call]
    return Truth(mean.item(), head)


def _of_sample(
    objective: Any, scores: list[torch.Tensor], numbers: np.ndarray, data: Rows
) -> tuple[torch.Tensor, float]:
    """(loss, weight) of a sample."""
    if isinstance(objective, str):
        objective = {"reward": Reward(), "classify": Classify(), "regress": None}[objective]
    assert data.values is not None
    if isinstance(objective, Reward):
        chosen, rejected = (score[0] for score in scores)
        margin = float(numbers[0]) if len(numbers) else 0.0
        centred = objective.center_rewards_coefficient * (chosen + rejected) ** 2
        return -logsigmoid(chosen - rejected - margin) + centred, 1.0
    there = data.values[:, :, 0] == 1
    if isinstance(objective, Classify):
        assert data.classes is not None
        if data.classes.several:
            labels = torch.tensor(numbers).to(scores[0].dtype)
            return binary_cross_entropy_with_logits(scores[0], labels), 1.0
        own = int(numbers[0])
        weight = 1.0
        if objective.class_weight == "balanced":
            ids = data.values[:, :, 1][there]
            weight = len(ids) / (3 * float((ids == own).sum()))
        elif objective.class_weight is not None:
            weight = objective.class_weight.get(data.classes.names[own], 1.0)
        return cross_entropy(scores[0][None], torch.tensor([own])), weight
    every = data.values[:, :, 1][there].astype(np.float64)
    return (scores[0][0] - (float(numbers[0]) - every.mean()) / every.std()) ** 2, 1.0
