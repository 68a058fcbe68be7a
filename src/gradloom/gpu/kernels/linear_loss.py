"""Cross entropy of logits x w^T over a large vocabulary, a chunk of rows at a time: no array [rows, vocabulary].

list        the rows that count
each chunk  X = its rows of x;  Z = X w^T;  Z = weight * (softmax(Z) - label), and the losses
            dw += Z^T X;  dx of the rows = Z w; where x is bf16, Z is rounded for each of the two
sums        of losses and weights
"""

from __future__ import annotations

from ...base.dtypes import bf16, f32, i32
from ...plan.bytecode import NO_SEGMENT
from ..calls import Arg, Call, Dispatch, Limits, groups_for
from .layout import filled
from .loss import check_labels, sum_pairs
from .product import LONGEST, NARROW, element, sources, tile_for
from .table import kernel

LOGITS = 8 << 20  # numbers that a chunk's logits may be


def _chunk(rows: int, classes: int) -> int:
    """Rows of a chunk: the most whole tiles that fit."""
    most = min(max(LOGITS // classes, 16), LONGEST)  # the sum of dw is over them
    return min(rows, most // 64 * 64 if most >= 64 else most)


class _Pieces:
    """The workspace: list of rows, sums, the chunk's rows of x, its logits, what makes them slopes."""

    def __init__(self, rows: int, features: int, classes: int) -> None:
        self.chunk = _chunk(rows, classes)
        self.sizes = [rows + 1, 2 * rows, self.chunk * features, self.chunk * classes, self.chunk]
        self.shapes = [(rows + 1,), (rows, 2), (self.chunk, features), (self.chunk, classes), (self.chunk,)]
        self.starts = [sum(-(-size // 16) * 16 for size in self.sizes[:i]) for i in range(6)]

    @property
    def bytes(self) -> int:
        return 4 * self.starts[5]

    def cut(self, workspace: Arg) -> list[Arg]:
        return [
            workspace.seen_with(i32 if i == 0 else f32, shape, offset=start)
            for i, (shape, start) in enumerate(zip(self.shapes, self.starts, strict=False))
        ]


def _workspace(call: Call) -> int:
    x, w = call[0], call[1]
    rows, features = x.shape
    return _Pieces(rows, features, w.shape[0]).bytes


def _product(
    limits: Limits, a: Arg, b: Arg, c: Arg, rows: Arg, shape: tuple[int, int, int], strides: tuple[int, int, int, int],
    chunk: tuple[int, int], rounded: bool, needed: str, count: str, place: str, adds: bool = False,
    rounds_a: bool = False,
) -> list[Dispatch]:  # fmt: skip
    """C[m, n] = A B for a chunk (its first row, its size), or C += A B; a long K in parts, each added to those before.
    shape: m, n, k; strides: as in wgsl/product.wgsl. place: the element of C(i, j)."""
    m, n, k = shape
    tile = tile_for(m, n, 1, limits)
    across, down = tile.cut(m, n)
    if not across * down:
        return []
    defines = {
        "LEFT": element(a, 0, rounds_a), "RIGHT": element(b, 1, rounded), "K": "1", "NEEDED": needed, "COUNT": count,
        "PLACE": place,
    } | tile.defines()  # fmt: skip
    files, made = sources(b, "strided", "product", "linear_product"), []
    for first in range(0, max(k, 1), LONGEST):
        part = min(LONGEST, k - first)
        words = (m, n, part, across, down, *strides, *chunk, int(adds or first > 0), first)
        made.append(Dispatch(files, "linear_product", (a, b, c, rows), across * down, words, defines))
    return made


SOME_ROWS = "i0 < rows"


def _rule(call: Call) -> list[Dispatch]:
    """(x, w, labels, weights) -> loss, weight, dx, dw; or (x, w, labels) -> losses."""
    x, w, labels, *_, workspace = call.args
    rows, features = x.shape
    classes = w.shape[0]
    pieces = _Pieces(rows, features, classes)
    listed, sums, taken, logits, shares = pieces.cut(workspace)
    none = Arg(NO_SEGMENT, None, (), ())
    if call.node.op.name == "linear_cross_entropy":
        weights, loss, weight, dx, dw = call.args[3:8]
        losses = none
    else:
        weights = dx = dw = none
        losses = call[3]
    made = [
        *check_labels(labels, classes),
        Dispatch(("tree", "linear_list"), "list_rows", (labels, weights, listed, sums), 1, (classes,)),
        *[filled(one, 0.0) for one in (dx, losses) if one.present and one.size],
    ]
    rounded = x.dtype is bf16
    along, deep = w.strides
    for first in range(0, max(rows, 1), max(pieces.chunk, 1)):
        chunk = first, min(pieces.chunk, rows - first)
        size = chunk[1]
        if size:
            words = (first, features, *x.strides)
            some = taken.seen_as((size, features))
            made.append(Dispatch(("linear_gather",), "gather_rows", (x, listed, some), groups_for(some.size), words))
            made += _product(
                call.limits, taken, w, logits, listed, (size, classes, features), (features, 1, along, deep), chunk,
                rounded, SOME_ROWS, "word(2u)", "select(ABSENT, i * word(1u) + j, i < rows)",
            )  # fmt: skip
            wanted = int(dx.present or dw.present)
            args = (logits, labels, weights, listed, sums, losses, shares)
            files = ("math", "tree", "powers", "linear_rows")
            defines = {"ROUNDED": "true" if rounded else "false"}
            made.append(Dispatch(files, "linear_rows", args, size, (classes, first, wanted), defines))
        if dw.present:
            made += _product(
                call.limits, logits, taken, dw, listed, (classes, features, size), (1, classes, 1, features), chunk,
                False, "rows > 0u || word(11u) == 0u", "rows",
                "select(ABSENT, i * word(1u) + j, i < word(0u))", first > 0, rounded,
            )  # fmt: skip
        if size and dx.present:
            if rounded:
                some_rows = (logits, labels, listed, shares)
                made.append(Dispatch(("linear_round",), "linear_round", some_rows, size, (classes, first)))
            made += _product(
                call.limits, logits, w, dx, listed, (size, features, classes), (classes, 1, deep, along), chunk,
                rounded, SOME_ROWS, "word(2u)",
                "select(ABSENT, u32(at_3(1u + word(9u) + min(i, rows - 1u))) * word(1u) + j, i < rows)",
            )  # fmt: skip
    if call.node.op.name == "linear_cross_entropy":
        made.append(sum_pairs(sums, loss, weight))
    return made


SIGNATURES = (
    "f32_i32_f32", "bf16_f32_i32_f32", "bf16_i32_f32", *(f"f32_{t}_i32_f32" for t in NARROW),
    *(f"bf16_{t}_i32_f32" for t in NARROW if t != "bf16"),
)  # fmt: skip
kernel("linear_cross_entropy", SIGNATURES, _rule, workspace=_workspace)
kernel("linear_cross_entropy_rows", SIGNATURES, _rule, workspace=_workspace)
