"""Random ops. Drawn values depend on (seed, step, stream, row, element) alone: see base/philox.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.philox import keep_mask
from ..graph.declare import op
from ..graph.leaves import as_value, setting
from ..graph.opspec import OpSpec
from ..graph.value import Value
from .common import Sample, Spec, bad, draw, need, scalar_specs


def _dropout_shape(x: Spec, seed: Spec, step: Spec, row: Spec, rate: float) -> Spec:
    scalar_specs(seed, step, row)
    need(0 <= rate <= 1, f"rate {rate} is not usable", "0 <= rate <= 1")
    return Spec(x.shape)


def _dropout(
    x: np.ndarray, seed: np.ndarray, step: np.ndarray, row: np.ndarray, rate: float, stream: int
) -> np.ndarray:
    keep = keep_mask(int(seed), int(step), stream, int(row), x.shape, rate)
    return np.where(keep, x * (1 / (1 - rate) if rate < 1 else 0.0), 0).astype(x.dtype)


def _samples(rng: np.random.Generator) -> list[Sample]:
    samples = []
    cases: tuple[tuple[tuple[int, ...], float, int], ...] = (
        ((50,), 0.5, 0), ((1, 7), 0.0, 1), ((5, 33), 0.5, 7), ((3, 4, 5), 0.25, 2**40), ((300, 401), 0.1, 3),
        ((64, 1), 0.5, 0),
        ((3, 10000), 0.9, 5),
    )  # fmt: skip
    for shape, rate, stream in cases:
        seed, step, row = (np.array(rng.integers(0, high), np.int64) for high in (2**62, 10**6, 2**33))
        samples.append(Sample((draw(rng, shape), seed, step, row), {"rate": rate, "stream": stream}))
    return samples


_dropout_op: OpSpec = op(
    "dropout", inputs="x seed step row", attrs="rate:float stream:stream", may_overwrite="x", foldable=False,
    doc="y = x / (1 - rate) with probability 1 - rate, else 0; the same mask for the same seed, step, stream and row",
    dtypes="f32 seed:i64 step:i64 row:i64", shape=_dropout_shape,
    vjp=lambda g, seed, step, row, rate, stream: [
        _dropout_op(g, seed, step, row, rate=rate, stream=stream), None, None, None
    ],
    no_gradient_to=dict.fromkeys(("seed", "step", "row"), "a counter"), reference=_dropout, samples=_samples,
    bad_samples=[
        bad(
            "dropout: rate 1.5 is not usable: x f32[3], seed i64[], step i64[], row i64[]; need 0 <= rate <= 1",
            (3,), ("i64", ()), ("i64", ()), ("i64", ()), rate=1.5, stream=0,
        ),
        bad(
            "dropout: a scalar is not of shape (): x f32[3], seed i64[2], step i64[], row i64[]; need shape ()",
            (3,), ("i64", (2,)), ("i64", ()), ("i64", ()), rate=0.5, stream=0,
        ),
    ],
)  # fmt: skip


def dropout(
    x: Any, rate: float = 0.5, stream: int | None = None, seed: Any = None, step: Any = None, row: Any = None
) -> Value:
    """x / (1 - rate) with probability 1 - rate, else 0.

    stream: distinguishes this call's masks from others; by default the next of its scope (graph/streams.py).
    seed, step, row: by default the settings of these names
    (row: the position of x's first row in the logical batch, so that micro-batches see the masks of the whole).
    """
    x = as_value(x)
    keys = [setting(name, "i64") if v is None else v for name, v in (("seed", seed), ("step", step), ("row", row))]
    return _dropout_op(x, *keys, rate=rate, stream=stream)
