"""Rows of tokens for training and validation, of a file or of TokenData."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import DataError, SettingError
from ..base.memory import need_memory, show_bytes
from ..data.dataset import IGNORED, split_rows
from .data_files import data_files
from .json_rows import is_samples
from .model import Model

if TYPE_CHECKING:
    from .json_rows import Source
    from .model import Adapter
    from .packing import TokenData

VAL_SHARE, VAL_ROWS = 0.05, 100  # default validation: share of all samples (or windows), and maximum number
CONTEXT = 512  # default tokens per row, or the model's context if that is less


@dataclass(frozen=True)
class Rows:
    """Rows of tokens, i32 [rows, T] each (see llm.packing.TokenData). train, val: indices of rows."""

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray
    reports: tuple[Any, ...] = ()  # of the training rows, of the validation rows

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
    **options: Any,
) -> Rows:
    """The rows of a file, or TokenData as they are, checked against the model's vocabulary and context.

    data: a path, a list of dicts (the objects of a .jsonl), or rows of tokens.
    val: a file, or a list of dicts, for validation instead of a share of data; of a folder of data its valid.jsonl (see
    data_files). adapter: its chat template, if it has one, is used unless the options contain one.

    Samples of a .jsonl are split before they are packed, so no row contains samples of both; windows of a text and rows
    of TokenData are split as they are. Rows are returned unchanged. Raises SettingError for TokenData with another
    context or with options, DataError for other types of data.
    """
    limit = model.config.context_length
    if context is not None and not 2 <= context <= limit:
        raise SettingError(setting="context", seen=context, need=f"2 to {limit}, the model's context")
    is_read = isinstance(data, (str, os.PathLike)) or is_samples(data)  # rather than packed by the caller
    if val is not None and not is_read:
        raise SettingError(
            "{val} requires data to tokenize, not rows of tokens; use {val_split}", val=val, val_split=...
        )
    if isinstance(data, Rows):
        return data
    need = 12 * (context or 0)
    what = f"context={context} is not usable: one row needs {show_bytes(need)} of memory"
    need_memory(need, what, "need a smaller one")
    if is_read:
        from .data import read_samples
        from .packing import pack

        train: Any = data
        if isinstance(data, (str, os.PathLike)):
            files = data_files(data)
            train, val = files.train, files.valid if val is None else val
        if val is not None and val_split is not None:
            raise SettingError(
                f"{{val_split}} cannot be combined with {_shown(val)}; use one of them", val_split=val_split
            )
        options["adapter_template"] = getattr(adapter, "chat_template", None)
        samples = read_samples(train, model.tokenizer, **options)
        length = context or min(CONTEXT, limit)
        if val is not None:
            held_out = read_samples(val, model.tokenizer, **options)
            return _checked(model, _joined(pack(samples, length), pack(held_out, length)))
        share = _val_share(len(samples), val_split)
        if not samples.stream and share:
            parts = [pack(part, length) for part in samples.split(share, seed)]
            return _checked(model, _joined(*parts))
        packed: Any = pack(samples, length)
    else:
        check_rows(data, context, options)
        packed = data
    training, validation = split_rows(len(packed.tokens), _val_share(len(packed.tokens), val_split), seed)
    reports = (packed.report,) if hasattr(packed, "report") else ()
    return _checked(model, Rows(packed.tokens, packed.positions, packed.labels, training, validation, reports))


def _shown(path: Any) -> str:
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) else "other samples"


def check_rows(data: Any, context: int | None, options: Mapping[str, Any]) -> None:
    """Raise DataError unless these are rows of tokens, SettingError for settings that do not apply to them."""
    arrays: list[Any] = [getattr(data, name, None) for name in ("tokens", "positions", "labels")]
    if not all(isinstance(a, np.ndarray) for a in arrays):
        raise DataError(
            f"data: got {type(data).__name__}; need a path (.txt, .jsonl, .json), a list of dicts, or TokenData "
            "(gl.llm.pack)"
        )
    tokens = arrays[0]
    if tokens.ndim != 2 or any(a.shape != tokens.shape or a.dtype.kind not in "iu" for a in arrays):
        seen = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
        raise DataError(f"data: tokens, positions and labels are {seen}; need three of i32 [rows, context]")
    if context is not None and context != tokens.shape[1]:
        raise SettingError(f"{{context}}: the rows are packed already, to {tokens.shape[1]} tokens", context=context)
    if options:
        text = f"{{data_options}}: {', '.join(options)} cannot be combined with rows of tokens; leave it out"
        raise SettingError(text, data_options=...)


def _joined(train: TokenData, val: TokenData) -> Rows:
    """Training rows, then validation rows."""
    rows = np.arange(len(train) + len(val))
    return Rows(
        np.concatenate((train.tokens, val.tokens)),
        np.concatenate((train.positions, val.positions)),
        np.concatenate((train.labels, val.labels)),
        rows[: len(train)],
        rows[len(train) :],
        (train.report, val.report),
    )


def _checked(model: Model, rows: Rows) -> Rows:
    """The rows. Raises DataError or SettingError if this model cannot be trained on them."""
    limit, vocabulary, length = model.config.context_length, model.config.vocab_size, rows.tokens.shape[1]
    if length > limit:
        raise SettingError(f"{{data}}: rows of {length} tokens; must be at most {limit}, the model's context", data=...)
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
    if not (rows.labels[rows.train] != IGNORED).any():
        raise DataError("data: no token counts for the loss; need at least one label")
    return rows


def _val_share(count: int, asked: float | None) -> float:
    """The validation share of `count` rows or samples."""
    if asked is None:
        return 0.0 if count < 2 else min(VAL_SHARE, VAL_ROWS / count)
    return asked
