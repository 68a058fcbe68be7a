"""Rows of tokens for training and validation, of a file or of TokenData."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, SettingError
from ..base.memory import need_memory, show_bytes
from ..data.dataset import IGNORED, split_rows
from .data_files import data_files
from .forms import TEXTS, Form
from .json_rows import is_samples
from .labels import Classes
from .message_marks import MOST
from .model import Model

if TYPE_CHECKING:
    from .json_rows import Source
    from .model import Adapter
    from .packing import TokenData
    from .samples import Samples

VAL_SHARE, VAL_ROWS = 0.05, 100  # default validation: share of all samples (or windows), and maximum number
CONTEXT = 512  # default tokens per row, or the model's context if that is less
_OF_PARTS = ("parts", "values", "samples")  # arrays of preferences and judged completions


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, i32 [rows, T] each (see llm.packing.TokenData). train, val: indices of rows.

    parts, values, samples: of preferences and judged completions, else None; samples counts the samples of the training
    rows first, then those of the validation rows.
    """

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    reports: tuple[Any, ...] = ()  # of the training rows, of the validation rows
    parts: np.ndarray | None = None
    values: np.ndarray | None = None
    samples: np.ndarray | None = None
    classes: Classes | None = None  # of labelled texts
    weights: np.ndarray | None = None  # f32 [rows, T], of the loss of each label; None: 1 for each

    @property
    def report(self) -> str:
        """The reports as text."""
        return "\nvalidation: ".join(map(str, self.reports))


def read_rows(
    model: Model,
    data: TokenData | Rows | Source,
    context: int | None = None,
    val_split: float | None = None,
    seed: int = 0,
    val: Source | None = None,
    adapter: Adapter | None = None,
    form: Form = TEXTS,
    **options: Any,
) -> Rows:
    """The rows of a file, or TokenData as they are, checked against the model's vocabulary and context.

    data: a path, a list of dicts (the objects of a .jsonl), a table, or rows of tokens.
    val: a file, or a list of dicts, for validation instead of a share of data; of a folder of data its valid.jsonl (see
    data_files). adapter: its chat template, if it has one, is used unless the options contain one. form: that of the
    samples; each of their parts has at most `context` tokens of a row.

    Samples of a .jsonl are split before they are packed, so no row contains samples of both; windows of a text and rows
    of TokenData are split as they are. Rows are returned unchanged. Raises SettingError for TokenData with another
    context or with options, DataError for other types of data and for rows of another form.
    """
    limit = model.config.context_length
    if context is not None and not 2 <= context <= limit:
        raise SettingError(setting="context", seen=context, need=f"2 to {limit}, the model's context")
    is_read = is_source(data)
    if val is not None and not is_read:
        raise SettingError(
            "{val} requires data to tokenize, not rows of tokens; use {val_split}", val=val, val_split=...
        )
    if isinstance(data, Rows):
        check_form(data, form)
        return data
    need = (12 if form.kind == "texts" else 16) * form.parts * (context or 0)
    what = f"context={context} is not usable: one row needs {show_bytes(need)} of memory"
    need_memory(need, what, "need a smaller one")
    if is_read:
        from .data import read_samples

        train: Any = data
        if isinstance(data, (str, os.PathLike)):
            files = data_files(data)
            train, val = files.train, files.valid if val is None else val
        if val is not None and val_split is not None:
            raise SettingError(
                f"{{val_split}} cannot be combined with {_shown(val)}; use one of them", val_split=val_split
            )
        options["adapter_template"] = getattr(adapter, "chat_template", None)
        known = _classes_of(adapter, model, form)
        samples = read_samples(train, model.tokenizer, form=form, classes=known, **options)
        length = context or min(CONTEXT, limit)
        if val is not None:
            held_out = read_samples(val, model.tokenizer, form=form, classes=samples.classes, **options)
            return _checked(model, _joined(*(_packed(part, length, form) for part in (samples, held_out))))
        share = _val_share(len(samples), val_split)
        if not samples.stream and share:
            return _checked(model, _joined(*(_packed(part, length, form) for part in samples.split(share, seed))))
        packed: Any = _packed(samples, length, form)
    else:
        check_rows(data, context, options, form)
        packed = data
    training, validation = split_rows(len(packed.tokens), _val_share(len(packed.tokens), val_split), seed)
    reports = (packed.report,) if hasattr(packed, "report") else ()
    more = [getattr(packed, name, None) for name in (*_OF_PARTS, "classes", "weights")]
    return _checked(model, Rows(packed.tokens, packed.positions, packed.labels, training, validation, reports, *more))


def is_source(data: object) -> bool:
    """Whether these are samples to read, rather than rows of tokens that the caller packed."""
    return isinstance(data, (str, os.PathLike)) or is_samples(data)


def _classes_of(adapter: Adapter | None, model: Model, form: Form) -> Classes | None:
    """The classes of a head whose training continues, or None."""
    if form.kind != "labelled" or form.labels != "classes":
        return None
    head = getattr(adapter, "head", None)
    if head is None and model.classifier is not None:
        head = model.classifier.head
    return None if head is None or not head.labels else Classes(head.labels, head.several)


def _packed(samples: Samples, context: int, form: Form) -> TokenData:
    from .packing import pack

    return pack(samples, context, prompts=form.prompts, last=form.last)


def _shown(path: Any) -> str:
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) else "other samples"


def check_rows(data: Any, context: int | None, options: Mapping[str, Any], form: Form = TEXTS) -> None:
    """Raise DataError unless these are rows of tokens in this form, SettingError for settings that do not apply."""
    arrays: list[Any] = [getattr(data, name, None) for name in ("tokens", "positions", "labels")]
    if not all(isinstance(a, np.ndarray) for a in arrays):
        raise DataError(
            f"data: got {type(data).__name__}; need a path (.txt, .jsonl, .csv, ...), a list of dicts, a table, or"
            " TokenData (gl.llm.pack)"
        )
    tokens = arrays[0]
    if tokens.ndim != 2 or any(a.shape != tokens.shape or a.dtype.kind not in "iu" for a in arrays):
        seen = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
        raise DataError(f"data: tokens, positions and labels are {seen}; need three of i32 [rows, context]")
    check_form(data, form)
    _check_weights(getattr(data, "weights", None), data.labels)
    if context is not None and context * form.parts != tokens.shape[1]:
        length = f"{form.parts} x {tokens.shape[1] // form.parts}" if form.parts > 1 else tokens.shape[1]
        raise SettingError(f"{{context}}: the rows are packed already, to {length} tokens", context=context)
    if options:
        text = f"{{data_options}}: {', '.join(options)} cannot be combined with rows of tokens; leave it out"
        raise SettingError(text, data_options=...)


def check_form(data: Any, form: Form) -> None:
    """Raise DataError unless rows of tokens are of this form: the arrays of preferences and judged completions, with
    their shapes and ranges, or none of them for texts."""
    arrays: list[Any] = [getattr(data, name, None) for name in _OF_PARTS]
    parts, values, samples = arrays
    if form.kind == "texts":
        if any(array is not None for array in arrays):
            raise DataError("data: rows of preferences or judged completions; need rows of texts or chats")
        return
    what = f"data: rows of tokens for {form.kind} data"
    shape = np.shape(data.tokens)
    need = f"need parts i32{list(shape)}, values f32[{shape[0]}, K, 1 + V] and samples i32[{shape[0]}, K] (gl.llm.pack)"
    if any(not isinstance(array, np.ndarray) for array in arrays):
        names = [name for name, array in zip(_OF_PARTS, arrays, strict=True) if not isinstance(array, np.ndarray)]
        raise DataError(f"{what} without {', '.join(names)}; {need}")
    classes = getattr(data, "classes", None)
    if form.labels == "classes" and (not isinstance(classes, Classes) or len(classes.names) < 2):
        raise DataError(f"{what} without the names of two classes or more; need classes (gl.llm.pack)")
    several = len(classes.names) if form.labels == "classes" and classes is not None and classes.several else 1
    width = {"judged": (2,), "preferences": (1, 2), "labelled": (1 + several,), "pairs": (1,)}[form.kind]
    shapes_fit = parts.shape == shape and samples.ndim == 2 and values.ndim == 3
    shapes_fit = shapes_fit and values.shape[:2] == samples.shape and len(samples) == shape[0]
    kinds_fit = parts.dtype.kind in "iu" and samples.dtype.kind in "iu" and values.dtype.kind == "f"
    if not shapes_fit or not kinds_fit or values.shape[2] not in width or shape[1] % form.parts:
        seen = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
        raise DataError(f"{what}: parts, values and samples are {seen}; {need}")
    limit = values.shape[1] * form.parts
    there = values[:, :, 0]
    if not np.isfinite(values).all() or not np.isin(there, (0, 1)).all() or ((there == 1) != (samples >= 0)).any():
        raise DataError(f"{what}: values are not finite, or mark other samples than those with a number; {need}")
    unlabelled = not form.last and ((parts >= 0) & (data.labels == IGNORED)).any()
    if (parts >= limit).any() or (parts < -1 - limit).any() or unlabelled:
        raise DataError(f"{what}: parts outside of 0..{limit - 1}, or a part that counts without a label; {need}")
    row, place = np.nonzero(parts >= 0)
    counted = np.bincount(row * limit + parts[row, place], minlength=shape[0] * limit).reshape(shape[0], limit)
    wanted = np.repeat(there, form.parts, axis=1)
    if form.last and (counted != wanted).any():
        raise DataError(f"{what}: need exactly one place that counts in each part, its last token (pack, last=True)")
    if ((counted > 0) != (wanted == 1)).any():
        raise DataError(
            f"{what}: a sample has not {form.parts} parts with tokens that count; need {form} (read_samples)"
        )
    if form.prompts and ((parts < -1) & (data.labels == IGNORED)).any():
        raise DataError(f"{what}: prompts have no labels; need those of pack(..., prompts=True)")


def _check_weights(weights: Any, labels: np.ndarray) -> None:
    """Raise DataError unless these are weights of labels, or None."""
    if weights is None:
        return
    if not isinstance(weights, np.ndarray) or weights.shape != labels.shape or weights.dtype.kind != "f":
        raise DataError(f"data: weights are {what_is(weights)}; need f32{list(labels.shape)}, one for each label")
    if not (np.isfinite(weights) & (weights >= 0) & (weights <= MOST)).all():
        raise DataError(f"data: a weight is negative, not finite or above {MOST:g}; need 0 to {MOST:g}")
    if not (weights[labels != IGNORED] > 0).any():
        raise DataError("data: the weights of all labels are 0; need one above 0")


def need_weights(rows: Rows, objective: Any) -> None:
    """Raise DataError if rows have weights that the objective does not read."""
    if rows.weights is not None and not objective.takes_weights:
        raise DataError(
            f"data: samples or messages have weights, which the objective {objective.name} does not read; need"
            " weights of 0 and 1, or the objective sft"
        )


def _weights_of(data: TokenData) -> np.ndarray:
    """The weights of the labels, f32 [rows, T]."""
    return (data.labels != IGNORED).astype(np.float32) if data.weights is None else data.weights


def _joined(train: TokenData, val: TokenData) -> Rows:
    """Training rows, then validation rows."""
    rows = np.arange(len(train) + len(val))
    more: list[Any] = [None] * 3
    if train.parts is not None and train.values is not None and train.samples is not None:
        assert val.parts is not None and val.values is not None and val.samples is not None
        widths = [array.shape[2] for array in (train.values, val.values)]
        if widths[0] != widths[1]:
            which = "data has and the validation data has not" if widths[0] > 1 else "only the validation data has"
            raise DataError(f"{val.report.path}: margins, which {which}; need them in both or in neither")
        most = max(train.values.shape[1], val.values.shape[1])
        after = np.where(val.samples < 0, -1, val.samples + train.samples.max() + 1).astype(np.int32)
        more = [
            np.concatenate((train.parts, val.parts)),
            np.concatenate([_padded(one, most, 0) for one in (train.values, val.values)]),
            np.concatenate([_padded(one, most, -1) for one in (train.samples, after)]),
        ]
    weighted = train.weights is not None or val.weights is not None
    more += [train.classes, np.concatenate([_weights_of(train), _weights_of(val)]) if weighted else None]
    return Rows(
        np.concatenate((train.tokens, val.tokens)),
        np.concatenate((train.positions, val.positions)),
        np.concatenate((train.labels, val.labels)),
        rows[: len(train)],
        rows[len(train) :],
        (train.report, val.report),
        *more,
    )


def _padded(array: np.ndarray, most: int, value: int) -> np.ndarray:
    """[rows, K, ...] with K = most."""
    widths = [(0, 0), (0, most - array.shape[1])] + [(0, 0)] * (array.ndim - 2)
    return np.pad(array, widths, constant_values=value)


def _checked(model: Model, rows: Rows) -> Rows:
    """The rows. Raises DataError or SettingError if this model cannot be trained on them."""
    limit, vocabulary, length = model.config.context_length, model.config.vocab_size, rows.tokens.shape[1]
    longest = length if rows.parts is None else int(rows.positions.max()) + 1  # a row holds several parts
    if longest > limit:
        what = "rows" if rows.parts is None else "parts"
        text = f"{{data}}: {what} of {longest} tokens; must be at most {limit}, the model's context"
        raise SettingError(text, data=...)
    for name, ids in (("token", rows.tokens), ("label", rows.labels)):
        bad = (ids >= vocabulary) | ((ids < 0) if name == "token" else (ids < 0) & (ids != IGNORED))
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"data: {name} id {int(ids.flat[at])} in row {at // length}; need 0..{vocabulary - 1}, the model's "
                "vocabulary"
            )
    if ((rows.positions < 0) | (rows.positions > np.arange(length))).any():
        raise DataError("data: a position is before the start of its row; need positions that count from 0")
    counted = rows.labels != IGNORED if rows.parts is None else rows.parts >= 0
    if rows.weights is not None:
        counted = counted & (rows.weights > 0)
    if not counted[rows.train].any():
        raise DataError("data: no token counts for the loss; need at least one label")
    return rows


def _val_share(count: int, asked: float | None) -> float:
    """The validation share of `count` rows or samples."""
    if asked is None:
        return 0.0 if count < 2 else min(VAL_SHARE, VAL_ROWS / count)
    return asked
