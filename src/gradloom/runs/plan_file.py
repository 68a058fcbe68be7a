"""plans.json.gz in the folder of a run: the memory maps of its programs, for reports.

It is written with run.json, from the plans that are proved by then. Maps hold no arrays of the run.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ..base.described import parse_object
from ..base.errors import DataError, FileError
from ..base.reasons import unreadable
from ..base.schema import Schema, items, number, optional, table, text, whole
from ..files.regular import open_regular
from ..plan.memory_map import LARGEST, MemoryMap, ProgramMap
from ..plan.phases import PHASES

PLANS = "plans.json.gz"
LONGEST = 1 << 26  # bytes of the JSON text
_ARRAYS = {"offset": np.int64, "bytes": np.int64, "first": np.int64, "last": np.int64, "readers": np.int64}
_NUMBERED = {"spec": "specs", "name": "names", "op": "ops", "line": "lines"}  # array -> its texts


def plan_file(programs: Sequence[ProgramMap]) -> bytes:
    """The bytes of the file."""
    made = [
        {"name": one.name, "copies": one.copies, "copy_bytes": one.copy_bytes, "maps": [*map(_plain, one.maps)]}
        for one in programs
    ]
    text = json.dumps({"format": 1, "programs": made}, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode(), 6, mtime=0)


def _plain(one: MemoryMap) -> dict[str, Any]:
    """A map for JSON. Numbers that ascend are stored as differences, which compress better."""
    values = {each.name: getattr(one, each.name) for each in fields(one)}
    owner = np.repeat(one.first, np.diff(one.reader_starts))
    values["first"] = np.diff(one.first, prepend=0)
    values |= {"last": one.last - one.first, "readers": one.readers - owner, "again": one.again.astype(int)}
    values["reader_starts"] = np.diff(one.reader_starts)
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def read_plan_file(path: str | os.PathLike[str]) -> list[ProgramMap]:
    """The maps of a file, which is untrusted. FileError for one that cannot be read or holds no maps."""
    try:
        with open_regular(path, "need the memory maps of a run") as file, gzip.GzipFile(fileobj=file) as packed:
            found = packed.read(LONGEST + 1)
        if len(found) > LONGEST:
            raise DataError(f"has more than {LONGEST >> 20} MiB")
        about = parse_object(found.decode(), os.path.basename(path), LONGEST)
        _FILE(about, PLANS)
        return [
            ProgramMap(one["name"], tuple(map(_map_of, one["maps"])), one["copies"], one["copy_bytes"])
            for one in about["programs"]
        ]
    except (DataError, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{path}: holds no memory maps: {' '.join(str(error).split())[:200]}") from None
    except OSError as error:
        raise FileError(f"{path}: {unreadable(error)}") from None


# ---- an untrusted map ------------------------------------------------------------------------------------------------

_COUNTS = [
    "stored_count", "stored_bytes", "arena_bytes", "lower_bound_bytes", "unshared_bytes", "scratch_bytes", "threads",
    "in_place", "recomputed_nodes", "recomputed_bytes",
]  # fmt: skip
_many = items(whole())


def _stored(value: Any, name: str) -> None:
    if not isinstance(value, list) or len(value) > LARGEST:
        raise DataError(f"{name}: must be a list of at most {LARGEST}")
    for row in value:
        if not isinstance(row, list) or [type(cell) for cell in row] != [str, str, str, int] or row[3] < 0:
            raise DataError(f"{name}: must hold name, type, role and bytes")


_MAP: Schema = table({
    "device": text, "summary": text, **dict.fromkeys([*_ARRAYS, "reader_starts", *_NUMBERED], _many),
    **dict.fromkeys(_NUMBERED.values(), items(text)), "phase": items(whole(0, len(PHASES) - 1)),
    "again": items(whole(0, 1)), "stored": _stored, **dict.fromkeys(_COUNTS, whole()), "budget": optional(whole()),
    "recomputed_overhead": number(),
})  # fmt: skip
_FILE: Schema = table({
    "format": whole(1, 1),
    "programs": items(table({"name": text, "copies": whole(), "copy_bytes": whole(), "maps": items(_MAP)})),
})  # fmt: skip


def _map_of(values: Mapping[str, Any]) -> MemoryMap:
    """A map whose fields have the types of the schema. DataError where they do not fit together."""
    made: dict[str, Any] = dict(values)
    made |= {name: np.array(values[name], kind) for name, kind in _ARRAYS.items()}
    made |= {name: np.array(values[name], np.int64).astype(np.uint32) for name in _NUMBERED}
    made["stored"] = [tuple(row) for row in values["stored"]]
    made["phase"], made["again"] = np.array(values["phase"], np.uint8), np.array(values["again"], bool)
    counts = np.array(values["reader_starts"], np.int64)
    steps, buffers = len(made["phase"]), len(made["first"])
    _need(all(len(made[name]) == buffers for name in ("offset", "bytes", "last", "spec")), "rectangles")
    _need(all(len(made[name]) == steps for name in ("again", "name", "op", "line")), "steps")
    for name, texts in _NUMBERED.items():
        _need(max(values[name], default=-1) < len(values[texts]), name)
    _need(max(values["first"], default=0) <= steps and max(values["last"], default=0) <= steps, "steps of rectangles")
    made["first"] = np.cumsum(made["first"], dtype=np.int64)
    made["last"] = made["first"] + made["last"]
    _need(not buffers or (made["first"].max() < steps and made["last"].max() <= steps), "steps of rectangles")
    total = sum(values["reader_starts"])
    _need(len(counts) == buffers and total == len(made["readers"]), "readers")
    _need(max(values["readers"], default=0) <= steps, "readers")
    made["readers"] = made["readers"] + np.repeat(made["first"], counts)
    _need(not total or made["readers"].max() < steps, "readers")
    made["reader_starts"] = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return MemoryMap(**made)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise DataError(f"a map whose {what} do not fit together")
