"""The passes that a program goes through before it is planned, in order. Each is a pure function Program -> Program."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..graph.value import Node
from .expand import expand
from .fuse import fuse, transpose_products
from .precision import round_products, rounded_products
from .program import Program
from .simplify import join_pads, simplify

Rewrite = Callable[[Program], Program]


def passes(fused: bool = True, precision: str = "f32") -> Iterator[Rewrite]:
    """Those of a program in this precision, with fusion or without, that precede rounding."""
    first = simplify if precision == "f32" else simplify_unrounded
    yield first
    yield join_pads
    yield fuse if fused else transpose_products
    yield first


def simplify_unrounded(program: Program) -> Program:
    """simplify of a program whose products are not rounded yet."""
    return simplify(program, rounded_products(program))


def rewrite(
    program: Program,
    fuse: bool = True,
    after: Callable[[str, Program], None] | None = None,
    runs: Callable[[Node], bool] | None = None,
    precision: str = "f32",
    takes: Callable[[Node], bool] | None = None,
) -> Program:
    """The program after all passes. after: called with the name and the result of each. runs: whether the backend has a
    kernel for a node; where it has none, the op's composition takes its place. All kernels are there when not given.
    precision: "bf16" rounds what products read. takes: whether there is a kernel for a product of rounded operands, by
    default as `runs`."""
    for one in passes(fuse, precision):
        program = one(program)
        if after is not None:
            after(one.__name__, program)
    if precision != "f32":
        program = rounded(program, precision, takes or runs)
        if after is not None:
            after("round_products", program)
    if runs is not None and (expanded := expand(program, runs)) is not program:
        program = simplify(expanded)
        if after is not None:
            after("expand", program)
    return program


def rounded(program: Program, precision: str, runs: Callable[[Node], bool] | None = None) -> Program:
    """The program in this precision. runs: as in rewrite."""
    return program if precision == "f32" else round_products(program, runs or (lambda node: True))
