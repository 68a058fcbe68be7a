"""Rows of tokens for training: packed samples, or windows of one long text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import DataError, SettingError
from ..data.dataset import IGNORED
from .samples import Report, Samples, count_of


@dataclass
class TokenData:
    """Rows of tokens for training, all i32 [rows, context].

    tokens     ids; 0 in padding
    positions  0, 1, 2, ... from the start of each sample; 0 in padding
    labels     the next id, or -100 if its prediction is not learned
    """

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    report: Report

    def __len__(self) -> int:
        return len(self.tokens)


def pack(samples: Samples, context: int, packing: bool = True) -> TokenData:
    """Rows of `context` tokens.

    A sample of n tokens takes n - 1 places: its last token is a label only. Samples are placed from the longest to the
    shortest, each into the fullest row with room for it; with packing=False each has its own row. Longer samples are
    truncated, and skipped if no token that counts is left. One long text is cut into consecutive windows, and its last
    row is padded.

    Raises DataError if nothing to train on is left, or a text is shorter than the context; SettingError for values that
    are not Samples, and for packing=False with one long text.
    """
    if not isinstance(samples, Samples):
        raise SettingError(f"pack: samples is a {type(samples).__name__}; need Samples (gl.llm.read_samples)")
    packing = as_bool("packing", packing, "pack")
    if samples.stream and not packing:
        raise SettingError("pack: packing=False with one long text, whose windows hold nothing else; leave it out")
    if isinstance(context, bool) or not isinstance(context, (int, np.integer)) or context < 1:
        raise SettingError(setting="context", seen=context, need="a whole number of at least 1")
    return _windows(samples, int(context)) if samples.stream else _packed(samples, int(context), packing)


def _windows(samples: Samples, context: int) -> TokenData:
    n = samples.tokens.size
    path = samples.report.path
    if n < 2:
        raise DataError(f"{path}: {count_of(n, 'token')}, nothing to predict; need a longer text")
    if n <= context:
        raise DataError(
            f"{path}: {n} tokens, shorter than the context of {context} and one to predict; need a longer text,"
            f" or a context of at most {n - 1}"
        )
    rows = -(-(n - 1) // context)
    tokens = np.zeros(rows * context, np.int32)
    labels = np.full(rows * context, IGNORED, np.int32)
    tokens[: n - 1] = samples.tokens[:-1]
    labels[: n - 1] = np.where(samples.counted[1:], samples.tokens[1:], IGNORED)
    positions = np.tile(np.arange(context, dtype=np.int32), rows)
    positions[n - 1 :] = 0
    report = replace(samples.report, context=context, rows=rows, padding=1 - (n - 1) / (rows * context))
    shape = (rows, context)
    return TokenData(tokens.reshape(shape), positions.reshape(shape), labels.reshape(shape), report)


def _packed(samples: Samples, context: int, packing: bool) -> TokenData:
    report = replace(samples.report, context=context, skipped=dict(samples.report.skipped))
    sizes = np.diff(samples.starts) - 1  # places
    fits = np.minimum(sizes, context)
    keep = np.ones(len(samples), bool)
    for i in np.flatnonzero(sizes > context):
        begin = int(samples.starts[i])
        counts = np.flatnonzero(samples.counted[begin : begin + context + 1])
        report.cut += 1
        if not counts.size:
            keep[i] = False
            report.cut -= 1
            report.skip("no token that counts within the context")
        else:
            report.cut_tokens += int(sizes[i]) - context
    which = np.flatnonzero(keep & (sizes > 0))
    if not which.size:
        raise DataError(
            f"{report.path}: no sample has a token to learn within {context} tokens; need a longer context, or shorter"
            " samples"
        )
    row, offset = _places(fits[which], context) if packing else (np.arange(which.size), np.zeros(which.size, np.int64))
    rows = int(row.max()) + 1
    tokens = np.zeros((rows, context), np.int32)
    positions = np.zeros((rows, context), np.int32)
    labels = np.full((rows, context), IGNORED, np.int32)
    ramp = np.arange(context, dtype=np.int32)
    for i, r, at in zip(which.tolist(), row.tolist(), offset.tolist(), strict=True):
        size, begin = int(fits[i]), int(samples.starts[i])
        place = slice(at, at + size)
        tokens[r, place] = samples.tokens[begin : begin + size]
        positions[r, place] = ramp[:size]
        after = slice(begin + 1, begin + size + 1)
        labels[r, place] = np.where(samples.counted[after], samples.tokens[after], IGNORED)
    report.rows, report.samples = rows, which.size
    report.tokens = int(fits[which].sum()) + which.size
    report.counted = int((labels != IGNORED).sum())
    report.padding = 1 - int(fits[which].sum()) / (rows * context)
    return TokenData(tokens, positions, labels, report)


def _places(sizes: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, offset) of each size: best fit, from the largest to the smallest.

    Bit c of `open_rows` is set if a row has room for exactly c more tokens, so no search is required.
    """
    row, offset = np.empty(sizes.size, np.int64), np.empty(sizes.size, np.int64)
    rooms: list[list[int]] = [[] for _ in range(context + 1)]
    open_rows, rows = 0, 0
    for i in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[i])
        fitting = open_rows >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            r = rooms[room].pop()
            if not rooms[room]:
                open_rows ^= 1 << room
        else:
            room, r = context, rows
            rows += 1
        row[i], offset[i] = r, context - room
        if room > size:
            rooms[room - size].append(r)
            open_rows |= 1 << (room - size)
    return row, offset
