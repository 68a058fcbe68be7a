"""Sums, products, convolutions, pools and norms of ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import ops
from ..graph.leaves import as_value
from ..graph.value import Value, describe
from .import_nodes import MOST, Entry, OnnxNode, Operand, axes_of, is_known, value_of


def reduced(function: Entry, of_arrays: Entry | None = None) -> Entry:
    def entry(node: OnnxNode, x: Operand, axes: Operand = None) -> Operand:
        found, keep = axes_of(node, x, axes), bool(node.get("keepdims", 1))
        if not found and node.get("noop_with_empty_axes", 0):
            return x
        chosen = tuple(found) if found else tuple(range(len(x.shape)))
        if of_arrays is not None and is_known(x):
            return of_arrays(x, chosen, keepdims=keep)
        return function(value_of(x), chosen, keep)

    return entry


def product(x: Value, axes: Sequence[int], keepdims: bool) -> Value:
    for axis in axes:
        cut = [slice(None)] * axis + [slice(x.shape[axis] - 1, None)]
        x = ops.cumprod(x, axis)[tuple(cut)]
    return x if keepdims else ops.squeeze(x, tuple(axes))


def arg_max(node: OnnxNode, x: Value) -> Value:
    node.need(select_last_index=0)
    axis = node.get("axis", 0) % max(x.ndim, 1)
    made = ops.argmax(x, axis)
    return ops.expand_dims(made, axis) if node.get("keepdims", 1) else made


def matmul(node: OnnxNode, x: Operand, y: Operand) -> Value:
    a, b = value_of(x), value_of(y)
    left, right = a.ndim == 1, b.ndim == 1
    a = a.reshape(1, *a.shape) if left else a
    b = b.reshape(*b.shape, 1) if right else b
    made = ops.matmul(a, b)
    made = made.reshape((*made.shape[:-2], made.shape[-1])) if left else made
    return made.reshape(made.shape[:-1]) if right else made


def gemm(node: OnnxNode, a: Operand, b: Operand, c: Operand = None) -> Value:
    made = ops.matmul(
        value_of(a), value_of(b), transpose_x=bool(node.get("transA", 0)), transpose_y=bool(node.get("transB", 0))
    )
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    made = made if alpha == 1 else ops.scale(made, factor=alpha)
    if c is None or beta == 0:
        return made
    return ops.add(made, value_of(c) if beta == 1 else ops.scale(value_of(c), factor=beta))


# ---- windows and norms -----------------------------------------------------------------------------------------------


def of_rows(function: Entry) -> Entry:
    """An op of images, for rows [N, C, L], too: as images of height 1."""

    def entry(node: OnnxNode, x: Value, w: Value | None = None, *more: Operand) -> Value:
        x = value_of(x)
        if x.ndim not in (3, 4):
            raise node.fault(f"input {describe(x)}; need [N, C, L] or [N, C, H, W]")
        if x.ndim == 4:
            return function(node, x, w, *more)
        inner = OnnxNode(node.op, node.name, node.inputs, node.outputs, dict(node.attributes), node.version)
        for name, value in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
            if name in inner.attributes:
                inner.attributes[name] = [value, *inner.attributes[name]]
        if "pads" in inner.attributes:
            a, b = inner.attributes["pads"]
            inner.attributes["pads"] = [0, a, 0, b]
        wide = None if w is None else value_of(w).reshape(*w.shape[:2], 1, w.shape[2])
        y = function(inner, x.reshape(*x.shape[:2], 1, x.shape[2]), wide, *more)
        return y.reshape(*y.shape[:2], y.shape[3])

    return entry


def _sides(node: OnnxNode, x: Value, kernel: Sequence[int], value: float | None) -> tuple[Value, tuple[int, int]]:
    """(x, with zeros of uneven sides, the padding that is left for the op). value: of a padding that is added here."""
    strides, gaps = node.get("strides", [1, 1]), node.get("dilations", [1, 1])
    kind, pads = node.get("auto_pad", b"NOTSET"), list(node.get("pads", [0, 0, 0, 0]))
    if kind == b"VALID":
        pads = [0, 0, 0, 0]
    elif kind in (b"SAME_UPPER", b"SAME_LOWER"):
        total = [max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
                 for n, s, d, k in zip(x.shape[2:], strides, gaps, kernel, strict=True)]  # fmt: skip
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = [*less, *more] if kind == b"SAME_UPPER" else [*more, *less]
    if len(pads) != 4 or min(pads) < 0 or max(pads) > MOST:
        raise node.fault(f"pads={pads!s:.60}; need 2 for each axis of the image, none below 0")
    if pads[:2] == pads[2:]:
        return x, (pads[0], pads[1])
    if value is None:
        raise node.fault(f"pads={pads}; need equal ones on both sides")
    return ops.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])], value), (0, 0)


def conv(node: OnnxNode, x: Value, w: Operand, bias: Operand = None) -> Value:
    kernel = value_of(w)
    x, sides = _sides(node, x, kernel.shape[2:], 0.0)
    how = (node.get("strides", 1), sides, node.get("dilations", 1), node.get("group", 1))
    return ops.conv2d(x, kernel, None if bias is None else value_of(bias), *how)


def conv_transpose(node: OnnxNode, x: Value, w: Operand, bias: Operand = None) -> Value:
    node.need(auto_pad=b"NOTSET")
    if "output_shape" in node.attributes:
        raise node.fault("output_shape; need output_padding")
    _, sides = _sides(node, x, (1, 1), None)
    how = (node.get("strides", 1), sides, node.get("output_padding", 0), node.get("dilations", 1), node.get("group", 1))
    return ops.conv_transpose2d(x, value_of(w), None if bias is None else value_of(bias), *how)


def max_pool(node: OnnxNode, x: Value, _: None = None) -> Value:
    node.need(ceil_mode=0, storage_order=0, dilations=[1] * len(node.attributes["kernel_shape"]))
    kernel = node.attributes["kernel_shape"]
    x, sides = _sides(node, x, kernel, -3.4e38)
    return ops.max_pool2d(x, kernel, node.get("strides", [1, 1]), sides)


def average_pool(node: OnnxNode, x: Value, _: None = None) -> Value:
    node.need(ceil_mode=0, dilations=[1] * len(node.attributes["kernel_shape"]))
    kernel = node.attributes["kernel_shape"]
    is_padded = any(node.get("pads", ())) or node.get("auto_pad", b"NOTSET").startswith(b"SAME")
    ones = as_value(np.ones((1, 1, *x.shape[2:]), np.float32))
    pooled = []
    for one in (x, ones):
        wide, sides = _sides(node, one, kernel, 0.0)
        pooled.append(ops.avg_pool2d(wide, kernel, node.get("strides", [1, 1]), sides))
    is_whole = node.get("count_include_pad", 0) or not is_padded
    return pooled[0] if is_whole else ops.div(*pooled)


def of_whole_images(function: Entry) -> Entry:
    return lambda node, x: function(x, tuple(range(2, x.ndim)), True)


def batch_norm(node: OnnxNode, x: Value, weight: Operand, bias: Operand, mean: Operand, var: Operand) -> Value:
    node.need(training_mode=0)
    w, b, m, v = (value_of(one) for one in (weight, bias, mean, var))
    return ops.batch_norm_eval(x, w, b, m, v, node.get("epsilon", 1e-5))


def layer_norm(node: OnnxNode, x: Value, weight: Operand, bias: Operand = None) -> Value:
    if node.get("axis", -1) not in (-1, x.ndim - 1):
        raise node.fault(f"axis={node.get('axis')}; need the last axis")
    return ops.layer_norm(x, value_of(weight), None if bias is None else value_of(bias), node.get("epsilon", 1e-5))


def rms_norm(node: OnnxNode, x: Value, weight: Operand) -> Value:
    if node.get("axis", -1) not in (-1, x.ndim - 1):
        raise node.fault(f"axis={node.get('axis')}; need the last axis")
    return ops.rms_norm(x, value_of(weight), node.get("epsilon", 1e-5))


def instance_norm(node: OnnxNode, x: Value, weight: Operand, bias: Operand) -> Value:
    return ops.group_norm(x, x.shape[1], value_of(weight), value_of(bias), node.get("epsilon", 1e-5))


def group_norm(node: OnnxNode, x: Value, weight: Operand, bias: Operand) -> Value:
    groups = node.attributes["num_groups"]
    w, b = value_of(weight), value_of(bias)
    if node.version < 21 and w.size != x.shape[1]:  # a weight for each group
        raise node.fault("a weight for each group; need one for each channel (opset 21)")
    return ops.group_norm(x, groups, w, b, node.get("epsilon", 1e-5))


def softmax_of(function: Entry) -> Entry:
    def entry(node: OnnxNode, x: Value) -> Value:
        axis = node.get("axis", -1 if node.version >= 13 else 1)
        if node.version < 13 and axis not in (-1, x.ndim - 1):
            raise node.fault(f"axis={axis} of opset {node.version}, for all further axes; need the last axis")
        return function(value_of(x), axis)

    return entry


def prelu(node: OnnxNode, x: Value, slope: Operand) -> Value:
    return ops.where(ops.greater(x, 0.0), x, ops.mul(x, value_of(slope)))
