"""cpo: the chosen completion is learned, and is likelier than the rejected one.

Xu et al. 2024 (arXiv 2401.08417), as in TRL. No base model is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ... import ops
from ...graph.value import Value
from ..forms import Form
from ..objective import Objective, Parts
from ..pair_losses import CHOSEN, PAIRS, REJECTED, check_loss, preference_loss, reward_metrics


@dataclass(frozen=True)
class Cpo(Objective):
    """The loss of dpo with log-probabilities in place of ratios to a base model, plus `nll_weight` times the mean cross
    entropy of all tokens of the chosen completions of a batch."""

    form: ClassVar[Form] = PAIRS
    beta: float = 0.1
    loss_type: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    label_smoothing: float = 0.0
    nll_weight: float = 1.0

    def __post_init__(self) -> None:
        check_loss(self.beta, self.label_smoothing, self.loss_type)

    def totals(self, parts: Parts) -> Sequence[Value]:
        return parts.present, parts.counts[:, :, CHOSEN]

    def loss(self, parts: Parts) -> Value:
        pairs, tokens = parts.totals
        logps = self._compared(parts)
        difference = logps[:, :, CHOSEN] - logps[:, :, REJECTED]
        learned = -parts.logps[:, :, CHOSEN] * (pairs / tokens)
        return preference_loss(self.loss_type, difference, self.beta, self.label_smoothing) + self.nll_weight * learned

    def metrics(self, parts: Parts) -> Mapping[str, Value | tuple[Value, Value]]:
        counts = parts.counts[:, :, CHOSEN]
        nll = -parts.logps[:, :, CHOSEN] / ops.maximum(counts, 1.0)
        logps = self._compared(parts)
        return reward_metrics(self.beta * logps, logps) | {"nll_loss": (nll, counts)}

    def _compared(self, parts: Parts) -> Value:
        """Log-probabilities, of ipo per token."""
        return parts.averages() if self.loss_type == "ipo" else parts.logps


OBJECTIVE = Cpo
