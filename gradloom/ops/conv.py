"""Convolution and pooling of images [N, C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.dtypes import i32, u8
from ..base.errors import ShapeError
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.scope import user_location
from ..graph.value import Shape, Value, describe
from .common import Sample, Spec, bad, draw, need, zeros_like
from .elementwise import add, cast, equal, relu_back, where
from .layout import broadcast_to, pad, product, reshape
from .layout import slice as slice_of

Pair = tuple[int, int]


def _out(size: int, k: int, s: int, p: int, d: int = 1) -> int:
    return (size + 2 * p - d * (k - 1) - 1) // s + 1


def _need_pairs(least: dict[str, int], **pairs: Shape) -> None:
    for name, pair in pairs.items():
        low = least.get(name, 1)
        need(len(pair) == 2 and min(pair) >= low, f"{name} {list(pair)} is not usable", f"two whole numbers >= {low}")


def _out_shape(x: Spec, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape = (1, 1)) -> Pair:
    _need_pairs({"padding": 0}, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    height, width = (_out(*a) for a in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True))
    need(
        height > 0 and width > 0,
        f"kernel {list(kernel)} does not fit into the padded image",
        "a smaller kernel or more padding",
    )
    return height, width


def _need_images(x: Spec, name: str = "x") -> None:
    need(x.ndim == 4, f"{name} is no batch of images", f"{name} of shape [N, C, H, W]")


# ---- NumPy: loops over the positions of the window -------------------------------------------------------


def _padded(x: np.ndarray, p: Pair, value: float = 0.0) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])), constant_values=value)


def _window(x: np.ndarray, ky: int, kx: int, s: Pair, d: Pair, out: Pair) -> np.ndarray:
    """The element of each window at (ky, kx): a view [N, C, OH, OW] of the padded x."""
    y, c = ky * d[0], kx * d[1]
    return x[:, :, y : y + (out[0] - 1) * s[0] + 1 : s[0], c : c + (out[1] - 1) * s[1] + 1 : s[1]]


def _inside(x: np.ndarray, p: Pair, height: int, width: int) -> np.ndarray:
    return np.ascontiguousarray(x[:, :, p[0] : p[0] + height, p[1] : p[1] + width])


def _conv(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, stride: Pair, padding: Pair, dilation: Pair, act: str
) -> np.ndarray:
    out = tuple(_out(*a) for a in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True))
    xp = _padded(x, padding)
    y = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
    for ky, kx in np.ndindex(*w.shape[2:]):
        v = _window(xp, ky, kx, stride, dilation, (out[0], out[1]))
        y += np.tensordot(v, w[:, :, ky, kx], ([1], [1])).transpose(0, 3, 1, 2)
    if bias is not None:
        y = y + bias[:, None, None]
    return np.maximum(y, y.dtype.type(0)) if act == "relu" else y


def _conv_back_input(
    g: np.ndarray, w: np.ndarray, height: int, width: int, stride: Pair, padding: Pair, dilation: Pair
) -> np.ndarray:
    dx = np.zeros((g.shape[0], w.shape[1], height + 2 * padding[0], width + 2 * padding[1]), g.dtype)
    for ky, kx in np.ndindex(*w.shape[2:]):
        part = np.tensordot(g, w[:, :, ky, kx], ([1], [0])).transpose(0, 3, 1, 2)
        _window(dx, ky, kx, stride, dilation, (g.shape[2], g.shape[3]))[...] += part
    return _inside(dx, padding, height, width)


def _conv_back_weight(
    g: np.ndarray, x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[np.ndarray, np.ndarray]:
    xp = _padded(x, padding)
    dw = np.zeros((g.shape[1], x.shape[1], *kernel), g.dtype)
    for ky, kx in np.ndindex(*kernel):
        v = _window(xp, ky, kx, stride, dilation, (g.shape[2], g.shape[3]))
        dw[:, :, ky, kx] = np.tensordot(g, v, ([0, 2, 3], [0, 2, 3]))
    return dw, g.sum((0, 2, 3))


def _max_pool(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> tuple[np.ndarray, np.ndarray]:
    out = tuple(_out(*a) for a in zip(x.shape[2:], kernel, stride, padding, strict=True))
    xp = _padded(x, padding, -np.inf)
    inside = _padded(np.ones_like(x), padding)
    windows, valid = [], []
    for ky, kx in np.ndindex(*kernel):
        windows.append(_window(xp, ky, kx, stride, (1, 1), (out[0], out[1])))
        valid.append(_window(inside, ky, kx, stride, (1, 1), (out[0], out[1])))
    all_windows, all_valid = np.stack(windows), np.stack(valid) > 0
    index = np.argmax(all_windows, 0)
    lost = ~np.take_along_axis(all_valid, index[None], 0)[0]  # only -inf inside: the first element that is no padding
    index = np.where(lost, np.argmax(all_valid, 0), index)
    return np.take_along_axis(all_windows, index[None], 0)[0], index.astype(np.uint8)


def _max_pool_back(
    g: np.ndarray, index: np.ndarray, height: int, width: int, kernel: Pair, stride: Pair, padding: Pair
) -> np.ndarray:
    dx = np.zeros((*g.shape[:2], height + 2 * padding[0], width + 2 * padding[1]), g.dtype)
    for ky, kx in np.ndindex(*kernel):
        part = np.where(index == ky * kernel[1] + kx, g, 0)
        _window(dx, ky, kx, stride, (1, 1), (g.shape[2], g.shape[3]))[...] += part
    return _inside(dx, padding, height, width)


def _avg_pool(x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    out = tuple(_out(*a) for a in zip(x.shape[2:], kernel, stride, padding, strict=True))
    xp = _padded(x, padding)
    y = np.zeros((*x.shape[:2], *out), x.dtype)
    for ky, kx in np.ndindex(*kernel):
        y += _window(xp, ky, kx, stride, (1, 1), (out[0], out[1]))
    return y / y.dtype.type(product(kernel))


def _avg_pool_back(g: np.ndarray, height: int, width: int, kernel: Pair, stride: Pair, padding: Pair) -> np.ndarray:
    dx = np.zeros((*g.shape[:2], height + 2 * padding[0], width + 2 * padding[1]), g.dtype)
    for ky, kx in np.ndindex(*kernel):
        _window(dx, ky, kx, stride, (1, 1), (g.shape[2], g.shape[3]))[...] += g / g.dtype.type(product(kernel))
    return _inside(dx, padding, height, width)


# ---- convolution -----------------------------------------------------------------------------------------


def _conv_shape(x: Spec, w: Spec, bias: Spec | None, stride: Shape, padding: Shape, dilation: Shape) -> Spec:
    _need_images(x)
    need(w.ndim == 4, "w is no set of kernels", "w of shape [O, I, KH, KW]")
    need(x.shape[1] == w.shape[1], "channels differ", f"{x.shape[1]} == {w.shape[1]}")
    need(bias is None or bias.shape == w.shape[:1], "bias does not fit", f"bias of shape [{w.shape[0]}]")
    return Spec((x.shape[0], w.shape[0], *_out_shape(x, w.shape[2:], stride, padding, dilation)))


def _back_input_shape(
    g: Spec, w: Spec, height: int, width: int, stride: Shape, padding: Shape, dilation: Shape
) -> Spec:
    _need_images(g, "g")
    need(w.ndim == 4, "w is no set of kernels", "w of shape [O, I, KH, KW]")
    x = Spec((g.shape[0], w.shape[1], height, width))
    forward = _conv_shape(x, w, None, stride, padding, dilation)
    need(g.shape == forward.shape, "g is no gradient of this convolution", f"g of shape {list(forward.shape)}")
    return x


def _back_weight_shape(g: Spec, x: Spec, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[Spec]:
    _need_images(g, "g")
    _need_images(x)
    _need_pairs({}, kernel=kernel)
    w = Spec((g.shape[1], x.shape[1], *kernel))
    forward = _conv_shape(x, w, None, stride, padding, dilation)
    need(g.shape == forward.shape, "g is no gradient of this convolution", f"g of shape {list(forward.shape)}")
    return [w, Spec(w.shape[:1])]


def _conv_vjp(
    g: Value, x: Value, w: Value, bias: Value | None, y: Value, stride: Pair, padding: Pair, dilation: Pair, act: str
) -> list[Value | None]:
    inner = relu_back(g, y) if act == "relu" else g
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    dx = conv2d_back_input(inner, w, height=x.shape[2], width=x.shape[3], **how)
    dw, db = conv2d_back_weight(inner, x, kernel=w.shape[2:], **how)
    return [dx, dw, None if bias is None else db]


def _back_weight_vjp(
    g_dw: Value | None, g_db: Value | None, g: Value, x: Value, stride: Pair, padding: Pair, dilation: Pair
) -> list[Value | None]:
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    to_g, to_x = None, zeros_like(x)
    if g_dw is not None:
        to_g = _conv2d(x, g_dw, **how)
        to_x = conv2d_back_input(g, g_dw, height=x.shape[2], width=x.shape[3], **how)
    if g_db is not None:
        wide = broadcast_to(reshape(g_db, (g_db.shape[0], 1, 1)), g.shape)
        to_g = wide if to_g is None else add(to_g, wide)
    return [to_g, to_x]


def _how(stride: Pair = (1, 1), padding: Pair = (0, 0), dilation: Pair = (1, 1)) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation}


CONVS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((1, 1, 1, 1), (1, 1, 1, 1), _how()),
    ((2, 3, 9, 11), (5, 3, 3, 3), _how()),
    ((2, 1, 14, 14), (8, 1, 3, 3), _how(padding=(1, 1))),
    ((2, 8, 7, 7), (16, 8, 3, 3), _how(padding=(1, 1))),
    ((2, 3, 9, 11), (7, 3, 3, 3), _how((2, 2), (1, 1))),
    ((2, 2, 12, 10), (3, 2, 3, 2), _how((2, 3), (1, 0))),
    ((1, 2, 13, 12), (4, 2, 3, 3), _how((2, 1), (3, 2), (2, 3))),
    ((3, 5, 6, 7), (4, 5, 1, 1), _how()),
    ((1, 2, 1, 17), (3, 2, 1, 5), _how(padding=(0, 2))),
    ((6, 8, 20, 20), (16, 8, 3, 3), _how(padding=(1, 1))),
)


def _conv_samples(rng: np.random.Generator) -> list[Sample]:
    found = []
    for i, (x, w, how) in enumerate(CONVS):
        bias = draw(rng, w[:1]) if i % 2 else None
        found.append(Sample((draw(rng, x), draw(rng, w), bias), how | {"act": "relu" if i % 4 == 1 else "none"}))
    return found


def _conv_out(x: Shape, w: Shape, how: dict[str, Any]) -> Shape:
    spatial = [_out(*a) for a in zip(x[2:], w[2:], how["stride"], how["padding"], how["dilation"], strict=True)]
    return (x[0], w[0], *spatial)


WINDOW = "stride:ints=1,1 padding:ints=0,0 dilation:ints=1,1"
BAD_G = "g is no gradient of this convolution"

_conv2d: OpSpec = op(
    "conv2d", inputs="x w bias?", attrs=f"{WINDOW} act:none/relu=none", dense="x w bias",
    doc="y = act(sum over window and input channels of x * w, + bias); x [N, I, H, W], w [O, I, KH, KW]",
    dtypes="f32", shape=_conv_shape, vjp=_conv_vjp, reference=_conv, samples=_conv_samples,
    cost=lambda x, w, y: (2.0 * y.size * product(w.shape[1:]), 4.0 * (x.size + w.size + y.size)),
    bad_samples=[
        bad(
            "conv2d: x is no batch of images: x f32[3,4], w f32[5,3,3,3]; need x of shape [N, C, H, W]",
            (3, 4), (5, 3, 3, 3),
        ),
        bad("conv2d: channels differ: x f32[2,4,8,8], w f32[5,3,3,3]; need 4 == 3", (2, 4, 8, 8), (5, 3, 3, 3)),
        bad(
            "conv2d: kernel [5, 5] does not fit into the padded image: x f32[1,1,3,3], w f32[1,1,5,5]; "
            "need a smaller kernel or more padding",
            (1, 1, 3, 3), (1, 1, 5, 5),
        ),
        bad(
            "conv2d: stride [0, 1] is not usable: x f32[1,1,3,3], w f32[1,1,3,3]; need two whole numbers >= 1",
            (1, 1, 3, 3), (1, 1, 3, 3), stride=(0, 1),
        ),
        bad("conv2d: bias does not fit: x f32[1,1,3,3], w f32[2,1,3,3], bias f32[3]; need bias of shape [2]",
            (1, 1, 3, 3), (2, 1, 3, 3), (3,)),
    ],
)  # fmt: skip
conv2d_back_input: OpSpec = op(
    "conv2d_back_input", inputs="g w", outputs="dx", attrs=f"height:int width:int {WINDOW}", dense="g w",
    doc="dx of conv2d for an input of height x width", dtypes="f32", shape=_back_input_shape,
    vjp=lambda g_dx, g, w, stride, padding, dilation: [
        _conv2d(g_dx, w, stride=stride, padding=padding, dilation=dilation),
        conv2d_back_weight(g, g_dx, kernel=w.shape[2:], stride=stride, padding=padding, dilation=dilation)[0],
    ],
    reference=_conv_back_input,
    cost=lambda g, w, dx: (2.0 * g.size * product(w.shape[1:]), 4.0 * (g.size + w.size + dx.size)),
    samples=lambda rng: [
        Sample((draw(rng, _conv_out(x, w, how)), draw(rng, w)), {"height": x[2], "width": x[3]} | how) for x, w,
        how in CONVS
    ],
    bad_samples=[
        bad(
            f"conv2d_back_input: {BAD_G}: g f32[1,2,4,4], w f32[2,3,3,3]; need g of shape [1, 2, 6, 6]",
            (1, 2, 4, 4), (2, 3, 3, 3), height=8, width=8,
        ),
    ],
)  # fmt: skip
conv2d_back_weight: OpSpec = op(
    "conv2d_back_weight", inputs="g x", outputs="dw db?", attrs=f"kernel:ints {WINDOW}", dense="g x",
    doc="dw of conv2d for a kernel [KH, KW], and db = g summed over images and positions", dtypes="f32",
    shape=_back_weight_shape, vjp=_back_weight_vjp, reference=_conv_back_weight,
    cost=lambda g, x, dw: (2.0 * g.size * product(dw.shape[1:]), 4.0 * (g.size + x.size + dw.size)),
    samples=lambda rng: [
        Sample((draw(rng, _conv_out(x, w, how)), draw(rng, x)), {"kernel": w[2:]} | how) for x, w, how in CONVS
    ],
    bad_samples=[
        bad(
            f"conv2d_back_weight: {BAD_G}: g f32[1,2,4,4], x f32[1,3,8,8]; need g of shape [1, 2, 6, 6]",
            (1, 2, 4, 4), (1, 3, 8, 8), kernel=(3, 3),
        ),
    ],
)  # fmt: skip


# ---- pooling ---------------------------------------------------------------------------------------------

POOL = "kernel:ints stride:ints padding:ints=0,0"


def _pool_shape(x: Spec, kernel: Shape, stride: Shape, padding: Shape) -> Spec:
    _need_images(x)
    out = _out_shape(x, kernel, stride, padding)
    half = all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
    need(half, f"padding {list(padding)} is more than half of the kernel {list(kernel)}", "padding <= kernel / 2")
    return Spec((*x.shape[:2], *out))


def _max_pool_shape(x: Spec, kernel: Shape, stride: Shape, padding: Shape) -> list[Spec]:
    y = _pool_shape(x, kernel, stride, padding)
    need(product(kernel) <= 256, f"kernel {list(kernel)} has {product(kernel)} positions", "at most 256")
    return [y, Spec(y.shape, u8)]


def _pool_back_shape(g: Spec, height: int, width: int, kernel: Shape, stride: Shape, padding: Shape) -> Spec:
    _need_images(g, "g")
    x = Spec((*g.shape[:2], height, width))
    forward = _pool_shape(x, kernel, stride, padding)
    need(g.shape == forward.shape, "g is no gradient of this pool", f"g of shape {list(forward.shape)}")
    return x


def _max_pool_back_shape(
    g: Spec, index: Spec, height: int, width: int, kernel: Shape, stride: Shape, padding: Shape
) -> Spec:
    need(index.shape == g.shape, "shapes differ", "g and index of one shape")
    return _pool_back_shape(g, height, width, kernel, stride, padding)


def _picked(x: Value, index: Value, kernel: Pair, stride: Pair, padding: Pair) -> Value:
    """The elements of x at the positions that a max pool chose: the transpose of max_pool2d_back."""
    wide = pad(x, [(0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])]) if any(padding) else x
    position = cast(index, i32)
    total = None
    for ky, kx in np.ndindex(*kernel):
        stops = [ky + (index.shape[2] - 1) * stride[0] + 1, kx + (index.shape[3] - 1) * stride[1] + 1]
        window = slice_of(wide, [0, 0, ky, kx], [*wide.shape[:2], *stops], [1, 1, *stride])
        at = np.full((1,), ky * kernel[1] + kx, np.int32)
        part = where(equal(position, at), window, 0.0)
        total = part if total is None else add(total, part)
    assert total is not None
    return total


POOLS: tuple[tuple[Shape, Pair, Pair, Pair], ...] = (
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0)), ((2, 3, 8, 8), (2, 2), (2, 2), (0, 0)),
    ((2, 3, 7, 9), (2, 2), (2, 2), (0, 0)),
    ((2, 2, 9, 8), (3, 3), (2, 2), (1, 1)), ((1, 2, 7, 12), (3, 2), (1, 3), (1, 0)),
    ((3, 1, 5, 33), (2, 4), (1, 1), (0, 2)),
    ((2, 2, 6, 6), (2, 2), (3, 3), (0, 0)), ((20, 8, 28, 28), (2, 2), (2, 2), (0, 0)),
    ((8, 16, 28, 28), (3, 3), (2, 2), (1, 1)),
)  # fmt: skip


def _pool(kernel: Pair, stride: Pair, padding: Pair) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding}


def _spread(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Numbers no two of which are close: finite differences cannot swap them."""
    n = product(shape)
    return np.asarray(rng.permutation(n).reshape(shape) / n * 4 - 2, np.float32)


def _max_pool_samples(rng: np.random.Generator) -> list[Sample]:
    found = [Sample((_spread(rng, x),), _pool(k, s, p)) for x, k, s, p in POOLS]
    ties = rng.integers(-1, 2, (2, 3, 9, 8)).astype(np.float32)
    edges = np.array(
        [[[[np.nan, 1, 2, np.inf], [3, np.nan, -np.inf, 5], [-np.inf, -np.inf, 1, 2], [-np.inf, -np.inf, 3, np.nan]]]],
        np.float32,
    )
    return [*found, Sample((ties,), _pool((3, 3), (2, 2), (1, 1))), Sample((ties,), _pool((2, 2), (2, 2), (0, 0))),
            Sample((edges,), _pool((2, 2), (2, 2), (0, 0)))]  # fmt: skip


def _max_pool_back_samples(rng: np.random.Generator) -> list[Sample]:
    found = []
    for x, k, s, p in POOLS:
        _, index = _max_pool(_spread(rng, x), k, s, p)
        found.append(Sample((draw(rng, index.shape), index), {"height": x[2], "width": x[3]} | _pool(k, s, p)))
    return found


def _avg_pool_back_samples(rng: np.random.Generator) -> list[Sample]:
    found = []
    for x, k, s, p in POOLS:
        out = tuple(_out(*a) for a in zip(x[2:], k, s, p, strict=True))
        found.append(Sample((draw(rng, (*x[:2], *out)),), {"height": x[2], "width": x[3]} | _pool(k, s, p)))
    return found


def _bad_pool(name: str) -> list:
    square = {"kernel": (3, 3), "stride": (1, 1)}
    return [
        bad(f"{name}: x is no batch of images: x f32[4,4]; need x of shape [N, C, H, W]", (4, 4), **square),
        bad(
            f"{name}: padding [2, 2] is more than half of the kernel [3, 3]: x f32[1,1,4,4]; "
            "need padding <= kernel / 2",
            (1, 1, 4, 4), **square, padding=(2, 2),
        ),
    ]  # fmt: skip


_max_pool2d: OpSpec = op(
    "max_pool2d", inputs="x", outputs="y index?", attrs=POOL, dense="x",
    doc="y = largest of each window, index (u8) = its position in the window; the first of equal ones, NaN is largest",
    dtypes="f32", shape=_max_pool_shape,
    vjp=lambda g_y, x, index, kernel, stride, padding: [
        max_pool2d_back(
            g_y, index, height=x.shape[2], width=x.shape[3], kernel=kernel, stride=stride, padding=padding
        )
    ],
    reference=_max_pool, exact=True, samples=_max_pool_samples, bad_samples=_bad_pool("max_pool2d"),
    cost=lambda x, y, kernel: (float(y.size * product(kernel)), 4.0 * (x.size + y.size)),
)  # fmt: skip
max_pool2d_back: OpSpec = op(
    "max_pool2d_back", inputs="g index", outputs="dx", attrs=f"height:int width:int {POOL}", dense="g index",
    doc="dx of max_pool2d: each g goes to the element that was picked", dtypes="f32 index:u8",
    shape=_max_pool_back_shape,
    vjp=lambda g_dx, index, kernel, stride, padding: [_picked(g_dx, index, kernel, stride, padding), None],
    no_gradient_to={"index": "a position has no slope"}, reference=_max_pool_back, samples=_max_pool_back_samples,
    bad_samples=[
        bad(
            "max_pool2d_back: g is no gradient of this pool: g f32[1,1,2,2], index u8[1,1,2,2]; "
            "need g of shape [1, 1, 4, 4]",
            (1, 1, 2, 2), ("u8", (1, 1, 2, 2)), height=8, width=8, kernel=(2, 2), stride=(2, 2),
        ),
    ],
)  # fmt: skip
_avg_pool2d: OpSpec = op(
    "avg_pool2d", inputs="x", attrs=POOL, dense="x", doc="y = mean of each window; padding counts as zeros",
    dtypes="f32", shape=_pool_shape,
    vjp=lambda g, x, kernel, stride, padding: [
        avg_pool2d_back(g, height=x.shape[2], width=x.shape[3], kernel=kernel, stride=stride, padding=padding)
    ],
    reference=_avg_pool, bad_samples=_bad_pool("avg_pool2d"),
    cost=lambda x, y, kernel: (float(y.size * product(kernel)), 4.0 * (x.size + y.size)),
    samples=lambda rng: [Sample((draw(rng, x),), _pool(k, s, p)) for x, k, s, p in POOLS],
)  # fmt: skip
avg_pool2d_back: OpSpec = op(
    "avg_pool2d_back", inputs="g", outputs="dx", attrs=f"height:int width:int {POOL}", dense="g",
    doc="dx of avg_pool2d: each g is shared by its window", dtypes="f32", shape=_pool_back_shape,
    vjp=lambda g_dx, kernel, stride, padding: [_avg_pool2d(g_dx, kernel=kernel, stride=stride, padding=padding)],
    reference=_avg_pool_back, samples=_avg_pool_back_samples,
    bad_samples=[
        bad(
            "avg_pool2d_back: g is no gradient of this pool: g f32[1,1,2,2]; need g of shape [1, 1, 4, 4]",
            (1, 1, 2, 2), height=8, width=8, kernel=(2, 2), stride=(2, 2),
        ),
    ],
)  # fmt: skip


# ---- convolution and pool in one -------------------------------------------------------------------------

HALVES: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}


def _conv_pool_shape(x: Spec, w: Spec, bias: Spec | None, stride: Shape, padding: Shape, dilation: Shape) -> list[Spec]:
    return _max_pool_shape(_conv_shape(x, w, bias, stride, padding, dilation), **HALVES)


def _conv_pool_vjp(
    g_y: Value, x: Value, w: Value, bias: Value | None, y: Value, index: Value,
    stride: Pair, padding: Pair, dilation: Pair, act: str,
) -> list[Value | None]:  # fmt: skip
    picked = relu_back(g_y, y) if act == "relu" else g_y  # only what was picked has a gradient: y tells its sign
    height, width = _out_shape(Spec(x.shape), w.shape[2:], stride, padding, dilation)
    inner = max_pool2d_back(picked, index, height=height, width=width, **HALVES)
    return _conv_vjp(inner, x, w, bias, inner, stride, padding, dilation, "none")


conv2d_max_pool: OpSpec = op(
    "conv2d_max_pool", inputs="x w bias?", outputs="y index?", attrs=f"{WINDOW} act:none/relu=none", dense="x w bias",
    doc="y, index = max_pool2d(conv2d(x, w, bias), kernel 2, stride 2): the same bits, without the image between",
    dtypes="f32", shape=_conv_pool_shape, vjp=_conv_pool_vjp,
    composition=lambda x, w, bias, stride, padding, dilation, act: _max_pool2d(
        _conv2d(x, w, bias, stride=stride, padding=padding, dilation=dilation, act=act), **HALVES
    ),
    cost=lambda x, w, y: (8.0 * y.size * product(w.shape[1:]), 4.0 * (x.size + w.size + y.size)),
    samples=lambda rng: [
        s for s in _conv_samples(rng) if min(_conv_out(s.inputs[0].shape, s.inputs[1].shape, s.attrs)[2:]) > 1
    ],
    bad_samples=[
        bad(
            "conv2d_max_pool: kernel [2, 2] does not fit into the padded image: x f32[1,1,3,3], w f32[1,1,3,3]; "
            "need a smaller kernel or more padding",
            (1, 1, 3, 3), (1, 1, 3, 3),
        ),
    ],
)  # fmt: skip


# ---- what users call -------------------------------------------------------------------------------------


def _pair(value: int | Sequence[int]) -> tuple[int, ...]:
    return (int(value), int(value)) if isinstance(value, (int, np.integer)) else tuple(int(v) for v in value)


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
) -> Value:
    """Convolution (correlation) of x [N, I, H, W] with w [O, I, KH, KW], plus bias [O].

    padding: zeros on both sides, or "same": the output is as large as the input (stride 1).
    """
    x, w = as_value(x), as_value(w)
    steps, gaps = _pair(stride), _pair(dilation)
    if padding == "same":
        if any(s != 1 for s in steps) or w.ndim != 4 or x.ndim != 4 or len(gaps) != 2:
            shown = f"x {describe(x)}, w {describe(w)}"
            raise ShapeError(
                f'conv2d: padding "same": {shown}; need images, kernels and stride 1; at {user_location()}'
            )
        total = [d * (k - 1) for d, k in zip(gaps, w.shape[2:], strict=True)]
        if any(t % 2 for t in total):  # one more after than before
            x = pad(x, [(0, 0), (0, 0), *((t // 2, t - t // 2) for t in total)])
            sides: tuple[int, ...] = (0, 0)
        else:
            sides = tuple(t // 2 for t in total)
    elif isinstance(padding, str):
        raise ShapeError(
            f'conv2d: padding {padding!r} is not known; need a number, a pair or "same"; at {user_location()}'
        )
    else:
        sides = _pair(padding)
    return _conv2d(x, w, bias, stride=steps, padding=sides, dilation=gaps)


def max_pool2d(
    x: Any, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0
) -> Value:
    """Largest of each window; the stride is the kernel where not given."""
    y, _ = _max_pool2d(
        x, kernel=_pair(kernel), stride=_pair(kernel if stride is None else stride), padding=_pair(padding)
    )
    return y


def avg_pool2d(
    x: Any, kernel: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0
) -> Value:
    """Mean of each window, padding included; the stride is the kernel where not given."""
    return _avg_pool2d(
        x, kernel=_pair(kernel), stride=_pair(kernel if stride is None else stride), padding=_pair(padding)
    )
