"""fit, evaluate, predict: written with the public pieces only (Trainer, Loop), and meant to be copied."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, halves, what_is
from ..base.errors import DataError, SettingError
from ..base.fit_options import FitOptions
from ..base.habits import hinted
from ..base.options import taken, takes, values_of
from ..base.training_options import TIMEOUT, EvalOptions, ExchangeOptions, MemoryOptions, StepOptions
from ..base.warned import warn
from ..data.dataset import Dataset
from ..data.loader import DataLoader
from ..data.reading.table_columns import is_table
from ..nn.ensemble import Ensemble
from ..optim.optimizer import Optimizer
from ..optim.schedules import check_warmup
from ..parallel.agree import agreed, is_root, same_settings, share_of, threads_for
from ..parallel.communicator import Communicator
from ..parallel.join import ranks_of
from ..run.budget import KEPT_BY_RESUME
from ..runs.saver import saver_of
from .arguments import check_batch, check_options
from .callbacks import Callback, Listeners, several
from .class_weight import ClassWeight, weights_of_classes
from .display import Display
from .epoch import Listener
from .history import History
from .log import log_of
from .loop import Loop
from .losses import Loss
from .metrics import Measures, Metrics, checked_metrics
from .outputs import mapped
from .result import MAIN, Result
from .source import FeedSource, numbers
from .trained import check_freeze
from .trainer import Model, Trainer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import FitArguments

Data = Dataset | tuple[Any, Any] | np.ndarray


@hinted
@takes(FitOptions)
def fit(
    model: Model,
    data: Data | None = None,
    *,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    val: Data | Mapping[str, Data] | None = None,
    metrics: Metrics | None = None,
    class_weight: ClassWeight = None,
    progress: bool = True,
    callbacks: Sequence[Callback] | None = None,
    on_epoch: Listeners = None,
    on_progress: Listener | None = None,
    on_train_batch: Listener | None = None,
    on_eval_batch: Listener | None = None,
    **settings: Unpack[FitArguments],
) -> History:
    """Train a model and return one EpochResult per epoch: a list, see History.

    model, loss, optimizer  see gl.Trainer. Several marked losses of a gl.Graph are reported by name, and as their sum
    data           a Dataset, (x, y), or one array. The rows are permuted once by the seed; the training part is
                   shuffled, by shards, before each epoch
    val            a validation set in place of val_split, or several by name, together with it: {"clean": data,
                   "noisy": data}
    metrics        name -> function or gl.train.Metric, measured together with the loss; see Evaluation,
                   EpochResult.numbers
    class_weight   "balanced" (n / (k * count), as scikit-learn), {class: weight} or a weight for each class, which
                   multiplies the weight of the row in the losses of training and validation, not in accuracies
    progress       show progress on stderr
    callbacks      see gl.train.Callback: notified of optimiser steps, evaluations, epochs and the end
    on_epoch       called with each epoch's result (one listener or several). It may change a Module (a layer, a mode, a
                   number): the next epoch builds it anew, see Trainer; with ranks, where rank 0 alone calls listeners,
                   that is a TrainError
    on_progress    called with the state of a pass at least every 0.2 s; on_train_batch, on_eval_batch: after each
                   batch. Any listener may raise StopTraining: then the history so far is returned, a part of an epoch
                   included

    {options}

    The other arguments go to gl.Trainer (dynamic=) and gl.compile (threads=, ...); SettingError for other names, and
    for options of an evaluation where there is nothing to evaluate. Predictions are kept of the last epoch only. On
    Ctrl-C, KeyboardInterrupt leaves with the weights so far. Of a resumed run threads, the number of ranks, progress,
    checkpoint_every, keep, stop_after and epochs may change.
    """
    use, options = taken(FitOptions, settings)
    _check_arrays(model, data, options)
    check_options("fit", options, fit, "dynamic")
    ranks = ranks_of("fit", use.parallel, use.timeout, use.exchange)
    options["threads"] = threads_for(ranks, options.get("threads"))
    with contextlib.ExitStack() as stack:
        with agreed(ranks):
            saver = saver_of("fit", ranks, use)
            if saver is not None:
                stack.enter_context(saver)
            logs = log_of(saver, use.log, use.log_every)
            for each in logs:
                stack.callback(each.close)
        if saver is not None:
            saver.share()
        with agreed(ranks):
            data = as_dataset(data)
            progress = as_bool("progress", progress)
            if not use.epochs and is_root(ranks):
                warn("fit: epochs=0 trains nothing; the model stays as it is")
            train_rows, val_rows = data.split(use.val_split, use.seed)
            micro_batch_size = use.micro_batch_size
            if micro_batch_size is not None:
                check_batch(micro_batch_size, use.batch_size, "micro_batch_size")
            elif saver is not None:
                micro_batch_size = saver.size("micro_batch_size", use.batch_size)
            data.check_counted(train_rows, "training rows")
            data.check_counted(val_rows, "evaluation rows")
            folds = _checked_folds(use.folds, model, use.val_split, check_freeze(use.freeze))
            val_sets = _validation_sets(val, len(val_rows) > 0 or folds > 0)
            if folds:  # two: a set's order is its own
                data, val_sets = data.in_folds(folds, use.seed), {MAIN: data.in_folds(folds, use.seed), **val_sets}
            micro_batch_size = micro_batch_size or share_of(use.batch_size, ranks)
            trainer = Trainer(
                model,
                loss,
                optimizer,
                accumulate=-(-use.batch_size // micro_batch_size),
                class_weights=weights_of_classes(class_weight, data, train_rows, val_sets.values()),
                communicator=ranks,
                **values_of(use, StepOptions, ExchangeOptions, MemoryOptions),
                **options,
            )
        same_settings(ranks, epochs=use.epochs, val_split=use.val_split, folds=folds, rows=data.n)
        steps = use.epochs * -(-len(train_rows) // use.batch_size)
        if saver is None and trainer.optimizer.state is None:  # no later training continues the schedule
            check_warmup(trainer.optimizer.settings, steps)
        display = Display(trainer.epoch + use.epochs) if progress and is_root(ranks) else None
        loop = Loop(
            trainer, data, train_rows, val_rows,
            batch_size=use.batch_size, micro_batch_size=micro_batch_size, steps=steps, seed=use.seed,
            val_sets=val_sets, metrics=metrics, **values_of(use, EvalOptions),
            callbacks=[*logs, *several(callbacks)], on_epoch=on_epoch, on_progress=on_progress,
            on_train_batch=on_train_batch, on_eval_batch=on_eval_batch, saver=saver,
            about={"folds": folds} if folds else {},
        )  # fmt: skip
        if trainer.driver.budget is not None:
            is_resumed = saver is not None and saver.entries is not None
            trainer.driver.budget.name("micro_batch_size", KEPT_BY_RESUME if is_resumed else "")
            smaller = () if ranks is not None or is_resumed else [*halves(micro_batch_size)]
            loop.prepare(smaller, use.micro_batch_size is None)
        loop.run(display)
    return loop.history


@hinted
def evaluate(
    model: Model,
    data: Data,
    *,
    loss: Loss | None = None,
    batch_size: int | None = None,
    metrics: Metrics | None = None,
    parallel: str | Communicator | None = None,
    timeout: float = TIMEOUT,
    memory: int | str | None = None,
    **options: Any,
) -> Result:
    """Loss (and accuracy, for cross_entropy) on all rows, in their order; nothing is trained.

    batch_size: rows at once, by default 500, or fewer where `memory` does not suffice for them; the uncertainty of
    the loss is made of the scatter between batches, and needs two of them. A BatchLoss couples batch_size rows, by
    default 500, of which fewer are computed at once where `memory` requires it.
    metrics: name -> function or gl.train.Metric; Result.metrics holds them.
    parallel, timeout, memory: as in fit; all ranks get the whole result. options go to gl.compile.
    """
    check_options("evaluate", options, evaluate, "dynamic")
    ranks = ranks_of("evaluate", parallel, timeout)
    options["threads"] = threads_for(ranks, options.get("threads"))
    with agreed(ranks):
        data = as_dataset(data)
        sizes, smaller = _sizes(batch_size, data.n)
        trainer = Trainer(model, loss, build="forward", communicator=ranks, memory=memory, **options)
        halved = list(halves(sizes[0]))
        if trainer.objective.couples and batch_size is not None:  # fewer of the coupled rows at once
            sizes, smaller = [*sizes, *halved], []
    if trainer.driver.budget is not None:
        trainer.driver.budget.name("batch_size")
    result = Result(Measures(checked_metrics(metrics)))
    source, measures = trainer.source(data), result.measures

    def build(size: int) -> int:
        if memory is not None:
            trainer.prepare(
                source, 0, data.n, batch_size=sizes[0], micro_batch_size=size, backward=False, measures=measures
            )
        return size

    size = trainer.driver.within_budget(build, sizes, smaller=smaller)
    trainer.run_rows(source, 0, data.n, result, batch_size=sizes[0], micro_batch_size=size, backward=False)
    result.settle()
    return result


@hinted
def predict(
    model: Model, x: Any, *, batch_size: int | None = None, memory: int | str | None = None, **options: Any
) -> Any:
    """The model's outputs for all rows of x, in order: an array [rows, ...], or, of a model with several outputs, a
    tuple, list or dict of arrays as the model gives them.

    x: rows of numbers; DataError for a Dataset, whose labels and weights nothing here reads. batch_size: rows at once,
    by default 500, or fewer where `memory` does not suffice for them. memory: as in fit; of the outputs it includes
    those of one batch. options go to gl.compile.
    """
    check_options("predict", options, predict, "dynamic")
    if isinstance(x, Dataset):
        raise DataError("predict: got a Dataset; need its rows alone, dataset.data (gl.evaluate reads labels, too)")
    if isinstance(x, (tuple, list)) and len(x) == 2 and np.ndim(x[0]) != np.ndim(x[1]):
        raise DataError("predict: got a pair; need the rows alone, x (gl.evaluate reads labels, too)")
    x = numbers("x", x)
    sizes, smaller = _sizes(batch_size, len(x) if x.ndim else 1)
    if x.ndim == 0 or not len(x):
        raise DataError(f"predict: x has shape {list(x.shape)}; need rows along the first axis")
    trainer = Trainer(model, build="forward", memory=memory, **options)
    if trainer.driver.budget is not None:
        trainer.driver.budget.name("batch_size")

    def build(size: int) -> int:
        for rows in (x[:size], x[len(x) // size * size :]):
            if memory is not None and len(rows):
                trainer.prepare_predict(FeedSource(rows, kind=trainer.objective.input_kind))
        return size

    size = trainer.driver.within_budget(build, sizes, smaller=smaller)
    parts: list[list[np.ndarray]] = []
    for start in range(0, len(x), size):
        outputs, arrays = trainer.predict(x[start : start + size])
        parts.append(arrays)
    whole = iter([np.concatenate(columns) for columns in zip(*parts, strict=True)])
    return mapped(lambda _: next(whole), outputs)


def _sizes(batch_size: int | None, rows: int) -> tuple[list[int], list[int]]:
    """The rows to compute at once: (the given number, or numbers to try in this order; those that an error may
    propose)."""
    if batch_size is not None:
        check_batch(batch_size)
    most = min(batch_size or 500, max(rows, 1))
    halved = [*halves(most)]
    return ([most, *halved], []) if batch_size is None else ([most], halved)


def _validation_sets(val: Data | Mapping[str, Data] | None, is_split: bool) -> dict[str, Dataset]:
    """The validation sets by name; one without a name is "val"."""
    sets = {} if val is None else val if isinstance(val, Mapping) else {MAIN: val}
    if val is not None and not sets:
        raise SettingError(setting="val", seen=val, need="a validation set, such as {'clean': (x, y)}, or None")
    for name in sets:
        usable = isinstance(name, str) and name.isprintable() and name and "." not in name and name != "train"
        if not usable or (name == MAIN and is_split):
            why = (
                "is that of the rows of val_split or folds; use another"
                if name == MAIN
                else "must be a word without dots, such as 'clean'"
            )
            raise SettingError(f"{{val}}: the name {name!r} {why}", val=...)
    return {name: as_dataset(one) for name, one in sets.items()}


def _checked_folds(folds: int, model: Model, val_split: float, freeze: Sequence[str]) -> int:
    """SettingError for folds that members of the model cannot leave out. freeze: patterns of names."""
    if not folds:
        return 0
    if not isinstance(model, Ensemble):
        text = f"{{folds}} requires an nn.Ensemble; the model is {what_is(model)}"
        raise SettingError(text, folds=folds)
    if not 2 <= folds <= model.members:
        need = f"from 2 to {model.members}, the members of the ensemble"
        raise SettingError(setting="folds", seen=folds, need=need)
    if val_split:
        raise SettingError("{folds} and {val_split} are mutually exclusive", folds=folds, val_split=val_split)
    shared = {p.stored for layer in model.shared for p in layer.parameters()}
    learns = {name for name, p in model.named_parameters().items() if p.stored in shared}
    learns -= {name for name in learns if any(fnmatchcase(name, pattern) for pattern in freeze)}
    if learns:
        text = (
            f"{{folds}}: {min(learns)} is shared by all members and would train on the rows of every fold; use layers "
            "of each member (nn.MemberLinear, nn.Periodic(members=)), {freeze}, or {val_split}"
        )
        raise SettingError(text, folds=folds, freeze=..., val_split=...)
    return folds


def _check_arrays(model: Any, data: Any, options: Mapping[str, Any]) -> None:
    """DataError for a table or a path in place of the model, with what trains on it, and for no data."""
    target = options.get("target", data if isinstance(data, str) else None)
    if isinstance(model, (str, os.PathLike)):
        line = f"gradloom fit {model}" + f" --target {target}" * isinstance(target, str)
        raise DataError(
            f"fit: got a path in place of the model; gl.fit trains a module on arrays; use the command: {line}"
        )
    if isinstance(model, Mapping) or is_table(model):
        column = repr(target) if isinstance(target, str) else "TARGET"
        use = f"gl.sklearn.Classifier() or Regressor() with fit(table.drop(columns={column}), table[{column}])"
        raise DataError(f"fit: got {what_is(model)} in place of the model; gl.fit trains a module on arrays; use {use}")
    if data is None:
        raise DataError("fit: data is missing; requires a Dataset, a pair (x, y) or an array")


def as_dataset(data: Data | None) -> Dataset:
    """The data set itself, or one of (x, y) or of an array without labels."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, np.ndarray):
        return Dataset(data)
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return Dataset(*data)
    use = "; use gl.data.read_table(data).train" if is_table(data) or isinstance(data, (str, os.PathLike)) else ""
    use = "; use gl.data.read_table(pandas.DataFrame(data)).train" if isinstance(data, Mapping) else use
    use = "; use loader.dataset" if isinstance(data, DataLoader) else use
    raise DataError(f"data: got {type(data).__name__}; need a Dataset, a pair (x, y) or an array{use}")
