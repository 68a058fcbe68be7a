"""Roles of columns that the user sets: dropped, categorical, numeric, time, weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base.errors import DataError, SettingError
from ..reading.columns import Columns


@dataclass(frozen=True)
class Roles:
    """Columns by name (or by number, where a table has no header).

    drop         are not used                          categorical  are texts, whatever they hold
    time         orders the rows; its dates are split  numeric      are numbers: a text there is an error
    weight       how much each row weighs in training
    """

    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    time: str | None = None
    weight: str | None = None

    def __bool__(self) -> bool:
        return bool(self.drop or self.categorical or self.numeric or self.time or self.weight)

    def refused(self, why: str) -> SettingError:
        """The error for data that cannot have roles."""
        given = [name for name in ("drop", "categorical", "numeric", "time", "weight") if getattr(self, name)]
        text = " and ".join(f"{{{_setting(name)}}}" for name in given)
        return SettingError(f"{why}; omit {text}", {_setting(name): ... for name in given})

    def of(self, data: Columns, targets: Sequence[int]) -> dict[int, str]:
        """{index of a column: its role}; DataError for a column that is not there, SettingError for two roles."""
        named = [(role, name) for role in ("drop", "categorical", "numeric") for name in getattr(self, role)]
        named += [(role, name) for role in ("time", "weight") if (name := getattr(self, role)) is not None]
        found: dict[int, str] = {}
        for role, name in named:
            try:
                index = data.find(name)
            except DataError as error:
                raise DataError(f"{error}; see {{{_setting(role)}}}", setting=_setting(role)) from None
            other = "target" if index in targets else found.get(index, role)
            if other != role:
                text = f"{{{_setting(role)}}}: {name!r:.60} is also the {_WORDS[other]}; use one role for each column"
                raise SettingError(text, setting=_setting(role))
            found[index] = role
        return found


_WORDS = {
    "target": "target", "drop": "column to drop", "categorical": "column of categories", "numeric": "column of numbers",
    "time": "column of times", "weight": "column of weights",
}  # fmt: skip


def _setting(role: str) -> str:
    return "weight_column" if role == "weight" else role
