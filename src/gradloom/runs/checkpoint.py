"""Checkpoints of a run: written by a background thread, read when the run is resumed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..base.arguments import as_whole
from ..base.errors import FileError, GradloomError, SettingError, TrainError
from ..base.messages import log
from ..files.atomic import remove_parts
from ..files.checkpoint_files import (
    Encoded,
    Manifest,
    Saved,
    manifests,
    plain,
    prune,
    read_checkpoint,
    write_checkpoint,
)
from ..files.inside import opened


def print_line(text: str) -> None:
    """A warning in one line."""
    log.warning("gradloom: %s", text)


class Checkpoints:
    """The checkpoints in a folder: the newest `keep` of them, and the best.

    `save` passes copies to a thread that writes, syncs and renames the two files of a checkpoint (see
    files/checkpoint_files.py) and removes old ones. A save waits until the previous one is written: the files depend on
    the settings alone, not on the speed of a disk, and at most one copy of a state waits. The interpreter ends when the
    thread has ended. A forked child cannot save.

    folder     is created if missing; or a function that returns it, called at each save
    on_error   an error of the writer, such as a full disk: "warn", one line, and the next save tries again; "stop", it
               is raised by the next save, wait or close
    on_line    called with such lines, from the writer's thread, too
    on_begin   called by the writer's thread before it writes the files of a checkpoint
    on_saved   likewise with the manifest's path, after each checkpoint that is complete
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | Callable[[], Path],
        keep: int = 3,
        *,
        on_error: str = "warn",
        on_line: Callable[[str], object] = print_line,
        on_begin: Callable[[], object] | None = None,
        on_saved: Callable[[Path], object] | None = None,
    ) -> None:
        if on_error not in ("warn", "stop"):
            raise SettingError(setting="on_error", seen=on_error, need="warn or stop")
        self._folder = folder
        self.keep, self.on_error = as_whole("keep", keep, 1), on_error
        self._print, self._on_begin, self._on_saved = on_line, on_begin, on_saved
        self._process = os.getpid()
        self._idle = threading.Event()  # nothing is being written
        self._idle.set()
        self._writing = threading.Lock()
        self._error: GradloomError | None = None
        self._number: int | None = None  # of the newest checkpoint; None: the folder was not looked at yet
        self.last: int | None = None  # the step of the last checkpoint that was written or read
        self.lost: int | None = None  # the step of the newest state, where it could not be written
        self.failure: GradloomError | None = None  # of the last state that could not be written
        self._closed = False

    @property
    def folder(self) -> Path:
        """Where the files are now."""
        return self._folder() if callable(self._folder) else Path(self._folder)

    # ---- writing -------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        entries: Mapping[str, Any],
        about: Mapping[str, Any],
        best: bool = False,
        digests: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Pass a state to the writer, after the previous one was written.

        entries: "part.name" -> array, number, text, None, or a list, tuple or dict of such; the arrays are copies that
        are not written any more. about: plain values. digests: called by the writer's thread; its result joins
        `about`. best: no earlier checkpoint was as good; the newest best one is kept.
        Raises DataError for a value that no checkpoint can hold, by name; TrainError in a forked child and after close;
        with on_error="stop" the previous error of the writer.
        """
        if os.getpid() != self._process:
            raise TrainError("checkpoint: created before the fork; a forked process requires Checkpoints of its own")
        if self._closed:
            raise TrainError("checkpoint: was closed; need a new one")
        step = as_whole("step", step, 0)
        self.wait()
        job = step, Encoded(entries), plain(about), bool(best), digests
        self._idle.clear()
        try:
            threading.Thread(target=self._write, args=job, name="gradloom checkpoint").start()
        except RuntimeError:  # no thread can start: at the end of the interpreter, or too many of them
            self._write(*job)

    def wait(self) -> None:
        """Wait until the last state is written; with on_error="stop" its error is raised."""
        if os.getpid() == self._process:
            self._idle.wait()
            self._raise()

    def close(self) -> None:
        """Wait for the writer; nothing is saved any more."""
        self._closed = True
        self.wait()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(
        self, step: int, entries: Encoded, about: dict[str, Any], best: bool,
        digests: Callable[[], Mapping[str, Any]] | None,
    ) -> None:  # fmt: skip
        """The work of the writer's thread."""
        try:
            with self._writing:
                self._write_one(step, entries, about, best, digests)
        except Exception as error:
            last = "there is none before it" if self.last is None else f"the last one is that of step {self.last}"
            seen = f"the checkpoint of step {step} was not saved, {last}"
            if self.last == step:
                seen = f"the checkpoint of step {step} was saved; an error followed"
            text = f"{seen}: {reason(error)}"
            self.failure = FileError(text) if isinstance(error, FileError) else TrainError(text)
            if self.on_error == "stop":
                self._error = self.failure
            else:
                self._print(text)
        finally:
            self.lost = None if self.last == step else step
            self._idle.set()

    def _write_one(
        self, step: int, entries: Encoded, about: dict[str, Any], best: bool,
        digests: Callable[[], Mapping[str, Any]] | None,
    ) -> None:  # fmt: skip
        folder = self.folder
        try:
            opened(folder, create=True).close()
        except OSError as error:
            raise FileError(f"{folder}: cannot be made: {(error.strerror or str(error)).lower()}") from None
        if self._number is None:
            remove_parts(folder)
            self._number = max((one.number for one in manifests(folder)[0]), default=0)
        if digests is not None:
            about = {**about, **plain(digests())}
        if self._on_begin is not None:
            self._on_begin()
        path = write_checkpoint(folder, step, entries, about, best=best, number=self._number + 1)
        self._number, self.last = self._number + 1, step
        if self._on_saved is not None:
            self._on_saved(path)
        try:
            prune(self.folder, self.keep)
        except (OSError, FileError, MemoryError) as error:
            self._print(f"{folder}: old checkpoints cannot be removed: {reason(error)}")

    # ---- reading -------------------------------------------------------------------------------------------

    def latest(self) -> Saved | None:
        """The newest checkpoint that is complete; None where there is none. A damaged one is skipped, with a line that
        reports the reason. FileError when the folder cannot be read."""
        return self._newest(best=False)

    def best(self) -> Saved | None:
        """The newest checkpoint that was saved as the best, likewise."""
        return self._newest(best=True)

    def _newest(self, best: bool) -> Saved | None:
        self.wait()
        listed, bad = manifests(self.folder)
        found: Saved | None = None
        failed: list[FileError] = []
        for one in listed:
            if one.best or not best:
                read = _read(one)
                if isinstance(read, Saved):
                    found = read
                    break
                failed.append(read)
        failed += [bad[step] for step in sorted(bad) if found is None or step > found.step]
        for error in failed:
            then = "there is no other one" if found is None else f"that of step {found.step} is used"
            self._print(f"{error}; {then}")
        if found is not None:
            self.last = found.step
        return found


def _read(manifest: Manifest) -> Saved | FileError:
    try:
        return read_checkpoint(manifest)
    except FileError as error:
        return error


def reason(error: Exception) -> str:
    """Why a file could not be written, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "not enough memory" + f" ({text})" * bool(text)
    return text if isinstance(error, (GradloomError, OSError)) else f"{type(error).__name__}: {text}".removesuffix(": ")
