"""find_rate: a range test of learning rates, which restores the model afterwards."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_whole
from ..base.errors import NonFiniteError, SettingError
from ..base.interrupts import StopTraining
from ..graph.stored import copies, replace
from ..optim.optimizer import AdamW, Optimizer
from .arguments import check_batch, check_options
from .callbacks import BatchResult, Callback
from .fit import Data, as_dataset
from .history import pyplot
from .loop import Loop
from .objective import Model
from .output_losses import Losses, LossWeights
from .trained import Freeze
from .trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHING = 0.98  # share of the mean so far in the smoothed loss
DIVERGED = 4.0  # times the least smoothed loss


@dataclass(frozen=True)
class RateCurve:
    """What find_rate measured, step by step.

    rates       f64 [steps]: the learning rate of each step
    losses      f64 [steps]: the loss of each step's batch, before the step
    smoothed    f64 [steps]: the exponential mean of the losses, corrected for its start
    suggestion  the rate at which the loss falls fastest, before its minimum; None where it falls nowhere
    diverged    the test ended before its last step, because the loss grew or was not finite
    """

    rates: np.ndarray
    losses: np.ndarray
    smoothed: np.ndarray
    suggestion: float | None
    diverged: bool

    def plot(self) -> Figure:
        """Losses over rates, with the suggestion: a figure of pyplot. BackendError without matplotlib."""
        figure, axis = pyplot().subplots(layout="constrained")
        axis.plot(self.rates, self.losses, alpha=0.4, label="loss of a batch")
        axis.plot(self.rates, self.smoothed, label="smoothed")
        if self.suggestion is not None:
            axis.axvline(self.suggestion, color="gray", linestyle="--", label=f"suggestion {self.suggestion:.3g}")
        axis.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axis.legend()
        return figure

    def __repr__(self) -> str:
        shown = "none" if self.suggestion is None else f"{self.suggestion:.3g}"
        ended = ", diverged" if self.diverged else ""
        return f"RateCurve({len(self.rates)} rates, suggestion {shown}{ended})"


def find_rate(
    model: Model,
    data: Data,
    *,
    loss: Losses | None = None,
    loss_weights: LossWeights = None,
    optimizer: Optimizer | None = None,
    batch_size: int = 32,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 100,
    seed: int = 0,
    max_norm: float = math.inf,
    freeze: Freeze = (),
    **options: Any,
) -> RateCurve:
    """A range test of learning rates (Smith, arXiv 1506.01186): a few steps of training while the rate grows.

    The rate of step i of n is lowest * (highest / lowest) ** (i / (n - 1)). The test ends early when the smoothed loss
    (exponential mean with 0.98, as in fastai and Lightning) is more than 4 times its least value, or not finite. The
    suggestion is the rate where the loss falls fastest before its minimum: the middle of the eighth of the steps whose
    least-squares line is steepest, of those up to the eighth with the least mean loss.

    The arguments are those of gl.fit; batches come in the order of its first epochs. The optimiser's other settings
    hold, those of groups that state a rate of their own, too; it begins without moments. Afterwards weights, running
    statistics and the optimiser are restored, to the bit, also when the test is interrupted. Parameters that were
    not initialised are drawn from the seed, and stay so.
    SettingError for rates or steps out of range.
    """
    check_options("find_rate", options, find_rate)
    steps, seed = as_whole("steps", steps, 2), as_whole("seed", seed, 0)
    check_batch(batch_size)
    if not 0 < lowest < highest < math.inf:
        raise SettingError(f"find_rate: lowest={lowest!r}, highest={highest!r}; need 0 < lowest < highest")
    data = as_dataset(data, of_batches=False)
    optimizer = AdamW() if optimizer is None else optimizer
    growth = math.log(highest / lowest) / (steps - 1)

    def rate(step: int, epoch: int = 0) -> float:
        return lowest * math.exp(growth * step)

    watch = _Watch()
    with _trial(optimizer, rate):
        trainer = Trainer(
            model, loss, optimizer, seed=seed, max_norm=max_norm, freeze=freeze, loss_weights=loss_weights, **options
        )
        (rows, _), ended = data.split(0.0, seed), False
        loop = Loop(
            trainer, data, rows, rows[:0], batch_size=batch_size, micro_batch_size=batch_size, steps=steps, seed=seed,
            callbacks=[watch],
        )  # fmt: skip
        with _unchanged(trainer, loop):
            try:
                loop.run()
            except NonFiniteError:
                ended = True
    losses, smoothed = np.array(watch.losses), np.array(watch.smoothed)
    rates = np.array([rate(step) for step in range(len(losses))])
    return RateCurve(rates, losses, smoothed, _steepest(rates, losses, steps), ended or loop.stopped)


class _Watch(Callback):
    """Notes the losses of the steps; ends the training when they have grown."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self._mean = 0.0

    def on_batch(self, batch: BatchResult) -> None:
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * batch.loss
        self.losses.append(batch.loss)
        self.smoothed.append(self._mean / (1 - SMOOTHING ** len(self.losses)))
        if len(self.losses) > 1 and self.smoothed[-1] > DIVERGED * min(self.smoothed):
            raise StopTraining("the loss diverged")


def _steepest(rates: np.ndarray, losses: np.ndarray, steps: int) -> float | None:
    """The rate in the middle of the steps whose least-squares line falls fastest, of windows of an eighth of all steps
    up to that of the least mean: behind it the loss diverges, and its jumps are steeper than any descent."""
    width = max(steps // 8, 2) | 1
    if len(losses) <= width:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(losses, width)
    falling = windows[: int(np.argmin(windows.mean(axis=1))) + 1]
    slopes = falling @ (np.arange(width) - width // 2)
    at = int(np.argmin(slopes))
    return float(rates[at + width // 2]) if slopes[at] < 0 else None


@contextlib.contextmanager
def _trial(optimizer: Optimizer, rate: Callable[[int, int], float]) -> Iterator[None]:
    """Inside, the optimiser has this rate and a state without memory; afterwards its own again."""
    own, before = optimizer.state, optimizer.settings["lr"]
    with contextlib.nullcontext() if own is None else own.claim:
        try:
            optimizer.settings["lr"] = rate
            optimizer.state = None if own is None else own.fresh()
            yield
        finally:
            optimizer.state, optimizer.settings["lr"] = own, before


@contextlib.contextmanager
def _unchanged(trainer: Trainer, loop: Loop) -> Iterator[None]:
    """Restore all that training writes of the model afterwards."""
    source, rows = trainer.source(loop.data), len(loop.train_rows)
    trainer.prepare(source, 0, rows, batch_size=loop.batch_size)
    written = trainer.written()
    before = dict(zip(written, copies(written), strict=True))
    try:
        yield
    finally:
        replace(before)
