"""Comparison of a model here and in another program, token by token.

Both programs compute the logits of the same tokens. For each token that counts, nll is -log p(token) in nats; the
difference is the mean of nll here minus nll there, with the standard error of the paired differences. KL is the mean
of sum p log(p / q) over the vocabulary, p there and q here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, what_is
from ..base.errors import FileError, NonFiniteError, SettingError
from ..base.habits import hinted
from ..data.dataset import IGNORED
from ..graph.leaves import input as input_value
from ..run.compile import compile as compile_program
from .arguments import adapter_of
from .compare_texts import TEXTS
from .data_files import test_file
from .hf_folder import HFFolder
from .llama_cpp import LLAMA_CPP
from .lora import LoRA
from .model import Model, model_of
from .net import Net
from .not_finite import bad_tensor
from .other_program import BATCH, OtherModel, Program
from .transformers_program import TRANSFORMERS

if TYPE_CHECKING:
    from .json_rows import Source
    from .rows import Rows

PROGRAMS = {program.name: program for program in (LLAMA_CPP, TRANSFORMERS)}
TOKENS = 4096  # compared by default
LAYER_LIMIT = 1e-4  # relative difference above which a layer differs
_NUMBERS = 1 << 21  # logits that are compared at a time


@dataclass(frozen=True)
class Comparison:
    """Result of compare.

    program, version   that the model was compared with
    nll, other_nll     mean loss in nats per token, here and there
    difference         of nll - other_nll, the mean; difference_unc: its standard error
    kl, kl_unc, kl_max mean Kullback-Leibler divergence in nats, its standard error, the largest of a token
    same_top           share of tokens after which both programs find the same token likeliest
    tokens             number of tokens compared
    texts, other_ids   number of texts; of those, how many the other program splits into other tokens
    layers             relative difference of the residual stream behind each block, with layers=True
    seconds, other_seconds   of computation, here and there
    """

    program: str
    version: str
    nll: float
    other_nll: float
    difference: float
    difference_unc: float
    kl: float
    kl_unc: float
    kl_max: float
    same_top: float
    tokens: int
    texts: int
    other_ids: int
    layers: tuple[float, ...] | None
    seconds: float
    other_seconds: float

    @property
    def first_layer(self) -> int | None:
        """The first block behind which the difference is above LAYER_LIMIT; None if there is none, or without
        layers=True."""
        return next((i for i, found in enumerate(self.layers or ()) if found > LAYER_LIMIT), None)

    def __str__(self) -> str:
        return (
            f"{self.program}: loss {self.other_nll:.6f}, here {self.difference:+.1e} +- {self.difference_unc:.1e}, KL "
            f"{self.kl:.1e}, the same likeliest token at {100 * self.same_top:.2f} % of {self.tokens:,}"
        )


@hinted
def compare(
    model: Model | str | os.PathLike[str],
    data: Rows | Source | None = None,
    adapter: LoRA | str | os.PathLike[str] | None = None,
    *,
    program: str | None = None,
    context: int | None = None,
    tokens: int = TOKENS,
    layers: bool = False,
    threads: int | None = None,
    data_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare the predictions of a model with those of another program, with or without a LoRA.

    model, adapter: objects, or their paths. data: a path, a list of dicts, or the result of read_rows; by default short
    texts of this package (llm/compare_texts.py). context: tokens per row. tokens: the number to compare, the first ones
    of the data. layers: also compare the residual stream behind each block. on_progress: called with (tokens done,
    tokens). program, on the CPU:

    "llama.cpp"     the default for a GGUF file; of the package llama-cpp-python, with keys and values in f32 and
                    without flash attention
    "transformers"  the default for a Hugging Face folder; with PyTorch, weights in f32, eager attention. A LoRA is
                    added to its weights.

    Raises BackendError without the package, FileError for a model that the program does not read, NonFiniteError for
    logits that are not finite.
    """
    layers = as_bool("layers", layers, "compare")
    model = model_of(model, "compare")
    other = program_of(model, program)
    bound = adapter_of(adapter, model, "compare")
    if bound is not None and not isinstance(bound, LoRA):
        raise SettingError(f"compare: adapter is {what_is(bound)}; need a LoRA, or save the model and compare its file")
    rows = rows_of(model, data, bound, context, tokens, data_options or {})
    if bound is not None:
        bound.bind(model)
    length = rows.tokens.shape[1]
    ours = _Ours(model, bound, length, layers, threads)
    differences = _Layers(model.config.layers, model.config.width) if layers else None
    with other.open(model, bound, length, threads, None if differences is None else differences.take) as theirs:
        _check(model, theirs, length)
        return _compared(model, bound, rows, ours, theirs, differences, on_progress)


def program_of(model: Model, name: str | None) -> Program:
    """The program of this name, by default the one that reads the model. Raises SettingError for an unknown name,
    FileError if the program does not read this form of model."""
    is_folder = isinstance(model.file, HFFolder)
    fitting = next(program for program in PROGRAMS.values() if program.folders == is_folder)
    if name is None:
        return fitting
    if name not in PROGRAMS:
        raise SettingError(setting="program", seen=name, need=f"one of {', '.join(PROGRAMS)}")
    if PROGRAMS[name].folders != is_folder:
        raise FileError(f"{model.path}: {PROGRAMS[name].refusal}, or {{program}} {fitting.name}", program=...)
    return PROGRAMS[name]


def rows_of(
    model: Model,
    data: Rows | Source | None,
    adapter: LoRA | None,
    context: int | None,
    tokens: int,
    options: Mapping[str, Any],
) -> Rows:
    """Rows whose labels are those of the first `tokens` tokens that count."""
    from .rows import Rows, check_rows, read_rows

    if isinstance(tokens, bool) or not isinstance(tokens, (int, np.integer)) or tokens < 1:
        raise SettingError(setting="tokens", seen=tokens, need="a whole number of at least 1")
    if isinstance(data, Rows):
        check_rows(data, context, options)
        rows = data
    else:
        source = [{"text": text} for text in TEXTS] if data is None else data
        source = test_file(source) if isinstance(source, (str, os.PathLike)) else source
        rows = read_rows(model, source, context, 0.0, adapter=adapter, **options)
    counted = np.cumsum(rows.labels.ravel() != IGNORED).reshape(rows.labels.shape)
    labels = np.where(counted <= tokens, rows.labels, IGNORED)
    used = (labels != IGNORED).any(1)
    return Rows(rows.tokens[used], rows.positions[used], labels[used], np.arange(used.sum()), rows.val, rows.reports)


def _check(model: Model, theirs: OtherModel, length: int) -> None:
    """Raise an error if the other program cannot compute the same."""
    if theirs.vocab_size != model.config.vocab_size:
        raise FileError(
            f"{model.path}: {theirs.name} has {theirs.vocab_size} tokens, and token_embd.weight has "
            f"{model.config.vocab_size} rows; need equal numbers to compare"
        )
    if model.is_long(length) != model.is_long(theirs.context):
        raise SettingError(
            f"{{context}}: {theirs.name} rounds {length} tokens up to {theirs.context}, for which the file has other "
            "rotations; need a context of another length",
            context=length,
        )


class _Ours:
    """Logits of a model here, of one row of `length` tokens at a time."""

    def __init__(self, model: Model, adapter: LoRA | None, length: int, layers: bool, threads: int | None) -> None:
        options: dict[str, Any] = {} if threads is None else {"threads": threads}
        tokens, positions = (input_value(name, (1, length), "i32") for name in ("tokens", "positions"))
        net = Net(model, (1, length), adapter, None, False)
        hidden = model.family.hidden(net, tokens, positions)
        self._hidden = compile_program([hidden, *(net.blocks if layers else ())], **options)
        block = input_value("hidden", (BATCH, model.config.width), "f32")
        self._project = compile_program([model.project(block, adapter)], **options)
        self.width = model.config.width
        self.rows, self.blocks = np.zeros((0, 0)), list[np.ndarray]()

    def feed(self, tokens: np.ndarray, positions: np.ndarray) -> None:
        """Compute a row, i32 [T] each."""
        found = self._hidden(tokens=tokens[None], positions=positions[None])
        self.rows, self.blocks = found[0].copy(), [block.copy() for block in found[1:]]

    def logits(self, begin: int, count: int) -> np.ndarray:
        """f32 [count, V] after the tokens from `begin` of the row; count is at most BATCH."""
        block = np.zeros((BATCH, self.width), np.float32)
        block[:count] = self.rows[begin : begin + count]
        return self._project(hidden=block)[0][:count]


class _Layers:
    """Sums of squares of the residual stream behind each block, and of its differences."""

    def __init__(self, layers: int, width: int) -> None:
        self.width, self.seen = width, dict[int, np.ndarray]()
        self.squares, self.errors = np.zeros(layers), np.zeros(layers)

    def take(self, block: int, values: np.ndarray) -> None:
        """The stream of the other program, f32 [n * d]."""
        self.seen[block] = values.reshape(-1, self.width)

    def add(self, ours: list[np.ndarray], begin: int, count: int) -> None:
        for block, values in self.seen.items():
            difference = ours[block][begin : begin + count].astype(np.float64) - values
            self.errors[block] += np.square(difference).sum()
            self.squares[block] += np.square(values, dtype=np.float64).sum()
        self.seen.clear()

    def relative(self) -> tuple[float, ...]:
        return tuple(np.sqrt(self.errors / np.maximum(self.squares, 1e-300)).tolist())


def _segments(rows: Rows) -> Iterator[tuple[int, int, int]]:
    """(row, begin, end) of each text in the rows, up to its last token that counts."""
    for row, (positions, labels) in enumerate(zip(rows.positions, rows.labels, strict=True)):
        starts = np.flatnonzero(positions == 0).tolist()
        for begin, stop in zip(starts, [*starts[1:], len(positions)], strict=True):
            counted = np.flatnonzero(labels[begin:stop] != IGNORED)
            if counted.size:
                yield row, begin, begin + int(counted[-1]) + 1


def _compared(
    model: Model,
    adapter: LoRA | None,
    rows: Rows,
    ours: _Ours,
    theirs: OtherModel,
    layers: _Layers | None,
    on_progress: Callable[[int, int], None] | None,
) -> Comparison:
    total = int((rows.labels != IGNORED).sum())
    parts: list[np.ndarray] = []
    done = texts = other_ids = 0
    seconds, other_seconds, last_row = 0.0, 0.0, -1
    for row, begin, end in _segments(rows):
        ids = rows.tokens[row, begin:end]
        texts += 1
        other_ids += _has_other_ids(model, theirs, ids.tolist())
        clock = time.perf_counter()
        if row != last_row:
            ours.feed(rows.tokens[row], rows.positions[row])
            last_row = row
        blocks = theirs.logits(ids.tolist())
        for start in range(begin, end, BATCH):
            now = time.perf_counter()
            seconds += now - clock
            other = next(blocks)
            clock = time.perf_counter()
            other_seconds += clock - now
            count = len(other)
            mine = ours.logits(start, count)
            seconds += time.perf_counter() - clock
            labels = rows.labels[row, start : start + count]
            _need_finite(model, adapter, mine, other, theirs.name)
            parts += _measured(mine, other, labels)
            if layers is not None:
                layers.add(ours.blocks, start, count)
            done += int((labels != IGNORED).sum())
            if on_progress is not None:
                on_progress(done, total)
            clock = time.perf_counter()
    nll, other_nll, kl, same = np.concatenate(parts, axis=1)
    return Comparison(
        program=theirs.name, version=theirs.version, nll=float(nll.mean()), other_nll=float(other_nll.mean()),
        difference=float((nll - other_nll).mean()), difference_unc=_standard_error(nll - other_nll),
        kl=float(kl.mean()), kl_unc=_standard_error(kl), kl_max=float(kl.max()), same_top=float(same.mean()),
        tokens=len(nll), texts=texts, other_ids=other_ids, layers=None if layers is None else layers.relative(),
        seconds=seconds, other_seconds=other_seconds,
    )  # fmt: skip


def _measured(ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray) -> Iterator[np.ndarray]:
    """nll here, nll there, KL and whether the likeliest token is the same, f64 [4, n], of the rows that have a label;
    ours, theirs: logits f32 [N, V]. In blocks that bound the memory."""
    counted = np.flatnonzero(labels != IGNORED)
    size = max(1, _NUMBERS // ours.shape[1])
    for start in range(0, len(counted), size):
        rows = counted[start : start + size]
        q, p = (_log_softmax(logits[rows]) for logits in (ours, theirs))
        picks = np.arange(len(rows)), labels[rows]
        kl = (np.exp(p) * (p - q)).sum(1)
        yield np.stack([-q[picks], -p[picks], kl, q.argmax(1) == p.argmax(1)])


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    return x


def _standard_error(values: np.ndarray) -> float:
    """Of the mean; NaN of one value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _need_finite(model: Model, adapter: LoRA | None, ours: np.ndarray, theirs: np.ndarray, program: str) -> None:
    if not np.isfinite(ours).all():
        cause = bad_tensor(model, adapter) or "no tensor of the file holds such a number"
        raise NonFiniteError(f"compare: logits are not finite: {cause}")
    if not np.isfinite(theirs).all():
        raise NonFiniteError(f"{model.path}: logits of {program} are not finite, and those of gradloom are")


def _has_other_ids(model: Model, theirs: OtherModel, ids: list[int]) -> bool:
    """Whether the other program splits the text of these ids into other tokens."""
    text = model.tokenizer.decode(ids)
    return theirs.tokenize(text) != model.tokenizer.encode(text, bos=False, eos=False)
