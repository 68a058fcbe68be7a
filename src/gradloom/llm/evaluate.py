"""Perplexity of a model on a text, with its uncertainty.

nll is the mean of -log p(token | tokens before it in its window) over all tokens that count, in nats; its uncertainty
is the standard error of that mean, sqrt(var / (n - 1)), for independent tokens; perplexity is exp(nll) with the
uncertainty exp(nll) * nll_unc. Where samples or messages have weights w, mean and variance are weighted, and n is
(sum w)^2 / sum w^2. These are the formulas of llama.cpp's perplexity tool, which counts the second half of
each window only.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops
from ..base.arguments import halves
from ..base.habits import AttributeHints, hinted
from ..graph.leaves import input as input_value
from ..graph.value import Value
from ..run.budget import ProcessBudget, check_places
from ..run.compile import compile as compile_program
from .arguments import adapter_of
from .data_files import test_file
from .duration import evaluation_seconds
from .gpu_layers import GpuLayers, at, bytes_on, check_layers, layers_for, placed_options
from .model import model_of
from .not_finite import not_finite

if TYPE_CHECKING:
    from .json_rows import Source
    from .model import Adapter, Model
    from .packing import TokenData
    from .rows import Rows

TOKENS = 512  # of a batch, approximately
LOGITS = 64  # rows of logits in memory


@dataclass(frozen=True)
class Perplexity(AttributeHints):
    """Result of evaluate. tokens: number of tokens that count. layers: on a GPU, if gpu_layers was used."""

    perplexity: float
    perplexity_unc: float
    nll: float
    nll_unc: float
    tokens: int
    rows: int
    seconds: float
    layers: GpuLayers | None = None

    def __str__(self) -> str:
        return f"perplexity {self.perplexity:.4f} +- {self.perplexity_unc:.4f}"


@hinted
def evaluate(
    model: Model | str | os.PathLike[str],
    data: Rows | TokenData | Source,
    adapter: Adapter | str | os.PathLike[str] | None = None,
    *,
    context: int | None = None,
    batch_size: int | None = None,
    data_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int, Perplexity], None] | None = None,
    on_predicted: Callable[[float], None] | None = None,
    gpu_layers: int | str | None = None,
    gpu_memory: int | str | None = None,
    memory: int | str | None = None,
    **options: Any,
) -> Perplexity:
    """Measure the perplexity of the tokens that count: of a text all but the first of each window of `context` tokens.

    model, adapter: objects, or the paths of their files. Without an adapter the model is that of its file: trained
    weights, also of method="full", are in the adapter of finetune's run. data: a path (.txt, .jsonl, .json, or a folder
    with test.jsonl), a list of dicts, TokenData, or the result of read_rows (context and data_options do not apply to
    these two). batch_size: in rows, by default about 512 tokens. on_progress: called with (rows done, rows, result so
    far). on_predicted: called with the predicted seconds of an evaluation of 5 s and more on the CPU, before it begins.
    gpu_layers, gpu_memory, memory: as in generate; where batch_size is not given and the memory does not suffice, it is
    smaller. options: for gl.compile (threads=, ...).
    Raises DataError for data without a token that counts; NonFiniteError for a loss that is not finite, naming the
    first tensor or operation that is not.
    """
    from ..train.arguments import check_batch, check_names
    from .rows import Rows, check_rows, read_rows

    check_names("evaluate", options, evaluate)
    check_layers("evaluate", gpu_layers, gpu_memory, **options)
    check_places("evaluate", memory, options, gpu_layers)
    model = model_of(model, "evaluate")
    bound = adapter_of(adapter, model, "evaluate")
    if isinstance(data, Rows):
        check_rows(data, context, data_options or {})
        data_rows = data
    else:
        data = test_file(data) if isinstance(data, (str, os.PathLike)) else data
        data_rows = read_rows(model, data, context, 0.0, adapter=bound, **(data_options or {}))
    rows, length = data_rows.tokens.shape
    size = max(1, TOKENS // length) if batch_size is None else batch_size
    check_batch(size)
    size = min(size, rows)
    if bound is not None:
        bound.bind(model)

    budget = None
    if memory is not None:
        budget, halved = ProcessBudget("evaluate", memory, options, "batch_size"), [*halves(size)]
        sizes, smaller = ([size, *halved], []) if batch_size is None else ([size], halved)
        size = budget.first_within(
            sizes, lambda rows: budget.compile(_nll(model, bound, rows, length, None), (), options), smaller
        )

    def compiled(layers: GpuLayers | None, options: Mapping[str, Any]) -> tuple[Value, Any]:
        nll = _nll(model, bound, size, length, layers)
        if budget is not None:
            return nll, budget.compile(nll, (), options)
        return nll, compile_program(nll, **placed_options(options, layers))

    layers, options = layers_for(
        "evaluate", model.config.layers, gpu_layers, gpu_memory, options,
        lambda some: bytes_on(some.gpu, [compiled(some, options)[1].plan]).total,
    )  # fmt: skip
    value, run = compiled(layers, options)
    if on_predicted is not None:
        seconds = evaluation_seconds(run.plan, -(-rows // size), options)
        if seconds is not None:
            on_predicted(seconds)
    began = time.perf_counter()
    sums, count = np.zeros(4), 0
    measured = _perplexity(sums, 0, 0, 0.0, layers)
    for start in range(0, rows, size):
        part = slice(start, min(start + size, rows))
        n = part.stop - start
        feeds = {"tokens": _padded(data_rows.tokens[part], size), "positions": _padded(data_rows.positions[part], size)}
        labels = _padded(data_rows.labels[part], size, -100)
        feeds["picks"] = _picks(labels.ravel(), model.config.vocab_size)
        (nll,) = run(**feeds)
        own = labels.ravel() >= 0
        if not np.isfinite(nll[own]).all():
            what = "evaluate: the loss of " + (f"row {start}" if n == 1 else f"rows {start} to {part.stop - 1}")
            raise not_finite(what, model, bound, run, [value], {}, **placed_options(options, layers))
        count += int(own.sum())
        weights = labels >= 0 if data_rows.weights is None else _padded(data_rows.weights[part], size)
        sums += _sums(nll[own], weights.ravel()[own])
        measured = _perplexity(sums, count, start + n, time.perf_counter() - began, layers)
        if on_progress is not None:
            on_progress(start + n, rows, measured)
    return measured


def _nll(model: Model, adapter: Adapter | None, rows: int, length: int, layers: GpuLayers | None) -> Value:
    """-log p of each label, f32 [rows * length]; never more than LOGITS rows of logits at a time."""
    tokens, positions = (input_value(name, (rows, length), "i32") for name in ("tokens", "positions"))
    n = rows * length
    picks = input_value("picks", (n,), "i32")
    hidden = model.hidden(tokens, positions, adapter, layers=layers)
    parts = []
    with at(layers and layers.end):
        for start in range(0, n, LOGITS):
            stop = min(start + LOGITS, n)
            log_p = ops.log_softmax(model.project(hidden[start:stop], adapter, layers))  # [rows, V]
            parts.append(ops.get_rows(log_p.reshape(-1, 1), picks[start:stop]).reshape(-1))
        return -ops.concat(parts)


def _picks(labels: np.ndarray, vocabulary: int) -> np.ndarray:
    """The index of each label's logit in its block of LOGITS rows of `vocabulary` numbers; i32."""
    return (np.arange(len(labels)) % LOGITS * vocabulary + np.maximum(labels, 0)).astype(np.int32)


def _padded(array: np.ndarray, rows: int, fill: int = 0) -> np.ndarray:
    """The rows, padded with rows of `fill` to this count."""
    missing = rows - len(array)
    return np.pad(array, ((0, missing), (0, 0)), constant_values=fill) if missing else np.ascontiguousarray(array)


def _sums(nll: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """f64 [4]: sums of the weights, their squares, and weight times nll and nll^2 of each token that counts."""
    each, nll = weights.astype(np.float64), nll.astype(np.float64)
    return np.array([each.sum(), (each * each).sum(), (each * nll).sum(), (each * np.square(nll)).sum()])


def _perplexity(sums: np.ndarray, count: int, rows: int, seconds: float, layers: GpuLayers | None) -> Perplexity:
    """sums: see _sums."""
    weight, square, total, squares = map(float, sums)
    nll = total / weight if weight else math.nan
    n = weight * weight / square if weight else 0.0
    unc = math.sqrt(max(squares / weight - nll * nll, 0.0) / (n - 1)) if n > 1 else math.nan
    try:
        perplexity = math.exp(nll)
    except OverflowError:
        perplexity = math.inf
    return Perplexity(perplexity, perplexity * unc, nll, unc, count, rows, seconds, layers)
