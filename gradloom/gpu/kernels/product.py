"""Matrix products by tiles: how an operand is read, and which tile a product is cut into."""

from __future__ import annotations

from ...base.dtypes import bf16
from ..calls import Arg

NARROW = ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
# Of K that one dispatch sums. Mesa's software adapter ends the loops of a kernel, without a word, when they have made
# 65535 rounds together (LP_MAX_TGSI_LOOP_ITERATIONS); 16 of K take some 28 rounds here. A multiple of every block.
LONGEST = 16384


def element(arg: Arg, k: int, rounded: bool = False) -> str:
    """WGSL of number e of argument k; rounded: to bf16, as operands beside one of bf16 are."""
    assert arg.dtype is not None
    text = f"{arg.dtype.name}(e)" if arg.dtype.is_quantised else f"at_{k}(e)"
    return f"from_bf16(bf16_bits({text}))" if rounded and arg.dtype is not bf16 else text


def sources(arg: Arg, *families: str) -> tuple[str, ...]:
    """Files of wgsl/ whose argument 1 is this: those that decode it come first."""
    return ("quant", *families) if arg.dtype is not None and arg.dtype.is_quantised else families


def tile(m: int, n: int) -> tuple[int, int]:
    """Numbers per thread, down and across: a tile is 16 times that. Small products take small tiles."""

    def one(size: int) -> int:
        return 4 if size > 32 else 2 if size > 16 else 1

    return one(m), one(n)
