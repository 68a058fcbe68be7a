"""Rows by ids: gathered, added back, batches of a data set."""

from __future__ import annotations

import math

from ..calls import THREADS, Arg, Call, Dispatch, groups_for
from .layout import filled
from .table import Rule, kernel


def width_of(table: Arg) -> int:
    """Elements of a row."""
    return math.prod(table.shape[1:])


def check_ids(ids: Arg, count: int) -> Dispatch:
    """Stop the run at an id outside of 0..count-1."""
    return Dispatch(("tree", "ids"), "check_ids", (ids,), 1, (count,))


def _get_rows(call: Call) -> list[Dispatch]:
    table, ids, y = call.args
    rows, width = table.shape[0], width_of(table)
    made = [check_ids(ids, rows)]
    if y.size:
        made.append(Dispatch(("index",), "get_rows", (y, table, ids), groups_for(y.size), (width, rows)))
    return made


def _scatter_rows(call: Call) -> list[Dispatch]:
    g, ids, y = call.args
    made = [check_ids(ids, y.shape[0]), filled(y, 0.0)]
    if g.size:
        words = (width_of(y), y.shape[0], ids.size)
        rounds = -(-ids.size // THREADS) + -(-words[0] // THREADS) * (ids.size + 1)
        made.append(Dispatch(("tree", "scatter"), "scatter", (y, g, ids), ids.size, words, rounds=rounds))
    return made


def _take_batch(value: str, wide: bool) -> Rule:
    def rule(call: Call) -> list[Dispatch]:
        data, order, position, y = call.args
        args, defines = (y, data, order, position), {"VALUE": value}
        words = (width_of(data), data.shape[0], order.size, y.shape[0])
        sources = ("tree", "take_batch")
        made = [Dispatch(sources, "check_rows", args, 1, words, defines)]
        if wide and y.size:
            made.append(Dispatch((*sources, "take_fits"), "check_fits", args, 1, words, defines))
        if y.size:
            made.append(Dispatch(sources, "take", args, groups_for(y.size), words, defines))
        return made

    return rule


kernel("get_rows", "f32_i32_f32", _get_rows)
kernel("scatter_rows", "f32_i32_f32", _scatter_rows)
kernel("take_batch", "f32_i64_f32 f16_i64_f32 bf16_i64_f32 f64_i64_f32", _take_batch("x", False))
kernel("take_batch", "u8_i64_f32 i8_i64_f32", _take_batch("f32(x)", False))
kernel("take_batch", "i32_i64_f32", _take_batch("whole(x)", False))
kernel("take_batch", "i64_f32", _take_batch("from_i64(x)", False))
kernel("take_batch", "u8_i64_i32 i8_i64_i32 i32_i64_i32", _take_batch("x", False))
kernel("take_batch", "i64_i32", _take_batch("bitcast<i32>(x.x)", True))
