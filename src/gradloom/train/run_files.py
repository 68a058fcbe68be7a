"""The files of a run in its folder: their names, what else may be in their places, and the change from an old run to a
new one.

The files of a run that is to replace an older one lie in .gradloom.new until its first checkpoint is complete; then
they take the place of the old ones. Two renames of that folder say how far this has come, so that the next run finishes
what was cut off:

    .gradloom.new     of the new run; it is complete as soon as it holds a checkpoint
    .gradloom.clear   the old run's files are being removed
    .gradloom.move    they are gone, and the new ones are being moved to their places
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from ..base.errors import FileError
from ..files.atomic import claim, remove_parts
from ..files.checkpoint_files import OWN_FILES, listed_names, manifests, unnamed
from ..files.commit import sync
from ..files.regular import odd
from ..files.targets import reason_of

# All names that a run may have in its folder; of a folder the names inside. Nothing else is ever removed: a model and
# its result stay until the command that saves new ones replaces both at once.
OWN: dict[str, re.Pattern[str] | None] = {
    "run.json": None, "settings.toml": None, "metrics.jsonl": None, "metrics.csv": None, "samples.jsonl": None,
    "checkpoints": OWN_FILES, "tensorboard": re.compile(r"events\.out\.tfevents\..+"),
}  # fmt: skip
APPENDED = ("metrics.jsonl", "metrics.csv")  # to what is there; the others are replaced
NEW, CLEAR, MOVE = ".gradloom.new", ".gradloom.clear", ".gradloom.move"
PLACES = ("", MOVE, CLEAR)  # where the run.json of a folder is


def check_files(folder: Path) -> None:
    """FileError unless whatever has the name of a run's file is a regular file that can be read, and whatever has that
    of a folder is one that can be read and written. A link that leads to such a one will do, but for NEW, CLEAR, MOVE.
    """
    if not folder.is_dir():
        return
    _need(folder, True)
    for name in (NEW, CLEAR, MOVE):
        if (folder / name).is_symlink():
            raise FileError(f"{folder / name}: is a symbolic link, where a folder of the run has to be; {_INSTEAD}")
        _need(folder / name, True)
    for place in (folder, *(folder / name for name in (NEW, CLEAR, MOVE))):
        for name, inside in OWN.items():
            path = place / name
            _need(path, inside is not None)
            if inside is not None:
                for entry in filter(inside.fullmatch, listed_names(path)):
                    _need(path / entry, False)


def check_appended(folder: Path) -> None:
    """FileError where a file that a run adds to is there and cannot be written."""
    for name in APPENDED:
        _need(folder / name, False, writes=True)


_INSTEAD = "need it removed, or another place"


def _need(path: Path, is_folder: bool, writes: bool = False) -> None:
    why = odd(path, is_folder, writes)
    if why is not None:
        if why.startswith("cannot"):
            raise FileError(f"{path}: {why}; need the right to, or another place")
        what = "folder" if is_folder else "file"
        raise FileError(f"{path}: {why}, where a {what} of the run has to be; {_INSTEAD}")


# ---- the change from an old run to a new one -------------------------------------------------------------------------


def take_over(folder: Path) -> None:
    """The files in .gradloom.new take the place of the old run's. The next call carries on what fails half-way."""
    if (folder / NEW).is_dir() and not (folder / MOVE).is_dir() and not (folder / CLEAR).is_dir():
        os.rename(folder / NEW, folder / CLEAR)
        sync(folder)
    if (folder / CLEAR).is_dir():
        for name in OWN:
            remove(folder / name)
        sync(folder)
        os.rename(folder / CLEAR, folder / MOVE)
        sync(folder)
    if (folder / MOVE).is_dir():
        _move(folder / MOVE, folder)
        sync(folder)


def recover(folder: Path) -> None:
    """Finish a change that was cut off; remove what a killed run has left that had nothing to save. Arrays without a
    manifest stay."""
    new = folder / NEW
    if new.is_dir() and not manifests(new / "checkpoints")[0]:
        remove(new, everything=True)
    for name in (NEW, CLEAR, MOVE):
        remove_parts(folder / name)
    take_over(folder)
    remove_parts(folder / "checkpoints")


def settle(path: str | os.PathLike[str]) -> None:
    """Finish a change that was cut off in the folder of a run, so that its files are those of one run. FileError where
    another run writes there, or where that cannot be done."""
    if any(os.path.lexists(os.path.join(path, name)) for name in (NEW, CLEAR, MOVE)):
        with claim(path, True, again=True):
            try:
                check_files(Path(path))
                recover(Path(os.path.realpath(path)))
            except OSError as error:
                raise FileError(f"{path}: cannot be written: {reason_of(error)}") from None


def lost(folder: Path, step: int) -> list[int]:
    """The steps of checkpoints newer than the newest one whose arrays are there and whose manifests are gone.

    step: that of the newest complete checkpoint, as run.json tells; 0 where there was none. A kill leaves arrays
    without a manifest, too, but those of one checkpoint alone, of a later step.
    """
    place = folder / "checkpoints"
    newest = max((one.step for one in manifests(place)[0]), default=-1)
    left = sorted({at for at in unnamed(place).values() if at > newest})
    return left if newest < 0 and len(left) > 1 else [at for at in left if 0 < at <= step]


def _move(source: Path, target: Path) -> None:
    """Move all entries of a folder, into folders that exist already; run.json comes last."""
    for path in sorted(source.iterdir(), key=lambda path: (path.name == "run.json", path.name)):
        place = target / path.name
        if path.is_dir() and place.is_dir():
            _move(path, place)
        else:
            os.replace(path, place)
    source.rmdir()


def remove(path: Path, everything: bool = False) -> None:
    """Remove a file of a run, or what it has in a folder; what others have put there stays. everything: a folder that
    is gradloom's own."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            path.unlink()
        return
    names = OWN.get(path.name)
    for entry in path.iterdir():
        if everything or (names is not None and names.fullmatch(entry.name) and not entry.is_dir()):
            remove(entry, everything)
    with contextlib.suppress(OSError):  # a folder in which others have files
        path.rmdir()
