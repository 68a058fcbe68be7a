"""Attention and its gradient, without a T x T matrix.

Outputs may lie in inputs that other workgroups still read: dk, dv (and y and dq of more than PIECE dimensions) are made
in the workspace and copied at the end; dq comes after dk and dv.
"""

from __future__ import annotations

from ...base.dtypes import bf16, f32
from ..calls import Arg, Call, Dispatch, groups_for
from .product import element
from .table import kernel

BLOCK = 32  # queries and keys of a tile
PIECE = 256  # dimensions of a workgroup's output
ABSENT = 0xFFFFFFFF


def _words(call: Call, q: Arg, k: Arg, cached: bool) -> tuple[int | float, ...]:
    """The words of wgsl/attention.wgsl but for the last two."""
    window, cap = call.attrs["window"], call.attrs["softcap"]
    kept = ABSENT if window is None or window >= k.shape[1] else window
    scale = float(call.attrs["scale"])
    return (*q.shape[1:], k.shape[1], k.shape[2], int(cached), kept, scale, 0.0 if cap is None else float(cap))


def _check(positions: Arg, keys: int) -> Dispatch:
    """Stops the run at a position that cannot be. keys: of the cache, or 0."""
    return Dispatch(("tree", "positions"), "check_positions", (positions,), 1, (positions.shape[1], keys))


def _dims(d: int) -> dict[str, str]:
    return {"DIMS": str(-(-min(d, PIECE) // 16))}


def _operands(q: Arg, k: Arg, v: Arg) -> dict[str, str]:
    """How keys and values are read, and whether weights are rounded: where q is bf16."""
    rounded = q.dtype is bf16
    return {
        "ROUNDED": "true" if rounded else "false", "KEY": element(k, 1, rounded), "VALUE": element(v, 2, rounded),
    }  # fmt: skip


def _rounds(tokens: int, d: int, heads: int = 1, weights: int = 0) -> int:
    """Maximum rounds of the loops of a thread over blocks of tokens: the scores of a block, the weights from them
    (`weights` rounds) and the products with these, for some heads."""
    scores = 10 + 21 * -(-d // 16)
    return -(-tokens // BLOCK) * (34 + heads * (scores + weights + 37 * -(-min(d, PIECE) // 16)))


def _pieces(d: int) -> int:
    return -(-d // PIECE)


def _forward(call: Call) -> list[Dispatch]:
    q, k, v, positions, y, lse, *workspace = call.args
    b, t, heads, d = q.shape
    cached = bool(call.attrs["cached"])
    made = [_check(positions, k.shape[1] if cached else 0)]
    blocks, pieces = -(-t // BLOCK), _pieces(d)
    common: tuple[str, ...] = ("math", "tree", "powers", "attention_seen")
    if t == 1 and b and pieces == 1:
        wide = _operands(q, k, v) | {"WIDE": str(1 << (int(d) - 1).bit_length())}
        words = _words(call, q, k, cached)
        rounds = -(-k.shape[1] // 256) * (3 * d + 50)
        files = (*common, "attention_token")
        made.append(Dispatch(files, "attention_token", call.args, b * heads, words, wide, rounds))
    elif b * blocks:
        words = (*_words(call, q, k, cached), blocks, pieces)
        y_made = workspace[0].seen_with(f32, q.shape) if workspace else y
        args = (q, k, v, positions, y_made, lse)
        files = (*common, "attention", "attention_forward")
        defines = _operands(q, k, v) | _dims(d)
        rounds = _rounds(k.shape[1], d, weights=76)
        made.append(Dispatch(files, "attention", args, b * heads * blocks * pieces, words, defines, rounds))
        if workspace:
            made.append(_copy(y_made, y))
    return made


def _forward_workspace(call: Call) -> int:
    """y, where it comes in pieces: it may lie in q, which the other pieces still read."""
    return 4 * call[0].size if _pieces(call[0].shape[-1]) > 1 else 0


def _workspace(call: Call) -> int:
    """delta, dk, dv; and dq where it comes in pieces."""
    q, k = call[1], call[2]
    return 4 * (_padded(q.size // q.shape[-1]) + 2 * _padded(k.size) + (q.size if _pieces(q.shape[-1]) > 1 else 0) + 16)


def _padded(size: int) -> int:
    return -(-size // 16) * 16


def _copy(from_: Arg, to: Arg) -> Dispatch:
    return Dispatch(("copy_words",), "copy_words", (from_, to), groups_for(to.size))


def _backward(call: Call) -> list[Dispatch]:
    g, q, k, v, y, lse, positions, g_lse, dq, dk, dv, workspace = call.args
    b, t, heads, d = q.shape
    made = [_check(positions, 0)]
    blocks, pieces = -(-t // BLOCK), _pieces(d)
    if not b * blocks:
        return made
    delta = workspace.seen_with(f32, lse.shape)
    at = _padded(delta.size)
    dk_made, dv_made = (workspace.seen_with(f32, k.shape, at + i * _padded(k.size)) for i in range(2))
    dq_made = dq if pieces == 1 else workspace.seen_with(f32, q.shape, at + 2 * _padded(k.size))
    words = (*_words(call, q, k, False), blocks, pieces)
    defines = _operands(q, k, v) | _dims(d)
    files = ("math", "powers", "attention_seen", "attention", "attention_back")
    read = (q, k, v, positions, g, lse, delta)
    heads_of_keys = k.shape[2]
    made += [
        Dispatch(("attention_delta",), "attention_delta", (g, y, g_lse, delta), groups_for(delta.size), (d,)),
        Dispatch(
            (*files, "attention_keys"), "attention_keys", (*read, dk_made, dv_made),
            b * heads_of_keys * blocks * pieces, words, defines, _rounds(t, d, heads // heads_of_keys),
        ),
        Dispatch(
            (*files, "attention_queries"), "attention_queries", (*read, dq_made), b * heads * blocks * pieces, words,
            defines, _rounds(t, d),
        ),
    ]  # fmt: skip
    made += [_copy(one, to) for one, to in ((dk_made, dk), (dv_made, dv)) if to.present]
    return made if dq_made is dq else [*made, _copy(dq_made, dq)]


kernel("attention", "f32_i32_f32 bf16_i32_f32 bf16_f32_i32_f32", _forward, workspace=_forward_workspace)
kernel("attention_back", "f32_i32_f32 bf16_f32_i32_f32", _backward, workspace=_workspace)
