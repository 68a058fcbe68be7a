"""Samples of tokens, and the report of a file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..base.errors import DataError
from ..base.terminal import in_one_line, plural
from ..data.dataset import split_rows
from .labels import Classes


@dataclass
class Report:
    """Counts of a file: samples that were read, cut and skipped."""

    path: str = ""
    kind: str = ""  # of samples, with their keys
    counts: str = ""  # tokens that count
    keys: tuple[str, ...] = ()  # keys of the first line that are read
    unused: tuple[str, ...] = ()  # keys of the first line that are not read
    samples: int = 0
    tokens: int = 0
    counted: int = 0  # tokens whose prediction is learned
    bad_lines: int = 0
    bad: tuple[str, ...] = ()  # the first of them: line and reason
    messages_excluded: int = 0  # turns of the assistant that do not count, by "train" or "weight"
    messages_weighted: int = 0  # those with a weight other than 0 and 1
    samples_weighted: int = 0  # samples with a weight other than 1
    as_text: int = 0  # samples with names of control tokens, such as </s>, that are text
    skipped: dict[str, int] = field(default_factory=dict)  # reason -> samples
    context: int = 0
    rows: int = 0
    padding: float = 0.0  # share of the rows' places
    cut: int = 0  # samples longer than the context
    cut_tokens: int = 0  # tokens left out of them
    parts: int = 1  # token sequences of a sample; each has at most `context` tokens of a row

    def as_dict(self) -> dict[str, Any]:
        """JSON values by name, except parts."""
        return {
            **{name: value for name, value in vars(self).items() if name != "parts"},
            "keys": list(self.keys),
            "unused": list(self.unused),
            "bad": list(self.bad),
            "skipped": dict(self.skipped),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.path}: {self.kind}; {plural(self.samples, 'sample')}, {plural(self.tokens, 'token')},"
            f" {self.counted:,} to learn ({self.counts})"
        ]
        if self.rows:
            length = f"{self.parts} x {self.context}" if self.parts > 1 else self.context
            lines.append(f"{plural(self.rows, 'row')} of {length} tokens, {self.padding:.1%} padding")
        if self.unused:
            lines.append(f"keys not read: {in_one_line(', '.join(self.unused))}")
        marked = [
            *[plural(self.messages_excluded, "message") + " excluded"] * bool(self.messages_excluded),
            *[plural(self.messages_weighted, "message") + " weighted"] * bool(self.messages_weighted),
            *[plural(self.samples_weighted, "sample") + " weighted"] * bool(self.samples_weighted),
        ]
        if marked:
            lines.append(f"weights: {', '.join(marked)}")
        if self.as_text:
            lines.append(
                f"names of control tokens: text in {plural(self.as_text, 'sample')}; special=True (--special) reads"
                " them as tokens"
            )
        if self.cut:
            left_out = plural(self.cut_tokens, "token")
            lines.append(f"cut to the context: {plural(self.cut, 'sample')}; {left_out} left out of them")
        if self.bad_lines:
            lines.append(f"skipped: {plural(self.bad_lines, 'bad line')} ({'; '.join(self.bad)})")
        lines += [f"skipped: {plural(count, 'sample')}, {reason}" for reason, count in self.skipped.items()]
        return "\n".join(lines)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class Samples:
    """Tokens of samples, concatenated. A sample consists of one or several token sequences, its parts.

    tokens   i32 [n], of all samples
    counted  bool [n]: whether the prediction of this token is learned; False for the first of a part
    starts   i64 [samples * parts + 1]: the start of each part, and the end
    stream   True for one long text, which pack cuts into windows
    parts    token sequences of a sample: 2 of preferences, chosen and rejected
    values   f32 [samples, V], numbers of each sample: its margin; of judged completions 1 (good) or 0 (bad); of
             labelled texts the number of its class, 1 for each class that it has, or its number (f64); or None
    classes  names of the classes of labelled texts, or None
    differ   the parts of each sample are compared: those that are identical within the context are skipped
    weights  f32 [n], of the loss of each token that counts, else 0; None: 1 for each that counts
    report   counts of the file
    """

    def __init__(
        self,
        tokens: np.ndarray,
        counted: np.ndarray,
        starts: np.ndarray,
        report: Report,
        stream: bool = False,
        parts: int = 1,
        values: np.ndarray | None = None,
        classes: Classes | None = None,
        weights: np.ndarray | None = None,
        differ: bool = False,
    ) -> None:
        self.classes, self.weights, self.differ = classes, weights, differ
        self.tokens, self.counted, self.starts = tokens, counted, starts
        self.stream, self.parts, self.values = stream, parts, values
        self.report = replace(
            report, samples=len(self), tokens=tokens.size, counted=int(counted.sum()), parts=parts
        )  # fmt: skip

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.parts

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens i32, counted bool) of a sample, its parts one after another."""
        i = range(len(self))[i] * self.parts
        part = slice(int(self.starts[i]), int(self.starts[i + self.parts]))
        return self.tokens[part], self.counted[part]

    def __repr__(self) -> str:
        return f"Samples({len(self)} of {self.report.path}: {self.report.kind}, {self.tokens.size} tokens)"

    def split(self, val_split: float, seed: int = 0) -> tuple[Samples, Samples]:
        """(training, validation): one permutation of the samples by the seed, its last share for validation.

        The report of the first contains the skipped samples. Raises DataError for one long text.
        """
        if self.stream:
            raise DataError(
                f"{self.report.path}: one long text is not a set of samples; split its windows after packing"
            )
        first, last = split_rows(len(self), val_split, seed)
        without_skipped = replace(
            self.report, bad_lines=0, bad=(), skipped={}, unused=(),
            messages_excluded=0, messages_weighted=0, samples_weighted=0,
        )  # fmt: skip
        return self._take(np.sort(first), self.report), self._take(np.sort(last), without_skipped)

    def with_other_completions(self) -> Samples:
        """The same samples of one part with a second one: the prompt with the completion of the sample before it, of
        the last sample for the first one (the estimate of the distance from the base model in KTO)."""
        assert self.parts == 1 and not self.stream
        texts = [self[i] for i in range(len(self))]
        cuts = [int(np.argmax(counted)) for _, counted in texts]  # the length of each prompt
        sequences = []
        for i, text in enumerate(texts):
            before, at = texts[i - 1], cuts[i - 1]
            other = (np.concatenate([mine[: cuts[i]], his[at:]]) for mine, his in zip(text, before, strict=True))
            sequences += [text, tuple(other)]
        starts = np.concatenate([[0], np.cumsum([len(tokens) for tokens, _ in sequences])]).astype(np.int64)
        tokens, counted = (np.concatenate([each[k] for each in sequences]) for k in (0, 1))
        report = replace(self.report, counts=f"{self.report.counts}, each after its own and after another prompt")
        return Samples(tokens, counted, starts, report, False, 2, self.values)

    def _take(self, which: np.ndarray, report: Report) -> Samples:
        picked = np.zeros(len(self), bool)
        picked[which] = True  # in the order of the file
        of_part = np.repeat(picked, self.parts)
        sizes = np.diff(self.starts)
        starts = np.concatenate([[0], np.cumsum(sizes[of_part])]).astype(np.int64)
        of_token = np.repeat(of_part, sizes)
        values = None if self.values is None else self.values[picked]
        tokens, counted = self.tokens[of_token], self.counted[of_token]
        weights = None if self.weights is None else self.weights[of_token]
        return Samples(tokens, counted, starts, report, False, self.parts, values, self.classes, weights, self.differ)
