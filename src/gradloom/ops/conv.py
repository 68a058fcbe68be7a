"""Convolution of images [N, C, H, W], and its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..base.dtypes import bf16, f32
from ..base.errors import ShapeError
from ..graph.declaration import Reject
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.scope import user_location
from ..graph.value import Shape, Value, describe
from .common import Sample, Spec, bad, draw, need, need_rounded, zeros_like
from .elementwise import add, cast, mul, relu_back
from .indexing import slice as slice_of
from .layout import broadcast_to, concat, product, reshape, shape_error, split
from .padding import pad
from .windows import Pair, inside, need_images, need_pairs, out_extent, out_extents, padded, pair_of, window


def _conv(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, stride: Pair, padding: Pair, dilation: Pair, act: str
) -> np.ndarray:
    out = tuple(out_extent(*a) for a in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True))
    xp = padded(x, padding)
    y = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
    for ky, kx in np.ndindex(*w.shape[2:]):
        v = window(xp, ky, kx, stride, dilation, (out[0], out[1]))
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
        window(dx, ky, kx, stride, dilation, (g.shape[2], g.shape[3]))[...] += part
    return inside(dx, padding, height, width)


def _conv_back_weight(
    g: np.ndarray, x: np.ndarray, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[np.ndarray, np.ndarray]:
    xp = padded(x, padding)
    dw = np.zeros((g.shape[1], x.shape[1], *kernel), g.dtype)
    for ky, kx in np.ndindex(*kernel):
        v = window(xp, ky, kx, stride, dilation, (g.shape[2], g.shape[3]))
        dw[:, :, ky, kx] = np.tensordot(g, v, ([0, 2, 3], [0, 2, 3]))
    return dw, g.sum((0, 2, 3))


# ---- convolution -----------------------------------------------------------------------------------------


def conv_shape(x: Spec, w: Spec, bias: Spec | None, stride: Shape, padding: Shape, dilation: Shape) -> Spec:
    need_images(x)
    need(w.ndim == 4, "w is no set of kernels", "w of shape [O, I, KH, KW]")
    need_rounded(x, w)
    last = "; channels are the second axis: ops.permute(x, (0, 3, 1, 2))" if x.shape[3] == w.shape[1] else ""
    need(x.shape[1] == w.shape[1], "channels differ", f"{x.shape[1]} == {w.shape[1]}{last}")
    need(bias is None or bias.shape == w.shape[:1], "bias does not fit", f"bias of shape [{w.shape[0]}]")
    return Spec((x.shape[0], w.shape[0], *out_extents(x, w.shape[2:], stride, padding, dilation)))


def conv_back_input_shape(
    g: Spec, w: Spec, height: int, width: int, stride: Shape, padding: Shape, dilation: Shape
) -> Spec:
    need_images(g, "g")
    need(w.ndim == 4, "w is no set of kernels", "w of shape [O, I, KH, KW]")
    need_rounded(g, w)
    x = Spec((g.shape[0], w.shape[1], height, width), g.dtype)
    forward = conv_shape(x, w, None, stride, padding, dilation)
    need(g.shape == forward.shape, "g is no gradient of this convolution", f"g of shape {list(forward.shape)}")
    return Spec(x.shape)


def conv_back_weight_shape(
    g: Spec, x: Spec, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape
) -> list[Spec]:
    need_images(g, "g")
    need_images(x)
    need_pairs({}, kernel=kernel)
    need_rounded(g, x)
    w = Spec((g.shape[1], x.shape[1], *kernel))
    forward = conv_shape(x, w, None, stride, padding, dilation)
    need(g.shape == forward.shape, "g is no gradient of this convolution", f"g of shape {list(forward.shape)}")
    return [w, Spec(w.shape[:1])]


def conv_vjp(
    g: Value, x: Value, w: Value, bias: Value | None, y: Value, stride: Pair, padding: Pair, dilation: Pair, act: str
) -> list[Value | None]:
    inner = relu_back(g, y) if act == "relu" else g
    x, w = cast(x, f32), cast(w, f32)
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    dx = conv2d_back_input(inner, w, height=x.shape[2], width=x.shape[3], **how)
    dw, db = conv2d_back_weight(inner, x, kernel=w.shape[2:], **how)
    return [dx, dw, None if bias is None else db]


def _back_weight_vjp(
    g_dw: Value | None, g_db: Value | None, g: Value, x: Value, stride: Pair, padding: Pair, dilation: Pair
) -> list[Value | None]:
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    g, x = cast(g, f32), cast(x, f32)
    to_g, to_x = None, zeros_like(x)
    if g_dw is not None:
        to_g = conv2d_op(x, g_dw, **how)
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


def conv_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (x, w, how) in enumerate(CONVS):
        bias = draw(rng, w[:1]) if i % 2 else None
        samples.append(Sample((draw(rng, x), draw(rng, w), bias), how | {"act": "relu" if i % 4 == 1 else "none"}))
    return with_bf16(samples)


def with_bf16(samples: list[Sample], others: Sequence[int] = (1,)) -> list[Sample]:
    """And some of them with operands of bf16: the first, and the others at these positions as well or in f32."""
    more = []
    for i, sample in enumerate(samples[1:]):
        inputs = list(sample.inputs)
        for j, at in enumerate((0, *others)):
            if inputs[at] is not None and (at == 0 or (i + j) % 3 == 1):
                inputs[at] = inputs[at].astype(bf16.numpy)
        more.append(Sample(tuple(inputs), sample.attrs))
    return samples + more


def conv_extents(x: Shape, w: Shape, how: dict[str, Any]) -> Shape:
    spatial = [out_extent(*a) for a in zip(x[2:], w[2:], how["stride"], how["padding"], how["dilation"], strict=True)]
    return (x[0], w[0], *spatial)


WINDOW = "stride:ints=1,1 padding:ints=0,0 dilation:ints=1,1"
BAD_G = "g is no gradient of this convolution"

conv2d_op: OpSpec = op(
    "conv2d", inputs="x w bias?", attrs=f"{WINDOW} act:none/relu=none", dense="x w bias", rounds="x w",
    doc="y = act(sum over window and input channels of x * w, + bias); x [N, I, H, W], w [O, I, KH, KW]",
    dtypes="f32 x:f32|bf16 w:f32|bf16", shape=conv_shape, vjp=conv_vjp, reference=_conv, samples=conv_samples,
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
    rounds="g w",
    doc="dx of conv2d for an input of height x width", dtypes="f32 g:f32|bf16 w:f32|bf16", shape=conv_back_input_shape,
    vjp=lambda g_dx, g, w, stride, padding, dilation: [
        conv2d_op(g_dx, cast(w, f32), stride=stride, padding=padding, dilation=dilation),
        conv2d_back_weight(
            cast(g, f32), g_dx, kernel=w.shape[2:], stride=stride, padding=padding, dilation=dilation
        )[0],
    ],
    reference=_conv_back_input,
    cost=lambda g, w, dx: (2.0 * g.size * product(w.shape[1:]), 4.0 * (g.size + w.size + dx.size)),
    samples=lambda rng: with_bf16([
        Sample((draw(rng, conv_extents(x, w, how)), draw(rng, w)), {"height": x[2], "width": x[3]} | how) for x, w,
        how in CONVS
    ]),
    bad_samples=[
        bad(
            f"conv2d_back_input: {BAD_G}: g f32[1,2,4,4], w f32[2,3,3,3]; need g of shape [1, 2, 6, 6]",
            (1, 2, 4, 4), (2, 3, 3, 3), height=8, width=8,
        ),
    ],
)  # fmt: skip
conv2d_back_weight: OpSpec = op(
    "conv2d_back_weight", inputs="g x", outputs="dw db?", attrs=f"kernel:ints {WINDOW}", dense="g x", rounds="g x",
    doc="dw of conv2d for a kernel [KH, KW], and db = g summed over images and positions",
    dtypes="f32 g:f32|bf16 x:f32|bf16",
    shape=conv_back_weight_shape, vjp=_back_weight_vjp, reference=_conv_back_weight,
    cost=lambda g, x, dw: (2.0 * g.size * product(dw.shape[1:]), 4.0 * (g.size + x.size + dw.size)),
    samples=lambda rng: with_bf16([
        Sample((draw(rng, conv_extents(x, w, how)), draw(rng, x)), {"kernel": w[2:]} | how) for x, w, how in CONVS
    ]),
    bad_samples=[
        bad(
            f"conv2d_back_weight: {BAD_G}: g f32[1,2,4,4], x f32[1,3,8,8]; need g of shape [1, 2, 6, 6]",
            (1, 2, 4, 4), (1, 3, 8, 8), kernel=(3, 3),
        ),
    ],
)  # fmt: skip


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Value:
    """Convolution (correlation) of x [N, I, H, W] with w [O, I / groups, KH, KW], plus bias [O].

    padding: zeros on both sides, or "same": the output is as large as the input (stride 1).
    groups: output channels i O / groups to (i + 1) O / groups - 1 see input channels i I / groups to
    (i + 1) I / groups - 1 only. Raises ShapeError when groups do not divide both.
    """
    x, w = as_value(x), as_value(w)
    steps, gaps = pair_of("stride", stride), pair_of("dilation", dilation)
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
        sides = pair_of("padding", padding)
    if groups == 1:
        return conv2d_op(x, w, bias, stride=steps, padding=sides, dilation=gaps)
    check_groups("conv2d", x, w, groups, w.shape[:1])
    if w.shape[1] != x.shape[1] // groups:
        raise shape_error(
            "conv2d", [x, w], f"{groups} groups do not fit", f"w of shape [O, {x.shape[1] // groups}, ...]"
        )
    in_groups = conv2d_groups if _whole.get() else _in_groups
    return in_groups(x, w, bias, stride=steps, padding=sides, dilation=gaps, groups=groups)


def check_groups(name: str, x: Value, w: Value, groups: int, further: Sequence[int] = ()) -> None:
    """ShapeError unless x is a batch of images, w a set of kernels, and their channels form this number of groups."""
    if x.ndim != 4 or w.ndim != 4:
        raise shape_error(name, [x, w], "no images and kernels", "x of shape [N, I, H, W], w of rank 4")
    whole = isinstance(groups, (int, np.integer)) and not isinstance(groups, bool)
    if not whole or groups < 1 or x.shape[1] % groups or any(channels % groups for channels in further):
        raise shape_error(name, [x, w], f"groups={groups!r} do not divide the channels", "a divisor of both channels")


_whole: ContextVar[bool] = ContextVar("gradloom_whole_groups", default=False)


@contextmanager
def whole_groups() -> Iterator[None]:
    """Inside, conv2d with groups makes one node, conv2d_groups, for writers of files. It has no kernel."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def _in_groups(x: Value, w: Value, bias: Any, stride: Shape, padding: Shape, dilation: Shape, groups: int) -> Value:
    if x.shape[1] == groups and len(stride) == len(padding) == len(dilation) == 2:
        return _depthwise(x, w, bias, stride, padding, dilation)
    parts = zip(split(x, groups, 1), split(w, groups), strict=True)
    made = [conv2d_op(part, k, None, stride=stride, padding=padding, dilation=dilation) for part, k in parts]
    y = concat(made, 1)
    return y if bias is None else add(y, reshape(as_value(bias), (-1, 1, 1)))


def _group_samples(rng: np.random.Generator) -> list[Sample]:
    shapes = (
        ((2, 4, 7, 6), (6, 2, 3, 3), _how(padding=(1, 0))),
        ((1, 3, 8, 9), (6, 1, 3, 2), _how((2, 1), (1, 1), (1, 2))),
    )
    return [
        Sample((draw(rng, x), draw(rng, w), draw(rng, w[:1]) if i else None), how | {"groups": x[1] // w[1]})
        for i, (x, w, how) in enumerate(shapes)
    ]


conv2d_groups: OpSpec = op(
    "conv2d_groups", inputs="x w bias?", attrs=f"{WINDOW} groups:int",
    doc="conv2d of channels in groups, in graphs that are written to files; else conv2d makes its composition",
    dtypes="f32", composition=_in_groups, samples=_group_samples, written=True,
    bad_samples=[
        bad(
            "conv2d: kernel [5, 5] does not fit into the padded image: f32[1,2,3,3], f32[2,1,5,5]; "
            "need a smaller kernel or more padding",
            (1, 2, 3, 3), (2, 1, 5, 5), groups=2,
        ),
    ],
)  # fmt: skip


def _depthwise(x: Value, w: Value, bias: Value | None, steps: Shape, sides: Shape, gaps: Shape) -> Value:
    """A convolution in which each output channel sees one input channel: products with slices of x, added up."""
    spec = Spec((x.shape[0], w.shape[0], *x.shape[2:]))
    try:
        out = out_extents(spec, w.shape[2:], steps, sides, gaps)
    except Reject as reject:
        raise shape_error("conv2d", [x, w], reject.seen, reject.need) from None
    n, channels = x.shape[:2]
    times = w.shape[0] // channels
    wide = pad(x, [(0, 0), (0, 0), *((p, p) for p in sides)]) if any(sides) else x
    kernels = reshape(w, (channels, times, 1, 1, *w.shape[2:]))
    total = None
    for ky, kx in np.ndindex(*w.shape[2:]):
        rows, columns = ky * gaps[0], kx * gaps[1]
        stops = (rows + (out[0] - 1) * steps[0] + 1, columns + (out[1] - 1) * steps[1] + 1)
        seen = slice_of(wide, (0, 0, rows, columns), (n, channels, *stops), (1, 1, *steps))
        part = mul(reshape(seen, (n, channels, 1, *out)), kernels[:, :, :, :, ky, kx])
        total = part if total is None else add(total, part)
    assert total is not None
    y = reshape(total, (n, w.shape[0], *out))
    return y if bias is None else add(y, reshape(as_value(bias), (-1, 1, 1)))


def conv1d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    """Convolution (correlation) of x [N, I, L] with w [O, I / groups, K], plus bias [O]: conv2d of images of one row.

    padding, groups: as of conv2d. Raises ShapeError for other ranks, and as conv2d.
    """
    x, w = as_value(x), as_value(w)
    if x.ndim != 3 or w.ndim != 3:
        raise shape_error("conv1d", [x, w], "no rows and kernels", "x of shape [N, I, L], w of shape [O, I, K]")
    row, kernels = (reshape(v, (*v.shape[:2], 1, v.shape[2])) for v in (x, w))
    sides = padding if isinstance(padding, str) else (0, padding)
    y = conv2d(row, kernels, bias, (1, stride), sides, (1, dilation), groups)
    return reshape(y, (*y.shape[:2], y.shape[3]))
