"""Matrix products, batched, with a bias and relu or a gate at the end."""

from __future__ import annotations

import math

from ...base.dtypes import bf16
from ..calls import THREADS, Call, Dispatch, spread
from .product import NARROW, element, sources, tile
from .table import kernel

FEW = 4  # rows


def _product(call: Call) -> list[Dispatch]:
    x, y, *more, z = call.args
    m, n = z.shape[-2:]
    batch = z.shape[:-2]
    if not z.size:
        return []
    a, b = (spread(v, (*batch, *v.shape[-2:])).strides for v in (x, y))
    strides = [a[-2], a[-1], b[-1], b[-2], len(batch)]
    for axis in reversed(range(len(batch))):
        strides += [batch[axis], a[axis], b[axis]]
    defines = {
        "LEFT": element(x, 0),
        "RIGHT": element(y, 1, rounded=x.dtype is bf16),
        "K": "1",
        "FINISH": _finish(call),
    }
    args = (x, y, z, *more)
    if m <= FEW:
        deep = 32 if b[-2] == 1 else 4  # threads that share a column's K
        across = THREADS // deep
        column, part = (f"(lane / {deep}u)", f"(lane % {deep}u)")
        if deep == 4:
            column, part = (f"(lane % {across}u)", f"(lane / {across}u)")
        defines |= {"ACROSS": str(across), "DEEP": str(deep), "COLUMN": column, "PART": part}
        tiles = -(-n // across), 1
        files, entry = sources(y, "matmul_few"), "matmul_few"
    else:
        height, width = tile(m, n)
        defines |= {"HEIGHT": str(height), "WIDTH": str(width)}
        tiles = -(-n // (16 * width)), -(-m // (16 * height))
        files, entry = sources(y, "product", "matmul"), "matmul"
    words = (m, n, x.shape[-1], *tiles, *strides)
    return [Dispatch(files, entry, args, math.prod(tiles) * math.prod(batch), words, defines)]


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
    kernel(_name, SIGNATURES, _product)
