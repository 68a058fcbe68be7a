"""The ops of a forward pass as nodes of ONNX: a line per op in OPS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.dtypes import DType
from .graph_writer import Extent, GraphWriter


@dataclass(frozen=True)
class Call:
    """One node to be written. inputs: the names of its inputs in ONNX, None for an absent one; attrs: its attributes,
    with a Batch for whole numbers that depend on the rows; shapes: of its inputs; shape, dtype: of its first output."""

    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]
    shapes: tuple[Any, ...]
    shape: tuple[Extent, ...]
    dtype: DType
    read: tuple[bool, ...]  # which outputs are read


Emit = Callable[[GraphWriter, Call], "str | None"]


def kind_of(dtype: DType) -> np.dtype:
    """The dtype of a value in ONNX: halves and quantised numbers are f32 there."""
    is_real = dtype.is_quantised or dtype.name in ("f16", "bf16")
    return np.dtype(np.float32) if is_real else dtype.numpy


def _plain(name: str, **attributes: Any) -> Emit:
    return lambda w, c: w(name, *c.inputs, **attributes)


def _compared(name: str) -> Emit:
    return lambda w, c: w.cast(w(name, *c.inputs), np.uint8)


def _reduced(name: str) -> Emit:
    def emit(w: GraphWriter, c: Call) -> str:
        axes = c.attrs["axes"]
        return w(name, c.inputs[0], w.wholes(axes), keepdims=int(c.attrs["keepdims"])) if axes else c.inputs[0]

    return emit


def _gelu(w: GraphWriter, c: Call) -> str:
    (x,) = c.inputs
    share = w("Add", w("Erf", w("Mul", x, w.number(math.sqrt(0.5)))), w.number(1))
    return w("Mul", w("Mul", x, share), w.number(0.5))


def _gelu_tanh(w: GraphWriter, c: Call) -> str:
    (x,) = c.inputs
    cube = w("Mul", w("Mul", w("Mul", x, x), x), w.number(0.044715))
    inner = w("Tanh", w("Mul", w("Add", x, cube), w.number(math.sqrt(2 / math.pi))))
    return w("Mul", w("Mul", x, w("Add", inner, w.number(1))), w.number(0.5))


def _scale(w: GraphWriter, c: Call) -> str:
    x, factor, bias = c.inputs[0], c.attrs["factor"], c.attrs["bias"]
    x = x if factor == 1 else w("Mul", x, w.number(factor))
    return w("Add", x, w.number(bias)) if bias else x


def _clamp(w: GraphWriter, c: Call) -> str:
    low, high = (w.number(value) if math.isfinite(value) else "" for value in (c.attrs["min"], c.attrs["max"]))
    return w("Clip", c.inputs[0], low, high)


def _cast(w: GraphWriter, c: Call) -> str:
    return w.cast(c.inputs[0], kind_of(c.dtype))


def _reshape(w: GraphWriter, c: Call) -> str:
    return w("Reshape", c.inputs[0], w.extents(c.attrs["shape"]), allowzero=int(0 in c.attrs["shape"]))


def _slice(w: GraphWriter, c: Call) -> str:
    starts, stops, steps = (c.attrs[name] for name in ("starts", "stops", "steps"))
    cut = [a for a, n in enumerate(c.shapes[0]) if (starts[a], stops[a], steps[a]) != (0, n, 1)]
    if not cut:
        return str(c.inputs[0])
    starts, stops, steps = (w.extents([values[a] for a in cut]) for values in (starts, stops, steps))
    return w("Slice", c.inputs[0], starts, stops, w.wholes(cut), steps)


def _broadcast(w: GraphWriter, c: Call) -> str:
    return w("Expand", c.inputs[0], w.extents(c.attrs["shape"]))


def _pad(w: GraphWriter, c: Call) -> str | None:
    if any(c.attrs["interior"]):
        return None
    return w("Pad", c.inputs[0], w.extents([*c.attrs["before"], *c.attrs["after"]]), w.number(c.attrs["value"]))


def _argmax(w: GraphWriter, c: Call) -> str:
    return w.cast(w("ArgMax", c.inputs[0], axis=c.attrs["axis"], keepdims=0), np.int32)


def _window(c: Call) -> dict[str, Any]:
    vertical, horizontal = c.attrs["padding"]
    made = {"strides": list(c.attrs["stride"]), "pads": [vertical, horizontal, vertical, horizontal]}
    return made | ({"dilations": list(c.attrs["dilation"])} if "dilation" in c.attrs else {})


def _conv(w: GraphWriter, c: Call) -> str:
    made = w("Conv", *(x for x in c.inputs if x is not None), **_window(c))
    return w("Relu", made) if c.attrs["act"] == "relu" else made


def _conv_groups(w: GraphWriter, c: Call) -> str:
    return w("Conv", *(x for x in c.inputs if x is not None), group=c.attrs["groups"], **_window(c))


def _conv_transpose(w: GraphWriter, c: Call) -> str:
    how = zip(c.shapes[0][2:], c.shapes[1][2:], *(c.attrs[n] for n in ("stride", "padding", "dilation")), strict=True)
    least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in how]
    more = [c.attrs[name] - n for name, n in zip(("height", "width"), least, strict=True)]
    return w("ConvTranspose", *c.inputs, output_padding=more, **_window(c))


def _max_pool(w: GraphWriter, c: Call) -> str | None:
    return None if any(c.read[1:]) else w("MaxPool", c.inputs[0], kernel_shape=list(c.attrs["kernel"]), **_window(c))


def _average_pool(w: GraphWriter, c: Call) -> str:
    return w("AveragePool", c.inputs[0], kernel_shape=list(c.attrs["kernel"]), count_include_pad=1, **_window(c))


def _trunc(w: GraphWriter, c: Call) -> str:
    (x,) = c.inputs
    return w("Mul", w("Sign", x), w("Floor", w("Abs", x)))


def _remainder(w: GraphWriter, c: Call) -> str:
    """With the sign of y: ONNX has that of x for real numbers."""
    x, y = c.inputs
    rest = w("Mod", x, y, fmod=1)
    is_other = w("Less", w("Mul", w("Sign", rest), w("Sign", y)), w.number(0))
    return w("Where", is_other, w("Add", rest, y), rest)


def _cumsum(w: GraphWriter, c: Call) -> str:
    return w("CumSum", c.inputs[0], w.number(c.attrs["axis"], np.int64), reverse=int(c.attrs["reverse"]))


def _argsort(w: GraphWriter, c: Call) -> str:
    how = {"axis": c.attrs["axis"], "largest": int(c.attrs["descending"]), "sorted": 1}
    return w.cast(w.many("TopK", [c.inputs[0], w.extents([c.attrs["count"]])], 2, **how)[1], np.int32)


def _scattered(w: GraphWriter, c: Call) -> str:
    g, ids = c.inputs
    zeros = w("Expand", w.number(0), w.extents(c.shape))
    return w("ScatterElements", zeros, ids, g, axis=c.attrs["axis"], reduction="add")


def _layer_norm(w: GraphWriter, c: Call) -> str:
    ones = w.array(np.ones(c.shape[-1], np.float32))
    return w("LayerNormalization", c.inputs[0], ones, axis=-1, epsilon=c.attrs["eps"])


def _softmax(w: GraphWriter, c: Call) -> str:
    x, mask = c.inputs
    x = x if c.attrs["scale"] == 1 else w("Mul", x, w.number(c.attrs["scale"]))
    return w("Softmax", x if mask is None else w("Add", x, mask), axis=-1)


# Op -> its nodes, as the name of their output; None where ONNX has none for these attributes. Ops that are not listed
# are written as their compositions.
OPS: dict[str, Emit] = {
    "neg": _plain("Neg"),
    "abs": _plain("Abs"),
    "sgn": _plain("Sign"),
    "step": lambda w, c: w.cast(w("Greater", c.inputs[0], w.number(0)), np.float32),
    "sqr": lambda w, c: w("Mul", c.inputs[0], c.inputs[0]),
    "sqrt": _plain("Sqrt"),
    "exp": _plain("Exp"),
    "expm1": lambda w, c: w("Sub", w("Exp", c.inputs[0]), w.number(1)),
    "log": _plain("Log"),
    "erf": _plain("Erf"),
    "floor": _plain("Floor"),
    "ceil": _plain("Ceil"),
    "round": _plain("Round"),
    "trunc": _trunc,
    "remainder": _remainder,
    "sin": _plain("Sin"),
    "cos": _plain("Cos"),
    "relu": _plain("Relu"),
    "leaky_relu": lambda w, c: w("LeakyRelu", c.inputs[0], alpha=c.attrs["slope"]),
    "elu": lambda w, c: w("Elu", c.inputs[0], alpha=c.attrs["alpha"]),
    "sigmoid": _plain("Sigmoid"),
    "tanh": _plain("Tanh"),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda w, c: w("Mul", c.inputs[0], w("Sigmoid", c.inputs[0])),
    "softplus": _plain("Softplus"),
    "clamp": _clamp,
    "scale": _scale,
    "add": _plain("Add"),
    "sub": _plain("Sub"),
    "mul": _plain("Mul"),
    "div": _plain("Div"),
    "pow": _plain("Pow"),
    "maximum": _plain("Max"),
    "minimum": _plain("Min"),
    "equal": _compared("Equal"),
    "less": _compared("Less"),
    "greater": _compared("Greater"),
    "where": lambda w, c: w("Where", w.cast(c.inputs[0], np.bool_), *c.inputs[1:]),
    "cast": _cast,
    "reshape": _reshape,
    "permute": lambda w, c: w("Transpose", c.inputs[0], perm=list(c.attrs["axes"])),
    "slice": _slice,
    "broadcast_to": _broadcast,
    "detach": lambda w, c: c.inputs[0],
    "copy": lambda w, c: c.inputs[0],
    "concat": lambda w, c: w("Concat", *c.inputs, axis=c.attrs["axis"]),
    "pad": _pad,
    "matmul": _plain("MatMul"),
    "sum": _reduced("ReduceSum"),
    "mean": _reduced("ReduceMean"),
    "max": _reduced("ReduceMax"),
    "min": _reduced("ReduceMin"),
    "argmax": _argmax,
    "conv2d": _conv,
    "conv2d_groups": _conv_groups,
    "conv2d_back_input": _conv_transpose,
    "max_pool2d": _max_pool,
    "avg_pool2d": _average_pool,
    "cumsum": _cumsum,
    "argsort": _argsort,
    "gather": lambda w, c: w("GatherElements", *c.inputs, axis=c.attrs["axis"]),
    "gather_back": _scattered,
    "get_rows": _plain("Gather", axis=0),
    "layer_norm": _layer_norm,
    "softmax": _softmax,
    "log_softmax": _plain("LogSoftmax", axis=-1),
}


def emitted(w: GraphWriter, op: str, call: Call) -> Sequence[str] | None:
    """The names of the outputs that are written; None where there is no entry for these attributes."""
    made = OPS[op](w, call)
    return None if made is None else [made]
