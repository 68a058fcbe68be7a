"""A checkpoint on disk: arrays in step-000120.safetensors, all other values in step-000120.json, the manifest.

The manifest names the file of the arrays, its size and its SHA-256, and is written last: a checkpoint is there when its
manifest has its name. The manifest is one JSON object {"sha256", "checkpoint"}; the digest is that of "checkpoint" as
compact JSON with sorted keys. Values that JSON has no word for are objects of one key:

    {"$array": "model.w"}    an array of the file of arrays; with "dtype" where it is stored as bytes (u8[..., size])
    {"$number": "loss"}      a NumPy number, an array of shape () in that file; "dtype" likewise
    {"$float": "nan"}        nan, inf, -inf
    {"$tuple": [...]}        a tuple
    {"$dict": [[k, v]]}      a dict with other keys than texts, or with a text that begins with $
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..base.described import LONGEST, Described, parse_object
from ..base.errors import DataError, FileError
from ..base.reasons import unreadable, unwritten
from .arrays import safetensors_of
from .atomic import atomic_inside
from .checkpoint_arrays import read_arrays
from .commit import PART, digest_of
from .inside import opened, opened_if_there

FORMAT = 1
DEEPEST = 100  # lists, tuples and dicts around a value
_MANIFEST = re.compile(r"step-(\d{6,})\.json")
_ARRAYS = re.compile(r"(step-\d{6,})(?:\.\d+)?\.safetensors")
# every name in a folder of checkpoints, temporary ones included
OWN_FILES = re.compile(rf"({re.escape(PART)}[a-z0-9_]{{8}}\.)?step-\d{{6,}}(\.json|(\.\d+)?\.safetensors)")
_DTYPE = re.compile(r"[<>|=]?[biufcmMSUV]\d{1,9}(\[[0-9a-zA-Z]{1,8}\])?|[a-z]\w{2,30}", re.A)
_PLAIN = ("float32", "float64", "int32", "int64", "int16", "int8", "uint8", "bool", "float16", "bfloat16")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: entries "part.name" -> array or value, and a description of the run.

    number: counts the checkpoints of a folder; the newest has the largest.
    """

    step: int
    entries: dict[str, Any]
    about: dict[str, Any]
    best: bool
    number: int
    path: Path


@dataclass(frozen=True)
class Manifest:
    """Contents of a manifest; values are still encoded."""

    path: Path
    step: int
    number: int
    best: bool
    arrays: str
    bytes: int
    sha256: str
    entries: dict[str, Any]
    about: dict[str, Any]

    @property
    def arrays_path(self) -> Path:
        return self.path.parent / self.arrays

    def is_whole(self) -> bool:
        """Whether the file of arrays is there with its size; its bytes are checked when it is read."""
        try:
            with opened(self.path.parent) as folder:
                state = folder.check(self.arrays)
        except (OSError, FileError):
            return False
        return state is not None and state.st_size == self.bytes


# ---- writing ---------------------------------------------------------------------------------------------------------


class Encoded:
    """Entries as a manifest and a file of arrays hold them. Plain values are copied, arrays are not.

    DataError for a value that no checkpoint can hold, by name.
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.values = {name: _encoded(name, value, self.arrays) for name, value in entries.items()}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values without arrays as JSON holds them; DataError as for Encoded."""
    return {name: _encoded(name, value, None) for name, value in values.items()}


def write_checkpoint(
    folder: Path, step: int, entries: Encoded, about: Mapping[str, Any], *, best: bool, number: int
) -> Path:
    """Write both files, each whole or not at all; returns the manifest's path. What there was of this step stays
    readable until the new manifest takes its place.

    about: as `plain` gives it. FileError when the files cannot be written.
    """
    body: dict[str, Any] = {
        "format": FORMAT, "step": step, "number": number, "best": best, "entries": entries.values,
        "about": dict(about),
    }  # fmt: skip
    stem = f"step-{step:06d}"
    file, count = f"{stem}.safetensors", 0
    try:
        with opened(folder) as place:
            while place.state(file) is not None:  # of an older one of this step, which counts until this one is whole
                count += 1
                file = f"{stem}.{count}.safetensors"
            size, pieces = safetensors_of(folder / file, entries.arrays)
            seen = hashlib.sha256()
            with atomic_inside(place, file, size) as out:
                for piece in pieces:
                    out.write(piece)
                    seen.update(piece)
            body["arrays"] = {"file": file, "bytes": size, "sha256": seen.hexdigest()}
            text = json.dumps({"sha256": _digest_of(body), "checkpoint": body}, separators=(",", ":"))
            if len(text) > LONGEST:
                raise DataError(
                    f"{folder / stem}.json: {len(text)} characters of values; need at most {LONGEST}: as arrays"
                )
            with atomic_inside(place, f"{stem}.json") as out:
                out.write(text.encode())
    except BaseException as error:
        with contextlib.suppress(OSError, FileError):
            remove_unnamed(folder)
        if isinstance(error, OSError):
            raise FileError(f"{folder / file}: {unwritten(error)}") from None
        raise
    return folder / f"{stem}.json"


def _digest_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _encoded(name: str, value: Any, arrays: dict[str, np.ndarray] | None, depth: int = 0) -> Any:
    """A value as JSON; its arrays join `arrays`. name: of the value, for messages and for its arrays. depth: of the
    lists, tuples and dicts around it."""
    kind = type(value)
    if depth > DEEPEST:
        raise DataError(f"checkpoint: {name:.60} is nested too deeply, or holds itself; need plain values")
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_unicode(value) else {"$text": [ord(c) for c in value]}
    if kind is int:
        if value.bit_length() > 4096:
            raise DataError(f"checkpoint: {name} is a whole number of {value.bit_length()} bits; need at most 4096")
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, (np.ndarray, np.generic)) and arrays is not None:
        return _array(name, value, arrays)
    if kind is list or kind is tuple:
        several = [_encoded(f"{name}[{i}]", one, arrays, depth + 1) for i, one in enumerate(value)]
        return several if kind is list else {"$tuple": several}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") and _is_unicode(key) for key in value):
            return {key: _encoded(f"{name}/{key}", one, arrays, depth + 1) for key, one in value.items()}
        pairs = [(key, f"{name}/{key}", one) for key, one in value.items()]
        coded = [[_encoded(at, key, None, depth + 1), _encoded(at, v, arrays, depth + 1)] for key, at, v in pairs]
        return {"$dict": coded}
    need = (
        "arrays, numbers, texts, None, and lists, tuples and dicts of these" if arrays is not None else "plain values"
    )
    raise DataError(f"checkpoint: {name:.60} is {kind.__name__}; need {need}")


def _is_unicode(text: str) -> bool:
    """Whether JSON brings it back: a pair of surrogates, which is two characters here, becomes one there."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _array(name: str, value: np.ndarray | np.generic, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    given = np.asarray(value)
    kind = given.dtype
    if kind.hasobject or kind.fields is not None or np.ma.isMaskedArray(value):
        raise DataError(f"checkpoint: {name:.60} is an array of {kind}; need numbers, without a mask")
    encoded: dict[str, Any] = {"$array" if isinstance(value, np.ndarray) else "$number": name}
    if not kind.isnative or kind.name not in _PLAIN:
        encoded["dtype"] = kind.name if kind.name in ml_dtypes.__dict__ else kind.str
        if kind.itemsize == 0:
            raise DataError(f"checkpoint: {name:.60} is an array of {kind} of 0 bytes each; need numbers")
        given = np.ascontiguousarray(given).reshape(*given.shape, 1).view(np.uint8)
    unique, count = name, 1
    while unique in arrays:
        count += 1
        unique = f"{name}#{count}"
    encoded[next(iter(encoded))] = unique
    arrays[unique] = given
    return encoded


# ---- reading ---------------------------------------------------------------------------------------------------------


def manifests(folder: Path) -> tuple[list[Manifest], dict[int, FileError]]:
    """The manifests of a folder, the newest first; of those that cannot be read why, by their steps."""
    read = {step: _try(folder / name) for name, step in _names(folder).items()}
    found = [one for one in read.values() if isinstance(one, Manifest)]
    bad = {step: error for step, error in read.items() if isinstance(error, FileError)}
    return sorted(found, key=lambda one: -one.number), bad


def _try(path: Path) -> Manifest | FileError:
    try:
        return read_manifest(path)
    except FileError as error:
        return error


def read_manifest(path: Path) -> Manifest:
    """A manifest whose digest and fields are right; FileError else."""
    try:
        value = parse_object(_text(path), "it")
        whole = Described(value, "it")
        sha256, body = whole.text("sha256"), value.get("checkpoint")
        whole.part("checkpoint")
        whole.end()
        if not isinstance(body, dict) or _digest_of(body) != sha256:
            raise DataError("its digest is another one")
        fields = Described(body, "checkpoint")
        form = fields.whole("format", 1)
        if form != FORMAT:
            raise DataError(f"it is of format {form}; this gradloom reads {FORMAT}")
        arrays, entries, about = fields.part("arrays"), body.get("entries"), body.get("about")
        fields.part("entries"), fields.part("about")
        made = Manifest(
            path, fields.whole("step", 0), fields.whole("number", 0), fields.flag("best"), arrays.text("file"),
            arrays.whole("bytes", 0), arrays.text("sha256"), entries, about,  # type: ignore[arg-type]
        )  # fmt: skip
        fields.end()
        arrays.end()
        named, own = _ARRAYS.fullmatch(made.arrays), _MANIFEST.fullmatch(path.name)
        if named is None or named[1] != path.name.removesuffix(".json") or own is None or int(own[1]) != made.step:
            raise DataError(f"it names {made.arrays!r:.60} of step {made.step}")
    except (DataError, RecursionError) as error:
        raise FileError(f"{path}: is no whole manifest of a checkpoint: {error}") from None
    return made


def _text(path: Path) -> str:
    """The text of a regular file of at most 4 * LONGEST bytes."""
    try:
        with opened(path.parent) as folder, folder.read(path.name) as file:
            text = file.read(4 * LONGEST + 1)
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    if len(text) > 4 * LONGEST:
        raise FileError(f"{path}: is longer than {4 * LONGEST} bytes; need a manifest")
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise FileError(f"{path}: is no whole manifest of a checkpoint: it is no text of UTF-8") from None


def read_checkpoint(manifest: Manifest) -> Saved:
    """Arrays and values. The file of arrays is opened once; the hashed bytes are those of the arrays.
    FileError unless size and digest are those of the manifest, and the values fit to the arrays."""
    path = manifest.arrays_path
    try:
        with opened(path.parent) as folder, folder.read(path.name) as file:
            size = os.fstat(file.fileno()).st_size
            if size != manifest.bytes:
                raise FileError(f"{path}: has {size} bytes; {manifest.path.name} requires {manifest.bytes} bytes")
            try:
                left, sha256 = read_arrays(file, size)
            except DataError as error:
                file.seek(0)
                if digest_of(file) == manifest.sha256:
                    raise FileError(f"{path}: is no file of arrays that gradloom has written: {error}") from None
                sha256 = ""
    except FileNotFoundError:
        raise FileError(f"{path}: is not there; {manifest.path.name} requires {manifest.bytes} bytes") from None
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None
    if sha256 != manifest.sha256:
        raise FileError(f"{path}: its SHA-256 is not that of {manifest.path.name}")
    try:
        entries = {name: _decoded(value, left) for name, value in manifest.entries.items()}
        about = {name: _decoded(value, {}) for name, value in manifest.about.items()}
        if left:
            raise DataError(f"array {next(iter(left))!r:.60} has no entry")
    except DataError as error:
        raise FileError(f"{manifest.path}: does not fit to its arrays: {error}") from None
    return Saved(manifest.step, entries, about, manifest.best, manifest.number, manifest.path)


def _decoded(value: Any, arrays: dict[str, np.ndarray], depth: int = 0) -> Any:
    """What `_encoded` made of a value; its arrays are taken out of `arrays`."""
    if depth > 2 * DEEPEST:  # a tuple is an object and a list
        raise DataError("values are nested too deeply")
    if isinstance(value, list):
        return [_decoded(one, arrays, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    word = next(iter(value), "")
    if not word.startswith("$"):
        return {key: _decoded(one, arrays, depth + 1) for key, one in value.items()}
    content = value[word]
    if (
        word in ("$array", "$number")
        and isinstance(content, str)
        and content in arrays
        and value.keys() <= {word, "dtype"}
    ):
        array = _as(arrays.pop(content), value["dtype"]) if "dtype" in value else arrays.pop(content)
        if word == "$array":
            return array
        if not array.shape:
            with contextlib.suppress(ValueError):  # a text of characters that there are not
                return array[()]
    if len(value) == 1:
        if word == "$float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if (
            word == "$text"
            and isinstance(content, list)
            and all(type(c) is int and 0 <= c <= 0x10FFFF for c in content)
        ):
            return "".join(map(chr, content))
        if word == "$tuple" and isinstance(content, list):
            return tuple(_decoded(one, arrays, depth + 1) for one in content)
        if word == "$dict" and isinstance(content, list) and all(isinstance(p, list) and len(p) == 2 for p in content):
            with contextlib.suppress(TypeError):  # a key that is a list
                made = {_decoded(key, {}, depth + 1): _decoded(one, arrays, depth + 1) for key, one in content}
                if len(made) == len(content):
                    return made
    raise DataError(f"{json.dumps(value):.60} is no value of a checkpoint")


def _as(stored: np.ndarray, name: Any) -> np.ndarray:
    """The array of another dtype whose bytes are stored: u8[..., itemsize]."""
    kind = None
    if isinstance(name, str) and _DTYPE.fullmatch(name):
        with contextlib.suppress(TypeError, ValueError):
            kind = np.dtype(getattr(ml_dtypes, name) if name in ml_dtypes.__dict__ else name)
    usable = kind is not None and not kind.hasobject and kind.fields is None and kind.itemsize > 0
    if kind is None or not usable or stored.dtype != np.uint8 or stored.shape[-1:] != (kind.itemsize,):
        raise DataError(f"dtype {name!r:.60} does not fit to {stored.dtype}{list(stored.shape)}")
    return np.ascontiguousarray(stored).view(kind).reshape(stored.shape[:-1])


# ---- removing --------------------------------------------------------------------------------------------------------


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the newest best one, manifests first. What cannot be read stays.

    OSError when a file cannot be removed.
    """
    listed, _ = manifests(folder)
    listed = [one for one in listed if one.is_whole()]
    best = next((one for one in listed if one.best), None)
    with opened(folder) as place:
        for one in listed[keep:]:
            if one is not best:
                place.unlink(one.path.name)
    remove_unnamed(folder)


def remove_unnamed(folder: Path) -> None:
    """Remove arrays that no manifest names: of a writer that was cut off, or of a checkpoint that was removed."""
    names = unnamed(folder)
    if names:
        with opened(folder) as place:
            for name in names:
                place.unlink(name)


def unnamed(folder: Path) -> dict[str, int]:
    """Files of arrays that no manifest names -> their steps, without those of a manifest that cannot be read."""
    listed, bad = manifests(folder)
    named = {one.arrays for one in listed}
    matches = ((name, _ARRAYS.fullmatch(name)) for name in listed_names(folder))
    steps = {name: int(found[1].removeprefix("step-")) for name, found in matches if found is not None}
    return {name: step for name, step in steps.items() if name not in named and step not in bad}


def _names(folder: Path) -> dict[str, int]:
    """Names of manifests -> their steps."""
    found = ((name, _MANIFEST.fullmatch(name)) for name in listed_names(folder))
    return {name: int(match[1]) for name, match in found if match is not None}


def listed_names(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it is not there. FileError where it cannot be read."""
    try:
        with opened_if_there(folder) as place:
            return [] if place is None else place.names()
    except OSError as error:
        raise FileError(f"{folder}: {unreadable(error)}") from None
