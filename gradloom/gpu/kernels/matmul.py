"""Matrix products, batched, with a bias and relu or a gate at the end."""

from __future__ import annotations

import math

from ...base.dtypes import bf16, f32
from ..calls import THREADS, Call, Dispatch, groups_for, spread
from .product import LONGEST, NARROW, element, sources, tile
from .table import kernel

FEW = 4  # rows
ENOUGH = 32  # workgroups: with fewer, K is shared out
LEAST = 256  # of K in a share


def _share(m: int, n: int, k: int, matrices: int) -> int:
    """How much of K a workgroup sums: less than all where there are few tiles, as in the gradients of an adapter, and
    where K is too long for one. From the shapes alone: the same on every device."""
    height, width = tile(m, n)
    groups = -(-n // (16 * width)) * -(-m // (16 * height)) * matrices
    shares = -(-k // LONGEST)
    if m > FEW and groups < ENOUGH:
        shares = max(min(k // LEAST, 2 * ENOUGH // max(groups, 1)), shares)
    return -(-k // (shares * 16)) * 16 if shares > 1 else k


def _workspace(call: Call) -> int:
    """The sums over each share of K, where there are several."""
    z = call.args[len(call.node.inputs)]
    m, n = z.shape[-2:]
    k = call[0].shape[-1]
    share = _share(m, n, k, math.prod(z.shape[:-2]))
    return 4 * z.size * -(-k // share) if z.size and share < k else 0


def _product(call: Call) -> list[Dispatch]:
    inputs = len(call.node.inputs)
    x, y, *more = call.args[:inputs]
    z = call.args[inputs]
    m, n = z.shape[-2:]
    k, batch = x.shape[-1], z.shape[:-2]
    if not z.size:
        return []
    a, b = (spread(v, (*batch, *v.shape[-2:])).strides for v in (x, y))
    matrices = math.prod(batch)
    share = _share(m, n, k, matrices)
    strides = [a[-2], a[-1], b[-1], b[-2], share, matrices, len(batch)]
    for axis in reversed(range(len(batch))):
        strides += [batch[axis], a[axis], b[axis]]
    finish = _finish(call)
    defines = {"LEFT": element(x, 0), "RIGHT": element(y, 1, rounded=x.dtype is bf16), "K": "1", "FINISH": finish}
    args = (x, y, z, *more)
    if m <= FEW and k <= LONGEST:
        deep = 32 if b[-2] == 1 else 4  # threads that share a column's K
        across = THREADS // deep
        column, part = (f"(lane / {deep}u)", f"(lane % {deep}u)")
        if deep == 4:
            column, part = (f"(lane % {across}u)", f"(lane / {across}u)")
        defines |= {"ACROSS": str(across), "DEEP": str(deep), "COLUMN": column, "PART": part}
        words = (m, n, k, -(-n // across), 1, *strides)
        return [
            Dispatch(sources(y, "matmul_batch", "matmul_few"), "matmul_few", args, words[3] * matrices, words, defines)
        ]
    height, width = tile(m, n)
    defines |= {"HEIGHT": str(height), "WIDTH": str(width)}
    words = (m, n, k, -(-n // (16 * width)), -(-m // (16 * height)), *strides)
    files, groups = sources(y, "product", "matmul_batch", "matmul"), words[3] * words[4] * matrices
    if share >= k:
        return [Dispatch(files, "matmul", args, groups, words, defines)]
    shares = -(-k // share)
    sums = call.args[inputs + 1].seen_with(f32, (shares, *z.shape))
    joined = (sums, sums, z, *more)
    return [
        Dispatch(files, "matmul", (x, y, sums), groups * shares, words, defines | {"FINISH": "z"}),
        Dispatch(("matmul_join",), "matmul_join", joined, groups_for(z.size), (z.size, shares, n), {"FINISH": finish}),
    ]


def _finish(call: Call) -> str:
    """What the sum z becomes, in WGSL."""
    if call.node.op.name == "matmul_relu_back":
        return "select(0.0, z, at_3(at) > 0.0)"
    if call.node.op.name == "matmul":
        return "z"
    value = "z + at_3(j)" if call[2].present else "z"
    return f"relu({value})" if call.attrs["act"] == "relu" else value


SIGNATURES = ("f32", *(f"f32_{t}_f32" for t in NARROW), "bf16_f32", *(f"bf16_{t}_f32" for t in NARROW if t != "bf16"))
for _name in ("matmul", "matmul_act", "matmul_relu_back"):
    kernel(_name, SIGNATURES, _product, workspace=_workspace)
