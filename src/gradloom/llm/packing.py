"""Rows of tokens for training: packed samples, or windows of one long text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base.arguments import as_bool
from ..base.errors import DataError, SettingError
from ..base.terminal import plural
from ..data.dataset import IGNORED
from .labels import Classes
from .samples import Report, Samples


@dataclass
class TokenData:
    """Rows of tokens for training, i32 [rows, L]; L is context, or parts * context for samples of several parts.

    tokens     ids; 0 in padding
    positions  0, 1, 2, ... from the start of each part; 0 in padding
    labels     the next id, or -100 if its prediction is not learned
    weights    f32 [rows, L], of the loss of each label, 0 where there is none; None: 1 for each label

    Of preferences and judged completions (else None), with K, the most samples of any row:
    parts      i32 [rows, L]: where the prediction counts the number of the part in its row, from 0: sample * parts +
               side; at the other places of part p -2 - p; -1 in padding. Of forms with `last` the last token counts
    values     f32 [rows, K, 1 + V]: 1 for a sample and 0 beyond the last of a row, then the numbers of the sample
    samples    i32 [rows, K]: the index of the sample in the packed Samples, -1 beyond the last of a row
    """

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    report: Report
    parts: np.ndarray | None = None
    values: np.ndarray | None = None
    samples: np.ndarray | None = None
    classes: Classes | None = None  # of labelled texts
    weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def pack(samples: Samples, context: int, packing: bool = True, prompts: bool = False, last: bool = False) -> TokenData:
    """Rows of `context` tokens, or of parts * context for samples of several parts.

    A sample of n tokens takes n - 1 places: its last token is a label only. Samples are placed from the longest to the
    shortest, each into the fullest row with room for it; with packing=False each has its own row. Longer samples are
    truncated, and skipped if no token that counts is left. One long text is cut into consecutive windows, and its last
    row is padded.

    The parts of a sample follow one another in one row; each is truncated to the context, and the sample is skipped if
    one of them has no token left that counts. Samples are placed by the sum of their places. prompts=True, of
    preferences and judged completions: labels at all places of a part, its prompt included; TokenData.parts has those
    that count. last=True, of the same: a part of n tokens takes n places, its last token too, and there are no labels.

    Raises DataError if nothing to train on is left, or a text is shorter than the context; SettingError for values that
    are not Samples, for packing=False with one long text, and for prompts=True or last=True with texts or chats.
    """
    if not isinstance(samples, Samples):
        raise SettingError(f"pack: samples is a {type(samples).__name__}; need Samples (gl.llm.read_samples)")
    packing, prompts = as_bool("packing", packing, "pack"), as_bool("prompts", prompts, "pack")
    last = as_bool("last", last, "pack")
    if (prompts or last) and samples.parts == 1 and samples.values is None:
        name = "prompts" if prompts else "last"
        raise SettingError(f"pack: {name}=True requires samples of several parts or with numbers; leave it out")
    if prompts and last:
        raise SettingError("pack: {prompts} and {last} are mutually exclusive", prompts=True, last=True)
    if samples.stream and not packing:
        raise SettingError("pack: packing=False with one long text, whose windows hold nothing else; leave it out")
    if isinstance(context, bool) or not isinstance(context, (int, np.integer)) or context < 1:
        raise SettingError(setting="context", seen=context, need="a whole number of at least 1")
    return _windows(samples, int(context)) if samples.stream else _packed(samples, int(context), packing, prompts, last)


def _windows(samples: Samples, context: int) -> TokenData:
    n = samples.tokens.size
    path = samples.report.path
    if n < 2:
        raise DataError(f"{path}: {plural(n, 'token')}, nothing to predict; need a longer text")
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


def _packed(samples: Samples, context: int, packing: bool, prompts: bool, last: bool) -> TokenData:
    report = replace(samples.report, context=context, skipped=dict(samples.report.skipped))
    count, length = samples.parts, samples.parts * context
    is_plain = count == 1 and samples.values is None
    sizes = np.diff(samples.starts) - (not last)  # places of each part
    fits = np.minimum(sizes, context)
    which = _kept(samples, sizes, fits, is_plain, last, report)
    if not which.size:
        skipped = "; ".join(f"{plural(n, 'sample')}, {reason}" for reason, n in report.skipped.items())
        text = f"{report.path}: no sample has a token to learn within {plural(context, 'token')} ({skipped})"
        raise DataError(f"{text}; need a longer context, or shorter samples")
    places = fits.reshape(-1, count).sum(1)[which]
    row, offset = _places(places, length) if packing else (np.arange(which.size), np.zeros(which.size, np.int64))
    rows = int(row.max()) + 1
    number = _numbers(row, offset)
    tokens = np.zeros((rows, length), np.int32)
    positions = np.zeros((rows, length), np.int32)
    labels = np.full((rows, length), IGNORED, np.int32)
    parts = None if is_plain else np.full((rows, length), -1, np.int32)
    weights = None if samples.weights is None else np.zeros((rows, length), np.float32)
    ramp = np.arange(context, dtype=np.int32)
    for i, r, at, n in zip(which.tolist(), row.tolist(), offset.tolist(), number.tolist(), strict=True):
        for side in range(count):
            size, begin = int(fits[i * count + side]), int(samples.starts[i * count + side])
            place, after = slice(at, at + size), slice(begin + 1, begin + size + 1)
            tokens[r, place] = samples.tokens[begin : begin + size]
            positions[r, place] = ramp[:size]
            part = n * count + side
            if last and parts is not None:
                parts[r, place], parts[r, at + size - 1] = -2 - part, part
            else:
                counted, following = samples.counted[after], samples.tokens[after]
                labels[r, place] = following if prompts else np.where(counted, following, IGNORED)
                if parts is not None:
                    parts[r, place] = np.where(counted, part, -2 - part)
                if weights is not None and samples.weights is not None:
                    weights[r, place] = samples.weights[after]
            at += size
    report.rows, report.samples = rows, which.size
    report.tokens = int(places.sum()) + which.size * count * (not last)
    report.counted = int((labels != IGNORED).sum() if parts is None else (parts >= 0).sum())
    report.padding = 1 - int(places.sum()) / (rows * length)
    if parts is None:
        return TokenData(tokens, positions, labels, report, weights=weights)
    width = 0 if samples.values is None else samples.values.shape[1]
    kind = np.float32 if samples.values is None else samples.values.dtype
    values = np.zeros((rows, int(number.max()) + 1, 1 + width), kind)
    values[row, number, 0] = 1
    if samples.values is not None:
        values[row, number, 1:] = samples.values[which]
    index = np.full(values.shape[:2], -1, np.int32)
    index[row, number] = which
    return TokenData(tokens, positions, labels, report, parts, values, index, samples.classes)


def _kept(
    samples: Samples, sizes: np.ndarray, fits: np.ndarray, is_plain: bool, last: bool, report: Report
) -> np.ndarray:
    """The samples that have tokens to learn within the context; those that are cut or skipped are reported."""
    count = samples.parts
    total = np.concatenate([[0], np.cumsum(samples.counted, dtype=np.int64)])
    ends = samples.starts[:-1] + fits + (not last)
    counted = total[ends] - total[samples.starts[:-1]]  # of each part, within the context
    is_cut = (sizes > fits).reshape(-1, count).any(1)
    keep = (counted.reshape(-1, count) > 0).all(1)
    if is_plain:
        keep |= ~is_cut
    same = _identical(samples, fits + (not last)) if samples.differ else np.zeros(len(samples), bool)
    for which, reason in ((same & ~is_cut, "identical sides"), (same & is_cut, "identical sides after the cut")):
        if which.any():
            report.skipped[reason] = report.skipped.get(reason, 0) + int(which.sum())
    report.cut += int((is_cut & keep & ~same).sum())
    report.cut_tokens += int((sizes - fits).reshape(-1, count).sum(1)[is_cut & keep & ~same].sum())
    if not (keep | same).all():
        reason = "a side has no token that counts" if count > 1 else "no token that counts"
        reason += " within the context"
        report.skipped[reason] = report.skipped.get(reason, 0) + int((~(keep | same)).sum())
    return np.flatnonzero(keep & ~same & (sizes > 0).reshape(-1, count).all(1))


def _identical(samples: Samples, lengths: np.ndarray) -> np.ndarray:
    """Whether the first tokens of the second part, `lengths` of each, are those of another one; bool [samples]."""
    size = lengths.reshape(-1, samples.parts)
    starts = samples.starts[:-1].reshape(-1, samples.parts)
    found = np.zeros(len(samples), bool)
    for part in (p for p in range(samples.parts) if p != 1):
        for i in np.flatnonzero(size[:, part] == size[:, 1]).tolist():
            one, two, count = starts[i, part], starts[i, 1], size[i, 1]
            found[i] |= bool((samples.tokens[one : one + count] == samples.tokens[two : two + count]).all())
    return found


def _numbers(row: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """The number of each sample in its row, from 0."""
    order = np.lexsort((offset, row))
    first = np.searchsorted(row[order], row[order])
    number = np.empty(row.size, np.int64)
    number[order] = np.arange(row.size) - first
    return number


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
