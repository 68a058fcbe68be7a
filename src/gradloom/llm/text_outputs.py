"""Outputs of a model for texts: packed into rows, computed in batches, returned in the order of the texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import DataError, SettingError
from ..graph.leaves import input as input_value
from ..graph.value import Value
from ..run.compile import compile as compile_program
from .computed_labels import compute_rows, padded_rows
from .json_rows import BadRow, FileRows, is_samples
from .not_finite import not_finite
from .objective import Forward, Objective
from .row_readers import reader_of
from .rows import CONTEXT, Rows

if TYPE_CHECKING:
    from .model import Model
    from .samples import Report

TOKENS = 512  # of a batch, approximately
NO_EFFECT = (  # on the data of a prediction
    "skip_bad_lines", "train_on_all", "label_key", "chosen_key", "rejected_key", "anchor_key", "positive_key",
    "negative_key",
)  # fmt: skip


def texts_as_rows(texts: Any, key: str, where: str) -> list[Any]:
    """A text, several texts (a list, an array, a column of pandas), dicts or a table as dicts. Raises SettingError for
    anything else, DataError for a row that is none."""
    given: Any = [texts] if isinstance(texts, str) else texts
    if getattr(given, "ndim", 0) == 1 and hasattr(given, "tolist"):
        given = given.tolist()
    elif isinstance(given, (set, frozenset)) or (hasattr(given, "to_list") and not hasattr(given, "columns")):
        given = [*given]
    if not isinstance(given, (list, tuple)) and is_samples(given):
        reader = reader_of(given)
        given = []
        for number, row in reader:
            if isinstance(row, BadRow):
                raise DataError(f"{where}: {reader.where(number)} {row}")
            given.append(row)
    if not is_samples(given) or not len(given):
        raise SettingError(f"{where}: texts is {given!r:.60}; need a text, a list of texts, or a list of dicts")
    return [{key: one} for one in given] if all(isinstance(one, str) for one in given) else _as_list(given)


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else list(given)


def outputs_of(
    where: str, objective: Objective, model: Model, adapter: Any, rows: list[Any], context: int | None,
    batch_size: int | None, reading: Mapping[str, Any], options: Mapping[str, Any],
) -> tuple[np.ndarray, Report]:  # fmt: skip
    """(the first output of the objective for each text f32 [texts, ...], counts of the texts).

    rows: as dicts, each a sample of one part in the objective's form. where: name of the function, for messages.
    context: most tokens of a text, by default the model's context; batch_size: rows at a time, by default about 512
    tokens; reading: arguments of read_samples; options: of gl.compile. Raises SettingError, DataError and
    NonFiniteError.
    """
    data = _packed(where, model, rows, adapter, objective, context, reading)
    found = _computed(where, model, adapter, objective, data, batch_size, options)
    made = np.empty((len(rows), *found.shape[3:]), np.float32)
    assert data.samples is not None
    there = data.samples >= 0
    made[data.samples[there]] = found[:, :, 0][there]
    return made, data.reports[0]


def _packed(
    where: str, model: Model, rows: list[Any], adapter: Any, objective: Objective, context: int | None,
    reading: Mapping[str, Any],
) -> Rows:  # fmt: skip
    from .data import read_samples
    from .packing import pack

    for name in NO_EFFECT:
        if reading.get(name):
            raise SettingError(f"{where}: {{{name}}} has no effect on texts to compute; leave it out", {name: ...})
    limit = model.config.context_length
    if context is not None and not 1 <= as_whole("context", context, 1, where) <= limit:
        raise SettingError(setting="context", seen=context, need=f"1 to {limit}, the model's context")
    template = getattr(adapter, "chat_template", None)
    samples = read_samples(rows, model.tokenizer, form=objective.form, adapter_template=template, **reading)
    if len(samples) < len(rows):
        count, key = len(rows) - len(samples), reading.get("text_key") or "text"
        first = next((i + 1 for i, row in enumerate(rows) if row.get(key) == ""), None)
        place = rows.where(first) if isinstance(rows, FileRows) and first is not None else f"text {first}"
        at = "" if first is None else f", the first one is {place}"
        raise DataError(f"{where}: {count} of {len(rows)} texts are empty{at}; need at least one token in each")
    longest = int(np.diff(samples.starts).max())
    data = pack(samples, min(limit, max(longest, CONTEXT)) if context is None else context, last=True)
    every = np.arange(len(data))
    return Rows(
        data.tokens, data.positions, data.labels, every, every[:0], (data.report,), data.parts, data.values,
        data.samples,
    )  # fmt: skip


def _computed(
    where: str, model: Model, adapter: Any, objective: Objective, data: Rows, batch_size: int | None,
    options: Mapping[str, Any],
) -> np.ndarray:  # fmt: skip
    """The output f32 [rows, K, 1, ...] of rows of texts."""
    x, labels = objective.arrays(data)
    count, _, length = x.shape
    size = max(1, TOKENS // length) if batch_size is None else as_whole("batch_size", batch_size, 1, where)
    size = min(size, count)
    rows = input_value("rows", (size, *x.shape[1:]), "i32")
    value = objective.outputs(Forward(model, adapter, None, length, labels.shape[1]), rows)
    assert isinstance(value, Value)
    run = compile_program(value, **options)
    found = np.empty((count, *value.shape[1:]), np.float32)

    def compute(start: int, stop: int) -> np.ndarray:
        (computed,) = run(rows=padded_rows(x, start, stop, size))
        own: np.ndarray = computed[: stop - start]
        if not np.isfinite(own[labels[start:stop, :, 0] == 1]).all():
            what = f"{where}: the output of rows {start} to {stop - 1}"
            raise not_finite(what, model, adapter, run, [value], {}, **options)
        return own

    compute_rows(found, size, compute)
    return found
