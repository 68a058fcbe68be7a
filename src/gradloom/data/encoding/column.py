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
    encoded  of many categories: what the training targets of each are, in `codes`, [categories, features] row by row
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
        """As a JSON object; what few columns have is left out of the others."""
        said = asdict(self)
        return {name: value for name, value in said.items() if name in _ALWAYS or value}

    def record(self, most: int) -> tuple[str, str]:
        """(name, kind and every other field that differs from its default; the numbers learned from the rows), each as
        text; of one of more than `most` characters its beginning and a digest."""
        defaults = {item.name: item.default for item in fields(self)}
        said = {name: v for name, v in self.described().items() if v and v != defaults[name]}
        named = [f"{name} {v}" for name, v in said.items() if name not in ("name", "kind", *_LEARNED)]
        learned = [f"{name} {said[name]}" for name in _LEARNED if name in said]
        texts = [repr(self.name), self.kind, *named], [repr(self.name), *learned]
        return shortened(", ".join(texts[0]), most), shortened(", ".join(texts[1]), most)

    @classmethod
    def from_described(cls, said: Described) -> Column:
        """What described made; DataError otherwise."""
        made = cls(
            name=composed(said.text("name")),
            kind=said.text("kind", ("number", "text", "encoded", "time", "unused")),
            median=said.number("median"),
            mean=said.number("mean"),
            std=said.number("std", positive=True),
            categories=said.texts("categories"),
            reason=said.text("reason"),
            has_missing=said.flag("has_missing") if said.has("has_missing") else False,
            center=said.number("center") if said.has("center") else 0.0,
            scale=said.number("scale", positive=True) if said.has("scale") else 0.0,
            codes=said.numbers("codes") if said.has("codes") else [],
            form=said.text("form", (NUMBER, *FORMS)) if said.has("form") else "",
            parts=said.texts("parts") if said.has("parts") else [],
            grouped=said.flag("grouped") if said.has("grouped") else False,
            unit=said.text("unit", UNITS) if said.has("unit") else "",
            others=said.flag("others") if said.has("others") else False,
        )
        said.end()
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
