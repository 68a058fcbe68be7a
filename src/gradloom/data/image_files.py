"""Image files: folders with a subfolder for each class, and decoding into pixels (Pillow).

Files are untrusted: sizes are limited before anything is decoded, and each fault of a file becomes an ImageFault.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..base.errors import DataError, FileError
from ..base.extras import optional
from ..base.reasons import reason_of, unreadable
from ..base.terminal import in_one_line
from .reading.cells import composed
from .transforms.geometry import covering

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    ".avif", ".mpo",
)  # fmt: skip
PARTS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
MOST_PIXELS = 1 << 26  # of a file: 67 million, which take 256 MiB as RGB
_MOST_BYTES = 1 << 28  # of a file
_SMALL = 1 << 20  # pixels up to which an image does not count among those that are decoded at a time
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "AVIF")  # EPS would start a program
_GREY = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N", "I")
_ORIENTATION = 0x0112  # the tag of EXIF
_TIFF_WIDTH, _TIFF_HEIGHT = 0x0100, 0x0101
UNKNOWN = -100  # the class id of a file without a class
_NAMED = 3  # files in a note


class ImageFault(Exception):
    """A file that is no usable image; the message completes "photo.jpg: "."""


def pillow(place: str) -> Any:
    """PIL.Image; BackendError where Pillow is not installed. Its warnings about damaged files are switched off: faults
    are reported by name."""
    warnings.filterwarnings("ignore", module=r"PIL(\.|$)")
    found = optional("PIL.Image", place, "images")
    found.init()
    return found


# ---- folders ---------------------------------------------------------------------------------------------------------


@dataclass
class Listing:
    """The files of a folder, sorted by class and name.

    files    paths below the folder
    classes  the class id of each file
    names    of the classes
    skipped  (path, reason) of files and links that are left out
    named    files that a user has named, whose suffix does not matter
    """

    folder: Path
    files: list[str] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    named: set[str] = field(default_factory=set)


def parts_of(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """ "train", and "val" and "test" where they are: the parts of a folder whose only subfolders are those of PARTS; {}
    for any other folder."""
    known = {name: part for part, names in PARTS.items() for name in names}
    found: dict[str, Path] = {}
    for entry in _entries(Path(folder)):
        if not entry.is_dir(follow_symlinks=False):
            continue
        part = known.get(entry.name.lower())
        if part is None:
            return {}
        if part in found:
            raise DataError(f"{folder}: both {found[part].name} and {entry.name} are the part {part!r}; keep one")
        found[part] = Path(entry.path)
    has_classes = "train" in found and any(one.is_dir(follow_symlinks=False) for one in _entries(found["train"]))
    return found if has_classes else {}


def is_image_folder(folder: str | os.PathLike[str]) -> bool:
    """Whether this folder has subfolders and an image in one of them, or in a folder below."""
    for entry in _entries(Path(folder)):
        if entry.is_dir(follow_symlinks=False):
            for _, _, names in os.walk(entry.path):
                if any(is_image_name(name) for name in names):
                    return True
    return False


def is_image_name(name: str) -> bool:
    """By its suffix, and not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def list_classes(folder: str | os.PathLike[str], known: Sequence[str] | None = None) -> Listing:
    """The files of FOLDER/CLASS, and of folders below. known: the classes, in the order of their ids; None: the names
    of the subfolders, sorted. DataError where there is no subfolder, and for one that is not known."""
    made = Listing(Path(folder))
    root = os.path.realpath(folder)
    subfolders: dict[str, str] = {}
    for entry in _entries(made.folder):
        if entry.is_symlink():
            made.skipped.append((entry.name, "is a link; need a folder of a class"))
        elif entry.is_dir():
            name = composed(os.fsencode(entry.name).decode("utf-8", "replace"))
            if name in subfolders:
                raise DataError(f"{folder}: two folders have the name {name!r:.60}; rename one")
            subfolders[name] = entry.name
    if not subfolders:
        raise DataError(f"{folder}: holds no folder for each class; need files such as {folder}/cats/1.jpg")
    made.names = sorted(subfolders) if known is None else list(known)
    ids = {name: i for i, name in enumerate(made.names)}
    for name, subfolder in sorted(subfolders.items()):
        if name not in ids:
            shown = ", ".join(map(repr, made.names[:5])) + ", ..." * (len(made.names) > 5)
            raise DataError(f"{folder}: the class {name!r:.60} is not one of {shown:.200}")
        found = sorted(_files_below(made, subfolder, root))
        made.files += found
        made.classes += [ids[name]] * len(found)
    return made


def list_files(folder: str | os.PathLike[str]) -> Listing:
    """The files of a folder and of the folders below, without classes."""
    made = Listing(Path(folder))
    made.files = sorted(_files_below(made, "", os.path.realpath(folder)))
    made.classes = [UNKNOWN] * len(made.files)
    return made


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted, without hidden names; FileError where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted((one for one in found if not one.name.startswith(".")), key=lambda one: one.name)
    except OSError as error:
        raise FileError(f"{folder}: {unreadable(error)}") from None


def _files_below(made: Listing, subfolder: str, root: str) -> Iterator[str]:
    folders = [subfolder]
    while folders:
        at = folders.pop()
        try:
            entries = _entries(made.folder / at)
        except FileError as error:
            made.skipped.append((at, str(error).partition(": ")[2]))
            continue
        for entry in entries:
            path = os.path.join(at, entry.name)
            if entry.is_symlink() and (fault := _fault_of_link(entry.path, root)):
                made.skipped.append((path, fault))
            elif entry.is_dir():
                folders.append(path)
            elif entry.is_file():
                yield path
            else:
                made.skipped.append((path, "is no regular file"))


def _fault_of_link(path: str, root: str) -> str | None:
    """The reason why a link is not followed; None for one to a file inside the folder."""
    target = os.path.realpath(path)
    if not os.path.exists(target):
        return "is a link to a file that does not exist"
    if os.path.commonpath([root, target]) != root:
        return "is a link that leaves the folder"
    return "is a link to a folder" if os.path.isdir(target) else None


def note_on(skipped: Sequence[tuple[str, str]], total: int) -> list[str]:
    """One line about files that were left out, with the first three of them; [] if there are none."""
    if not skipped:
        return []
    named = "; ".join(f"{in_one_line(path, 80)}: {in_one_line(why, 120)}" for path, why in skipped[:_NAMED])
    more = f"; and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
    return [f"{len(skipped):,} of {total:,} files skipped: {named}{more}"]


# ---- decoding --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """Size and channels of an image, without its pixels."""

    height: int
    width: int
    is_grey: bool


def header_of(image_module: Any, path: str | os.PathLike[str]) -> Header:
    """The header of a file; ImageFault for a file that is no image."""
    with _opened(image_module, path) as (image, _):
        width, height = image.size
        if image.format == "TIFF":  # whose size is that of the upright image in some versions of Pillow
            width, height = image.tag_v2[_TIFF_WIDTH], image.tag_v2[_TIFF_HEIGHT]
        if _orientation(image) >= 5:
            width, height = height, width
        return Header(height, width, _is_grey(image))


def decoded(
    image_module: Any, path: str | os.PathLike[str], size: tuple[int, int], channels: int
) -> tuple[np.ndarray, bytes]:
    """(u8 [height, width, channels] of the first frame, upright: resized until it covers `size`, its middle cut out;
    SHA-256 of the file). ImageFault for a file that is no image, or is damaged.

    Transparent pixels are laid over white; 16 bits become 8; colours become grey by ITU-R 601 where channels is 1.
    """
    with _opened(image_module, path) as (image, file):
        room = max(image.size[0] * image.size[1], os.fstat(file.fileno()).st_size // 4)
        if room <= _SMALL:
            return _pixels(image_module, image, size, channels), _digest(file)
    with _ROOM.taken(min(room, MOST_PIXELS)):  # opened again inside, so that its memory is free afterwards
        return _decoded_large(image_module, path, size, channels)


def _decoded_large(
    image_module: Any, path: str | os.PathLike[str], size: tuple[int, int], channels: int
) -> tuple[np.ndarray, bytes]:
    with _opened(image_module, path) as (image, file):
        return _pixels(image_module, image, size, channels), _digest(file)


def _digest(file: BinaryIO) -> bytes:
    file.seek(0)
    found = hashlib.sha256()
    while piece := file.read(1 << 20):
        found.update(piece)
    return found.digest()


@contextmanager
def _opened(image_module: Any, path: str | os.PathLike[str]) -> Iterator[tuple[Any, BinaryIO]]:
    """(image, of which the header is read, file); errors inside become ImageFaults."""
    try:
        with open(path, "rb") as file:
            count = os.fstat(file.fileno()).st_size
            if count == 0:
                raise ImageFault("is empty (0 bytes)")
            if count > _MOST_BYTES:
                raise ImageFault(f"has {count:,} bytes; need at most {_MOST_BYTES:,}")
            with image_module.open(file, formats=[name for name in _FORMATS if name in image_module.OPEN]) as image:
                width, height = image.size
                if width * height > MOST_PIXELS:
                    raise ImageFault(f"has {width} x {height} pixels; need at most {MOST_PIXELS:,}")
                yield image, file
    except Exception as error:  # the parsers raise errors of any type
        raise _fault(error) from None


def _fault(error: Exception) -> Exception:
    """The error of one file as an ImageFault; one of the system as a FileError."""
    if isinstance(error, (ImageFault, MemoryError)):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return FileError(f"images: {unreadable(error)}")
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return ImageFault(f"cannot be read: {reason_of(error)}")
    if type(error).__name__ == "UnidentifiedImageError":
        return ImageFault("is no image of a known format")
    if type(error).__name__ == "DecompressionBombError":
        return ImageFault(f"has too many pixels; need at most {MOST_PIXELS:,}")
    reason = " ".join(str(error).split()) or type(error).__name__
    return ImageFault(f"is truncated or damaged ({reason:.80})")


def _orientation(image: Any) -> int:
    """1..8 of EXIF; 1 where there is none, or where it follows the pixels of a PNG that are not yet decoded."""
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & set(image.info):
        return 1  # Pillow would decode the pixels to look for it
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block: the pixels are there
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _is_grey(image: Any) -> bool:
    if image.mode != "P":
        return image.mode in _GREY
    palette = image.getpalette("RGB") or []
    return palette[0::3] == palette[1::3] == palette[2::3]


def _pixels(image_module: Any, image: Any, size: tuple[int, int], channels: int) -> np.ndarray:
    if image.format in ("JPEG", "MPO"):  # decoded at 1/2, 1/4 or 1/8 where that is at least twice the size
        wanted = size if _orientation(image) < 5 else size[::-1]
        image.draft(None, (2 * wanted[1], 2 * wanted[0]))
    image.load()
    orientation = _orientation(image)
    if image.format == "TIFF":  # Pillow turns it while it is loaded, and removes the tag
        orientation = image.tag_v2.get(_ORIENTATION, 1)
    image = _converted(image_module, image, channels)
    if orientation > 1:
        image = image.transpose(_upright(image_module)[orientation - 2])
    height, width = size
    if image.size != (width, height):
        box = covering(image.size[1], image.size[0], size)
        image = image.resize((width, height), image_module.Resampling.BILINEAR, box)
    return np.asarray(image).reshape(height, width, channels)


def _upright(image_module: Any) -> tuple[Any, ...]:
    """The transposition for each orientation from 2 on."""
    how = image_module.Transpose
    return (
        how.FLIP_LEFT_RIGHT, how.ROTATE_180, how.FLIP_TOP_BOTTOM, how.TRANSPOSE, how.ROTATE_270, how.TRANSVERSE,
        how.ROTATE_90,
    )  # fmt: skip


def _converted(image_module: Any, image: Any, channels: int) -> Any:
    """As mode L or RGB."""
    if image.mode == "F":
        raise ImageFault("has pixels of floating-point numbers; need whole numbers of 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ImageFault("has pixels of 32 bits; need whole numbers of 8 or 16 bits")
        image = image_module.fromarray((values >> 8).astype(np.uint8))
    elif image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        pixels = image.convert("RGBA")
        image = image_module.new("RGBA", pixels.size, "white")
        image.alpha_composite(pixels)
    mode = "L" if channels == 1 else "RGB"
    if image.mode == "RGBA":
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


class _Room:
    """Bounds the pixels that all threads decode at a time."""

    def __init__(self, pixels: int) -> None:
        self._free, self._changed = pixels, threading.Condition()

    @contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """Waits until this number of pixels is free, at most MOST_PIXELS."""
        with self._changed:
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()


_ROOM = _Room(MOST_PIXELS)
