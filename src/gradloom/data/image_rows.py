"""ImageRows: image files as rows: headers and pixels checked once, pixels read by number."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ..base.errors import DataError, IndexOutOfRange
from .image_files import (
    Header,
    ImageFault,
    Listing,
    decoded,
    header_of,
    is_image_name,
    note_on,
    pillow,
)
from .transforms.base import as_fractions

_KEPT_SIDE = 256  # pixels: images of one common size up to this keep it
_SIDE = 128  # pixels: the largest default of images of different sizes
_CHUNK = 32  # files that a thread takes at a time

Item = TypeVar("Item")
Made = TypeVar("Made")


class ImageRows:
    """Image files without classes, as rows f32 [channels, height, width] of pixels in 0..1.

    size, channels  None: from the headers of the files (see ImageFolder)
    corrupt         "skip" or "error": of files that cannot be decoded
    cache           most bytes of decoded images that are kept
    All files are decoded once by the constructor. DataError where no image is left.
    """

    def __init__(
        self,
        place: str,
        listing: Listing,
        size: tuple[int, int] | None,
        channels: int | None,
        corrupt: str,
        cache: int,
        threads: int,
    ) -> None:
        self._pillow = pillow(place)
        self.folder, self._corrupt = listing.folder, corrupt
        self.skipped: list[tuple[str, str]] = list(listing.skipped)
        self.notes: list[str] = []
        headers = self._identify(listing, threads)
        self.size = _size_of(headers) if size is None else size
        self.channels = channels or (1 if all(header.is_grey for header in headers) else 3)
        self.shape: tuple[int, int, int] = (self.channels, *self.size)
        del headers
        self._decode_all(cache, threads)
        self.notes += note_on(sorted(self.skipped), len(self.files) + len(self.skipped))

    def _identify(self, listing: Listing, threads: int) -> list[Header]:
        """The headers of the files that are images, which become the rows."""

        def header(path: str) -> Header | str:
            try:
                return header_of(self._pillow, self.folder / path)
            except ImageFault as fault:
                return str(fault)

        kept: list[tuple[str, int, Header]] = []
        others: list[str] = []
        found = _in_threads(header, listing.files, threads)
        for path, class_id, one in zip(listing.files, listing.classes, found, strict=True):
            if isinstance(one, Header):
                kept.append((path, class_id, one))
            elif path in listing.named or is_image_name(os.path.basename(path)):
                self._skip(path, one)
            else:
                others.append(path)
        if others:
            count = f"{len(others):,} file{'s' * (len(others) != 1)}"
            self.notes.append(f"{count} of other kinds ignored, such as {others[0]!r:.80}")
        if not kept:
            raise self._nothing()
        self.files = [one[0] for one in kept]
        self.class_ids = np.array([one[1] for one in kept], np.int32)
        return [one[2] for one in kept]

    def _skip(self, path: str, reason: str) -> None:
        if self._corrupt == "error":
            raise DataError(f"{self.folder / path}: {reason}; repair or remove it, or use corrupt='skip'")
        self.skipped.append((path, reason))

    def _nothing(self) -> DataError:
        reasons = note_on(sorted(self.skipped), len(self.skipped))
        where = "no usable image" if str(self.folder) == "." else f"{self.folder}: holds no usable image"
        return DataError(f"{where}{f' ({reasons[0]})' if reasons else ''}; need at least 1")

    def _decode_all(self, most: int, threads: int) -> None:
        """Decode each file once: leave out those that are damaged, measure the others, and fill the cache."""
        row = (*self.size, self.channels)
        kept = np.empty((min(len(self.files), most // max(int(np.prod(row)), 1)), *row), np.uint8)

        def check(path: str) -> tuple[np.ndarray, np.ndarray, bytes] | str:
            try:
                pixels, content = decoded(self._pillow, self.folder / path, self.size, self.channels)
            except ImageFault as fault:
                return str(fault)
            flat = pixels.reshape(-1, self.channels).astype(np.int64)
            return pixels, np.stack([flat.sum(0), (flat * flat).sum(0)]), content

        found = hashlib.sha256()
        sums: list[np.ndarray] = []
        marks = bytearray()
        rows: list[int] = []
        for row_in, result in enumerate(_in_threads(check, self.files, threads)):
            if isinstance(result, str):
                self._skip(self.files[row_in], result)
                continue
            pixels, of_row, content = result
            if len(rows) < len(kept):
                kept[len(rows)] = pixels
            sums.append(of_row)
            marks += content[:8]
            found.update(os.fsencode(self.files[row_in]) + b"\0" + content)
            rows.append(row_in)
        if not rows:
            raise self._nothing()
        self._kept, self._sums = kept[: len(rows)], np.stack(sums)
        self.marks = np.frombuffer(bytes(marks), "<u8").astype(np.uint64)  # of the contents of each file
        self.files, self.class_ids = [self.files[i] for i in rows], self.class_ids[rows]
        self._places = np.arange(len(rows))
        self.digest = f"sha256:{found.hexdigest()}"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Any:
        """f32 [channels, height, width] of one row."""
        return self.fetch(np.array([row]))[0]

    def fetch(self, rows: Any, draw: Any = None) -> Any:
        """x f32 [n, channels, height, width] of these rows; draw has no effect. Thread-safe."""
        return np.ascontiguousarray(as_fractions(self.pixels(self.checked("fetch", rows))))

    @property
    def mean(self) -> np.ndarray:
        """Of each channel, f64 [channels], of pixels in 0..1 before the transforms."""
        return self._moments()[0]

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each channel, f64 [channels], of pixels in 0..1 before the transforms."""
        mean, square = self._moments()
        return np.sqrt(np.maximum(square - mean * mean, 0))

    def _moments(self) -> np.ndarray:
        """f64 [2, channels]: means of pixels in 0..1 and of their squares."""
        sums = self._sums.sum(axis=0, dtype=object)  # whole numbers without limit: the same in any order
        count = len(self) * self.size[0] * self.size[1]
        return np.array(
            [[int(n) / (count * scale) for n in line] for line, scale in zip(sums, (255, 255**2), strict=True)]
        )

    def subset(self, rows: Any) -> Any:
        """Some of the rows, i64 [n], as an object of its own, with the same settings and memory of decoded images.
        IndexOutOfRange for a row that does not exist."""
        picked = self.checked("subset", rows)
        made = copy.copy(self)
        made.files, made.class_ids = [self.files[row] for row in picked], self.class_ids[picked]
        made._places, made._sums, made.marks = self._places[picked], self._sums[picked], self.marks[picked]
        made.digest = f"sha256:{hashlib.sha256(self.digest.encode() + picked.tobytes()).hexdigest()}"
        return made

    def checked(self, place: str, rows: Any) -> np.ndarray:
        """Numbers of rows, i64 [n]."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise DataError(f"{place}: rows of {rows.dtype} {list(rows.shape)}; need whole numbers [n]")
        bad = rows[(rows < 0) | (rows >= len(self))]
        if len(bad):
            raise IndexOutOfRange(0, f"{place}: row {bad[0]}; need 0..{len(self) - 1}")
        return rows.astype(np.int64)

    def pixels(self, rows: np.ndarray) -> np.ndarray:
        """u8 [n, channels, height, width], which the caller owns."""
        made = np.empty((len(rows), *self.size, self.channels), np.uint8)
        places = self._places[rows]
        is_kept = places < len(self._kept)
        made[is_kept] = self._kept[places[is_kept]]
        for at in np.flatnonzero(~is_kept):
            path = self.folder / self.files[rows[at]]
            try:
                made[at], content = decoded(self._pillow, path, self.size, self.channels)
            except ImageFault as fault:
                raise DataError(f"{path}: {fault}; it was readable when the folder was opened") from None
            if int.from_bytes(content[:8], "little") != int(self.marks[rows[at]]):
                raise DataError(f"{path}: has changed since the folder was opened; open it again")
        return made.transpose(0, 3, 1, 2)


def _size_of(headers: Sequence[Header]) -> tuple[int, int]:
    sizes = {(header.height, header.width) for header in headers}
    if len(sizes) == 1 and max(next(iter(sizes))) <= _KEPT_SIDE:
        return next(iter(sizes))
    sides = sorted(min(header.height, header.width) for header in headers)
    side = min(sides[len(sides) // 2], _SIDE)
    return side, side


def _in_threads(function: Callable[[Item], Made], items: Sequence[Item], threads: int) -> Iterator[Made]:
    """function(item) of each item, in order, a bounded number of them ahead."""
    if threads < 2 or len(items) < 2 * _CHUNK:
        yield from map(function, items)
        return
    chunks: Iterable[Sequence[Item]] = (items[i : i + _CHUNK] for i in range(0, len(items), _CHUNK))
    with ThreadPoolExecutor(threads) as pool:
        begun = [pool.submit(list, map(function, chunk)) for chunk in islice(chunks, 2 * threads)]
        try:
            while begun:
                yield from begun.pop(0).result()
                begun += [pool.submit(list, map(function, chunk)) for chunk in islice(chunks, 1)]
        finally:
            for one in begun:
                one.cancel()
