"""Fusion: replaces two nodes by one that computes the same bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from ..graph.value import Node, Value
from .program import Program, make, rebuild


def transpose_products(program: Program) -> Program:
    """A product that only its transposition reads is computed transposed."""
    return _apply(program, TRANSPOSES)


def fuse(program: Program) -> Program:
    """Transposed products; bias and activation into products and convolutions, pools into these and their gradients."""
    for patterns in FUSIONS:
        program = _apply(program, patterns)
    return program


def _apply(program: Program, patterns: Sequence[Pattern]) -> Program:
    names = {node.op.name for node in program.nodes}
    if not any({pattern.outer, pattern.inner} <= names for pattern in patterns):
        return program
    return rebuild(program, _Fuser(program, patterns))


@dataclass(frozen=True)
class Pattern:
    """outer(..., inner(...), ...) -> build(inner node, outer node, the outer's other inputs), or None: not here."""

    outer: str
    inner: str
    position: int | None  # of the inner value among the outer's inputs; None: any
    build: Callable[[Node, Node, list[Value | None]], Node | None]
    repeats: bool = False  # also where several read the inner value, if all are such outers: each makes it again


class _Fuser:
    """Applies the patterns of a stage wherever the inner node has no other reader of its value."""

    def __init__(self, program: Program, patterns: Sequence[Pattern]) -> None:
        self.patterns: dict[str, list[Pattern]] = {}
        for pattern in patterns:
            self.patterns.setdefault(pattern.outer, []).append(pattern)
        # How many inputs of nodes each value is.
        self.uses: Counter[Value | None] = Counter(chain.from_iterable([node.inputs for node in program.nodes]))
        self.uses.update(dict.fromkeys((*program.outputs, *program.effects), 2))  # the caller reads them
        # How many of these are such that the value may be made again.
        self.repeats: Counter[Value | None] = Counter(
            node.inputs[pattern.position]
            for node in program.nodes
            for pattern in self.patterns.get(node.op.name, ())
            if pattern.repeats and pattern.position is not None
        )

    def __call__(self, node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        patterns = self.patterns.get(node.op.name)
        if patterns is None or node.after or node.effects:
            return None
        for pattern in patterns:
            for i in range(len(inputs)) if pattern.position is None else (pattern.position,):
                old, inner = node.inputs[i], inputs[i]
                if old is None or inner is None or inner.index or inner.node.op.name != pattern.inner:
                    continue
                if self.uses[old] != (self.repeats[old] if pattern.repeats else 1):
                    continue
                if inner.node.effects or inner.node.device != node.device:
                    continue
                fused = pattern.build(inner.node, node, [*inputs[:i], *inputs[i + 1 :]])
                if fused is not None:
                    return fused.outputs
        return None


def _add_bias(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """matmul(x, y) + bias[N]"""
    bias = _row_vector(others[0], outer.outputs[0].shape[-1:])
    if bias is None or outer.outputs[0].shape != inner.outputs[0].shape:
        return None
    return make("matmul_act", [*inner.inputs, bias], {"act": "none"}, outer)


def _row_vector(value: Value | None, shape: tuple[int, ...]) -> Value | None:
    """The value of shape [N] that `value` repeats along all other axes; None when it is anything else."""
    while value is not None and value.shape != shape:
        source, name = value.node.inputs[0] if value.node.inputs else None, value.node.op.name
        if source is None or name not in ("broadcast_to", "reshape") or value.shape[-1:] != shape:
            return None
        if source.size != shape[0] or source.shape[-1:] != shape:
            return None
        value = source
    return value


def _relu_on(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """relu of a matmul_act or conv2d that has no activation yet"""
    if inner.attrs["act"] != "none":
        return None
    return make(inner.op.name, inner.inputs, inner.attrs | {"act": "relu"}, outer)


def _matmul_relu_back(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """relu_back(matmul(x, y), h)"""
    return make("matmul_relu_back", [*inner.inputs, others[0]], {}, outer)


def _relu_back_before_pool(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """relu_back(max_pool2d_back(g, index), c) where y, index = max_pool2d(c): picked elements equal y, the rest is 0"""
    g, index = inner.inputs
    assert index is not None
    pool = index.node
    if pool.op.name != "max_pool2d" or pool.inputs[0] is not others[0]:
        return None
    picked = make("relu_back", [g, pool.outputs[0]], {}, outer)
    return make("max_pool2d_back", [picked.outputs[0], index], inner.attrs, outer)


def _conv_pool(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """max_pool2d(conv2d(...)) over halves: the image between is never stored"""
    if any(outer.attrs[k] != v for k, v in {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}.items()):
        return None
    return make("conv2d_max_pool", inner.inputs, inner.attrs, outer)


def _pool_back_weight(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """conv2d_back_weight(max_pool2d_back(g, index), x)"""
    if not _small_halves(inner):
        return None
    size = {"height": inner.attrs["height"], "width": inner.attrs["width"]}
    return make("conv2d_pool_back_weight", [*inner.inputs, others[0], None], outer.attrs | size, outer)


def _pool_back_input(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """conv2d_back_input(max_pool2d_back(g, index), w)"""
    return (
        make("conv2d_pool_back_input", [*inner.inputs, others[0]], outer.attrs, outer) if _small_halves(inner) else None
    )


def _small_halves(pool: Node) -> bool:
    """Whether max_pool2d_back is over halves, and the image of one row of the batch stays in the caches: then the image
    is never stored."""
    if any(pool.attrs[k] != v for k, v in {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}.items()):
        return False
    image = pool.outputs[0]
    return image.size <= image.shape[0] * IMAGE_MOST


def _relu_before_pool_back(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """conv2d_pool_back_weight(relu_back(g, y), index, x)"""
    g, y = inner.inputs
    index, x, known = others
    if known is not None:
        return None
    return make(outer.op.name, [g, index, x, y], outer.attrs, outer)


def _transposed_product(inner: Node, outer: Node, others: list[Value | None]) -> Node | None:
    """(x @ y) with its last two axes swapped = y^T @ x^T: the product is written where it is needed, without a copy"""
    axes = outer.attrs["axes"]
    last = len(axes) - 1
    x, y = inner.inputs
    assert x is not None and y is not None
    if last < 1 or axes != (*range(last - 1), last, last - 1) or x.ndim != last + 1 or y.ndim != last + 1:
        return None
    if y.dtype is not x.dtype:  # a frozen operand stays on the right
        return None
    transposed = [make("permute", [v], {"axes": axes}, outer).outputs[0] for v in (y, x)]
    return make("matmul", transposed, {}, outer)


IMAGE_MOST = 1 << 16  # floats of an image that fit into the caches with all other operands

TRANSPOSES: tuple[Pattern, ...] = (Pattern("permute", "matmul", 0, _transposed_product),)

# Patterns of one stage apply in one visit of the nodes; a later stage sees nodes that an earlier one left unread.
FUSIONS: tuple[tuple[Pattern, ...], ...] = (
    (
        *TRANSPOSES,
        Pattern("add", "matmul", None, _add_bias),
        Pattern("relu", "matmul_act", 0, _relu_on),
        Pattern("relu", "conv2d", 0, _relu_on),
        Pattern("relu_back", "matmul", 0, _matmul_relu_back),
        Pattern("relu_back", "max_pool2d_back", 0, _relu_back_before_pool),
    ),
    (
        Pattern("max_pool2d", "conv2d", 0, _conv_pool),
        Pattern("conv2d_back_weight", "max_pool2d_back", 0, _pool_back_weight, repeats=True),
        Pattern("conv2d_back_input", "max_pool2d_back", 0, _pool_back_input, repeats=True),
    ),
    (Pattern("conv2d_pool_back_weight", "relu_back", 0, _relu_before_pool_back),),
)
