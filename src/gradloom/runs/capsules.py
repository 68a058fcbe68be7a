"""Capsules of compiled programs: building, saving, loading and replaying them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.arguments import as_bool, need_path
from ..base.errors import PlanError
from ..base.habits import hinted
from ..files.atomic import claim
from ..files.capsule_file import opened_capsule, write_capsule_file
from ..files.targets import check_target, is_stream
from ..run.backend import is_device, make_of
from ..run.capsule import Call, Capsule, Number, Outcome, Planned, Snapshot, source_of, switches_of
from ..run.capsule_format import described, restored
from ..run.capsule_rows import RowCut, gathers_alone
from ..run.cpu_backend import choose_isa
from ..run.feeds import SETTING_DEFAULTS, check_names, leaves
from ..run.replay import OnProgress, Replayed, record
from ..run.replay import replay as replay_capsule
from ..transform.program import Program


@hinted
def capsule(
    run: Any, path: str | os.PathLike[str], feeds: Mapping[str, Any] | None = None, *, data: bool = True
) -> None:
    """Save a compiled program, its inputs, its stored arrays and its results in one file, to replay it elsewhere.

    run: what gl.compile has returned for device "cpu" or "gpu", or the PlanError that it has raised. path: the file,
    usually NAME.capsule. feeds: inputs and settings by name, as the program is called with; not of a PlanError. The
    program runs once, instruction by instruction, on copies: stored arrays keep their contents, and a call that fails
    (NaN) is saved with its error. data=False: inputs, stored arrays and outputs are saved as names, shapes and digests
    alone; such a capsule is planned and proved, and not run. Constants are part of the program and are always saved.
    Raises BackendError for a program of several devices or of the references, FileError where the file cannot be
    written, and the errors of a call for feeds that do not fit.
    """
    need_path(path, "capsule", "path")
    check_target(path)
    save(path, capsule_of(run, feeds or {}), as_bool("data", data))


@hinted
def replay(
    path: str | os.PathLike[str],
    *,
    isa: str | None = None,
    device: str | None = None,
    on_progress: OnProgress | None = None,
) -> Replayed:
    """Run a capsule here and compare the results with the saved ones.

    Returns an object with .agrees, .first (.text names the first difference, None where there is none), .by_bits,
    .same_plan, .steps, .isa, .device, .not_finite (the first instruction whose output is not finite), .error.

    isa, device: where it runs; by default as in the capsule, where this machine has it. On the same instruction set and
    device, bits are compared, else each instruction is held against its float64 definition. on_progress is called with
    (instructions done, all of the call) in the second case. Raises FileError for a file that is no capsule.
    """
    need_path(path, "replay", "path")
    return replay_capsule(load(path), isa, device, on_progress)


def save(path: str | os.PathLike[str], made: Capsule, data: bool = True) -> None:
    """Write a capsule, whole or not at all. FileError where it cannot be written."""
    head, arrays = described(made, data)
    text = json.dumps(head, allow_nan=False, separators=(",", ":")).encode()
    with contextlib.nullcontext() if is_stream(path) else claim(path, is_folder=False):
        write_capsule_file(path, text, arrays)


def load(path: str | os.PathLike[str]) -> Capsule:
    """Read a capsule, which is untrusted. FileError for a file that is none."""
    with opened_capsule(path) as (head, read):
        return restored(head, read)


def origin(device: str, **more: Any) -> dict[str, Any]:
    """Versions and machine, as a capsule states them."""
    from .. import __version__

    about = {
        "gradloom": __version__, "numpy": np.__version__, "python": platform.python_version(),
        "system": platform.platform(),
    }  # fmt: skip
    return about | ({"device": make_of(device)} if is_device(device) else {}) | more


def capsule_of(run: Any, feeds: Mapping[str, Any]) -> Capsule:
    """The capsule of a compiled program, with its results for these feeds; of a PlanError, with the proof's error."""
    program, chosen, device, isa = source_of(run)
    if isinstance(run, PlanError):
        made = Builder(device, chosen, isa or (choose_isa(chosen.isa) if device == "cpu" else ""), proof=str(run))
        made.capsule.programs.append(made.snapshot.of(program))
        return made.finished(runs=False)
    inputs, settings = leaves(program.nodes, "input"), leaves(program.nodes, "setting")
    check_names(feeds, inputs, settings)
    given = run.checked_inputs({key: feeds[key] for key in inputs if key in run.inputs})
    run.check_files()
    built = Builder(device, chosen, isa)
    built.add(program, given, {key: feeds.get(key, SETTING_DEFAULTS.get(key)) for key in settings})
    return built.finished()


class Builder:
    """Collects the calls of one step, with copies of the arrays as they are before the first call."""

    def __init__(self, device: str, chosen: Any, isa: str, proof: str = "", **about: Any) -> None:
        self.snapshot, self.cut, self.proof = Snapshot(), RowCut(), proof
        self.capsule = Capsule([], [], [], [], switches_of(chosen, isa), device, origin(device, **about))
        self.rows: tuple[int, int] | None = None  # of the step, where only these of a data set are saved
        self._numbers: dict[int, int] = {}

    def add(self, program: Program, inputs: Mapping[str, np.ndarray], settings: Mapping[str, Number]) -> None:
        """A call of a program before the passes. settings: others than those of the program are left out."""
        first = None if self.rows is None else self.rows[0]
        if self.rows is not None and not gathers_alone(program):
            first = None
        if id(program) not in self._numbers:
            self._numbers[id(program)] = len(self.capsule.programs)
            cut = program if first is None or self.rows is None else self.cut.of(program, *self.rows)
            self.capsule.programs.append(self.snapshot.of(cut))
        fed = {key: np.array(array, order="C") for key, array in inputs.items()}
        known = leaves(program.nodes, "setting")
        given = _plain({key: settings[key] for key in known})
        if first is not None:
            given["position"] -= first
        self.capsule.calls.append(Call(self._numbers[id(program)], fed, given, Outcome()))

    def finished(self, runs: bool = True) -> Capsule:
        """The capsule, with plans and results. runs: False for plans that the proof rejects."""
        made = self.capsule
        made.stored = list(self.snapshot.stored.values())
        if runs:
            record(made)
        else:
            made.plans = [Planned(error=self.proof) for _ in made.programs]
        return made


def _plain(settings: Mapping[str, Any]) -> dict[str, Number]:
    return {key: np.asarray(value).item() for key, value in settings.items()}
