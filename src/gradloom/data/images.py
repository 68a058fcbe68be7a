"""ImageFolder: images in folders named after their classes, decoded when rows are requested."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..base.arguments import need_path
from ..base.errors import FileError, SettingError
from ..base.habits import AttributeHints, KeywordHints
from ..base.memory import as_bytes
from ..base.settings import switches
from .dataset import Draw
from .image_files import list_classes, note_on, parts_of
from .image_rows import ImageRows
from .transforms import ColorJitter, Draws, Normalize, Transform
from .transforms.base import as_fractions, as_size
from .transforms.mixing import Mixing


class ImageFolder(ImageRows, KeywordHints, AttributeHints):
    """Images of the files FOLDER/CLASS/*, for gl.fit, gl.evaluate and gl.predict. Requires Pillow: gradloom[images].

    path        folder with a subfolder for each class; files below are found at any depth, hidden ones are ignored.
                Class ids follow the sorted names of the subfolders, rows the sorted names of the files
    transforms  of gl.data.transforms, in this order; random ones change training rows alone
    split       of a folder with the subfolders train and val (or valid, validation) and test: "train", "val", "test".
                None: train where there are such subfolders, else the folder itself
    size        height and width of all images, one number or two: an image is resized until it covers this size, and
                its middle is cut out. None: the common size of images of one size up to 256 x 256, else a square with
                the median of their shorter sides, at most 128
    channels    1 (grey) or 3 (red, green, blue). None: 1 where all files are grey
    like        another ImageFolder, from which size, channels, classes and transforms are taken: for validation
    corrupt     "skip": files that cannot be decoded are left out, with one warning, and listed in `skipped`; "error":
                the first one is a DataError
    cache       most bytes for decoded images, kept from one pass to the next, such as "256MiB"
    threads     of the first pass; None: GRADLOOM_THREADS, or the cores of this process

    Attributes: `classes` (names), `class_ids` i32 [n], `labels` (the same; None where MixUp or CutMix make labels with
    the rows), `files` (paths below the folder), `shape` (channels, height, width) after the transforms, `mean` and
    `std` f64 [channels] of pixels in 0..1 before the transforms, `digest` of the files, `skipped` (path, reason),
    `notes`.

    All files are decoded once by the constructor: to find those that are damaged, for `mean` and `std`, and for the
    cache. DataError where no image is left; FileError for a folder that cannot be read; SettingError for other
    settings.

        crop, normalize = gl.data.transforms.RandomCrop(padding=4), gl.data.transforms.Normalize()
        train = gl.data.ImageFolder("photos", [crop, normalize])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transforms: Sequence[Transform] = (),
        *,
        split: Literal["train", "val", "test"] | None = None,
        size: int | tuple[int, int] | None = None,
        channels: Literal[1, 3] | None = None,
        like: ImageFolder | None = None,
        corrupt: Literal["skip", "error"] = "skip",
        cache: int | str = "256MiB",
        threads: int | None = None,
    ) -> None:
        _check_arguments(path, channels, like, corrupt, transforms, size)
        most, threads = as_bytes("cache", cache, "ImageFolder"), switches(threads=threads).threads
        given = None if size is None else as_size("size", size, "ImageFolder")
        listing = list_classes(_part_of(path, split), None if like is None else like.classes)
        self.classes: list[str] = listing.names
        size_of_rows, colours = (given, channels) if like is None else (like.size, like.channels)
        super().__init__("ImageFolder", listing, size_of_rows, colours, corrupt, most, threads)
        if like is None:
            self._leave_out_empty_classes()
        self._transform(self._settled(transforms) if like is None else like.transforms)
        if self.skipped:
            line = note_on(sorted(self.skipped), len(self) + len(self.skipped))[0]
            warnings.warn(f"{self.folder}: {line}", stacklevel=2)

    def _transform(self, transforms: Sequence[Transform]) -> None:
        self.transforms = tuple(transforms)
        self.shape = (self.channels, *self.size)
        for one in self.transforms:
            self.shape = one.shape(self.shape)
        self._mixes = any(isinstance(one, Mixing) for one in self.transforms)

    def transformed(self, transforms: Sequence[Transform]) -> ImageFolder:
        """The same images with these transforms."""
        made = copy.copy(self)
        made._transform(self._settled(transforms))
        return made

    def _leave_out_empty_classes(self) -> None:
        used = np.bincount(self.class_ids, minlength=len(self.classes)) > 0
        empty = [name for name, is_used in zip(self.classes, used, strict=True) if not is_used]
        if empty:
            more = ", ..." * (len(empty) > 3)
            names = f"{', '.join(map(repr, empty[:3])):.200}{more}"
            self.notes.append(f"{len(empty)} classes without an image left out: {names}")
            self.classes = [name for name, is_used in zip(self.classes, used, strict=True) if is_used]
            self.class_ids = (np.cumsum(used)[self.class_ids] - 1).astype(np.int32)

    def _settled(self, transforms: Sequence[Transform]) -> tuple[Transform, ...]:
        """With the numbers of this folder in place of Normalize's defaults."""
        std = np.where(self.std > 0, self.std, 1.0)
        settled: list[Transform] = []
        for one in transforms:
            if isinstance(one, ColorJitter) and any(isinstance(before, Normalize) for before in settled):
                raise SettingError(
                    "ImageFolder: {transforms}: ColorJitter requires pixels in 0..1, before Normalize", transforms=...
                )
            settled.append(one.of(self.mean.tolist(), std.tolist()) if isinstance(one, Normalize) else one)
        return tuple(settled)

    # -- rows --------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        channels, height, width = self.shape
        images = f"{len(self):,} images [{channels}, {height}, {width}]"
        return f"ImageFolder({str(self.folder)!r}, {images}, {len(self.classes)} classes)"

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        """(f32 [channels, height, width], class id) of one row, as evaluation sees it."""
        x, _ = self.fetch(np.array([row]))
        return x[0], int(self.class_ids[row])

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        return (self[row] for row in range(len(self)))

    @property
    def labels(self) -> np.ndarray | None:
        """Class ids i32 [n]; None where a row's labels are made with the row, because of MixUp or CutMix."""
        return None if self._mixes else self.class_ids

    @property
    def contents(self) -> list[str]:
        """The identity of the rows, for runs that are resumed: the digest of the files, and the transforms."""
        return [self.digest, f"{self.size}, {self.channels}", *map(repr, self.transforms)]

    def fetch(self, rows: Any, draw: Draw | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(x f32 [n, channels, height, width], y i32 [n]) of these rows; y f32 [n, classes] with MixUp or CutMix.

        draw: the training pass, which random transforms depend on; None: they do not apply. Thread-safe.
        IndexOutOfRange for a row that does not exist; DataError for a file that has become unreadable since the
        constructor read it.
        """
        rows = self.checked("fetch", rows)
        x, y = self._transformed(rows, draw, len(self.transforms))
        labels = self._label_rows(rows, y) if self._mixes else self.class_ids[rows]
        return np.ascontiguousarray(as_fractions(x)), labels

    def _transformed(self, rows: np.ndarray, draw: Draw | None, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """(x, y where rows were mixed) after the first transforms."""
        x, y = self.pixels(rows), None
        for position, one in enumerate(self.transforms[:count]):
            if draw is None:
                x = one.evaluate(x)
                continue
            draws = Draws(draw.seed, draw.epoch, position, rows)
            if not isinstance(one, Mixing):
                x = one.train(x, draws)
                continue
            partners = one.partners(draws, draw.rows)
            other, other_y = self._transformed(partners, draw, position)
            x, share = one.mix(x, other, draws)
            share = share[:, None]
            y = share * self._label_rows(rows, y) + (1 - share) * self._label_rows(partners, other_y)
        return x, y

    def _label_rows(self, rows: np.ndarray, mixed: np.ndarray | None) -> np.ndarray:
        """f32 [n, classes]."""
        if mixed is not None:
            return mixed
        made = np.zeros((len(rows), len(self.classes)), np.float32)
        made[np.arange(len(rows)), self.class_ids[rows]] = 1
        return made


def _check_arguments(path: Any, channels: Any, like: Any, corrupt: Any, transforms: Any, size: Any) -> None:
    place = "ImageFolder"
    need_path(path, place, "path")
    if channels not in (None, 1, 3) or isinstance(channels, bool):
        raise SettingError(setting="channels", seen=channels, need="1 or 3", place=place)
    if corrupt not in ("skip", "error"):
        raise SettingError(setting="corrupt", seen=corrupt, need="skip or error", place=place)
    if like is not None and not isinstance(like, ImageFolder):
        raise SettingError(setting="like", seen=like, need="an ImageFolder", place=place)
    for name, value in (("transforms", transforms or None), ("size", size), ("channels", channels)):
        if like is not None and value is not None:
            raise SettingError(
                f"{{like}} and {{{name}}} are mutually exclusive", {"like": ..., name: value}, place=place
            )
    if isinstance(transforms, Transform) or not isinstance(transforms, (list, tuple)):
        raise SettingError(setting="transforms", seen=transforms, need="a list of gl.data.transforms", place=place)
    for one in transforms:
        if not isinstance(one, Transform):
            hint = ", made by a call: RandomCrop(padding=4)" if isinstance(one, type) else ""
            raise SettingError(setting="transforms", seen=one, need=f"a list of gl.data.transforms{hint}", place=place)


def _part_of(path: str | os.PathLike[str], split: str | None) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file; need a folder of images" if folder.exists() else "no such folder"
        raise FileError(f"{folder}: {what}")
    if split not in (None, "train", "val", "test"):
        raise SettingError(setting="split", seen=split, need="train, val or test", place="ImageFolder")
    parts = parts_of(folder)
    if split is None:
        return parts.get("train", folder)
    if split not in parts:
        there = f"has the parts {', '.join(parts)}" if parts else "has no subfolders train and val"
        raise SettingError(f"{folder}: {there}; {{split}} requires such a subfolder", split=split)
    return parts[split]
