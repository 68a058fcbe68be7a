"""The files of a run in its folder: their names, checks of the folder, and the change from an old run to a new one.

The files of a run that replaces an older one are in .gradloom.new until its first checkpoint is complete; then they
replace the old ones. Two renames of that folder record the progress: the next run finishes an interrupted change.

    .gradloom.new     of the new run; it is complete as soon as it holds a checkpoint
    .gradloom.clear   the old run's files are being removed
    .gradloom.move    they are gone, and the new ones are being moved to their places
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from pathlib import Path

from ..base.errors import FileError
from ..base.reasons import unwritten
from ..files.atomic import claim, remove_parts
from ..files.checkpoint_files import OWN_FILES, listed_names, manifests, unnamed
from ..files.inside import CLEAR, FOLDERS, MOVE, NEW, in_the_way, opened
from ..files.regular import odd
from ..files.targets import kind_of, refuse_input

# All names that a run may have in its folder; of a folder the names inside. Nothing else is ever removed: a model and
# its result stay until the command that saves new ones replaces both at once.
OWN: dict[str, re.Pattern[str] | None] = {
    "run.json": None, "settings.toml": None, "metrics.jsonl": None, "metrics.csv": None, "samples.jsonl": None,
    "teacher.npy": None, "failed.capsule": None, "plans.json.gz": None,
    "checkpoints": OWN_FILES, "tensorboard": re.compile(r"events\.out\.tfevents\..+"),
}  # fmt: skip
APPENDED = ("metrics.jsonl", "metrics.csv")  # appended to; the others are replaced
PLACES = ("", MOVE, CLEAR)  # where the run.json of a folder is


def refuse_files_of(folder: str | os.PathLike[str], path: str | os.PathLike[str], *more: str) -> None:
    """FileError when writing `path` would replace a file of the run in a folder. more: further names of files there."""
    place = Path(folder)
    refuse_input(path, *(place / name for name in (*OWN, *more)))


def check_files(folder: Path) -> None:
    """FileError unless each name of a run's file is a regular file that can be read, and each name of a folder is one
    that can be read and written, where they exist. Links are refused; the folder of the run may be one."""
    if not folder.is_dir():
        return
    _need_as_it_is(folder, odd(folder, True), True)
    for place in (folder, *(folder / name for name in (NEW, CLEAR, MOVE))):
        if place != folder:
            _need(place, True)
        for name, inside in OWN.items():
            path = place / name
            _need(path, inside is not None)
            if inside is not None:
                for entry in filter(inside.fullmatch, listed_names(path)):
                    _need(path / entry, False)


def check_appended(folder: Path) -> None:
    """FileError where a file that a run appends to exists and cannot be written."""
    for name in APPENDED:
        _need(folder / name, False, writes=True)


def _need(path: Path, is_folder: bool, writes: bool = False) -> None:
    is_link = path.is_symlink()
    _need_as_it_is(path, f"is {kind_of(stat.S_IFLNK)}" if is_link else odd(path, is_folder, writes), is_folder)


def _need_as_it_is(path: Path, why: str | None, is_folder: bool) -> None:
    if why is not None and why.startswith("cannot"):
        raise FileError(f"{path}: {why}; need the right to, or another place")
    if why is not None:
        raise in_the_way(path, why, is_folder)


# ---- the change from an old run to a new one -------------------------------------------------------------------------


def replace_old(folder: Path) -> None:
    """Replace the files of the old run by those in .gradloom.new. The next call finishes an interrupted change."""
    with opened(folder) as home:
        if home.has_folder(NEW) and not home.has_folder(MOVE) and not home.has_folder(CLEAR):
            home.replace(NEW, CLEAR)
            home.sync()
        if home.has_folder(CLEAR):
            for name in OWN:
                remove(folder / name)
            home.sync()
            home.replace(CLEAR, MOVE)
            home.sync()
        if home.has_folder(MOVE):
            _move(folder / MOVE, folder)
            home.sync()


def recover(folder: Path) -> None:
    """Finish an interrupted change; remove the files of a killed run that had no checkpoint. Arrays without a manifest
    stay."""
    if _is_folder(folder / NEW) and not manifests(folder / NEW / "checkpoints")[0]:
        remove(folder / NEW, everything=True)
    for name in (NEW, CLEAR, MOVE):
        remove_parts(folder / name)
    replace_old(folder)
    remove_parts(folder / "checkpoints")


def finish_change(path: str | os.PathLike[str]) -> None:
    """Finish an interrupted change in the folder of a run, so that its files are those of one run. FileError where
    another run writes there, or where that cannot be done."""
    if any(os.path.lexists(os.path.join(path, name)) for name in (NEW, CLEAR, MOVE)):
        with claim(path, True, again=True):
            try:
                check_files(Path(path))
                recover(Path(os.path.realpath(path)))
            except OSError as error:
                raise FileError(f"{path}: {unwritten(error)}") from None


def lost(folder: Path, step: int) -> list[int]:
    """The steps of checkpoints newer than the newest one whose arrays are there and whose manifests are gone.

    step: that of the newest complete checkpoint, in run.json; 0 where there was none. A killed process leaves arrays
    without a manifest, too, but of one checkpoint only, of a later step.
    """
    place = folder / "checkpoints"
    newest = max((one.step for one in manifests(place)[0]), default=-1)
    left = sorted({at for at in unnamed(place).values() if at > newest})
    return left if newest < 0 and len(left) > 1 else [at for at in left if 0 < at <= step]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _move(source: Path, target: Path) -> None:
    """Move all entries of a folder, into folders that exist already; run.json comes last."""
    with opened(source) as here, opened(target) as there:
        for name in sorted(here.names(), key=lambda name: (name == "run.json", name)):
            if name in FOLDERS and here.has_folder(name) and there.has_folder(name):
                _move(source / name, target / name)
            else:
                here.replace(name, name, there)
    source.rmdir()


def remove(path: Path, everything: bool = False) -> None:
    """Remove a file of a run, or its files in a folder; other files stay. everything: a folder that is gradloom's own.
    Of a link the link itself is removed."""
    if not _is_folder(path):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            path.unlink()
    elif everything:
        shutil.rmtree(path)  # which follows no links
    else:
        names = OWN.get(path.name)
        with opened(path) as folder:
            for entry in folder.names():
                if names is not None and names.fullmatch(entry) and not folder.has_folder(entry):
                    folder.unlink(entry)
        with contextlib.suppress(OSError):  # a folder in which others have files
            path.rmdir()
