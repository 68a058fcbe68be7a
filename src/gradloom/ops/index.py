"""Rows by id: gather, its transpose, and the batch of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import QUANTISED, DType, bf16, f16, f32, f64, i8, i32, i64, u8
from ..base.errors import DataError, DTypeError
from ..graph.declaration import IdRange
from ..graph.declare import op
from ..graph.leaves import as_value
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Quantised, Reject, Sample, Spec, bad, draw, need, scalar_specs
from .elementwise import cast

IDS = "row numbers have no slope"


def _table_rows(table: Any) -> IdRange:
    return IdRange("ids", table.shape[0])


def _result_rows(rows: int) -> IdRange:
    return IdRange("ids", rows)


def _data_rows(data: Any) -> IdRange:
    return IdRange("order", data.shape[0])


def _get_rows_shape(table: Spec, ids: Spec) -> Spec:
    need(table.ndim >= 1, "table has no rows", "at least one axis")
    return Spec((*ids.shape, *table.shape[1:]))


def _get_rows(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    _table_rows(table).check("get_rows", ids)
    return table[ids]


def _scatter_shape(g: Spec, ids: Spec, rows: int) -> Spec:
    need(rows >= 0, f"{rows} rows", "rows >= 0")
    need(
        g.shape[: ids.ndim] == ids.shape, "g does not begin with the shape of ids", f"g of shape {[*ids.shape, '...']}"
    )
    return Spec((rows, *g.shape[ids.ndim :]))


def _scatter_rows(g: np.ndarray, ids: np.ndarray, rows: int) -> np.ndarray:
    _result_rows(rows).check("scatter_rows", ids)
    y = np.zeros((rows, *g.shape[ids.ndim :]), g.dtype)
    np.add.at(y, ids, g)
    return y


def _gather_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    for table, ids in GATHERS:
        samples.append(Sample((draw(rng, table), rng.integers(0, table[0], ids).astype(np.int32))))
    for kind in (f16, bf16, *QUANTISED):
        n = max(kind.block, 24)
        for table, ids in (((9, 3 * n), (5, 2)), ((4, 2, n), (6,)), ((2 * n,), (7,)), ((30, 2 * n), (400,))):
            picked = rng.integers(0, table[0], ids).astype(np.int32)
            rows = Quantised.draw(rng, kind, table) if kind.is_quantised else draw(rng, table).astype(kind.numpy)
            samples.append(Sample((rows, picked)))
    return samples


def _gathered(table: Spec, y: Spec) -> tuple[float, float]:
    """The cost of picked rows: those bytes of the table that are read, and the result."""
    return float(y.size), table.bytes * y.size / max(table.size, 1) + y.bytes


GATHERS = (
    ((1, 1), (1,)), ((10, 7), (5,)), ((10, 7), (2, 3)), ((4,), (9,)), ((50, 33), ()), ((6, 2, 5), (4,)),
    ((500, 64), (1000,)), ((3, 300), (700,)),
)  # fmt: skip

get_rows: OpSpec = op(
    "get_rows", inputs="table ids", dense="table ids",
    doc="y[i] = table[ids[i]] as f32; ids are i32; the table may be f16, bf16 or quantised",
    dtypes="table:f32|f16|bf16|quantised ids:i32", shape=_get_rows_shape,
    vjp=lambda g, table, ids: [scatter_rows(g, ids, rows=table.shape[0]), None], no_gradient_to={"ids": IDS},
    reference=_get_rows, exact=True, ids=_table_rows, samples=_gather_samples,
    cost=lambda table, y: _gathered(table, y),
    bad_samples=[
        bad("get_rows: dtype f32 is not taken: table f32[4,3], ids f32[2]; need i32", (4, 3), (2,)),
        bad("get_rows: table has no rows: table f32[], ids i32[2]; need at least one axis", (), ("i32", (2,))),
    ],
)  # fmt: skip
scatter_rows: OpSpec = op(
    "scatter_rows", inputs="g ids", attrs="rows:int", dense="g ids",
    doc="y[ids[i]] += g[i], in the order of i; rows that no id names are 0", dtypes="f32 ids:i32",
    shape=_scatter_shape, vjp=lambda g_y, ids: [get_rows(g_y, ids), None], no_gradient_to={"ids": IDS},
    reference=_scatter_rows, ids=_result_rows,
    samples=lambda rng: [
        Sample((draw(rng, (*ids, *table[1:])), rng.integers(0, table[0], ids).astype(np.int32)), {"rows": table[0]})
        for table, ids in GATHERS
    ],
    bad_samples=[
        bad(
            "scatter_rows: g does not begin with the shape of ids: g f32[3,2], ids i32[4]; need g of shape [4, '...']",
            (3, 2), ("i32", (4,)), rows=5,
        ),
    ],
)  # fmt: skip


def embedding(table: Any, ids: Any) -> Value:
    """Rows of the table by id; ids of i64 or u8 are taken as well."""
    ids = as_value(ids)
    return get_rows(table, ids if ids.dtype.is_float else cast(ids, "i32"))


# ---- batches ---------------------------------------------------------------------------------------------

BATCH_KINDS: tuple[tuple[DType, DType], ...] = tuple(
    (source, target)
    for target, sources in ((f32, (f32, f16, bf16, f64, u8, i8, i32, i64)), (i32, (u8, i8, i32, i64)))
    for source in sources
)


def _take_shape(data: Spec, order: Spec, position: Spec, rows: int, kind: DType) -> Spec:
    if (data.dtype, kind) not in BATCH_KINDS:
        wanted = ", ".join(b.name for a, b in BATCH_KINDS if a is data.dtype)
        raise Reject(f"{data.dtype.name} is not converted to {kind.name}", f"one of: {wanted}", DTypeError)
    scalar_specs(position)
    need(data.ndim >= 1 and order.ndim == 1, "data has no rows or order is no list", "data of rows, order of shape [n]")
    need(0 <= rows <= order.shape[0], f"{rows} rows of an order of {order.shape[0]}", f"0 to {order.shape[0]} rows")
    return Spec((rows, *data.shape[1:]), kind)


def _take_batch(data: np.ndarray, order: np.ndarray, position: np.ndarray, rows: int, kind: DType) -> np.ndarray:
    at = int(position)
    if not 0 <= at <= len(order) - rows:
        raise DataError(
            f"take_batch: {rows} rows from position {at} of {len(order)}; need position 0..{len(order) - rows}"
        )
    picked = order[at : at + rows]
    _data_rows(data).check("take_batch", picked)
    wide = data.dtype == np.float64 and kind is f32
    return data[picked] if wide else data[picked].astype(kind.numpy)


def _take_samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    cases = (((20,), 7, 3), ((20, 5), 7, 0), ((9, 3, 4), 9, 0), ((5, 33), 1, 4), ((600, 784), 500, 50))
    for source, target in BATCH_KINDS:
        for shape, rows, at in cases if source in (f32, u8) else cases[:4]:
            x = rng.uniform(-5, 5, shape) if source.is_float else rng.integers(0, 100, shape)
            order = rng.permutation(shape[0]).astype(np.int64)
            samples.append(
                Sample((x.astype(source.numpy), order, np.array(at, np.int64)), {"rows": rows, "kind": target})
            )
    return samples


take_batch: OpSpec = op(
    "take_batch", inputs="data order position", attrs="rows:int kind:dtype=f32", dense="data order",
    doc="y[i] = data[order[position + i]] for i < rows, converted to f32 or i32",
    dtypes="data:any order:i64 position:i64", shape=_take_shape, no_gradient="a data set is not trained",
    foldable=False, reference=_take_batch, exact=True, ids=_data_rows, samples=_take_samples,
    cost=lambda data, y: _gathered(data, y),
    bad_samples=[
        bad(
            "take_batch: 9 rows of an order of 4: data f32[4,3], order i64[4], position i64[]; need 0 to 4 rows",
            (4, 3), ("i64", (4,)), ("i64", ()), rows=9,
        ),
        bad(
            "take_batch: f32 is not converted to i32: data f32[4,3], order i64[4], position i64[]; need one of: f32",
            (4, 3), ("i64", (4,)), ("i64", ()), rows=2, kind="i32",
        ),
    ],
)  # fmt: skip
