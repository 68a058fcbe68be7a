"""How one input column becomes features: learned from the training rows, and saved with the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..._cells import UNITS
from ...base.described import Described
from ...base.errors import DataError
from ...base.record import shortened
from ..reading.cells import composed
from .times import CALENDAR, FORMS, NUMBER, PARTS

_LEARNED = ("median", "mean", "std", "center", "scale", "codes")
_ALWAYS = ("name", "kind", "median", "mean", "std", "categories", "reason")


@dataclass
class Column:
    """One input column and the features that it makes:

    number   the median where it is missing, asinh((x - center) / scale) of a skewed column, standardised; has_missing:
             one feature more, 1 where the cell is missing
    text     one-hot over its categories
    encoded  many categories: target encoding, `codes` [categories, features] in row-major order
    time     seconds, or a number, standardised, the median where it is missing; `parts` (see times.py): the calendar
             year on the same scale, a sine and a cosine of each other one; has_missing of dates as for numbers
    unused   none, for this reason
    """

    name: str
    kind: str
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    categories: list[str] = field(default_factory=list)
    reason: str = ""
    has_missing: bool = False
    center: float = 0.0
    scale: float = 0.0  # 0: the column is not skewed
    codes: list[float] = field(default_factory=list)
    form: str = ""
    parts: list[str] = field(default_factory=list)
    grouped: bool = False  # commas cut thousands, in a file where commas may be decimal
    unit: str = ""  # of its numbers, such as $
    others: bool = False  # of texts: training rows have others than the categories, which set no feature

    def described(self) -> dict[str, Any]:
        """As a JSON object; optional fields with default values are omitted."""
        entry = asdict(self)
        return {name: value for name, value in entry.items() if name in _ALWAYS or value}

    def record(self, most: int) -> tuple[str, str]:
        """(name, kind and every other field that differs from its default; the numbers learned from the rows), each as
        text; of one of more than `most` characters its beginning and a digest."""
        defaults = {item.name: item.default for item in fields(self)}
        entry = {name: v for name, v in self.described().items() if v and v != defaults[name]}
        named = [f"{name} {v}" for name, v in entry.items() if name not in ("name", "kind", *_LEARNED)]
        learned = [f"{name} {entry[name]}" for name in _LEARNED if name in entry]
        texts = [repr(self.name), self.kind, *named], [repr(self.name), *learned]
        return shortened(", ".join(texts[0]), most), shortened(", ".join(texts[1]), most)

    @classmethod
    def from_described(cls, entry: Described) -> Column:
        """From the result of `described`; DataError otherwise."""
        made = cls(
            name=composed(entry.text("name")),
            kind=entry.text("kind", ("number", "text", "encoded", "time", "unused")),
            median=entry.number("median"),
            mean=entry.number("mean"),
            std=entry.number("std", positive=True),
            categories=entry.texts("categories"),
            reason=entry.text("reason"),
            has_missing=entry.flag("has_missing") if entry.has("has_missing") else False,
            center=entry.number("center") if entry.has("center") else 0.0,
            scale=entry.number("scale", positive=True) if entry.has("scale") else 0.0,
            codes=entry.numbers("codes") if entry.has("codes") else [],
            form=entry.text("form", (NUMBER, *FORMS)) if entry.has("form") else "",
            parts=entry.texts("parts") if entry.has("parts") else [],
            grouped=entry.flag("grouped") if entry.has("grouped") else False,
            unit=entry.text("unit", UNITS) if entry.has("unit") else "",
            others=entry.flag("others") if entry.has("others") else False,
        )
        entry.end()
        has_categories = made.kind in ("text", "encoded")
        if bool(made.categories) != has_categories:
            raise DataError(
                f"column {made.name!r:.60}: {len(made.categories)} categories of a column of kind {made.kind!r:.60}"
            )
        known = [category.encode() for category in made.categories]
        if known != sorted(known):
            raise DataError(f"column {made.name!r:.60}: its categories are not in order")
        of_codes = len(made.codes) % len(known) == 0 and bool(made.codes) if made.kind == "encoded" else not made.codes
        of_time = all(part in PARTS for part in made.parts) and (made.form != NUMBER or not made.parts)
        if (
            not of_codes
            or (made.kind != "number" and (made.center or made.scale or made.unit))
            or (made.has_missing and not (made.kind == "number" or (made.kind == "time" and made.form != NUMBER)))
            or (made.kind not in ("number", "time") and made.grouped)
            or (made.kind != "text" and made.others)
            or (not (of_time and made.form) if made.kind == "time" else made.form or made.parts)
        ):
            raise DataError(f"column {made.name!r:.60}: its settings are not those of kind {made.kind!r:.60}")
        return made

    @property
    def width(self) -> int:
        """How many features it makes."""
        if self.kind == "encoded":
            return len(self.codes) // len(self.categories)
        if self.kind == "time":
            return 1 + sum(1 if part == CALENDAR else 2 for part in self.parts) + self.has_missing
        return {"number": 1 + self.has_missing, "text": len(self.categories), "unused": 0}[self.kind]
