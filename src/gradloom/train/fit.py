"""fit, evaluate, predict: written with the public pieces only (Trainer, Loop), and meant to be copied."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arguments import as_bool, halves, what_is
from ..base.errors import DataError, SettingError
from ..base.fit_options import FitOptions
from ..base.habits import hinted
from ..base.options import taken, takes, values_of
from ..base.structures import Key, Structure, as_several, check_rows, mapped, mapped_by_key, place
from ..base.training_options import TIMEOUT, EvalOptions, ExchangeOptions, MemoryOptions, StepOptions
from ..base.warned import warn
from ..data.dataset import Dataset
from ..data.fetched import MapDataset, is_row_maker
from ..data.loader import DataLoader
from ..data.reading.table_columns import is_table
from ..nn.ensemble import Ensemble
from ..optim.optimizer import Optimizer
from ..optim.schedules import check_warmup
from ..parallel.agree import agreed, is_root, same_settings, share_of, threads_for
from ..parallel.communicator import Communicator
from ..parallel.join import ranks_of
from ..run.budget import KEPT_BY_RESUME
from ..runs.saver import Saver, saver_of
from .arguments import check_batch, check_options
from .callbacks import Callback, Listeners, several
from .class_weight import ClassWeight, Tables, weights_of_classes
from .display import Display
from .epoch import Listener
from .fit_stream import FitStream, evaluated, measured_stream, predicted_batches, validation_stream
from .history import History
from .inputs import takes_several
from .log import log_of
from .loop import Loop
from .metric import Metrics, checked_metrics
from .metrics import Measures
from .output_losses import Losses, LossWeights
from .result import MAIN, Result
from .source import FeedSource, numbers
from .stream import Stream, holds_array, is_stream
from .stream_loop import Sources, measure
from .trained import check_freeze
from .trainer import Model, Trainer
from .watching import watching_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .arguments_typed import FitArguments

Read = Callable[[int, int], Structure]  # (first, count) -> these rows
Data = Dataset | tuple[Any, Any] | np.ndarray | Iterable[Any] | Callable[[], Iterable[Any]]


@hinted
@takes(FitOptions)
def fit(
    model: Model,
    data: Data | None = None,
    *,
    loss: Losses | None = None,
    loss_weights: LossWeights = None,
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

    model, loss, loss_weights, optimizer  see gl.Trainer. Several marked losses of a gl.Graph, and losses by output, are
                   reported by name, and as their sum
    data           a Dataset, (x, y), or one array; x and y may be dicts or tuples of arrays (see Dataset), as in
                   ((u, v), y): a tuple of two is always (x, y). An object with __len__ and __getitem__ makes rows
                   while they are needed: see MapDataset. The rows are permuted once by the seed; the training
                   part is shuffled, by shards, before each epoch. Or an iterable of batches, each of which is one
                   optimiser step: a list, a generator, a DataLoader of gradloom or torch, an object with __iter__, or
                   a function that returns one. A batch is x, (x, y) or (x, y, weights); an epoch is one iteration,
                   or steps_per_epoch batches (docs/steering.md). DataError naming a batch that has other arrays, dtypes
                   or shapes of rows than the first one
    val            a validation set in place of val_split, or several by name, together with it: {"clean": data,
                   "noisy": data}. An iterable of batches is read as a whole at each evaluation
    metrics        names or objects of gl.metrics in a list (["f1", "roc_auc"]), or a dict name -> one of these, a
                   function or a gl.train.Metric, measured together with the loss; see Evaluation, EpochResult.numbers
    class_weight   "balanced" (n / (k * count), as scikit-learn), {class: weight} or a weight for each class, which
                   multiplies the weight of the row in the losses of training and validation, not in accuracies; with
                   losses by output one of these by output: {"class": "balanced"}; of an iterable of batches a weight
                   for each class
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
            progress = as_bool("progress", progress)
            if not use.epochs and is_root(ranks):
                warn("fit: epochs=0 trains nothing; the model stays as it is")
            job: _Rows | FitStream
            if is_stream(data):
                job = FitStream(data, _validation_sets(val, False, use, ranks), use, settings, saver, ranks)
            else:
                job = _Rows(as_dataset(data), val, model, use, saver, ranks)
            trainer = Trainer(
                model, loss, optimizer, accumulate=job.accumulate, loss_weights=loss_weights,
                class_weights=job.class_weights(class_weight), communicator=ranks,
                **values_of(use, StepOptions, ExchangeOptions, MemoryOptions), **options,
            )  # fmt: skip
            trainer.driver.watching = watching_of("fit", use, ranks)
        same_settings(ranks, epochs=use.epochs, val_split=use.val_split, **job.compared)
        if saver is None and trainer.optimizer.state is None and job.steps:  # no later training continues the schedule
            check_warmup(trainer.optimizer.settings, job.steps)
        display = Display(trainer.epoch + use.epochs) if progress and is_root(ranks) else None
        loop = job.loop(
            trainer, seed=use.seed, metrics=metrics, **values_of(use, EvalOptions),
            callbacks=[*logs, *several(callbacks)], on_epoch=on_epoch, on_progress=on_progress,
            on_train_batch=on_train_batch, on_eval_batch=on_eval_batch, saver=saver,
        )  # fmt: skip
        if trainer.driver.budget is not None:
            is_resumed = saver is not None and saver.entries is not None
            trainer.driver.budget.name("micro_batch_size", KEPT_BY_RESUME if is_resumed else "")
            smaller = () if ranks is not None or is_resumed else [*halves(loop.micro_batch_size)]
            loop.prepare(smaller, use.micro_batch_size is None)
        loop.run(display)
    return loop.history


class _Rows:
    """The rows of a data set, and how gl.fit trains on them.

    accumulate  micro-batches of a step; steps: optimiser steps in all; compared: settings that all ranks must have
    """

    def __init__(
        self, data: Dataset, val: Data | Mapping[str, Data] | None, model: Model, use: FitOptions,
        saver: Saver | None, ranks: Communicator | None,
    ) -> None:  # fmt: skip
        if use.steps_per_epoch is not None:
            text = "{steps_per_epoch} requires data that are an iterable of batches; an epoch is all training rows"
            raise SettingError(text, steps_per_epoch=use.steps_per_epoch)
        self._train_rows, self._val_rows = data.split(use.val_split, use.seed)
        self._batch_size, micro_batch_size = use.batch_size, use.micro_batch_size
        if micro_batch_size is not None:
            check_batch(micro_batch_size, use.batch_size, "micro_batch_size")
        elif saver is not None:
            micro_batch_size = saver.size("micro_batch_size", use.batch_size)
        data.check_counted(self._train_rows, "training rows")
        data.check_counted(self._val_rows, "evaluation rows")
        self._folds = folds = _checked_folds(use.folds, model, use.val_split, check_freeze(use.freeze))
        self._val_sets = _validation_sets(val, len(self._val_rows) > 0 or folds > 0, use, ranks)
        if folds:  # two: a set's order is its own
            main, data = data.in_folds(folds, use.seed), data.in_folds(folds, use.seed)
            self._val_sets = {MAIN: main, **self._val_sets}
        self._data = data
        self._micro_batch_size = micro_batch_size or share_of(use.batch_size, ranks)
        self.accumulate = -(-use.batch_size // self._micro_batch_size)
        self.compared = {"folds": folds, "rows": data.n}
        self.steps = use.epochs * -(-len(self._train_rows) // use.batch_size)

    def class_weights(self, class_weight: ClassWeight) -> Tables:
        """The weight of each class."""
        others = [one for one in self._val_sets.values() if isinstance(one, Dataset)]
        return weights_of_classes(class_weight, self._data, self._train_rows, others)

    def loop(self, trainer: Trainer, **settings: Any) -> Loop:
        """The loop over these rows."""
        return Loop(
            trainer, self._data, self._train_rows, self._val_rows,
            batch_size=self._batch_size, micro_batch_size=self._micro_batch_size, steps=self.steps,
            val_sets=evaluated(self._val_sets, trainer), about={"folds": self._folds} if self._folds else {},
            **settings,
        )  # fmt: skip


@hinted
def evaluate(
    model: Model,
    data: Data,
    *,
    loss: Losses | None = None,
    loss_weights: LossWeights = None,
    batch_size: int | None = None,
    metrics: Metrics | None = None,
    parallel: str | Communicator | None = None,
    timeout: float = TIMEOUT,
    memory: int | str | None = None,
    **options: Any,
) -> Result:
    """Loss (and accuracy, for cross_entropy) on all rows, in their order; nothing is trained. loss, loss_weights: see
    gl.Trainer.

    data: as in fit; of an iterable of batches one iteration, and batch_size is not taken.
    batch_size: rows at once, by default 500, or fewer where `memory` does not suffice for them; the uncertainty of
    the loss is made of the scatter between batches, and needs two of them. A BatchLoss couples batch_size rows, by
    default 500, of which fewer are computed at once where `memory` requires it.
    metrics: as in fit; Result.metrics holds them.
    parallel, timeout, memory: as in fit; all ranks get the whole result. options go to gl.compile.
    """
    check_options("evaluate", options, evaluate, "dynamic")
    ranks = ranks_of("evaluate", parallel, timeout)
    options["threads"] = threads_for(ranks, options.get("threads"))
    with agreed(ranks):
        stream = measured_stream(data, batch_size, ranks) if is_stream(data) else None
        rows = as_dataset(data) if stream is None else stream.example()
        sizes, smaller = _sizes(batch_size, rows.n, rows.n if stream is not None else 500)
        trainer = Trainer(
            model, loss, build="forward", communicator=ranks, memory=memory, loss_weights=loss_weights, **options
        )
        halved = list(halves(sizes[0]))
        if trainer.objective.couples and batch_size is not None:  # fewer of the coupled rows at once
            sizes, smaller = [*sizes, *halved], []
    if trainer.driver.budget is not None:
        trainer.driver.budget.name("batch_size")
    result = Result(Measures(checked_metrics(metrics, trainer.objective.named_losses)))
    sources = None if stream is None else Sources(stream, trainer.objective.looks_at_labels)
    source, measures = trainer.source(rows) if sources is None else sources.next(), result.measures

    def build(size: int) -> int:
        if memory is not None:
            trainer.prepare(
                source, 0, rows.n, batch_size=sizes[0], micro_batch_size=size, backward=False, measures=measures
            )
        return size

    size = trainer.driver.within_budget(build, sizes, smaller=smaller)
    if sources is not None:
        measure(trainer, sources, result, None if size == sizes[0] else size)
    else:
        trainer.run_rows(source, 0, rows.n, result, batch_size=sizes[0], micro_batch_size=size, backward=False)
    result.settle()
    return result


@hinted
def predict(
    model: Model, x: Any, *, batch_size: int | None = None, memory: int | str | None = None, **options: Any
) -> Any:
    """The model's outputs for all rows of x, in order: an array [rows, ...], or, of a model with several outputs, a
    tuple, list or dict of arrays as the model gives them.

    x: rows of numbers, or a dict or tuple of such for a model with several inputs (see Dataset), or an object that
    makes rows, whose labels are left out (see MapDataset); DataError for another Dataset, whose labels and weights
    nothing here reads. Or an iterable of batches of such rows, as in fit, in one
    iteration, without batch_size; a list is one array. batch_size: rows at once, by default 500, or fewer where
    `memory` does not suffice for them. memory: as in fit; of the outputs it includes
    those of one batch. options go to gl.compile.
    """
    check_options("predict", options, predict, "dynamic")
    if is_row_maker(x):
        x = MapDataset(x)
    if isinstance(x, Dataset) and not isinstance(x, MapDataset):
        raise DataError("predict: got a Dataset; need its rows alone, dataset.data (gl.evaluate reads labels, too)")
    trainer = Trainer(model, build="forward", memory=memory, **options)
    if trainer.driver.budget is not None:
        trainer.driver.budget.name("batch_size")
    parts: list[list[np.ndarray]] = []
    outputs = None
    if isinstance(x, MapDataset):
        outputs = _predict_rows(trainer, x.n, x.data_of, batch_size, parts)
    elif isinstance(x, list) and any(isinstance(one, tuple) and holds_array(one) for one in x):
        raise DataError("predict: got a list of tuples; need rows alone: an array, or (x for x, y in batches)")
    elif isinstance(x, list) or not is_stream(x):
        is_pair = isinstance(x, (tuple, list)) and len(x) == 2 and np.ndim(x[0]) != np.ndim(x[1])
        if is_pair and not (isinstance(x, tuple) and takes_several(model)):
            raise DataError("predict: got a pair; need the rows alone, x (gl.evaluate reads labels, too)")
        outputs = _predict_rows(trainer, *_inputs(x), batch_size, parts)
    else:
        if batch_size is not None:
            text = "{batch_size} requires arrays, and x is an iterable of batches"
            raise SettingError(text, batch_size=batch_size, place="predict")
        for batch in predicted_batches(x, model):
            outputs = _predict_rows(trainer, *_inputs(batch), None, parts)
    whole = iter([np.concatenate(columns) for columns in zip(*parts, strict=True)])
    return mapped(lambda _: next(whole), outputs)


def _predict_rows(trainer: Trainer, n: int, read: Read, batch_size: int | None, parts: list[list[np.ndarray]]) -> Any:
    """The model's outputs as it gives them; their numbers for n rows join `parts`."""
    sizes, smaller = _sizes(batch_size, n)

    def build(size: int) -> int:
        for first, rows in ((0, size), (n // size * size, n % size)):
            if trainer.driver.budget is not None and rows:
                source = FeedSource(read(first, rows), kinds=trainer.objective.input_kinds)
                trainer.prepare_predict(source)
        return size

    size = trainer.driver.within_budget(build, sizes, smaller=smaller)
    outputs = None
    for start in range(0, n, size):
        outputs, arrays = trainer.predict(read(start, size))
        parts.append(arrays)
    return outputs


def _inputs(x: Any) -> tuple[int, Read]:
    """The rows to predict: their number, and how they are read. DataError for none."""

    def one(key: Key, what: Any) -> np.ndarray:
        array = numbers(place("x", key), what)
        if array.ndim == 0 or not len(array):
            seen = f"{place('x', key)} has shape {list(array.shape)}"
            raise DataError(f"predict: {seen}; need rows along the first axis")
        return array

    found = as_several("x", x)
    rows = one(None, x) if found is None else mapped_by_key(one, found)
    return check_rows("x", rows), lambda first, count: mapped(itemgetter(slice(first, first + count)), rows)


def _sizes(batch_size: int | None, rows: int, default: int = 500) -> tuple[list[int], list[int]]:
    """The rows to compute at once: (the given number, or numbers to try in this order, from the default on; those that
    an error may propose)."""
    if batch_size is not None:
        check_batch(batch_size)
    most = min(batch_size or default, max(rows, 1))
    halved = [*halves(most)]
    return ([most, *halved], []) if batch_size is None else ([most], halved)


def _validation_sets(
    val: Data | Mapping[str, Data] | None, is_split: bool, use: FitOptions, ranks: Communicator | None
) -> dict[str, Dataset | Stream]:
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
    return {
        name: validation_stream(one, name, use, ranks) if is_stream(one) else as_dataset(one)
        for name, one in sets.items()
    }


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
        raise DataError("fit: data is missing; requires a Dataset, a pair (x, y), an array or an iterable of batches")


def as_dataset(data: Data | None, of_batches: bool = True) -> Dataset:
    """The data set itself, or one of (x, y) or of an array without labels. of_batches: the caller takes an iterable of
    batches, too."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, np.ndarray):
        return Dataset(data)
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return Dataset(*data)
    if is_row_maker(data):
        return MapDataset(data)
    use = "; use gl.data.read_table(data).train" if is_table(data) or isinstance(data, (str, os.PathLike)) else ""
    if isinstance(data, Mapping):
        use = " (gl.data.Dataset(data) of several inputs, gl.data.read_table(pandas.DataFrame(data)).train of columns)"
    use = "; use loader.dataset" if isinstance(data, DataLoader) else use
    need = (
        "a Dataset, a pair (x, y), an array, or an iterable of batches"
        if of_batches
        else "a Dataset, a pair (x, y) or an array"
    )
    raise DataError(f"data: got {type(data).__name__}; need {need}{use}")
