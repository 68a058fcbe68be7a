"""dpo: the chosen completion gains more probability over the base model than the rejected one.

Rafailov et al. 2023 (arXiv 2305.18290); hinge: Zhao et al. 2023 (2305.10425); ipo: Azar et al. 2023 (2310.12036), with
log-probabilities per token, as in TRL; label smoothing: Mitchell 2023, "A note on DPO with noisy preferences".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...graph.value import Value
from ..forms import Form
from ..objective import Objective, Parts
from ..pair_losses import CHOSEN, PAIRS, REJECTED, check_loss, preference_loss, reward_metrics


@dataclass(frozen=True)
class Dpo(Objective):
    """With d the ratio of the chosen completion less that of the rejected one (log-probabilities less those of the base
    model): sigmoid: -log sigmoid(beta d); hinge: max(0, 1 - beta d); ipo: (d' - 1 / (2 beta))^2, d' of ratios per
    token."""

    form: ClassVar[Form] = PAIRS
    needs_reference: ClassVar[bool] = True
    beta: float = 0.1
    loss_type: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_loss(self.beta, self.label_smoothing, self.loss_type)

    def loss(self, parts: Parts) -> Value:
        ratios = parts.per_token(parts.ratios()) if self.loss_type == "ipo" else parts.ratios()
        difference = ratios[:, :, CHOSEN] - ratios[:, :, REJECTED]
        return preference_loss(self.loss_type, difference, self.beta, self.label_smoothing)

    def metrics(self, parts: Parts) -> Mapping[str, Value | tuple[Value, Value]]:
        return reward_metrics(self.beta * parts.ratios(), parts.logps)


OBJECTIVE = Dpo
