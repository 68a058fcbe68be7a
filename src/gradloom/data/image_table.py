"""Image folders as tables: training, validation and test rows of gradloom fit, and images to predict."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import DataError, FileError
from ..base.memory import memory as memory_of_process
from ..base.settings import switches
from .dataset import Dataset, Draw, split_rows
from .encoding.preprocess import Preprocess
from .encoding.targets import check_classes, hold_out, known_targets
from .fetched import MapDataset
from .idx import find_idx
from .image_files import UNKNOWN, Listing, is_image_folder, is_image_name, list_classes, list_files, parts_of
from .image_rows import ImageRows
from .images import ImageFolder
from .row_uses import TEST, TRAIN, VAL, RowUses
from .table import Table
from .transforms import (
    ColorJitter,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomRotation,
    Transform,
)
from .transforms.base import Draws, as_fractions

_CACHE = 1 << 30  # most bytes of decoded images that a command keeps, and at most a quarter of the memory
_TEST_SHARE = 0.2


def augmentation(names: Sequence[str], size: tuple[int, int], channels: int) -> list[Transform]:
    """The transforms of --augment: crop, flip, rotate, color, erase, for images of this size."""
    made = {
        "crop": RandomCrop(padding=max(min(size) // 8, 1)),
        "flip": RandomHorizontalFlip(),
        "rotate": RandomRotation(15),
        "color": ColorJitter(0.2, 0.2, 0.2 if channels == 3 else 0.0),
        "erase": RandomErasing(),
    }
    return [made[name] for name in made if name in names]


def holds_images(path: Any) -> bool:
    """Whether it is a folder with images, in it or in subfolders, and without idx files."""
    if not isinstance(path, (str, os.PathLike)) or not os.path.isdir(path) or find_idx(path):
        return False
    return is_image_folder(path) or any(map(is_image_name, os.listdir(path)))


def read_image_table(
    path: str | os.PathLike[str],
    *,
    augment: Sequence[str] = ("crop",),
    size: int | None = None,
    corrupt: Any = "skip",
    val_split: float = 0.0,
    seed: int = 0,
    test: str | None = None,
    threads: int | None = None,
    memory: int | None = None,
) -> Table:
    """A folder of images for training, as read_table reads other data.

    augment  names of transforms of the training rows (see `augmentation`)
    size, corrupt, threads  as for ImageFolder
    test     another folder of test rows; None: the part "test" of the folder where there are parts, else a fifth of the
             images of each class, held out by the seed. A part "val" is `val` of the table
    memory   bytes that the process may use, of which decoded images take at most a quarter; None: those that are free
    DataError for a single class.
    """
    options: dict[str, Any] = {"corrupt": corrupt, "threads": threads, "cache": _cache(memory)}
    folder = _opened(path, size=size, **options)
    folder = folder.transformed(augmentation(augment, folder.size, folder.channels))
    parts, notes = parts_of(path), list(folder.notes)
    others: dict[str, ImageFolder] = {}
    for name in parts.keys() - {"train"}:
        if is_image_folder(parts[name]):
            others[name] = _opened(path, split=name, like=folder, **options)
        else:
            notes.append(f"{parts[name]} has no folder for each class and is not used")
    rows, held = np.arange(len(folder)), np.zeros(0, np.int64)
    if test is not None:
        others["test"] = _opened(test, like=folder, **options)
    elif not parts:
        if len(folder) < 2:
            raise DataError(f"{path}: 1 image; need at least 2, one of them for the test")
        rows, held = hold_out(folder.class_ids, _TEST_SHARE, seed)
    try:
        check_classes(str(path), folder.class_ids[rows], folder.classes, notes)
    except DataError as error:  # the other class may have been in files that were skipped
        raise DataError("; ".join([str(error), *folder.notes])) from None
    share = 0.0 if "val" in others else val_split
    trained = rows[split_rows(len(rows), share, seed)[0]] if share else rows
    for name in sorted(others):
        notes += [f"{name} rows: {note}" for note in others[name].notes]
    known = folder.subset(trained)
    made = Preprocess(
        "images", "classification", "class", shape=list(folder.shape), classes=folder.classes,
        mean=float(known.mean.mean()), std=_pooled(known),
    )  # fmt: skip
    table = Table(str(path), "classification", _dataset(folder.subset(rows), made), None, "", made, notes=notes)
    table.val_split, table.uses = share, _uses(folder, rows, trained, held, parts)
    if "val" in others:
        table.val = _dataset(others["val"], made)
    if "test" in others:
        table.test, table.test_from = _dataset(others["test"], made), "folder" if test is None else "--test"
    elif len(held):
        table.test, table.test_from = _dataset(folder.subset(held), made), "held out"
    return table


def _opened(path: str | os.PathLike[str], **options: Any) -> ImageFolder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes have the same line
        return ImageFolder(path, **options)


def _cache(most: int | None = None) -> int:
    """Bytes for decoded images. most: that the process may use."""
    there = memory_of_process()
    free = most or (there.available if there is not None else 4 * _CACHE)
    return max(min(_CACHE, free // 4), 1)


def _pooled(folder: ImageFolder) -> float:
    """The standard deviation of all pixels, of all channels; 1 where they are equal."""
    mean, square = folder.mean, folder.std**2 + folder.mean**2
    return float(np.sqrt(max(square.mean() - mean.mean() ** 2, 0.0))) or 1.0


def _dataset(folder: ImageFolder, made: Preprocess) -> MapDataset:
    rows = MapDataset(folder, workers=switches().threads)
    rows.records = made.records()
    return rows


def _uses(folder: ImageFolder, rows: np.ndarray, trained: np.ndarray, held: np.ndarray, parts: Any) -> RowUses:
    """The use of each image of the folder, in the order in which predict reads them."""
    uses = RowUses(np.zeros(len(folder), np.uint8), "train" if parts else "", _predicted_part(parts) if parts else "")
    for part, use in ((rows, VAL), (trained, TRAIN), (held, TEST)):
        uses.uses[part] = use
    uses.sample = folder.marks[trained[:: max(len(trained) // 1024, 1)]]
    return uses


def repeated_images(table: Table) -> list[str]:
    """A warning if test images are files of the training, byte by byte."""
    train, test = table.train, table.test
    if not isinstance(train, MapDataset) or not isinstance(test, MapDataset):
        return []
    found = int(np.isin(test.source.marks, train.source.marks).sum())
    if not found:
        return []
    seen = f"{found:,} of {test.n:,} test images are also training images"
    return [f"{seen}, byte by byte: the test scores are too good for new images; remove duplicates"]


def labelled_images(path: str | os.PathLike[str], table: Table) -> tuple[Dataset, np.ndarray]:
    """(rows of another folder of images, their class ids), for validation or test."""
    assert isinstance(table.train, MapDataset)
    found = _opened(path, like=table.train.source, cache=_cache())
    table.notes += [f"{path}: {note}" for note in found.notes]
    return _dataset(found, table.preprocess), found.class_ids


# ---- prediction ------------------------------------------------------------------------------------------------------


def _predicted_part(parts: Any) -> str:
    return next((name for name in ("test", "val") if name in parts), "train")


def images_of(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of a folder of images, of all parts."""
    return [Path(folder, file) for file in list_files(folder).files if is_image_name(os.path.basename(file))]


def image_part(path: Any) -> str:
    """The part of a folder that predict reads: test or val where there are parts; "" of other folders and files."""
    parts = parts_of(path) if os.path.isdir(path) else {}
    return _predicted_part(parts) if parts else ""


def images_to_predict(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], preprocess: Preprocess
) -> tuple[ImageRows, np.ndarray | None, list[str], list[str]]:
    """(rows, class ids, notes, problems) of image files and folders of such. Class ids are those of the names of
    subfolders, -100 where the model does not know the name; None where it knows none.

    FileError for a path that does not exist, DataError where no image is usable.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    listing = Listing(Path())
    for path in several:
        where = Path(path)
        if where.is_dir():
            _add_folder(listing, where)
        elif where.exists():
            listing.files.append(str(where))
            listing.classes.append(UNKNOWN)
            listing.named.add(str(where))
        else:
            raise FileError(f"{where}: no such file or folder")
    channels, height, width = preprocess.shape
    rows = ImageRows("predict", listing, (height, width), channels, "skip", _cache(), switches().threads)
    labels = np.array([listing.names[at] if at >= 0 else "" for at in rows.class_ids], np.str_)
    if not set(labels) & set(preprocess.classes):
        return rows, None, rows.notes, []
    targets, problems = known_targets(labels, preprocess)
    return rows, targets, rows.notes, problems


def _add_folder(listing: Listing, folder: Path) -> None:
    """The images of a folder; where all are in subfolders, with the names of these as classes."""
    part = parts_of(folder).get(image_part(folder), folder)
    found = list_files(part)
    if not any(is_image_name(file) for file in found.files if os.sep not in file) and is_image_folder(part):
        found = list_classes(part)
    first = len(listing.names)
    listing.names += found.names
    listing.classes += [first + at if at >= 0 else at for at in found.classes]
    listing.files += [str(part / file) for file in found.files]
    listing.skipped += [(str(part / file), why) for file, why in found.skipped]


@dataclass
class View:
    """Images as pass number `number` of a training would see them: for predictions that are averaged over several
    views. Number 0: the images themselves."""

    rows: ImageRows
    transforms: Sequence[Transform]
    number: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.asarray(self.fetch(np.array([row]))[0])

    def fetch(self, rows: np.ndarray, draw: Draw | None = None) -> np.ndarray:
        """x f32 [n, channels, height, width]; draw has no effect."""
        x = self.rows.pixels(rows)
        for position, one in enumerate(self.transforms):
            x = one.train(x, Draws(0, self.number, position, rows)) if self.number else one.evaluate(x)
        return np.ascontiguousarray(as_fractions(x))
