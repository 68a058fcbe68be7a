"""orpo: the chosen completion is learned, and its odds exceed those of the rejected one.

Hong et al. 2024 (arXiv 2403.07691), as in TRL: odds of mean probabilities per token. No base model is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ... import ops
from ...graph.value import Value
from ..forms import Form
from ..objective import Objective, Parts
from ..pair_losses import CHOSEN, REJECTED, log_sigmoid, reward_metrics


@dataclass(frozen=True)
class Orpo(Objective):
    """The mean cross entropy of all tokens of the chosen texts of a batch, prompts included, less the mean over its
    pairs of beta log sigmoid(r), r the logarithm of the ratio of the odds."""

    form: ClassVar[Form] = Form("preferences", parts=2, prompts=True)
    beta: float = 0.1

    def totals(self, parts: Parts) -> Sequence[Value]:
        assert parts.lengths is not None
        return parts.present, parts.lengths[:, :, CHOSEN]

    def loss(self, parts: Parts) -> Value:
        assert parts.whole is not None
        pairs, tokens = parts.totals
        return -parts.whole[:, :, CHOSEN] * (pairs / tokens) - self.beta * log_sigmoid(_log_odds_ratio(parts))

    def metrics(self, parts: Parts) -> Mapping[str, Value | tuple[Value, Value]]:
        assert parts.whole is not None and parts.lengths is not None
        means, ratio, tokens = parts.averages(), _log_odds_ratio(parts), parts.lengths[:, :, CHOSEN]
        return reward_metrics(self.beta * means, means) | {
            "nll_loss": (-parts.whole[:, :, CHOSEN] / ops.maximum(tokens, 1.0), tokens),
            "log_odds_ratio": log_sigmoid(ratio),
            "log_odds_chosen": ratio,
        }


def _log_odds_ratio(parts: Parts) -> Value:
    """log odds of the chosen completion less that of the rejected one, f32 [rows, K]."""
    means = parts.averages()
    odds = means - ops.log(-ops.expm1(ops.minimum(means, -1e-7)))  # log p - log(1 - p)
    return odds[:, :, CHOSEN] - odds[:, :, REJECTED]


OBJECTIVE = Orpo
