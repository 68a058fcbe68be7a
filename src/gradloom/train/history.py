"""History: results of the passes of a training, as the list that gl.fit returns; as columns, and as a plot."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base.errors import SettingError, TrainError
from ..base.extras import optional
from ..base.habits import AttributeHints
from ..base.pages import RunPage
from ..plan.memory_map import ProgramMap
from .metric import UNCERTAINTY
from .result import MAIN, EpochResult, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class History(list[EpochResult], AttributeHints, RunPage):
    """A list of EpochResult, one for each pass.

    kept: the EpochResult of the weights that the model has in the end: of the last pass, or of the best one where
    EarlyStopping(restore_best=True) restored them; its val is the validation of these weights, None without any.
    programs: memory maps of the programs that were compiled, for reports. They hold no arrays.
    """

    kept: EpochResult | None = None
    programs: tuple[ProgramMap, ...] = ()

    if not TYPE_CHECKING:

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, str):
                raise TypeError(f"a history is a list of epochs; use history.to_dict()[{index!r}]")
            return super().__getitem__(index)

    def at(self, epoch: int, step: int | None) -> EpochResult:
        """The result of this epoch; with a step, its last evaluation is that after `step` steps.
        TrainError for an epoch that the history does not have."""
        result = next((one for one in self if one.epoch == epoch), None)
        if result is None:
            raise TrainError(f"history: no epoch {epoch} among {[one.epoch for one in self][:8]}; requires one of them")
        made = tuple(one for one in result.evaluations if step is not None and one.step <= step)
        return (
            replace(result, val=made[-1].val, evaluations=made) if made and made[-1].val is not result.val else result
        )

    def at_step(self, epoch: int, step: int, latest: Result) -> EpochResult | None:
        """Results of the weights after `step` steps, in this epoch: `latest`, of the pass that trained them, and their
        validation, if there was one; None before the first step."""
        last = self[-1] if self else None
        if latest.ndata and (last is None or last.train is not latest):
            return EpochResult(epoch, latest, None, 0.0)
        if last is None or not last.evaluations or last.evaluations[-1].step != step:
            return last
        return self.at(last.epoch, step)

    def to_dict(self) -> dict[str, list[Any]]:
        """Column name -> a value for each pass; what JSON holds, and what pandas.DataFrame takes.

        epoch, what EpochResult.numbers has (loss, loss_unc, accuracy, ..., val_loss, ...), lr (the rate of the pass's
        last step; with parameter groups the others, too), grad_norm_mean (of the norms of the steps' gradients before
        clipping), seconds. A column is there when some pass has it; None where a pass does not, and for numbers that
        are not finite.
        """
        rows = [row_of(epoch) for epoch in self]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [finite_or_none(row.get(name)) for row in rows] for name in names}

    def plot(self) -> Figure:
        """Loss, accuracy and metrics over the passes, of training and each validation set, with bands of uncertainty.

        A figure of pyplot. Raises BackendError without matplotlib, SettingError when there is no pass.
        """
        if not self:
            raise SettingError("plot: the history has no epoch; need at least one")
        columns = self.to_dict()
        sets = dict.fromkeys(name for e in self if e.ended is not None for name in e.ended.results if name != MAIN)
        before = {"": "training", "val_": "validation"} | {f"{name}.": name for name in sets}
        names = list(dict.fromkeys(n for e in self for n in _measures(e)))
        figure, axes = pyplot().subplots(
            1, len(names), figsize=(5 * len(names), 3.5), squeeze=False, layout="constrained"
        )
        for axis, name in zip(axes[0], names, strict=True):
            for prefix, label in before.items():
                if prefix + name in columns:
                    _line(axis, columns, prefix + name, label)
            axis.set(xlabel="epoch", ylabel=name)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.legend()
        return figure


def row_of(epoch: EpochResult) -> dict[str, Any]:
    """Results of a pass, by name of the column: see History.to_dict."""
    row: dict[str, Any] = {"epoch": epoch.epoch, **epoch.numbers(), **epoch.rates}
    if len(epoch.train.grad_norms):
        row["grad_norm_mean"] = float(epoch.train.grad_norms.mean())
    return row | {"seconds": epoch.seconds}


def finite_or_none(value: Any) -> Any:
    """The value; None for a float that is not finite, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _measures(epoch: EpochResult) -> list[str]:
    """The names of what training or validation measured, without uncertainties."""
    results = [epoch.train, *([] if epoch.val is None else [epoch.val])]
    results += [] if epoch.ended is None else epoch.ended.results.values()
    return [name for result in results for name in result.numbers() if not name.endswith(UNCERTAINTY)]


def pyplot() -> Any:
    """matplotlib.pyplot; BackendError where it is missing."""
    return optional("matplotlib.pyplot", "plot", "plot")


def _line(axis: Any, columns: dict[str, list[Any]], name: str, label: str) -> None:
    numbers = [math.nan if v is None else v for v in columns[name]]
    known = columns.get(name + UNCERTAINTY, [None] * len(numbers))
    spread = [0.0 if v is None else v for v in known]
    (line,) = axis.plot(columns["epoch"], numbers, marker="." if len(numbers) < 50 else "", label=label)
    if any(spread):
        low = [n - s for n, s in zip(numbers, spread, strict=True)]
        high = [n + s for n, s in zip(numbers, spread, strict=True)]
        axis.fill_between(columns["epoch"], low, high, color=line.get_color(), alpha=0.2, linewidth=0)
