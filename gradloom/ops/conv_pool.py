"""Convolution and max pool in one: the image between them is never stored."""

from __future__ import annotations

from typing import Any

from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import Spec, bad
from .conv import WINDOW, conv2d_op, conv_extents, conv_samples, conv_shape, conv_vjp
from .elementwise import relu_back
from .layout import product
from .pool import max_pool2d_back, max_pool2d_op, max_pool_shape
from .windows import Pair, out_extents

HALVES: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}


def _conv_pool_shape(x: Spec, w: Spec, bias: Spec | None, stride: Shape, padding: Shape, dilation: Shape) -> list[Spec]:
    return max_pool_shape(conv_shape(x, w, bias, stride, padding, dilation), **HALVES)


def _conv_pool_vjp(
    g_y: Value, x: Value, w: Value, bias: Value | None, y: Value, index: Value,
    stride: Pair, padding: Pair, dilation: Pair, act: str,
) -> list[Value | None]:  # fmt: skip
    picked = relu_back(g_y, y) if act == "relu" else g_y  # only what was picked has a gradient: y tells its sign
    height, width = out_extents(Spec(x.shape), w.shape[2:], stride, padding, dilation)
    inner = max_pool2d_back(picked, index, height=height, width=width, **HALVES)
    return conv_vjp(inner, x, w, bias, inner, stride, padding, dilation, "none")


conv2d_max_pool: OpSpec = op(
    "conv2d_max_pool", inputs="x w bias?", outputs="y index?", attrs=f"{WINDOW} act:none/relu=none", dense="x w bias",
    rounds="x w",
    doc="y, index = max_pool2d(conv2d(x, w, bias), kernel 2, stride 2): the same bits, without the image between",
    dtypes="f32 x:f32|bf16 w:f32|bf16", shape=_conv_pool_shape, vjp=_conv_pool_vjp,
    composition=lambda x, w, bias, stride, padding, dilation, act: max_pool2d_op(
        conv2d_op(x, w, bias, stride=stride, padding=padding, dilation=dilation, act=act), **HALVES
    ),
    cost=lambda x, w, y: (8.0 * y.size * product(w.shape[1:]), 4.0 * (x.size + w.size + y.size)),
    samples=lambda rng: [
        s for s in conv_samples(rng) if min(conv_extents(s.inputs[0].shape, s.inputs[1].shape, s.attrs)[2:]) > 1
    ],
    bad_samples=[
        bad(
            "conv2d_max_pool: kernel [2, 2] does not fit into the padded image: x f32[1,1,3,3], w f32[1,1,3,3]; "
            "need a smaller kernel or more padding",
            (1, 1, 3, 3), (1, 1, 3, 3),
        ),
    ],
)  # fmt: skip
