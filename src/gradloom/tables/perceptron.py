"""The networks for tables and images: multilayer perceptrons from features to outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .. import nn
from ..base.memory import need_memory, show_bytes
from ..data.encoding.preprocess import Preprocess
from ..optim import AdamW
from ..optim.names import optimizer_named
from ..optim.optimizer import Optimizer
from ..optim.schedules import Cosine

# The learning rate of each optimiser, and the settings that differ from its own defaults
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adamw": {"lr": 0.003, "weight_decay": 0.01},
    "adam": {"lr": 0.003},
    "sgd": {"lr": 0.05, "momentum": 0.9},
    "lion": {"lr": 0.0003, "weight_decay": 0.1},
    "rmsprop": {"lr": 0.001},
    "adafactor": {"lr": 0.01},
    "muon": {"lr": 0.02},  # of matrices; adamw for the biases
}
TABLE: dict[str, float] = {"lr": 0.002, "weight_decay": 0.05}  # adamw for tables
EMBEDDING: dict[str, Any] = {"frequencies": 16, "width": 4, "scale": 0.2}  # of numbers, see nn.Periodic


def network(
    preprocess: Preprocess, hidden: Sequence[int], dropout: float = 0.0, members: int = 1, loss: str = "cross_entropy"
) -> nn.Sequential:
    """The network for these features: for a table, an ensemble of `members` networks after an embedding of numbers,
    with a shortcut (see has_shortcut); for arrays, and without hidden layers, a perceptron. loss: decides how outputs
    of members are averaged; dropout: as for `perceptron`."""
    if preprocess.kind == "array" or not hidden:
        return perceptron(preprocess, hidden, dropout)
    layers: list[nn.Module] = []
    width, numbers = preprocess.inputs, numbers_of(preprocess)
    if numbers:
        layers.append(nn.Periodic(width, numbers, **EMBEDDING, members=members))
        width += len(numbers) * EMBEDDING["width"]
    for size in hidden:
        layers.append(nn.MemberLinear(members, width, size, activation="relu"))
        width = size
    layers.append(nn.MemberLinear(members, width, preprocess.outputs))
    several = preprocess.targets if preprocess.task != "regression" else []
    average = "probabilities" if several or loss == "cross_entropy" else "outputs"
    shortcut = preprocess.inputs if has_shortcut(preprocess) else None
    heads = [one.width for one in several] or None
    return nn.Ensemble(*layers, average=average, dropout=dropout, shortcut=shortcut, heads=heads)


def has_shortcut(preprocess: Preprocess) -> bool:
    """Whether a linear function of the features is added to the outputs: not with a time column, whose trend it would
    extrapolate."""
    return all(column.kind != "time" for column in preprocess.columns)


def perceptron(preprocess: Preprocess, hidden: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """A multilayer perceptron from the features of `preprocess` to its outputs: logits, or standardised targets.

    dropout: the share of each hidden layer's outputs that a step of training leaves out.
    """
    layers: list[nn.Module] = []
    if preprocess.kind == "array":
        layers.append(nn.Standardize(preprocess.mean, preprocess.std))
    width = preprocess.inputs
    for size in hidden:
        layers.append(nn.Linear(width, size, activation="relu"))
        width = size
    layers.append(nn.Linear(width, preprocess.outputs))
    return nn.HiddenDropout(*layers, rate=dropout) if dropout else nn.Sequential(*layers)


def numbers_of(preprocess: Preprocess) -> list[int]:
    """Which features are numbers, not categories or marks of missing values."""
    found, at = [], 0
    for column in preprocess.columns:
        if column.kind == "number":
            found.append(at)
        at += column.width
    return found


def need_room(preprocess: Preprocess, hidden: Sequence[int], members: int = 1) -> None:
    """SettingError when the free memory does not hold the training of network(preprocess, hidden): weights, their
    gradients and two moments."""
    images = preprocess.kind == "array"
    waves, width = EMBEDDING["frequencies"], EMBEDDING["width"]
    numbers = 0 if images or not hidden else len(numbers_of(preprocess))
    widths = [preprocess.inputs + numbers * width, *hidden, preprocess.outputs]
    count = sum((n_in + 1) * n_out for n_in, n_out in itertools.pairwise(widths)) + 2 * images
    count += numbers * (2 * waves + (waves + 1) * width)
    count += (preprocess.inputs + 1) * preprocess.outputs if hidden and not images and has_shortcut(preprocess) else 0
    count *= members if hidden and not images else 1
    what = f"{count:,} parameters need {show_bytes(16 * count)} of memory to train"
    layers, need = f"hidden layers {','.join(map(str, hidden)):.80}", "need smaller ones"
    if members > 1:
        layers, need = f"{members:,} networks with {layers}", "need fewer (--ensemble), or smaller ones"
    need_memory(16 * count, f"{layers}: {what}", need)


def optimizer_for(
    net: nn.Module, name: str, lr: float, steps: int, groups: Sequence[dict[str, Any]] = (), images: bool = False
) -> Optimizer:
    """The optimiser of that name with the settings for tables or images; its rate falls to 0 over `steps` along a
    cosine. groups: as for gl.optim."""
    settings = OPTIMIZERS[name] | (TABLE if name == "adamw" and not images else {})
    more: dict[str, Any] = {setting: value for setting, value in settings.items() if setting != "lr"}
    parameters: Any = net.parameters()
    groups = list(groups)
    if name == "muon":
        others: dict[str, Any] = OPTIMIZERS["adamw"] | {"lr": Cosine(OPTIMIZERS["adamw"]["lr"], steps=steps)}
        groups.append({"match": "not_2d", "optimizer": AdamW(**others)})
    if groups:
        parameters, more["groups"] = net.named_parameters(), groups
    made: Optimizer = optimizer_named(name)(parameters, lr=Cosine(lr, steps=steps), **more)
    return made
