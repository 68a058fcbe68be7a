"""Losses and metrics of preference objectives, with the definitions and metric names of TRL 1.16.

Pairs: part 0 is the chosen completion, part 1 the rejected one.
"""

from __future__ import annotations

from .. import ops
from ..base.errors import SettingError
from ..graph.value import Value
from .forms import Form

PAIRS = Form("preferences", parts=2)
CHOSEN, REJECTED = 0, 1
LEAST_BETA = 1e-15  # of ipo: sums of (1 / (2 beta))^2 over the pairs of a batch stay in the range of f32


def log_sigmoid(x: Value) -> Value:
    """log(1 / (1 + exp(-x)))."""
    return -ops.softplus(-x)


def smoothed(x: Value, share: float) -> Value:
    """-log sigmoid(x), with this share of pairs taken to be swapped."""
    if not share:
        return -log_sigmoid(x)
    return -(1 - share) * log_sigmoid(x) - share * log_sigmoid(-x)


def preference_loss(loss_type: str, difference: Value, beta: float, label_smoothing: float = 0.0) -> Value:
    """sigmoid, hinge or ipo of the difference between the chosen and the rejected side."""
    if loss_type == "ipo":
        return ops.sqr(difference - 1 / (2 * beta))
    if loss_type == "hinge":
        return ops.relu(1.0 - beta * difference)
    return smoothed(beta * difference, label_smoothing)


def check_loss(beta: float, label_smoothing: float, loss_type: str) -> None:
    """SettingError for label smoothing of a loss that has none, and for a beta of ipo whose loss is not finite."""
    if loss_type == "ipo" and not beta >= LEAST_BETA:
        text = f"{{beta}} must be at least {LEAST_BETA:g} with {{loss_type}} ipo: (1 / (2 beta))^2 is not finite in f32"
        raise SettingError(text, {"beta": beta, "loss_type": ...}, place="finetune")
    if label_smoothing and loss_type != "sigmoid":
        text = f"{{label_smoothing}} requires {{loss_type}} sigmoid, not {loss_type}"
        raise SettingError(text, {"label_smoothing": label_smoothing, "loss_type": ...}, place="finetune")


def reward_metrics(rewards: Value, logps: Value) -> dict[str, Value | tuple[Value, Value]]:
    """Metrics of rewards and logps f32 [rows, K, 2]."""
    chosen, rejected = rewards[:, :, CHOSEN], rewards[:, :, REJECTED]
    return {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/accuracies": ops.where(ops.greater(chosen, rejected), 1.0, 0.0),
        "rewards/margins": chosen - rejected,
        "logps/chosen": logps[:, :, CHOSEN],
        "logps/rejected": logps[:, :, REJECTED],
    }
