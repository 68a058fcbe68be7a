"""epoch: one pass over a data set, training rows first, then evaluation rows (ggml_opt_epoch)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, SettingError
from ..base.habits import hinted
from ..data.dataset import Dataset, Draw
from .arguments import check_batch
from .result import Evaluation, Result
from .source import RowSource
from .trainer import Trainer


@dataclass(frozen=True)
class Progress:
    """Progress of a pass: `rows` of `rows_total` done after `seconds`; `result` so far. rows_total is None where it is
    not known: of an iterable of batches."""

    training: bool
    rows: int
    rows_total: int | None
    seconds: float
    result: Result


Listener = Callable[[Progress], None]


@dataclass
class Pass:
    """The open pass of a Loop: its number and the count of the rows that it trains on.

    before   steps of the loop when it began; done: its own steps that have consumed their rows
    segment  its step at which the open segment ends; seconds: spent on it
    """

    number: int
    rows: int
    before: int
    done: int = 0
    segment: int = 0
    seconds: float = 0.0
    train: Result = field(default_factory=Result)
    evaluations: list[Evaluation] = field(default_factory=list)


@hinted
def epoch(
    trainer: Trainer,
    data: Dataset,
    result_train: Result | None = None,
    result_eval: Result | None = None,
    split: int | None = None,
    on_train_batch: Listener | None = None,
    on_eval_batch: Listener | None = None,
    *,
    batch_size: int = 32,
    micro_batch_size: int | None = None,
    order: np.ndarray | None = None,
    on_progress: Listener | None = None,
) -> tuple[Result, Result]:
    """Train on the first `split` rows of an order, then evaluate on the rest; all rows take part.

    order: every row of the data set once; the data set's current order (Dataset.shuffle) when None.
    split: all rows when None. batch_size rows make one optimiser step, in micro-batches of at most micro_batch_size
    (by default batch_size / trainer.accumulate, rounded up). on_*_batch is called after every micro-batch; on_progress
    at least every 0.2 s of work, which costs nothing per batch; both when both are given. Same bits with and without
    listeners.
    trainer.epoch counts up after training. Returns (result_train, result_eval). DataError when no row of one of the two
    parts counts (see Dataset). A batch of which no row counts is an optimiser step with gradient 0: weight decay and
    moments are applied, the step is counted.
    """
    if not hasattr(trainer, "run_rows") or not isinstance(data, Dataset):
        seen = f"{what_is(trainer)} and {what_is(data)}"
        raise SettingError(f"epoch: got {seen}; need a gl.Trainer and a gl.data.Dataset, or gl.fit(model, data)")
    split = data.n if split is None else split
    if not isinstance(split, (int, np.integer)) or not 0 <= split <= data.n:
        raise SettingError(setting="split", seen=split, need=f"0..{data.n}, the rows to train on")
    check_batch(batch_size)
    if micro_batch_size is not None:
        check_batch(micro_batch_size, batch_size, "micro_batch_size")
    micro = micro_batch_size or -(-batch_size // trainer.accumulate)
    rows = data.rows() if order is None else _checked(order, data.n)
    data.check_counted(rows[:split], "training rows")
    data.check_counted(rows[split:], "evaluation rows")
    result_train = Result() if result_train is None else result_train
    result_eval = Result() if result_eval is None else result_eval
    with trainer.claim:
        source = trainer.source(data)
        source.arrange(rows, Draw(trainer.driver.seed, trainer.epoch + 1, rows[:split]))
        for training, first, last, result, on_batch in (
            (True, 0, split, result_train, on_train_batch),
            (False, split, data.n, result_eval, on_eval_batch),
        ):
            if first < last:
                run_part(
                    trainer, source, first, last, result,
                    training=training, batch_size=batch_size, micro_batch_size=micro,
                    on_batch=on_batch, on_progress=on_progress,
                )  # fmt: skip
                if training:
                    trainer.epoch += 1
    return result_train, result_eval


def run_part(
    trainer: Trainer,
    source: RowSource,
    first: int,
    last: int,
    result: Result,
    *,
    training: bool,
    batch_size: int,
    micro_batch_size: int,
    on_batch: Listener | None = None,
    on_progress: Listener | None = None,
    each: bool = False,
    start: int | None = None,
    stop: int | None = None,
    seconds: float = 0.0,
) -> None:
    """Train or evaluate on rows start..stop of the source's order, a segment of the part first..last (all of it by
    default). Progress counts the rows of the part, of which `seconds` have passed.

    on_batch is called after every micro-batch, on_progress at least every 0.2 s, with `each` after every one, too.
    """
    start, stop = first if start is None else start, last if stop is None else stop
    began = time.perf_counter() - seconds
    listeners = [each for each in (on_batch, on_progress) if each is not None]

    def report(done: int) -> None:
        at = Progress(training, start - first + done, last - first, time.perf_counter() - began, result)
        for listener in listeners:
            listener(at)

    trainer.run_rows(
        source, start, stop, result,
        batch_size=batch_size, micro_batch_size=micro_batch_size, backward=training,
        each=each or on_batch is not None, on_progress=report if listeners else None,
    )  # fmt: skip


def _checked(order: np.ndarray, n: int) -> np.ndarray:
    """The order, if it names each of n rows once."""
    order = np.asarray(order)
    usable = order.dtype.kind in "iu" and order.shape == (n,) and order.min() >= 0 and order.max() < n
    if not usable or not np.bincount(order, minlength=n).all():
        raise DataError(f"order: {order.dtype}{list(order.shape)} is not usable; need each of the rows 0..{n - 1} once")
    return order
