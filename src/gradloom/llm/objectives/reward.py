"""reward: a number for each text, larger for the chosen completion of a pair than for the rejected one.

Ouyang et al. 2022 (arXiv 2203.02155), as in TRL; margins: Touvron et al. 2023 (2307.09288); centred rewards: Eisenstein
et al. 2023 (2312.09244).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ... import ops
from ...graph.value import Value
from ..forms import Form
from ..pair_losses import CHOSEN, REJECTED, log_sigmoid
from ..scored import HeadObjective, Scored


@dataclass(frozen=True)
class Reward(HeadObjective):
    """-log sigmoid(r_chosen - r_rejected - margin), the margin that of the data or 0, plus center_rewards_coefficient
    times (r_chosen + r_rejected)^2."""

    form: ClassVar[Form] = Form("preferences", parts=2, last=True)
    head_kind: ClassVar[str] = "reward"
    center_rewards_coefficient: float = 0.0

    def loss_of(self, scored: Scored) -> Value:
        chosen, rejected = (scored.scores[:, :, side, 0] for side in (CHOSEN, REJECTED))
        difference = chosen - rejected
        if scored.numbers.shape[2]:
            difference = difference - scored.numbers[:, :, 0]
        loss = -log_sigmoid(difference)
        if self.center_rewards_coefficient:
            loss = loss + self.center_rewards_coefficient * ops.sqr(chosen + rejected)
        return loss

    def metrics_of(self, scored: Scored) -> Mapping[str, Value]:
        chosen, rejected = (scored.scores[:, :, side, 0] for side in (CHOSEN, REJECTED))
        return {
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/accuracies": ops.where(ops.greater(chosen, rejected), 1.0, 0.0),
            "rewards/margins": chosen - rejected,
            "rewards/mean": 0.5 * (chosen + rejected),
        }


OBJECTIVE = Reward
