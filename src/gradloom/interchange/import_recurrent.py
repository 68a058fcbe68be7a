"""Recurrent layers of ONNX: their steps are written into the graph one after the other, as those of gl.nn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import ops
from ..graph.value import Value, describe
from ..nn.recurrent import gru_step
from .import_nodes import Entry, OnnxNode, Operand, is_known, known, value_of

MOST_STEPS = 1 << 13  # of both directions: each is a few nodes
State = tuple[Value, ...]
Step = Callable[["_Products", Value, State], State]


@dataclass
class _Products:
    """Of one direction: weight and bias of the state's product, with gates in the order of gl.nn."""

    weight: Value  # [H, gates * H]
    bias: Value | None  # [gates * H]; None where it was added to the product of the input

    def of(self, h: Value) -> Value:
        made = ops.matmul(h, self.weight)
        return made if self.bias is None else ops.add(made, self.bias)


@dataclass(frozen=True)
class _Kind:
    """A recurrent op. order: its gates in the order of gl.nn. activations: of one direction, by default. adds: a step
    reads the sum of both products alone. states: h, or h and c."""

    order: tuple[int, ...]
    activations: tuple[str, ...]
    adds: bool = True
    states: int = 1


_KINDS = {
    "LSTM": _Kind((0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh"), states=2),
    "GRU": _Kind((1, 0, 2), ("Sigmoid", "Tanh"), adds=False),
    "RNN": _Kind((0,), ("Tanh",)),
}


def _lstm_step(products: _Products, x: Value, state: State) -> State:
    return ops.lstm_cell(x, products.of(state[0]), state[1])[:2]


def _gru_step(products: _Products, x: Value, state: State) -> State:
    """The reset gate after the product, as in PyTorch: linear_before_reset=1."""
    return (gru_step(x, products.of(state[0]), state[0]),)


def _gru_step_reset_first(products: _Products, x: Value, state: State) -> State:
    (h,), width = state, state[0].shape[1]
    weights, last = ops.split(products.weight, [2 * width, width], 1)
    biases = [None, None] if products.bias is None else ops.split(products.bias, [2 * width, width])
    (r_x, z_x, n_x) = ops.split(x, 3, 1)
    r_h, z_h = ops.split(_Products(weights, biases[0]).of(h), 2, 1)
    r, z = ops.sigmoid(r_x + r_h), ops.sigmoid(z_x + z_h)
    n = ops.tanh(n_x + _Products(last, biases[1]).of(r * h))
    return (n + z * (h - n),)


def _rnn_step(activation: Callable[[Value], Value]) -> Step:
    return lambda products, x, state: (activation(x + products.of(state[0])),)


def _step_of(node: OnnxNode, directions: int) -> Step:
    kind = _KINDS[node.op]
    found = [one.decode("utf-8", "replace") for one in node.get("activations", [])] or [*kind.activations] * directions
    if node.op == "RNN" and found in (["Relu"] * directions, ["Tanh"] * directions):
        return _rnn_step(ops.relu if found[0] == "Relu" else ops.tanh)
    if found != [*kind.activations] * directions:
        need = "Tanh or Relu, one for all directions" if node.op == "RNN" else ", ".join(kind.activations)
        raise node.fault(f"activations {', '.join(found)!s:.60}; need {need}")
    if node.op == "LSTM":
        return _lstm_step
    return _gru_step if node.get("linear_before_reset", 0) else _gru_step_reset_first


def recurrent(node: OnnxNode, x: Operand, w: Operand, r: Operand, b: Operand = None, lengths: Operand = None,
              h: Operand = None, c: Operand = None, peepholes: Operand = None) -> list[Value]:  # fmt: skip
    """LSTM, GRU or RNN: x [T, N, I], w [D, gates * H, I], r [D, gates * H, H], b [D, 2 * gates * H], h and c [D, N, H]
    -> [T, D, N, H], h and c after the last step; with layout=1 the rows N come first."""
    kind, by_rows = _KINDS[node.op], bool(node.get("layout", 0))
    node.need(input_forget=0)
    for name, given in (("clip", node.get("clip")), ("P (peepholes)", peepholes)):
        if given is not None:
            raise node.fault(f"{name} is not supported; need a layer without it")
    values = [None if one is None else value_of(one) for one in (x, w, r, b, h, c)]
    x, w, r, b = values[:4]
    if x is None or w is None or r is None or x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise node.fault("inputs X, W and R; need three axes each")
    x = x.transpose(1, 0, 2) if by_rows else x
    names = {b"forward": ("forward",), b"reverse": ("reverse",), b"bidirectional": ("forward", "reverse")}
    directions = names.get(node.get("direction", b"forward"), ())
    (steps, n, _), (count, rows, hidden) = x.shape, r.shape
    if count != len(directions) or rows != hidden * len(kind.order) or w.shape[:2] != r.shape[:2]:
        raise node.fault(f"W {describe(w)}, R {describe(r)} with direction={node.get('direction', b'forward')!r:.30}; "
                         f"need [directions, {len(kind.order)} * hidden, ...] both")  # fmt: skip
    if not 0 < steps * count <= MOST_STEPS:
        raise node.fault(f"{steps} steps; need 1 to {MOST_STEPS}, of all directions together")
    if lengths is not None and not (is_known(lengths) and (known(node, lengths, "lengths") == steps).all()):
        raise node.fault(f"sequence_lens; need {steps} steps of each row")
    step = _step_of(node, count)
    zeros = ops.broadcast_to(0.0, (count, n, hidden))
    begin = [zeros if one is None else one.transpose(1, 0, 2) if by_rows else one for one in values[4:]]
    outputs, ends = [], []
    for i, direction in enumerate(directions):
        products, inputs = _products(kind, x, w[i], r[i], None if b is None else b[i])
        state: State = tuple(one[i] for one in begin[: kind.states])
        made: dict[int, Value] = {}
        for t in range(steps) if direction == "forward" else reversed(range(steps)):
            state = step(products, inputs[t], state)
            made[t] = state[0]
        outputs.append(ops.stack([made[t] for t in range(steps)]))
        ends.append(state)
    last = [ops.stack(list(parts), 1 if by_rows else 0) for parts in zip(*ends, strict=True)]
    y = ops.stack(outputs, 1)
    return [y.transpose(2, 0, 1, 3) if by_rows else y, *last]


def _products(kind: _Kind, x: Value, w: Value, r: Value, b: Value | None) -> tuple[_Products, Value]:
    """Of a direction: the products of the state, and those of all inputs, [T, N, gates * H]."""
    (steps, n, width), hidden = x.shape, r.shape[1]

    def ordered(one: Value) -> Value:
        parts = ops.split(one, len(kind.order))
        return ops.concat([parts[i] for i in kind.order]) if len(parts) > 1 else one

    made = ops.matmul(x.reshape(steps * n, width), ordered(w), transpose_y=True)
    after: Value | None = None
    if b is not None:
        before, after = (ordered(half) for half in ops.split(b, 2))
        if kind.adds:
            before, after = ops.add(before, after), None
        made = ops.add(made, before)
    products = _Products(ops.permute(ordered(r), (1, 0)), after)
    return products, made.reshape(steps, n, len(kind.order) * hidden)


RECURRENT: dict[str, Entry] = dict.fromkeys(_KINDS, recurrent)
