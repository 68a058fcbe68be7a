"""Convolution and max pool in one, forward and backward: the image between them is never stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import f32
from ..graph.declare import op
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value
from .common import Sample, Spec, bad, draw, need, need_rounded
from .conv import (
    BAD_G,
    CONVS,
    WINDOW,
    conv2d_back_input,
    conv2d_back_weight,
    conv2d_op,
    conv_back_input_shape,
    conv_back_weight_shape,
    conv_extents,
    conv_samples,
    conv_shape,
    conv_vjp,
    with_bf16,
)
from .elementwise import SIGN, cast, relu_back
from .layout import product
from .pool import max_pool2d_back, max_pool2d_op, max_pool_back_shape, max_pool_shape
from .windows import Pair, need_images, out_extents

HALVES: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}


def _conv_pool_shape(x: Spec, w: Spec, bias: Spec | None, stride: Shape, padding: Shape, dilation: Shape) -> list[Spec]:
    return max_pool_shape(conv_shape(x, w, bias, stride, padding, dilation), **HALVES)


def _conv_pool_vjp(
    g_y: Value, x: Value, w: Value, bias: Value | None, y: Value, index: Value,
    stride: Pair, padding: Pair, dilation: Pair, act: str,
) -> list[Value | None]:  # fmt: skip
    picked = relu_back(g_y, y) if act == "relu" else g_y  # only picked elements have a gradient; y holds their sign
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


def _image(g: Value, index: Value, y: Value | None, height: int, width: int) -> Value:
    """The gradient of the image between, in the dtype of g."""
    wide = cast(g, f32)
    picked = wide if y is None else relu_back(wide, cast(cast(y, g.dtype), f32))
    return cast(max_pool2d_back(picked, index, height=height, width=width, **HALVES), g.dtype)


def _pool_back_weight_shape(
    g: Spec, index: Spec, x: Spec, y: Spec | None,
    kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, height: int, width: int,
) -> list[Spec]:  # fmt: skip
    image = max_pool_back_shape(g, index, height, width, **HALVES)
    if y is not None:
        need_rounded(g, y)
    need(y is None or y.shape == g.shape, "y does not fit", f"y of shape {list(g.shape)}")
    image = Spec(image.shape, g.dtype)
    return conv_back_weight_shape(image, x, kernel, stride, padding, dilation)


def _pool_back_weight(
    g: Value, index: Value, x: Value, y: Value | None,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, height: int, width: int,
) -> tuple[Value, ...]:  # fmt: skip
    image = _image(g, index, y, height, width)
    return conv2d_back_weight(image, x, kernel=kernel, stride=stride, padding=padding, dilation=dilation)


def _pool_back_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (x, w, how) in enumerate(CONVS):
        n, o, height, width = conv_extents(x, w, how)
        if min(height, width) < 2:
            continue
        pooled = (n, o, height // 2, width // 2)
        index = rng.integers(0, 4, pooled).astype(np.uint8)
        y = draw(rng, pooled, avoid=(0,)) if i % 2 else None
        attrs = how | {"kernel": w[2:], "height": height, "width": width}
        samples.append(Sample((draw(rng, pooled), index, draw(rng, x), y), attrs))
    return with_bf16(samples, (2, 3))


conv2d_pool_back_weight: OpSpec = op(
    "conv2d_pool_back_weight", inputs="g index x y?", outputs="dw db?",
    attrs=f"kernel:ints {WINDOW} height:int width:int", dense="g index x y", rounds="g x y",
    doc="dw, db of conv2d_max_pool: the same bits as conv2d_back_weight(max_pool2d_back(g, index), x), of "
    "relu_back(g, y) where y is given; height, width: of the image between",
    dtypes="f32 g:f32|bf16 index:u8 x:f32|bf16 y:f32|bf16",
    shape=_pool_back_weight_shape, composition=_pool_back_weight,
    no_gradient_to={"index": "a position has no slope", "y": SIGN},
    cost=lambda g, x, dw: (8.0 * g.size * product(dw.shape[1:]), 4.0 * (g.size + x.size + dw.size)),
    samples=_pool_back_samples,
    bad_samples=[
        bad(
            f"conv2d_pool_back_weight: {BAD_G}: g f32[1,2,2,2], index u8[1,2,2,2], x f32[1,3,8,8]; "
            "need g of shape [1, 2, 6, 6]",
            (1, 2, 2, 2), ("u8", (1, 2, 2, 2)), (1, 3, 8, 8), kernel=(3, 3), height=4, width=4,
        ),
        bad(
            "conv2d_pool_back_weight: y does not fit: g f32[1,2,2,2], index u8[1,2,2,2], x f32[1,3,6,6], "
            "y f32[1,2,4,4]; need y of shape [1, 2, 2, 2]",
            (1, 2, 2, 2), ("u8", (1, 2, 2, 2)), (1, 3, 6, 6), (1, 2, 4, 4), kernel=(3, 3), height=4, width=4,
        ),
    ],
)  # fmt: skip


def _pool_back_input_shape(
    g: Spec, index: Spec, w: Spec, height: int, width: int, stride: Shape, padding: Shape, dilation: Shape
) -> Spec:
    need_images(g, "g")
    need(w.ndim == 4, "w is no set of kernels", "w of shape [O, I, KH, KW]")
    x = Spec((g.shape[0], w.shape[1], height, width))
    image = max_pool_back_shape(g, index, *out_extents(x, w.shape[2:], stride, padding, dilation), **HALVES)
    image = Spec(image.shape, g.dtype)
    return conv_back_input_shape(image, w, height, width, stride, padding, dilation)


def _pool_back_input(
    g: Value, index: Value, w: Value, height: int, width: int, stride: Pair, padding: Pair, dilation: Pair
) -> Value:
    x = Spec((g.shape[0], w.shape[1], height, width))
    rows, columns = out_extents(x, w.shape[2:], stride, padding, dilation)
    image = _image(g, index, None, rows, columns)
    return conv2d_back_input(image, w, height=height, width=width, stride=stride, padding=padding, dilation=dilation)


def _pool_back_input_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for x, w, how in CONVS:
        n, o, rows, columns = conv_extents(x, w, how)
        if min(rows, columns) > 1:
            g = draw(rng, (n, o, rows // 2, columns // 2))
            index = rng.integers(0, 4, g.shape).astype(np.uint8)
            samples.append(Sample((g, index, draw(rng, w)), {"height": x[2], "width": x[3]} | how))
    return with_bf16(samples, (2,))


conv2d_pool_back_input: OpSpec = op(
    "conv2d_pool_back_input", inputs="g index w", outputs="dx", attrs=f"height:int width:int {WINDOW}",
    dense="g index w", rounds="g w",
    doc="dx of conv2d_max_pool for an input of height x width: the same bits as "
    "conv2d_back_input(max_pool2d_back(g, index), w)",
    dtypes="f32 g:f32|bf16 index:u8 w:f32|bf16", shape=_pool_back_input_shape, composition=_pool_back_input,
    no_gradient_to={"index": "a position has no slope"},
    cost=lambda g, w, dx: (8.0 * g.size * product(w.shape[1:]), 4.0 * (g.size + w.size + dx.size)),
    samples=_pool_back_input_samples,
    bad_samples=[
        bad(
            "conv2d_pool_back_input: w is no set of kernels: g f32[1,2,2,2], index u8[1,2,2,2], w f32[2,3]; "
            "need w of shape [O, I, KH, KW]",
            (1, 2, 2, 2), ("u8", (1, 2, 2, 2)), (2, 3), height=6, width=6,
        ),
    ],
)  # fmt: skip
