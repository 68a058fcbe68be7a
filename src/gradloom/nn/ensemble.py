"""Networks side by side that are trained as one and averaged, and an embedding of numbers: for tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import ops
from ..base.errors import SettingError, ShapeError
from ..graph.leaves import constant
from ..graph.value import Value, describe
from .initial import normal, uniform
from .layers import Dropout, Sequential, activation_function, activation_name, need_positive
from .module import Module
from .stacked import stacked

AVERAGES = ("probabilities", "outputs")
_UNLIKELY = -1e30  # the logarithm of a probability that counts for nothing


class MemberLinear(Module):
    """A Linear for each member of an Ensemble: x [members, rows, n_in] -> [members, rows, n_out].

    weight [members, n_in, n_out], bias [members, 1, n_out]; initialisation as of Linear.
    """

    def __init__(self, members: int, n_in: int, n_out: int, activation: str | None = None) -> None:
        super().__init__()
        need_positive("MemberLinear", members=members, n_in=n_in, n_out=n_out)
        self.act = activation_function(activation)
        bound = 1 / math.sqrt(n_in)
        self.weight = stacked(
            self.parameter((members, n_in, n_out), uniform(bound)), (n_in, n_out), members, transposed=True
        )
        self.bias = stacked(self.parameter((members, 1, n_out), uniform(bound)), (n_out,), members)

    def arguments(self) -> dict[str, Any]:
        members, n_in, n_out = self.weight.shape
        return {"members": members, "n_in": n_in, "n_out": n_out, "activation": activation_name(self.act)}

    def forward(self, x: Value) -> Value:
        return self.act(ops.matmul(x, self.weight) + self.bias)


class Periodic(Module):
    """The features of a row, and an embedding of some of them: x [rows, n_in] -> [rows, n_in + len(columns) * width].

    The embedding of a number is relu(cos(2 pi coefficients x + phases) weight + bias), `width` numbers out of
    `frequencies` waves: what a network cannot easily make of one number, steps and bumps, it reads off these.
    Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning" (arXiv 2203.05556), with phases as
    Holzmueller et al. (RealMLP, arXiv 2407.04491). columns: the positions of the numbers. scale: the standard deviation
    of the first coefficients. members: one embedding for each member of an Ensemble, [members, rows, ...]; None: one.
    """

    def __init__(
        self, n_in: int, columns: Sequence[int], frequencies: int = 16, width: int = 4, scale: float = 0.2,
        members: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        need_positive("Periodic", n_in=n_in, frequencies=frequencies, width=width, members=members or 1)
        self.n_in, self.columns, self.scale = n_in, tuple(int(c) for c in columns), float(scale)
        if not self.columns or any(not 0 <= c < n_in for c in self.columns):
            raise ShapeError(f"Periodic: columns={list(self.columns)!r:.60}; need positions from 0 to {n_in - 1}")
        if not 0 < self.scale < math.inf:
            raise SettingError(setting="scale", seen=scale, need="a number above 0", place="Periodic")
        self.members = members
        networks = members or 1
        count, bound = len(self.columns) * networks, 1 / math.sqrt(frequencies)
        shape, waves = (count, 1, frequencies), (frequencies,)
        self.coefficients = stacked(self.parameter(shape, normal(self.scale)), waves, networks)
        self.phases = stacked(self.parameter(shape, uniform(math.pi)), waves, networks)
        weight = self.parameter((count, frequencies, width), uniform(bound))
        self.weight = stacked(weight, (frequencies, width), networks, transposed=True)
        self.bias = stacked(self.parameter((count, 1, width), uniform(bound)), (width,), networks)

    def arguments(self) -> dict[str, Any]:
        _, frequencies, width = self.weight.shape
        return {
            "n_in": self.n_in, "columns": list(self.columns), "frequencies": frequencies, "width": width,
            "scale": self.scale, "members": self.members,
        }  # fmt: skip

    def forward(self, x: Value) -> Value:
        if x.ndim != 2 or x.shape[1] != self.n_in:
            raise ShapeError(f"Periodic: got {describe(x)}; need [rows, {self.n_in}]")
        rows, members, count = x.shape[0], self.members or 1, len(self.columns)
        places = np.tile(np.array(self.columns, np.int32), members)
        numbers = ops.reshape(ops.get_rows(ops.permute(x, (1, 0)), constant(places)), (len(places), rows, 1))
        waves = ops.cos(numbers * (self.coefficients * (2 * math.pi)) + self.phases)
        made = ops.reshape(ops.relu(ops.matmul(waves, self.weight) + self.bias), (members, count, rows, -1))
        made = ops.reshape(ops.permute(made, (0, 2, 1, 3)), (members, rows, -1))
        if self.members is None:
            return ops.concat([ops.reshape(made, (rows, -1)), x], axis=1)
        return ops.concat([made, _to_each(x, members)], axis=2)


def _to_each(x: Value, members: int) -> Value:
    """[rows, ...] as [members, rows, ...]."""
    return ops.broadcast_to(ops.reshape(x, (1, *x.shape)), (members, *x.shape))


def _members_of(layer: Module) -> int | None:
    """Of a layer that is one for each member: how many."""
    if isinstance(layer, MemberLinear):
        return int(layer.weight.shape[0])
    return layer.members if isinstance(layer, Periodic) else None


class Ensemble(Sequential):
    """Several networks that are trained side by side, and averaged: x [rows, ...] -> [rows, outputs].

    layers: those before the first one of each member (MemberLinear, Periodic(members=)) are shared by all. In training
    it returns the outputs of each member for each row, [rows, members, outputs], of which gl.fit takes the mean loss:
    each learns for itself. In evaluation they are averaged: the outputs, or, of logits, the probabilities, whose
    logarithms are the outputs (the loss "mse" requires average="outputs").
    dropout: the share of the outputs of each MemberLinear but the last that a step of training leaves out.
    shortcut: the features of a row, [rows, shortcut], of which each member adds a linear function to its outputs; None:
    it does not. So the linear part is learned at once, and the layers learn the rest.
    heads: numbers of consecutive outputs that are one head each, for average="probabilities": of two and more logits
    probabilities are averaged, of one the output itself; None: all outputs are the logits of one head.
    Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles"
    (arXiv 1612.01474).
    """

    def __init__(
        self, *layers: Module, average: str = "probabilities", dropout: float = 0.0, shortcut: int | None = None,
        heads: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(*layers)
        if average not in AVERAGES:
            raise SettingError(setting="average", seen=average, need=f"one of {', '.join(AVERAGES)}", place="Ensemble")
        counts = {count for one in layers if (count := _members_of(one)) is not None}
        if len(counts) != 1 or not isinstance(layers[-1], MemberLinear):
            raise ShapeError(
                f"Ensemble: layers for {sorted(counts)} members; need layers with equal numbers of members, and a "
                "MemberLinear as the last one"
            )
        self.average, self.dropout = average, Dropout(dropout)
        members, _, outputs = layers[-1].weight.shape
        self.shortcut = None if shortcut is None else MemberLinear(members, shortcut, outputs)
        self.heads = None if heads is None else tuple(int(width) for width in heads)
        is_split = self.heads is None or (min(self.heads, default=0) > 0 and sum(self.heads) == outputs)
        if not is_split or (self.heads is not None and average != "probabilities"):
            need = f"numbers above 0 that add up to the {outputs} outputs, with average='probabilities'"
            raise SettingError(setting="heads", seen=list(self.heads or ()), need=need, place="Ensemble")

    @property
    def members(self) -> int:
        last = self.layers[-1]
        assert isinstance(last, MemberLinear)
        return int(last.weight.shape[0])

    @property
    def shared(self) -> list[Module]:
        """The layers that all members have in common."""
        return list(itertools.takewhile(lambda layer: _members_of(layer) is None, self.layers))

    def arguments(self) -> dict[str, Any]:
        features = None if self.shortcut is None else self.shortcut.weight.shape[1]
        heads = None if self.heads is None else list(self.heads)
        return {"average": self.average, "dropout": self.dropout.rate, "shortcut": features, "heads": heads}

    def forward(self, x: Value) -> Value:
        each = self.of_each(x)
        return each if self.training else self.averaged(each)

    def of_each(self, x: Value) -> Value:
        """The outputs of each member for each row: [rows, members, outputs]."""
        first, given = len(self.shared), x
        for layer in self.layers[:first]:
            x = layer(x)
        if isinstance(self.layers[first], MemberLinear):
            x = _to_each(x, self.members)
        for layer in self.layers[first:]:
            x = layer(x)
            if isinstance(layer, MemberLinear) and layer is not self.layers[-1] and self.dropout.rate:
                x = ops.permute(self.dropout(ops.permute(x, (1, 0, 2))), (1, 0, 2))  # its numbers go by rows
        if self.shortcut is not None:
            x = x + self.shortcut(_to_each(given, self.members))
        return ops.permute(x, (1, 0, 2))

    def averaged(self, each: Value, counted: Value | None = None) -> Value:
        """The average of [rows, members, outputs] over the members: [rows, outputs]. counted: 1 for those that count of
        a row, one at least, and 0 for the others, [rows, members]; None: all count."""
        if counted is not None:
            counted = ops.reshape(counted, (*counted.shape, 1))
        if self.average == "outputs":
            return _mean(each, counted)
        if self.heads is None:
            return _mean_of_shares(each, counted)
        rows, members, _ = each.shape
        parts, at = [], 0
        for width, same in itertools.groupby(self.heads):
            count = len(list(same))
            part = ops.slice(each, (0, 0, at), (rows, members, at + count * width))
            at += count * width
            if width == 1:
                parts.append(_mean(part, counted))
            else:
                heads = ops.reshape(part, (rows, members, count, width))
                own = None if counted is None else ops.reshape(counted, (rows, members, 1, 1))
                parts.append(ops.reshape(_mean_of_shares(heads, own), (rows, count * width)))
        return ops.concat(parts, axis=1)


def _mean_of_shares(each: Value, counted: Value | None) -> Value:
    """The logarithm of the mean probabilities of logits [rows, members, ..., classes] over the members; counted as for
    _mean, [rows, members, ..., 1]."""
    logs = ops.log_softmax(each, -1)
    if counted is not None:
        logs = ops.where(ops.greater(counted, 0.0), logs, _UNLIKELY)
    most = ops.max(logs, axes=1)
    shares = ops.exp(logs - ops.reshape(most, (most.shape[0], 1, *most.shape[1:])))
    return ops.log(_mean(shares, counted)) + most


def _mean(each: Value, counted: Value | None) -> Value:
    """Over the members, as of Ensemble.averaged; counted [rows, members, 1]."""
    return ops.mean(each, axes=1) if counted is None else ops.sum(each * counted, axes=1) / ops.sum(counted, axes=1)
