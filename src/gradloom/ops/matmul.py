"""Matrix products, batched, with either side transposed by its strides."""

from __future__ import annotations

from collections.abc import Container
from functools import cache
from typing import Any

import numpy as np

from ..base.arguments import as_bool
from ..base.dtypes import QUANTISED, DType, bf16, f16, f32
from ..base.dtypes import dtype as as_dtype
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Shape, Value, define_operators
from .common import BadSample, Quantised, Sample, Spec, bad, broadcast_shape, draw, need, unbroadcast
from .elementwise import SIGN, add, cast, relu, relu_back
from .layout import permute, product, reshape

OPERANDS = "f32 x:f32|bf16 y:f32|f16|bf16|quantised"  # dtypes; where x is bf16, y is rounded to bf16 as it is read
NARROW: tuple[DType, ...] = (f16, bf16, *QUANTISED)  # other dtypes of a right operand: products decode them


def _product_shape(x: Spec, y: Spec) -> Spec:
    need(x.ndim >= 2 and y.ndim >= 2, "operands are not matrices", "at least 2 axes each")
    need(x.shape[-1] == y.shape[-2], "inner sizes differ", f"{x.shape[-1]} == {y.shape[-2]}")
    batch = broadcast_shape(Spec(x.shape[:-2]), Spec(y.shape[:-2]))
    return Spec((*batch, x.shape[-2], y.shape[-1]))


def _act_shape(x: Spec, y: Spec, bias: Spec | None) -> Spec:
    z = _product_shape(x, y)
    need(bias is None or bias.shape == z.shape[-1:], "bias does not fit", f"bias of shape [{z.shape[-1]}]")
    return z


def _relu_back_shape(x: Spec, y: Spec, h: Spec) -> Spec:
    z = _product_shape(x, y)
    need(h.shape == z.shape, "h does not fit", f"h of shape {list(z.shape)}")
    return z


@cache
def _swapped_axes(n: int) -> tuple[int, ...]:
    return (*range(n - 2), n - 1, n - 2)


def _t(x: Value) -> Value:
    """The last two axes swapped."""
    return permute(x, _swapped_axes(len(x.shape)))


def _back(g: Value, x: Value, y: Value, needed: Container[str]) -> list[Value | None]:
    """dx = g y^T, dy = x^T g, each summed over the batch axes that were broadcast."""
    dx = unbroadcast(_matmul(g, _t(y)), x) if "x" in needed else None
    return [dx, unbroadcast(_matmul(_t(cast(x, f32)), g), y) if "y" in needed else None]


def _act_back(
    g: Value, x: Value, y: Value, bias: Value | None, z: Value, act: str, needed: Container[str]
) -> list[Value | None]:
    inner = relu_back(g, z) if act == "relu" else g
    return [*_back(inner, x, y, needed), None if bias is None else unbroadcast(inner, bias)]


def _act(x: Value, y: Value, bias: Value | None, act: str) -> Value:
    z = _matmul(x, y)
    if bias is not None:
        z = add(z, bias)
    return relu(z) if act == "relu" else z


def _cost(x: Spec, y: Spec, z: Spec) -> tuple[float, float]:
    return 2.0 * z.size * x.shape[-1], float(x.bytes + y.bytes + z.bytes)


SIZES = (
    ((1, 1), (1, 1)), ((1, 7), (7, 1)), ((3, 5), (5, 4)), ((33, 17), (17, 65)), ((64, 64), (64, 64)),
    ((1, 300), (300, 19)),
    ((130, 3), (3, 1)), ((2, 1), (1, 40)), ((50, 90), (90, 10)), ((13, 400), (400, 33)),
)  # fmt: skip
BATCHED = (
    ((2, 3, 5), (2, 5, 4)), ((2, 3, 5), (5, 4)), ((3, 5), (4, 5, 2)), ((2, 1, 3, 5), (4, 5, 6)),
    ((3, 1, 7, 9), (1, 2, 9, 5)),
)  # fmt: skip
# Few rows, and neighbours of the right operand along k; k of several blocks.
LOW_SIZES = (((5, 40), (40, 13)), ((20, 40), (40, 50)), ((64, 33), (33, 131)), ((37, 1100), (1100, 70)))
LARGE_SIZES = (((200, 150), (150, 230)), ((257, 129), (129, 65)), ((500, 784), (784, 10)))


def _out(x: Shape, y: Shape) -> Shape:
    return (*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1])


def narrow_operand(rng: np.random.Generator, kind: DType, shape: Shape, turned: bool) -> Any:
    """A right operand of any narrow dtype; turned: its neighbours lie along k."""
    last = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    if kind.is_quantised:
        stored = tuple(shape[a] for a in last) if turned else shape
        return Quantised.draw(rng, kind, stored, last if turned else None)
    y = draw(rng, shape).astype(kind.numpy)
    return np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else y


def _narrow_operands(rng: np.random.Generator, few: bool = False) -> list[tuple[np.ndarray, Any]]:
    """(x, y) with y of each narrow dtype in both orientations: blocks along k, and along the columns."""
    operands = []
    for kind in NARROW:
        n = kind.block if kind.is_quantised else 24
        cases: list[tuple[Shape, Shape, bool]]
        cases = [((70, 2 * n), (2 * n, 45), True), ((19, 43), (43, 3 * n), False), ((1, n), (n, 7), True)]
        if not few:
            cases += [((100, n), (n, 5), True), ((2, 9, n), (2, n, 5), True)]
            cases += [((130, 4 * n), (4 * n, 330), True), ((260, 70), (70, 4 * n), False)]
        operands += [(draw(rng, a), narrow_operand(rng, kind, b, turned)) for a, b, turned in cases]
    return operands


def _rounded_operands(rng: np.random.Generator, few: bool = False) -> list[tuple[np.ndarray, Any]]:
    """(x, y) with x of bf16 and y of any dtype, in both orientations; also where k is odd."""
    sizes = (*SIZES, *BATCHED[:2], *LARGE_SIZES[1:]) if few else (*SIZES, *BATCHED, *LARGE_SIZES)
    kinds = [bf16 if i % 3 else f32 for i in range(len(sizes))]
    pairs = [(draw(rng, a), draw(rng, b).astype(kind.numpy)) for (a, b), kind in zip(sizes, kinds, strict=True)]
    pairs += [(x, y) for x, y in _narrow_operands(rng, few=True) if as_dtype(y.dtype) is not bf16]
    return [(x.astype(bf16.numpy), y) for x, y in pairs]


def _low_operands(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(draw(rng, a), narrow_operand(rng, f32, b, True)) for a, b in LOW_SIZES]


def _samples(rng: np.random.Generator) -> list[Sample]:
    samples = [Sample(pair) for pair in (*_narrow_operands(rng), *_rounded_operands(rng), *_low_operands(rng))]
    return samples + [Sample((draw(rng, a), draw(rng, b))) for a, b in (*SIZES, *BATCHED, *LARGE_SIZES)]


def _act_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for i, (a, b) in enumerate((*SIZES, BATCHED[0], BATCHED[1], *LARGE_SIZES)):
        x, y = draw(rng, a), draw(rng, b)
        bias = draw(rng, b[-1:]) if i % 3 else None
        samples.append(Sample((x, y, bias), {"act": "relu" if i % 2 else "none"}))
    for i, (x, y) in enumerate(_narrow_operands(rng, few=True)):
        samples.append(Sample((x, y, draw(rng, y.shape[-1:])), {"act": "relu" if i % 3 else "none"}))
    for i, (x, y) in enumerate(_rounded_operands(rng, few=True)):
        bias = draw(rng, y.shape[-1:]) if i % 3 else None
        samples.append(Sample((x, y, bias), {"act": "relu" if i % 2 else "none"}))
    for i, (x, y) in enumerate(_low_operands(rng)):
        bias = draw(rng, y.shape[-1:]) if i % 3 else None
        samples.append(Sample((x, y, bias), {"act": "relu" if i % 2 else "none"}))
    x, y = draw(rng, (40, 30)), draw(rng, (30, 50))
    return [*samples, Sample((x, y, None), {"act": "relu"}), Sample((x, y, draw(rng, (50,))), {"act": "none"})]


def _relu_back_samples(rng: np.random.Generator) -> list[Sample]:
    operands = [(x, y) for x, y in _narrow_operands(rng, few=True)]
    operands += [(draw(rng, a), draw(rng, b)) for a, b in (*SIZES, BATCHED[0], BATCHED[1], *LARGE_SIZES)]
    operands += [*_rounded_operands(rng, few=True), *_low_operands(rng)]
    return [Sample((x, y, draw(rng, _out(x.shape, y.shape), avoid=(0,)))) for x, y in operands]


def _bad(name: str, *others: Any) -> list[BadSample]:
    return [
        bad(
            f"{name}: operands are not matrices: x f32[3], y f32[3,2]; need at least 2 axes each", (3,), (3, 2), *others
        ),
        bad(
            f"{name}: dtype i32 is not taken: x i32[2,3], y f32[3,2]; need f32 or bf16",
            ("i32", (2, 3)),
            (3, 2),
            *others,
        ),
    ]


_matmul: OpSpec = op(
    "matmul", inputs="x y", outputs="z",
    doc="z = x @ y over the last two axes; batch axes broadcast; y may be f16, bf16 or quantised; where x is bf16, y "
    "is rounded to bf16 as it is read; sums are f32",
    dtypes=OPERANDS, shape=_product_shape, unit="x y", rounds="x y", vjp=_back, reference=lambda x, y: x @ y,
    cost=_cost, samples=_samples,
    bad_samples=[
        bad("matmul: inner sizes differ: x f32[32,784], y f32[500,10]; need 784 == 500", (32, 784), (500, 10)),
        bad(
            "matmul: shapes do not broadcast: x f32[2,3,4], y f32[3,4,5]; need extents that are equal or 1, "
            "counted from the last axis",
            (2, 3, 4), (3, 4, 5),
        ),
        *_bad("matmul"),
    ],
)  # fmt: skip
matmul_act: OpSpec = op(
    "matmul_act", inputs="x y bias?", outputs="z", attrs="act:none/relu=none",
    doc="z = act(x @ y + bias): the same bits as matmul, add, relu", dtypes=OPERANDS,
    shape=_act_shape, unit="x y", rounds="x y", dense="bias", composition=_act, vjp=_act_back, cost=_cost,
    samples=_act_samples,
    bad_samples=[
        bad(
            "matmul_act: bias does not fit: x f32[2,3], y f32[3,4], bias f32[3]; need bias of shape [4]",
            (2, 3), (3, 4), (3,),
        ),
        bad(
            "matmul_act: act='tanh' is not a choice: x f32[2,3], y f32[3,4]; need one of none, relu",
            (2, 3), (3, 4), None, act="tanh",
        ),
        *_bad("matmul_act", None),
    ],
)  # fmt: skip
matmul_relu_back: OpSpec = op(
    "matmul_relu_back", inputs="x y h", outputs="z",
    doc="z = x @ y where h > 0, else 0: the same bits as relu_back(matmul, h)", dtypes=OPERANDS,
    shape=_relu_back_shape, unit="x y", rounds="x y h", dense="h", no_gradient_to={"h": SIGN},
    composition=lambda x, y, h: relu_back(_matmul(x, y), h), cost=_cost, samples=_relu_back_samples,
    bad_samples=[
        bad(
            "matmul_relu_back: h does not fit: x f32[2,3], y f32[3,4], h f32[4]; need h of shape [2, 4]",
            (2, 3), (3, 4), (4,),
        ),
    ],
)  # fmt: skip


def matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Value:
    """x @ y as NumPy: vectors count as a row (left) or a column (right), batch axes broadcast.

    transpose_x, transpose_y: swap the last two axes first, without copying.
    """
    x, y = as_value(x), as_value(y)
    transpose_x, transpose_y = (
        as_bool("transpose_x", transpose_x, "matmul"),
        as_bool("transpose_y", transpose_y, "matmul"),
    )
    rank_x, rank_y = len(x.shape), len(y.shape)
    row, column = rank_x == 1, rank_y == 1
    if row:
        x = reshape(x, (1, x.shape[0]))
    elif transpose_x and rank_x >= 2:
        x = _t(x)
    if column:
        y = reshape(y, (y.shape[0], 1))
    elif transpose_y and rank_y >= 2:
        y = _t(y)
    if rank_x > 2 and rank_y in (1, 2) and not transpose_x and x.shape[-1] == y.shape[0]:
        z = reshape(_matmul(reshape(x, (product(x.shape[:-1]), x.shape[-1])), y), (*x.shape[:-1], y.shape[-1]))
    else:
        z = _matmul(x, y)
    if row or column:
        z = reshape(z, (*z.shape[:-2], *(() if row else z.shape[-2:-1]), *(() if column else z.shape[-1:])))
    return z


define_operators(matmul=matmul)
