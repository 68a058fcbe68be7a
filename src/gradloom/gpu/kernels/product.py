"""Matrix products by tiles: how an operand is read, which tile a product is cut into, how its K is shared out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ...base.dtypes import bf16, f32
from ..calls import THREADS, Arg, Call, Dispatch, Limits, groups_for

Shape = tuple[int, int, int]  # m, n, k of a product
NARROW = ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
# Of K that one dispatch sums. Mesa's software adapter ends the loops of a kernel, without a word, when they have made
# 65535 rounds together (LP_MAX_TGSI_LOOP_ITERATIONS); 16 of K take up to 50 rounds here. A multiple of every block.
LONGEST = 16384
DEPTH = 16  # of K through workgroup memory at once: wgsl/product.wgsl
ENOUGH = 32  # workgroups that keep an adapter busy: with fewer, K is shared out
LEAST = 256  # of K in a share
NUMBERS = 32768  # that the threads of a workgroup keep: half of what a multiprocessor has room for
SHARED, READ = 2, 8  # cost of reading a number from workgroup memory, from memory, in multiplications


def element(arg: Arg, k: int, rounded: bool = False) -> str:
    """WGSL of number e of argument k; rounded: to bf16, as operands of a product with a bf16 operand."""
    assert arg.dtype is not None
    text = f"{arg.dtype.name}(e)" if arg.dtype.is_quantised else f"at_{k}(e)"
    return f"from_bf16(bf16_bits({text}))" if rounded and arg.dtype is not bf16 else text


def sources(arg: Arg, *families: str) -> tuple[str, ...]:
    """Files of wgsl/ whose argument 1 is this: those that decode it come first."""
    return ("quant", *families) if arg.dtype is not None and arg.dtype.is_quantised else families


def shares_of(m: int, n: int, k: int, matrices: int = 1) -> int:
    """Among how many workgroups K is shared out: several where there are few tiles, as in the gradients of an adapter,
    and where K is too long for one. From the shapes alone: the same sums on every device, and in every tile."""

    def numbers(size: int) -> int:
        return 64 if size > 32 else 32 if size > 16 else 16

    groups = -(-n // numbers(n)) * -(-m // numbers(m)) * matrices
    shares = -(-k // LONGEST)
    if groups < ENOUGH:
        shares = max(min(k // LEAST, 2 * ENOUGH // max(groups, 1)), shares)
    return -(-k // pad_k(k, shares)) if shares > 1 else 1


def pad_k(k: int, shares: int) -> int:
    """How much of K is a share: all of it, or whole blocks."""
    return -(-k // (shares * DEPTH)) * DEPTH if shares > 1 else k


def sums_bytes(z: Arg, shares: int) -> int:
    """The workspace of a product whose K is shared out: the sums over each share."""
    return 4 * z.size * shares if z.present and shares > 1 else 0


@dataclass(frozen=True)
class Tile:
    """down, across: threads of a workgroup; height, width: numbers of each of them."""

    down: int
    across: int
    height: int
    width: int

    @property
    def tall(self) -> int:
        return self.down * self.height

    @property
    def wide(self) -> int:
        return self.across * self.width

    def cut(self, m: int, n: int) -> tuple[int, int]:
        """Columns and rows of tiles."""
        return -(-n // self.wide), -(-m // self.tall)

    def fits(self, limits: Limits) -> bool:
        storage = 4 * DEPTH * (self.tall + 1 + self.wide) + SPARE
        threads = self.down * self.across
        kept = threads * 2 * self.height * self.width
        return storage <= limits.storage and threads <= min(limits.threads, limits.across) and kept <= NUMBERS

    def cost(self, m: int, n: int, slots: int) -> int:
        """Of a step of K, in multiplications: of all workgroups, or of those that an adapter runs at once."""
        across, down = self.cut(m, n)
        shared = SHARED * self.down * self.across * (self.height + self.width)
        one = self.tall * self.wide + shared + READ * (self.tall + self.wide)
        return one * max(across * down * slots, ENOUGH * THREADS // (self.down * self.across))

    def defines(self) -> dict[str, str]:
        """Definitions in the sources; the loops over a thread's numbers are unrolled."""
        numbers = "f32" if self.width == 1 else f"vec{self.width}<f32>"
        part = "" if self.width == 1 else "[{}]"
        loads = [
            f"        if (j0 + j * {self.width}u + {c}u < n) "
            f"{{ v{part.format(c)} = right_at(j0 + j * {self.width}u + {c}u, p0 + p); }}"
            for c in range(self.width)
        ]
        products = [
            f"      block[{r}] = fma({numbers}(tile_a[a + {self.down * r}u]), b, block[{r}]);"
            for r in range(self.height)
        ]
        return {
            "DOWN": str(self.down), "ACROSS": str(self.across), "HEIGHT": str(self.height), "WIDTH": str(self.width),
            "THREADS": str(self.down * self.across), "NUMBERS": numbers, "LOADS": "\n".join(loads),
            "PRODUCTS": "\n".join(products), "SUM": f"sums[r]{part.format('c')}",
        }  # fmt: skip


SPARE = 64  # bytes of workgroup memory that a kernel may need in addition to its tile
# Few, as each is a kernel to compile. The last ones are for adapters that allow more than WebGPU promises everywhere.
TILES = (
    Tile(16, 16, 1, 1), Tile(16, 16, 2, 2), Tile(16, 16, 4, 2), Tile(16, 16, 4, 4), Tile(16, 16, 8, 4),
    Tile(8, 32, 8, 4), Tile(8, 32, 1, 1), Tile(4, 64, 2, 2), Tile(4, 64, 4, 2), Tile(8, 32, 4, 4), Tile(1, 64, 2, 2),
    Tile(32, 8, 1, 1), Tile(64, 4, 2, 2), Tile(32, 8, 4, 2), Tile(32, 8, 4, 4),
    Tile(8, 8, 1, 1), Tile(8, 8, 4, 4),
    Tile(16, 32, 8, 4), Tile(8, 64, 8, 4), Tile(32, 16, 8, 4),
)  # fmt: skip


@lru_cache(maxsize=1024)
def tile_for(m: int, n: int, slots: int, limits: Limits) -> Tile:
    """The tile that costs least; it changes no sum. slots: products of this shape that run at once."""
    return min((one for one in TILES if one.fits(limits)), key=lambda one: one.cost(m, n, slots))


def tiled(
    limits: Limits, files: tuple[str, ...], args: tuple[Arg, ...], shape: Shape, slots: int, rest: tuple[int, ...],
    defines: dict[str, str],
) -> Dispatch:  # fmt: skip
    """A product of wgsl/matmul.wgsl. shape: m, n, k; slots: matrices times shares of K; rest: the words behind those of
    the tiles."""
    tile = tile_for(*shape[:2], slots, limits)
    cut = tile.cut(*shape[:2])
    words, groups = (*shape, *cut, *rest), math.prod(cut) * slots
    return Dispatch(files, "matmul", args, groups, words, defines | tile.defines())


def summed(
    call: Call, z: Arg, more: tuple[Arg, ...], shares: int, bias: tuple[int, int], finish: str,
    made: Callable[[Arg, tuple[Arg, ...], str], list[Dispatch]],
) -> list[Dispatch]:  # fmt: skip
    """The dispatches that `made` gives for (output, what FINISH reads, FINISH); where K is shared out, into the
    workspace, and then the sum of the shares. bias: numbers of z that share one of the bias, numbers of the bias."""
    if shares == 1:
        return made(z, more, finish)
    sums = call.args[-1].seen_with(f32, (shares, *z.shape))
    words = (z.size, shares, *bias)
    last = Dispatch(
        ("matmul_join",), "matmul_join", (sums, sums, z, *more), groups_for(z.size), words, {"FINISH": finish}
    )
    return [*made(sums, (), "z"), last]
