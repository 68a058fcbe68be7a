"""kto: completions judged good gain probability over the base model, those judged bad lose it.

Ethayarajh et al. 2024 (arXiv 2402.01306), as in TRL. The distance of the model from the base model is estimated with
completions of other prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ... import ops
from ...base.errors import SettingError
from ...graph.value import Value
from ..forms import Form
from ..objective import Objective, Parts

OWN, OTHER = 0, 1  # parts: a completion of the prompt, and the completion of the sample before it


@dataclass(frozen=True)
class Kto(Objective):
    """With r the ratio of a completion (its log-probability less that of the base model) and kl the mean ratio of the
    other completions in the batch, at least 0: desirable_weight (1 - sigmoid(beta (r - kl))) for a good one,
    undesirable_weight (1 - sigmoid(beta (kl - r))) for a bad one."""

    form: ClassVar[Form] = Form("judged", parts=2)
    needs_reference: ClassVar[bool] = True
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.desirable_weight and not self.undesirable_weight:
            text = "{desirable_weight} and {undesirable_weight} are both 0: nothing is learned; need one above 0"
            raise SettingError(text, desirable_weight=0, undesirable_weight=0, place="finetune")

    def totals(self, parts: Parts) -> Sequence[Value]:
        return parts.present, parts.ratios()[:, :, OTHER]

    def loss(self, parts: Parts) -> Value:
        samples, ratios = parts.totals
        distance = self.beta * (parts.ratios()[:, :, OWN] - ops.maximum(ratios / samples, 0.0))
        good = parts.numbers[:, :, 0]
        return ops.where(
            ops.equal(good, 1.0),
            self.desirable_weight * ops.sigmoid(-distance),
            self.undesirable_weight * ops.sigmoid(distance),
        )

    def metrics(self, parts: Parts) -> Mapping[str, Value | tuple[Value, Value]]:
        good, logps = parts.numbers[:, :, 0], parts.logps[:, :, OWN]
        rewards = self.beta * parts.ratios()[:, :, OWN]
        return {
            "rewards/chosen": (rewards, good),
            "rewards/rejected": (rewards, 1.0 - good),
            "logps/chosen": (logps, good),
            "logps/rejected": (logps, 1.0 - good),
            "kl": parts.ratios()[:, :, OTHER],
        }


OBJECTIVE = Kto
