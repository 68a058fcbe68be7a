"""Losses of objectives in PyTorch, from the formulas of their papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from gradloom.llm.objectives.cpo import Cpo
from gradloom.llm.objectives.dpo import Dpo
from gradloom.llm.objectives.kto import Kto
from gradloom.llm.objectives.orpo import Orpo
from gradloom.llm.objectives.simpo import Simpo
from gradloom.llm.rows import Rows


def sums(oracle: Any, data: Rows, adapter: Any, scale: float) -> tuple[torch.Tensor, ...]:
    """(log-probabilities, tokens) of each completion, and of the whole texts, [rows, samples, 2]."""
    assert data.parts is not None and data.values is not None
    logits = oracle.logits(data.tokens, data.positions, adapter, scale)
    labels = torch.from_numpy(data.labels.astype(np.int64))
    log_p = logits.log_softmax(-1).reshape(*labels.shape, -1)
    each = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    slots = torch.arange(2 * data.values.shape[1])
    found = []
    for parts in (data.parts, np.where(data.parts < 0, -2 - data.parts, data.parts)):
        own = (torch.from_numpy(parts)[:, None, :] == slots[None, :, None]).to(each.dtype)
        found += [(own * each[:, None]).sum(-1), own.sum(-1)]
    return tuple(one.reshape(len(labels), -1, 2) for one in found)


def loss_of(
    objective: Any, logps: Any, counts: Any, whole: Any, lengths: Any, reference: Any, values: Any
) -> torch.Tensor:
    """The loss of a batch of all rows."""
    there = torch.from_numpy(values[:, :, 0]) == 1
    logps, counts, whole, lengths, reference = (each[there] for each in (logps, counts, whole, lengths, reference))
    if isinstance(objective, Kto):
        good = torch.from_numpy(values[:, :, 1])[there] == 1
        own, other = (logps - reference).T
        kl = other.mean().detach().clamp(min=0)
        losses = 1 - torch.sigmoid(objective.beta * torch.where(good, own - kl, kl - own))
        return (losses * torch.where(good, objective.desirable_weight, objective.undesirable_weight)).mean()
    if isinstance(objective, Orpo):
        means = logps / counts
        odds = means - torch.log1p(-means.exp())
        learned = -whole[:, 0].sum() / lengths[:, 0].sum()
        return learned - objective.beta * logsigmoid(odds[:, 0] - odds[:, 1]).mean()
    if isinstance(objective, Simpo):
        means = logps / counts
        inner = objective.beta * (means[:, 0] - means[:, 1]) - objective.gamma
        return -logsigmoid(inner).mean()
    learned = 0.0
    if isinstance(objective, Cpo):
        learned = -objective.nll_weight * logps[:, 0].sum() / counts[:, 0].sum()
        ratios = logps / counts if objective.loss_type == "ipo" else logps
    else:
        assert isinstance(objective, Dpo)
        ratios = logps - reference
        if objective.loss_type == "ipo":
            ratios = ratios / counts
    difference = ratios[:, 0] - ratios[:, 1]
    if objective.loss_type == "ipo":
        return ((difference - 0.5 / objective.beta) ** 2).mean() + learned
    inner = objective.beta * difference
    if objective.loss_type == "hinge":
        return torch.relu(1 - inner).mean() + learned
    share = objective.label_smoothing
    return -((1 - share) * logsigmoid(inner) + share * logsigmoid(-inner)).mean() + learned
