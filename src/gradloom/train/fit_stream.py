"""How gl.fit, gl.evaluate and gl.predict use an iterable of batches: its settings, and its place in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..base.arguments import what_is
from ..base.errors import DataError, SettingError, TrainError
from ..base.fit_options import FitOptions
from ..base.messages import log
from ..data.dataset import Dataset
from ..parallel.agree import is_root, share_of
from ..parallel.communicator import Communicator
from ..runs.saver import Saver
from ..runs.state import need_schema
from .class_weight import ClassWeight, weights_by_class
from .evaluation import EvaluatedSet
from .inputs import takes_several
from .stream import STREAM, Stream, holds_array
from .stream_loop import Sources, StreamLoop, StreamSet
from .trainer import Trainer

_AGAIN = "such as a function that returns a new iterator (lambda: batches()), a list or a DataLoader"


class FitStream:
    """The batches of an iterable, and how gl.fit trains on them.

    accumulate  micro-batches of a step; steps: optimiser steps in all, 0 where they are not known; compared: settings
                that all ranks must have
    """

    def __init__(
        self, data: Any, val_sets: Mapping[str, Dataset | Stream], use: FitOptions, given: Mapping[str, Any],
        saver: Saver | None, ranks: Communicator | None,
    ) -> None:  # fmt: skip
        """given: the arguments that the caller has named."""
        _refuse_of_rows(use, given)
        self.stream, self._val_sets = Stream(data, "data", ranks), val_sets
        self._epochs, self._per_epoch = use.epochs, use.steps_per_epoch
        _check_epochs(self.stream, use)
        self._share = partial(share_of, ranks=ranks)
        if saver is not None:
            _prepare_resume(self.stream, saver, ranks)
        first = self.stream.first_of_run()
        micro = use.micro_batch_size
        if micro is None and saver is not None:
            micro = saver.size("micro_batch_size", first.rows)
        self._micro = None if micro == self._share(first.rows) else micro
        self.accumulate = 1 if self._micro is None else max(2, -(-first.rows // self._micro))
        self.compared = {"steps_per_epoch": use.steps_per_epoch}
        self._count = self.stream.count
        per_epoch = use.steps_per_epoch or self._count
        self.steps = 0 if per_epoch is None else use.epochs * per_epoch

    def class_weights(self, class_weight: ClassWeight) -> np.ndarray | None:
        """The weight of each class."""
        if class_weight is None:
            return None
        if isinstance(class_weight, (str, Mapping)):
            seen = class_weight if isinstance(class_weight, str) else "a dict"
            text = f"{{class_weight}} is {seen}; the classes of an iterable of batches are not known: must be a list"
            raise SettingError(f"{text} with the weight of each class", setting="class_weight")
        labels = self.stream.example().labels
        if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
            raise DataError("class_weight: requires batches with one array of class ids as labels")
        return weights_by_class(class_weight, int(labels.max(initial=0)) + 1)

    def loop(self, trainer: Trainer, **settings: Any) -> StreamLoop:
        """The loop over these batches."""
        sources = Sources(self.stream, trainer.objective.looks_at_labels)
        return StreamLoop(
            trainer, sources, epochs=self._epochs, per_epoch=self._per_epoch, micro_batch_size=self._micro,
            share=self._share, val_sets=evaluated(self._val_sets, trainer),
            about={
                "batches": self.stream.kinds, "number of batches": self._count or 0,
                "steps per epoch": self._per_epoch or 0,
            },
            **settings,
        )  # fmt: skip


def _refuse_of_rows(use: FitOptions, given: Mapping[str, Any]) -> None:
    """SettingError for settings that concern the rows of a data set."""
    asked = {"batch_size": "batch_size" in given, "val_split": use.val_split > 0, "folds": use.folds > 0}
    why = {
        "batch_size": "each of them is one optimiser step ({micro_batch_size} limits the rows computed at once)",
        "val_split": "use {val}",
        "folds": "use {val}",
    }  # fmt: skip
    for name, is_asked in asked.items():
        if is_asked:
            text = f"{{{name}}} requires a data set, and data are an iterable of batches: {why[name]}"
            raise SettingError(text, {name: getattr(use, name), "micro_batch_size": ..., "val": ...})


def _check_epochs(stream: Stream, use: FitOptions) -> None:
    """SettingError for more epochs than an iterator gives; DataError for a len() of 0."""
    if stream.is_once and use.epochs > 1 and use.steps_per_epoch is None:
        text = f"{{epochs}}: data are an iterator, which gives one epoch: need data that can be read again, {_AGAIN}"
        raise SettingError(f"{text}; or {{steps_per_epoch}}", epochs=use.epochs, steps_per_epoch=...)
    if stream.count == 0:
        raise stream.empty()


def _prepare_resume(stream: Stream, saver: Saver, ranks: Communicator | None) -> None:
    """Go to the batch at which the run is resumed, and report how it can be resumed."""
    if not stream.way:
        if saver.resume:
            raise SettingError(
                f"{{resume}}: data are an iterator, which cannot be resumed: need data that can be read again, "
                f"{_AGAIN}",
                resume=True,
            )
        if is_root(ranks):
            log.warning(
                f"{saver.path}: data are an iterator: the run cannot be resumed; its weights, logs and reports are kept"
            )
    stream.check_keeps()
    if saver.entries is not None:
        found = {n.removeprefix("stream."): v for n, v in saver.entries.items() if n.startswith("stream.")}
        if not found:
            need = "need a Dataset, or --overwrite (overwrite=True) to start anew"
            raise TrainError(f"{saver.path}: cannot be resumed: it trained on the rows of a data set; {need}")
        need_schema(STREAM, found, "load: stream")
        stream.load(found)
    elif stream.way == "skip" and is_root(ranks):
        log.info(
            f"{saver.path}: a resume reads the batches of its epoch again, which must be the same in each run; "
            "a gl.data.DataLoader, or data with state_dict() and load_state_dict(), continue without that"
        )


def validation_stream(data: Any, name: str, use: FitOptions, ranks: Communicator | None) -> Stream:
    """An iterable of batches as a validation set. SettingError for an iterator, and for eval_rows."""
    stream = Stream(data, f"val {name!r}" if name != "val" else "val", ranks, repeats=True)
    if stream.is_once:
        raise SettingError(
            f"{{val}}: an iterator, which can be read once; each evaluation reads all batches: need data that can be "
            f"read again, {_AGAIN}",
            val=...,
        )
    if use.eval_rows is not None:
        text = "{eval_rows} requires data sets in {val}; an iterable of batches is measured as a whole"
        raise SettingError(text, eval_rows=use.eval_rows, val=...)
    return stream


def evaluated(sets: Mapping[str, Dataset | Stream], trainer: Trainer) -> dict[str, Dataset | EvaluatedSet]:
    """The validation sets as an Evaluator takes them."""
    return {name: StreamSet(trainer, one) if isinstance(one, Stream) else one for name, one in sets.items()}


def measured_stream(data: Any, batch_size: int | None, ranks: Communicator | None) -> Stream:
    """The batches that gl.evaluate measures."""
    if batch_size is not None:
        text = "{batch_size} requires a data set, and data are an iterable of batches"
        raise SettingError(text, batch_size=batch_size, place="evaluate")
    return Stream(data, "data", ranks)


def predicted_batches(data: Any, model: Any) -> Iterator[Any]:
    """The rows of each batch for gl.predict. DataError for batches with labels, and where there is none."""
    made = data if hasattr(data, "__iter__") else data()
    number = 0
    for number, item in enumerate(made, 1):
        is_several = isinstance(item, tuple) and takes_several(model)
        is_parts = isinstance(item, (tuple, list)) and any(map(holds_array, item)) and not is_several
        if is_parts and len(item) > 1:
            seen = f"predict: batch {number} is a {type(item).__name__} of {len(item)}"
            need = "need its rows alone: (x for x, y in batches)"
            raise DataError(f"{seen}; {need} (gl.evaluate reads labels, too)")
        yield item[0] if is_parts else item
    if not number:
        raise DataError(f"predict: {what_is(data)} has no batches; need at least one")
