"""RowUses: the use (training, validation, test) of each row of the training file of a model."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.described import parse
from ..base.errors import DataError
from .dataset import generator

LEFT_OUT, TRAIN, VAL, TEST = range(4)
NAMES = ("left_out", "train", "val", "test")  # as in JSON
_SAMPLE = 1024  # training rows
_DIFFERENT = 0.99  # share of distinct rows, for a sample to identify training rows
_PART = 4096  # rows that are hashed at a time
_STREAM = 5  # of random numbers
DATA = "data"  # the file of the training rows


@dataclass
class RowUses:
    """The use of each row of a file, including rows that were left out.

    uses        u8 [rows of the data file]: LEFT_OUT, TRAIN, VAL or TEST
    array       the array of the file that holds these rows ("" for a table)
    test_array  the array of the same file that holds test rows of its own, or ""
    digests     SHA-256 of each file by the name of its setting: "data", "test", "val.NAME"
    sample      u64: hashes of training rows, of all or of 1024 of them; none where rows repeat one another
    """

    uses: np.ndarray
    array: str = ""
    test_array: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    sample: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))

    def take_sample(self, features: np.ndarray, targets: np.ndarray, order: np.ndarray, known: np.ndarray) -> None:
        """Keep the hashes of a sample of the training rows. features, targets: as predict has them; order: the row that
        each of features is; targets and known, the training rows, count rows in the order of the file."""
        rows = known[np.linspace(0, len(known) - 1, min(len(known), _SAMPLE)).astype(np.int64)]
        at = np.flatnonzero(np.isin(order, rows))
        found = row_hashes(features[at], targets[order[at]])
        self.sample = found if len(np.unique(found)) > _DIFFERENT * len(found) else found[:0]

    def found_in(self, features: Any, targets: np.ndarray) -> int:
        """How many rows of the sample are among these rows."""
        if not len(self.sample):
            return 0
        marks = getattr(features, "marks", None)  # of image files
        return int(np.isin(self.sample, row_hashes(features, targets) if marks is None else marks).sum())

    def of_file(self, digest: str, array: str, rows: int) -> np.ndarray | None:
        """The use of each of the rows that predict reads from a file with this digest, u8 [rows]; None for a file that
        was not used. array: the one that is read. DataError where the file was used and the rows do not fit to it."""
        names = [name for name, one in self.digests.items() if one == digest]
        if not names:
            return None
        if DATA not in names or (array and array == self.test_array):
            is_val = names[0].startswith("val") or array == "val"
            return np.full(rows, VAL if is_val else TEST, np.uint8)
        if array != self.array or rows != len(self.uses):
            raise DataError(f"{rows} rows of {array or 'the file'}; the model was trained on {len(self.uses)}")
        return self.uses

    def to_json(self) -> str:
        """As text, with 2 bits for a row."""
        bits = np.unpackbits(self.uses[:, None], axis=1)[:, 6:]
        text = base64.b64encode(np.packbits(bits).tobytes()).decode()
        sample = base64.b64encode(self.sample.astype("<u8").tobytes()).decode()
        arrays = {"array": self.array, "test_array": self.test_array}
        return json.dumps({"rows": len(self.uses), "uses": text, "sample": sample, "digests": self.digests} | arrays)

    @classmethod
    def from_json(cls, text: str) -> RowUses:
        """What to_json wrote; DataError for any other text."""
        entry = parse(text, "row uses")
        rows = entry.whole("rows", 1)
        try:
            packed, sample = (
                np.frombuffer(base64.b64decode(entry.text(name), validate=True), np.uint8)
                for name in ("uses", "sample")
            )
        except ValueError:
            raise DataError("row uses: uses or sample is no base64") from None
        if len(packed) != -(-rows // 4) or len(sample) % 8:
            seen = f"{len(packed)} bytes for {rows} rows, {len(sample)} for a sample"
            raise DataError(f"row uses: {seen}; need {-(-rows // 4)}, and a multiple of 8")
        bits = np.unpackbits(packed)[: 2 * rows].reshape(rows, 2)
        digests = entry.part("digests")
        made = cls(bits[:, 0] * np.uint8(2) + bits[:, 1], entry.text("array"), entry.text("test_array"))
        made.digests = {name: digests.text(name) for name in digests.names()}
        made.sample = sample.view("<u8").astype(np.uint64)
        entry.end()
        return made


def row_hashes(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """A hash of each row and its target, u64 [rows]: a sum of its 8-byte words, each times an odd number."""
    targets = np.ascontiguousarray(targets.reshape(len(targets), -1), np.float64)
    made = np.zeros(len(features), np.uint64)
    for start in range(0, len(features), _PART):
        part = np.ascontiguousarray(features[start : start + _PART]).reshape(len(made[start : start + _PART]), -1)
        raw = np.concatenate([targets[start : start + _PART].view(np.uint8), part.view(np.uint8)], axis=1)
        words = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))).view(np.uint64)
        factors = generator(0, _STREAM).integers(0, 1 << 63, words.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
        sums = (words * factors).sum(axis=1, dtype=np.uint64)
        made[start : start + _PART] = sums ^ (sums >> np.uint64(32))
    return made
