"""RowUses: what each row of the file that a model was trained on was used for."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

import numpy as np

from ..base.described import parse
from ..base.errors import DataError

LEFT_OUT, TRAIN, VAL, TEST = range(4)
NAMES = ("left_out", "train", "val", "test")  # as in JSON
DATA = "data"  # the file of the training rows


@dataclass
class RowUses:
    """What the rows of files were used for. A row keeps its place, also where others were left out.

    uses        u8 [rows of the data file]: LEFT_OUT, TRAIN, VAL or TEST
    array       the array of the file that holds these rows ("" for a table)
    test_array  the array of the same file that holds test rows of its own, or ""
    digests     SHA-256 of each file by the name of its setting: "data", "test", "val.NAME"
    """

    uses: np.ndarray
    array: str = ""
    test_array: str = ""
    digests: dict[str, str] = field(default_factory=dict)

    def of_file(self, digest: str, array: str, rows: int) -> np.ndarray | None:
        """The use of each of the rows that predict reads from a file with this digest, u8 [rows]; None for a file that
        was not used. array: the one that is read. DataError where the file was used and the rows do not fit to it."""
        names = [name for name, one in self.digests.items() if one == digest]
        if not names:
            return None
        if DATA not in names or (array and array == self.test_array):
            return np.full(rows, VAL if names[0].startswith("val") else TEST, np.uint8)
        if array != self.array or rows != len(self.uses):
            raise DataError(f"{rows} rows of {array or 'the file'}; the model was trained on {len(self.uses)}")
        return self.uses

    def to_json(self) -> str:
        """As text, with 2 bits for a row."""
        bits = np.unpackbits(self.uses[:, None], axis=1)[:, 6:]
        text = base64.b64encode(np.packbits(bits).tobytes()).decode()
        said = {"rows": len(self.uses), "uses": text, "array": self.array, "test_array": self.test_array}
        return json.dumps({**said, "digests": self.digests})

    @classmethod
    def from_json(cls, text: str) -> RowUses:
        """What to_json wrote; DataError for any other text."""
        said = parse(text, "row uses")
        rows = said.whole("rows", 1)
        try:
            packed = np.frombuffer(base64.b64decode(said.text("uses"), validate=True), np.uint8)
        except ValueError:
            raise DataError("row uses: uses is no base64") from None
        if len(packed) != -(-rows // 4):
            raise DataError(f"row uses: {len(packed)} bytes for {rows} rows; need {-(-rows // 4)}")
        bits = np.unpackbits(packed)[: 2 * rows].reshape(rows, 2)
        digests = said.part("digests")
        made = cls(bits[:, 0] * np.uint8(2) + bits[:, 1], said.text("array"), said.text("test_array"))
        made.digests = {name: digests.text(name) for name in digests.names()}
        said.end()
        return made
