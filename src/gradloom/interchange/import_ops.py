"""Ops of ONNX as our ops: a line per op in IMPORTS.

An entry is called with the node and its inputs: values of the graph, arrays that are known when the graph is built
(shapes, constants), or None for an absent one. Where all inputs are arrays, the result is an array, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .. import ops
from ..graph.value import Value
from .import_layers import (
    arg_max,
    average_pool,
    batch_norm,
    conv,
    conv_transpose,
    gemm,
    group_norm,
    instance_norm,
    layer_norm,
    matmul,
    max_pool,
    of_rows,
    of_whole_images,
    prelu,
    product,
    reduced,
    rms_norm,
    softmax_of,
)
from .import_nodes import (
    Entry,
    ErrorFunction,
    OnnxNode,
    Operand,
    check_size,
    factor_of,
    is_known,
    known,
    remember,
    value_of,
)
from .import_recurrent import RECURRENT
from .import_resize import resize, upsample
from .import_shapes import (
    concat,
    constant_of_shape,
    cumsum,
    expand,
    flatten,
    gather,
    gather_elements,
    pad,
    reshape,
    shape_of,
    sliced,
    split,
    squeeze,
    tile,
    transpose,
    trilu,
    unsqueeze,
    whole_range,
)


def _unary(function: Entry, of_arrays: Entry | None = None) -> Entry:
    def entry(node: OnnxNode, x: Operand) -> Operand:
        return of_arrays(x) if of_arrays is not None and is_known(x) else function(value_of(x))

    return entry


def _binary(function: Entry, of_arrays: Entry) -> Entry:
    def entry(node: OnnxNode, *given: Operand) -> Operand:
        made = given[0]
        for other in given[1:]:
            if is_known(made, other):
                check_size(node, np.broadcast_shapes(np.shape(made), np.shape(other)))
                made = np.asarray(of_arrays(made, other))
            else:
                made = function(value_of(made), value_of(other))
        return made

    return entry


def _number(x: Operand) -> float | None:
    return float(x.reshape(())) if isinstance(x, np.ndarray) and x.size == 1 and x.dtype.kind == "f" else None


def _scaling(node: OnnxNode, x: Operand, factor: float) -> Value:
    """x * factor, remembered for the error function."""
    made = ops.scale(value_of(x), factor=factor)
    first, before = factor_of(x)
    remember(made, first, before * factor)
    return made


def _mul(node: OnnxNode, x: Operand, y: Operand) -> Operand:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, ErrorFunction):
            first, factor = factor_of(other)
            if one.plus_one and first is one.x:
                return _scaling(node, ops.gelu(one.x), 2 * factor)
            return _mul(node, one.value(), other.value() if isinstance(other, ErrorFunction) else other)
        number = _number(other)
        if number is not None and isinstance(one, Value) and one.ndim >= np.ndim(other):
            return _scaling(node, one, number)
    return _binary(ops.mul, np.multiply)(node, x, y)


def _div(node: OnnxNode, x: Operand, y: Operand) -> Operand:
    number = _number(y)
    if number and isinstance(x, Value) and x.ndim >= np.ndim(y):
        return _scaling(node, x, 1 / number)
    if is_known(x, y) and np.asarray(x).dtype.kind == "i":  # towards 0
        if not np.all(y):
            raise node.fault("a division of whole numbers by 0")
        return np.asarray(np.trunc(np.divide(x, y))).astype(np.asarray(x).dtype)
    return _binary(ops.div, np.divide)(node, x, y)


def _add(node: OnnxNode, x: Operand, y: Operand) -> Operand:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, ErrorFunction):
            if not one.plus_one and _number(other) == 1:
                return ErrorFunction(one.x, one.scaled, True)
            return ops.add(one.value(), value_of(other))
    return _binary(ops.add, np.add)(node, x, y)


def _erf(node: OnnxNode, x: Operand) -> Operand:
    scaled = value_of(x)
    first, factor = factor_of(x)
    return ErrorFunction(first, scaled) if abs(factor - math.sqrt(0.5)) < 1e-6 else ops.erf(scaled)


def _clip(node: OnnxNode, x: Operand, low: Operand = None, high: Operand = None) -> Operand:
    limits = []
    for name, given, default in (("min", low, -math.inf), ("max", high, math.inf)):
        limits.append(float(node.get(name, default) if given is None else known(node, given, name).reshape(())))
    return np.clip(x, limits[0], limits[1]) if is_known(x) else ops.clamp(x, min=limits[0], max=limits[1])


def _hard_sigmoid(node: OnnxNode, x: Value) -> Value:
    return ops.clamp(ops.scale(x, factor=node.get("alpha", 0.2), bias=node.get("beta", 0.5)), min=0.0, max=1.0)


def _gelu(node: OnnxNode, x: Value) -> Value:
    return ops.gelu_tanh(x) if node.get("approximate", b"none") == b"tanh" else ops.gelu(x)


def _swish(node: OnnxNode, x: Value) -> Value:
    node.need(alpha=1.0)
    return ops.silu(x)


def _where(node: OnnxNode, condition: Operand, x: Operand, y: Operand) -> Operand:
    if is_known(condition, x, y):
        check_size(node, np.broadcast_shapes(np.shape(condition), np.shape(x), np.shape(y)))
        return np.where(condition, x, y)
    return ops.where(value_of(condition), value_of(x), value_of(y))


def _cast(node: OnnxNode, x: Operand) -> Operand:
    kind = node.attributes["to"]  # a NumPy dtype, by the reader
    if is_known(x):
        return x.astype(kind)
    if kind == np.bool_:
        return x if x.dtype.name == "u8" else ops.sub(1.0, ops.cast(ops.equal(x, 0.0), "f32"))
    name = {"float32": "f32", "float16": "f32", "float64": "f32", "bfloat16": "f32", "int64": "i32", "int32": "i32",
            "uint8": "u8", "int8": "i8"}.get(kind.name)  # fmt: skip
    if name is None:
        raise node.fault(f"to {kind.name}; need f32, i32 or u8")
    return ops.cast(x, name)


def _same(node: OnnxNode, x: Operand, *_: Operand) -> Operand:
    return x


def _dropout(node: OnnxNode, x: Operand, ratio: Operand = None, training: Operand = None) -> Operand:
    if training is not None and known(node, training, "training_mode").any():
        raise node.fault("training_mode=True; need False: gl.nn.Dropout drops in training")
    return x


# Op of ONNX -> ours
IMPORTS: Mapping[str, Entry] = {
    "Abs": _unary(ops.abs, np.abs),
    "Neg": _unary(ops.neg, np.negative),
    "Sign": _unary(ops.sgn, np.sign),
    "Sqrt": _unary(ops.sqrt, np.sqrt),
    "Exp": _unary(ops.exp, np.exp),
    "Log": _unary(ops.log, np.log),
    "Floor": _unary(ops.floor, np.floor),
    "Ceil": _unary(ops.ceil, np.ceil),
    "Round": _unary(ops.round, np.rint),
    "Not": _unary(lambda x: ops.equal(ops.cast(x, "f32"), 0.0), np.logical_not),
    "Sin": _unary(ops.sin, np.sin),
    "Cos": _unary(ops.cos, np.cos),
    "Reciprocal": _unary(lambda x: ops.div(1.0, x), np.reciprocal),
    "Relu": _unary(ops.relu),
    "Sigmoid": _unary(ops.sigmoid),
    "Tanh": _unary(ops.tanh),
    "Softplus": _unary(ops.softplus),
    "Mish": _unary(ops.mish),
    "HardSwish": _unary(ops.hardswish),
    "HardSigmoid": _hard_sigmoid,
    "Elu": lambda node, x: ops.elu(x, alpha=node.get("alpha", 1.0)),
    "LeakyRelu": lambda node, x: ops.leaky_relu(x, slope=node.get("alpha", 0.01)),
    "PRelu": prelu,
    "Gelu": _gelu,
    "Swish": _swish,
    "Erf": _erf,
    "Clip": _clip,
    "Add": _add,
    "Sub": _binary(ops.sub, np.subtract),
    "Mul": _mul,
    "Div": _div,
    "Pow": _binary(ops.pow, np.power),
    "Max": _binary(ops.maximum, np.maximum),
    "Min": _binary(ops.minimum, np.minimum),
    "Sum": _binary(ops.add, np.add),
    "Equal": _binary(ops.equal, np.equal),
    "Less": _binary(ops.less, np.less),
    "Greater": _binary(ops.greater, np.greater),
    "And": _binary(lambda x, y: ops.minimum(ops.cast(x, "f32"), ops.cast(y, "f32")), np.logical_and),
    "Where": _where,
    "Cast": _cast,
    "Identity": _same,
    "Dropout": _dropout,
    "Shape": shape_of,
    "Reshape": reshape,
    "Flatten": flatten,
    "Transpose": transpose,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": sliced,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Trilu": trilu,
    "CumSum": cumsum,
    "Constant": lambda node: node.attributes["value"],
    "ConstantOfShape": constant_of_shape,
    "Range": whole_range,
    "ReduceSum": reduced(ops.sum, np.sum),
    "ReduceMean": reduced(ops.mean, np.mean),
    "ReduceMax": reduced(ops.max, np.max),
    "ReduceMin": reduced(ops.min, np.min),
    "ReduceProd": reduced(product, np.prod),
    "ReduceL1": reduced(lambda x, *how: ops.sum(ops.abs(x), *how)),
    "ReduceL2": reduced(lambda x, *how: ops.sqrt(ops.sum(ops.sqr(x), *how))),
    "ReduceSumSquare": reduced(lambda x, *how: ops.sum(ops.sqr(x), *how)),
    "ReduceLogSum": reduced(lambda x, *how: ops.log(ops.sum(x, *how))),
    "ReduceLogSumExp": reduced(ops.logsumexp),
    "ArgMax": arg_max,
    "MatMul": matmul,
    "Gemm": gemm,
    "Conv": of_rows(conv),
    "ConvTranspose": of_rows(conv_transpose),
    "MaxPool": of_rows(max_pool),
    "AveragePool": of_rows(average_pool),
    "GlobalAveragePool": of_whole_images(ops.mean),
    "GlobalMaxPool": of_whole_images(ops.max),
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "Softmax": softmax_of(ops.softmax),
    "LogSoftmax": softmax_of(ops.log_softmax),
    "Resize": resize,
    "Upsample": upsample,
    **RECURRENT,
}

# Op of ONNX -> positions of its inputs that are weights, where a file does not name those that are trained
WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "Gemm": (1, 2), "MatMul": (0, 1), "Conv": (1, 2), "ConvTranspose": (1, 2), "BatchNormalization": (1, 2),
    "LayerNormalization": (1, 2), "RMSNormalization": (1,), "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2), "PRelu": (1,), "Gather": (0,), "Add": (0, 1), "Sub": (0, 1), "Mul": (0, 1),
    "Div": (0, 1), "LSTM": (1, 2, 3), "GRU": (1, 2, 3), "RNN": (1, 2, 3),
}  # fmt: skip
STATISTICS: Mapping[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}  # weights that are not trained
