"""The folder of a run: run.json, one writer, and resuming or replacing the run that it holds.

    run.json            this file's: kind and state of the run, when, step and epoch, its numbers, versions
    checkpoints/        checkpoint.py
    settings.toml, metrics.jsonl, ...    files.py: OWN has all names

A run begins to write with its first completed step. Where the folder holds an older run, the files of the new one are
in .gradloom.new until its first checkpoint is complete; then they replace the old ones (files.py).
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import platform
import re
import socket
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..base.arguments import as_bool
from ..base.clock import utc
from ..base.described import Described, parse_object
from ..base.errors import DataError, FileError, GradloomError, SettingError
from ..base.json_facts import RUN
from ..base.locks import Lock
from ..base.reasons import unwritten
from ..base.terminal import in_one_line
from ..files.atomic import atomic_inside, claim, write_inside
from ..files.checkpoint_files import Saved, manifests, plain, remove_unnamed
from ..files.inside import opened
from ..files.lock import is_locked
from .checkpoint import Checkpoints, print_line, reason
from .files import CLEAR, MOVE, NEW, OWN, PLACES, check_appended, check_files, lost, recover, remove, replace_old

_LONGEST_ERROR = 2000  # characters in run.json
KINDS = ("fit", "finetune", "loop", "dp_train")
STATES = ("running", "finished", "interrupted", "failed")
_MOST_FOLDERS = 10_000
_RUN_BYTES = 1 << 20  # of run.json
_open: weakref.WeakValueDictionary[Path, RunFolder] = weakref.WeakValueDictionary()  # of this process, by their folders


class RunFolder:
    """The folder of one run; no other run can write to it until `end`.

    resume     continue from the newest checkpoint: `resumed`. Without any the run starts anew, which is printed
    overwrite  an unfinished run in the folder is replaced, as a finished one always is, as soon as there is a
               checkpoint of this one. Without both arguments an unfinished run that has a checkpoint is a FileError
    keep, on_error   see Checkpoints
    on_line    called with each line for the user

    FileError also where another run writes there, where a run of another kind is to be resumed, or one of whose
    checkpoints none can be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: str,
        *,
        resume: bool = False,
        overwrite: bool = False,
        keep: int = 3,
        on_error: str = "warn",
        on_line: Callable[[str], object] = print_line,
    ) -> None:
        if kind not in KINDS:
            raise SettingError(setting="kind", seen=kind, need=f"one of {', '.join(KINDS)}")
        resume, overwrite = as_bool("resume", resume), as_bool("overwrite", overwrite)
        if resume and overwrite:
            raise SettingError("{resume} and {overwrite} are mutually exclusive", resume=..., overwrite=...)
        self.shown, self.kind = Path(path), kind
        self.folder = Path(os.path.realpath(path))
        self.checkpoints = Checkpoints(
            lambda: self._place / "checkpoints", keep, on_error=on_error, on_line=on_line,
            on_begin=self._mark_first, on_saved=self._saved,
        )  # fmt: skip
        self.resumed: Saved | None = None
        self.files: dict[str, Callable[[], bytes]] = {}  # written with run.json, before the first checkpoint
        self.appended: list[str] = []  # files that lines are added to: there with run.json, empty until the first line
        self.saved: collections.deque[Path] = collections.deque()  # checkpoints that no event has reported yet
        self._print = on_line
        self._lock = Lock()  # of the files' places
        self._marked = self._ended = False
        self.failure: GradloomError | None = None  # the training is done, its last checkpoint could not be written
        self._about: dict[str, Any] = {"kind": kind, "state": "running", "begun": _now(), "ended": None}
        self._about |= {"step": 0, "epoch": 0, "latest": {}, "best": {}, "versions": _versions(), "went_on": []}
        self._claim = contextlib.ExitStack()
        if self.folder in _open:
            raise FileError(f"{path}: another run of this process is writing there; need another place")
        self._claim.enter_context(claim(path, True, again=True))
        try:
            _open[self.folder] = self
            self._claim.callback(_open.pop, self.folder, None)
            check_files(self.shown)
            recover(self.folder)
            self._begin(resume, overwrite)
        except BaseException as error:
            self._claim.close()
            if isinstance(error, OSError):
                raise FileError(f"{path}: {unwritten(error)}") from None
            raise

    def _begin(self, resume: bool, overwrite: bool) -> None:
        """Read the present files; decide whether the run is resumed, replaced or refused."""
        old, (listed, bad) = _read(self.folder / "run.json"), manifests(self.folder / "checkpoints")
        steps = [one.step for one in listed] or sorted(bad, reverse=True)  # the newest first
        state = "unfinished" if old is None or old["state"] == "running" else old["state"]
        gone = lost(self.folder, 0 if old is None else old["step"])
        if not gone:
            with contextlib.suppress(OSError, FileError):
                remove_unnamed(self.folder / "checkpoints")
        self._staged = False
        check_appended(self.shown)
        if resume:
            self.resumed = self.checkpoints.latest()
            if self.resumed is not None:
                if gone:
                    what = f"the manifest of the checkpoint of step {gone[-1]} is gone"
                    self._print(f"{self.shown}: {what}; that of step {self.resumed.step} is used")
                if old is not None and old["kind"] != self.kind:
                    raise FileError(f"{self.shown}: holds a run of {old['kind']}; need a run of {self.kind} to resume")
                kept = ("begun", "epoch", "latest", "best", "went_on")
                self._about |= {key: old[key] for key in kept if key in old} if old is not None else {}
                self._about["step"] = self.resumed.step
                return
            if steps:
                need = "need a readable one, or --overwrite (overwrite=True) to start anew"
                raise FileError(f"{self.shown}: holds checkpoints, and none of them can be read; {need}")
            self._need_manifests(gone)
            self._print(f"{self.shown}: there is no checkpoint to resume from; the run starts anew")
        elif steps and state != "finished" and not overwrite:
            at = f"at step {steps[0]}" if state == "unfinished" else f"{state} at step {steps[0]}"
            need = "need --resume to continue it or --overwrite to replace it (resume=True, overwrite=True)"
            raise FileError(f"{self.shown}: holds a run that has not finished ({at}); {need}")
        elif state != "finished" and not overwrite:
            self._need_manifests(gone)
        self._staged = old is not None or bool(steps or gone)
        if self._staged and not resume:
            what = "finished run" if state == "finished" else "unfinished run"
            self._print(f"{self.shown}: the {what} in it is replaced at the first checkpoint of this one")

    def _need_manifests(self, gone: list[int]) -> None:
        """FileError where the checkpoints of these steps have lost their manifests, and there is no other one."""
        if gone:
            what = f"holds the arrays of a checkpoint (step {gone[-1]}) without its manifest"
            need = f"need step-{gone[-1]:06d}.json back, or --overwrite (overwrite=True) to start anew"
            raise FileError(f"{self.shown}: {what}, and no other checkpoint; {need}")

    # ---- where files are -----------------------------------------------------------------------------------

    @property
    def _place(self) -> Path:
        """The folder of this run's files now."""
        with self._lock:
            if self._staged:
                for name in (MOVE, CLEAR):
                    if os.path.lexists(self.folder / name):
                        return self.folder / name
                return self.folder / NEW
            return self.folder

    def path(self, name: str) -> Path:
        """Where a file or folder of the run is now: one of OWN. To be called when there is something to write, after a
        completed step: it writes run.json. The path changes when the run replaces an older one; an open file stays
        open."""
        if name not in OWN:
            raise SettingError(setting="name", seen=name, need=f"one of {', '.join(OWN)}")
        with self._lock:
            self._mark()
            return self._place / name

    # ---- run.json ------------------------------------------------------------------------------------------

    def note(
        self,
        step: int | None = None,
        epoch: int | None = None,
        latest: Mapping[str, Any] | None = None,
        best: Mapping[str, Any] | None = None,
    ) -> None:
        """Progress of the run: plain values for run.json, which is written with the next checkpoint and at the end.
        latest, best: numbers by their names, such as {"loss": 0.1, "val_loss": 0.2}."""
        given = {"step": step, "epoch": epoch, "latest": latest, "best": best}
        new = plain({key: value for key, value in given.items() if value is not None})
        with self._lock:
            self._about.update(new)

    def note_other(self, environment: Sequence[str]) -> None:
        """Record in run.json that the run was resumed in another environment, such as "precision is bf16 and was f32":
        its bits are not reproducible in one environment."""
        with self._lock:
            self._about["went_on"] = [
                *self._about["went_on"],
                f"from step {self._about['step']}: {'; '.join(environment)}",
            ]

    def _mark(self) -> None:
        """Write run.json, settings and empty logs, at the first call."""
        if not self._marked:
            with self._lock:
                try:
                    with opened(self._place, create=True) as place:
                        for name, make in self.files.items():
                            with atomic_inside(place, name) as out:
                                out.write(make())
                        for name in self.appended:
                            os.close(place.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
                    self._write()
                except OSError as error:
                    raise FileError(f"{self.shown}: {unwritten(error)}") from None
                self._marked = True

    def _mark_first(self) -> None:
        """Before the files of a checkpoint: where its manifest is, run.json and the settings are, too. Where they
        cannot be written the checkpoint is saved anyway, and `_saved` reports the reason."""
        with contextlib.suppress(OSError, FileError, MemoryError):
            self._marked = self._marked and (self._place / "run.json").exists()  # not if the folder was removed
            self._mark()

    def _write(self) -> None:
        about = {**self._about, "pid": os.getpid(), "host": socket.gethostname()}
        write_inside(self._place / "run.json", json.dumps(RUN.named({"format": 1, **about}), indent=1).encode() + b"\n")

    def _saved(self, manifest: Path) -> None:
        """A checkpoint is complete, with or without run.json; called in the thread of its writer."""
        with self._lock:
            self._about["step"] = max(self._about["step"], int(re.sub(r"\D", "", manifest.name)))
            failed = self._try_write()
            if self._staged:
                try:
                    replace_old(self.folder)
                except (OSError, FileError, MemoryError) as error:
                    what = f"the older run in {self.shown} was not replaced yet"
                    raise FileError(f"{what}: {reason(error)}") from None
                self._staged = False
                failed = failed and self._try_write()  # the old run's files took room
        if failed is not None:
            self._print(f"{self.shown}: run.json cannot be written: {failed}; the training continues")
        self.saved.append(self.folder / "checkpoints" / manifest.name)

    def _try_write(self) -> str | None:
        """Write run.json; returns the reason, where that fails."""
        try:
            self._mark()
            self._write()
        except (OSError, FileError, MemoryError) as error:
            return reason(error)
        return None

    def end(self, state: str, error: BaseException | None = None, **numbers: Any) -> None:
        """The run has ended: finished, interrupted or failed. Wait for the writer of checkpoints, update run.json
        (error: of a run that failed; numbers: as for `note`) and release the folder. A run that has written nothing
        leaves nothing, and the old run stays. A finished run whose last checkpoint could not be written is marked as
        failed, `failure` has the error, and a line is printed: it can be resumed from the one before. Only the first
        call has an effect."""
        if state not in STATES[1:]:
            raise SettingError(setting="state", seen=state, need=f"one of {', '.join(STATES[1:])}")
        if self._ended:
            return
        self._ended = True
        try:
            self.note(**numbers)
            self.checkpoints.close()
        finally:
            with self._lock, self._claim:
                lost = self.checkpoints.lost
                if state == "finished" and lost is not None:
                    last = self.checkpoints.last
                    newest = "it has no checkpoint" if last is None else f"its newest checkpoint is that of step {last}"
                    self._print(f"{self.shown}: the training is done, its end (step {lost}) was not saved; {newest}")
                    state, self.failure = "failed", self.checkpoints.failure
                self._about |= {"state": state, "ended": _now()}
                if state == "failed" and (why := error or self.failure) is not None:
                    self._about["error"] = _text_of(why)
                try:
                    saved = self._staged and bool(manifests(self._place / "checkpoints")[0])  # not in its place yet
                    if saved or (self._staged and self._marked and state == "finished"):  # its result is to come
                        self._write()
                        replace_old(self.folder)
                        self._staged = False
                    elif self._staged:
                        remove(self.folder / NEW, everything=True)
                    elif self._marked or (self.resumed is not None and state == "finished"):  # nothing was left to do
                        self._write()
                except (OSError, FileError, MemoryError) as error:
                    self._print(f"{self.shown}: run.json cannot be written: {reason(error)}")

    def fail(self, error: BaseException) -> None:
        """Mark the run, which has ended, as failed: its result could not be saved. The error of a run that is marked
        already stays, and so does an older run that this one has not replaced."""
        with self._lock:
            if not self._staged:
                self._about["state"] = "failed"
                self._about.setdefault("error", _text_of(error))
                if (why := self._try_write()) is not None:
                    self._print(f"{self.shown}: run.json cannot be written: {why}")

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.end("finished")
        else:
            self.end("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed", error)


def _text_of(error: BaseException) -> str:
    return in_one_line(f"{type(error).__name__}: {error}", _LONGEST_ERROR)


def _now() -> str:
    return utc(time.time())


def _versions() -> dict[str, str]:
    from .. import __version__

    return {"gradloom": __version__, "numpy": np.__version__, "python": platform.python_version()}


# ---- reading a run ---------------------------------------------------------------------------------------------------


def read_run(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The content of run.json: kind, state, begun, ended (ISO 8601, UTC), pid, host, step, epoch, latest, best,
    versions, went_on (where it was resumed in another environment), error (of a run that failed). None where there is
    none that can be read. For a run whose process was killed the state is still "running"."""
    return _read(Path(folder) / "run.json")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with opened(path.parent) as folder, folder.read(path.name) as file:
            about = parse_object(file.read(_RUN_BYTES).decode(), "run.json")
        found = Described(about, "run.json")
        found.whole("format", 1), found.text("kind", KINDS), found.text("state", STATES), found.text("begun")
        found.whole("step", 0), found.whole("epoch", 0), found.whole("pid", 0), found.text("host")
        found.part("latest"), found.part("best"), found.part("versions")
        if about.get("ended") is not None:
            found.text("ended")
        if "went_on" in about:
            found.texts("went_on")
        if "error" in about:
            found.text("error")
    except (OSError, UnicodeDecodeError, FileError, DataError):
        return None
    return about


def note_output(folder: str | os.PathLike[str], path: str | os.PathLike[str], digest: str) -> None:
    """Record in run.json of a run that has ended which adapter or model it has saved. No effect where there is no
    run.json. FileError where it cannot be written."""
    about = read_run(folder)
    if about is None:
        return
    about["output"] = {"path": os.fspath(path), "digest": digest}
    try:
        write_inside(Path(folder) / "run.json", json.dumps(about, indent=1).encode() + b"\n")
    except OSError as error:
        raise FileError(f"{os.fspath(folder)}: run.json: {unwritten(error)}") from None


def runs_in(folder: str | os.PathLike[str], depth: int = 6) -> list[tuple[Path, dict[str, Any]]]:
    """The runs in a folder and below it, (their folder, the result of read_run), in the order of their begin; one whose
    process was killed is "interrupted". At most `depth` folders deep and _MOST_FOLDERS in all; links are not followed,
    nor folders whose names begin with a dot."""
    found, level, seen = [], [Path(folder)], 0
    for _ in range(depth + 1):
        below: list[Path] = []
        for path in level[: _MOST_FOLDERS - seen]:
            seen += 1
            about = next((a for name in PLACES if (a := read_run(path / name)) is not None), None)
            if about is not None:
                if about["state"] == "running" and not is_locked(path, True):
                    about["state"] = "interrupted"
                found.append((path, about))
            below += _folders(path, OWN if about is not None else ())
        level = below
    return sorted(found, key=lambda run: (run[1]["begun"], run[0]))


def _folders(path: Path, without: Collection[str]) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except OSError:
        return []
    return [path / name for name in names if name not in without]
