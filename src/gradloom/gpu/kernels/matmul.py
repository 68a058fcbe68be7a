"""Matrix products, batched, with a bias and relu or a gate at the end."""

from __future__ import annotations

import math

from ...base.dtypes import bf16
from ..calls import THREADS, Arg, Call, Dispatch, spread
from .product import LONGEST, NARROW, element, pad_k, shares_of, sources, summed, sums_bytes, tiled
from .table import kernel

FEW = 4  # rows


def _shares(call: Call, z: Arg) -> int:
    *batch, m, n = z.shape
    return 1 if _is_few(call, z) else shares_of(m, n, call[0].shape[-1], math.prod(batch))


def _is_few(call: Call, z: Arg) -> bool:
    """So few rows, as generation has them, that there are no tiles."""
    return z.shape[-2] <= FEW and call[0].shape[-1] <= LONGEST


def _workspace(call: Call) -> int:
    z = call[len(call.node.inputs)]
    return sums_bytes(z, _shares(call, z)) if z.size else 0


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
    shares = _shares(call, z)
    strides = [a[-2], a[-1], b[-1], b[-2], pad_k(k, shares), matrices, len(batch)]
    for axis in reversed(range(len(batch))):
        strides += [batch[axis], a[axis], b[axis]]
    finish = _finish(call)
    defines = {"LEFT": element(x, 0), "RIGHT": element(y, 1, rounded=x.dtype is bf16), "K": "1", "FINISH": finish}
    if _is_few(call, z):
        deep = 32 if b[-2] == 1 else 4  # threads that share a column's K
        across = THREADS // deep
        column, part = (f"(lane / {deep}u)", f"(lane % {deep}u)")
        if deep == 4:
            column, part = (f"(lane % {across}u)", f"(lane / {across}u)")
        defines |= {"ACROSS": str(across), "DEEP": str(deep), "COLUMN": column, "PART": part}
        words = (m, n, k, -(-n // across), 1, *strides)
        files, args = sources(y, "matmul_batch", "matmul_few"), (x, y, z, *more)
        return [Dispatch(files, "matmul_few", args, words[3] * matrices, words, defines)]
    files = sources(y, "strided", "product", "matmul_batch", "matmul_begin", "matmul")

    def made(z: Arg, more: tuple[Arg, ...], finish: str) -> list[Dispatch]:
        own = defines | {"FINISH": finish, "BIAS": "j"}
        return [tiled(call.limits, files, (x, y, z, *more), (m, n, k), matrices * shares, tuple(strides), own)]

    return summed(call, z, tuple(more), shares, (1, n), finish, made)


def _finish(call: Call) -> str:
    """The result from the sum z, in WGSL."""
    if call.node.op.name == "matmul_relu_back":
        return "select(0.0, z, at_3(at) > 0.0)"
    if call.node.op.name == "matmul":
        return "z"
    value = "z + at_3(bias)" if call[2].present else "z"
    return f"relu({value})" if call.attrs["act"] == "relu" else value


SIGNATURES = ("f32", *(f"f32_{t}_f32" for t in NARROW), "bf16_f32", *(f"bf16_{t}_f32" for t in NARROW if t != "bf16"))
for _name in ("matmul", "matmul_act", "matmul_relu_back"):
    kernel(_name, SIGNATURES, _product, workspace=_workspace)
