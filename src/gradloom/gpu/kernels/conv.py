"""Convolution and its gradients: products whose second operand is gathered from images as it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..calls import Arg, Call, Dispatch
from .product import Shape, pad_k, shares_of, summed, sums_bytes, tiled
from .table import kernel

SIDE_BY_SIDE, APART = 1, 0  # neighbours along K in memory: words 6 and 8 of wgsl/product.wgsl
BACK_WEIGHT = 2  # the output dw


def _product(
    call: Call, family: str, args: tuple[Arg, ...], shape: Shape, shares: int, along: tuple[int, int],
    words: Sequence[int], finish: str = "z",
) -> Dispatch:  # fmt: skip
    """args: both operands, the output, the bias. along: whether neighbours along K lie side by side, of each operand;
    words: those of wgsl/conv.wgsl."""
    rest = (0, along[0], 0, along[1], pad_k(shape[2], shares), 1, 0, *words)
    defines = {"FINISH": finish, "BIAS": "i"}
    return tiled(call.limits, ("product", "conv", family, "matmul"), args, shape, shares, rest, defines)


def _words(call: Call, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
    """The words of wgsl/conv.wgsl, from the shapes of images, kernels and results."""
    return (*x[1:], *y[1:], *w[2:], *(n for name in ("stride", "padding", "dilation") for n in call.attrs[name]), x[0])


# ---- y = x * w --------------------------------------------------------------------------------------------


def _forward_shape(call: Call) -> Shape:
    w, y = call[1], call[3]
    return w.shape[0], y.shape[0] * math.prod(y.shape[2:]), math.prod(w.shape[1:])


def _forward(call: Call) -> list[Dispatch]:
    x, w, bias, y = call.args[:4]
    if not y.size:
        return []
    shape, words = _forward_shape(call), _words(call, x.shape, w.shape, y.shape)
    shares = shares_of(*shape)
    value = "z + at_3(bias)" if bias.present else "z"
    finish = f"relu({value})" if call.attrs["act"] == "relu" else value

    def made(z: Arg, more: tuple[Arg, ...], finish: str) -> list[Dispatch]:
        along = (SIDE_BY_SIDE, APART)
        return [_product(call, "conv_forward", (w, x, z, *more), shape, shares, along, words, finish)]

    return summed(call, y, (bias,), shares, (math.prod(y.shape[2:]), y.shape[1]), finish, made)


# ---- dx: a product for each rest of a place when it is divided by the stride -------------------------------


def _rests(call: Call, axis: int, size: int, kernel: int) -> list[tuple[int, ...]]:
    """Along an axis, for each rest: how many such places of x, the first one; elements of the window over them, the
    first one, from one to the next; the place in g of the first of both (below 0: before it), how much it falls from
    one element to the next."""
    stride, padding, dilation = (call.attrs[name][axis] for name in ("stride", "padding", "dilation"))
    step = stride // math.gcd(stride, dilation)
    made = []
    for rest in range(stride):
        first = (rest - padding) % stride
        places = len(range(first, size, stride))
        begin = next((k for k in range(min(step, kernel)) if (k * dilation - rest) % stride == 0), kernel)
        elements = len(range(begin, kernel, step))
        at = (first + padding - begin * dilation) // stride
        made.append((places, first, elements, begin, step, at, step * dilation // stride))
    return [one for one in made if one[0]]


def _back_input_parts(call: Call) -> list[tuple[Shape, tuple[int, ...]]]:
    """The shape of each product, and its words behind those of wgsl/conv.wgsl."""
    w, dx = call[1], call[2]
    made = []
    for down in _rests(call, 0, dx.shape[2], w.shape[2]):
        for across in _rests(call, 1, dx.shape[3], w.shape[3]):
            shape = w.shape[1], dx.shape[0] * down[0] * across[0], w.shape[0] * down[2] * across[2]
            made.append((shape, tuple(n for pair in zip(down, across, strict=True) for n in pair)))
    return made


def _back_input_shares(call: Call) -> int:
    return max((shares_of(*shape) for shape, _ in _back_input_parts(call)), default=1)


def _back_input(call: Call) -> list[Dispatch]:
    g, w, dx = call.args[:3]
    if not dx.size:
        return []
    words, shares = _words(call, dx.shape, w.shape, g.shape), _back_input_shares(call)

    def made(z: Arg, more: tuple[Arg, ...], finish: str) -> list[Dispatch]:
        return [
            _product(call, "conv_back_input", (w, g, z), shape, shares, (APART, APART), (*words, *own))
            for shape, own in _back_input_parts(call)
        ]

    return summed(call, dx, (), shares, (1, 1), "z", made)


# ---- dw, db -----------------------------------------------------------------------------------------------


def _back_weight_shape(call: Call) -> Shape:
    g, x = call[0], call[1]
    return g.shape[1], x.shape[1] * math.prod(call.attrs["kernel"]), g.shape[0] * math.prod(g.shape[2:])


def _back_weight(call: Call) -> list[Dispatch]:
    g, x, dw, db = call.args[:4]
    made: list[Dispatch] = []
    if dw.present and dw.size:
        shape, words = _back_weight_shape(call), _words(call, x.shape, dw.shape, g.shape)
        shares, along = shares_of(*shape), (SIDE_BY_SIDE, SIDE_BY_SIDE)

        def products(z: Arg, more: tuple[Arg, ...], finish: str) -> list[Dispatch]:
            return [_product(call, "conv_back_weight", (g, x, z), shape, shares, along, words)]

        made += summed(call, dw, (), shares, (1, 1), "z", products)
    if db.present and db.size:
        pixels = math.prod(g.shape[2:])
        counts = g.shape[1], pixels, g.shape[0] * pixels
        made.append(Dispatch(("tree", "conv_back_bias"), "conv_back_bias", (g, db), db.size, counts))
    return made


kernel("conv2d", "f32", _forward, workspace=lambda call: sums_bytes(call[3], shares_of(*_forward_shape(call))))
kernel(
    "conv2d_back_input", "f32", _back_input, workspace=lambda call: sums_bytes(call[2], _back_input_shares(call))
)  # fmt: skip
kernel(
    "conv2d_back_weight", "f32", _back_weight,
    workspace=lambda call: sums_bytes(call[BACK_WEIGHT], shares_of(*_back_weight_shape(call))),
)  # fmt: skip
