"""Halves and quantised blocks as f32: casts, and rows by ids."""

from __future__ import annotations

from ..calls import Call, Dispatch, groups_for
from .index import check_ids, width_of
from .product import NARROW, element, sources
from .table import kernel


def _cast(call: Call) -> list[Dispatch]:
    x, y = call.args
    defines = {"NUMBER": element(x, 1), "K": "1"}
    return [Dispatch(sources(x, "decode"), "decode", (y, x), groups_for(y.size), (), defines)] if y.size else []


def _get_rows(call: Call) -> list[Dispatch]:
    table, ids, y = call.args
    words = (width_of(table), table.shape[0])
    made = [check_ids(ids, table.shape[0])]
    if y.size:
        defines = {"NUMBER": element(table, 1), "K": "1"}
        files = sources(table, "decode", "decode_rows")
        made.append(Dispatch(files, "decode_rows", (y, table, ids), groups_for(y.size), words, defines))
    return made


for _name in NARROW:
    kernel("get_rows", f"{_name}_i32_f32", _get_rows)
    if _name not in ("f16", "bf16"):
        kernel("cast", f"{_name}_f32", _cast)
