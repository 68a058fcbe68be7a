"""simpo: the mean log-probability of the chosen completion exceeds that of the rejected one by a margin.

Meng et al. 2024 (arXiv 2405.14734). No base model is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...graph.value import Value
from ..forms import Form
from ..objective import Objective, Parts
from ..pair_losses import CHOSEN, PAIRS, REJECTED, reward_metrics, smoothed


@dataclass(frozen=True)
class Simpo(Objective):
    """-log sigmoid(beta d - gamma), d the difference of the mean log-probabilities per token."""

    form: ClassVar[Form] = PAIRS
    beta: float = 2.0
    gamma: float = 0.5
    label_smoothing: float = 0.0

    def loss(self, parts: Parts) -> Value:
        means = parts.averages()
        difference = means[:, :, CHOSEN] - means[:, :, REJECTED]
        return smoothed(self.beta * difference - self.gamma, self.label_smoothing)

    def metrics(self, parts: Parts) -> Mapping[str, Value | tuple[Value, Value]]:
        means = parts.averages()
        return reward_metrics(self.beta * means, means)


OBJECTIVE = Simpo
