"""Run identity: every setting and input that affects result bits, and the names of inputs and outputs.

settings     plain values, compared at once: names and shapes of the model, the graphs of steps, evaluations and
             metrics, optimiser, sizes, seeds, rows; in dicts of one level, records: of a table (names and order of
             columns, classes, separator, scaling, units: Dataset.records), of a language model (tokenizer, tensors)
files        the digests of the files that a command has read. Where only they differ, a run continues: what was read of
             the files is the same
digests      of the contents of the data set and of frozen weights: taken beside the training
environment  version, instruction set, precision, flush, backend: another one goes on, and no bits are promised
"""

from __future__ import annotations

import functools
import platform
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..base.finetune_options import TuneOptions
from ..base.options import default_bits
from ..base.record import difference, differences, flat
from ..base.settings import switches
from ..base.training_options import TrainerOptions
from ..data.dataset import Dataset
from ..graph.graph import reachable, storage_leaf
from ..graph.stored import Stored
from ..graph.structure import digests
from ..graph.value import Value
from ..optim.optimizer import Optimizer
from ..parallel.communicator import checksum
from ..plan.schedule import Schedule
from ..run.backend import is_device, make_of
from ..run.cpu_backend import isa_of
from ..step.state import shown
from .batches import CompiledBatch
from .callbacks import Callback, Callbacks
from .evaluation import Evaluator
from .history import History
from .metrics import Measures
from .module_state import attributes_kept
from .trainer import Trainer

SHOWN = 8  # differences in a message
EARLIER = {"precision": "f32", "flush": "False"}  # of the environment, where a checkpoint was written before the choice
DEFAULTS = default_bits(TrainerOptions, TuneOptions)  # a checkpoint lacks options that its version did not have
BUILDS = 4  # of a dynamic graph: does it change by itself?
GRAPHS = {
    "graph": "the graph of a step differs",
    "micro-batch": "the graph of a step differs",
    "evaluation graph": "the graph of an evaluation differs",
}
OPTION = "--"  # of a command
FILES = "files"  # a record, of digests
TABLE, SCALING = "table.", "scaling."  # records; scaling follows from the data
ATTRIBUTES = "attributes."  # of modules: they tell why a graph differs, and alone are no difference
POINTS = [(step, 0) for step in (0, 1, 2, 5, 10, 20, 50, 100, 1000, 10_000, 100_000)]
POINTS += [(0, epoch) for epoch in (1, 2, 5, 10, 20, 50, 100)]


class Resumable(Protocol):
    """What a loop shows of itself: see gl.train.Loop."""

    trainer: Trainer
    data: Dataset
    train_rows: np.ndarray
    val_rows: np.ndarray
    batch_size: int
    micro_batch_size: int
    seed: int
    callbacks: Callbacks
    evaluator: Evaluator
    measures: Measures
    about: dict[str, Any]
    contents: dict[str, Callable[[], Sequence[Any]]]
    ends: list[int]
    steps: int
    steps_total: int
    history: History
    stopped: bool

    @property
    def is_between_passes(self) -> bool: ...


def optimizer_of(optimizer: Optimizer) -> dict[str, Any]:
    """Kind and settings of an optimiser, schedules as text."""
    settings = {name: _schedule(v) if callable(v) else float(v) for name, v in sorted(optimizer.settings.items())}
    return {"kind": type(optimizer).__name__, **settings}


def _schedule(schedule: Callable[[int, int], float]) -> str:
    """A schedule as text: a function by its name and what it gives at some steps and epochs."""
    if not isinstance(schedule, (types.FunctionType, types.MethodType, functools.partial)):
        return shown(schedule)
    name = shown(schedule.func if isinstance(schedule, functools.partial) else schedule)
    return f"{name} ({', '.join(_rate(schedule, *point) for point in POINTS)})"


def _rate(schedule: Callable[[int, int], float], step: int, epoch: int) -> str:
    at = f"at epoch {epoch}" if epoch else f"at step {step}"
    try:
        return f"{float(schedule(step, epoch))!r} {at}"
    except Exception as error:  # such as one that reads a table, which ends
        return f"{type(error).__name__} {at}"


def settings_of(trainer: Trainer) -> dict[str, Any]:
    """The part of a trainer: texts and numbers, in dicts of one level."""
    objective, optimizer = trainer.objective, trainer.optimizer
    weights = objective.class_weights
    return {
        "loss": objective.loss if isinstance(objective.loss, str) else shown(objective.loss),
        "model": {name: f"{p.dtype.name}{list(p.shape)}" for name, p in objective.named().items()},
        "frozen": sorted(name for name, p in objective.named().items() if not p.trainable),
        "optimizer": optimizer_of(optimizer),
        "accumulate": trainer.accumulate,
        **trainer.bits,
        "class_weights": None if weights is None else weights.tolist(),
        "dynamic": trainer.dynamic,
    }


def environment_of(options: Mapping[str, Any], runs: Sequence[Any] = (), places: Sequence[str] = ()) -> dict[str, str]:
    """What the bits depend on besides: version, instruction set, precision, flush, backend, machine. options: of
    compile; runs: what was compiled with them, for programs on several devices. places: of replicas, whose
    options name none."""
    from .. import __version__

    chosen = switches(**{name: options.get(name) for name in ("isa", "precision", "flush")})
    schedules = [run.plan for run in runs if isinstance(run.plan, Schedule)]
    said = dict.fromkeys(device for schedule in schedules for device in schedule.parts)
    names = [*options.get("devices", places)] or sorted(said) or [str(options.get("backend", "cpu"))]
    isa = isa_of(names, chosen.isa)
    return {
        "gradloom": __version__,
        "backend": ", ".join(names),
        **({"isa": isa} if isa else {}),
        **_device(names),
        **({"placement": _placement(schedules)} if schedules and len(names) > 1 else {}),
        "precision": chosen.precision,
        "flush": str(chosen.flush),
        "machine": platform.machine(),
    }


def _device(names: Sequence[str]) -> dict[str, str]:
    """What backends of devices run on: another adapter or driver gives other bits."""
    makes = [make_of(name) for name in names if is_device(name)]
    return {"device": ", ".join(makes)} if makes else {}


def _placement(schedules: Sequence[Schedule]) -> str:
    """Which node runs where, as a checksum."""
    where = [schedule.device.get(node, "") for schedule in schedules for node in schedule.program.nodes]
    return checksum(*where) if where else "one device"


class Identity:
    """The identity of a run: settings, texts and numbers in dicts of one level; environment; functions that give what
    the digests are taken of; and in words what is not compared."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        contents: Mapping[str, Callable[[], Any]],
        unknown: Sequence[str] = (),
    ) -> None:
        self.settings, self.environment, self._contents = dict(settings), dict(environment), contents
        self.unknown = list(unknown)
        self._digests: dict[str, str] | None = None

    def digests(self) -> dict[str, str]:
        """Of the data set and of what the steps only read, by content. Taken once."""
        if self._digests is None:
            self._digests = {name: checksum(*contents()) for name, contents in self._contents.items()}
        return self._digests

    def about(self) -> dict[str, Any]:
        """What a checkpoint says of it, but for the digests."""
        return {"settings": self.settings, "environment": self.environment}

    def differences(self, about: Mapping[str, Any]) -> list[str]:
        """What differs from the run of a checkpoint, each as "name is ... and was ...": the options of a command, where
        some differ, in place of all that follows from them."""
        theirs, found = about["settings"], self._differences(about)
        options = [
            f"{name} is {value} and was {theirs[name]}"
            for name, value in self.settings.items()
            if name.startswith(OPTION) and theirs.get(name, value) != value
        ]
        found = options if found and options else found
        return [*found[:SHOWN], f"{len(found) - SHOWN} more"] if len(found) > SHOWN else found

    def _differences(self, about: Mapping[str, Any]) -> list[str]:
        same_version = about["environment"].get("gradloom") == self.environment["gradloom"]
        missing, known = {FILES, *self.missing(about)}, about["settings"]
        lost = {n: v for n, v in known.items() if isinstance(v, dict) and n not in self.settings and n != FILES}
        mine, theirs = (
            flat({name: value for name, value in settings.items() if name not in missing and name not in lost})
            for settings in (self.settings, known)
        )
        theirs = {name: value for name, value in DEFAULTS.items() if name in mine and mine[name] == value} | theirs
        crossed = {mine.get("exchange"), theirs.get("exchange")} == {"none", "ordered"}
        without = {"exchange", "graph"} if crossed else set()  # ranks end a step by another graph, with the same bits
        every = [name for name in {**mine, **theirs} if name not in without and not name.startswith(OPTION)]
        names = [name for name in every if mine.get(name) != theirs.get(name)]
        built = [name for name in names if name in GRAPHS or name.startswith("metric ")]
        named = [n for n in names if n not in built and n != "rows" and not n.startswith((ATTRIBUTES, SCALING))]
        found = [_difference(name, mine, theirs) for name in named]
        found += differences({}, {name: value for name, value in lost.items() if f"{name}." != SCALING})
        if crossed and mine.get("statistics"):
            was, now = ("with", "without") if mine["exchange"] == "none" else ("without", "with")
            what = "running statistics (batch norm) are another thing there"
            found.append(f"the run was begun {was} parallel= and is resumed {now}: {what}")
        if not found:  # what has no name of its own
            found += ["the rows differ"] if "rows" in names else []
        if not found and same_version:  # another one may build other graphs
            metrics = [f"the {name} differs" for name in built if name not in GRAPHS]
            graphs = list(dict.fromkeys(GRAPHS[name] for name in built if name in GRAPHS))
            why = [
                _difference(name, mine, theirs)
                for name in names
                if name.startswith(ATTRIBUTES) and name in mine and name in theirs
            ]
            found += metrics or [f"{text} ({', '.join(why[:SHOWN])})" if why else text for text in graphs]
        saved = about.get("digests", {})
        differ = [
            f"the {what} differ ({digest}, was {saved[what]})"
            for what, digest in (self.digests() if saved else {}).items()
            if saved.get(what, digest) != digest  # a checkpoint of an older version may not tell of it
            and not ("folds" in names and what in ("data", "validation sets"))  # which hold the folds of their rows
        ]
        if not found and not differ:  # a column of another scale may have the same features
            differ = [_difference(name, mine, theirs) for name in names if name.startswith(SCALING)]
        return [*found, *differ, *(self.other_files(about) if len(missing) > 1 else [])]

    def missing(self, about: Mapping[str, Any]) -> list[str]:
        """The records that the checkpoint of an earlier version does not hold."""
        theirs = about["settings"]
        return [name for name, value in self.settings.items() if isinstance(value, dict) and name not in theirs]

    def other_files(self, about: Mapping[str, Any]) -> list[str]:
        """The files whose bytes differ from those that the run has read."""
        mine, theirs = self.settings.get(FILES, {}), about["settings"].get(FILES, {})
        both = [name for name in mine if isinstance(theirs, dict) and name in theirs]
        return differences({f"the file of {n}": mine[n] for n in both}, {f"the file of {n}": theirs[n] for n in both})

    def other_environment(self, about: Mapping[str, Any]) -> list[str]:
        """What differs and lets the run go on, without the promise of the same bits."""
        theirs = about["environment"]
        return [
            f"{name} is {value} and was {theirs.get(name)}"
            for name, value in self.environment.items()
            if theirs.get(name, EARLIER.get(name, value)) != value
        ]


def identity_of(loop: Resumable) -> Identity:
    """That of a loop; its steps and evaluations are compiled now."""
    trainer, source = loop.trainer, loop.trainer.source(loop.data)
    sizes = {"batch_size": loop.batch_size, "micro_batch_size": loop.micro_batch_size}
    attributes = trainer.modules.built()
    steps, graphs = _built(loop)
    values = [v for step in steps for v in (*step.outputs, *step.updates, *step.run.effects)]
    settings = {
        **loop.about,
        **loop.data.records,
        **settings_of(trainer),
        **sizes,
        "attributes": attributes,
        "seed of the rows": loop.seed,
        "training rows": len(loop.train_rows),
        "validation rows": len(loop.val_rows),
        "rows": checksum(loop.train_rows, loop.val_rows),
        "evaluation": loop.evaluator.settings,
        "callbacks": [shown(each) for each in loop.callbacks if each.steers],
        **graphs,
        "statistics": any(stored not in trainer.state for stored in trainer.written()),  # running ones are written
    }
    leaves = {n.attrs["stored"]: None for n in reachable(values) if isinstance(n.attrs.get("stored"), Stored)}
    written = {storage_leaf(v).node.attrs["stored"] for step in steps for v in step.run.effects}
    known = {*trainer.train_state.arrays().values(), *written, *source.stored, source.order}
    constant = [stored for stored in leaves if stored not in known]
    data, sets = source.arrays, loop.evaluator.arrays
    contents: dict[str, Callable[[], Any]] = {
        "data": lambda: data,
        "validation sets": lambda: sets,
        "frozen weights": lambda: [checksum(one.name, one.dtype.name, one.read()) for one in constant],
        **loop.contents,
    }
    unknown = [] if graphs else ["the model's graph (dynamic=True: it is another one from call to call)"]
    unknown += [f"the metric {name} (whole=True)" for name, metric in loop.evaluator.measures.metrics if metric.whole]
    own = [each for each in loop.callbacks if each.steers and not type(each).__module__.startswith("gradloom.")]
    told_by_name = (object.__repr__, Callback.__repr__)  # whose text is not of what it does
    unknown += [f"the callback {type(each).__name__}" for each in own if type(each).__repr__ in told_by_name]
    environment = environment_of(trainer.options, [step.run for step in steps])
    return Identity(settings, environment, contents, unknown)


def _built(loop: Resumable) -> tuple[list[CompiledBatch], dict[str, str]]:
    """The steps of a pass and of an evaluation; and digests by name: of all that the steps compute, of the losses and
    gradients of micro-batches, of evaluations, and of each metric. None where the graphs change by themselves.

    With ranks a step is ended by another graph, with the same bits; its micro-batches are the same.
    """
    trainer, source, rows = loop.trainer, loop.trainer.source(loop.data), len(loop.train_rows)

    def once() -> tuple[list[CompiledBatch], dict[str, str]]:
        trained = trainer.prepare(
            source, 0, rows, batch_size=loop.batch_size, micro_batch_size=loop.micro_batch_size, measures=loop.measures
        )
        measured = loop.evaluator.prepare(loop.micro_batch_size)
        return trained, _digests(trained, measured)

    if not trainer.dynamic:
        return once()
    with attributes_kept(trainer.model, trainer.loss):
        steps, graphs = once()
        return (steps, graphs) if all(once()[1] == graphs for _ in range(BUILDS - 1)) else ([], {})


def _digests(trained: Sequence[CompiledBatch], measured: Sequence[CompiledBatch]) -> dict[str, str]:
    values = [v for step in trained for v in (*step.outputs, *step.updates, *step.run.effects)]
    metrics: dict[str, list[Value]] = {}
    for step in measured:
        extra = iter(step.extra(step.outputs))
        for name in step.layout.per_row:
            metrics.setdefault(f"metric {name}", []).append(next(extra))
        for name in step.layout.pairs:
            metrics.setdefault(f"metric {name}", []).extend((next(extra), next(extra)))
    return {
        "graph": checksum(*digests(values)),
        "micro-batch": checksum(*_distinct([[*step.outputs[:2], *step.grads] for step in trained])),
        "evaluation graph": checksum(*_distinct([step.outputs[:2] for step in measured])),
        **{name: checksum(*sorted(set(digests(values)))) for name, values in metrics.items()},
    }


def _distinct(each: Sequence[Sequence[Value]]) -> list[str]:
    """The digests of graphs, each once: how many were compiled decides nothing."""
    return sorted({" ".join(digests(values)) for values in each})


def _difference(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How a setting differs, in the words of base/record.py."""
    return difference(name.removeprefix(TABLE).removeprefix(ATTRIBUTES), mine.get(name), theirs.get(name))
