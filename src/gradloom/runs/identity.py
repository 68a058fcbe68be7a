"""Run identity: every setting and input that affects result bits, and the names of inputs and outputs.

settings     plain values, compared at once: names and shapes of the model, the graphs of steps, evaluations and
             metrics, optimiser, sizes, seeds, rows; in dicts of one level, records: of a table (names and order of
             columns, classes, separator, scaling, units: Dataset.records), of a language model (tokenizer, tensors)
files        the digests of the files that a command has read. Where only they differ, a run is resumed: the rows
             that were read are the same
digests      of the contents of the data set and of frozen weights: computed by the writer's thread
environment  version, instruction set, precision, flush, backend: another one is accepted; bits may differ
"""

from __future__ import annotations

import functools
import platform
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.finetune_options import TuneOptions
from ..base.options import default_bits
from ..base.record import difference, differences, flat
from ..base.settings import switches
from ..base.terminal import in_one_line
from ..base.training_options import TrainerOptions
from ..graph.calls import code_digest
from ..optim.optimizer import Optimizer
from ..parallel.communicator import checksum
from ..plan.schedule import Schedule
from ..run.backend import is_device, make_of
from ..run.cpu_backend import isa_of
from .state import shown

SHOWN = 8  # differences in a message
EARLIER = {"precision": "f32", "flush": "False"}  # of the environment, where a checkpoint was written before the choice
# A checkpoint lacks options that its version did not have
DEFAULTS = default_bits(TrainerOptions, TuneOptions) | {"objective": "Sft()"}
GRAPHS = {
    "graph": "the graph of a step differs",
    "micro-batch": "the graph of a step differs",
    "evaluation graph": "the graph of an evaluation differs",
}
OPTION = "--"  # of a command
FILES = "files"  # a record, of digests
TABLE, SCALING = "table.", "scaling."  # records; scaling follows from the data
ATTRIBUTES = "attributes."  # of modules: named where a graph differs, and ignored otherwise
POINTS = [(step, 0) for step in (0, 1, 2, 5, 10, 20, 50, 100, 1000, 10_000, 100_000)]
POINTS += [(0, epoch) for epoch in (1, 2, 5, 10, 20, 50, 100)]


def optimizer_of(optimizer: Optimizer) -> dict[str, Any]:
    """Kind and settings of an optimiser, schedules as text."""
    settings = {name: _schedule(v) if callable(v) else float(v) for name, v in sorted(optimizer.settings.items())}
    flags = {name: value for name, value in optimizer.flags.items() if name == "state_bits"}  # older runs have none
    own = {} if optimizer.each is None else {"update": code_digest(optimizer.each)}  # of a class of the user's
    return {"kind": type(optimizer).__name__, **settings, **flags, **own}


def _schedule(schedule: Callable[[int, int], float]) -> str:
    """A schedule as text: a function by its name and its values at some steps and epochs."""
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


def environment_of(options: Mapping[str, Any], runs: Sequence[Any] = (), places: Sequence[str] = ()) -> dict[str, str]:
    """Version, instruction set, precision, flush, backend, machine. options: of compile; runs: compiled programs, for
    those on several devices; places: of replicas, whose options name none."""
    from .. import __version__

    chosen = switches(**{name: options.get(name) for name in ("isa", "precision", "flush")})
    schedules = [run.plan for run in runs if isinstance(run.plan, Schedule)]
    devices = dict.fromkeys(device for schedule in schedules for device in schedule.parts)
    names = [*options.get("devices", places)] or sorted(devices) or [str(options.get("backend", "cpu"))]
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
    """The adapters of devices: another adapter or driver gives other bits."""
    makes = [make_of(name) for name in names if is_device(name)]
    return {"device": ", ".join(makes)} if makes else {}


def _placement(schedules: Sequence[Schedule]) -> str:
    """Which node runs where, as a checksum."""
    where = [schedule.device.get(node, "") for schedule in schedules for node in schedule.program.nodes]
    return checksum(*where) if where else "one device"


class Identity:
    """The identity of a run. settings: texts and numbers in dicts of one level; contents: functions that return arrays
    and texts for digests; unknown: texts, inputs that cannot be compared."""

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
        """Digests of the data set and of arrays that the steps only read. Computed once."""
        if self._digests is None:
            self._digests = {name: checksum(*contents()) for name, contents in self._contents.items()}
        return self._digests

    def about(self) -> dict[str, Any]:
        """The entries of a checkpoint, without the digests."""
        return {"settings": self.settings, "environment": self.environment}

    def differences(self, about: Mapping[str, Any]) -> list[str]:
        """Differences from the run of a checkpoint, each as "name is ... and was ...": the options of a command, where
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
        if not found:
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
            if saved.get(what, digest) != digest  # a checkpoint of an older version may lack it
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
        """Differences that a resume accepts; the bits may differ."""
        return environment_differences(self.environment, about["environment"])


def environment_differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Differences from the environment of a checkpoint, each in one line; entries that it lacks are not compared."""
    theirs = EARLIER | {**theirs}
    differ = {name: value for name, value in mine.items() if theirs.get(name, value) != value}
    return [in_one_line(f"{name} is {value} and was {theirs[name]}", 500) for name, value in differ.items()]


def _difference(name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How a setting differs, in the words of base/record.py."""
    return difference(name.removeprefix(TABLE).removeprefix(ATTRIBUTES), mine.get(name), theirs.get(name))
