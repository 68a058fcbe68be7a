"""Recurrent layers: their steps are written into the graph one after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import ops
from ..base.arguments import as_bool, as_whole
from ..base.dtypes import f32, i32
from ..base.errors import DTypeError, SettingError, ShapeError
from ..graph.leaves import as_value
from ..graph.scope import scope
from ..graph.value import Value, describe
from .initial import uniform
from .layers import Dropout, need_positive
from .module import Module

State = tuple[Value, ...]
NONLINEARITIES = {"tanh": ops.tanh, "relu": ops.relu}


class _Recurrent(Module):
    """Layers of steps over time. A subclass has `gates`, blocks of rows of each weight, and `step`."""

    gates = 1
    states = 1  # arrays of a state: h, or h and c
    adds_products = True  # `step` reads the sum of both products alone

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self._declare(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def _declare(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int = 0,
    ) -> None:
        """Set the settings and declare the parameters. proj_size: the extent of h where it is not hidden_size."""
        place = type(self).__name__
        need_positive(place, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first = as_bool("batch_first", batch_first, place)
        self.has_bias = as_bool("bias", bias, place)
        self.suffixes = ("", "_reverse") if as_bool("bidirectional", bidirectional, place) else ("",)
        self.dropout = Dropout(dropout)
        if dropout and num_layers == 1:
            raise SettingError(f"{place}: dropout={dropout} is between layers; requires num_layers of at least 2")
        self.h_size = proj_size or hidden_size
        begin, rows = uniform(1 / math.sqrt(hidden_size)), self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else self.h_size * len(self.suffixes)
            for suffix in self.suffixes:
                at = f"l{layer}{suffix}"
                setattr(self, f"weight_ih_{at}", self.parameter((rows, width), begin))
                setattr(self, f"weight_hh_{at}", self.parameter((rows, self.h_size), begin))
                if self.has_bias:
                    setattr(self, f"bias_ih_{at}", self.parameter((rows,), begin))
                    setattr(self, f"bias_hh_{at}", self.parameter((rows,), begin))
                if proj_size:
                    setattr(self, f"weight_hr_{at}", self.parameter((proj_size, hidden_size), begin))

    def arguments(self) -> dict[str, Any]:
        return {
            "input_size": self.input_size, "hidden_size": self.hidden_size, "num_layers": self.num_layers,
            "bias": self.has_bias, "batch_first": self.batch_first, "dropout": self.dropout.rate,
            "bidirectional": len(self.suffixes) == 2,
        }  # fmt: skip

    def step(self, x: Value, h: Value, state: State) -> State:
        """The state after a step. x, h: the products of the input and of state[0] with the weights, [N, gates * H]."""
        raise NotImplementedError

    def forward(self, x: Value, state: Any = None, lengths: object | None = None) -> tuple[Value, Any]:
        """(outputs, state) of a sequence x [T, N, input_size], or [N, T, input_size] with batch_first=True.

        state    of all layers before the first step, [num_layers * directions, N, hidden_size]; of an LSTM a pair
                 (h, c) of such, with proj_size in place of hidden_size in h; zeros when not given
        lengths  i32, or f32 (cut to whole numbers), [N]: row n has lengths[n] steps, 0 to T; others are a DataError in
                 the run. Outputs after its last step are 0, the state is that of its last step, and the other
                 direction begins there: PyTorch's packed sequences

        Outputs of the last layer are [T, N, directions * hidden_size], or [N, T, ...], with proj_size in place of
        hidden_size where there is one. The second direction is the second half. Raises ShapeError for other shapes,
        DTypeError for lengths of another dtype.
        """
        place = type(self).__name__
        if x.ndim != 3 or x.shape[2] != self.input_size or not x.size:
            need = f"[{'rows, steps' if self.batch_first else 'steps, rows'}, {self.input_size}]"
            raise ShapeError(f"{place}: got {describe(x)}; need {need}, not empty")
        rows_first = x if self.batch_first else ops.permute(x, (1, 0, 2))
        n, t = rows_first.shape[:2]
        given = self._given_state(state, n)
        seen = None if lengths is None else _seen(place, lengths, n, t)
        ends: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                rows_first = self.dropout(rows_first)
            halves = []
            for suffix in self.suffixes:
                outputs, end = self._run(rows_first, f"l{layer}{suffix}", given[len(ends)], seen)
                halves.append(outputs)
                ends.append(end)
            rows_first = ops.concat(halves, 2)
        found = tuple(ops.stack([end[i] for end in ends]) for i in range(self.states))
        outputs = rows_first if self.batch_first else ops.permute(rows_first, (1, 0, 2))
        return outputs, found if self.states > 1 else found[0]

    def _given_state(self, state: Any, n: int) -> list[State]:
        """The first state of each layer and direction, h and c [N, H]."""
        count = self.num_layers * len(self.suffixes)
        widths = (self.h_size, self.hidden_size)[: self.states]
        if state is None:
            return [tuple(ops.broadcast_to(0.0, (n, width)) for width in widths)] * count
        place, shapes = type(self).__name__, [(count, n, width) for width in widths]
        parts = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        arrays = [as_value(part) for part in parts]
        if [array.shape for array in arrays] != shapes:
            each = [str(list(shape)) for shape in shapes]
            need = f"shape {each[0]}"
            if self.states > 1:
                need = f"a pair (h, c) of shape {f'{each[0]} each' if each[0] == each[1] else ' and '.join(each)}"
            raise ShapeError(f"{place}: state is {', '.join(map(describe, arrays))}; need {need}")
        return [tuple(array[i] for array in arrays) for i in range(count)]

    def _run(self, x: Value, at: str, state: State, seen: list[Value] | None) -> tuple[Value, State]:
        """One layer in one direction over x [N, T, ...]: outputs [N, T, H], in the order of x, and the last state."""
        n, t = x.shape[:2]
        by_step = ops.reshape(ops.permute(x, (1, 0, 2)), (t * n, x.shape[2]))
        products = ops.matmul(by_step, getattr(self, f"weight_ih_{at}"), transpose_y=True)
        bias = None
        if self.has_bias:
            before, bias = getattr(self, f"bias_ih_{at}"), getattr(self, f"bias_hh_{at}")
            if self.adds_products:  # both biases once for all steps
                before, bias = before + bias, None
            products = products + before
        products = ops.reshape(products, (t, n, products.shape[1]))
        weight = ops.permute(getattr(self, f"weight_hh_{at}"), (1, 0))
        projection = getattr(self, f"weight_hr_{at}", None)
        projection = None if projection is None else ops.permute(projection, (1, 0))
        steps = list(range(t))
        outputs: dict[int, Value] = {}
        for t in reversed(steps) if at.endswith("_reverse") else steps:
            h = ops.matmul(state[0], weight)
            new = self.step(products[t], h if bias is None else h + bias, state)
            if projection is not None:
                new = (ops.matmul(new[0], projection), *new[1:])
            outputs[t] = new[0] if seen is None else ops.where(seen[t], new[0], 0.0)
            state = new if seen is None else tuple(ops.where(seen[t], a, b) for a, b in zip(new, state, strict=True))
        return ops.stack([outputs[t] for t in steps], 1), state


def _seen(place: str, lengths: object, n: int, t: int) -> list[Value]:
    """Of each step which rows have it, u8 [N, 1]."""
    given = as_value(lengths)
    if given.dtype not in (i32, f32):
        raise DTypeError(f"{place}: lengths are {describe(given)}; need whole numbers (i32), or f32")
    if given.shape != (n,):
        raise ShapeError(f"{place}: lengths are {describe(given)}; need one for each of {n} rows")
    table = np.tril(np.ones((t + 1, t), np.float32), -1)  # row k: k steps; other numbers are errors of the lookup
    with scope("lengths"):
        rows = ops.get_rows(as_value(table), ops.cast(given, i32))
    return [ops.greater(rows[:, i : i + 1], 0.5) for i in range(t)]


class RNN(_Recurrent):
    """Elman network: h = tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh) at each step.

    input_size, hidden_size   extents of a step's input and of h
    num_layers                layers, of which each reads the outputs of the one before; 1 by default
    nonlinearity              "tanh" (the default) or "relu"
    bias                      both biases; True by default
    batch_first               False (the default, as in PyTorch): x is [T, N, input_size]; True: [N, T, input_size], as
                              rows of gl.fit are
    dropout                   in training, of the outputs of each layer but the last; 0 by default
    bidirectional             a second direction from the last step to the first; False by default

    Parameters, by layer k: weight_ih_lk [hidden_size, inputs], weight_hh_lk [hidden_size, hidden_size], bias_ih_lk and
    bias_hh_lk [hidden_size]; of the second direction with the suffix _reverse. Initialisation as in PyTorch: all
    U(-1/sqrt(hidden_size), 1/sqrt(hidden_size)). forward(x, state, lengths) returns (outputs, state). The steps are
    part of the graph: another number of steps is another program. Raises ShapeError for sizes below 1, SettingError for
    other settings.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        if nonlinearity not in NONLINEARITIES:
            raise SettingError(setting="nonlinearity", seen=nonlinearity, need="'tanh' or 'relu'", place="RNN")
        self.nonlinearity = nonlinearity

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"nonlinearity": self.nonlinearity}

    def step(self, x: Value, h: Value, state: State) -> State:
        return (NONLINEARITIES[self.nonlinearity](x + h),)


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997): with i, f, g, o the quarters of x @ weight_ih.T +
    bias_ih + h @ weight_hh.T + bias_hh, c = sigmoid(f) * c + sigmoid(i) * tanh(g), h = sigmoid(o) * tanh(c).

    Arguments, parameters and initialisation as of RNN, without nonlinearity; weights and biases have 4 * hidden_size
    rows. A state is a pair (h, c), each [num_layers * directions, N, hidden_size].

    proj_size   the extent of h where it is above 0 and below hidden_size: h is then weight_hr @ (sigmoid(o) * tanh(c)),
                weight_hr_lk [proj_size, hidden_size] (Sak et al. 2014, arXiv 1402.1128); 0 by default: none
    """

    gates, states = 4, 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ) -> None:
        Module.__init__(self)
        self.proj_size = as_whole("proj_size", proj_size, 0, "LSTM")
        if self.proj_size and self.proj_size >= hidden_size:
            raise SettingError(f"LSTM: proj_size={proj_size}; must be below hidden_size={hidden_size}")
        how = (num_layers, bias, batch_first, dropout, bidirectional, self.proj_size)
        self._declare(input_size, hidden_size, *how)

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"proj_size": self.proj_size or None}

    def step(self, x: Value, h: Value, state: State) -> State:
        h, c, _ = ops.lstm_cell(x, h, state[1])
        return h, c


def gru_step(x: Value, h: Value, before: Value) -> Value:
    """The next state [N, H] of a GRU from both products with their biases, [N, 3 * H] each, and the state before."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = ops.split(x, 3, 1), ops.split(h, 3, 1)
    r, z = ops.sigmoid(r_x + r_h), ops.sigmoid(z_x + z_h)
    n = ops.tanh(n_x + r * n_h)
    return n + z * (before - n)


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al. 2014), with the reset gate after the product, as in PyTorch: with r, z, n the
    thirds of both products with their biases, r = sigmoid(r_x + r_h), z = sigmoid(z_x + z_h),
    n = tanh(n_x + r * n_h), h = (1 - z) * n + z * h.

    Arguments, parameters and initialisation as of RNN, without nonlinearity; weights and biases have 3 * hidden_size
    rows.
    """

    gates = 3
    adds_products = False

    def step(self, x: Value, h: Value, state: State) -> State:
        return (gru_step(x, h, state[0]),)
